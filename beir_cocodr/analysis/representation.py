"""How well a model represents a corpus, before and after it was adapted to it, on pairs of spans of
its documents.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from beir_cocodr.analysis import RepresentationOptions
from beir_cocodr.analysis.gains import Gains
from beir_cocodr.analysis.qpp import Coefficients, correlations
from beir_cocodr.arrays import Doubles, check_finite
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.spans import SpannedText, span_pair, span_ranges
from beir_cocodr.data.text import MOST_CHARACTERS
from beir_cocodr.errors import InputError, check_names
from beir_cocodr.evaluation.measures import interval
from beir_cocodr.losses.coco import COCOLoss, coco_contrastive_loss
from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.progress import in_place
from beir_cocodr.records import Json, Report, versions

log = logging.getLogger(__name__)
_BLOCK = 256

#: The chance of pre-training that a sentence ends a span early, see
#: :func:`~beir_cocodr.data.spans.span_ranges`.
_FLUSH = 0.1


@dataclass(frozen=True)
class SpanPairs:
    """Two different spans of each of n documents: (n,) ids, in the order in which they were drawn,
    and (n,) texts each. ``too_short``: documents that were drawn too, but have no two spans.
    """

    ids: list[str]
    first: list[str]
    second: list[str]
    too_short: int


def sample_span_pairs(
    documents: Documents, model: Any, options: RepresentationOptions
) -> SpanPairs:
    """Draw documents at random, without replacement, until the sample is complete; an InputError
    under two of them.

    The model's tokenizer counts the tokens of spans, and its text format joins titles and texts;
    only what is drawn is read. The spans of a document, cut as in pre-training, depend on nothing
    but the seed and its row.

    Source: COCO-DR, section 4.1.
    """
    size, span_tokens = options.sample, options.span_tokens
    ids: list[str] = []
    first: list[str] = []
    second: list[str] = []
    too_short = 0
    order = np.random.default_rng(options.seed).permutation(len(documents))
    for start in range(0, len(order), _BLOCK):
        rows = order[start : start + _BLOCK]
        block = documents.take(rows)
        texts = [model.text_format.document(document)[:MOST_CHARACTERS] for document in block]
        tokens = model.tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for row, document, text, offsets in zip(
            rows.tolist(), block, texts, tokens["offset_mapping"], strict=True
        ):
            if len(ids) == size:
                return SpanPairs(ids, first, second, too_short)
            if len(offsets) <= span_tokens:  # what is longer has two spans
                too_short += 1
                continue
            rng = np.random.default_rng((options.seed, row))
            ranges = span_ranges(text, offsets, span_tokens, _FLUSH, rng)
            one, other = span_pair(SpannedText(text, offsets, ranges, span_tokens), rng)
            ids.append(document["_id"])
            first.append(one)
            second.append(other)
    if len(ids) < 2:
        raise InputError(
            f"{len(ids)} of {len(documents)} documents have more than {span_tokens} tokens, and so two "
            "spans; lower --span-tokens, or give a corpus of longer texts"
        )
    return SpanPairs(ids, first, second, too_short)


def alignment(first: Tensor, second: Tensor) -> Tensor:
    """‖f(x) − f(x⁺)‖² of every pair, on the unit sphere: 0 for the same direction, 4 for opposite
    ones.

    Rows i of two (n, d) tensors of any length are a pair. The (n,) float64 distances have the mean
    ℓ_align, the smaller the better aligned.

    Source: COCO-DR, appendix H; Wang and Isola, Understanding Contrastive Representation Learning
    through Alignment and Uniformity on the Hypersphere, 2020 (α = 2).
    """
    return (
        (F.normalize(first.double(), dim=1) - F.normalize(second.double(), dim=1))
        .square()
        .sum(dim=1)
    )


def uniformity(embeddings: Tensor, temperature: float = 2.0, block: int = 1024) -> float:
    """ℓ_uniform = log mean exp(−t ‖f(x) − f(y)‖²) over all pairs of different rows, on the unit
    sphere.

    0 where all texts have the same embedding, −4t where two are opposite; the smaller the more
    even. A row is not paired with itself, as in the authors' code: the mean estimates that over
    independent draws.

    Args:
        embeddings: (n, d) of any length, n at least 2.
        temperature: t (paper: 2).
        block: rows whose scores with all others are held at a time, so (block, n) float64 in
            memory.

    Source: COCO-DR, appendix H; Wang and Isola, 2020.
    """
    rows = len(embeddings)
    points = F.normalize(embeddings.double(), dim=1)
    norms = points.square().sum(dim=1)  # 1, but 0 for a vector of zeros
    parts = []
    for start in range(0, rows, block):
        part = points[start : start + block]
        distances = norms[start : start + block, None] + norms - 2 * part @ points.T  # (b, n)
        later = torch.ones_like(distances).triu(diagonal=start + 1) > 0  # each pair once
        exponents = torch.where(later, -temperature * distances, -torch.inf)
        parts.append(exponents.flatten().logsumexp(dim=0))
    return float(torch.stack(parts).logsumexp(dim=0)) - math.log(rows * (rows - 1) / 2)


@dataclass(frozen=True)
class SpanRecord:
    """Means of one model on one corpus; intervals are bootstrap 95% intervals, None for a single
    value.
    """

    alignment: float
    alignment_interval: tuple[float, float] | None
    uniformity: float
    contrastive_loss: float
    contrastive_loss_interval: tuple[float, float] | None


@dataclass(frozen=True)
class SpanChange:
    """Differences of one model to another; None of losses that are not on one scale.

    Attributes:
        contrastive_loss_reduction: the share of the other's loss that is gone.
        gain: of a measure of quality, None where it is not known.
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
            in the authors' code: so no positive pair is among the pairs.
        losses: (m,) contrastive losses of m batches; what is left over is in none.
    """

    alignment: Doubles
    uniformity: float
    losses: Doubles

    def record(self) -> SpanRecord:
        distances, losses = self.alignment, self.losses
        alignment, loss = float(distances.mean()), float(losses.mean())
        return SpanRecord(alignment, interval(distances), self.uniformity, loss, interval(losses))

    def change(self, before: "SpanMeasures", comparable: bool) -> SpanChange:
        """Differences to another model on the same pairs, in the same batches; of losses only if
        comparable.
        """
        closer, lower = self.alignment - before.alignment, self.losses - before.losses
        loss = float(before.losses.mean())
        return SpanChange(
            float(closer.mean()),
            interval(closer),
            self.uniformity - before.uniformity,
            float(lower.mean()) if comparable else None,
            interval(lower) if comparable else None,
            -float(lower.mean()) / loss if comparable and loss else None,
        )


def measure_spans(
    model: Any,
    pairs: SpanPairs,
    options: RepresentationOptions,
    search: SearchOptions = SearchOptions(),
) -> SpanMeasures:
    """Encode n pairs as documents, without masking or gradient, and measure; an InputError names a
    NaN or infinite one.

    The contrastive loss has the model's similarity, with scale 20 for cosine and 1 for dot product.
    Where there are fewer documents than the batch size, all of them are contrasted.

    Source: COCO-DR, Eq. 1 and appendix H.
    """
    first, second = (
        _encode(model, texts, pairs.ids, search) for texts in (pairs.first, pairs.second)
    )
    return SpanMeasures(
        alignment(first, second).numpy(),
        (uniformity(first, options.temperature) + uniformity(second, options.temperature)) / 2,
        _losses(first, second, options.batch_size, COCOLoss(model)),
    )


def _encode(model: Any, texts: list[str], ids: list[str], search: SearchOptions) -> Tensor:
    how = {"batch_size": search.batch_size, "show_progress_bar": search.progress and in_place()}
    encoded = model.encode_document(texts, convert_to_tensor=True, **how)
    vectors: Tensor = encoded.detach().float().cpu()
    check_finite(vectors.numpy(), ids, "documents")
    return vectors


def _losses(first: Tensor, second: Tensor, batch_size: int, loss: COCOLoss) -> Doubles:
    spans = torch.stack([first, second], dim=1).double()  # (n, 2, d)
    size = min(batch_size, len(spans))
    batches = [spans[start : start + size] for start in range(0, len(spans) - size + 1, size)]
    losses = [
        coco_contrastive_loss(batch.flatten(0, 1), loss.scale, loss.normalize).item()
        for batch in batches
    ]
    return np.array(losses)


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
class LossRecord:
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
    datasets: Sequence[str],
    models: Sequence[str],
    options: RepresentationOptions | None = None,
    results: Sequence[Path] = (),
    measure: str = "nDCG@10",
    search: SearchOptions = SearchOptions(),
) -> Representation:
    """Alignment, uniformity and contrastive loss of one model, or of two, on span pairs of corpora.
    An InputError: a corpus has no two documents with two spans, a model cannot be found or is an
    MRL, its embeddings are not finite, or the results lack a model.

    The first model's tokenizer cuts the spans, and both models see the same texts, unmasked and
    without gradient. In memory are the spans of all samples, the embeddings of one, and one model.

    Args:
        datasets: as the command line names them; only their documents are read.
        models: one, or two: before and after.
        results: results.json files of `evaluate` with both models: then the reduction of the
            contrastive loss stands against the gain in ``measure``, as in Figure 5a.
        search: how models are loaded and encode.

    Source: COCO-DR, section 5.4, Figure 5 and appendix H.
    """
    check_names("dataset", datasets)
    check_names("model", models)
    if len(models) > 2:
        raise InputError(f"one model, or two for before and after, not {len(models)}")
    if results and len(models) == 1:
        raise InputError(
            "a gain is between two models; give --model a second time, or no --results"
        )
    check_device(search.encoder.device)
    found = Gains(results, datasets, measure, models[0], models[-1])
    gains = {name: gain for name in datasets if (gain := found.of(name)) is not None}
    options, encoders = options or RepresentationOptions(), dict[str, LossRecord]()
    samples: dict[str, tuple[SpanPairs, CorpusRecord]] = {}
    measured: dict[str, list[SpanMeasures]] = {dataset: [] for dataset in datasets}
    for name in models:
        model = load_encoder(name, search.encoder)
        if isinstance(model, MRL):
            raise InputError(
                f"{name} is an MRL: its texts are distributions, without a place on a sphere"
            )
        for dataset in datasets:
            if dataset not in samples:  # the first model's tokenizer cuts the spans
                samples[dataset] = _sample(dataset, model, options)
            log.info("%s on %s", name, dataset)
            pairs, corpus = samples[dataset]
            measured[dataset].append(measure_spans(model, pairs, options, search))
            corpus.models[name] = measured[dataset][-1].record()
        encoders[name] = LossRecord(
            similarity=model.similarity_fn_name,
            scale=COCOLoss(model).scale,
            dimensions=model.get_embedding_dimension(),
            text_format=model.text_format.as_dict(),
            weights_sha256=weights_sha256(model),
        )
        del model  # one is in memory at a time
    comparable = len({(encoder.similarity, encoder.scale) for encoder in encoders.values()}) == 1
    changes = {
        dataset: replace(after.change(before, comparable), gain=gains.get(dataset))
        for dataset, (before, *rest) in measured.items()
        for after in rest
    }
    reductions = {
        "reduction of the contrastive loss": {
            n: c.contrastive_loss_reduction for n, c in changes.items()
        }
    }
    return Representation(
        datasets={
            name: replace(corpus, change=changes.get(name)) for name, (_, corpus) in samples.items()
        },
        models=encoders,
        **asdict(options),
        losses_comparable=comparable,
        reduction_against_gain=correlations(reductions, gains, ReductionAgainstGain)[0]
        if gains
        else None,
        measure=measure if gains else None,
        versions=versions(),
    )


def _sample(
    dataset: str, model: Any, options: RepresentationOptions
) -> tuple[SpanPairs, CorpusRecord]:
    documents = load_collection(dataset, labels="none").documents
    pairs = sample_span_pairs(documents, model, options)
    used = len(pairs.ids)
    size = min(options.batch_size, used)
    log.info("%s: %d documents sampled, %d too short for two spans", dataset, used, pairs.too_short)
    return pairs, CorpusRecord(
        documents=len(documents),
        corpus_sha256=documents.content_hash,
        sampled=used,
        too_short=pairs.too_short,
        batch_size=size,
        batches=used // size,
        left_over=used % size,
        loss_of_chance=math.log(2 * size - 1),
    )
