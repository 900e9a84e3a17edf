"""Which resampled collections there are on this machine."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from beir_cocodr.data.cache_root import cache_root
from beir_cocodr.files import write_text

log = logging.getLogger(__name__)


def remember(output: Path) -> None:
    """Note an output of `resample` below the cache root, so that its ids can be registered later."""
    folder = str(output.resolve())
    name = hashlib.sha256(folder.encode()).hexdigest()[:16]
    try:
        write_text(cache_root() / "resampled" / f"{name}.json", json.dumps({"folder": folder}) + "\n")
    except OSError as error:
        log.warning(
            "%s is not noted in the cache (%s); register_resampled finds it by its path", output, error
        )


def remembered_outputs() -> list[Path]:
    """The outputs that were noted and are still there, the newest first."""
    found = []
    for note in (cache_root() / "resampled").glob("*.json"):
        try:
            folder = Path(json.loads(note.read_text(encoding="utf-8"))["folder"])
            found.append((note.stat().st_mtime_ns, folder))
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s cannot be read and is passed over", note)
    return [folder for _, folder in sorted(found, reverse=True) if (folder / "manifest.json").is_file()]
