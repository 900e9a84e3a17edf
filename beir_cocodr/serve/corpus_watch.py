"""Watching the files of a corpus: whether they have changed, without reading them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event

from beir_cocodr.data.memory import MemorySource
from beir_cocodr.data.sources import Source
from beir_cocodr.errors import InputError

log = logging.getLogger(__name__)

#: Seconds between two looks at the files.
INTERVAL = 2.0

# A look may take this share of the time.
_SHARE = 0.05


class CorpusWatch:
    """The files of a corpus, by the sizes and times that they have.

    Args:
        source: the source of the corpus; None is never changed.
    """

    def __init__(self, source: Source | None) -> None:
        """Take the present state of the files as the known one."""
        self.source = None if isinstance(source, MemorySource) else source
        self._known = self._state()
        self._before = self._known

    def _state(self) -> tuple[str, ...] | None:
        """Return the state of the files, None where it cannot be known now."""
        if self.source is None:
            return None
        try:
            return self.source.key()
        except (OSError, InputError):  # a file vanished between two looks at it
            return None

    def has_changed(self) -> bool:
        """Return true once after a change, as soon as the files are as they were a look before.

        A file that is still being written is thus not read too early.
        """
        state = self._state()
        is_settled = state == self._before
        self._before = state
        if state is None or state == self._known or not is_settled:
            return False
        self._known = state
        return True

    def run(self, changed: Callable[[], object], stopping: Event) -> None:
        """Call a function after each change, until an event is set."""
        pause = INTERVAL
        while self.source is not None and not stopping.wait(pause):
            started = time.perf_counter()
            is_changed = self.has_changed()
            pause = max(INTERVAL, (time.perf_counter() - started) / _SHARE)
            if is_changed:
                changed()
