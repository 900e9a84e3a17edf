"""A seeded sample of the pairs that COCO contrasts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.spans import span_ranges
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.data.views import SpannedText, span_pair
from beir_cocodr.errors import InputError

_BLOCK = 256


@dataclass(frozen=True)
class SpanPairs:
    """Two different spans of each of n documents.

    Attributes:
        ids: (n,) of the documents, in the order in which they were drawn.
        first, second: (n,) texts.
        too_short: documents that were drawn too, but have no two spans.
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
    """Draw documents at random, without replacement, until ``size`` of them have two spans.

    Args:
        documents: the corpus; only what is drawn is read.
        tokenizer: counts the tokens of spans.
        text_format: joins titles and texts.
        size: the most documents; a corpus that has fewer gives them all.
        seed: of the documents and of the spans. The spans of a document depend on nothing but the seed and
            its row.
        span_tokens, flush_probability: see :func:`~beir_cocodr.data.spans.split_spans`; the defaults are
            those of pre-training.

    Raises:
        InputError: fewer than two documents have two spans.

    Source: COCO-DR, section 4.1.
    """
    ids: list[str] = []
    first: list[str] = []
    second: list[str] = []
    too_short = 0
    for id, pair in _drawn(documents, tokenizer, text_format, seed, span_tokens, flush_probability):
        if pair is None:
            too_short += 1
            continue
        ids.append(id)
        first.append(pair[0])
        second.append(pair[1])
        if len(ids) == size:
            break
    if len(ids) < 2:
        raise InputError(
            f"{len(ids)} of {len(documents)} documents have more than {span_tokens} tokens, and so two "
            "spans; lower --span-tokens, or give a corpus of longer texts"
        )
    return SpanPairs(ids, first, second, too_short)


def _drawn(
    documents: Documents,
    tokenizer: Any,
    text_format: TextFormat,
    seed: int,
    span_tokens: int,
    flush_probability: float,
) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """All documents in random order, each with a pair of its spans, None where it has no two."""
    order = np.random.default_rng(seed).permutation(len(documents))
    for start in range(0, len(order), _BLOCK):
        rows = order[start : start + _BLOCK]
        block = documents.take(rows)
        texts = [text_format.document(document) for document in block]
        tokens = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for row, document, text, offsets in zip(
            rows.tolist(), block, texts, tokens["offset_mapping"], strict=True
        ):
            if len(offsets) <= span_tokens:  # what is longer has two spans
                yield document["_id"], None
                continue
            rng = np.random.default_rng((seed, row))
            ranges = span_ranges(text, offsets, span_tokens, flush_probability, rng)
            yield document["_id"], span_pair(SpannedText(text, offsets, ranges, span_tokens), rng)
