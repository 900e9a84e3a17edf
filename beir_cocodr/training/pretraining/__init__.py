"""Continued pre-training: its objectives, and the views of texts that they contrast."""
