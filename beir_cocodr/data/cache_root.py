"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_dir


def cache_root() -> Path:
    """The folder below which everything derived is kept: ``BEIR_COCODR_CACHE`` if that is set, else the
    platform's own place (on Linux ``~/.cache/beir-cocodr``). It may be deleted at any time."""
    override = os.environ.get("BEIR_COCODR_CACHE")
    return Path(override).expanduser() if override else Path(user_cache_dir("beir-cocodr"))
