"""Corpora, queries and judgements in files: read, checked, converted, linked and remembered."""
