"""The main job on a collection that every installation can make for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from beir_cocodr.training.adapt import adapt
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.pretrain_options import PretrainOptions

CORPUS, FAST_CORPUS = "apidocs/scipy+sklearn", "apidocs/sklearn"
SOURCE, FAST_SOURCE = "apidocs/stdlib+numpy+pandas+torch", "apidocs/pandas"


def quickstart(output: Path, fast: bool = False, seed: int = 42, resume: bool = False) -> dict[str, Any]:
    """Adapt the packaged MiniLM to API documentation: sources stdlib, numpy, pandas and torch, targets
    scipy and scikit-learn.

    Args:
        output: folder for models and results.
        fast: smaller collections and fewer steps, for a first look and for continuous integration.
        seed: of the training.
        resume: keep what is finished in ``output``.

    Returns:
        The content of adapt.json.
    """
    corpus, source = (FAST_CORPUS, FAST_SOURCE) if fast else (CORPUS, SOURCE)
    steps, batch = (5, 16) if fast else (40, 32)
    shared: dict[str, Any] = {"max_steps": steps, "batch_size": batch, "learning_rate": 2e-5, "seed": seed}
    return adapt(
        corpus,
        source,
        "minilm",
        output,
        options={
            "coco": PretrainOptions(**shared),
            "finetune": FinetuneOptions(**shared, negatives=0),
        },
        resume=resume,
        queries=100 if fast else 300,
        encoder={"document_length": 128},
        progress=True,
    )
