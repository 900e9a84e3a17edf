"""Families of retrieval models trained and judged in interpolation and extrapolation."""
