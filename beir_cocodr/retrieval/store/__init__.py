"""The parts of an embedding store: shards, ids, precisions, key, files and search."""
