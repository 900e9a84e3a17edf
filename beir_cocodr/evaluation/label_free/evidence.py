"""What can be seen of models on a collection without looking at its labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.evaluation.label_free.agreement import Rows
from beir_cocodr.evaluation.label_free.crops import hold_out_crops
from beir_cocodr.evaluation.label_free.familiar import Familiar, familiar
from beir_cocodr.evaluation.label_free.held_out import HeldOutRetrievers
from beir_cocodr.evaluation.label_free.lexical import lexical_queries
from beir_cocodr.evaluation.label_free.pseudo_queries import DEPTH, PseudoQueries
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.retrievers import Retrievers

log = logging.getLogger(__name__)

BM25 = "bm25"
#: Documents of a list that is fused, and of a run.
LIST_DEPTH = 100


@dataclass(frozen=True)
class Evidence:
    """Searches of several models over one collection.

    Attributes:
        crops, generated: model to (S,) nDCG@10 on held-out crops and on generated queries; BM25 always among
            the models.
        lists: model to the (Q, 100) rows that it found for the agreement queries, -1 for no result.
        rankings: model to its ranking for the agreement queries.
        queries: the agreement queries, id to text.
        real: whether those are the collection's own queries, or the generated ones.
        crop_queries, generated_queries: what was searched for.
        retrieval: model to what its retriever says of itself.
        known: what models were trained on of this corpus.
    """

    crops: dict[str, npt.NDArray[np.float64]]
    generated: dict[str, npt.NDArray[np.float64]]
    lists: dict[str, Rows]
    rankings: dict[str, Ranking]
    queries: dict[str, str]
    real: bool
    crop_queries: PseudoQueries
    generated_queries: PseudoQueries
    retrieval: dict[str, dict[str, Any]]
    known: Familiar = field(default_factory=Familiar)

    def describe(self) -> dict[str, Any]:
        """The pseudo-queries: counts, the share of words taken verbatim, and what BM25 makes of them."""
        told = {}
        for name, made, scores in (
            ("held-out crops", self.crop_queries, self.crops),
            ("generated queries", self.generated_queries, self.generated),
        ):
            bm25 = scores[BM25]
            told[name] = made.describe() | {"bm25_ndcg": float(bm25.mean()) if len(bm25) else None}
        return told | {
            "agreement": {"queries": len(self.queries), "of_the_collection": self.real},
        }


def gather_evidence(
    documents: Documents,
    queries: Mapping[str, str],
    models: Sequence[str],
    folder: Path,
    samples: int = 300,
    seed: int = 42,
    drop_identical_ids: bool = False,
    **retrieval: Any,
) -> Evidence:
    """Search for held-out crops, for generated queries, and for real queries where there are any.

    Generated queries that a model was trained on are left out, see :func:`familiar`.

    Args:
        documents: the corpus; it is encoded once by every encoder, but for the documents that lose a crop.
        queries: real ones, or none: then lists are compared on the generated ones.
        models: names that :class:`Retrievers` knows.
        folder: for embeddings, the changed corpus and term counts; the caller removes it.
        samples: crops, and generated queries.
        seed: of both.
        drop_identical_ids: leave documents whose id is the query's out of lists.
        **retrieval: passed on to :class:`Retrievers`.

    Raises:
        InputError: a model cannot be found, or the record of its training cannot be read.
    """
    places = {name: folder / name for name in ("whole", "held-out", "terms")}
    for place in places.values():
        place.mkdir()
    whole = Retrievers(documents, places["whole"], **retrieval)
    made = {name: whole.get(name) for name in dict.fromkeys([*models, BM25])}  # unknown names fail early
    known = familiar(models, documents.content_hash)
    trained_on = known.has if len(known.hashes) else None
    crops = hold_out_crops(documents, folder, samples, seed, trained_on)
    generated = lexical_queries(documents, places["terms"], samples, seed, trained_on)
    held_out = HeldOutRetrievers(whole, crops.documents, crops.queries.rows, places["held-out"])
    real = bool(queries)
    asked = dict(queries) if real else generated.queries
    scores: dict[str, dict[str, npt.NDArray[np.float64]]] = {"crops": {}, "generated": {}}
    lists: dict[str, Rows] = {}
    rankings: dict[str, Ranking] = {}
    described: dict[str, dict[str, Any]] = {}
    for name, retriever in made.items():
        log.info("searching with %s", name)
        retriever.prepare()
        rankings[name] = _search(retriever, asked, LIST_DEPTH + drop_identical_ids)
        lists[name] = _kept(rankings[name], documents, drop_identical_ids)
        scores["generated"][name] = generated.score(_search(retriever, generated.queries, DEPTH).rows)
        changed = held_out.get(name)
        scores["crops"][name] = crops.queries.score(_search(changed, crops.queries.queries, DEPTH).rows)
        described[name] = retriever.describe()
    return Evidence(
        scores["crops"],
        scores["generated"],
        lists,
        rankings,
        asked,
        real,
        crops.queries,
        generated,
        described,
        known,
    )


def _search(retriever: Any, queries: dict[str, str], top_k: int) -> Ranking:
    if not queries:
        return Ranking([], np.zeros((0, top_k), np.float32), np.full((0, top_k), -1, np.int64))
    ranking: Ranking = retriever.search(queries, top_k)
    return ranking


def _kept(ranking: Ranking, documents: Documents, drop: bool) -> Rows:
    """(Q, 100) rows, without the document that has the query's id if it is dropped."""
    if not drop:
        return ranking.rows[:, :LIST_DEPTH]
    kept = np.full((len(ranking.queries), LIST_DEPTH), -1, np.int64)
    own = documents.rows(ranking.queries)
    for i, rows in enumerate(ranking.rows):
        left = rows[(rows >= 0) & (rows != own[i])][:LIST_DEPTH]
        kept[i, : len(left)] = left
    return kept
