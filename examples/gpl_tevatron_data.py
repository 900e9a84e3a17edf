"""Write queries and hard negatives for GPL, Tevatron and sentence-transformers, and train on them.

python examples/gpl_tevatron_data.py --dataset my-corpus/ --model minilm --output runs/data
"""

from __future__ import annotations

import argparse
from pathlib import Path

from beir_cocodr import FinetuneOptions, finetune
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.training.finetuning.exchange import ExportOptions, export


def parse_options() -> argparse.Namespace:
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
        help="The encoder that finds negatives, as BM25 does, and is trained.",
    )
    parser.add_argument(
        "--negatives",
        type=int,
        default=10,
        help="Negatives of each query and retriever.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
    )
    parser.add_argument("--max-steps", type=int)
    return parser.parse_args()


def main() -> None:
    arguments = parse_options()
    queries = arguments.output / "queries"
    generate_queries(arguments.dataset, "lexical", queries)
    for form in ("gpl", "tevatron", "sentence-transformers"):
        record = export(
            str(queries),
            arguments.output / form,
            ["bm25", arguments.model],
            options=ExportOptions(
                form=form,
                negatives=arguments.negatives,
            ),
        )
        counts = f"{record.queries} queries, {record.without_negatives} without negatives"
        print(f"{form}: {counts}; {' '.join(record.files)}")
    # GPL's own trainer reads this folder with --path_to_generated_data. Here it is a collection
    # with its negatives.
    gpl = arguments.output / "gpl"
    model = arguments.output / "model"
    options = FinetuneOptions(
        hard_negatives=str(gpl / "hard-negatives.jsonl"),
        batch_size=arguments.batch_size,
        max_steps=arguments.max_steps,
    )
    finetune(
        arguments.model,
        str(gpl),
        output=model,
        options=options,
    )
    print(f"trained: {model}")


if __name__ == "__main__":
    main()
