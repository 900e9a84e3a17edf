"""What can be seen of models on a collection without looking at its labels: how they find held-out
crops and generated queries, how far their ranked lists agree, and what they were trained on of the
corpus.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.documents import Documents, hashes_of
from beir_cocodr.errors import explained
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    DEPTH,
    PseudoQueries,
    hold_out_crops,
    lexical_queries,
)
from beir_cocodr.evaluation.results import PseudoQueryFigures
from beir_cocodr.io import parse_json
from beir_cocodr.models.spec import BM25, ModelSpec, SearchOptions
from beir_cocodr.progress import step, steps
from beir_cocodr.provenance import GENERATED_QUERIES, SPANS, training_lineage
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranker, Ranking, reciprocal_ranks
from beir_cocodr.retrieval.resources import Resources

if TYPE_CHECKING:
    from beir_cocodr.retrieval.dense import Dense


@dataclass(frozen=True)
class Contamination:
    """What models were trained on that pseudo-queries of a corpus resemble.

    Attributes:
        spans: models that learned to find documents of this very corpus by spans of them.
        generated: models that were trained on queries generated from this very corpus.
        hashes: (n,) sorted hashes of those queries, of all models; see :meth:`has`.
    """

    spans: frozenset[str] = frozenset()
    generated: frozenset[str] = frozenset()
    hashes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def has(self, text: str) -> bool:
        """Whether some model was trained on this generated query, apart from case and white
        space.
        """
        place = int(np.searchsorted(self.hashes, value := hash(_plain(text))))
        return place < len(self.hashes) and int(self.hashes[place]) == value


def find_contamination(models: Sequence[str], corpus_sha256: str) -> Contamination:
    """Read from the training.json of models, and of all their ancestors, what they know of a
    corpus; an InputError where that or generated queries cannot be read. A warning names a folder
    of these that is gone. Of ``hybrid:M``, ``rrf:M`` and ``feedback:M`` the encoder counts.
    """
    spans, generated, folders = set(), set(), dict[str, None]()
    for model in models:
        for record in training_lineage(ModelSpec.parse(model).encoder):
            own = [given for given in record.seen if given.corpus_sha256 == corpus_sha256]
            if own and SPANS in record.rehearsed:
                spans.add(model)
            if own and GENERATED_QUERIES in record.rehearsed:
                generated.add(model)
                folders.update({g.dataset: None for g in own if g.generation is not None})
    hashes = [
        Contamination().hashes,
        *(hashes_of(map(_plain, _queries(Path(folder)))) for folder in folders),
    ]
    return Contamination(frozenset(spans), frozenset(generated), np.unique(np.concatenate(hashes)))


def _queries(folder: Path) -> Iterator[str]:
    file = folder / "queries.jsonl"
    if not file.is_file():
        log.warning(
            "%s is gone: queries that models were trained on may be among those that judge them",
            file,
        )
        return
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            with explained(
                f"{file}:{number} is no query",
                "generate them again",
                ValueError,
                KeyError,
                TypeError,
            ):
                text = str(parse_json(line)["text"])
            yield text


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


class HeldOutResources(Resources):
    """The retrievers of another corpus over a changed copy of it; only changed documents are
    encoded.

    Args:
        whole: over the corpus as it was; its encoders and embeddings are used again.
        documents: the changed corpus, in which (S,) ``rows`` differ.
        folder: of Lucene's index, another than that of ``whole``.
    """

    def __init__(self, whole: Resources, documents: Documents, rows: Ints, folder: Path) -> None:
        super().__init__(documents, folder, replace(whole.options, stores=()))
        self.whole, self.rows = whole, rows
        self.name_specs(whole._specs)

    def _load_dense(self, spec: ModelSpec) -> "Dense":
        from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
        from beir_cocodr.retrieval.dense import Dense
        from beir_cocodr.retrieval.store.store import ChangedEmbeddings

        original = self.whole.dense(spec)
        embeddings = original.embeddings
        if len(self.rows):
            changed = CorpusEncoder(original.model, self.documents).encode(self.rows)
            embeddings = ChangedEmbeddings(embeddings, self.rows, changed)
        dense = Dense(
            original.model,
            self.documents,
            self.folder,
            self.options.batch_size,
            self.options.progress,
            embeddings,
        )
        dense.known_queries = original.known_queries
        return dense


def rank_distance(first: Ints, second: Ints, depth: int = 10) -> Doubles:
    """(Q,) share of DCG@10's discounts that two lists of (Q, k) rows do not spend on the same
    documents: 0 for the same ranking, 1 for lists without one in common. It bounds what a single
    document's judgement can change in nDCG@10.
    """
    discounts = 1 / np.log2(2 + np.arange(depth))
    a, b = first[:, :depth], second[:, :depth]
    alike = (a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]
    shared = np.minimum(discounts[: a.shape[1], None], discounts[None, : b.shape[1]])
    longest = np.maximum((a >= 0) @ discounts[: a.shape[1]], (b >= 0) @ discounts[: b.shape[1]])
    kept = (alike * shared).sum((1, 2))
    return np.where(longest > 0, 1 - kept / np.where(longest > 0, longest, 1), 0.0)


def reciprocal_rank_fusion(lists: Sequence[Ints], depth: int = 10) -> Ints:
    """(Q, depth) rows by reciprocal rank fusion of (Q, k) lists; -1 for no result, of equal sums
    smaller rows first.
    """
    fused = np.full((len(lists[0]), depth), -1, np.int64)
    for i in range(len(fused)):
        candidates, scores = reciprocal_ranks([rows[i][rows[i] >= 0] for rows in lists])
        # Rounded, as sums of the same ranks in another order differ in their last bits.
        best = np.argsort(-np.round(scores, 12), kind="stable")[:depth]
        fused[i, : len(best)] = candidates[best]
    return fused


log = logging.getLogger(__name__)

#: Documents of a list that is fused, and of a run.
LIST_DEPTH = 100


@dataclass(frozen=True)
class Evidence:
    """Searches of several models over one collection.

    Attributes:
        crops, generated: model to (S,) nDCG@10 on held-out crops and on generated queries; BM25
            always among them.
        lists: model to the (Q, 100) rows that it found for the agreement queries, -1 for no result.
        rankings: model to its ranking for the agreement queries.
        queries: the agreement queries, id to text.
        real: whether those are the collection's own queries, or the generated ones.
        crop_queries, generated_queries: what was searched for.
        retrieval: model to the description of its retriever.
        contamination: what models were trained on of this corpus.
    """

    crops: dict[str, Doubles]
    generated: dict[str, Doubles]
    lists: dict[str, Ints]
    rankings: dict[str, Ranking]
    queries: dict[str, str]
    real: bool
    crop_queries: PseudoQueries
    generated_queries: PseudoQueries
    retrieval: dict[str, Json]
    contamination: Contamination = field(default_factory=Contamination)

    def describe(self) -> dict[str, PseudoQueryFigures]:
        """The pseudo-queries: counts, the share of words taken verbatim, and what BM25 makes of
        them.
        """
        return {
            "held-out crops": self.crop_queries.describe(self.crops[BM25]),
            "generated queries": self.generated_queries.describe(self.generated[BM25]),
            "agreement": PseudoQueryFigures(len(self.queries), of_the_collection=self.real),
        }


class Gatherer:
    """What evidence rests on. Held-out crops and generated queries are searched for once, real
    queries as often as they change. An InputError: a model cannot be found, or the record of its
    training cannot be read.

    Generated queries that a model was trained on are left out, see :func:`find_contamination`.

    Args:
        documents: the corpus; it is encoded once by every encoder, but for the documents that lose
            a crop. All queries of an encoder are encoded in one batch at first, and those for the
            corpus as it is searched for in one.
        models: names that :class:`Resources` knows.
        folder: for embeddings, the changed corpus and term counts; the caller removes it.
        samples, seed: of crops and of generated queries.
        drop_identical_ids: leave documents whose id is the query's out of lists.
        kept: where embeddings are kept from run to run, see
        :class:`~beir_cocodr.retrieval.resources.Resources`.
    """

    def __init__(
        self,
        documents: Documents,
        models: Sequence[str],
        folder: Path,
        samples: int = 300,
        seed: int = 42,
        drop_identical_ids: bool = False,
        search: SearchOptions = SearchOptions(),
        kept: Path | None = None,
    ) -> None:
        places = {name: folder / name for name in ("whole", "held-out", "terms")}
        for place in places.values():
            place.mkdir()
        self.documents, self.models, self.drop = documents, list(models), drop_identical_ids
        self.samples, self.seed = samples, seed
        self._whole = Resources(documents, places["whole"], search, kept)
        self._made = {
            name: self._whole.ranker(name) for name in [*models, BM25]
        }  # unknown names fail early
        self.contamination = find_contamination(models, documents.content_hash)
        self.crops, rest = hold_out_crops(documents, folder, samples, seed, self.contamination.has)
        self.generated = lexical_queries(
            documents, places["terms"], samples, seed, self.contamination.has
        )
        self._spared = HeldOutResources(self._whole, rest, self.crops.rows, places["held-out"])
        self._pseudo: dict[str, tuple[Ranking, Doubles]] = {}

    def gather(self, queries: Mapping[str, str]) -> Evidence:
        """Search for real queries; where there are none, lists are compared on the generated
        ones.
        """
        real, crops = bool(queries), self.crops
        asked = dict(queries) if real else self.generated.queries
        found = Evidence({}, {}, {}, {}, asked, real, crops, self.generated, {}, self.contamination)
        wanted = {f"asked {id}": text for id, text in asked.items()} if real else {}
        with steps(dict.fromkeys(name for name in self._made if name not in self._pseudo)):
            for name, retriever in self._made.items():
                both, first = dict(wanted), name not in self._pseudo
                if first:
                    step(name)
                    retriever.prepare()
                    if texts := [*asked.values(), *self.generated.texts, *crops.texts]:
                        self._whole.encode_queries(name, texts)
                    both |= {f"generated {id}": text for id, text in self.generated.queries.items()}
                ranking, count = _search(retriever, both, LIST_DEPTH + self.drop), len(wanted)
                if first:
                    generated = Ranking(
                        list(self.generated.queries), ranking.scores[count:], ranking.rows[count:]
                    )
                    changed = _search(self._spared.ranker(name), crops.queries, DEPTH)
                    self._pseudo[name] = generated, crops.score(changed.rows)
                generated, found.crops[name] = self._pseudo[name]
                mine = (
                    Ranking(list(asked), ranking.scores[:count], ranking.rows[:count])
                    if real
                    else generated
                )
                found.rankings[name], found.generated[name] = (
                    mine,
                    self.generated.score(generated.rows),
                )
                found.lists[name] = _kept(mine, self.documents, self.drop)
                found.retrieval[name] = retriever.describe()
        return found


def _search(retriever: Ranker, queries: dict[str, str], top_k: int) -> Ranking:
    if not queries:
        return Ranking([], np.zeros((0, top_k), np.float32), np.full((0, top_k), -1, np.int64))
    return retriever.search(queries, top_k)


def _kept(ranking: Ranking, documents: Documents, drop: bool) -> Ints:
    """(Q, 100) rows, without the document that has the query's id if it is dropped."""
    if not drop:
        return ranking.rows[:, :LIST_DEPTH]
    rows = np.where(ranking.rows == documents.rows(ranking.queries)[:, None], -1, ranking.rows)
    order = np.argsort(rows < 0, axis=1, kind="stable")  # what is left moves up
    return np.take_along_axis(rows, order, axis=1)[:, :LIST_DEPTH]
