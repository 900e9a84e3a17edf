"""Hard negatives: from BM25, from files, and mined by the model."""
