"""Encoders, and the one place that loads them."""
