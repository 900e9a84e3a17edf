"""A FAISS index of each kind: trained and filled with the vectors of a corpus, written to a folder
and read back.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr import checksums
from beir_cocodr.arrays import Array, Doubles, Floats, Ints, non_finite_rows
from beir_cocodr.errors import DiskFull, InputError, explained, first_line
from beir_cocodr.io import draft_folder, parse_json
from beir_cocodr.models.folding import Centring, Folding
from beir_cocodr.retrieval.faiss.transform import (
    QUANTISED,
    FaissOptions,
    Layout,
    documents_as_queries,
)
from beir_cocodr.retrieval.store.store import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.topk import NonFiniteScores, as_matrix

#: Embeddings, or an (N, w) array of any floating type, memory-mapped or not.
Vectors = Embeddings | Array

# What FAISS's GPU code takes for top_k.
GPU_DEPTH = 2_048

# Vectors handled at a time: 50 MiB in float64 where there are 768 dimensions.
_BLOCK = 8_192

# Documents that stand in for queries, and documents decoded at a time.
_SAMPLE = 10_000
SETTINGS, INDEX, TRANSFORM, REMAINDERS = (
    "settings.json",
    "index.faiss",
    "transform.safetensors",
    "prior.npy",
)
_FORMAT = 1
_CLASSES = {
    "flat": "IndexFlat",
    "hnsw": "IndexHNSWFlat",
    "ivfpq": "IndexIVFPQ",
    "sq8": "IndexScalarQuantizer",
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class IndexParts:
    """What an index is made of.

    Args:
        index: FAISS's own.
        transform, layout: what was done to the vectors in it.
        options: it was built with.
        remainders: (N,) float32, what its codes lack of MRL's folded prior; None where they do not.
        record: ``key``, ``recall`` and the version of FAISS.
    """

    index: Any
    transform: Centring
    layout: Layout
    options: FaissOptions
    remainders: Floats | None
    record: dict[str, Any]


def import_faiss() -> Any:
    """FAISS itself; an InputError where it is not installed."""
    way_out = "pip install 'beir-cocodr[faiss-cpu]', or [faiss-gpu] where there is a GPU"
    with explained("approximate search needs FAISS", way_out, ImportError):
        import faiss
    return faiss


def _new_index(options: FaissOptions, layout: Layout, sample: Floats) -> Any:
    """An index that vectors can be added to; "sq8" and "ivfpq" are trained on (n, width)
    vectors.
    """
    faiss = import_faiss()
    if options.kind == "flat":
        return faiss.IndexFlatIP(layout.width)
    if options.kind == "hnsw":
        metric = faiss.METRIC_L2 if options.reduction else faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexHNSWFlat(layout.width, options.hnsw_m, metric)
        index.hnsw.efConstruction = options.ef_construction
        return index
    metric = faiss.METRIC_INNER_PRODUCT
    if options.kind == "sq8":
        index = faiss.IndexScalarQuantizer(layout.width, faiss.ScalarQuantizer.QT_8bit, metric)
    else:
        # Lists of documents that are near each other; by inner product long documents would draw
        # all to them.
        lists = faiss.IndexFlatL2(layout.width)
        index = faiss.IndexIVFPQ(
            lists, layout.width, options.nlist, options.pq_m, options.pq_bits, metric
        )
        index.cp.spherical = False
        for clustering in (index.cp, index.pq.cp):
            clustering.seed = options.seed % 2**31
            clustering.min_points_per_centroid = (
                1  # below it, faiss writes a warning past Python's stderr
            )
    index.train(sample)
    return index


def _read_lists_by_inner_product(faiss: Any, index: Any) -> None:
    """Once everything is in an "ivfpq" index: a query reads the lists whose mean document it scores
    best.
    """
    means = faiss.IndexFlatIP(index.d)
    means.add(index.quantizer.reconstruct_n(0, index.nlist))
    index.quantizer = means
    means.this.disown()
    index.own_fields = True


def on_gpu(index: Any, kind: str) -> Any:
    """A copy on the first GPU, where FAISS finds one and has this kind there; else the index
    itself.
    """
    faiss = import_faiss()
    if kind not in ("flat", "ivfpq") or faiss.get_num_gpus() == 0:
        return index
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    except RuntimeError as error:  # faiss's GPU code knows few widths and numbers of codes
        logger.warning(
            "the %s index stays on the CPU, FAISS's GPU code does not take it: %s",
            kind,
            first_line(error),
        )
        return index


def as_embeddings(vectors: Vectors) -> Embeddings:
    """Arrays as embeddings too, not copied; they have to be two-dimensional."""
    return (
        vectors
        if isinstance(vectors, Embeddings)
        else MemoryEmbeddings(as_matrix(vectors, "vectors"))
    )


def blocks(vectors: Embeddings) -> Iterator[Array]:
    """The corpus in blocks of one size, whatever its shards: what is built from it depends only on
    its rows.
    """
    return (block.numpy() for block in vectors.blocks(_BLOCK))


def sample_rows(count: int, most: int, seed: int) -> Ints:
    """Ascending rows, drawn without replacement; all of them where there are no more than
    ``most``.
    """
    return np.sort(np.random.default_rng(seed).choice(count, min(count, most), replace=False))


def build_parts(
    vectors: Embeddings, options: FaissOptions, queries: Array | None, key: Mapping[str, Any] | None
) -> tuple[IndexParts, Array]:
    """The index, nothing measured, and (n, w) queries to measure it with: those given, or
    stand-ins.
    """
    faiss = import_faiss()
    mean = _mean(vectors)
    options = options.fitted(len(vectors), vectors.dimensions)
    sample = (
        _stand_ins(vectors, options)
        if queries is None
        else check_queries(queries, vectors.dimensions)
    )
    transform: Centring
    if options.transform == "folding":
        transform = Folding.fit(
            sample, mean[None]
        )  # folding is linear: of the mean, it gives the mean
    else:
        transform = Centring(mean if options.transform == "centring" else np.zeros_like(mean))
    layout, index = _trained(vectors, options, transform)
    remainders = _fill(index, vectors, options, transform, layout)
    record = {"key": dict(key or {}), "recall": None, "faiss": faiss.__version__}
    return IndexParts(index, transform, layout, options, remainders, record), sample


def _mean(vectors: Embeddings) -> Doubles:
    """(w,), and a check of all vectors."""
    total, count = np.zeros(vectors.dimensions), 0
    for block in blocks(vectors):
        if len(wrong := non_finite_rows(block)):
            raise NonFiniteScores((count + wrong).tolist(), [])
        total += block.sum(axis=0, dtype=np.float64)
        count += len(block)
    if not count:
        raise InputError("there are no vectors to index")
    return total / count


def check_queries(queries: Array, width: int) -> Array:
    """(Q, w) as an array, Q > 0, else an InputError; NonFiniteScores names rows with NaN or
    infinite values.
    """
    array = np.asarray(queries)
    if array.ndim != 2 or array.shape[1] != width:
        raise InputError(f"queries are of shape {array.shape}, this index needs (Q, {width})")
    if not len(array):
        raise InputError("there are no queries to search for")
    if len(wrong := non_finite_rows(array)):
        raise NonFiniteScores([], wrong.tolist())
    return array


def _trained(vectors: Embeddings, options: FaissOptions, transform: Centring) -> tuple[Layout, Any]:
    """Layout and trained index, empty still."""
    longest = None
    if options.kind == "hnsw" and options.reduction:
        longest = max(
            float((part**2).sum(axis=1).max()) for part in _transformed(vectors, transform)
        )
    layout = Layout.of(options, vectors.dimensions, longest)
    sample = np.empty((0, layout.width), np.float32)
    if options.kind == "sq8":
        placed = (layout.documents(part) for part in _transformed(vectors, transform))
        least, largest = zip(
            *((part.min(axis=0), part.max(axis=0)) for part in placed), strict=True
        )
        sample = np.stack([np.min(least, axis=0), np.max(largest, axis=0)])
    if options.kind == "ivfpq":
        drawn = vectors.select(sample_rows(len(vectors), options.train_size, options.seed))
        sample = np.concatenate([layout.documents(part) for part in _transformed(drawn, transform)])
    return layout, _new_index(options, layout, sample)


def _fill(
    index: Any, vectors: Embeddings, options: FaissOptions, transform: Centring, layout: Layout
) -> Floats | None:
    """Add everything; (N,) what codes lose of MRL's prior, for kinds that quantise."""
    keeps = options.kind in QUANTISED and options.transform == "folding"
    priors = []
    for part in _transformed(vectors, transform):
        placed = layout.documents(part)
        index.add(placed)
        if keeps:
            priors.append(placed[:, 0].copy())
    if options.kind == "ivfpq":
        _read_lists_by_inner_product(import_faiss(), index)
    return _lost(index, np.concatenate(priors)) if keeps else None


def _lost(index: Any, priors: Floats) -> Floats:
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


def _transformed(vectors: Embeddings, transform: Centring) -> Iterator[Doubles]:
    return (transform.transform_documents(block, np.float64) for block in blocks(vectors))


def _stand_ins(vectors: Embeddings, options: FaissOptions) -> Array:
    """A sample of documents, as queries; none where nobody needs them."""
    if options.transform != "folding" and not options.recall_queries:
        return np.empty((0, vectors.dimensions))
    documents = vectors.rows(sample_rows(len(vectors), _SAMPLE, options.seed)).numpy()
    return documents_as_queries(documents) if options.transform == "folding" else documents


def write_parts(folder: Path, parts: IndexParts) -> None:
    """To a new folder, or in place of an index, which stays whole until the new one is."""
    replaceable = folder.is_dir() and ((folder / SETTINGS).is_file() or not any(folder.iterdir()))
    if folder.exists() and not replaceable:
        raise InputError(
            f"{folder} is there and is no index: choose another folder, nothing was written"
        )
    settings = {
        "format": _FORMAT,
        "count": int(parts.index.ntotal),
        "width": parts.layout.dimensions,
        "options": asdict(parts.options),
        "layout": asdict(parts.layout),
        "prior_apart": parts.remainders is not None,
        **parts.record,
    }
    try:
        with draft_folder(folder, replace=True) as draft:
            faiss = import_faiss()
            with (draft / INDEX).open(
                "wb"
            ) as file:  # on a full disk faiss itself would write to stderr, too
                faiss.write_index(parts.index, faiss.PyCallbackIOWriter(file.write))
            parts.transform.save(draft / TRANSFORM)
            if parts.remainders is not None:
                np.save(draft / REMAINDERS, parts.remainders)
            (draft / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
            checksums.add_checksums(draft, [path.name for path in draft.iterdir()])
    except DiskFull:
        raise
    except (OSError, RuntimeError) as error:  # faiss reports a failed write as a RuntimeError
        raise InputError(
            f"{folder} cannot be written: {first_line(error)}; choose another folder"
        ) from error


def read_parts(
    folder: Path, key: Mapping[str, Any] | None = None, verify: bool = True
) -> IndexParts:
    """What :func:`write_parts` wrote, if the values of its key are those of ``key``."""
    for path in (folder / name for name in (SETTINGS, INDEX, TRANSFORM, REMAINDERS) if verify):
        if path.exists():
            checksums.verify(
                path, "delete the folder of this index, and the next search builds it again"
            )
    settings = _settings(folder)
    saved = settings["key"]
    for name, value in (key or {}).items():
        if name not in saved or saved[name] != value:
            raise InputError(
                f"the index in {folder} is of {name} {saved.get(name)!r}, not {value!r}: build it again"
            )
    faiss = import_faiss()
    kinds = (OSError, RuntimeError, TypeError, ValueError)
    with explained(f"the index in {folder} cannot be read", "build it again", *kinds):
        options, layout = FaissOptions(**settings["options"]), Layout(**settings["layout"])
        index = faiss.read_index(str(folder / INDEX))
        remainders = np.load(folder / REMAINDERS) if settings["prior_apart"] else None
    transform = (Folding if options.transform == "folding" else Centring).load(folder / TRANSFORM)
    count, width = settings["count"], settings["width"]
    pairs = {
        "kind": (type(index).__name__.removesuffix("IP"), _CLASSES[options.kind]),
        "documents": (index.ntotal, count),
        "dimensions of the index": (index.d, layout.width),
        "dimensions": (layout.dimensions, width),
        "dimensions of the transform": (len(transform.document_mean), width),
        "priors": (count if remainders is None else len(remainders), count),
    }
    for what, (found, due) in pairs.items():
        if found != due:
            problem = (
                f"the files in {folder} do not belong together, {what}: {found} where {due} is due"
            )
            raise InputError(f"{problem}; build the index again")
    record = {name: settings[name] for name in ("key", "recall", "faiss")}
    return IndexParts(index, transform, layout, options, remainders, record)


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        settings = parse_json(path.read_text())
        known = {
            "format",
            "count",
            "width",
            "options",
            "layout",
            "prior_apart",
            "key",
            "recall",
            "faiss",
        }
        if settings["format"] != _FORMAT or not known <= set(settings):
            raise KeyError("format")
    except OSError as error:
        raise InputError(
            f"there is no index in {folder} ({path.name}: {error.strerror})"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not that of an index of this version: build the index again"
        ) from error
    return dict(settings)
