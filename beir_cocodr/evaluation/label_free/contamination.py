"""Training data of models that resembles the pseudo-queries of a corpus."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import hashes_of
from beir_cocodr.errors import explained
from beir_cocodr.io import parse_json
from beir_cocodr.provenance import (
    GENERATED_QUERIES,
    SPANS,
    TERMS,
    TrainingRecord,
    training_lineage,
)

log = logging.getLogger(__name__)

# The stage that fits on the terms of a corpus. Its first records did not say so.
_FUSE = "fuse"

_SHARPENED = "sharpened by queries generated from this corpus"


@dataclass(frozen=True)
class Contamination:
    """Training data of models that resembles the pseudo-queries of a corpus.

    Attributes:
        spans: Models that learned to find documents of this corpus by spans of them.
        generated: Models that were trained on queries generated from this corpus.
        terms: Models that were fitted on which terms occur together in documents of this corpus.
        sharpened: Models whose document vectors were moved towards queries generated from this
            corpus, which are made of what its documents say.
        hashes: (n,) sorted hashes of those queries, for :meth:`has`.
    """

    spans: frozenset[str] = frozenset()
    generated: frozenset[str] = frozenset()
    terms: frozenset[str] = frozenset()
    sharpened: frozenset[str] = frozenset()
    hashes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def practised_spans(self) -> dict[str, frozenset[str]]:
        """Return what favours models on spans of documents, each with these models."""
        return {
            "fitted on the documents with their crops": self.terms,
            "trained to find documents of this corpus by spans": self.spans,
            _SHARPENED: self.sharpened,
        }

    @property
    def practised_generated(self) -> dict[str, frozenset[str]]:
        """Return what favours models on generated queries, with these models."""
        return {
            "trained on queries generated from this corpus": self.generated,
            _SHARPENED: self.sharpened,
        }

    def has(self, text: str) -> bool:
        """Return true if some model was trained on a query, up to case and white space."""
        value = hash(_normalized(text))
        position = int(np.searchsorted(self.hashes, value))
        return position < len(self.hashes) and int(self.hashes[position]) == value


def find_contamination(
    encoders: Mapping[str, str],
    corpus_sha256: str,
    corpus_name: str | None = None,
    sharpened: Mapping[str, str] | None = None,
) -> Contamination:
    """Read what models know about a corpus from their training.json, and from their ancestors'.

    A folder of generated queries that no longer exists is named in a warning.

    Args:
        encoders: Model to the name of the encoder in it.
        corpus_sha256: Content hash of the corpus.
        corpus_name: Name of the collection. A record with this name and another hash is about an
            earlier state of the same corpus, and counts as well.
        sharpened: Model to the folder of generated queries by which its document vectors were
            sharpened.

    Raises:
        InputError: A training.json or a file of generated queries cannot be read.
    """
    practised: dict[str, set[str]] = {SPANS: set(), GENERATED_QUERIES: set(), TERMS: set()}
    folders: dict[str, None] = {}
    for model, encoder in encoders.items():
        for record in training_lineage(encoder):
            seen = [
                part
                for part in record.seen
                if part.corpus_sha256 == corpus_sha256 or part.dataset == corpus_name
            ]
            if not seen:
                continue
            practices = _practices(record)
            for practice in practices & practised.keys():
                practised[practice].add(model)
            if GENERATED_QUERIES in practices:
                folders |= {part.dataset: None for part in seen if part.generation is not None}
    folders |= dict.fromkeys((sharpened or {}).values())
    hashes = [Contamination().hashes]
    for folder in folders:
        queries = map(_normalized, _read_queries(Path(folder)))
        hashes.append(hashes_of(queries))
    return Contamination(
        spans=frozenset(practised[SPANS]),
        generated=frozenset(practised[GENERATED_QUERIES]),
        terms=frozenset(practised[TERMS]),
        sharpened=frozenset(sharpened or ()),
        hashes=np.unique(np.concatenate(hashes)),
    )


def _practices(record: TrainingRecord) -> set[str]:
    """Return what a training practised on the collections that it saw."""
    practices = set(record.rehearsed)
    if record.stage == _FUSE:
        practices.add(TERMS)
    return practices


def _read_queries(folder: Path) -> Iterator[str]:
    file = folder / "queries.jsonl"
    if not file.is_file():
        log.warning(
            "%s no longer exists: queries that a model has seen may be among those that judge it; "
            "put the file back, or train or encode again",
            file,
        )
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            problem = f"{file}:{number} is not a query"
            with explained(problem, "generate them again", ValueError, KeyError, TypeError):
                text = str(parse_json(line)["text"])
            yield text


def _normalized(text: str) -> str:
    return " ".join(text.lower().split())
