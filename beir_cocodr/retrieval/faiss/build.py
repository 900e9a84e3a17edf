"""Training, filling, writing and reading of FAISS indexes of every kind."""

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
from beir_cocodr.retrieval.store.embeddings import Embeddings, MemoryEmbeddings
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores, as_matrix
from beir_cocodr.same_run import check_same_run

logger = logging.getLogger(__name__)

#: Embeddings, or an (N, w) array of any floating type, memory-mapped or not.
Vectors = Embeddings | Array

#: The largest top_k that FAISS's GPU code takes.
GPU_DEPTH = 2_048

# Vectors handled at a time: 50 MiB in float64 at 768 dimensions.
_BLOCK = 8_192

# The most documents that replace queries, and documents decoded at a time.
_SAMPLE = 10_000

SETTINGS = "settings.json"
INDEX = "index.faiss"
TRANSFORM = "transform.safetensors"
REMAINDERS = "prior.npy"

_FORMAT = 1
_FIELDS = {
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
_CLASSES = {
    "flat": "IndexFlat",
    "hnsw": "IndexHNSWFlat",
    "ivfpq": "IndexIVFPQ",
    "sq8": "IndexScalarQuantizer",
}


@dataclass(frozen=True, eq=False)
class IndexParts:
    """The parts of an index.

    Args:
        index: FAISS's own index.
        transform: the transform of the vectors in it.
        layout: the layout of the vectors in it.
        options: the settings that it was built with, all numbers chosen.
        remainders: (N,) float32, the part of MRL's folded prior that the codes lose; None if no
            codes lose any.
        record: ``key``, ``recall`` and the version of FAISS.
    """

    index: Any
    transform: Centring
    layout: Layout
    options: FaissOptions
    remainders: Floats | None
    record: dict[str, Any]


def import_faiss() -> Any:
    """Import FAISS.

    Raises:
        InputError: If FAISS is not installed.
    """
    way_out = "pip install 'beir-cocodr[faiss-cpu]', or [faiss-gpu] where there is a GPU"
    with explained("approximate search needs FAISS", way_out, ImportError):
        import faiss
    return faiss


def on_device(index: Any, kind: str, device: str | None) -> Any:
    """Return a copy of an index on GPUs, or the index itself where the CPU searches it.

    A line of the log says so when the CPU searches although GPUs were meant.

    Args:
        index: FAISS's index.
        kind: its kind.
        device: "cpu"; "cuda" or None for all GPUs, over which the vectors are divided; or one of
            them, such as "cuda:1".

    Raises:
        InputError: There is no GPU of the number.
    """
    faiss = import_faiss()
    gpus: int = faiss.get_num_gpus()
    if device is not None and not device.startswith("cuda"):
        return index
    if not gpus:
        _log_missing_gpu(device)
        return index
    number = _gpu_number(device, gpus)
    if kind not in ("flat", "ivfpq"):
        logger.info("FAISS has no GPU code for %s indexes, so the CPU searches this one", kind)
        return index
    try:
        if number is None and gpus > 1:
            options = faiss.GpuMultipleClonerOptions()
            options.shard = True
            return faiss.index_cpu_to_all_gpus(index, co=options)
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number or 0, index)
    except RuntimeError as error:  # FAISS's GPU code knows few widths and numbers of codes
        logger.warning(
            "the %s index stays on the CPU, because FAISS's GPU code does not support it: %s",
            kind,
            first_line(error),
        )
        return index


def _gpu_number(device: str | None, gpus: int) -> int | None:
    """Return the number of a named GPU, or None for all."""
    if device is None or ":" not in device:
        return None
    number = int(device.split(":")[1])
    if number >= gpus:
        raise InputError(f"FAISS finds {gpus} GPUs, so there is no {device}; name a lower number")
    return number


def _log_missing_gpu(device: str | None) -> None:
    """Say that FAISS has no GPU, where there is one."""
    import torch

    if device is not None or torch.cuda.is_available():
        logger.warning(
            "the CPU searches the index, because this FAISS finds no GPU; to use one, pip install "
            "'beir-cocodr[faiss-gpu]'"
        )


def warn_of_depth(depth: int) -> None:
    """Say that a search is too deep for FAISS's GPU code."""
    logger.warning(
        "the CPU searches the index for %d candidates of each query, because FAISS's GPU code "
        "allows at most %d; lower top_k or over_fetch",
        depth,
        GPU_DEPTH,
    )


def as_embeddings(vectors: Vectors) -> Embeddings:
    """Return two-dimensional arrays as embeddings, without a copy."""
    if isinstance(vectors, Embeddings):
        return vectors
    return MemoryEmbeddings(as_matrix(vectors, "vectors"))


def blocks(vectors: Embeddings) -> Iterator[Array]:
    """Yield the corpus in blocks of one size, so that an index depends only on its rows."""
    for block in vectors.blocks(_BLOCK):
        yield block.numpy()


def sample_rows(count: int, most: int, seed: int) -> Ints:
    """Draw ``most`` of ``count`` rows without replacement, or take all; in ascending order."""
    drawn = np.random.default_rng(seed).choice(count, min(count, most), replace=False)
    return np.sort(drawn)


def check_queries(queries: Array, width: int) -> Array:
    """Return queries as a (Q, w) array.

    Raises:
        InputError: If the shape does not fit, or there are no queries.
        NonFiniteScores: If queries are NaN or infinite. It names their rows.
    """
    array = np.asarray(queries)
    if array.ndim != 2 or array.shape[1] != width:
        raise InputError(f"queries have the shape {array.shape}, but this index needs (Q, {width})")
    if not len(array):
        raise InputError("there are no queries to search for; give at least one")
    wrong = non_finite_rows(array)
    if len(wrong):
        raise NonFiniteScores([], wrong.tolist())
    return array


def build_parts(
    vectors: Embeddings,
    options: FaissOptions,
    queries: Array | None,
    key: Mapping[str, object] | None,
) -> tuple[IndexParts, Array]:
    """Build an index without measuring it.

    Returns:
        The parts, and (n, w) queries to measure recall with: those given, or documents in their
        place.
    """
    faiss = import_faiss()
    mean = _checked_mean(vectors)
    options = options.fitted(len(vectors), vectors.dimensions)
    if queries is None:
        sample = _documents_in_place_of_queries(vectors, options)
    else:
        sample = check_queries(queries, vectors.dimensions)
    transform = _fitted_transform(options, mean, sample)
    layout = _layout(vectors, options, transform)
    index = _trained_index(vectors, options, transform, layout)
    remainders = _fill(index, vectors, options, transform, layout)
    record = {"key": dict(key or {}), "recall": None, "faiss": faiss.__version__}
    return IndexParts(index, transform, layout, options, remainders, record), sample


def _checked_mean(vectors: Embeddings) -> Doubles:
    """Return the (w,) mean of all vectors, and check that they are finite."""
    total = np.zeros(vectors.dimensions)
    count = 0
    for block in blocks(vectors):
        wrong = non_finite_rows(block)
        if len(wrong):
            raise NonFiniteScores((count + wrong).tolist(), [])
        total += block.sum(axis=0, dtype=np.float64)
        count += len(block)
    if not count:
        raise InputError("there are no vectors to index; encode the corpus first")
    return total / count


def _documents_in_place_of_queries(vectors: Embeddings, options: FaissOptions) -> Array:
    """Return a sample of documents as queries, or none where they would not be used."""
    if options.transform != "folding" and not options.recall_queries:
        return np.empty((0, vectors.dimensions))
    documents = vectors.rows(sample_rows(len(vectors), _SAMPLE, options.seed)).numpy()
    if options.transform == "folding":
        return documents_as_queries(documents)
    return documents


def _fitted_transform(options: FaissOptions, mean: Doubles, queries: Array) -> Centring:
    if options.transform == "folding":
        # Folding is linear: of the mean document it gives the mean of the folded documents.
        return Folding.fit(queries, mean[None])
    if options.transform == "centring":
        return Centring(mean)
    return Centring(np.zeros_like(mean))


def _transformed(vectors: Embeddings, transform: Centring) -> Iterator[Doubles]:
    for block in blocks(vectors):
        yield transform.transform_documents(block, np.float64)


def _layout(vectors: Embeddings, options: FaissOptions, transform: Centring) -> Layout:
    longest = None
    if options.kind == "hnsw" and options.reduction:
        longest = 0.0
        for part in _transformed(vectors, transform):
            longest = max(longest, float((part**2).sum(axis=1).max()))
    return Layout.of(options, vectors.dimensions, longest)


def _trained_index(
    vectors: Embeddings, options: FaissOptions, transform: Centring, layout: Layout
) -> Any:
    """Return an index that is trained and empty."""
    if options.kind == "flat":
        return import_faiss().IndexFlatIP(layout.width)
    if options.kind == "hnsw":
        return _new_graph(options, layout)
    if options.kind == "sq8":
        index = _new_scalar_quantiser(layout)
        index.train(_extremes(vectors, transform, layout))
        return index
    index = _new_product_quantiser(options, layout)
    rows = sample_rows(len(vectors), options.train_size, options.seed)
    parts = _transformed(vectors.select(rows), transform)
    index.train(np.concatenate([layout.documents(part) for part in parts]))
    return index


def _new_graph(options: FaissOptions, layout: Layout) -> Any:
    faiss = import_faiss()
    metric = faiss.METRIC_L2 if options.reduction else faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexHNSWFlat(layout.width, options.hnsw_m, metric)
    index.hnsw.efConstruction = options.ef_construction
    return index


def _new_scalar_quantiser(layout: Layout) -> Any:
    faiss = import_faiss()
    return faiss.IndexScalarQuantizer(
        layout.width, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )


def _extremes(vectors: Embeddings, transform: Centring, layout: Layout) -> Floats:
    """Return the (2, width) smallest and largest numbers of each dimension."""
    smallest = np.full(layout.width, np.inf, np.float32)
    largest = np.full(layout.width, -np.inf, np.float32)
    for part in _transformed(vectors, transform):
        placed = layout.documents(part)
        np.minimum(smallest, placed.min(axis=0), out=smallest)
        np.maximum(largest, placed.max(axis=0), out=largest)
    return np.stack([smallest, largest])


def _new_product_quantiser(options: FaissOptions, layout: Layout) -> Any:
    faiss = import_faiss()
    # Lists hold documents that are near each other. By inner product, long documents would draw all
    # others to them.
    lists = faiss.IndexFlatL2(layout.width)
    index = faiss.IndexIVFPQ(
        lists,
        layout.width,
        options.nlist,
        options.pq_m,
        options.pq_bits,
        faiss.METRIC_INNER_PRODUCT,
    )
    index.cp.spherical = False
    for clustering in (index.cp, index.pq.cp):
        clustering.seed = options.seed % 2**31
        # Below this number FAISS writes a warning past Python's stderr.
        clustering.min_points_per_centroid = 1
    return index


def _fill(
    index: Any, vectors: Embeddings, options: FaissOptions, transform: Centring, layout: Layout
) -> Floats | None:
    """Add all vectors; return the (N,) part of MRL's prior that the codes lose, if there is one."""
    loses_prior = options.kind in QUANTISED and options.transform == "folding"
    priors = []
    for part in _transformed(vectors, transform):
        placed = layout.documents(part)
        index.add(placed)
        if loses_prior:
            priors.append(placed[:, 0].copy())
    if options.kind == "ivfpq":
        _read_lists_by_inner_product(index)
    if loses_prior:
        return _lost_priors(index, np.concatenate(priors))
    return None


def _read_lists_by_inner_product(index: Any) -> None:
    """Let a query read the lists whose mean document it scores best.

    The index, of kind "ivfpq", must already hold all documents.
    """
    faiss = import_faiss()
    means = faiss.IndexFlatIP(index.d)
    means.add(index.quantizer.reconstruct_n(0, index.nlist))
    index.quantizer = means
    means.this.disown()
    index.own_fields = True


def _lost_priors(index: Any, priors: Floats) -> Floats:
    """Return (N,) priors less what their codes hold."""
    faiss = import_faiss()
    has_lists = isinstance(index, faiss.IndexIVF)
    if has_lists:
        index.make_direct_map()
    for start in range(0, len(priors), _SAMPLE):
        part = priors[start : start + _SAMPLE]
        part -= index.reconstruct_n(start, len(part))[:, 0]
    if has_lists:
        index.set_direct_map_type(faiss.DirectMap.NoMap)
    return priors


def write_parts(folder: Path, parts: IndexParts) -> None:
    """Write an index to a new folder, or in place of an index, which stays whole until then.

    Raises:
        InputError: If the folder holds something else, or cannot be written.
    """
    replaceable = folder.is_dir() and ((folder / SETTINGS).is_file() or not any(folder.iterdir()))
    if folder.exists() and not replaceable:
        raise InputError(
            f"{folder} already exists and is not an index; nothing was written: choose another "
            "folder"
        )
    try:
        with draft_folder(folder, replace=True) as draft:
            _write_files(draft, parts)
    except DiskFull:
        raise
    except (OSError, RuntimeError) as error:  # FAISS reports a failed write as a RuntimeError
        raise InputError(
            f"{folder} cannot be written: {first_line(error)}; choose another folder"
        ) from error


def _write_files(folder: Path, parts: IndexParts) -> None:
    faiss = import_faiss()
    settings = {
        "format": _FORMAT,
        "count": int(parts.index.ntotal),
        "width": parts.layout.dimensions,
        "options": asdict(parts.options),
        "layout": asdict(parts.layout),
        "prior_apart": parts.remainders is not None,
        **parts.record,
    }
    # On a full disk FAISS itself would also write to stderr, so Python writes the file.
    with (folder / INDEX).open("wb") as file:
        faiss.write_index(parts.index, faiss.PyCallbackIOWriter(file.write))
    parts.transform.save(folder / TRANSFORM)
    if parts.remainders is not None:
        np.save(folder / REMAINDERS, parts.remainders)
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
    checksums.add_checksums(folder, [path.name for path in folder.iterdir()])


def read_parts(
    folder: Path, key: Mapping[str, object] | None = None, verify: bool = True
) -> IndexParts:
    """Read an index that :func:`write_parts` wrote.

    Args:
        folder: the folder of the index.
        key: values that the saved key must have.
        verify: compare the files with their checksums.

    Raises:
        InputError: If there is no index, it is damaged, or its key differs.
    """
    if verify:
        _verify_files(folder)
    settings = _read_settings(folder)
    _check_key(folder, settings["key"], key or {})
    faiss = import_faiss()
    kinds = (OSError, RuntimeError, TypeError, ValueError)
    with explained(f"the index in {folder} cannot be read", "build it again", *kinds):
        options = FaissOptions(**settings["options"])
        layout = Layout(**settings["layout"])
        index = faiss.read_index(str(folder / INDEX))
        remainders = None
        if settings["prior_apart"]:
            remainders = np.load(folder / REMAINDERS)
    transform_class = Folding if options.transform == "folding" else Centring
    transform = transform_class.load(folder / TRANSFORM)
    record = {name: settings[name] for name in ("key", "recall", "faiss")}
    parts = IndexParts(index, transform, layout, options, remainders, record)
    _check_parts(folder, parts, settings["count"], settings["width"])
    return parts


def _verify_files(folder: Path) -> None:
    way_out = "delete the folder of this index, and the next search builds it again"
    for name in (SETTINGS, INDEX, TRANSFORM, REMAINDERS):
        if (folder / name).exists():
            checksums.verify(folder / name, way_out)


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        settings = parse_json(path.read_text())
        if settings["format"] != _FORMAT or not set(settings) >= _FIELDS:
            raise KeyError("format")
    except OSError as error:
        raise InputError(
            f"there is no index in {folder} ({path.name}: {error.strerror}); build one there"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} does not belong to an index of this version; build the index again"
        ) from error
    return dict(settings)


def _check_key(
    folder: Path,
    saved: Mapping[str, object],
    wanted: Mapping[str, object],
) -> None:
    comparable = {name: saved.get(name) for name in wanted}
    check_same_run(f"the index in {folder}", comparable, wanted, "build it again")


def _check_parts(
    folder: Path,
    parts: IndexParts,
    count: int,
    width: int,
) -> None:
    """Check that the files of an index belong together."""
    class_name = type(parts.index).__name__.removesuffix("IP")
    priors = count
    if parts.remainders is not None:
        priors = len(parts.remainders)
    values_and_expected = {
        "kind": (class_name, _CLASSES[parts.options.kind]),
        "documents": (parts.index.ntotal, count),
        "dimensions of the index": (parts.index.d, parts.layout.width),
        "dimensions": (parts.layout.dimensions, width),
        "dimensions of the transform": (len(parts.transform.document_mean), width),
        "priors": (priors, count),
    }
    for name, (value, expected) in values_and_expected.items():
        if value != expected:
            raise InputError(
                f"the files in {folder} do not belong together, {name}: {value} instead of "
                f"{expected}; build the index again"
            )
