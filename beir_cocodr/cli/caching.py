"""The command that shows and clears the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from typer import Option

from beir_cocodr import cache as contents
from beir_cocodr.cache import KINDS, Entry
from beir_cocodr.cli import parameters
from beir_cocodr.cli.flags import plain
from beir_cocodr.errors import Limits
from beir_cocodr.io import cache_root
from beir_cocodr.progress import describe_size
from beir_cocodr.records import Json
from beir_cocodr.report.terminal import make_table, print_json, print_tables


def cache(
    clear: Annotated[
        str | None,
        plain(
            "Remove everything (all), one kind such as vectors, or one corpus by its name or path. "
            "Whatever is needed later is made again."
        ),
    ] = None,
    older_than: Annotated[
        float | None,
        Option(
            help="Remove only what was not used for this many days; without --clear, this applies "
            "to everything.",
            min=0,
        ),
    ] = None,
    as_json: parameters.Json = False,
) -> None:
    """Show what the cache contains, and clear it.

    The cache keeps what is computed from corpora, such as the vectors of their texts, so that no
    command computes it twice. BEIR_COCODR_CACHE names its folder, and BEIR_COCODR_VECTORS that of
    the vectors, or turns them off with the value off. Nothing outside these folders is ever
    removed.
    """
    if older_than is not None:
        Limits(min=0).check("--older-than", older_than)
    held = contents.entries()
    removed: list[Entry] = []
    if clear is not None or older_than is not None:
        removed = contents.chosen(held, clear, older_than)
        contents.remove(removed)
        held = contents.entries()
    if as_json:
        print_json(_as_json(held, removed))
        return
    if clear is not None or older_than is not None:
        print(f"{_described(removed)} removed")
    rows = [
        [KINDS[kind], corpus, str(count), describe_size(size), used]
        for kind, corpus, count, size, used in _sums(held)
    ]
    title = f"{cache_root()}: {_described(held)}"
    print_tables(make_table(title, ["kind", "corpus"], ["entries", "size", "last used"], rows))


def _described(entries: Sequence[Entry]) -> str:
    size = describe_size(sum(entry.bytes for entry in entries))
    return f"{len(entries)} entries, {size}"


def _sums(entries: Sequence[Entry]) -> list[tuple[str, str, int, int, str]]:
    """Return kind, corpus, entries, bytes and last day of use, the largest sums first."""
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    used: dict[tuple[str, str], float] = {}
    for entry in entries:
        group = (entry.kind, entry.corpus)
        counts[group] += 1
        sizes[group] += entry.bytes
        used[group] = max(used.get(group, 0.0), entry.used)
    rows = []
    for group, size in sizes.most_common():
        kind, corpus = group
        day = datetime.fromtimestamp(used[group]).strftime("%Y-%m-%d")
        rows.append((kind, corpus, counts[group], size, day))
    return rows


def _as_json(held: Sequence[Entry], removed: Sequence[Entry]) -> Json:
    return {
        "folder": str(cache_root()),
        "bytes": sum(entry.bytes for entry in held),
        "removed_bytes": sum(entry.bytes for entry in removed),
        "removed_entries": len(removed),
        "entries": [
            {"kind": kind, "corpus": corpus, "entries": count, "bytes": size, "last_used": used}
            for kind, corpus, count, size, used in _sums(held)
        ],
    }
