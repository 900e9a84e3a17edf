"""What models were trained on of the corpus that they are judged on without labels."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.files.id_index import hashes_of
from beir_cocodr.data.generation.record import GENERATION_FILE
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.ancestors import ancestors
from beir_cocodr.evaluation.encoder_name import encoder_name

log = logging.getLogger(__name__)

#: Objectives that learn to find the rest of a document by a part of it.
_SPANS = ("coco", "cocondenser", "ict")


@dataclass(frozen=True)
class Familiar:
    """What models were trained on that pseudo-queries of a corpus resemble.

    Attributes:
        spans: models that learned to find documents of this very corpus by spans of them.
        generated: models that were trained on queries generated from this very corpus.
        hashes: (n,) sorted hashes of those queries, of all models; see :meth:`has`.
    """

    spans: frozenset[str] = frozenset()
    generated: frozenset[str] = frozenset()
    hashes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def has(self, text: str) -> bool:
        """Whether some model was trained on this generated query, apart from case and white space."""
        place = int(np.searchsorted(self.hashes, value := hash(_plain(text))))
        return place < len(self.hashes) and int(self.hashes[place]) == value


def familiar(models: Sequence[str], corpus_sha256: str) -> Familiar:
    """Read from the training.json of models, and of all their ancestors, what they know of a corpus.

    A folder of generated queries is looked at where it was when it was trained on; that one is gone is said.

    Args:
        models: names as for ``evaluate``; of ``hybrid:M``, ``rrf:M`` and ``feedback:M`` the encoder counts.
        corpus_sha256: content hash of the corpus.

    Raises:
        InputError: a training.json or generated queries cannot be read.
    """
    spans, generated, folders = set(), set(), dict[str, None]()
    for model in models:
        for record in ancestors(encoder_name(model)):
            own = [shown for shown in record.get("seen", []) if shown.get("corpus_sha256") == corpus_sha256]
            if own and _finds_by_spans(record):
                spans.add(model)
            for shown in filter(_is_generated, own):
                generated.add(model)
                folders[str(shown["dataset"])] = None
    hashes = [hashes_of(map(_plain, _queries(Path(folder)))) for folder in folders]
    return Familiar(
        frozenset(spans), frozenset(generated), np.unique(np.concatenate([Familiar().hashes, *hashes]))
    )


def _finds_by_spans(record: Mapping[str, Any]) -> bool:
    mixed = record["stage"] == "qc" and record["options"]["mix"] > 0  # passages find their neighbours
    return mixed or record["stage"] in _SPANS


def _is_generated(shown: Mapping[str, Any]) -> bool:
    return "generation" in shown or (Path(str(shown.get("dataset"))) / GENERATION_FILE).is_file()


def _queries(folder: Path) -> Iterator[str]:
    file = folder / "queries.jsonl"
    if not file.is_file():
        log.warning(
            "%s is gone: queries that models were trained on may be among those that judge them", file
        )
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield str(json.loads(line)["text"])
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{file}:{number} is no query ({error!r}); generate the queries again"
                ) from error


def _plain(text: str) -> str:
    return " ".join(text.lower().split())
