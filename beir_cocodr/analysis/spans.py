"""What a model makes of the pairs of spans that COCO contrasts, over a seeded sample of documents.

Alignment: how near the two texts of a positive pair are; uniformity: how evenly embeddings are spread over the sphere;
and the contrastive loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from beir_cocodr.arrays import Doubles
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.spans import SpannedText, span_pair, span_ranges
from beir_cocodr.data.text import MOST_CHARACTERS, TextFormat
from beir_cocodr.errors import InputError, listed
from beir_cocodr.evaluation.measures import interval
from beir_cocodr.losses.coco import COCOLoss, coco_contrastive_loss
from beir_cocodr.progress import in_place

_BLOCK = 256


@dataclass(frozen=True)
class SpanPairs:
    """Two different spans of each of n documents: (n,) ids, in the order in which they were drawn, and (n,) texts each.
    ``too_short``: documents that were drawn too, but have no two spans.
    """

    ids: list[str]
    first: list[str]
    second: list[str]
    too_short: int


def sample_span_pairs(
    documents: Documents,
    tokenizer: Any,
    text_format: TextFormat,
    size: int,
    seed: int = 42,
    span_tokens: int = 30,
    flush_probability: float = 0.1,
) -> SpanPairs:
    """Draw documents at random, without replacement, until ``size`` of them have two spans; an InputError under two.

    Args:
        documents: the corpus; only what is drawn is read.
        tokenizer: counts the tokens of spans.
        text_format: joins titles and texts.
        size: the most documents.
        seed: of the documents and of the spans. The spans of a document depend on nothing but the seed and its row.
        span_tokens, flush_probability: see :func:`~beir_cocodr.data.spans.split_spans`; the defaults of pre-training.

    Source: COCO-DR, section 4.1.
    """
    ids: list[str] = []
    first: list[str] = []
    second: list[str] = []
    too_short = 0
    order = np.random.default_rng(seed).permutation(len(documents))
    for start in range(0, len(order), _BLOCK):
        rows = order[start : start + _BLOCK]
        block = documents.take(rows)
        texts = [text_format.document(document)[:MOST_CHARACTERS] for document in block]
        tokens = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for row, document, text, offsets in zip(rows.tolist(), block, texts, tokens["offset_mapping"], strict=True):
            if len(ids) == size:
                return SpanPairs(ids, first, second, too_short)
            if len(offsets) <= span_tokens:  # what is longer has two spans
                too_short += 1
                continue
            rng = np.random.default_rng((seed, row))
            ranges = span_ranges(text, offsets, span_tokens, flush_probability, rng)
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
    """‖f(x) − f(x⁺)‖² of every pair, on the unit sphere: 0 for the same direction, 4 for opposite ones.

    Rows i of two (n, d) tensors of any length are a pair. The (n,) float64 distances have the mean ℓ_align, the smaller
    the better aligned.

    Source: COCO-DR, appendix H; Wang and Isola, Understanding Contrastive Representation Learning through Alignment and
    Uniformity on the Hypersphere, 2020 (α = 2).
    """
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"pairs need two tensors of one shape (n, d), not {first.shape} and {second.shape}")
    return (F.normalize(first.double(), dim=1) - F.normalize(second.double(), dim=1)).square().sum(dim=1)


def uniformity(embeddings: Tensor, temperature: float = 2.0, block: int = 1024) -> float:
    """ℓ_uniform = log mean exp(−t ‖f(x) − f(y)‖²) over all pairs of different rows, on the unit sphere.

    0 where all texts have the same embedding, −4t where two are opposite; the smaller the more even. A row is not
    paired with itself, as in the authors' code: the mean estimates that over independent draws.

    Args:
        embeddings: (n, d) of any length; a ValueError where n is below 2.
        temperature: t (paper: 2).
        block: rows whose scores with all others are held at a time, so (block, n) float64 in memory.

    Source: COCO-DR, appendix H; Wang and Isola, 2020.
    """
    rows = len(embeddings)
    if embeddings.ndim != 2 or rows < 2:
        raise ValueError(f"uniformity needs at least two rows (n, d), not shape {tuple(embeddings.shape)}")
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
    """Means of one model on one corpus; intervals are bootstrap 95% intervals, None for a single value."""

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
        uniformity: ℓ_uniform, the mean of that of the first spans and that of the second ones, as in the authors' code:
            so no positive pair is among the pairs.
        losses: (m,) contrastive losses of m batches; what is left over is in none.
    """

    alignment: Doubles
    uniformity: float
    losses: Doubles

    def record(self) -> SpanRecord:
        distances, losses = self.alignment, self.losses
        alignment, loss = float(distances.mean()), float(losses.mean())
        return SpanRecord(alignment, interval(distances), self.uniformity, loss, interval(losses))

    def change(self, before: SpanMeasures, comparable: bool) -> SpanChange:
        """Differences to another model on the same pairs, in the same batches; of losses only if comparable."""
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
    batch_size: int,
    temperature: float = 2.0,
    encode_batch_size: int = 64,
    progress: bool = False,
) -> SpanMeasures:
    """Encode n pairs as documents, without masking or gradient, and measure; an InputError names a NaN or infinite one.

    Args:
        model: an encoder; the contrastive loss has its similarity, with scale 20 for cosine and 1 for dot product.
        batch_size: documents contrasted with each other; all of them where there are fewer.
        temperature: of uniformity.

    Source: COCO-DR, Eq. 1 and appendix H.
    """
    first, second = (
        _encode(model, texts, pairs.ids, encode_batch_size, progress) for texts in (pairs.first, pairs.second)
    )
    return SpanMeasures(
        alignment(first, second).numpy(),
        (uniformity(first, temperature) + uniformity(second, temperature)) / 2,
        _losses(first, second, batch_size, COCOLoss(model)),
    )


def _encode(model: Any, texts: list[str], ids: list[str], batch_size: int, progress: bool) -> Tensor:
    encoded = model.encode_document(
        texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=progress and in_place()
    )
    vectors: Tensor = encoded.detach().float().cpu()
    wrong = torch.nonzero(~vectors.isfinite().all(dim=1)).flatten().tolist()
    if wrong:
        named = listed([repr(ids[row]) for row in wrong])
        raise InputError(
            f"NaN or infinite embeddings of spans of documents {named}: look at their "
            "texts, and encode in float32 if the model runs in half precision"
        )
    return vectors


def _losses(first: Tensor, second: Tensor, batch_size: int, loss: COCOLoss) -> Doubles:
    spans = torch.stack([first, second], dim=1).double()  # (n, 2, d)
    size = min(batch_size, len(spans))
    batches = [spans[start : start + size] for start in range(0, len(spans) - size + 1, size)]
    losses = [coco_contrastive_loss(batch.flatten(0, 1), loss.scale, loss.normalize).item() for batch in batches]
    return np.array(losses)
