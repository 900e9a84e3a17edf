"""Analyses of a corpus, its queries and the representations of a model.

Here are the options of the analyses.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from beir_cocodr.errors import SEED_MAX
from beir_cocodr.models.spec import Options, option

#: One file or several.
Files: TypeAlias = str | Path | Iterable[str | Path]


def as_paths(files: Files) -> list[Path]:
    """Return one file or several as a list of paths."""
    if isinstance(files, str | Path):
        return [Path(files)]
    return [Path(file) for file in files]


@dataclass(frozen=True)
class RepresentationOptions(Options):
    """Options of the sample from a corpus and of its measurement.

    The loss depends on ``batch_size``, so compare corpora with the same one. The paper's
    temperature is 2.
    """

    sample: int = option(
        1024,
        "Sample at most this many documents from each corpus, and two spans from each document.",
        min=2,
    )
    batch_size: int = option(
        128, "Contrast this many documents with each other in the loss.", min=2
    )
    temperature: float = option(2.0, "Compute uniformity at this temperature.", above=0)
    span_tokens: int = option(30, "Use at most this many tokens in a span.", min=1)
    seed: int = option(42, "Seed the sample and the spans with this number.", min=0, max=SEED_MAX)


@dataclass(frozen=True)
class SourceClusterOptions(Options):
    """Options of the sample from the source, of the splits to read and of the cases to record.

    Args:
        queries: ids of the target queries to record as cases; by default those whose gain changes
            most if there are results, otherwise some evenly spaced.
    """

    clusters: int = option(50, "Divide the source queries into this many clusters.", min=1)
    sample: int = option(1000, "Sample at most this many source queries.", min=1)
    negatives: int = option(
        4, "Use this many of BM25's 30 best negatives for each source query.", min=1, max=30
    )
    cases: int = option(
        5, "Show this many target queries with their nearest source queries.", min=1
    )
    nearest: int = option(1, "Show this many source queries for each target query.", min=1)
    seed: int = option(
        42, "Seed the sample, the negatives and the clusters with this number.", min=0, max=SEED_MAX
    )
    source_split: str = option("train", "Read this split of the source's judgements.")
    split: str = option("test", "Read this split of the targets' queries.")
    queries: tuple[str, ...] = option(
        (), "Show the target query of this id as a case; repeat for several.", "--query"
    )
