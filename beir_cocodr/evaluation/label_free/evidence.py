"""Evidence about models on a collection without its labels.

It consists of how well models find held-out crops and generated queries, how far their ranked lists
agree, and what they were trained on of the corpus.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from beir_cocodr.arrays import Bools, Doubles, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.contamination import Contamination, find_contamination
from beir_cocodr.evaluation.label_free.held_out_corpus import HeldOutResources
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    DEPTH,
    PseudoQueries,
    hold_out_crops,
    lexical_queries,
)
from beir_cocodr.evaluation.results import PseudoQueryFigures
from beir_cocodr.evaluation.runs import RunRanker
from beir_cocodr.models.spec import BM25, RUN, ModelSpec, calibration_kind
from beir_cocodr.progress import step, steps
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranker, Ranking
from beir_cocodr.retrieval.resources import Resources

#: Documents of a ranking that are fused and written to a run.
LIST_DEPTH = 100


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
        real: True if those are the collection's own queries, and not the generated ones.
        crop_queries: The held-out crops.
        generated_queries: The generated queries.
        retrieval: Model to the description of its ranker.
        contamination: What the models were trained on of this corpus.
        kinds: Model to its kind in the calibration, None if it has none.
        answered: Model to (Q,) True for the agreement queries that it answers, for a run; all
            other models answer all.
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

    def lists_of(self, models: Sequence[str]) -> list[Ints]:
        """Return the list of each model for the agreement queries that all of them answer."""
        shared = np.ones(len(self.queries), bool)
        for model in models:
            if model in self.answered:
                shared &= self.answered[model]
        return [self.lists[model][shared] for model in models]

    def describe(self) -> dict[str, PseudoQueryFigures]:
        """Describe the pseudo-queries: counts, words taken verbatim, and BM25's nDCG@10."""
        return {
            "held-out crops": self.crop_queries.describe(self.crops[BM25]),
            "generated queries": self.generated_queries.describe(self.generated[BM25]),
            "agreement": PseudoQueryFigures(len(self.queries), of_the_collection=self.real),
        }


@dataclass(frozen=True)
class _PseudoSearch:
    """A model's results on the pseudo-queries.

    Attributes:
        generated: Its ranking for the generated queries; None for a run, which has none of them.
        crops: (S,) its nDCG@10 on the held-out crops; None if it cannot search a changed corpus.
    """

    generated: Ranking | None = None
    crops: Doubles | None = None


class Gatherer:
    """The searches that evidence rests on.

    Held-out crops and generated queries are searched for once, real queries as often as they
    change. Generated queries that a model was trained on are left out, see
    :func:`~beir_cocodr.evaluation.label_free.contamination.find_contamination`. Every encoder
    encodes the corpus once, and again only the documents that lose a crop; its queries are encoded
    in one batch at first.
    """

    def __init__(
        self,
        resources: Resources,
        models: Sequence[str],
        *,
        samples: int = 300,
        seed: int = 42,
        drop_identical_ids: bool = False,
        corpus_name: str | None = None,
    ) -> None:
        """Load the models and draw the pseudo-queries.

        Args:
            resources: What the models share over the corpus. The changed corpus and term counts are
                written to its folder.
            models: Names that ``resources`` knows.
            samples: Crops, and generated queries.
            seed: Seed of both.
            drop_identical_ids: Leave documents whose id is the query's out of the lists.
            corpus_name: Name of the collection in the records of trainings.

        Raises:
            InputError: A model cannot be loaded, or the record of its training cannot be read.
        """
        self.resources = resources
        self.documents = resources.documents
        self.models = list(models)
        self.drop = drop_identical_ids
        self.samples = samples
        self.seed = seed
        folder = Path(mkdtemp(dir=resources.folder))
        held_out_folder = folder / "held-out"
        terms_folder = folder / "terms"
        held_out_folder.mkdir()
        terms_folder.mkdir()
        # Names come first: an unknown one fails before a large corpus is read.
        self._rankers = {name: self._ranker(name) for name in [*models, BM25]}
        self.contamination = find_contamination(
            {name: _origin(resources.spec(name)) for name in models},
            self.documents.content_hash,
            corpus_name,
        )
        known = self.contamination.has
        self.crops, rest = hold_out_crops(
            self.documents,
            folder,
            samples,
            seed,
            known,
        )
        self.generated = lexical_queries(
            self.documents,
            terms_folder,
            samples,
            seed,
            known,
        )
        self._held_out = HeldOutResources(
            resources,
            rest,
            self.crops.rows,
            held_out_folder,
        )
        self._pseudo: dict[str, _PseudoSearch] = {}

    def gather(self, queries: Mapping[str, str]) -> Evidence:
        """Search for real queries; without any, lists are compared on the generated ones."""
        real = bool(queries)
        asked = dict(queries) if real else self.generated.queries
        rankings: dict[str, Ranking] = {}
        retrieval: dict[str, Json] = {}
        with steps({name: None for name in self._rankers if name not in self._pseudo}):
            for name, ranker in self._rankers.items():
                ranking = self._search(name, ranker, asked if real else {})
                generated = self._pseudo[name].generated
                rankings[name] = ranking if real or generated is None else generated
                retrieval[name] = ranker.describe()
        return Evidence(
            crops=self._crop_scores(),
            generated=self._generated_scores(),
            lists={name: self._list(ranking) for name, ranking in rankings.items()},
            rankings=rankings,
            queries=asked,
            real=real,
            crop_queries=self.crops,
            generated_queries=self.generated,
            retrieval=retrieval,
            contamination=self.contamination,
            kinds={name: self._kind(name, ranker) for name, ranker in self._rankers.items()},
            answered=self._answered(asked),
        )

    def _ranker(self, name: str) -> Ranker:
        """Return the ranker of a model, or what a run has ranked."""
        spec = self.resources.spec(name)
        return RunRanker(spec, self.documents) if spec.kind == RUN else self.resources.ranker(name)

    def _crop_scores(self) -> dict[str, Doubles]:
        """Return model to its scores on the held-out crops, for those that searched for them."""
        searched = {name: self._pseudo[name].crops for name in self._rankers}
        return {name: crops for name, crops in searched.items() if crops is not None}

    def _generated_scores(self) -> dict[str, Doubles]:
        """Return model to its scores on generated queries, for those that searched for them."""
        searched = {name: self._pseudo[name].generated for name in self._rankers}
        return {
            name: self.generated.score(ranking.rows)
            for name, ranking in searched.items()
            if ranking is not None
        }

    def _answered(self, queries: Mapping[str, str]) -> dict[str, Bools]:
        """Return run to (Q,) True for the queries that it answers."""
        return {
            name: ranker.answers(queries)
            for name, ranker in self._rankers.items()
            if isinstance(ranker, RunRanker)
        }

    def _search(
        self,
        name: str,
        ranker: Ranker,
        real: Mapping[str, str],
    ) -> Ranking:
        """Search for real queries, and the first time for the pseudo-queries with them."""
        depth = LIST_DEPTH + 1 if self.drop else LIST_DEPTH
        if isinstance(ranker, RunRanker):
            if not ranker.answers(real).any():
                raise InputError(
                    f"{name} answers none of the {len(real)} queries that are searched for; give "
                    "a run of the queries of the collection"
                )
            self._pseudo[name] = _PseudoSearch()
            return ranker.search(dict(real), depth)
        wanted = {f"asked {query}": text for query, text in real.items()}
        is_first = name not in self._pseudo
        if is_first:
            step(name)
            ranker.prepare()
            texts = [*real.values(), *self.generated.texts, *self.crops.texts]
            if texts:
                self.resources.encode_queries(name, texts)
            wanted |= {f"generated {query}": text for query, text in self.generated.queries.items()}
        ranking = _ranked(ranker, wanted, depth)
        count = len(real)
        if is_first:
            generated = Ranking(
                list(self.generated.queries),
                ranking.scores[count:],
                ranking.rows[count:],
            )
            self._pseudo[name] = _PseudoSearch(generated, self._search_crops(name))
        return Ranking(
            list(real),
            ranking.scores[:count],
            ranking.rows[:count],
        )

    def _search_crops(self, name: str) -> Doubles | None:
        """Return (S,) nDCG@10 on the crops; None for a system with an index of its own."""
        if self.resources.spec(name).is_black_box:
            return None
        over_rest = _ranked(self._held_out.ranker(name), self.crops.queries, DEPTH)
        return self.crops.score(over_rest.rows)

    def _list(self, ranking: Ranking) -> Ints:
        return _best_rows(ranking, self.documents, self.drop)

    def _kind(self, name: str, ranker: Ranker) -> str | None:
        """Return a model's kind in the calibration; a loaded encoder's own class says it."""
        spec = self.resources.spec(name)
        kind = calibration_kind(spec)
        if spec.kind != "dense":
            return kind
        return getattr(
            getattr(
                ranker,
                "model",
                None,
            ),
            "calibration_kind",
            kind,
        )


def _origin(spec: ModelSpec) -> str:
    """Return the name or the folder of a model's encoder, also of one that is loaded."""
    if spec.loaded is None:
        return spec.encoder
    transformer = getattr(spec.loaded, "transformers_model", None)
    return str(getattr(transformer, "name_or_path", "") or spec.encoder)


def _ranked(
    ranker: Ranker,
    queries: dict[str, str],
    top_k: int,
) -> Ranking:
    if not queries:
        no_rows = np.full((0, top_k), -1, np.int64)
        return Ranking([], np.zeros((0, top_k), np.float32), no_rows)
    return ranker.search(queries, top_k)


def _best_rows(
    ranking: Ranking,
    documents: Documents,
    drop_identical_ids: bool,
) -> Ints:
    """Return the (Q, 100) best rows, without the document that has the query's id if dropped."""
    if not drop_identical_ids:
        return ranking.rows[:, :LIST_DEPTH]
    identical = ranking.rows == documents.rows(ranking.queries)[:, None]
    rows = np.where(identical, -1, ranking.rows)
    order = np.argsort(rows < 0, axis=1, kind="stable")  # the others move up
    return np.take_along_axis(rows, order, axis=1)[:, :LIST_DEPTH]
