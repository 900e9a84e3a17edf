"""Claim: an index of all tokens makes late interaction fast, and inverted lists sparse search.

Documents are pieces of the documentation of installed packages. The encoder has one layer of random
weights over MiniLM's word embeddings (their 64 main components), so that 100,000 documents are
encoded in minutes. MiniLM encodes a fifth of them as well: its vectors of tokens are those of a
trained encoder, though not of one that was trained for late interaction. Sparse vectors are drawn
by Zipf's law: 100 of 30,522 dimensions a document, 30 a query. Times are processor seconds of one
thread.

The script writes ``benchmarks/results/late_interaction.json``. With ``--only`` it measures one
part, with a date of its own, and keeps the others. It prints what it measured:

    OMP_NUM_THREADS=1 python benchmarks/late_interaction.py --work DIR [--only PART]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import timed
from harness.script import add_work, option_parser, origin, read_json, write_results
from harness.texts import pieces_with_ids, write_corpus

BATCH = 64
SEED = 0
#: Dimensions of the small encoder.
WIDTH = 64
#: Queries that are searched exactly.
EXACT = 10
#: Queries whose BM25 pool is encoded while it is scored.
BM25_QUERIES = 5
#: Words of a document, and of a query.
DOCUMENT_WORDS = 30
QUERY_WORDS = 8
DEPTHS = (10, 100)
VOCABULARY = 30_522
PARTS = ("late_interaction", "trained", "sparse")


def measure_part(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one part."""
    count = options.documents
    if part == "late_interaction":
        encoder = save_small_encoder(options.work / "encoder")
        return measure_tokens(
            count,
            options.queries,
            options.work,
            encoder,
        )
    if part == "trained":
        encoder = save_trained_encoder(options.work)
        return measure_tokens(
            count // 5,
            options.queries,
            options.work / "trained",
            encoder,
        )
    return measure_sparse(count, options.queries)


def measure_tokens(
    count: int,
    queries: int,
    work: Path,
    encoder: Path,
) -> dict[str, Any]:
    """Measure late interaction with an index, over all documents, and over BM25's pool."""
    from beir_cocodr import load_collection
    from beir_cocodr.models.spec import SearchOptions
    from beir_cocodr.retrieval.late_interaction import LateInteraction, TokenSearch

    work.mkdir(
        parents=True,
        exist_ok=True,
    )
    words = [text.split()[:DOCUMENT_WORDS] for text in pieces_with_ids(count)]
    write_corpus(work / "corpus.jsonl", map(" ".join, words))
    documents = load_collection(str(work / "corpus.jsonl"), labels="none").documents
    options = SearchOptions(batch_size=BATCH)
    indexed = TokenSearch(
        str(encoder),
        documents,
        options,
        folder=work,
    )
    tokens, encoding = timed(lambda: indexed.tokens)
    _, building = timed(indexed.prepare)
    texts = draw_queries(words, queries)
    scan = partial(
        LateInteraction,
        str(encoder),
        documents,
        options,
    )
    rivals = time_rivals(
        indexed,
        scan,
        documents,
        texts,
        work,
    )
    seconds = rivals["seconds_a_query"]
    seconds["all documents, encoded anew for each search"] = (
        encoding.processor + seconds["all documents, encoded once"]
    )
    index_options = indexed.index.index.options
    names = ("kind", "nlist", "nprobe", "pq_m")
    return {
        "documents": count,
        "queries": queries,
        "tokens": len(tokens.vectors),
        "dimensions": tokens.vectors.shape[1],
        "index": {name: getattr(index_options, name) for name in names},
        "vectors_bytes": tokens.vectors.nbytes,
        "index_bytes": (tokens.folder / "index" / "index.faiss").stat().st_size,
        "encoding_seconds": encoding.processor,
        "building_seconds": building.processor,
        **rivals,
    }


def time_rivals(
    indexed: Any,
    scan: Callable[..., Any],
    documents: Any,
    texts: dict[str, str],
    work: Path,
) -> dict[str, Any]:
    """Time a query with the index, over all documents and over BM25's pool, and their recall.

    Args:
        indexed: The search with an index, which is ready.
        scan: Makes the search that scores documents one by one.
        documents: The documents.
        texts: The queries.
        work: The folder of the vectors of tokens.
    """
    from beir_cocodr.retrieval.bm25 import BM25

    exact_queries = dict(list(texts.items())[:EXACT])
    every = scan(folder=work)
    _ = every.tokens  # encoded before the clock starts
    exact, exact_time = timed(lambda: every.search(exact_queries, 100))
    indexed.search(exact_queries, 100)  # The first search measures the recall once.
    by_index, index_time = timed(lambda: indexed.search(texts, 100))
    few = dict(list(exact_queries.items())[:BM25_QUERIES])
    bm25 = BM25(documents)
    bm25.prepare()
    reranker = scan(bm25)
    reranked, rerank_time = timed(lambda: reranker.search(few, 100))
    return {
        "seconds_a_query": {
            "index": index_time.processor / len(texts),
            "all documents, encoded once": exact_time.processor / len(exact_queries),
            "1,000 of BM25, encoded as they are scored": rerank_time.processor / len(few),
        },
        "recall_of_exact": {
            "index": recalls(by_index.rows[:EXACT], exact.rows),
            "1,000 of BM25": recalls(reranked.rows, exact.rows),
        },
    }


def draw_queries(words: list[list[str]], queries: int) -> dict[str, str]:
    """Make each query of eight words of a document, in another order."""
    rng = np.random.default_rng(SEED + 1)
    texts = {}
    for number in range(queries):
        document = words[number * len(words) // queries]
        texts[f"q{number}"] = " ".join(rng.permutation(document)[:QUERY_WORDS])
    return texts


def recalls(rows: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Return the share of the exact documents that a ranking has, at both depths."""
    shares = {}
    for depth in DEPTHS:
        of_queries = []
        for row, exact_row in zip(rows[:, :depth], exact[:, :depth], strict=False):
            of_queries.append(len(np.intersect1d(row, exact_row)) / depth)
        shares[f"recall@{depth}"] = float(np.mean(of_queries))
    return shares


def save_small_encoder(folder: Path) -> Path:
    """Save one layer of random weights over the main components of MiniLM's word embeddings."""
    import torch
    from transformers import BertConfig, BertModel

    from beir_cocodr.models.checkpoints.loading import load_encoder

    minilm = load_encoder("minilm")
    torch.manual_seed(SEED)
    transformer: Any = minilm.transformers_model
    weights = transformer.get_input_embeddings().weight.detach()
    config = BertConfig(
        vocab_size=len(weights),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = BertModel(config)
    centred = weights - weights.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:WIDTH]
    reduced = centred @ axes.T
    model.get_input_embeddings().weight.data = reduced / reduced.std() * 0.02 * 5
    bare = folder.with_name("bare")
    model.save_pretrained(bare)
    minilm.tokenizer.save_pretrained(str(bare))
    return _save_token_encoder(str(bare), folder)


def save_trained_encoder(work: Path) -> Path:
    """Save MiniLM as an encoder of tokens, whose vectors have unit length and are not pooled."""
    from beir_cocodr.models.checkpoints.loading import model_source

    return _save_token_encoder(model_source("minilm"), work / "trained-encoder")


def _save_token_encoder(bare: str, folder: Path) -> Path:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Transformer

    modules = [
        Transformer(bare, max_seq_length=64),
        MultiVectorMask(),
        Normalize(module_input_name="token_embeddings"),
    ]
    encoder = MultiVectorEncoder(
        modules=modules,
        similarity_fn_name="maxsim",
    )
    encoder.save_pretrained(str(folder))
    return folder


def measure_sparse(count: int, queries: int) -> dict[str, Any]:
    """Measure a query times the whole matrix, and the lists of the query's dimensions alone."""
    from scipy import sparse

    rng = np.random.default_rng(SEED)
    chances = 1 / np.arange(1, VOCABULARY + 1)
    chances /= chances.sum()

    def draw(rows: int, active: int) -> Any:
        columns = rng.choice(VOCABULARY, rows * active, p=chances)
        cells = (np.repeat(np.arange(rows), active), columns)
        values = rng.random(rows * active, np.float32)
        return sparse.csr_matrix((values, cells), (rows, VOCABULARY))

    documents = draw(count, 100)
    vectors = draw(queries, 30)
    lists = documents.tocsc().T
    seconds: dict[str, list[float]] = {
        "inverted lists": [],
        "whole matrix": [],
    }
    largest = 0.0
    for row in range(queries):
        query = vectors[row]
        dense = query.toarray()[0]
        by_matrix, timing = timed(lambda dense=dense: documents @ dense)
        seconds["whole matrix"].append(timing.processor)
        by_lists, timing = timed(lambda query=query: query @ lists)
        seconds["inverted lists"].append(timing.processor)
        difference = np.abs(by_matrix - by_lists.toarray()[0])
        largest = max(largest, float(difference.max()))
    return {
        "documents": count,
        "dimensions_of_a_document": documents.nnz / count,
        "dimensions_of_a_query": vectors.nnz / queries,
        "seconds_a_query": {name: statistics.median(all) for name, all in seconds.items()},
        "largest_difference_of_scores": largest,
    }


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "late_interaction")
    add_work(parser)
    parser.add_argument(
        "--documents",
        type=int,
        default=100_000,
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=50,
    )
    parser.add_argument(
        "--only",
        choices=PARTS,
        help="Measure this part and keep the others.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    measured = {}
    for part in PARTS:
        if options.only in (None, part):
            measured[part] = origin() | measure_part(part, options)
    keeps = options.only is not None and options.results.exists()
    results = read_json(options.results) if keeps else {"seed": SEED} | origin()
    write_results(options.results, results | measured)
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
