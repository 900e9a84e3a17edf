"""Hosts that are imported when a test uses them, as every worker collects the tests of all."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class LazyModule:
    """A module that is imported when one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks every name of a file whether it is a fixture
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


def lazy_or_skip(name: str, reason: str) -> Any:
    """Return a module that is imported on use, or skip the file if it is not installed."""
    if find_spec(name) is None:
        pytest.skip(reason, allow_module_level=True)
    return LazyModule(name)
