"""What an embedding store is made of: shards, ids, precisions, key, files and search."""
