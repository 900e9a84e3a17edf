"""From finished shards to a BEIR folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.id_index import hashes_of
from beir_cocodr.data.files.linked_corpus import link_beside
from beir_cocodr.data.generation.consistency_filter import ConsistencyFilter
from beir_cocodr.data.generation.shards import PassageQueries, QueryShards
from beir_cocodr.files import atomic_writer

#: The prefix that BEIR's and GPL's loaders expect of generated files.
QGEN_PREFIX = "qgen"
_CHUNK = 1000

Kept = npt.NDArray[np.bool_]


class _Text(NamedTuple):
    """A generated query: its place among all of them, its document's row, its text."""

    place: int
    row: int
    text: str


def select_queries(
    shards: QueryShards, dedupe: bool, consistency: ConsistencyFilter | None
) -> tuple[Kept, dict[str, int]]:
    """Which of the generated queries stay.

    Args:
        shards: all finished.
        dedupe: of equal texts only the first stays (equal by a 64-bit hash: that two of ten million texts
            share one by chance has a probability of three in a million).
        consistency: only queries that it keeps stay.

    Returns:
        bool (n,) over all generated queries in corpus order, and the counts ``duplicates`` and
        ``inconsistent``, of what was left out by either, in this order; a 0 where it was not asked for.
    """
    kept = np.fromiter((bool(text.text) for text in _texts(shards)), bool)
    counts = {"duplicates": 0, "inconsistent": 0}
    if dedupe:
        first = np.unique(hashes_of(text.text for text in _texts(shards)), return_index=True)[1]
        unique = np.zeros(len(kept), bool)
        unique[first] = True
        counts["duplicates"] = int((kept & ~unique).sum())
        kept &= unique
    if consistency is not None:
        places = np.flatnonzero(kept)
        stream = ((text.row, text.text) for text in _texts(shards) if kept[text.place])
        found = np.concatenate([np.zeros(0, bool), *consistency.keeps(stream, shards.folder)])
        counts["inconsistent"] = int((~found).sum())
        kept[places[~found]] = False
    return kept, counts


def write_queries(shards: QueryShards, kept: Kept, documents: Documents, output: Path) -> dict[str, int]:
    """Write ``queries.jsonl`` and ``qrels/train.tsv``, and both a second time by the names of qgen folders.

    The metadata of a query name its document, the number of the passage in it, and the passage's character
    range in the document's title and text joined.

    Returns:
        The counts ``queries`` and ``passages_without_query``.
    """
    queries, qrels = output / "queries.jsonl", output / "qrels" / "train.tsv"
    counts = Counter({"queries": 0, "passages_without_query": 0})
    place = 0
    with ExitStack() as stack:
        to_queries, to_qrels = (stack.enter_context(atomic_writer(path)) for path in (queries, qrels))
        to_qrels.write("query-id\tcorpus-id\tscore\n")
        for passage, document in _with_ids(shards, documents):
            left = kept[place : place + len(passage.queries)]
            place += len(passage.queries)
            counts["passages_without_query"] += not left.any()
            for number in np.flatnonzero(left).tolist():
                id = f"genQ{passage.row}-{passage.number}-{number}"
                to_queries.write(_line(id, passage.queries[number], document, passage))
                to_qrels.write(f"{id}\t{document}\t1\n")
                counts["queries"] += 1
    link_beside(queries, f"{QGEN_PREFIX}-{queries.name}")
    link_beside(qrels, f"../{QGEN_PREFIX}-qrels/{qrels.name}")
    return dict(counts)


def _line(id: str, text: str, document: str, passage: PassageQueries) -> str:
    metadata = {
        "document": document,
        "number": passage.number,
        "start": passage.start,
        "end": passage.end,
    }
    return json.dumps({"_id": id, "text": text, "metadata": metadata}, ensure_ascii=False) + "\n"


def _texts(shards: QueryShards) -> Iterator[_Text]:
    place = 0
    for passage in shards.passages():
        for text in passage.queries:
            yield _Text(place, passage.row, text)
            place += 1


def _with_ids(shards: QueryShards, documents: Documents) -> Iterator[tuple[PassageQueries, str]]:
    stream = shards.passages()
    while chunk := list(islice(stream, _CHUNK)):
        yield from zip(chunk, documents.ids([passage.row for passage in chunk]), strict=True)
