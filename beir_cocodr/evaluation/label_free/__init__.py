"""Verdicts on two models on a collection without labels, and how far to trust them."""
