"""Encode a corpus, search it with Pyserini's own command line, and measure the run.

python examples/pyserini_search.py --dataset apidocs/numpy --model minilm --output runs/pyserini
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ir_measures
from beir_cocodr.plugins.pyserini import run
from ir_measures import R, nDCG

from beir_cocodr import load_collection
from beir_cocodr.retrieval.store.encode import encode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        default="apidocs/numpy",
        help="A BEIR folder or name, irds:ID, or apidocs/DOMAIN.",
    )
    parser.add_argument(
        "--model",
        default="minilm",
        help="A folder, a hub name, or minilm.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="Write the store, the topics and the run to this folder.",
    )
    options = parser.parse_args()

    collection = load_collection(options.dataset)
    store = options.output / "store"
    topics = options.output / "topics.tsv"
    run_file = options.output / "run.txt"
    encode(options.dataset, options.model, store)
    lines = [f"{query}\t{' '.join(text.split())}\n" for query, text in collection.queries.items()]
    topics.write_text("".join(lines))
    # beir-cocodr pyserini search.faiss --index ... does the same.
    command = ["search.faiss", "--index", str(store), "--topics", str(topics)]
    command += ["--output", str(run_file), "--hits", "100"]
    command += ["--encoder", f"beir-cocodr:{options.model}"]
    run(command)
    hits = ir_measures.read_trec_run(str(run_file))
    means = ir_measures.calc_aggregate([nDCG @ 10, R @ 100], collection.qrels, hits)
    for measure, value in means.items():
        print(f"{measure} {value:.4f}")


if __name__ == "__main__":
    main()
