"""The installed versions that a number may depend on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    "beir-cocodr",
    "torch",
    "transformers",
    "sentence-transformers",
    "beir",
    "ir-measures",
    "ir-datasets",
    "bm25s",
    "numpy",
)


def versions() -> dict[str, str]:
    """Package to version, of those that are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
