"""Checkpoints: where they are found, how they are checked, and how they are loaded."""
