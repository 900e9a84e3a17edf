"""Encode a corpus, search it by Pyserini's own command line, and measure the run.

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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", default="apidocs/numpy", help="BEIR folder or name, irds:ID, apidocs/DOMAIN"
    )
    parser.add_argument("--model", default="minilm", help="a folder or hub name, or minilm")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for the store, the topics and the run"
    )
    given = parser.parse_args()

    collection, output = load_collection(given.dataset), given.output
    encode(given.dataset, given.model, output / "store")
    topics, run_file = output / "topics.tsv", output / "run.txt"
    topics.write_text(
        "".join(f"{id}\t{' '.join(text.split())}\n" for id, text in collection.queries.items())
    )
    words = [
        "search.faiss",
        "--index",
        output / "store",
        "--topics",
        topics,
        "--output",
        run_file,
        "--hits",
        100,
    ]
    # beir-cocodr pyserini search.faiss --index ... does the same.
    run([*map(str, words), "--encoder", f"beir-cocodr:{given.model}"])
    found = ir_measures.calc_aggregate(
        [nDCG @ 10, R @ 100], collection.qrels, ir_measures.read_trec_run(str(run_file))
    )
    for measure, value in found.items():
        print(f"{measure} {value:.4f}")


if __name__ == "__main__":
    main()
