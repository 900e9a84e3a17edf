"""Families of retrieval models trained and evaluated in interpolation and extrapolation."""
