"""Late interaction by sentence-transformers."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from sentence_transformers import (
    MultiVectorEncoder,
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
)
from sentence_transformers.base.modules import Normalize
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.losses import MultiVectorMultipleNegativesRankingLoss
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Transformer

from beir_cocodr.data.collection import load_collection
from beir_cocodr.resampling.regimes.host_training import GuardedTrainer, HostRun, is_trained, run_host
from beir_cocodr.resampling.regimes.recipe import Recipe
from beir_cocodr.resampling.regimes.start_encoder import save_start
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.pairs import BatchKeys, TrainingPairs
from beir_cocodr.training.record import seen

_DIMENSIONS = 128


class LateInteraction:
    """A vector of 128 dimensions for every token, compared by MaxSim, trained on in-batch negatives.

    The modules are those that the host puts on a bare transformer; the projection is drawn by the seed.

    Source: ColBERT (Khattab and Zaharia, 2020); Zhan et al., 2022, section 5.1.2.
    """

    name = "late-interaction"
    seeded = True

    def train(self, dataset: str, output: Path, recipe: Recipe, seed: int, shared: Path) -> Path:
        if is_trained(output):
            return output
        collection = load_collection(dataset, "train")
        start = output / "start"
        text_format = save_start(recipe, seed, start)
        transformer = Transformer(
            str(start), query_length=text_format.query_length, document_length=text_format.document_length
        )
        shutil.rmtree(start)
        projection = Dense(
            in_features=transformer.get_embedding_dimension(),
            out_features=_DIMENSIONS,
            bias=False,
            activation_function=torch.nn.Identity(),
            module_input_name="token_embeddings",
        )
        normalize = Normalize(module_input_name="token_embeddings")
        model = MultiVectorEncoder(
            modules=[transformer, projection, MultiVectorMask(), normalize],
            similarity_fn_name="maxsim",
            device=recipe.device,
        )
        options = FinetuneOptions(negatives=0, batch_size=recipe.batch_size, seed=seed)
        pairs = TrainingPairs(collection, text_format, options)
        run = HostRun(
            trainer=_Trainer,
            arguments=MultiVectorEncoderTrainingArguments,
            model=model,
            loss=MultiVectorMultipleNegativesRankingLoss(model),
            dataset=pairs.dataset(),
            batch_keys=BatchKeys(pairs),
            column_tasks={"query": "query", "positive": "document"},
            callbacks=[pairs.clock],
            names=pairs.names,
            record={"stage": self.name, "seen": [seen(collection, queries=True)]},
        )
        return run_host(run, output, recipe, seed)


class _Trainer(GuardedTrainer, MultiVectorEncoderTrainer):
    pass
