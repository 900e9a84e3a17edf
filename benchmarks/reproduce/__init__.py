"""Specifications of the papers' tables, and one runner for all of them.

``python benchmarks/reproduce --help`` describes the runner.
"""
