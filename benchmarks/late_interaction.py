"""Late interaction with an index of all tokens, and sparse search by inverted lists, against what
they take without.

Documents are pieces of installed packages' documentation. The encoder has one layer of random
weights over MiniLM's word embeddings (their 64 main components), so that 100,000 documents are
encoded in minutes; a fifth of them are encoded by MiniLM as well, whose vectors of tokens are those
of a trained encoder, though not one trained for late interaction. Sparse vectors are given: 100 of
30,522 dimensions a document, 30 a query, drawn by Zipf's law. Processor time, one thread. Run as:

    OMP_NUM_THREADS=1 python benchmarks/late_interaction.py --work DIR [--only PART]

Writes benchmarks/results/late_interaction.json. :func:`late_interaction` serves benchmarks that
compare with it.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from stopwatch import seconds

BATCH = 64
RESULTS = Path(__file__).parent / "results" / "late_interaction.json"
SEED, WIDTH, EXACT, BM25_QUERIES = 0, 64, 10, 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for corpus, encoder and token vectors"
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument(
        "--only",
        choices=("late_interaction", "trained", "sparse"),
        help="this part alone, with its own date; keep the others as they are",
    )
    options = parser.parse_args()
    from machine import machine

    from beir_cocodr.io import write_text
    from beir_cocodr.records import versions

    count, queries = options.documents, options.queries
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "late_interaction": lambda: token_search(
            count, queries, options.work, tiny_encoder(options.work / "encoder")
        ),
        "trained": lambda: token_search(
            count // 5, queries, options.work / "trained", trained_encoder(options.work)
        ),
        "sparse": lambda: sparse_search(count, queries),
    }
    before = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else {}
    made = {name: make() for name, make in parts.items() if options.only in (None, name)}
    origin = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
    }
    report = (before or {"seed": SEED} | origin) | {
        name: origin | part for name, part in made.items()
    }
    write_text(RESULTS, json.dumps(report, indent=2) + "\n")


def used(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives, and its processor seconds."""
    began = time.process_time()
    found = call()
    return found, time.process_time() - began


def token_search(count: int, queries: int, work: Path, encoder: Path) -> dict[str, Any]:
    from fuse_scale import texts

    from beir_cocodr import load_collection
    from beir_cocodr.models.spec import SearchOptions
    from beir_cocodr.retrieval.bm25 import BM25
    from beir_cocodr.retrieval.hosted import LateInteraction, TokenSearch

    work.mkdir(parents=True, exist_ok=True)
    words = [text.split()[:30] for text in texts(count)]
    with (work / "corpus.jsonl").open("w") as file:
        file.writelines(
            json.dumps({"_id": str(n), "text": " ".join(found)}) + "\n"
            for n, found in enumerate(words)
        )
    documents = load_collection(str(work / "corpus.jsonl"), labels="none").documents
    rng = np.random.default_rng(SEED + 1)
    # Eight words of a document, in another order.
    drawn = {
        f"q{i}": " ".join(rng.permutation(words[i * count // queries])[:8]) for i in range(queries)
    }
    name, options = str(encoder), SearchOptions(batch_size=BATCH)
    found = TokenSearch(name, documents, options, folder=work)
    _, encoding = used(lambda: found.tokens)
    _, building = used(found.prepare)
    some = dict(list(drawn.items())[:EXACT])
    every = LateInteraction(name, documents, options, folder=work)
    _ = every.tokens
    exact, exact_seconds = used(lambda: every.search(some, 100))
    found.search(some, 100)  # measures the recall, once
    indexed, indexed_seconds = used(lambda: found.search(drawn, 100))
    few = dict(list(some.items())[:BM25_QUERIES])
    first = BM25(documents)
    first.prepare()
    reranked, reranked_seconds = used(
        lambda: LateInteraction(name, documents, options, first).search(few, 100)
    )

    def recall(rows: np.ndarray, depth: int) -> float:
        pairs = zip(rows[:, :depth], exact.rows[:, :depth], strict=False)
        return float(np.mean([len(np.intersect1d(a, b)) / depth for a, b in pairs]))

    return {
        "documents": count,
        "queries": queries,
        "tokens": len(found.tokens.vectors),
        "dimensions": found.tokens.vectors.shape[1],
        "index": {
            name: getattr(found.index.index.options, name)
            for name in ("kind", "nlist", "nprobe", "pq_m")
        },
        "vectors_bytes": found.tokens.vectors.nbytes,
        "index_bytes": (found.tokens.folder / "index" / "index.faiss").stat().st_size,
        "encoding_seconds": encoding,
        "building_seconds": building,
        "seconds_a_query": {
            "index": indexed_seconds / queries,
            "all documents, encoded once": exact_seconds / len(some),
            "all documents, encoded anew for each search": encoding + exact_seconds / len(some),
            "1,000 of BM25, encoded as they are scored": reranked_seconds / len(few),
        },
        "recall_of_exact": {
            "index": {
                f"recall@{depth}": recall(indexed.rows[:EXACT], depth) for depth in (10, 100)
            },
            "1,000 of BM25": {
                f"recall@{depth}": recall(reranked.rows, depth) for depth in (10, 100)
            },
        },
    }


def tiny_encoder(folder: Path) -> Path:
    """One layer of random weights over the main components of MiniLM's word embeddings."""
    import torch
    from transformers import BertConfig, BertModel

    from beir_cocodr.models.loading import load_encoder

    minilm = load_encoder("minilm")
    torch.manual_seed(SEED)
    known: Any = minilm.transformers_model
    weights = known.get_input_embeddings().weight.detach()
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = BertModel(BertConfig(vocab_size=len(weights), **sizes))
    main_axes = torch.linalg.svd(weights - weights.mean(0), full_matrices=False).Vh[:WIDTH]
    reduced = (weights - weights.mean(0)) @ main_axes.T
    model.get_input_embeddings().weight.data = reduced / reduced.std() * 0.02 * 5
    bare = folder.with_name("bare")
    model.save_pretrained(bare)
    minilm.tokenizer.save_pretrained(str(bare))
    return _of_tokens(str(bare), folder)


def trained_encoder(work: Path) -> Path:
    """MiniLM's own vectors of tokens, of unit length, before they are pooled."""
    from beir_cocodr.models.loading import model_source

    return _of_tokens(model_source("minilm"), work / "trained-encoder")


def _of_tokens(bare: str, folder: Path) -> Path:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Transformer

    on = "token_embeddings"
    modules = [
        Transformer(bare, max_seq_length=64),
        MultiVectorMask(),
        Normalize(module_input_name=on),
    ]
    MultiVectorEncoder(modules=modules, similarity_fn_name="maxsim").save_pretrained(str(folder))
    return folder


def sparse_search(count: int, queries: int, vocabulary: int = 30_522) -> dict[str, Any]:
    """Given sparse vectors: the whole matrix times a query, and the lists of a query's dimensions
    alone.
    """
    from scipy import sparse

    rng = np.random.default_rng(SEED)
    likely = 1 / np.arange(1, vocabulary + 1)
    likely /= likely.sum()

    def drawn(rows: int, active: int) -> Any:
        columns = rng.choice(vocabulary, rows * active, p=likely)
        places = np.repeat(np.arange(rows), active), columns
        return sparse.csr_matrix(
            (rng.random(rows * active, np.float32), places), (rows, vocabulary)
        )

    documents, asked = drawn(count, 100), drawn(queries, 30)
    lists = documents.tocsc().T
    whole = [used(lambda row=row: documents @ asked[row].toarray()[0]) for row in range(queries)]
    read = [used(lambda row=row: asked[row] @ lists) for row in range(queries)]
    furthest = max(
        float(abs(a - b.toarray()[0]).max()) for (a, _), (b, _) in zip(whole, read, strict=True)
    )
    return {
        "documents": count,
        "dimensions_of_a_document": documents.nnz / count,
        "dimensions_of_a_query": asked.nnz / queries,
        "seconds_a_query": {
            "inverted lists": statistics.median(taken for _, taken in read),
            "whole matrix": statistics.median(taken for _, taken in whole),
        },
        "largest_difference_of_scores": furthest,
    }


def late_interaction(
    texts: list[str], queries: list[str], count: int, repeats: int
) -> dict[str, Any]:
    """Storage and exact MaxSim over some windows, and what both come to for ``count`` of them.

    Documents are padded once, beforehand; the host's own `similarity` would do it at every query.
    """
    import torch
    from sentence_transformers import MultiVectorEncoder

    from beir_cocodr.models.loading import model_source

    logging.getLogger("sentence_transformers").setLevel(
        logging.ERROR
    )  # an untrained projection, we know
    model = MultiVectorEncoder(model_source("minilm"), device="cpu")
    documents = model.encode_document(texts, batch_size=BATCH, show_progress_bar=False)
    vectors = sum(len(document) for document in documents)
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence(
        [torch.ones(len(document), dtype=torch.bool) for document in documents], batch_first=True
    )
    encoded = model.encode_query(queries, show_progress_bar=False)

    def search(query: Any) -> Any:
        return model.similarity([query], padded, b_mask=mask).topk(10)

    with torch.inference_mode():
        rounds = [
            1000 * statistics.median(seconds(partial(search, query)) for query in encoded)
            for _ in range(repeats)
        ]
    scale, dimensions = count / len(texts), padded.shape[2]
    return {
        "windows": len(texts),
        "vectors_a_window": vectors / len(texts),
        "dimensions": dimensions,
        "bytes": vectors * dimensions * 4,
        "milliseconds": rounds,
        "scaled_to": count,
        "scaled_bytes": vectors * dimensions * 4 * scale,
        "scaled_milliseconds": statistics.median(rounds) * scale,
    }


if __name__ == "__main__":
    main()
