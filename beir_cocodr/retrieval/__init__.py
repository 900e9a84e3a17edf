"""Search: exact dense, BM25, and their fusions."""
