"""Give a BEIR folder an id in ir_datasets that outlives this process, and read it as any dataset of
ir_datasets.

python examples/irds_collection.py --folder my-corpus/ --id mine/corpus
"""

from __future__ import annotations

import argparse

import ir_datasets
from beir_cocodr.plugins.irds import forget, register, register_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", required=True, help="with corpus.jsonl, and perhaps queries.jsonl and qrels/"
    )
    parser.add_argument("--id", required=True, help="such as mine/corpus")
    parser.add_argument(
        "--forget", action="store_true", help="let the id end with this process after all"
    )
    given = parser.parse_args()

    register_folder(given.folder, given.id, keep=True)
    # From here on every script that calls register() first knows the id, and so do beir-cocodr irds
    # list, beir-cocodr irds export ID docs, and --dataset irds:ID.
    for identifier in register():
        dataset = ir_datasets.load(identifier)
        parts = [name for name in ("docs", "queries", "qrels") if getattr(dataset, f"has_{name}")()]
        print(identifier, *(f"{getattr(dataset, f'{part}_count')()} {part}" for part in parts))
    if given.forget:
        forget(given.id)


if __name__ == "__main__":
    main()
