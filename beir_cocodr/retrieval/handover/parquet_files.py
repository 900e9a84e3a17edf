"""Points as parquet files, alone or with the configuration of a Qdrant collection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from beir_cocodr import checksums
from beir_cocodr.io import Json, write_text
from beir_cocodr.retrieval.handover.hand_over import HandedOver, WrittenFiles

if TYPE_CHECKING:
    from beir_cocodr.retrieval.handover.points import PointBlock, Points

#: The terms of BM25, by number, with the deviations of their weights.
TERMS_FILE = "terms.parquet"

#: BM25's weights of the terms in some documents, as scipy writes a sparse matrix.
SAMPLE_FILE = "sample.npz"

#: The (d,) mean and the (d, d) covariance of the vectors.
MEAN_FILE = "mean.npy"
COVARIANCE_FILE = "covariance.npy"

#: The request that creates a collection.
COLLECTION_FILE = "collection.json"

#: Settings by which compare and search ask the engine.
HTTP_FILE = "http.json"

# Documents of a file.
_BLOCK = 16_384


def write_parquet(folder: Path, handed: HandedOver) -> WrittenFiles:
    """Write all points, 16,384 of them to a file."""
    names = []
    if handed.with_vectors:
        for number, block in enumerate(handed.points.blocks(_BLOCK)):
            names.append(f"points-{number:05}.parquet")
            with checksums.checked_path(folder / names[-1]) as temporary:
                pq.write_table(_table(block), temporary, compression="zstd")
    return WrittenFiles(names)


def _table(block: PointBlock) -> pa.Table:
    """Return a block as a table; a fusion has the terms of a document as two lists."""
    count, width = block.vectors.shape
    columns: dict[str, object] = {
        "number": np.arange(block.first, block.first + count),
        "id": [document["_id"] for document in block.documents],
        "title": [document["title"] for document in block.documents],
        "text": [document["text"] for document in block.documents],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(block.vectors.ravel()), width),
    }
    if block.lexical is not None:
        offsets = pa.array(block.lexical.indptr, pa.int32())
        numbers = pa.array(block.lexical.indices, pa.int32())
        weights = pa.array(block.lexical.data, pa.float32())
        columns["term_numbers"] = pa.ListArray.from_arrays(offsets, numbers)
        columns["term_weights"] = pa.ListArray.from_arrays(offsets, weights)
    return pa.table(columns)


def write_qdrant(folder: Path, handed: HandedOver) -> WrittenFiles:
    """Write all points and the configuration of their collection.

    A fusion also has what its queries need: the terms, and the moments of the vectors.
    """
    record = handed.record
    is_fusion = record.bm25_weight is not None
    collection: Json = {"vectors": {"dense": {"size": record.dimensions, "distance": "Dot"}}}
    if is_fusion:
        collection["sparse_vectors"] = {"bm25": {}}
    write_text(folder / COLLECTION_FILE, json.dumps(collection, indent=2) + "\n")
    if is_fusion:
        _write_query_side(folder, handed.points)
    else:
        write_text(folder / HTTP_FILE, json.dumps(_http_settings(handed), indent=2) + "\n")
    return write_parquet(folder, handed)


def _write_query_side(folder: Path, points: Points) -> None:
    """Write what turns scores of a query into z-scores: moments of the vectors and of the terms."""
    moments = points.dense.moments
    checksums.save_array(folder / MEAN_FILE, moments.mean)
    checksums.save_array(folder / COVARIANCE_FILE, moments.covariance)
    terms = pa.table({"term": points.terms(), "deviation": points.term_deviations()})
    with checksums.checked_path(folder / TERMS_FILE) as temporary:
        pq.write_table(terms, temporary, compression="zstd")
    with checksums.checked_path(folder / SAMPLE_FILE) as temporary, temporary.open("wb") as out:
        sp.save_npz(out, points.sampled_term_weights())


def _http_settings(handed: HandedOver) -> Json:
    """Return the settings by which ``http:FILE`` searches the collection."""
    return {
        "preset": "qdrant",
        "url": f"http://localhost:6333/{handed.record.collection}",
        "body": {
            "query": "{vector}",
            "using": "dense",
            "limit": "{top_k}",
            "with_payload": ["id"],
        },
        **handed.record.http_encoder,
    }
