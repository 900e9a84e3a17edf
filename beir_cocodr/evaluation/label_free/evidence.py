"""Evidence about models on a collection without its labels.

It consists of how well models find queries that were made of documents, how far their ranked lists
agree, and what they were trained on of the corpus.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from beir_cocodr.arrays import Bools, Doubles, Ints
from beir_cocodr.evaluation.label_free.contamination import Contamination
from beir_cocodr.evaluation.label_free.estimators import CROPS, GENERATED
from beir_cocodr.evaluation.label_free.pooled_relevance import PooledScores
from beir_cocodr.evaluation.label_free.pseudo_queries import PseudoQueries, mean_words
from beir_cocodr.evaluation.results import PseudoQueryFigures
from beir_cocodr.models.spec import BM25
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranking

#: The name of the queries that people asked among kinds of queries.
ASKED = "queries"

#: What the kinds of a weak encoder's uses begin with.
WEAK = "weak "

#: Documents of a ranking that are fused and written to a run.
LIST_DEPTH = 100

# A question that no model answers with its document among so many is about nothing in particular.
_CONSISTENT = 20


@dataclass(frozen=True)
class SearchedQueries:
    """Queries of one kind that were made of documents, and how well models find the documents.

    Attributes:
        queries: The queries.
        scores: Model to its (S,) nDCG@10; BM25 is always included.
    """

    queries: PseudoQueries
    scores: dict[str, Doubles]

    def describe(self) -> PseudoQueryFigures:
        """Describe the queries: counts, words taken verbatim, and BM25's nDCG@10."""
        return self.queries.describe(self.scores[BM25])


@dataclass(frozen=True)
class Evidence:
    """Searches of several models over one collection.

    Attributes:
        crops: Model to (S,) nDCG@10 on held-out crops; BM25 is always included, and a system that
            cannot be given a changed corpus is not.
        generated: The same on generated queries; a run, which has none of them, is not included.
        lists: Model to the (Q, 100) rows that it ranks for the agreement queries, -1 for no result.
        rankings: Model to its ranking for the agreement queries.
        queries: The agreement queries, id to text.
        real: True if those are queries that people asked, and not the generated ones.
        crop_queries: The held-out crops.
        generated_queries: The generated queries.
        retrieval: Model to the description of its ranker.
        contamination: What the models were trained on of this corpus.
        kinds: Model to its kind in the calibration, None if it has none.
        answered: Model to (Q,) True for the agreement queries that it answers, for a run; all
            other models answer all.
        further: Name of an estimator to the queries that it judges by, beside crops and generated
            queries. A kind that the corpus does not give is missing.
        crop_lists: Model to the (S, 10) rows that it ranks for the held-out crops, -1 for no
            result.
        held_words: Model to the mean share of an agreement query's words that its three best
            documents hold. It tells how far real queries repeat the words of what they find, and
            so in which direction the other kinds mislead.
        margins: Kind of queries, :data:`ASKED` for the collection's own, to model to the (Q,)
            margins of its rankings, see :func:`~beir_cocodr.evaluation.label_free.margins.margins`.
        cut_words: Mean share of the words of crops that BM25's three best documents hold; None
            without crops.
        nonletter_excess: By how much the share of characters that are no letters is larger in
            documents than in real queries; 0 without real queries.
        pooled: What a language model says of the documents that models rank first for real
            queries; None without one.
        encoders: Model to what tells its encoder apart; None where it has none.
        weak: The models whose encoder is far behind BM25 on crops and titles, see
            :mod:`~beir_cocodr.evaluation.label_free.weak_encoders`.
        all_rankings: Model to its ranking for all queries that were searched for, also if they are
            not the agreement queries.
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
    kinds: Mapping[str, str | None] = field(default_factory=dict)
    answered: Mapping[str, Bools] = field(default_factory=dict)
    further: Mapping[str, SearchedQueries] = field(default_factory=dict)
    crop_lists: Mapping[str, Ints] = field(default_factory=dict)
    held_words: Mapping[str, float] = field(default_factory=dict)
    margins: Mapping[str, Mapping[str, Doubles]] = field(default_factory=dict)
    cut_words: float | None = None
    nonletter_excess: float = 0.0
    pooled: PooledScores | None = None
    encoders: Mapping[str, str | None] = field(default_factory=dict)
    weak: frozenset[str] = frozenset()
    all_rankings: Mapping[str, Ranking] = field(default_factory=dict)

    def pair_kinds(self, a: str, b: str) -> tuple[str | None, str | None]:
        """Return the kinds of a pair in the calibration.

        The uses of a weak encoder have kinds of their own when they are compared with each other or
        with BM25. When they are compared with another encoder's, they have the usual ones.
        """
        encoders = {self.encoders.get(a), self.encoders.get(b)} - {None}
        if len(encoders) > 1:
            return self.kinds[a], self.kinds[b]
        return self._kind(a), self._kind(b)

    def _kind(self, model: str) -> str | None:
        kind = self.kinds[model]
        return f"{WEAK}{kind}" if model in self.weak and kind is not None else kind

    @property
    def lost_words(self) -> float:
        """Return how many fewer words of real queries than of crops BM25's best documents hold.

        It is the logarithm of the ratio of both shares, and 0 without real queries. People who
        ask in other words than the documents are not imitated by crops, whatever these say.
        """
        held = self.held_words.get(BM25, 0.0)
        if not (self.real and held and self.cut_words):
            return 0.0
        return max(0.0, math.log(self.cut_words / held))

    def lists_of(self, models: Sequence[str]) -> list[Ints]:
        """Return the list of each model for the agreement queries that all of them answer."""
        shared = self.answered_by(models)
        return [self.lists[model][shared] for model in models]

    def answered_by(self, models: Sequence[str]) -> Bools:
        """Return (Q,) true for the agreement queries that all models answer."""
        shared = np.ones(len(self.lists[models[0]]), bool)
        for model in models:
            if model in self.answered:
                shared &= self.answered[model]
        return shared

    def describe(self) -> dict[str, PseudoQueryFigures]:
        """Describe the pseudo-queries: counts, words taken verbatim, and BM25's nDCG@10."""
        agreement = PseudoQueryFigures(
            len(self.queries),
            of_the_collection=self.real,
            words=mean_words(list(self.queries.values())),
            held_words=dict(self.held_words),
        )
        return {
            CROPS: SearchedQueries(self.crop_queries, self.crops).describe(),
            GENERATED: SearchedQueries(self.generated_queries, self.generated).describe(),
            **{name: searched.describe() for name, searched in self.further.items()},
            "agreement": agreement,
        }


def consistent_questions(
    searched: SearchedQueries,
    rankings: Mapping[str, Ints],
) -> SearchedQueries:
    """Return the questions whose document some model has among its best, and count the others.

    All models have a say, so that the filter favours none.

    Args:
        searched: Questions that a language model wrote, and their scores.
        rankings: Model to its (S, k) rows of documents, best first.
    """
    questions = searched.queries
    consistent: Bools = np.zeros(len(questions.rows), bool)
    for rows in rankings.values():
        consistent |= (rows[:, :_CONSISTENT] == questions.rows[:, None]).any(axis=1)
    texts = [text for text, kept in zip(questions.texts, consistent, strict=True) if kept]
    inconsistent = len(consistent) - len(texts)
    kept_questions = replace(
        questions,
        texts=texts,
        rows=questions.rows[consistent],
        counts=questions.counts | {"inconsistent": inconsistent},
    )
    scores = {name: values[consistent] for name, values in searched.scores.items()}
    return SearchedQueries(kept_questions, scores)
