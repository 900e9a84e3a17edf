"""SPLADE by sentence-transformers."""

from __future__ import annotations

from pathlib import Path

from sentence_transformers import SparseEncoder, SparseEncoderTrainer, SparseEncoderTrainingArguments
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.sparse_encoder.losses import SparseMultipleNegativesRankingLoss, SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling

from beir_cocodr.data.collection import load_collection
from beir_cocodr.resampling.regimes.host_training import GuardedTrainer, HostRun, is_trained, run_host
from beir_cocodr.resampling.regimes.mlm_head import masked_language_model
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.pairs import BatchKeys, TrainingPairs
from beir_cocodr.training.record import seen


class Splade:
    """Maximum pooling of log(1 + relu) over a masked language model's logits, trained on in-batch negatives
    with the host's SPLADE loss (FLOPS regularizers, their weights rising over the first third).

    Source: SPLADE v2 (Formal et al., 2021); Zhan et al., 2022, section 5.1.2.
    """

    name = "splade"
    seeded = True

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if is_trained(output):
            return output
        collection = load_collection(dataset, "train")
        source, text_format = masked_language_model(collection, recipe, seed, shared)
        transformer = Transformer(
            source,
            transformer_task="fill-mask",
            query_length=text_format.query_length,
            document_length=text_format.document_length,
        )
        model = SparseEncoder(
            modules=[transformer, SpladePooling("max")], similarity_fn_name="dot", device=recipe.device
        )
        options = FinetuneOptions(negatives=0, batch_size=recipe.batch_size, seed=seed)
        pairs = TrainingPairs(collection, text_format, options)
        run = HostRun(
            trainer=_Trainer,
            arguments=SparseEncoderTrainingArguments,
            model=model,
            loss=SpladeLoss(
                model,
                SparseMultipleNegativesRankingLoss(model),
                document_regularizer_weight=recipe.document_flops,
                query_regularizer_weight=recipe.query_flops,
            ),
            dataset=pairs.dataset(),
            batch_keys=BatchKeys(pairs),
            column_tasks={"query": "query", "positive": "document"},
            callbacks=[pairs.clock],
            names=pairs.names,
            record={"stage": self.name, "seen": [seen(collection, queries=True)]},
        )
        return run_host(run, output, recipe, seed)


class _Trainer(GuardedTrainer, SparseEncoderTrainer):
    pass
