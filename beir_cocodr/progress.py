"""One line of progress on stderr: which step of a command runs, what it does now, and the time left
for all of it.

On a terminal the line changes in place and goes when it is done. Anything else, such as the log of
a build, gets a line when a step begins and one every half minute.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

log = logging.getLogger(__name__)

#: Seconds between lines where they do not change in place.
INTERVAL = 30.0


class Steps:
    """The steps of a command, and the time left for them. ``expected``: name to seconds, in their
    order; None where nothing is known, which the mean of the others stands for. Expectations are
    scaled by what the steps before took.
    """

    def __init__(self, expected: Mapping[str, float | None]) -> None:
        self.names, self.expected = list(expected), list(expected.values())
        self.took: list[float] = []
        self.began = time.perf_counter()

    def begin(self, name: str) -> bool:
        """Go on to a step; False where there is none of this name, or it is over."""
        if name not in self.names[len(self.took) :]:
            return False
        number, now = self.names.index(name), time.perf_counter()
        if number > len(self.took):
            left_out = range(len(self.took) + 1, number)
            self.took += [now - self.began, *[0.0] * len(left_out)]
            for other in left_out:
                self.expected[other] = 0.0
            self.began = now
        return True

    def __str__(self) -> str:
        return f"{len(self.took) + 1} of {len(self.names)}, {self.names[len(self.took)]}"

    def left(self, bar: float = 0.0) -> float | None:
        """Seconds that are left for all, at least ``bar`` of them for this one; None where nothing
        is known.
        """
        done = len(self.took)
        known = [seconds for seconds in self.expected if seconds is not None]
        if not known and not done:
            return None
        usual = sum(known) / len(known) if known else sum(self.took) / done
        expected = [usual if seconds is None else seconds for seconds in self.expected]
        before = sum(expected[:done])
        pace = sum(self.took) / before if before else 1.0
        running = max(pace * expected[done] - (time.perf_counter() - self.began), bar)
        return running + pace * sum(expected[done + 1 :])


_STEPS: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextmanager
def steps(expected: Mapping[str, float | None]) -> Iterator[None]:
    """The steps of a whole command, in force inside; those of a command that is a step of another
    do not count.
    """
    if _STEPS.get() is not None or len(expected) < 2:
        yield
        return
    token = _STEPS.set(Steps(expected))
    try:
        yield
    finally:
        _STEPS.reset(token)


def step(name: str) -> None:
    """A step begins: its line, where lines do not change in place."""
    whole = _STEPS.get()
    if whole is not None and whole.begin(name) and not in_place():
        left = whole.left()
        log.info(
            "step %s%s",
            str(whole),
            "" if left is None else f"; about {describe_seconds(left)} left for all",
        )


def in_place() -> bool:
    """Whether stderr is a terminal, where a line can change."""
    return sys.stderr is not None and sys.stderr.isatty()


class Bar(tqdm):  # type: ignore[misc]
    """tqdm's bar as the one line: with the step before it and the time left for all behind it.

    Of bars within each other the innermost is seen. It takes what tqdm takes.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.in_place = in_place()
        # Work that is over at once shows none.
        usual: dict[str, Any] = {"leave": False, "position": 0, "delay": 0.5, "dynamic_ncols": True}
        usual |= {"bar_format": "{step}{l_bar}{bar:10}{r_bar}{left}"}
        if not self.in_place:
            usual |= {
                "delay": INTERVAL,
                "mininterval": INTERVAL,
                "maxinterval": INTERVAL,
                "miniters": 1,
            }
            usual |= {
                "bar_format": "{step}{desc}: {percentage:.0f}%, {n_fmt} of {total_fmt}{unit}{postfix}{left}"
            }
        if sys.stderr is None:  # nobody listens
            settings["disable"] = True
        super().__init__(*args, **usual | settings)

    @property
    def format_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = super().format_dict
        whole = _STEPS.get()
        rate = found["rate"] or (found["n"] - found["initial"]) / max(found["elapsed"], 1e-6)
        here = (found["total"] - found["n"]) / rate if found["total"] and rate else 0.0
        left = here if whole is None else whole.left(here)
        text = (
            ""
            if not left
            else f", about {describe_seconds(left)} left" + " for all" * (whole is not None)
        )
        return found | {"step": "" if whole is None else f"[{whole}] ", "left": text}

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Change the line, or write a new one; what tqdm would delete stays there."""
        if self.in_place:
            super().display(msg, pos)
        elif msg is None:
            self.fp.write(f"{self}\n")
            self.fp.flush()


class LineHandler(logging.StreamHandler[Any]):
    """Writes a message above the line of progress, where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        with Bar.external_write_mode(self.stream) if in_place() else nullcontext():
            super().emit(record)


def describe_seconds(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
