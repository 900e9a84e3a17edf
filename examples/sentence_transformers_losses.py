"""Train with losses of this package in sentence-transformers' own trainer.

A data set has the columns that its loss takes:

    python examples/sentence_transformers_losses.py --dataset apidocs/numpy --model minilm --loss
    coco --output runs/coco
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
from beir_cocodr.data.collection import Collection
from beir_cocodr.losses import COCOLoss, IDROLoss, LambdaRankDistillationLoss


def make_spans(texts: list[str]) -> Dataset:
    """Cut each document in two halves, which COCO brings together."""
    anchors = []
    positives = []
    for text in texts:
        words = text.split()
        if len(words) > 3:
            middle = len(words) // 2
            anchors.append(" ".join(words[:middle]))
            positives.append(" ".join(words[middle:]))
    return Dataset.from_dict(
        {
            "anchor": anchors,
            "positive": positives,
        }
    )


def make_triplets(collection: Collection, texts: list[str]) -> dict[str, list[Any]]:
    """Make a query, its relevant document and another document of each row."""
    columns: dict[str, list[Any]] = {
        "query": [],
        "positive": [],
        "negative_1": [],
    }
    for row, (query, grades) in enumerate(collection.qrels.items()):
        document = next(iter(grades))
        columns["query"].append(collection.queries[query])
        columns["positive"].append(collection.documents[document]["text"])
        columns["negative_1"].append(texts[7 * row % len(texts)])
    return columns


def clusters_by_length(queries: list[str]) -> list[int]:
    """Put short queries in one cluster, and long ones in the other."""
    lengths = [len(query.split()) for query in queries]
    median = sorted(lengths)[len(lengths) // 2]
    return [int(length > median) for length in lengths]


def make_data_and_loss(
    name: str,
    model: Any,
    collection: Collection,
    texts: list[str],
) -> tuple[Dataset, Any]:
    """Make a loss, and a data set with the columns that it takes."""
    if name == "coco":  # Two columns, no label.
        width = model.get_embedding_dimension() or 0
        loss = MatryoshkaLoss(model, COCOLoss(model), [width, width // 2])
        return make_spans(texts), loss
    columns = make_triplets(collection, texts)
    if name == "idro":  # The label is the cluster of the query.
        labels = clusters_by_length(columns["query"])
        return Dataset.from_dict(columns | {"label": labels}), IDROLoss(model, n_clusters=2)
    # The label has a teacher's score of each document.
    scores = [[1.0, 0.0]] * len(columns["query"])
    return Dataset.from_dict(columns | {"label": scores}), LambdaRankDistillationLoss(model)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dataset",
        default="apidocs/numpy",
        help="A labelled collection with a split train.",
    )
    parser.add_argument(
        "--model",
        default="minilm",
        help="The encoder to start from.",
    )
    parser.add_argument(
        "--loss",
        choices=["coco", "idro", "lambdarank"],
        default="coco",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=8,
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        default=20,
    )
    parser.add_argument("--device")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    model = load_encoder(options.model, EncoderOptions(device=options.device))
    collection = load_collection(options.dataset, "train")
    texts = []
    for document in collection.documents.values():
        texts.append(f"{document['title']} {document['text']}".strip())
    data, loss = make_data_and_loss(
        options.loss,
        model,
        collection,
        texts,
    )
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(options.output / "checkpoints"),
        per_device_train_batch_size=options.batch_size,
        max_steps=options.max_steps,
        save_strategy="no",
        report_to="none",
        use_cpu=options.device == "cpu",
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        loss=loss,
    )
    trainer.train()
    model.save_pretrained(str(options.output))
    # The saved model needs nothing from this package.
    plain = SentenceTransformer(str(options.output), device=options.device)
    print(plain.encode_query(["how do I sort an array?"]).shape)


if __name__ == "__main__":
    main()
