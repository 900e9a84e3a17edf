"""FAISS's own indexes, made and trained."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.index.layout import Layout, Matrix
from beir_cocodr.retrieval.index.options import FaissOptions

# What its GPU code takes for top_k.
GPU_DEPTH = 2_048

logger = logging.getLogger(__name__)


def import_faiss() -> Any:
    """FAISS itself.

    Raises:
        InputError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            "approximate search needs FAISS: pip install 'beir-cocodr[faiss-cpu]', or [faiss-gpu] where "
            "there is a GPU"
        ) from error
    return faiss


def new_index(options: FaissOptions, layout: Layout, sample: Matrix) -> Any:
    """An index that vectors can be added to.

    Args:
        options: fitted to the corpus.
        layout: of its vectors.
        sample: (n, width) to train on: for "sq8" the least and the largest values in two rows, for "ivfpq" a
            sample of the corpus. Nothing else is trained.
    """
    faiss = import_faiss()
    if options.kind == "flat":
        return faiss.IndexFlatIP(layout.width)
    if options.kind == "hnsw":
        metric = faiss.METRIC_L2 if options.reduction else faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexHNSWFlat(layout.width, options.hnsw_m, metric)
        index.hnsw.efConstruction = options.ef_construction
        return index
    if options.kind == "sq8":
        quantizer = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexScalarQuantizer(layout.width, quantizer, faiss.METRIC_INNER_PRODUCT)
    else:
        index = _ivfpq(faiss, options, layout)
    index.train(sample)
    return index


def _ivfpq(faiss: Any, options: FaissOptions, layout: Layout) -> Any:
    # Lists of documents that are near each other; by inner product long documents would draw all to them.
    lists = faiss.IndexFlatL2(layout.width)
    metric = faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexIVFPQ(lists, layout.width, options.nlist, options.pq_m, options.pq_bits, metric)
    index.cp.spherical = False
    for clustering in (index.cp, index.pq.cp):
        clustering.seed = options.seed % 2**31
        clustering.min_points_per_centroid = 1  # below it, faiss writes a warning past Python's stderr
    return index


def read_lists_by_inner_product(index: Any) -> None:
    """Once everything is in an "ivfpq" index: a query reads the lists whose mean document it scores best."""
    faiss = import_faiss()
    means = faiss.IndexFlatIP(index.d)
    means.add(index.quantizer.reconstruct_n(0, index.nlist))
    index.quantizer = means
    means.this.disown()
    index.own_fields = True


def ranges(blocks: Iterable[Matrix]) -> Matrix:
    """(2, width): the least and the largest value of every dimension."""
    least, largest = None, None
    for block in blocks:
        low, high = block.min(axis=0), block.max(axis=0)
        least = low if least is None else np.minimum(least, low)
        largest = high if largest is None else np.maximum(largest, high)
    assert least is not None
    assert largest is not None
    return np.stack([least, largest])


def on_gpu(index: Any, kind: str) -> Any:
    """A copy on the first GPU, where FAISS finds one and has this kind there; else the index itself."""
    faiss = import_faiss()
    if kind not in ("flat", "ivfpq") or faiss.get_num_gpus() == 0:
        return index
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    except RuntimeError as error:  # faiss's GPU code knows few widths and numbers of codes
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        logger.warning("the %s index stays on the CPU, FAISS's GPU code does not take it: %s", kind, reason)
        return index
