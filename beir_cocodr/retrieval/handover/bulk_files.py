"""Points as the JSON that OpenSearch and Weaviate load, with their own configuration.

The fusions of both normalise the scores of the documents that each search returns, and ours those
of all documents. The weights are the same; the rankings are similar, and not equal.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

from beir_cocodr import checksums
from beir_cocodr.arrays import Floats
from beir_cocodr.errors import InputError
from beir_cocodr.io import Json, write_text
from beir_cocodr.models.term_weights import K1, B
from beir_cocodr.retrieval.handover.hand_over import HandedOver, WrittenFiles
from beir_cocodr.retrieval.handover.parquet_files import HTTP_FILE
from beir_cocodr.retrieval.http_settings import PRESETS

# Bytes of a file, so that a request stays below the limits of most servers (10 to 100 MB).
_FILE_BYTES = 8 << 20

# Bytes of a number and of a document's texts, about.
_NUMBER_BYTES = 13
_TEXT_BYTES = 1_500

# The longest id of OpenSearch, in bytes of UTF-8.
_LONGEST_ID = 512

# Results of each search whose scores a fusion normalises.
_DEPTH = 1_000

#: The name of the search pipeline.
PIPELINE = "beir-cocodr"


def write_opensearch(folder: Path, handed: HandedOver) -> WrittenFiles:
    """Write an index's mapping, bulk files, and for a fusion a search pipeline."""
    record = handed.record
    _write_json(folder / "index.json", _opensearch_index(handed))
    query = _opensearch_query(handed)
    url = f"http://localhost:9200/{record.collection}/_search"
    if record.bm25_weight is not None:
        _write_json(folder / "pipeline.json", _opensearch_pipeline(handed))
        url += f"?search_pipeline={PIPELINE}"
    body: Json = {"size": "{top_k}", "query": query, "_source": False}
    http: Json = {
        "url": url,
        "body": body,
        "ids": "hits.hits[]._id",
        "scores": "hits.hits[]._score",
        "failures": list(PRESETS["opensearch"].failures),
        **record.http_encoder,
    }
    _write_json(folder / HTTP_FILE, http)
    names = []
    for number, block in enumerate(_blocks(handed)):
        name = f"bulk-{number:05}.ndjson"
        lines = [_bulk_lines(record.collection, *point) for point in block]
        _write_checked(folder / name, "".join(lines))
        names.append(name)
    return WrittenFiles(names, {"pipeline": PIPELINE})


def _opensearch_index(handed: HandedOver) -> Json:
    """Return the index's settings and mapping: our parameters of BM25, and the dot product."""
    is_english = handed.record.analyzer in (None, "english")
    text: Json = {
        "type": "text",
        "analyzer": "english" if is_english else "standard",
    }
    copied = {**text, "copy_to": "contents"}
    vector: Json = {
        "type": "knn_vector",
        "dimension": handed.record.dimensions,
        "method": {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"},
    }
    return {
        "settings": {
            "index": {"knn": True},
            "similarity": {"default": {"type": "BM25", "k1": K1, "b": B}},
        },
        "mappings": {
            "properties": {
                "title": copied,
                "text": copied,
                "contents": text,
                "vector": vector,
            }
        },
    }


def _opensearch_query(handed: HandedOver) -> Json:
    """Return the query of a search: by vectors alone, or the hybrid one of a fusion."""
    if handed.record.bm25_weight is None:
        return {"knn": {"vector": {"vector": "{vector}", "k": "{top_k}"}}}
    nearest: Json = {"knn": {"vector": {"vector": "{vector}", "k": _DEPTH}}}
    lexical: Json = {"match": {"contents": "{query}"}}
    return {"hybrid": {"pagination_depth": _DEPTH, "queries": [nearest, lexical]}}


def _opensearch_pipeline(handed: HandedOver) -> Json:
    """Return the search pipeline whose weights are those of the fusion, the vectors' first."""
    share = handed.record.dense_share
    combination: Json = {
        "technique": "arithmetic_mean",
        "parameters": {"weights": [round(share, 6), round(1 - share, 6)]},
    }
    processor: Json = {
        "normalization-processor": {
            "normalization": {"technique": "z_score"},
            "combination": combination,
        }
    }
    return {
        "description": "The fusion of vectors and BM25",
        "phase_results_processors": [processor],
    }


def _bulk_lines(collection: str, document: dict[str, str], vector: Floats) -> str:
    """Return the two lines of a document in a bulk file.

    Raises:
        InputError: The document's id is longer than OpenSearch allows.
    """
    id = document["_id"]
    if len(id.encode()) > _LONGEST_ID:
        raise InputError(
            f"document {id[:60]!r}... has an id of {len(id.encode())} bytes, and OpenSearch allows "
            f"at most {_LONGEST_ID}; shorten it in the corpus"
        )
    action = json.dumps({"index": {"_index": collection, "_id": id}})
    texts = json.dumps({"title": document["title"], "text": document["text"]})
    open_texts = texts.removesuffix("}")
    return f'{action}\n{open_texts}, "vector": {_numbers(vector)}}}\n'


def write_weaviate(folder: Path, handed: HandedOver) -> WrittenFiles:
    """Write the schema of a class and batches of its objects."""
    record = handed.record
    _write_json(folder / "class.json", _weaviate_class(handed))
    _write_json(folder / HTTP_FILE, _weaviate_http(handed))
    names = []
    for number, block in enumerate(_blocks(handed)):
        name = f"batch-{number:05}.json"
        objects = [_weaviate_object(record.collection, *point) for point in block]
        content = ",\n".join(objects)
        _write_checked(folder / name, f'{{"objects": [\n{content}\n]}}\n')
        names.append(name)
    return WrittenFiles(names, {"alpha": round(record.dense_share, 6)})


def _weaviate_class(handed: HandedOver) -> Json:
    """Return the schema of the class: vectors from outside, dot product, our BM25 parameters."""
    properties: list[Json] = [
        {"name": "doc_id", "dataType": ["text"], "tokenization": "field"},
        {"name": "title", "dataType": ["text"], "tokenization": "word"},
        {"name": "text", "dataType": ["text"], "tokenization": "word"},
    ]
    return {
        "class": handed.record.collection,
        "vectorizer": "none",
        "vectorIndexType": "hnsw",
        "vectorIndexConfig": {"distance": "dot"},
        "invertedIndexConfig": {
            "bm25": {"k1": K1, "b": B},
            "stopwords": {"preset": "en"},
        },
        "properties": properties,
    }


def _weaviate_http(handed: HandedOver) -> Json:
    """Return the settings by which ``http:FILE`` searches the class."""
    record = handed.record
    if record.bm25_weight is None:
        search = "nearVector: {vector: {vector}}"
    else:
        search = (
            'hybrid: {query: "{query_json}", vector: {vector}, '
            f"alpha: {record.dense_share:.6f}, fusionType: relativeScoreFusion, "
            'properties: ["title", "text"]}'
        )
    return {
        "url": "http://localhost:8080/v1/graphql",
        "body": {
            "query": f"{{ Get {{ {record.collection}({search}, limit: {{top_k}}) {{ doc_id }} }} }}"
        },
        "ids": f"data.Get.{record.collection}[].doc_id",
        "failures": list(PRESETS["weaviate"].failures),
        **record.http_encoder,
    }


def _weaviate_object(collection: str, document: dict[str, str], vector: Floats) -> str:
    """Return an object as JSON; its UUID follows from the document's id."""
    id = document["_id"]
    properties = {
        "doc_id": id,
        "title": document["title"],
        "text": document["text"],
    }
    fields = {
        "class": collection,
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, id)),
        "properties": properties,
    }
    open_object = json.dumps(fields).removesuffix("}")
    return f'{open_object}, "vector": {_numbers(vector)}}}'


def _blocks(handed: HandedOver) -> Iterator[list[tuple[dict[str, str], Floats]]]:
    """Yield documents with their vectors, about 8 MiB of JSON at a time; none without vectors."""
    if not handed.with_vectors:
        return
    of_document = _NUMBER_BYTES * handed.record.dimensions + _TEXT_BYTES
    size = max(1, _FILE_BYTES // of_document)
    for block in handed.points.blocks(size):
        yield list(zip(block.documents, block.vectors, strict=True))


def _numbers(vector: Floats) -> str:
    """Return a vector as JSON with nine digits, from which float32 is read back to the bit."""
    numbers = ", ".join(f"{number:.9g}" for number in vector.tolist())
    return f"[{numbers}]"


def _write_json(path: Path, content: Json) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _write_checked(path: Path, content: str) -> None:
    """Write a file of documents with its checksum."""
    with checksums.checked_path(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
