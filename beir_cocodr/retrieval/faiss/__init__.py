"""Approximate search by FAISS."""
