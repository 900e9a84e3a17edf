"""Train an encoder with BEIR's training scripts, with one import changed.

The forms are those of BEIR's ``train_sbert.py`` (pairs), ``train_msmarco_v3.py`` (a data set of
triplets that draws another hard negative in each epoch) and ``train_msmarco_v3_margin_MSE.py`` (the
same with differences of a teacher's scores).

python examples/beir_training.py --data-path my-beir/ --model minilm --output runs/sbert
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from beir import losses as beir_losses
from beir.datasets.data_loader import GenericDataLoader
from beir_cocodr.plugins.beir import TrainRetriever  # from beir.retrieval.train
from sentence_transformers import InputExample
from sentence_transformers.sentence_transformer import losses
from torch.utils.data import Dataset


class HardNegatives(Dataset[InputExample]):
    """A query, a relevant text and another one, which changes from epoch to epoch."""

    def __init__(
        self,
        corpus: dict[str, dict[str, str]],
        queries: dict[str, str],
        qrels: dict[str, dict[str, int]],
        *,
        has_margin: bool,
    ) -> None:
        """Draw five other texts for each query."""
        draw = random.Random(1)
        self.has_margin = has_margin
        self.rows = []
        for query, grades in qrels.items():
            positive = next(id for id, grade in grades.items() if grade > 0)
            others = draw.sample([id for id in corpus if id not in grades], 5)
            texts = [corpus[id]["text"] for id in others]
            self.rows.append((queries[query], corpus[positive]["text"], texts))

    def __getitem__(self, item: int) -> InputExample:
        """Return an example, and move on to the next negative of its query."""
        query, positive, negatives = self.rows[item]
        negative = negatives.pop(0)
        negatives.append(negative)
        # BEIR's script has a cross-encoder's scores here.
        margin = 2.0 if self.has_margin else 0
        return InputExample(texts=[query, positive, negative], label=margin)

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.rows)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-path", required=True, help="A BEIR folder with a train split.")
    parser.add_argument("--dev", default="dev", help="Evaluate on this split.")
    parser.add_argument("--model", default="minilm", help="A folder, a hub name, or minilm.")
    parser.add_argument(
        "--form",
        choices=["pairs", "triplets", "hard-negatives", "margin-mse"],
        default="pairs",
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    corpus, queries, qrels = GenericDataLoader(options.data_path).load(split="train")
    retriever = TrainRetriever(model=options.model, batch_size=options.batch_size)

    train_loss = losses.MultipleNegativesRankingLoss(model=retriever.model)
    ir_evaluator = retriever.load_dummy_evaluator()
    if options.form == "pairs":
        train_samples = retriever.load_train(corpus, queries, qrels)
        train_dataloader = retriever.prepare_train(train_samples, shuffle=True)
        dev_corpus, dev_queries, dev_qrels = GenericDataLoader(options.data_path).load(
            split=options.dev
        )
        ir_evaluator = retriever.load_ir_evaluator(dev_corpus, dev_queries, dev_qrels)
    elif options.form == "triplets":
        rows = HardNegatives(corpus, queries, qrels, has_margin=False).rows
        triplets = [(query, text, other) for query, text, others in rows for other in others]
        train_samples = retriever.load_train_triplets(triplets=triplets)
        train_dataloader = retriever.prepare_train_triplets(train_samples)
    else:
        is_margin = options.form == "margin-mse"
        train_samples = HardNegatives(corpus, queries, qrels, has_margin=is_margin)
        train_dataloader = retriever.prepare_train(
            train_samples, shuffle=True, dataset_present=True
        )
        if is_margin:
            train_loss = beir_losses.MarginMSELoss(model=retriever.model)

    warmup_steps = int(len(train_samples) * options.epochs / retriever.batch_size * 0.1)
    retriever.fit(
        train_objectives=[(train_dataloader, train_loss)],
        evaluator=ir_evaluator,
        epochs=options.epochs,
        output_path=str(options.output),
        warmup_steps=warmup_steps,
        evaluation_steps=5000,
        use_amp=True,
    )


if __name__ == "__main__":
    main()
