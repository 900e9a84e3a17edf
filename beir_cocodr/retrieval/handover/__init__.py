"""Vectors and fusion weights in the form that a search engine takes."""
