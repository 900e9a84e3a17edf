"""Runs, measures and paired tests."""
