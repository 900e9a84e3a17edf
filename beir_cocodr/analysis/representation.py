"""How well a model represents a corpus, before and after it was adapted to it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from beir_cocodr.analysis import RepresentationOptions
from beir_cocodr.analysis.gains import Gains, read_scores
from beir_cocodr.analysis.qpp import Coefficients, correlations
from beir_cocodr.analysis.spans import SpanChange, SpanMeasures, SpanPairs, SpanRecord, measure_spans, sample_span_pairs
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError, check_names
from beir_cocodr.losses.coco import COCOLoss
from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.records import Json, Report, versions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusRecord:
    """A corpus: what was sampled, and what each model makes of it.

    Attributes:
        too_short: documents drawn too, but without two spans.
        left_over: documents in no batch.
        loss_of_chance: of a model without distinctions.
        change: of the second model to the first, None for one model.
    """

    documents: int
    corpus_sha256: str
    sampled: int
    too_short: int
    batch_size: int
    batches: int
    left_over: int
    loss_of_chance: float
    models: dict[str, SpanRecord] = field(default_factory=dict)
    change: SpanChange | None = None


@dataclass(frozen=True)
class EncoderRecord:
    """A model, and how its losses are made."""

    similarity: str
    scale: float
    dimensions: int | None
    text_format: Json
    weights_sha256: str


@dataclass(frozen=True)
class ReductionAgainstGain(Coefficients):
    """Of the contrastive loss's reduction with the gain, over corpora that have both."""

    of: str
    datasets: int


@dataclass(frozen=True)
class Representation(Report):
    """``representation.json``, with the fields of :class:`RepresentationOptions`.

    Attributes:
        losses_comparable: whether the models' losses are on one scale.
        measure: of the gains, None without.
    """

    datasets: dict[str, CorpusRecord]
    models: dict[str, EncoderRecord]
    sample: int
    batch_size: int
    temperature: float
    span_tokens: int
    seed: int
    losses_comparable: bool
    reduction_against_gain: ReductionAgainstGain | None
    measure: str | None


def representation(
    datasets: Sequence[str],
    models: Sequence[str],
    options: RepresentationOptions | None = None,
    results: Sequence[Path] = (),
    measure: str = "nDCG@10",
    search: SearchOptions = SearchOptions(),
) -> Representation:
    """Alignment, uniformity and contrastive loss of one model, or of two, on span pairs of corpora.

    The first model's tokenizer cuts the spans, and both models see the same texts, unmasked and without gradient. In
    memory are the spans of all samples, the embeddings of one, and one model.

    Args:
        datasets: as the command line names them; only their documents are read.
        models: one, or two: before and after.
        results: results.json files of `evaluate` with both models: then the reduction of the contrastive loss stands
            against the gain in ``measure``, as in Figure 5a.
        search: how models are loaded and encode.

    Raises:
        InputError: a corpus has no two documents with two spans, a model cannot be found or is an MRL, its embeddings
            are not finite, or the results lack a model.

    Source: COCO-DR, section 5.4, Figure 5 and appendix H.
    """
    check_names("dataset", datasets)
    check_names("model", models)
    if len(models) > 2:
        raise InputError(f"one model, or two for before and after, not {len(models)}")
    if results and len(models) == 1:
        raise InputError("a gain is between two models; give --model a second time, or no --results")
    check_device(search.encoder.device)
    found = Gains(read_scores(results, datasets, measure) if results else None, models[0], models[-1])
    gains = {name: gain for name in datasets if (gain := found.of(name)) is not None}
    study = _Study(options or RepresentationOptions(), search)
    for model in models:
        study.measure(model, datasets)
    return study.report(gains, measure)


class _Study:
    """What is found of one model after another on the same samples."""

    def __init__(self, options: RepresentationOptions, search: SearchOptions) -> None:
        self.options, self.search = options, search
        self.pairs: dict[str, SpanPairs] = {}
        self.corpora: dict[str, CorpusRecord] = {}
        self.models: dict[str, EncoderRecord] = {}
        self.found: dict[str, list[SpanMeasures]] = {}

    def measure(self, name: str, datasets: Sequence[str]) -> None:
        """Measure one model on every corpus; the first one's tokenizer cuts the spans."""
        search, model = self.search, load_encoder(name, self.search.encoder)
        if isinstance(model, MRL):
            raise InputError(f"{name} is an MRL: its texts are distributions, without a place on a sphere")
        size, temperature = self.options.batch_size, self.options.temperature
        for dataset in datasets:
            if dataset not in self.pairs:
                self._sample(dataset, model)
            log.info("%s on %s", name, dataset)
            measured = measure_spans(model, self.pairs[dataset], size, temperature, search.batch_size, search.progress)
            self.found.setdefault(dataset, []).append(measured)
            self.corpora[dataset].models[name] = measured.record()
        self.models[name] = EncoderRecord(
            similarity=model.similarity_fn_name,
            scale=COCOLoss(model).scale,
            dimensions=model.get_embedding_dimension(),
            text_format=model.text_format.as_dict(),
            weights_sha256=weights_sha256(model),
        )

    def _sample(self, dataset: str, model: Any) -> None:
        documents, given = load_collection(dataset, labels="none").documents, self.options
        sizes = given.sample, given.seed, given.span_tokens
        pairs = sample_span_pairs(documents, model.tokenizer, model.text_format, *sizes)
        used = len(pairs.ids)
        size = min(given.batch_size, used)
        log.info("%s: %d documents sampled, %d too short for two spans", dataset, used, pairs.too_short)
        self.pairs[dataset] = pairs
        self.corpora[dataset] = CorpusRecord(
            documents=len(documents),
            corpus_sha256=documents.content_hash,
            sampled=used,
            too_short=pairs.too_short,
            batch_size=size,
            batches=used // size,
            left_over=used % size,
            loss_of_chance=math.log(2 * size - 1),
        )

    def report(self, gains: dict[str, float], measure: str) -> Representation:
        comparable = len({(model.similarity, model.scale) for model in self.models.values()}) == 1
        changes = {
            dataset: replace(after.change(before, comparable), gain=gains.get(dataset))
            for dataset, (before, *rest) in self.found.items()
            for after in rest
        }
        return Representation(
            datasets={name: replace(corpus, change=changes.get(name)) for name, corpus in self.corpora.items()},
            models=self.models,
            **asdict(self.options),
            losses_comparable=comparable,
            reduction_against_gain=_correlated(changes) if gains else None,
            measure=measure if gains else None,
            versions=versions(),
        )


def _correlated(changes: dict[str, SpanChange]) -> ReductionAgainstGain:
    """Pearson's r and Kendall's tau of the loss's reduction with the gain, over corpora that have both."""
    reductions = {name: change.contrastive_loss_reduction for name, change in changes.items()}
    gains = {name: change.gain for name, change in changes.items()}
    [row] = correlations({"reduction of the contrastive loss": reductions}, gains)
    return row.named(ReductionAgainstGain, "of", "datasets")
