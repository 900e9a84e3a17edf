"""What was searched: rankings of every system for every query of a collection, kept in files.

:func:`load_searched` reads a working folder. Rankings are read when they are asked for, so that a
model of verdicts can be fitted to all collections in seconds::

    for searched in load_searched(Path("runs/collect")):
        evidence = searched.with_queries  # or searched.alone, as for a corpus without queries
        for name, values in searched.scores.items():  # (Q,) nDCG@10 by labels
            print(searched.name, searched.facts.family, name, values.mean())
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.label_free import estimators
from beir_cocodr.evaluation.label_free.estimators import LIKELIHOOD, WRITTEN
from beir_cocodr.evaluation.label_free.evidence import (
    ASKED,
    LIST_DEPTH,
    Evidence,
    SearchedQueries,
    consistent_questions,
)
from beir_cocodr.evaluation.label_free.margins import margins
from beir_cocodr.evaluation.label_free.pooled_relevance import PooledScores
from beir_cocodr.evaluation.label_free.pseudo_queries import PseudoQueries
from beir_cocodr.evaluation.label_free.query_texts import held_words, nonletter_excess
from beir_cocodr.evaluation.label_free.weak_encoders import mark_weak_encoders
from beir_cocodr.io import atomic_path
from beir_cocodr.models.spec import BM25
from collecting.parents import Facts, Limits, Parent, folder_name, read_parents
from collecting.query_sets import CROPS, GENERATED, MATCHED, QUERIES, TITLES, QuerySet, query_sets
from collecting.systems import System

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

#: The folder of rankings in the working folder.
FOLDER = "searched"


@dataclass(frozen=True)
class Ranked:
    """A system's results for one set of queries.

    Attributes:
        rows: (Q, 100) rows of documents, best first, -1 for no result.
        scores: (Q, 100) their scores, rounded to three digits.
        ndcg: (Q,) nDCG@10, by labels or by the document that a query was made of.
    """

    rows: Ints
    scores: Floats
    ndcg: Doubles


class Results:
    """The results of one encoder's systems on a collection, in one file.

    Args:
        file: The file.
    """

    def __init__(self, file: Path) -> None:
        """Open the file; arrays are read when they are asked for."""
        self._content = np.load(file)
        self.systems: dict[str, set[str]] = {}
        for key in self._content.files:
            system, queries, _ = key.split("|")
            self.systems.setdefault(system, set()).add(queries)

    def ranked(self, system: str, queries: str) -> Ranked:
        """Return a system's results for one set of queries."""
        rows = self._content[f"{system}|{queries}|rows"].astype(np.int64)
        scores = self._content[f"{system}|{queries}|scores"].astype(np.float32)
        return Ranked(rows, scores, self.ndcg(system, queries))

    def ndcg(self, system: str, queries: str) -> Doubles:
        """Return a system's (Q,) nDCG@10 on one set of queries."""
        values: Doubles = self._content[f"{system}|{queries}|ndcg"]
        return values


def missing_sets(file: Path, sets: Iterable[str]) -> list[str]:
    """Return the sets of queries that a file of results lacks; all if there is no file."""
    if not file.is_file():
        return list(sets)
    searched = set().union(*Results(file).systems.values())
    return [name for name in sets if name not in searched]


def results_file(work: Path, name: str, encoder: str) -> Path:
    """Return the file of an encoder's results on a collection."""
    return work / FOLDER / folder_name(name) / f"{folder_name(encoder)}.npz"


def write_results(file: Path, results: dict[tuple[str, str], Ranked]) -> None:
    """Write the results of (system, set of queries) in one step, beside those of other sets."""
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    if file.is_file():
        with np.load(file) as content:
            arrays |= dict(content)
    for (system, queries), ranked in results.items():
        label = f"{system}|{queries}"
        arrays[f"{label}|rows"] = _padded(ranked.rows, -1).astype(np.int32)
        arrays[f"{label}|scores"] = _padded(ranked.scores, 0).astype(np.float16)
        arrays[f"{label}|ndcg"] = ranked.ndcg
    file.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    with atomic_path(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def pools_file(work: Path, name: str) -> Path:
    """Return the file of what a language model says of a collection's pooled documents."""
    return results_file(work / "pools", name, LIKELIHOOD)


def write_pooled(file: Path, pooled: PooledScores) -> None:
    """Write what a language model says, in one step."""
    file.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    with atomic_path(file) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(
            stream,
            queries=pooled.queries.astype(np.int32),
            rows=pooled.rows.astype(np.int32),
            scores=pooled.scores.astype(np.float32),
        )


def read_pooled(file: Path) -> PooledScores:
    """Read what a language model says."""
    with np.load(file) as content:
        return PooledScores(
            content["queries"].astype(np.int64),
            content["rows"].astype(np.int64),
            content["scores"].astype(np.float64),
        )


def _padded(values: npt.NDArray[np.generic], empty: int) -> npt.NDArray[np.generic]:
    missing = LIST_DEPTH - values.shape[1]
    if missing <= 0:
        return values[:, :LIST_DEPTH]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=empty)


class Searched:
    """A collection with everything that was searched on it.

    Attributes:
        name: The collection's name.
        facts: Its family, kind, language, and whether its queries are judged in pools.
        parent: The cut collection, whose ``load`` gives documents, queries and judgements.
        total: The number of documents before the cut.
        query_sets: Name to queries: "queries" are the collection's own; "crops", "matched crops",
            "generated", "titles" and "written questions" are made of its documents, and absent
            where there were too few.
        systems: Name to system; each says its encoder, use, weight and defect.
    """

    def __init__(
        self,
        work: Path,
        parent: Parent,
        files: list[Path],
    ) -> None:
        """Open what was searched.

        Args:
            work: The working folder.
            parent: The collection.
            files: The files of results, BM25's among them.
        """
        self.name = parent.name
        self.facts: Facts = parent.facts
        self.parent = parent
        self.total = parent.total
        self.query_sets: dict[str, QuerySet] = query_sets(parent, Limits())
        self.systems: dict[str, System] = {}
        self._results: dict[str, Results] = {}
        self._work = work
        for file in files:
            results = Results(file)
            for name in results.systems:
                self._results[name] = results
                self.systems[name] = System.parse(name)

    @property
    def family(self) -> str:
        """Return the family, whose collections are left out together."""
        return self.facts.family

    @property
    def kind(self) -> str:
        """Return what the documents are."""
        return self.facts.kind

    @property
    def language(self) -> str:
        """Return the language, as BM25's analyzer calls it."""
        return self.facts.language

    @cached_property
    def corpora(self) -> list[str]:
        """Return the checksums of the documents, as they were cut and whole."""
        cut = self.parent.load().documents.content_hash
        return [hash for hash in dict.fromkeys([cut, self.parent.source_sha256]) if hash]

    @cached_property
    def documents(self) -> list[str]:
        """Return the texts of the documents, by row."""
        text = TextFormat().document
        return [text(document) for document in self.parent.load().documents.values()]

    @cached_property
    def scores(self) -> dict[str, Doubles]:
        """Return system to its (Q,) nDCG@10 on the collection's queries by labels."""
        return self.ndcg(QUERIES)

    def ndcg(self, queries: str) -> dict[str, Doubles]:
        """Return system to its (Q,) nDCG@10 on one set of queries, for those that searched it."""
        return {
            name: results.ndcg(name, queries)
            for name, results in self._results.items()
            if queries in results.systems[name]
        }

    def ranked(self, system: str, queries: str) -> Ranked:
        """Return a system's results for one set of queries, read anew each time."""
        return self._results[system].ranked(system, queries)

    @cached_property
    def with_queries(self) -> Evidence:
        """Return what is seen of the systems with the collection's queries."""
        return self._evidence(QUERIES)

    @cached_property
    def alone(self) -> Evidence:
        """Return what is seen of the systems with the corpus alone."""
        return self._evidence(GENERATED)

    def _evidence(self, queries: str) -> Evidence:
        asked = self.query_sets[queries]
        evidence = Evidence(
            crops=self.ndcg(CROPS),
            generated=self.ndcg(GENERATED),
            lists={name: self.ranked(name, queries).rows for name in self.ndcg(queries)},
            rankings={},
            queries=asked.queries,
            real=queries == QUERIES,
            crop_queries=self._pseudo(CROPS),
            generated_queries=self._pseudo(GENERATED),
            retrieval={},
            kinds={name: system.kind for name, system in self.systems.items()},
            further=self._further(with_lengths=queries == QUERIES),
            crop_lists={name: self.ranked(name, CROPS).rows for name in self.ndcg(CROPS)},
            held_words={BM25: self.words_of_best(queries)},
            margins=self._margins(with_asked=queries == QUERIES),
            cut_words=self.words_of_best(MATCHED if MATCHED in self.query_sets else CROPS),
            nonletter_excess=self.nonletter_excess if queries == QUERIES else 0.0,
            pooled=self._pooled if queries == QUERIES else None,
        )
        return mark_weak_encoders(evidence, self._encoders())

    def _encoders(self) -> dict[str, str | None]:
        """Return system to its encoder, with its defect; None for BM25."""
        encoders: dict[str, str | None] = {}
        for name, system in self.systems.items():
            parts = [part for part in (system.encoder, system.defect) if part]
            encoders[name] = "/".join(parts) or None
        return encoders

    @cached_property
    def _pooled(self) -> PooledScores | None:
        """Return what a language model says of the best documents, if one has read them."""
        file = pools_file(self._work, self.name)
        return read_pooled(file) if file.is_file() else None

    @cached_property
    def nonletter_excess(self) -> float:
        """Return how many more characters are no letters in documents than in queries."""
        texts = self.query_sets[QUERIES].texts
        return nonletter_excess(texts, self.parent.load().documents)

    def words_of_best(self, queries: str) -> float:
        """Return the mean share of a query's words that BM25's three best documents hold."""
        asked = self.query_sets[queries]
        rows = self.ranked(BM25, queries).rows
        return held_words(asked.texts, rows, self.parent.load().documents)

    def _margins(self, *, with_asked: bool) -> dict[str, dict[str, Doubles]]:
        """Return kind of queries to system to the margins of its rankings.

        Args:
            with_asked: Take the collection's own queries, too.
        """
        names = {CROPS: estimators.CROPS, MATCHED: estimators.MATCHED, TITLES: estimators.TITLES}
        if with_asked:
            names[QUERIES] = ASKED
        by_kind: dict[str, dict[str, Doubles]] = {}
        for queries, kind in names.items():
            if queries not in self.query_sets:
                continue
            by_kind[kind] = {}
            for system in self.ndcg(queries):
                ranked = self.ranked(system, queries)
                by_kind[kind][system] = margins(ranked.scores, ranked.rows)
        return by_kind

    def _further(self, *, with_lengths: bool) -> dict[str, SearchedQueries]:
        """Return the queries that not every corpus gives.

        Args:
            with_lengths: Take crops of the lengths of real queries, which a corpus alone has not.
        """
        kinds = (MATCHED, TITLES) if with_lengths else (TITLES,)
        further = {
            kind: SearchedQueries(self._pseudo(kind), self.ndcg(kind))
            for kind in kinds
            if kind in self.query_sets
        }
        if WRITTEN in self.query_sets:
            written = SearchedQueries(self._pseudo(WRITTEN), self.ndcg(WRITTEN))
            rankings = {}
            for name, system in self.systems.items():
                if name in written.scores and not system.is_defect:
                    rankings[name] = self.ranked(name, WRITTEN).rows
            further[WRITTEN] = consistent_questions(written, rankings)
        return further

    def _pseudo(self, queries: str) -> PseudoQueries:
        return self.query_sets[queries].pseudo()


def load_searched(work: Path, encoders: tuple[str, ...] = ()) -> list[Searched]:
    """Return all collections of a working folder on which BM25 and an encoder were searched.

    A collection that is being searched shows what is finished.

    Args:
        work: The folder that ``collect.py`` was given as ``--work``.
        encoders: Names of files of results to read, such as "minilm"; all by default.
    """
    return list(_searched(work, encoders))


def _searched(work: Path, encoders: tuple[str, ...]) -> Iterator[Searched]:
    for parent in read_parents(work):
        first = results_file(work, parent.name, "bm25")
        if not first.is_file():
            continue
        others = [file for file in sorted(first.parent.glob("*.npz")) if file != first]
        if encoders:
            others = [file for file in others if file.stem in encoders]
        if others:
            yield Searched(work, parent, [first, *others])
