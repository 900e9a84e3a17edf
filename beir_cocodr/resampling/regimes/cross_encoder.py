"""A cross-encoder by sentence-transformers, for reranking."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import RankNetLoss

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.negatives import bm25_negatives
from beir_cocodr.resampling.regimes.host_training import GuardedTrainer, HostRun, is_trained, run_host
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.resampling.regimes.start_encoder import save_start
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.pairs import TrainingPairs
from beir_cocodr.training.record import seen


class CrossEncoderReranker:
    """Query and document read together for one score, trained by pairwise cross-entropy (the host's RankNet
    loss) of a relevant document against BM25's negatives.

    Source: BERT reranker (Nogueira and Cho, 2019); Zhan et al., 2022, section 5.1.2.
    """

    name = "cross-encoder"
    seeded = True

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if is_trained(output):
            return output
        collection = load_collection(dataset, "train")
        start = output / "start"
        text_format = save_start(recipe, seed, start)
        model = CrossEncoder(str(start), num_labels=1, device=recipe.device)
        lengths = (text_format.query_length or 0) + (text_format.document_length or 0)
        model.max_seq_length = min(lengths, model.config.max_position_embeddings)
        shutil.rmtree(start)
        options = FinetuneOptions(negatives=recipe.negatives, batch_size=recipe.batch_size, seed=seed)
        pool = bm25_negatives(collection, text_format, recipe.negative_depth, seed)
        pairs = TrainingPairs(collection, text_format, options, pool)
        run = HostRun(
            trainer=_Trainer,
            arguments=CrossEncoderTrainingArguments,
            model=model,
            loss=RankNetLoss(model),
            dataset=_Lists(pairs).dataset(),
            callbacks=[pairs.clock],
            record={"stage": self.name, "seen": [seen(collection, queries=True)]},
        )
        return run_host(run, output, recipe, seed)


@dataclass
class _Lists:
    """(query, [positive, negatives ...], [1, 0 ...]), negatives drawn anew each epoch."""

    pairs: TrainingPairs

    def dataset(self) -> Dataset:
        return Dataset.from_dict({"pair": range(len(self.pairs.positives))}).with_transform(self._draw)

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        pairs = self.pairs
        columns: dict[str, list[Any]] = {"query": [], "documents": [], "label": []}
        for pair in batch["pair"]:
            found = pairs.collection.documents.take(pairs.rows(pair))
            columns["query"].append(pairs.collection.queries[pairs.queries[pair]])
            columns["documents"].append([pairs.text_format.document(document) for document in found])
            columns["label"].append([1.0] + [0.0] * (len(found) - 1))
        return columns


class _Trainer(GuardedTrainer, CrossEncoderTrainer):
    pass
