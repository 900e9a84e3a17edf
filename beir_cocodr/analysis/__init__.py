"""What a corpus, its queries and a model's representations say about each other."""
