"""Measures of a model's representation of a corpus on pairs of spans, also before training."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from beir_cocodr.analysis import Files, RepresentationOptions, as_paths
from beir_cocodr.analysis.gains import Gains, single_measure
from beir_cocodr.analysis.qpp import Coefficients, correlations
from beir_cocodr.arrays import Doubles, check_finite
from beir_cocodr.data.collection import Datasets, load_collections
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.spans import SpannedText, span_pair, span_ranges
from beir_cocodr.data.text import MOST_CHARACTERS
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.measures import MeasureNames, interval
from beir_cocodr.losses.coco import COCOLoss, coco_contrastive_loss
from beir_cocodr.models.checkpoints.loading import load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import ModelSpec, SearchOptions, check_device
from beir_cocodr.progress import in_place
from beir_cocodr.records import Json, Report, versions
from beir_cocodr.retrieval.resolve import Models, resolve_models

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

log = logging.getLogger(__name__)

#: Documents that are read and tokenized at a time.
_BLOCK = 256

#: The chance in pre-training that a sentence ends a span early, see
#: :func:`~beir_cocodr.data.spans.span_ranges`.
_FLUSH = 0.1


@dataclass(frozen=True)
class SpanPairs:
    """Two different spans of each of n documents.

    Attributes:
        ids: (n,) documents, in the order in which they were drawn.
        first, second: (n,) texts.
        too_short: the number of documents that were drawn too, but have no two spans.
    """

    ids: list[str]
    first: list[str]
    second: list[str]
    too_short: int


def sample_span_pairs(
    documents: Documents, model: COCODR, options: RepresentationOptions
) -> SpanPairs:
    """Draw documents at random, without replacement, until the sample is complete.

    Only the drawn documents are read. The spans of a document are cut as in pre-training, and
    depend only on the seed and the document's row.

    Args:
        documents: the corpus.
        model: its tokenizer counts the tokens of spans, its text format joins titles and texts.
        options: size of the sample, tokens of a span, and seed.

    Raises:
        InputError: Fewer than two documents have two spans.

    Source: COCO-DR, section 4.1.
    """
    ids: list[str] = []
    first: list[str] = []
    second: list[str] = []
    too_short = 0
    for row, document, text, offsets in _tokenized(documents, model, options.seed):
        if len(ids) == options.sample:
            break
        # A longer text has two spans.
        if len(offsets) <= options.span_tokens:
            too_short += 1
            continue
        rng = np.random.default_rng((options.seed, row))
        ranges = span_ranges(
            text,
            offsets,
            options.span_tokens,
            _FLUSH,
            rng,
        )
        one, other = span_pair(SpannedText(text, offsets, ranges, options.span_tokens), rng)
        ids.append(document)
        first.append(one)
        second.append(other)
    if len(ids) < 2:
        raise InputError(
            f"{len(ids)} of {len(documents)} documents have more than {options.span_tokens} "
            "tokens, and so two spans; lower --span-tokens, or give a corpus of longer texts"
        )
    return SpanPairs(ids, first, second, too_short)


def _tokenized(
    documents: Documents, model: COCODR, seed: int
) -> Iterator[tuple[int, str, str, list[tuple[int, int]]]]:
    """Yield row, id, text and token offsets of all documents, in random order."""
    order = np.random.default_rng(seed).permutation(len(documents))
    for start in range(0, len(order), _BLOCK):
        rows = order[start : start + _BLOCK]
        block = documents.take(rows)
        texts = [model.text_format.document(document)[:MOST_CHARACTERS] for document in block]
        tokens = model.tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids = [document["_id"] for document in block]
        yield from zip(
            rows.tolist(),
            ids,
            texts,
            tokens["offset_mapping"],
            strict=True,
        )


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """Compute ‖f(x) − f(x⁺)‖² of every pair, on the unit sphere.

    The distance is 0 for the same direction and 4 for opposite ones. The mean is ℓ_align: the
    smaller, the better aligned.

    Args:
        first: (n, d) of any length.
        second: (n, d); row i makes a pair with row i of ``first``.

    Returns:
        (n,) float64 distances.

    Source: COCO-DR, appendix H; Wang and Isola, Understanding Contrastive Representation Learning
    through Alignment and Uniformity on the Hypersphere, 2020 (α = 2).
    """
    first_unit = F.normalize(first.double(), dim=1)
    second_unit = F.normalize(second.double(), dim=1)
    return (first_unit - second_unit).square().sum(dim=1)


def uniformity(embeddings: Tensor, temperature: float = 2.0, block: int = 1024) -> float:
    """Compute ℓ_uniform = log mean exp(−t ‖f(x) − f(y)‖²) over all pairs of different rows.

    The rows are projected to the unit sphere. The value is 0 if all texts have the same embedding
    and −4t if two are opposite: the smaller, the more even. A row makes no pair with itself, as in
    the authors' code: the mean estimates that over independent draws.

    Args:
        embeddings: (n, d) of any length, n at least 2.
        temperature: t (paper: 2).
        block: rows whose scores with all others are in memory at a time, (block, n) float64.

    Source: COCO-DR, appendix H; Wang and Isola, 2020.
    """
    rows = len(embeddings)
    points = F.normalize(embeddings.double(), dim=1)
    norms = points.square().sum(dim=1)  # 1, or 0 for a vector of zeros
    parts = []
    for start in range(0, rows, block):
        part = points[start : start + block]
        part_norms = norms[start : start + block, None]
        distances = part_norms + norms - 2 * part @ points.T  # (b, n)
        is_later = torch.ones_like(distances).triu(diagonal=start + 1) > 0  # each pair once
        exponents = torch.where(
            is_later,
            -temperature * distances,
            -torch.inf,
        )
        parts.append(exponents.flatten().logsumexp(dim=0))
    log_sum = float(torch.stack(parts).logsumexp(dim=0))
    return log_sum - math.log(rows * (rows - 1) / 2)


@dataclass(frozen=True)
class SpanRecord:
    """Means of one model on one corpus, with bootstrap 95% intervals.

    An interval is None for a single value.
    """

    alignment: float
    alignment_interval: tuple[float, float] | None
    uniformity: float
    contrastive_loss: float
    contrastive_loss_interval: tuple[float, float] | None


@dataclass(frozen=True)
class SpanChange:
    """Differences between two models; those of losses are None if the losses are not comparable.

    Attributes:
        contrastive_loss_reduction: the share of the first model's loss that the second saves.
        gain: in a measure of quality, None where it is not known.
    """

    alignment: float
    alignment_interval: tuple[float, float] | None
    uniformity: float
    contrastive_loss: float | None
    contrastive_loss_interval: tuple[float, float] | None
    contrastive_loss_reduction: float | None
    gain: float | None = None


@dataclass(frozen=True)
class SpanMeasures:
    """Measures of one model on n pairs.

    Attributes:
        alignment: (n,) squared distances of the two spans; their mean is ℓ_align.
        uniformity: ℓ_uniform, the mean of that of the first spans and that of the second ones, as
            in the authors' code: so it is over no positive pair.
        losses: (m,) contrastive losses of m batches, without an incomplete last batch.
    """

    alignment: Doubles
    uniformity: float
    losses: Doubles

    def record(self) -> SpanRecord:
        """Return the means with their intervals."""
        return SpanRecord(
            alignment=float(self.alignment.mean()),
            alignment_interval=interval(self.alignment),
            uniformity=self.uniformity,
            contrastive_loss=float(self.losses.mean()),
            contrastive_loss_interval=interval(self.losses),
        )

    def change(self, before: SpanMeasures, comparable: bool) -> SpanChange:
        """Return the differences from another model on the same pairs, in the same batches.

        Args:
            before: the measures of the other model.
            comparable: whether the losses are on one scale.
        """
        distances = self.alignment - before.alignment
        change = SpanChange(
            alignment=float(distances.mean()),
            alignment_interval=interval(distances),
            uniformity=self.uniformity - before.uniformity,
            contrastive_loss=None,
            contrastive_loss_interval=None,
            contrastive_loss_reduction=None,
        )
        if not comparable:
            return change
        losses = self.losses - before.losses
        difference = float(losses.mean())
        loss_before = float(before.losses.mean())
        return replace(
            change,
            contrastive_loss=difference,
            contrastive_loss_interval=interval(losses),
            contrastive_loss_reduction=-difference / loss_before if loss_before else None,
        )


def measure_spans(
    model: COCODR,
    pairs: SpanPairs,
    options: RepresentationOptions,
    search: SearchOptions = SearchOptions(),
) -> SpanMeasures:
    """Encode n pairs as documents, without masking or gradient, and measure them.

    The contrastive loss has the model's similarity, with scale 20 for cosine and 1 for dot product.
    If there are fewer documents than the batch size, all of them are contrasted.

    Args:
        model: the encoder.
        pairs: n pairs of spans.
        options: batch size and temperature.
        search: how the model encodes.

    Raises:
        InputError: An embedding is NaN or infinite.

    Source: COCO-DR, Eq. 1 and appendix H.
    """
    first = _encode(model, pairs.first, pairs.ids, search)
    second = _encode(model, pairs.second, pairs.ids, search)
    first_uniformity = uniformity(first, options.temperature)
    second_uniformity = uniformity(second, options.temperature)
    return SpanMeasures(
        alignment=alignment(first, second).numpy(),
        uniformity=(first_uniformity + second_uniformity) / 2,
        losses=_losses(first, second, options.batch_size, COCOLoss(model)),
    )


def _encode(
    model: COCODR,
    texts: list[str],
    ids: list[str],
    search: SearchOptions,
) -> Tensor:
    encoded = model.encode_document(
        texts,
        convert_to_tensor=True,
        batch_size=search.batch_size,
        show_progress_bar=search.shows_progress and in_place(),
    )
    vectors: Tensor = encoded.detach().float().cpu()
    check_finite(vectors.numpy(), ids, "documents")
    return vectors


def _losses(
    first: Tensor,
    second: Tensor,
    batch_size: int,
    loss: COCOLoss,
) -> Doubles:
    spans = torch.stack([first, second], dim=1).double()  # (n, 2, d)
    size = min(batch_size, len(spans))
    losses = []
    for start in range(0, len(spans) - size + 1, size):
        batch = spans[start : start + size].flatten(0, 1)
        losses.append(coco_contrastive_loss(batch, loss.scale, loss.normalize).item())
    return np.array(losses)


@dataclass(frozen=True)
class CorpusRecord:
    """The sample from a corpus, and each model's measures on it.

    Attributes:
        too_short: documents that were drawn too, but have no two spans.
        left_over: documents in no batch.
        loss_of_chance: the loss of a model that makes no distinctions.
        models: name to measures.
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
class LossRecord:
    """A model, and how its losses are computed."""

    similarity: str
    scale: float
    dimensions: int | None
    text_format: Json
    weights_sha256: str


@dataclass(frozen=True)
class ReductionAgainstGain(Coefficients):
    """The correlation of the loss's reduction with the gain, over corpora that have both."""

    of: str
    datasets: int


@dataclass(frozen=True)
class Representation(Report):
    """``representation.json``, with the fields of :class:`RepresentationOptions`.

    Attributes:
        losses_comparable: whether the models' losses are on one scale.
        measure: of the gains, None without gains.
    """

    datasets: dict[str, CorpusRecord]
    models: dict[str, LossRecord]
    sample: int
    batch_size: int
    temperature: float
    span_tokens: int
    seed: int
    losses_comparable: bool
    reduction_against_gain: ReductionAgainstGain | None
    measure: str | None


def representation(
    models: Models,
    datasets: Datasets,
    *,
    results: Files = (),
    measure: MeasureNames = "nDCG@10",
    options: RepresentationOptions = RepresentationOptions(),
    search: SearchOptions = SearchOptions(),
) -> Representation:
    """Measure alignment, uniformity and contrastive loss of one or two models on span pairs.

    The first model's tokenizer cuts the spans, and both models see the same texts, unmasked and
    without gradient. The spans of all samples, the embeddings of one, and one model that is loaded
    by name are in memory.

    Args:
        models: one encoder, or two: before and after.
        datasets: one corpus or several; only documents are read.
        results: results.json files of ``evaluate`` with both models. With them, the reduction of
            the contrastive loss is correlated with the gain in ``measure``, as in Figure 5a.
        measure: of the results.
        options: the sample and the measures.
        search: how models are loaded and encode.

    Raises:
        InputError: A corpus has no two documents with two spans, a model cannot be found or is an
            MRL, its embeddings are not finite, or the results lack a model.

    Source: COCO-DR, section 5.4, Figure 5 and appendix H.
    """
    specs = resolve_models(models)
    labels = list(specs)
    if len(labels) > 2:
        raise InputError(f"give one model, or two for before and after, not {len(labels)}")
    files = as_paths(results)
    measure_name = single_measure(measure)
    if files and len(labels) == 1:
        raise InputError(
            "a gain is between two models; give --model a second time, or no --results"
        )
    check_device(search.encoder.device)
    collections = load_collections(datasets, labels="none")
    names = [collection.name for collection in collections]
    gains = Gains(
        files,
        names,
        measure_name,
        labels[0],
        labels[-1],
    ).of_all(names)
    corpora = {collection.name: collection.documents for collection in collections}
    study = _CorpusStudy(corpora, options, search)
    for label, spec in specs.items():
        study.measure(label, spec)
    comparable = len({(one.similarity, one.scale) for one in study.models.values()}) == 1
    changes = study.changes(comparable, gains)
    records = {}
    for name, record in study.corpora.items():
        records[name] = replace(record, change=changes.get(name))
    return Representation(
        datasets=records,
        models=study.models,
        **asdict(options),
        losses_comparable=comparable,
        reduction_against_gain=_reduction_against_gain(changes, gains),
        measure=measure_name if gains else None,
        versions=versions(),
    )


class _CorpusStudy:
    """Measures of models on the same samples of several corpora.

    Attributes:
        corpora: corpus to its record.
        models: label to record.
    """

    def __init__(
        self,
        documents: dict[str, Documents],
        options: RepresentationOptions,
        search: SearchOptions,
    ) -> None:
        self._documents = documents
        self._options = options
        self._search = search
        self._pairs: dict[str, SpanPairs] = {}
        self._measures: dict[str, list[SpanMeasures]] = {name: [] for name in documents}
        self.corpora: dict[str, CorpusRecord] = {}
        self.models: dict[str, LossRecord] = {}

    def measure(self, label: str, spec: ModelSpec) -> None:
        """Measure a model on all corpora; the first model's tokenizer cuts the spans."""
        model = load_encoder(spec, self._search.encoder)
        if isinstance(model, MRL):
            raise InputError(
                f"{label} is an MRL: its texts are distributions, which have no place on a "
                "sphere; give an encoder of one vector a text"
            )
        for name, documents in self._documents.items():
            if name not in self._pairs:
                self._sample(name, documents, model)
            log.info("%s on %s", label, name)
            measures = measure_spans(model, self._pairs[name], self._options, self._search)
            self._measures[name].append(measures)
            self.corpora[name].models[label] = measures.record()
        self.models[label] = LossRecord(
            similarity=model.similarity_fn_name,
            scale=COCOLoss(model).scale,
            dimensions=model.get_embedding_dimension(),
            text_format=model.text_format.as_dict(),
            weights_sha256=weights_sha256(model),
        )

    def changes(self, comparable: bool, gains: dict[str, float]) -> dict[str, SpanChange]:
        """Return corpus to the differences between two models, {} for one model."""
        changes = {}
        for name, measures in self._measures.items():
            if len(measures) == 2:
                before, after = measures
                change = after.change(before, comparable)
                changes[name] = replace(change, gain=gains.get(name))
        return changes

    def _sample(
        self,
        name: str,
        documents: Documents,
        model: COCODR,
    ) -> None:
        try:
            pairs = sample_span_pairs(documents, model, self._options)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        used = len(pairs.ids)
        size = min(self._options.batch_size, used)
        log.info(
            "%s: %d documents sampled, %d too short for two spans", name, used, pairs.too_short
        )
        self._pairs[name] = pairs
        self.corpora[name] = CorpusRecord(
            documents=len(documents),
            corpus_sha256=documents.content_hash,
            sampled=used,
            too_short=pairs.too_short,
            batch_size=size,
            batches=used // size,
            left_over=used % size,
            loss_of_chance=math.log(2 * size - 1),
        )


def _reduction_against_gain(
    changes: dict[str, SpanChange], gains: dict[str, float]
) -> ReductionAgainstGain | None:
    if not gains:
        return None
    name = "reduction of the contrastive loss"
    reductions = {corpus: change.contrastive_loss_reduction for corpus, change in changes.items()}
    coefficients, points = correlations({name: reductions}, gains)[name]
    return ReductionAgainstGain(**vars(coefficients), of=name, datasets=points)
