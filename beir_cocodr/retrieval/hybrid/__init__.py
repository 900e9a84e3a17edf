"""Fusion of a dense and a lexical ranking, and the hybrid encoders that are fitted to it."""
