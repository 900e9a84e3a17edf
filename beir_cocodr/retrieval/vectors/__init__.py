"""Exact search of vectors: encoding a corpus, products on processors and devices, selection."""
