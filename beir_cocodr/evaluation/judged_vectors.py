"""Document vectors that learn from judged queries, if queries that were held out gain by it.

Judged queries move the vectors of the documents that they call relevant, see
:func:`~beir_cocodr.retrieval.vectors.nudge.nudged`. How far is chosen by cross-validation over the
queries. What that is worth is measured on queries that took no part in it, and the moved vectors
are kept only if these gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.collection import Dataset, load_collection
from beir_cocodr.data.judgements import Judgements, load_judgements
from beir_cocodr.errors import InputError, explained
from beir_cocodr.evaluation.few_labels import FEWEST, LEVEL
from beir_cocodr.io import atomic_path, file_sha256, json_sha256, output_folder, output_path
from beir_cocodr.models.spec import Options, SearchOptions, option
from beir_cocodr.records import Record
from beir_cocodr.retrieval.ranking import best_rows
from beir_cocodr.retrieval.resolve import Model
from beir_cocodr.retrieval.searcher import Searcher
from beir_cocodr.retrieval.store.embeddings import ChangedEmbeddings
from beir_cocodr.retrieval.store.encode import identity_of
from beir_cocodr.retrieval.store.record import SHARD_SIZE, EncodeOptions
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.retrieval.vectors.nudge import (
    nudge_shares,
    nudged,
    pulls_of,
    unit_pulls,
)

#: The record of learned vectors in a folder, and the vectors.
LEARNED_FILE = "learned.json"
_VECTORS_FILE = "learned.safetensors"

_DEPTH = 10
# What rounding leaves of equal means.
_DIGITS = 12
_DISCOUNTS = 1 / np.log2(2 + np.arange(_DEPTH))

#: The bounds that cross-validation chooses from, as a share of a vector's length. Unit vectors at
#: 0.8 have the cosine 0.68.
BOUNDS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8)


#: The confidence of a gain from which vectors move. On 19 labelled collections it kept more than
#: twice the gain that 95% kept, and no collection lost more than 0.006 (benchmarks/thumbs.py).
CONFIDENCE = 0.8


@dataclass(frozen=True)
class LearnOptions(Options):
    """Options of learning from judged queries."""

    folds: int = option(5, "Hold out the judged queries in this many parts.", min=2)
    seed: int = option(42, "Seed the parts with this number.", min=0)


@dataclass(frozen=True)
class Learning(Record):
    """What judged queries taught a model's document vectors.

    Attributes:
        queries: Judged queries with a relevant document.
        moved: Documents whose vectors move.
        bound: How far they move, as a share of their length, chosen by cross-validation.
        before: Mean nDCG@10 of held-out queries by the vectors as they were.
        gain: Mean difference on them by vectors that the other queries moved.
        interval: Its 90% interval by paired t quantiles.
        confidence: Probability that held-out queries gain, by Student's t.
        kept: True if the confidence is at least 80%: only then do the vectors move.
        left_out: Judged queries without a relevant document in the corpus.
        model: Name of the model.
        key: Hash of the encoder and the corpus.
        documents: Ids of the moved documents.
        vectors_sha256: Checksum of the vectors, where there is a file of them.
    """

    queries: int
    moved: int
    bound: float
    before: float
    gain: float
    interval: tuple[float, float]
    confidence: float
    kept: bool
    left_out: int = 0
    model: str = ""
    key: str = ""
    documents: list[str] = field(default_factory=list)
    vectors_sha256: str = ""

    def describe(self) -> str:
        """Return the result in one sentence."""
        low, high = self.interval
        figures = (
            f"nDCG@10 of held-out queries {self.before:.3f} to {self.before + self.gain:.3f}, "
            f"90% interval of the difference {low:+.3f} to {high:+.3f}, a gain with "
            f"{self.confidence:.0%} confidence"
        )
        if self.kept:
            return (
                f"{self.queries} judged queries moved the vectors of {_documents(self.moved)}: "
                f"{figures}"
            )
        return (
            f"{self.queries} judged queries moved nothing, because queries that were held out do "
            f"not clearly gain: {figures}"
        )


@dataclass(frozen=True)
class JudgedCandidates:
    """Judged queries, and all documents that any of them may rank among its ten best.

    Attributes:
        queries: (Q, d) vectors of the queries.
        grades: Number of a candidate to its grade, for each query.
        vectors: (C, d) vectors of the candidates.
        ties: (C,) ranks by which equal scores are ordered.
        unit: True if vectors have length 1 and keep it.
    """

    queries: Floats
    grades: Sequence[Mapping[int, int]]
    vectors: Floats
    ties: Ints
    unit: bool

    @cached_property
    def _scores(self) -> Floats:
        """Return the (Q, C) scores of all candidates as they are."""
        return self.queries @ self.vectors.T

    @cached_property
    def scale(self) -> float:
        """Return the length of a vector: bounds are shares of it."""
        if self.unit:
            return 1.0
        return float(np.sqrt(np.square(self.vectors).sum(axis=1).mean()))

    def after(self, judged: Ints, asked: Ints, bounds: Sequence[float]) -> Doubles:
        """Return nDCG@10 of some queries after others moved vectors.

        Args:
            judged: (m,) numbers of the queries that move vectors.
            asked: (n,) numbers of the queries that are measured.
            bounds: B bounds, each as a share of a vector's length.

        Returns:
            (B, n).
        """
        scores = self._scores[asked]
        pulls = pulls_of(self.queries[judged], [self.grades[number] for number in judged])
        targets = unit_pulls(pulls.sums)
        before = scores[:, pulls.rows]
        toward = self.queries[asked] @ targets.T
        cosines = (self.vectors[pulls.rows] * targets).sum(axis=1)
        values = np.zeros((len(bounds), len(asked)))
        for number, bound in enumerate(bounds):
            kept, pulled = nudge_shares(cosines, bound * self.scale, unit=self.unit)
            scores[:, pulls.rows] = kept * before + pulled * toward
            rows = zip(asked.tolist(), scores, strict=True)
            values[number] = [self.ndcg(query, of_query) for query, of_query in rows]
        return values

    def ndcg(self, number: int, scores: Floats) -> float:
        """Return the nDCG@10 of a query by (C,) scores of the candidates."""
        grades = self.grades[number]
        gains = [max(grades.get(row, 0), 0) for row in best_rows(scores, self.ties, _DEPTH)]
        best = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:_DEPTH]
        ideal = float(_DISCOUNTS[: len(best)] @ best)
        return float(_DISCOUNTS[: len(gains)] @ gains) / ideal

    def choose(self, judged: Ints, folds: int) -> float:
        """Return the bound at which held-out queries among the judged ones gain the most.

        Of bounds that are as good, it is the smallest; 0 if none gains.
        """
        bounds = (0.0, *BOUNDS)
        parts = _parts(judged, folds)
        values = [self.after(_without(judged, part), part, bounds) for part in parts]
        means = np.concatenate(values, axis=1).mean(axis=1)
        return bounds[int(np.argmax(means.round(_DIGITS)))]

    def cross_validate(self, options: LearnOptions) -> tuple[Doubles, Doubles]:
        """Return (Q,) nDCG@10 of every query before, and after the others have moved vectors.

        The bound of each fold is chosen within the others, by cross-validation again.
        """
        order = np.random.default_rng(options.seed).permutation(len(self.queries))
        [before] = self.after(order[:0], np.arange(len(order)), (0.0,))
        after = np.zeros(len(order))
        for part in _parts(order, options.folds):
            others = _without(order, part)
            bound = self.choose(others, options.folds)
            [after[part]] = self.after(others, part, (bound,))
        return before, after


def _parts(numbers: Ints, folds: int) -> list[Ints]:
    return [numbers[part::folds] for part in range(min(folds, len(numbers)))]


def _without(numbers: Ints, part: Ints) -> Ints:
    kept: Ints = numbers[~np.isin(numbers, part)]
    return kept


def _documents(count: int) -> str:
    return "1 document" if count == 1 else f"{count} documents"


def gain_confidence(differences: Doubles) -> float:
    """Return the probability that (n,) paired differences have a mean above 0, by Student's t."""
    from scipy import stats  # reading a record does not need it

    count = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    if not error:
        return float(np.sign(differences.mean()) / 2 + 0.5)
    return float(stats.t.cdf(differences.mean() / error, count - 1))


def paired_interval(differences: Doubles) -> tuple[float, float]:
    """Return the 90% interval of a mean of (n,) paired differences by Student's t."""
    from scipy import stats  # reading a record does not need it

    mean = float(differences.mean())
    count = len(differences)
    deviation = float(differences.std(ddof=1))
    width = float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * deviation / math.sqrt(count)
    return mean - width, mean + width


def learn_bound(candidates: JudgedCandidates, options: LearnOptions = LearnOptions()) -> Learning:
    """Choose how far judged queries move vectors, and measure what that is worth.

    Args:
        candidates: At least ten judged queries, each with a relevant document.
        options: Parts and seed.

    Raises:
        InputError: There are fewer queries.
    """
    count = len(candidates.queries)
    if count < FEWEST:
        raise InputError(
            f"{count} judged queries have a relevant document, and learning needs {FEWEST}; judge "
            f"{FEWEST - count} more"
        )
    before, after = candidates.cross_validate(options)
    interval = paired_interval(after - before)
    confidence = gain_confidence(after - before)
    order = np.random.default_rng(options.seed).permutation(count)
    bound = candidates.choose(order, options.folds)
    moved = {row for grades in candidates.grades for row, grade in grades.items() if grade > 0}
    return Learning(
        queries=count,
        moved=len(moved),
        bound=bound,
        before=round(float(before.mean()), 6),
        gain=round(float((after - before).mean()), 6),
        interval=(round(interval[0], 6), round(interval[1], 6)),
        confidence=round(confidence, 4),
        kept=confidence >= CONFIDENCE and bound > 0,
    )


class LearnedVectors:
    """Vectors of some documents that judged queries moved, and what they were learned from.

    Args:
        record: What was learned.
        vectors: (M, d) vectors of ``record.documents``.
    """

    def __init__(self, record: Learning, vectors: Floats) -> None:
        """Take the vectors."""
        self.record = record
        self.vectors = vectors

    @classmethod
    def learn(
        cls, dense: Dense, judgements: Judgements, options: LearnOptions = LearnOptions()
    ) -> LearnedVectors:
        """Learn from judged queries; the search stays as it is until :meth:`apply`.

        Args:
            dense: The search whose vectors move; it must not have learned before.
            judgements: Judged queries with their texts.
            options: Parts and seed.

        Raises:
            InputError: Fewer than ten queries have a relevant document in the corpus.
        """
        texts, grades = _relevant(dense, judgements)
        left_out = len(judgements.queries) - len(texts)
        if len(texts) < FEWEST:
            raise InputError(
                f"{judgements.file}: {len(texts)} judged queries have a relevant document, and "
                f"learning needs {FEWEST}; judge {FEWEST - len(texts)} more"
            )
        queries = dense.encode_queries(texts)
        positive = {row for of_query in grades for row, grade in of_query.items() if grade > 0}
        numbers = list(map(str, range(len(texts))))
        # However far these rows move, only so many others can be among the ten best.
        ranking = dense.search_embeddings(numbers, queries, _DEPTH + len(positive))
        rows = np.union1d(ranking.rows[ranking.rows >= 0], sorted(positive)).astype(np.int64)
        places = {row: number for number, row in enumerate(rows.tolist())}
        candidates = JudgedCandidates(
            queries=queries.numpy(),
            grades=[_placed(of_query, places) for of_query in grades],
            vectors=dense.embeddings.rows(rows).numpy(),
            ties=dense.documents.tie_ranks()[rows],
            unit=dense.model.similarity_fn_name == "cosine",
        )
        learning = learn_bound(candidates, options)
        pulls = pulls_of(candidates.queries, candidates.grades)
        bound = learning.bound * candidates.scale
        before = candidates.vectors[pulls.rows]
        vectors = nudged(before, pulls.sums, bound, unit=candidates.unit)
        record = asdict(learning) | {
            "left_out": left_out,
            "key": key_of(dense),
            "documents": dense.documents.ids(rows[pulls.rows]),
        }
        return cls(Learning(**record), vectors)

    def apply(self, dense: Dense | None) -> None:
        """Let a search use the vectors, if they were kept.

        Args:
            dense: The search by vectors of a model, see ``Searcher.dense``.

        Raises:
            InputError: The model has no vectors, or they were learned for another encoder or
                another state of the corpus.
        """
        if dense is None:
            raise InputError(
                "the model has no document vectors; name the encoder that has learned, or a "
                "fusion of it"
            )
        if self.record.key != key_of(dense):
            raise InputError(
                "the learned vectors belong to another encoder or to another state of the corpus; "
                "learn again from the judgements"
            )
        forget(dense)
        if self.record.kept:
            rows = dense.documents.rows(self.record.documents)
            dense.embeddings = ChangedEmbeddings(dense.embeddings, rows, self.vectors)
            dense.__dict__.pop("moments", None)

    def save(self, folder: Path) -> None:
        """Write the record and the vectors; the record comes last."""
        file = output_folder(folder) / _VECTORS_FILE
        with atomic_path(file) as temporary:
            save_file({"vectors": np.ascontiguousarray(self.vectors)}, temporary)
        record = Learning(**asdict(self.record) | {"vectors_sha256": file_sha256(file)})
        record.write(folder / LEARNED_FILE)

    @classmethod
    def load(cls, folder: Path) -> LearnedVectors:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: There is nothing, or it is damaged.
        """
        file = folder / LEARNED_FILE
        if not file.is_file():
            raise InputError(f"{folder} has no {LEARNED_FILE}; write it with beir-cocodr learn")
        record = Learning.read(file)
        vectors_file = folder / _VECTORS_FILE
        problem = f"{vectors_file} is damaged"
        with explained(problem, "learn again", OSError, ValueError, KeyError, SafetensorError):
            if file_sha256(vectors_file) != record.vectors_sha256:
                raise ValueError("its checksum is another")
            vectors = load_file(vectors_file)["vectors"]
        return cls(record, vectors)


def learn(
    model: Model,
    dataset: Dataset,
    judgements: str | Path,
    output: str | Path,
    options: LearnOptions = LearnOptions(),
    search: SearchOptions = SearchOptions(),
) -> Learning:
    """Let the document vectors of a model learn from judged queries, and write what was learned.

    Args:
        model: An encoder, or a fusion of one with BM25, whose dense vectors learn.
        dataset: The corpus, as for :func:`~beir_cocodr.data.collection.load_collection`.
        judgements: Qrels, a filled labels_wanted.tsv, or a log of judgements.
        output: A folder, for :meth:`LearnedVectors.load` and ``search --learned``.
        options: Parts and seed.
        search: How the model searches.

    Returns:
        What was learned; ``kept`` is false if held-out queries do not clearly gain.

    Raises:
        InputError: The model has no document vectors, or fewer than ten judged queries have a
            relevant document.
    """
    searcher = Searcher(dataset, model, search)
    dense = searcher.dense
    if dense is None:
        raise InputError(
            f"model {searcher.model} has no document vectors that could learn; name an encoder, "
            "such as minilm"
        )
    queries = load_collection(dataset, labels="optional").queries
    judged = load_judgements(Path(judgements)).of(queries, searcher.documents)
    learned = LearnedVectors.learn(dense, judged, options)
    learned.save(output_path(output))
    return LearnedVectors.load(output_path(output)).record


def forget(dense: Dense) -> None:
    """Let a search use its vectors as the encoder made them."""
    if isinstance(dense.embeddings, ChangedEmbeddings):
        dense.embeddings = dense.embeddings.unchanged
        dense.__dict__.pop("moments", None)


def key_of(dense: Dense) -> str:
    """Return a hash of what the vectors of a search depend on: the encoder and the corpus."""
    encoder = CorpusEncoder(dense.model, dense.documents)
    return json_sha256(identity_of(encoder, EncodeOptions(), SHARD_SIZE))


def _relevant(dense: Dense, judgements: Judgements) -> tuple[list[str], list[dict[int, int]]]:
    """Return the judged queries with a relevant document: texts, and grades by corpus row."""
    texts = []
    grades = []
    for query in judgements.queries.values():
        rows = dense.documents.rows(list(query.grades)).tolist()
        by_row = {
            row: grade for row, grade in zip(rows, query.grades.values(), strict=True) if row >= 0
        }
        if any(grade > 0 for grade in by_row.values()):
            texts.append(query.text)
            grades.append(by_row)
    return texts, grades


def _placed(grades: Mapping[int, int], places: Mapping[int, int]) -> dict[int, int]:
    """Return grades by the number of a candidate; documents that are none rank below all."""
    return {places[row]: grade for row, grade in grades.items() if row in places}
