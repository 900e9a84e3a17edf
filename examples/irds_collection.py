"""Give a BEIR folder a lasting id in ir_datasets, and read it as any of its datasets.

python examples/irds_collection.py --folder my-corpus/ --id mine/corpus
"""

from __future__ import annotations

import argparse

import ir_datasets
from beir_cocodr.plugins.irds import forget, register, register_folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--folder",
        required=True,
        help="A folder with corpus.jsonl, and perhaps queries.jsonl and qrels/.",
    )
    parser.add_argument(
        "--id",
        required=True,
        help="The id, such as mine/corpus.",
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="Remove the id at the end of this process.",
    )
    options = parser.parse_args()

    register_folder(options.folder, options.id, keep=True)
    # From now on every script that calls register() knows the id. So do the commands beir-cocodr
    # irds list and beir-cocodr irds export ID docs, and the option --dataset irds:ID.
    for identifier in register():
        dataset = ir_datasets.load(identifier)
        counts = []
        for part in ("docs", "queries", "qrels"):
            if getattr(dataset, f"has_{part}")():
                count = getattr(dataset, f"{part}_count")()
                counts.append(f"{count} {part}")
        print(identifier, *counts)
    if options.forget:
        forget(options.id)


if __name__ == "__main__":
    main()
