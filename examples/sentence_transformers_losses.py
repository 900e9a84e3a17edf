"""Losses of this package in sentence-transformers' own trainer, on a data set with the columns that
they take.

python examples/sentence_transformers_losses.py --dataset apidocs/numpy --model minilm --loss coco
--output runs/coco
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

from beir_cocodr import EncoderOptions, load_collection, load_encoder
from beir_cocodr.losses import COCOLoss, IDROLoss, LambdaRankDistillationLoss


def spans(texts: list[str]) -> Dataset:
    """Two halves of each document: what COCO brings together."""
    words = [text.split() for text in texts]
    halves = [(one[: len(one) // 2], one[len(one) // 2 :]) for one in words if len(one) > 3]
    return Dataset.from_dict(
        {
            name: [" ".join(half[i]) for half in halves]
            for i, name in enumerate(["anchor", "positive"])
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dataset", default="apidocs/numpy", help="labelled collection, split train"
    )
    parser.add_argument("--model", default="minilm", help="encoder to start from")
    parser.add_argument("--loss", choices=["coco", "idro", "lambdarank"], default="coco")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-steps", type=int, default=20)
    parser.add_argument("--device")
    given = parser.parse_args()

    model = load_encoder(given.model, EncoderOptions(device=given.device))
    collection = load_collection(given.dataset, "train")
    texts = [
        f"{document['title']} {document['text']}".strip()
        for document in collection.documents.values()
    ]
    pairs = [(query, next(iter(found))) for query, found in collection.qrels.items()]
    columns: dict[str, list[Any]] = {
        "query": [collection.queries[query] for query, _ in pairs],
        "positive": [collection.documents[document]["text"] for _, document in pairs],
        "negative_1": [texts[7 * row % len(texts)] for row in range(len(pairs))],
    }
    loss: Any
    if given.loss == "coco":  # two columns, no label
        width = model.get_embedding_dimension() or 0
        data, loss = spans(texts), MatryoshkaLoss(model, COCOLoss(model), [width, width // 2])
    elif given.loss == "idro":  # a label: the cluster of the query, here by its length
        lengths = [len(query.split()) for query in columns["query"]]
        data = Dataset.from_dict(
            columns
            | {"label": [int(length > sorted(lengths)[len(lengths) // 2]) for length in lengths]}
        )
        loss = IDROLoss(model, n_clusters=2)
    else:  # a label: a teacher's score of each document
        data = Dataset.from_dict(columns | {"label": [[1.0, 0.0]] * len(pairs)})
        loss = LambdaRankDistillationLoss(model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(given.output / "checkpoints"), per_device_train_batch_size=given.batch_size,
        max_steps=given.max_steps, save_strategy="no", report_to="none", use_cpu=given.device == "cpu",
    )  # fmt: skip
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
    model.save_pretrained(str(given.output))
    plain = SentenceTransformer(
        str(given.output), device=given.device
    )  # needs nothing of this package
    print(plain.encode_query(["how do I sort an array?"]).shape)


if __name__ == "__main__":
    main()
