"""BM25's weight in a fusion by the label-free estimate of what the fusion gains."""

import logging
from dataclasses import dataclass, replace

from beir_cocodr.data.collection import Collection, Dataset, load_collection
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.likeness import collection_figures, compare_figures
from beir_cocodr.evaluation.label_free.verdict import MOST_QUERIES, decide, load_calibration
from beir_cocodr.evaluation.label_free.weak_encoders import mark_weak_encoders
from beir_cocodr.evaluation.results import Interval, PairVerdict
from beir_cocodr.models.spec import (
    BM25_WEIGHT,
    DENSE,
    HYBRID,
    FuseOptions,
    ModelSpec,
    SearchOptions,
)
from beir_cocodr.records import Json
from beir_cocodr.retrieval.hybrid.fusion import Hybrid
from beir_cocodr.retrieval.ranking import Lexical
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.retrieval.vectors.embeddings_property import embeddings_property

#: BM25's weight where the fusion is expected to lose: short queries over a much weaker BM25.
LIGHT_WEIGHT = 0.2

# Pseudo-queries of each kind, and the seed of their drawing, by default. It is not that of a
# comparison, whose pseudo-queries would otherwise judge the weight that they have chosen.
_SAMPLES = 150
_SEED = 7_042

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightChoice:
    """BM25's weight in a fusion, and the estimate that chose it.

    Attributes:
        weight: The weight, 0.5 or 0.2.
        estimate: The expected lead in nDCG@10 of the fusion with weight 0.5 over the encoder.
        interval: Its 90% interval.
        prior_share: The share of the estimate that is what usually wins.
    """

    weight: float
    estimate: float
    interval: Interval
    prior_share: float

    @classmethod
    def of(cls, verdict: PairVerdict) -> "WeightChoice":
        """Return the weight by the verdict on the fusion against the encoder."""
        is_light = verdict.estimate < 0
        return cls(
            weight=LIGHT_WEIGHT if is_light else BM25_WEIGHT,
            estimate=verdict.estimate,
            interval=verdict.interval,
            prior_share=verdict.prior_share,
        )

    def __str__(self) -> str:
        """Return the choice and its reason in one sentence."""
        low, high = self.interval
        expected = "lose" if self.estimate < 0 else "gain"
        return (
            f"BM25 has the weight {self.weight:g}, because the fusion with weight {BM25_WEIGHT:g} "
            f"is expected to {expected} {abs(self.estimate):.3f} nDCG@10 against the encoder alone "
            f"({low:+.3f} to {high:+.3f}; {self.prior_share:.0%} of the estimate is what usually "
            "wins)"
        )

    def applied_to(self, options: FuseOptions) -> FuseOptions:
        """Return the options of a fusion with this weight, and with its reason for the record."""
        return replace(options, bm25_weight=self.weight, weight_reason=str(self))


def choose_weight(
    model: Model,
    dataset: Dataset,
    search: SearchOptions = SearchOptions(),
    samples: int = _SAMPLES,
    seed: int = _SEED,
) -> WeightChoice:
    """Choose BM25's weight in the fusion with an encoder by an estimate without labels.

    The weight is 0.2 where the fusion with weight 0.5 is expected to lose against the encoder, and
    0.5 elsewhere. The estimate is the one of ``compare``. It rests on the queries of the
    collection, if it has some, and on crops and titles, for which some documents are encoded
    again. On collections that had no part in the rule it always left 0.5, and so gained nothing.

    Args:
        model: A dense encoder: a name, a folder, or a loaded encoder.
        dataset: The corpus, as for :func:`~beir_cocodr.data.collection.load_collection`.
        search: How the corpus is searched.
        samples: The most pseudo-queries of each kind.
        seed: Seed of their drawing.

    Raises:
        InputError: The model or the corpus cannot be loaded.
    """
    collection = load_collection(dataset, labels="optional")
    dense = resolve_model(model, argument="model")
    with Resources.temporary(collection.documents, search) as resources:
        return _estimate(resources, dense, _fusion(dense), samples, seed, collection)


class EstimatedHybrid(Hybrid):
    """The fusion whose weight of BM25 is chosen by an estimate without labels: hybrid@estimate:M.

    It is chosen when the fusion is first used, from the corpus alone: no query that is searched for
    has a part in it. Vectors that have learned choose it anew.
    """

    def __init__(
        self,
        dense: Dense,
        bm25: Lexical,
        resources: Resources,
        spec: ModelSpec,
    ) -> None:
        """Fuse two searches of one corpus.

        Args:
            dense: Dense search.
            bm25: BM25, here or elsewhere.
            resources: What searches over the corpus share.
            spec: The fusion's spec.
        """
        super().__init__(dense, bm25)
        self._resources = resources
        self._spec = spec

    @embeddings_property
    def choice(self) -> WeightChoice:
        """Return the weight and its reason."""
        spec = self._spec
        dense = replace(
            spec,
            name=f"{spec.name} without BM25",
            kind=DENSE,
            lucene=False,
            weight_by_estimate=False,
        )
        fusion = replace(
            spec,
            name=f"{spec.name} with weight {BM25_WEIGHT:g}",
            bm25_weight=BM25_WEIGHT,
            weight_by_estimate=False,
        )
        return _estimate(self._resources, dense, fusion)

    @property
    def bm25_weight(self) -> float:
        """BM25's weight, against 1 of the encoder."""
        return self.choice.weight

    def prepare(self) -> None:
        """Compute what searches need, and choose the weight."""
        super().prepare()
        _ = self.choice

    def describe(self) -> Json:
        """Describe the fusion for the record of a search, with the reason of its weight."""
        return {**super().describe(), "weight_reason": str(self.choice)}


def _estimate(
    resources: Resources,
    dense: ModelSpec,
    fusion: ModelSpec,
    samples: int = _SAMPLES,
    seed: int = _SEED,
    collection: Collection | None = None,
) -> WeightChoice:
    """Choose BM25's weight by the verdict on the fusion with weight 0.5 against its encoder.

    Args:
        resources: What searches over the corpus share.
        dense: The encoder.
        fusion: The fusion.
        samples: The most pseudo-queries of each kind.
        seed: Seed of their drawing.
        collection: Gives its queries as evidence, and its name. Default: the corpus alone.
    """
    documents = resources.documents
    calibration = load_calibration()
    resources.name_specs({spec.name: spec for spec in (dense, fusion)})
    gatherer = Gatherer(
        resources,
        [dense.name, fusion.name],
        samples=samples,
        seed=seed,
        collection=collection,
    )
    queries = {} if collection is None else collection.queries
    asked = spaced(queries, MOST_QUERIES)
    seen = gatherer.gather({query: queries[query] for query in asked})
    evidence = mark_weak_encoders(seen, gatherer.encoders)
    figures = collection_figures(documents, evidence)
    likeness = compare_figures(figures, calibration.figures)
    verdict = decide(
        evidence,
        dense.name,
        fusion.name,
        calibration,
        likeness,
        documents.content_hash,
    )
    choice = WeightChoice.of(verdict)
    log.info("%s", choice)
    return choice


def _fusion(dense: ModelSpec) -> ModelSpec:
    """Return the fusion of an encoder with weight 0.5."""
    if dense.loaded is not None:
        return ModelSpec.of(HYBRID, dense.loaded, dense.name)
    return ModelSpec.parse(f"{HYBRID}@{BM25_WEIGHT:g}:{dense.encoder}")
