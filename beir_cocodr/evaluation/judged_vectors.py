"""Document vectors that learn from judged queries, if queries that were held out gain by it.

Judged queries move the vectors of the documents that they call relevant, see
:func:`~beir_cocodr.retrieval.vectors.nudge.nudged`. How far is chosen by cross-validation over the
queries. What that is worth is measured on queries that took no part in it, and the moved vectors
are kept only if these gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.collection import Dataset, load_collection
from beir_cocodr.data.judgements import (
    NOTHING_TO_FIND,
    Judgements,
    judgements_file,
    load_judgements,
)
from beir_cocodr.data.text import query_key
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
from beir_cocodr.retrieval.vectors.vector_cache import encoder_identity
from beir_cocodr.run_folder import results_folder

#: The record of learned vectors in a folder, and the vectors.
LEARNED_FILE = "learned.json"
_VECTORS_FILE = "learned.safetensors"

_DEPTH = 10
# What rounding leaves of equal means.
_DIGITS = 12
# The cosine above which two queries ask the same, and a length that is none.
_SAME_QUERY = 0.999
_SHORTEST = 1e-12
_DISCOUNTS = 1 / np.log2(2 + np.arange(_DEPTH))

#: The bounds that cross-validation chooses from, as a share of a vector's length. Unit vectors at
#: 0.8 have the cosine 0.68.
BOUNDS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8)


#: The confidence of a gain from which vectors move. On 19 labelled collections it kept more than
#: twice the gain that 95% kept, and no collection lost more than 0.006 (benchmarks/thumbs.py).
CONFIDENCE = 0.8


@dataclass(frozen=True)
class LearnOptions(Options):
    """Options of learning from judged queries.

    Attributes:
        folds: parts of the judged queries, of which one is held out at a time.
        seed: seed of the parts.
        overwrite: replace what another run wrote to the output folder.
    """

    folds: int = option(5, "Hold out the judged queries in this many parts.", min=2)
    seed: int = option(42, "Seed the parts with this number.", min=0)
    overwrite: bool = False


@dataclass(frozen=True)
class Learning(Record):
    """What judged queries taught a model's document vectors.

    Attributes:
        queries: Different judged queries with a relevant document.
        moved: Documents whose vectors move; 0 if they are not kept.
        bound: How far vectors may move, as a share of their length, chosen by cross-validation.
        before: Mean nDCG@10 of held-out queries by the vectors as they were.
        gain: Mean difference on them by vectors that the other queries moved.
        interval: Its 90% interval by paired t quantiles.
        confidence: Probability that held-out queries gain, by Student's t.
        kept: True if the confidence is at least 80%: only then do the vectors move.
        left_out: Judged queries without a relevant document in the corpus.
        model: Name of the model whose encoder learned.
        key: Hash of the encoder and the corpus.
        documents: Ids of the moved documents; none if they are not kept.
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
        after = self.before + self.gain
        figures = (
            f"nDCG@10 of held-out queries {self.before:.3f} to {after:.3f}, "
            f"90% interval of the difference {low:+.3f} to {high:+.3f}, a gain with "
            f"{self.confidence:.0%} confidence"
        )
        outcome = (
            f"{self.queries} judged queries moved nothing, because queries that were held out do "
            "not clearly gain"
        )
        if self.kept:
            outcome = f"{self.queries} judged queries moved the vectors of {_documents(self.moved)}"
        return f"{outcome}: {figures}{self._describe_left_out()}"

    def _describe_left_out(self) -> str:
        """Return what the sentence says of judged queries that taught nothing, "" if all did."""
        if not self.left_out:
            return ""
        verb = "other judged query has" if self.left_out == 1 else "other judged queries have"
        return f"; {self.left_out} {verb} no relevant document in the corpus"


@dataclass(frozen=True)
class JudgedCandidates:
    """Judged queries, and all documents that any of them may rank among its ten best.

    Attributes:
        queries: (Q, d) vectors of the queries.
        grades: Number of a candidate to its grade, for each query.
        vectors: (C, d) vectors of the candidates.
        ties: (C,) ranks by which equal scores are ordered.
        unit: True if vectors have length 1 and keep it.
        texts: (Q,) texts of the queries, by which one query in two spellings is known; empty if all
            are different.
    """

    queries: Floats
    grades: Sequence[Mapping[int, int]]
    vectors: Floats
    ties: Ints
    unit: bool
    texts: Sequence[str] = ()

    @cached_property
    def groups(self) -> Ints:
        """Return (Q,) for each query the number of the first one that asks the same.

        Two spellings of a query ask the same. If one of them were held out alone, the judgements of
        the other would be its own.
        """
        lengths = np.linalg.norm(self.queries, axis=1, keepdims=True)
        directions = self.queries / np.maximum(lengths, _SHORTEST)
        is_same = directions @ directions.T > _SAME_QUERY
        keys = np.array([query_key(text) for text in self.texts])
        if len(keys) > 0:
            is_same |= keys[:, None] == keys[None, :]
        groups = np.arange(len(self.queries))
        for number in range(1, len(groups)):
            earlier = np.flatnonzero(is_same[number, :number])
            if len(earlier) > 0:
                groups[number] = groups[earlier[0]]
        return groups

    def parts(self, numbers: Ints, folds: int) -> list[Ints]:
        """Return (n,) numbers of queries in parts, with all that ask the same in one of them."""
        groups = self.groups[numbers]
        different = np.array(list(dict.fromkeys(groups.tolist())))
        count = min(folds, len(different))
        return [numbers[np.isin(groups, different[part::folds])] for part in range(count)]

    def mean_by_group(self, values: Doubles) -> Doubles:
        """Return the mean of (Q,) values of the queries that ask the same, one for each group."""
        _, positions = np.unique(self.groups, return_inverse=True)
        means: Doubles = np.bincount(positions, values) / np.bincount(positions)
        return means

    @cached_property
    def _scores(self) -> Floats:
        """Return the (Q, C) scores of all candidates as they are."""
        return self.queries @ self.vectors.T

    @cached_property
    def scale(self) -> float:
        """Return the length of a vector: bounds are shares of it."""
        if self.unit:
            return 1.0
        squared_lengths = np.square(self.vectors).sum(axis=1)
        return float(np.sqrt(squared_lengths.mean()))

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
        judged_grades = [self.grades[number] for number in judged]
        pulls = pulls_of(self.queries[judged], judged_grades)
        targets = unit_pulls(pulls.sums)
        before = scores[:, pulls.rows]
        toward = self.queries[asked] @ targets.T
        cosines = (self.vectors[pulls.rows] * targets).sum(axis=1)
        values = np.zeros((len(bounds), len(asked)))
        for number, bound in enumerate(bounds):
            farthest = bound * self.scale
            kept, pulled = nudge_shares(cosines, farthest, unit=self.unit)
            scores[:, pulls.rows] = kept * before + pulled * toward
            by_query = zip(asked.tolist(), scores, strict=True)
            values[number] = [self.ndcg(query, of_query) for query, of_query in by_query]
        return values

    def ndcg(self, number: int, scores: Floats) -> float:
        """Return the nDCG@10 of a query by (C,) scores of the candidates."""
        grades = self.grades[number]
        ranking = best_rows(scores, self.ties, _DEPTH)
        gains = [max(grades.get(row, 0), 0) for row in ranking]
        positive = [grade for grade in grades.values() if grade > 0]
        ideal_gains = sorted(positive, reverse=True)[:_DEPTH]
        return _dcg(gains) / _dcg(ideal_gains)

    def choose(self, judged: Ints, folds: int) -> float:
        """Return the bound at which held-out queries among the judged ones gain the most.

        Of bounds that are as good, it is the smallest; 0 if none gains.
        """
        bounds = (0.0, *BOUNDS)
        values = []
        for part in self.parts(judged, folds):
            others = _without(judged, part)
            values.append(self.after(others, part, bounds))
        means = np.concatenate(values, axis=1).mean(axis=1)
        best = np.argmax(means.round(_DIGITS))
        return bounds[int(best)]

    def cross_validate(self, options: LearnOptions) -> tuple[Doubles, Doubles]:
        """Return (Q,) nDCG@10 of every query before, and after the others have moved vectors.

        The bound of each fold is chosen within the others, by cross-validation again.
        """
        count = len(self.queries)
        order = np.random.default_rng(options.seed).permutation(count)
        nobody = order[:0]
        everybody = np.arange(count)
        [before] = self.after(nobody, everybody, (0.0,))
        after = np.zeros(count)
        for part in self.parts(order, options.folds):
            others = _without(order, part)
            bound = self.choose(others, options.folds)
            [after[part]] = self.after(others, part, (bound,))
        return before, after


def _dcg(gains: Sequence[int]) -> float:
    """Return the discounted cumulative gain of at most ten gains, best rank first."""
    return float(_DISCOUNTS[: len(gains)] @ gains)


def _without(numbers: Ints, part: Ints) -> Ints:
    kept: Ints = numbers[~np.isin(numbers, part)]
    return kept


def _documents(count: int) -> str:
    return "1 document" if count == 1 else f"{count} documents"


def gain_confidence(differences: Doubles) -> float:
    """Return the probability that (n,) paired differences have a mean above 0, by Student's t."""
    from scipy import stats  # reading a record does not need it

    count = len(differences)
    mean = differences.mean()
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    if not error:
        return float(np.sign(mean) / 2 + 0.5)
    probability = stats.t.cdf(mean / error, count - 1)
    return float(probability)


def paired_interval(differences: Doubles) -> tuple[float, float]:
    """Return the 90% interval of a mean of (n,) paired differences by Student's t."""
    from scipy import stats  # reading a record does not need it

    mean = float(differences.mean())
    count = len(differences)
    deviation = float(differences.std(ddof=1))
    quantile = float(stats.t.ppf(0.5 + LEVEL / 2, count - 1))
    width = quantile * deviation / math.sqrt(count)
    return mean - width, mean + width


def learn_bound(candidates: JudgedCandidates, options: LearnOptions = LearnOptions()) -> Learning:
    """Choose how far judged queries move vectors, and measure what that is worth.

    Args:
        candidates: At least ten different judged queries, each with a relevant document.
        options: Parts and seed.

    Raises:
        InputError: There are fewer queries.
    """
    count = len(np.unique(candidates.groups))
    if count < FEWEST:
        raise InputError(
            f"{count} different judged queries have a relevant document, and learning needs "
            f"{FEWEST}; judge {FEWEST - count} more"
        )
    before, after = map(candidates.mean_by_group, candidates.cross_validate(options))
    gains = after - before
    low, high = paired_interval(gains)
    confidence = gain_confidence(gains)
    order = np.random.default_rng(options.seed).permutation(len(candidates.queries))
    bound = candidates.choose(order, options.folds)
    moved = _relevant_rows(candidates.grades)
    kept = confidence >= CONFIDENCE and bound > 0
    return Learning(
        queries=count,
        moved=len(moved) if kept else 0,
        bound=bound,
        before=round(float(before.mean()), 6),
        gain=round(float(gains.mean()), 6),
        interval=(round(low, 6), round(high, 6)),
        confidence=round(confidence, 4),
        kept=kept,
    )


def _relevant_rows(grades: Sequence[Mapping[int, int]]) -> set[int]:
    """Return the rows with a grade above 0 for any query."""
    rows: set[int] = set()
    for of_query in grades:
        rows.update(row for row, grade in of_query.items() if grade > 0)
    return rows


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
        cls,
        dense: Dense,
        judgements: Judgements,
        options: LearnOptions = LearnOptions(),
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
        count = len(texts)
        if count < FEWEST:
            raise InputError(
                f"{judgements.file}: {count} judged queries have a relevant document, and "
                f"learning needs {FEWEST}; judge {FEWEST - count} more"
            )
        queries = dense.encode_queries(texts)
        positive = _relevant_rows(grades)
        numbers = list(map(str, range(count)))
        # However far these rows move, only so many others can be among the ten best.
        deepest = _DEPTH + len(positive)
        ranking = dense.search_embeddings(numbers, queries, deepest)
        ranked_rows = ranking.rows[ranking.rows >= 0]
        rows = np.union1d(ranked_rows, sorted(positive)).astype(np.int64)
        places = {row: number for number, row in enumerate(rows.tolist())}
        candidates = JudgedCandidates(
            queries=queries.numpy(),
            grades=[_placed(of_query, places) for of_query in grades],
            vectors=dense.embeddings.rows(rows).numpy(),
            ties=dense.documents.tie_ranks()[rows],
            unit=dense.model.similarity_fn_name == "cosine",
            texts=texts,
        )
        learning = learn_bound(candidates, options)
        moved = rows[:0]
        vectors = candidates.vectors[:0]
        if learning.kept:
            pulls = pulls_of(candidates.queries, candidates.grades)
            moved = rows[pulls.rows]
            vectors = nudged(
                candidates.vectors[pulls.rows],
                pulls.sums,
                learning.bound * candidates.scale,
                unit=candidates.unit,
            )
        elsewhere = judgements.counts.get(NOTHING_TO_FIND, 0)
        record = replace(
            learning,
            left_out=elsewhere + len(judgements.queries) - count,
            key=key_of(dense),
            documents=dense.documents.ids(moved),
        )
        return cls(record, vectors)

    def named(self, model: str) -> LearnedVectors:
        """Return the same vectors with the name of the model whose encoder learned them."""
        return LearnedVectors(replace(self.record, model=model), self.vectors)

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

    def save(self, folder: Path) -> None:
        """Write the record and the vectors; the record comes last."""
        file = output_folder(folder) / _VECTORS_FILE
        vectors = np.ascontiguousarray(self.vectors)
        with atomic_path(file) as temporary:
            save_file({"vectors": vectors}, temporary)
        record = replace(self.record, vectors_sha256=file_sha256(file))
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
                raise ValueError("its checksum differs")
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
        InputError: The model has no document vectors, fewer than ten judged queries have a
            relevant document, or ``output`` holds the results of another run.
    """
    searcher = Searcher(dataset, model, search)
    dense = searcher.dense
    if dense is None:
        raise InputError(
            f"model {searcher.model} has no document vectors that could learn; name an encoder, "
            "such as minilm"
        )
    run = {
        "command": "learn",
        "dataset": searcher.dataset,
        "corpus": searcher.documents.content_hash,
        "model": searcher.model,
        "encoder": encoder_key_of(dense),
        "judgements": file_sha256(judgements_file(judgements)),
        "folds": options.folds,
        "seed": options.seed,
        "search": search.describe(),
    }
    with results_folder(output_path(output), run, options.overwrite) as folder:
        queries = load_collection(dataset, labels="optional").queries_of_all_splits()
        all_judgements = load_judgements(Path(judgements))
        judged = all_judgements.of(queries, searcher.documents)
        learned = LearnedVectors.learn(dense, judged, options).named(searcher.model)
        learned.save(folder)
    return LearnedVectors.load(output_path(output)).record


def has_moved(dense: Dense) -> bool:
    """Return whether a search uses vectors that judged queries moved."""
    return isinstance(dense.embeddings, ChangedEmbeddings)


def forget(dense: Dense) -> None:
    """Let a search use its vectors as the encoder made them."""
    if isinstance(dense.embeddings, ChangedEmbeddings):
        dense.embeddings = dense.embeddings.unchanged


def key_of(dense: Dense) -> str:
    """Return a hash of what the vectors of a search depend on: encoder, corpus and sharpening."""
    encoder = CorpusEncoder(dense.model, dense.documents)
    identity = identity_of(encoder, EncodeOptions(), SHARD_SIZE)
    return json_sha256(identity | dense.sharpening)


def encoder_key_of(dense: Dense) -> str:
    """Return a hash of the encoder of a search, which stays when the corpus changes."""
    return json_sha256(encoder_identity(dense.model))


def _relevant(dense: Dense, judgements: Judgements) -> tuple[list[str], list[dict[int, int]]]:
    """Return the judged queries with a relevant document: texts, and grades by corpus row."""
    texts = []
    grades = []
    for query in judgements.queries.values():
        rows = dense.documents.rows(list(query.grades)).tolist()
        by_row = {}
        for row, grade in zip(rows, query.grades.values(), strict=True):
            if row >= 0:
                by_row[row] = grade
        if any(grade > 0 for grade in by_row.values()):
            texts.append(query.text)
            grades.append(by_row)
    return texts, grades


def _placed(grades: Mapping[int, int], places: Mapping[int, int]) -> dict[int, int]:
    """Return grades by the number of a candidate; documents that are none rank below all."""
    return {places[row]: grade for row, grade in grades.items() if row in places}
