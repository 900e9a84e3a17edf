"""The paper's settings, and small ones, as data."""

from __future__ import annotations

from typing import Any

# COCO-DR, section 5 and appendix B; warm-up and steps as published with the code. The paper's batches: 8 GPUs
# of 200 documents, and 64 triplets a GPU.
_COCO: dict[str, Any] = {
    "objective": "coco",
    "epochs": 8,
    "batch_size": 2048,
    "mini_batch_size": 64,
    "learning_rate": 1e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
    "span_tokens": 30,
    "max_length": 128,
}

_IDRO: dict[str, Any] = {
    "loss": "triplet",
    "weighting": "idro",
    "clusters": 50,
    "episodes": 3,
    "negatives": 1,
    "negative_depth": 200,
    "mining_depth": 200,
    "mining_keep": 30,
    "batch_size": 64,
    "max_steps": 45_000,
    "learning_rate": 5e-6,
    "warmup": 3_000,
    "max_grad_norm": 1.0,
    "gradient_layers": 3,
}

# Query-as-context pre-training, sections 4.1 and 4.2; its code cuts queries to 32 and passages to 144 tokens.
_QUERIES: dict[str, Any] = {
    "objective": "qc",
    "max_steps": 120_000,
    "batch_size": 2048,
    "mini_batch_size": 64,
    "learning_rate": 1e-4,
    "warmup": 0.1,
    "weight_decay": 0.01,
}

_COTMAE: dict[str, Any] = _QUERIES | {
    "objective": "cotmae",
    "max_steps": 50_000,
    "batch_size": 16_384,
    "learning_rate": 4e-4,
    "mask_probability": 0.3,
    "decoder": "autoregressive",
}

_TWO_STAGES: dict[str, Any] = {
    "stages": 2,
    "loss": "infonce",
    "negatives": 15,
    "negative_depth": 200,
    "mining_depth": 200,
    "mining_keep": 200,
    "batch_size": 64,
    "epochs": 3,
    "learning_rate": 2e-5,
    "weight_decay": 0.01,
    "seed": 42,
    "query_length": 32,
    "document_length": 144,
}

_SMALL: dict[str, Any] = {"max_steps": 40, "learning_rate": 2e-5, "warmup": 0.1}

_SMALL_PASSAGES: dict[str, Any] = _SMALL | {"batch_size": 32, "mini_batch_size": 16}

#: Preset to stage to settings; what is not named keeps its default. Stages are the commands "pretrain" and
#: "finetune", and those of ``adapt`` that are not one of these two as it is.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "base": {"pretrain": _COCO, "finetune": _IDRO},
    "large": {
        "pretrain": _COCO | {"learning_rate": 1e-5},
        "finetune": _IDRO | {"max_steps": 30_000, "gradient_layers": 2},
    },
    "qc": {"pretrain": _QUERIES, "finetune": _TWO_STAGES},
    "cotmae": {"pretrain": _COTMAE, "finetune": _TWO_STAGES},
    # The whole recipe on two cores in minutes, to see it work; not a setting of the paper's.
    "cpu": {
        "pretrain": _COCO | _SMALL | {"batch_size": 64, "mini_batch_size": 32},
        "finetune": _IDRO
        | _SMALL
        | {"clusters": 8, "episodes": 1, "batch_size": 16, "gradient_layers": None},
        "cotmae": _SMALL_PASSAGES,
        "qc": _SMALL_PASSAGES,
        "qgen": _SMALL | {"batch_size": 16},
        "gpl": _SMALL | {"batch_size": 16, "refresh_steps": 40},
        "hybrid-distill": _SMALL | {"refresh_steps": 40},
    },
}
