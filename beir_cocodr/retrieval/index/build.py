"""A FAISS index filled with the vectors of a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.index.files import IndexParts
from beir_cocodr.retrieval.index.kinds import import_faiss, new_index, ranges, read_lists_by_inner_product
from beir_cocodr.retrieval.index.layout import Layout, Matrix
from beir_cocodr.retrieval.index.options import QUANTISED, FaissOptions
from beir_cocodr.retrieval.index.transform import VectorTransform, documents_as_queries, fit_transform
from beir_cocodr.retrieval.index.vectors import (
    Survey,
    Vectors,
    blocks,
    changed,
    sample_rows,
    survey,
    take,
)
from beir_cocodr.retrieval.topk import NonFiniteScores

# Documents that stand in for queries, and documents decoded at a time.
_SAMPLE = 10_000


def build_parts(
    vectors: Vectors,
    options: FaissOptions,
    queries: npt.NDArray[Any] | None,
    key: Mapping[str, Any] | None,
) -> tuple[IndexParts, npt.NDArray[Any]]:
    """The index, nothing measured, and (n, w) queries to measure it with: those given, or stand-ins."""
    faiss = import_faiss()
    found = survey(vectors)
    options = options.fitted(found.count, found.width)
    sample = _stand_ins(vectors, options, found) if queries is None else check_queries(queries, found.width)
    transform = fit_transform(options.transform, found.mean, sample)
    layout, index = _prepared(vectors, options, transform, found)
    remainders = _filled(index, vectors, options, transform, layout, found)
    record = {"key": dict(key or {}), "recall": None, "faiss": faiss.__version__}
    return IndexParts(index, transform, layout, options, remainders, record), sample


def check_queries(queries: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """(Q, w) as an array, Q > 0, finite.

    Raises:
        InputError: another shape, or none.
        NonFiniteScores: NaN or infinite values; names rows.
    """
    array = np.asarray(queries)
    if array.ndim != 2 or array.shape[1] != width:
        raise InputError(f"queries are of shape {array.shape}, this index needs (Q, {width})")
    if not len(array):
        raise InputError("there are no queries to search for")
    if len(wrong := np.flatnonzero(~np.isfinite(array).all(axis=1))):
        raise NonFiniteScores([], wrong.tolist())
    return array


def _prepared(
    vectors: Vectors, options: FaissOptions, transform: VectorTransform, found: Survey
) -> tuple[Layout, Any]:
    """Layout and trained index, empty still."""
    longest = None
    if options.kind == "hnsw" and options.reduction:
        longest = max(float((part**2).sum(axis=1).max()) for part in _transformed(vectors, transform))
    layout = Layout.of(options, found.width, longest)
    sample = np.empty((0, layout.width), np.float32)
    if options.kind == "sq8":
        sample = ranges(layout.documents(part) for part in _transformed(vectors, transform))
    if options.kind == "ivfpq":
        drawn = take(vectors, sample_rows(found.count, options.train_size, options.seed), found.count)
        sample = np.concatenate([layout.documents(part) for part in _transformed(drawn, transform)])
    return layout, new_index(options, layout, sample)


def _filled(
    index: Any,
    vectors: Vectors,
    options: FaissOptions,
    transform: VectorTransform,
    layout: Layout,
    found: Survey,
) -> Matrix | None:
    """Add everything; (N,) what codes lose of MRL's prior, for kinds that quantise."""
    keeps = options.kind in QUANTISED and options.transform == "folding"
    priors = []
    for part in _transformed(vectors, transform):
        placed = layout.documents(part)
        index.add(placed)
        if keeps:
            priors.append(placed[:, 0].copy())
    if index.ntotal != found.count:
        raise changed(index.ntotal, found.count)
    if options.kind == "ivfpq":
        read_lists_by_inner_product(index)
    return _lost(index, np.concatenate(priors)) if keeps else None


def _lost(index: Any, priors: Matrix) -> Matrix:
    """(N,) priors less what their codes say."""
    faiss = import_faiss()
    lists = isinstance(index, faiss.IndexIVF)
    if lists:
        index.make_direct_map()
    for start in range(0, len(priors), _SAMPLE):
        part = priors[start : start + _SAMPLE]
        part -= index.reconstruct_n(start, len(part))[:, 0]
    if lists:
        index.set_direct_map_type(faiss.DirectMap.NoMap)
    return priors


def _transformed(vectors: Vectors, transform: VectorTransform) -> Iterator[npt.NDArray[np.float64]]:
    return (transform.transform_documents(block, np.float64) for block in blocks(vectors))


def _stand_ins(vectors: Vectors, options: FaissOptions, found: Survey) -> npt.NDArray[Any]:
    """A sample of documents, as queries; none where nobody needs them."""
    if options.transform != "folding" and not options.recall_queries:
        return np.empty((0, found.width))
    documents = take(vectors, sample_rows(found.count, _SAMPLE, options.seed), found.count)
    return documents_as_queries(documents) if options.transform == "folding" else documents
