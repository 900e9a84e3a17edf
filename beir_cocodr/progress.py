"""One line of progress on stderr: the step of a command, its present work, and the time left.

The line belongs to the :class:`LineHandler` of the command line, which knows the steps of the
running command. On a terminal the line changes in place and disappears when the work is done. A
log, such as that of a build, gets a line when a step begins and one every half minute. Without the
handler, as in a library's use, steps are ignored and bars are drawn without them.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

from tqdm import tqdm

log = logging.getLogger(__name__)

#: Seconds between lines where they do not change in place.
INTERVAL = 30.0

#: Seconds of work before a bar appears on a terminal.
_DELAY = 0.5

#: Seconds of work before the first line where lines do not change in place.
_FIRST_LINE = 3.0


class Steps:
    """The steps of a command, and the time left for them.

    Args:
        expected: step to the seconds that it should take, in the order of the steps; None where
            nothing is known, which counts as the mean of the others. Expectations are scaled by
            the time that the steps before took whose time was expected.
    """

    def __init__(self, expected: Mapping[str, float | None]) -> None:
        """Begin with the first step."""
        self.names = list(expected)
        self.expected = list(expected.values())
        self.took: list[float] = []
        self.began = time.perf_counter()

    def begin(self, name: str) -> bool:
        """Begin a later step, and return False if there is none of this name."""
        done = len(self.took)
        if name not in self.names[done:]:
            return False
        number = self.names.index(name)
        now = time.perf_counter()
        if number > done:
            self.took.append(now - self.began)
            self.began = now
        for skipped in range(done + 1, number):
            self.took.append(0.0)
            self.expected[skipped] = 0.0
        return True

    def __str__(self) -> str:
        """Return the number of the running step, the number of all, and its name."""
        done = len(self.took)
        running = self.names[done]
        return f"{done + 1} of {len(self.names)}, {running}"

    @property
    def is_expected(self) -> bool:
        """Return whether somebody expected how long the running step takes."""
        return self.expected[len(self.took)] is not None

    def left(self, bar: float = 0.0, ends_step: bool = False) -> float | None:
        """Return the seconds left for all steps, or None where nothing is known.

        Args:
            bar: the seconds that the present bar of the running step still takes, 0 if unknown.
            ends_step: whether the running step ends with this bar. Then the time that the bar
                takes counts, and not the time that was expected.
        """
        done = len(self.took)
        known = [seconds for seconds in self.expected if seconds is not None]
        if known:
            usual = sum(known) / len(known)
        elif done:
            usual = sum(self.took) / done
        else:
            return None
        expected = [usual if seconds is None else seconds for seconds in self.expected]
        expected_later = sum(expected[done + 1 :])
        elapsed = time.perf_counter() - self.began
        if ends_step and bar:
            pace = self._pace([*self.took, elapsed + bar])
            return bar + pace * expected_later
        pace = self._pace(self.took)
        left_of_running = pace * expected[done] - elapsed
        return max(left_of_running, bar) + pace * expected_later

    def _pace(self, took: list[float]) -> float:
        """Return how many times as long the first steps took as expected, where that is known."""
        known = [
            (seconds, expected)
            for seconds, expected in zip(took, self.expected, strict=False)
            if expected is not None
        ]
        expected_so_far = sum(expected for _, expected in known)
        if not expected_so_far:
            return 1.0
        return sum(seconds for seconds, _ in known) / expected_so_far


def in_place() -> bool:
    """Return whether stderr is a terminal, where a line can change."""
    return sys.stderr is not None and sys.stderr.isatty()


def is_watched() -> bool:
    """Return whether somebody sees what is printed: on a terminal and in a notebook."""
    return in_place() or "ipykernel" in sys.modules


def describe_seconds(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def describe_size(count: int) -> str:
    """Return a number of bytes in words."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.1f} GiB"
    return f"{count / (1 << 20):.1f} MiB"


class Clock(Protocol):
    """Anything that knows how long some work still takes."""

    def seconds_left(self) -> float | None:
        """Return the seconds left, None where nothing is known yet."""
        ...


class Bar(tqdm):  # type: ignore[misc]
    """A bar of tqdm as the one line, with the step before it and the time left behind it.

    Among nested bars, the innermost is shown. It takes the arguments of tqdm.

    Attributes:
        clock: knows the time left where items take different times; None measures it by the items.
        ends_step: whether the running step ends with this bar.
    """

    clock: Clock | None = None
    ends_step = False

    def __init__(self, *args: Any, **settings: Any) -> None:
        """Create a bar of tqdm with the settings of the one line as defaults."""
        self.in_place = in_place()
        if sys.stderr is None:
            settings["disable"] = True
        super().__init__(*args, **{**self._defaults(), **settings})

    def _defaults(self) -> dict[str, object]:
        defaults: dict[str, object] = {"leave": False, "position": 0, "dynamic_ncols": True}
        if self.in_place:
            return defaults | {
                "delay": _DELAY,
                "bar_format": "{step}{l_bar}{bar:10}{r_bar}{left}",
            }
        return defaults | {
            "delay": min(_FIRST_LINE, INTERVAL),
            "mininterval": min(_FIRST_LINE, INTERVAL),
            "maxinterval": INTERVAL,
            "miniters": 1,
            "bar_format": "{step}{desc}: {percentage:.0f}%, {n_fmt} of {total_fmt}{unit}{postfix}"
            "{left}",
        }

    @property
    def format_dict(self) -> dict[str, object]:
        """Return tqdm's values of the line, and those of the running step."""
        values: dict[str, object] = super().format_dict
        steps = _running_steps()
        bar_left = self._seconds_left(values)
        # Where nobody expected how long a step takes, its bar says nothing of the other steps.
        expected = steps if steps is not None and steps.is_expected else None
        left = bar_left if expected is None else expected.left(bar_left, self.ends_step)
        text = ""
        if left:
            text = f", about {describe_seconds(left)} left"
            if expected is not None:
                text += " for all"
        step = ""
        if steps is not None:
            step = f"[{steps}] "
        return values | {"step": step, "left": text}

    def _seconds_left(self, values: Mapping[str, Any]) -> float:
        if self.clock is not None:
            return self.clock.seconds_left() or 0.0
        done = values["n"]
        total = values["total"]
        rate = values["rate"]
        if not rate:
            elapsed = max(values["elapsed"], 1e-6)
            rate = (done - values["initial"]) / elapsed
        if not total or not rate:
            return 0.0
        return float((total - done) / rate)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Change the line in place, or write a new line where that is not possible."""
        if self.in_place:
            super().display(msg, pos)
        elif msg is None:  # tqdm deletes a line by writing an empty message
            self.mininterval = INTERVAL
            self.fp.write(f"{self}\n")
            self.fp.flush()


class LineHandler(logging.StreamHandler[Any]):
    """The handler of the command line: it owns the one line, and writes messages above it.

    Attributes:
        steps: the steps of the running command, None where it has none.
        has_spoken: whether a message was written.
    """

    steps: Steps | None = None
    has_spoken = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message without touching a bar that is shown."""
        self.has_spoken = True
        with Bar.external_write_mode(self.stream) if in_place() else nullcontext():
            super().emit(record)


@contextmanager
def saying_soon(message: str, seconds: float = 0.8) -> Iterator[None]:
    """Log a message after a moment, unless something else was logged before or the block is over.

    Libraries take seconds to load, and a command that prints nothing looks dead.
    """
    handler = _handler()
    ended = threading.Event()

    def say() -> None:
        if not ended.wait(seconds) and (handler is None or not handler.has_spoken):
            log.info("%s", message)

    threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _handler() -> LineHandler | None:
    """Return the handler of the command line, None in a library's use."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineHandler):
            return handler
    return None


def _running_steps() -> Steps | None:
    handler = _handler()
    return None if handler is None else handler.steps


@contextmanager
def steps(expected: Mapping[str, float | None]) -> Iterator[None]:
    """Show the steps of a command while the block runs.

    The steps of a command that is itself a step of another command are not shown.

    Args:
        expected: see :class:`Steps`.
    """
    handler = _handler()
    if handler is None or handler.steps is not None or len(expected) < 2:
        yield
        return
    handler.steps = Steps(expected)
    try:
        yield
    finally:
        handler.steps = None


def step(name: str) -> None:
    """Begin a step of the running command, and write its line where lines do not change in place.

    A name that is no later step of the running command is ignored.
    """
    running = _running_steps()
    if running is None or not running.begin(name) or in_place():
        return
    # Models differ too much to guess the time of one by the time that others took.
    left = running.left() if running.is_expected else None
    ending = "" if left is None else f"; about {describe_seconds(left)} left for all"
    log.info("step %s%s", str(running), ending)
