"""Generate queries for a corpus, mine hard negatives for them, and write both for GPL, Tevatron and
sentence-transformers; then train here on what was written.

python examples/gpl_tevatron_data.py --corpus my-corpus/ --model minilm --output runs/data
"""

from __future__ import annotations

import argparse
from pathlib import Path

from beir_cocodr import FinetuneOptions, finetune
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.training.exchange import ExportOptions, export


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--corpus", default="apidocs/numpy", help="BEIR folder or name, irds:ID, apidocs/DOMAIN"
    )
    parser.add_argument(
        "--model", default="minilm", help="finds negatives beside BM25, and is trained"
    )
    parser.add_argument("--negatives", type=int, default=10, help="of each query and retriever")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-steps", type=int)
    given = parser.parse_args()

    queries = given.output / "queries"
    generate_queries(given.corpus, "lexical", queries)
    for form in ("gpl", "tevatron", "sentence-transformers"):
        models = ["bm25", given.model]
        record = export(
            str(queries),
            given.output / form,
            models,
            options=ExportOptions(form=form, negatives=given.negatives),
        )
        print(
            f"{form}: {record.queries} queries, {record.without_negatives} without negatives; {' '.join(record.files)}"
        )
    # GPL's own trainer takes the folder by --path_to_generated_data; here it is a collection with
    # its negatives.
    negatives = str(given.output / "gpl" / "hard-negatives.jsonl")
    options = FinetuneOptions(
        hard_negatives=negatives, batch_size=given.batch_size, max_steps=given.max_steps
    )
    finetune(given.model, str(given.output / "gpl"), output=given.output / "model", options=options)
    print(f"trained: {given.output / 'model'}")


if __name__ == "__main__":
    main()
