"""Specifications of the papers' tables and the one runner of all: ``python benchmarks/reproduce
--help``.
"""
