"""One stage of fine-tuning: from one start, on one set of negatives and clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import set_seed

from beir_cocodr.data.collection import Collection
from beir_cocodr.data.negatives import bm25_negatives
from beir_cocodr.losses.cluster_loss import ClusterLoss
from beir_cocodr.losses.cvar import CVaRLoss
from beir_cocodr.losses.group_dro import GroupDROLoss
from beir_cocodr.losses.idro import IDROLoss
from beir_cocodr.losses.infonce import infonce
from beir_cocodr.models.loading import load_encoder, weights_sha256
from beir_cocodr.ranks import world_size
from beir_cocodr.training.claim import CHECKPOINTS, claim_output, started, training_plan
from beir_cocodr.training.cluster_log import CLUSTER_LOG, ClusterLog
from beir_cocodr.training.finetune_options import FinetuneOptions
from beir_cocodr.training.mining import MinedNegatives, mine_negatives
from beir_cocodr.training.pairs import BatchKeys, TrainingPairs
from beir_cocodr.training.processes import on_main
from beir_cocodr.training.query_clusters import training_clusters
from beir_cocodr.training.record import seen
from beir_cocodr.training.run import Stage, run_stage


def finetune_stage(
    collection: Collection,
    base: str,
    output: Path,
    options: FinetuneOptions,
    resume: bool,
    encoder: dict[str, Any],
    episode: int = 0,
    miner: str | None = None,
) -> dict[str, Any]:
    """Train ``base`` on negatives from BM25, or from episode 1 on mined ones, and save it to ``output``.

    Args:
        collection: with queries and qrels.
        base, output, options, resume, encoder: as for :func:`~beir_cocodr.training.finetune.finetune`.
        episode: which episode this is, from 0.
        miner: the encoder that mines from episode 1 on; by default ``base`` as it is before training.

    Returns:
        The content of training.json.
    """
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    model = load_encoder(base, **encoder)
    plan = training_plan("finetune", base, model, encoder, options, [seen(collection, queries=True)])
    plan["episode"] = episode
    if miner is not None:
        plan["miner"] = miner
    if (record := claim_output(output, resume, plan)) is not None:
        return record
    weighted = options.weighting != "erm"
    with started(output, plan):
        mined = _mine(collection, model, output, options, plan, encoder) if episode else None
        pool = _pool(collection, model, options, mined)
        pairs = TrainingPairs(collection, model.text_format, options, pool)
        clusters = _clusters(pairs, model, output, options, mined) if weighted else None
        loss = training_loss(model, options, clusters, len(pairs.positives))
    log = [ClusterLog(loss, output / CLUSTER_LOG, options.log_clusters)] if weighted else []
    stage = Stage(
        plan=plan,
        model=model,
        loss=loss,
        dataset=pairs.dataset(),
        column_tasks={c: "query" if c == "query" else "document" for c in pairs.columns},
        callbacks=[pairs.clock, *log],
        batch_keys=BatchKeys(pairs) if options.trained_loss == "infonce" else None,
        names=pairs.names,
        extra=_counts(pairs, model, mined) | {"pairs_of_clusters": _sizes(clusters, options)},
    )
    return run_stage(stage, options, output, resume)


def training_loss(model: Any, options: FinetuneOptions, clusters: torch.Tensor | None, pairs: int) -> Any:
    """The loss that ``options`` name.

    Args:
        clusters: (pairs,) the clusters of the training examples; None for erm.
    """
    in_batch = options.trained_loss == "infonce"
    if clusters is None and in_batch:
        cached = options.batch_size // world_size() > options.mini_batch_size
        return infonce(model, options.scale, options.mini_batch_size if cached else None)
    shared: dict[str, Any] = {"scale": options.scale, "in_batch": in_batch}
    if clusters is None:
        return ClusterLoss(model, 1, torch.zeros(pairs, dtype=torch.int64), **shared)
    shared |= {"n_clusters": options.clusters, "clusters": clusters}
    if options.weighting == "groupdro":
        return GroupDROLoss(model, eta=options.eta, **shared)
    if options.weighting == "cvar":
        return CVaRLoss(model, cvar_alpha=options.cvar_alpha, eps=options.eps, **shared)
    names = ("alpha", "rho", "ema", "eps", "beta", "tau", "absent", "renormalize_present")
    gradients = ("gram", "gradient_layers", "sketch_size", "seed")
    settings = shared | {name: getattr(options, name) for name in names + gradients}
    return IDROLoss(model, **settings | {"mode": options.idro_mode})


def _counts(pairs: TrainingPairs, model: Any, mined: MinedNegatives | None) -> dict[str, Any]:
    """How much is trained on, for the record."""
    return {
        "pairs": len(pairs.positives),
        "pairs_without_document": pairs.unknown,
        "pairs_without_negative": pairs.without_negative,
        "truncated": pairs.truncated(model),
        "mining": mined.counts if mined is not None else None,
    }


def _mine(
    collection: Collection,
    model: Any,
    output: Path,
    options: FinetuneOptions,
    plan: dict[str, Any],
    encoder: dict[str, Any],
) -> MinedNegatives:
    """Negatives of this episode, made on the first process and read by all."""
    miner, key = model, {name: plan[name] for name in ("base_sha256", "encoder", "seen")}
    if "miner" in plan:
        miner = load_encoder(plan["miner"], **encoder)
        key["base_sha256"] = weights_sha256(miner)

    def mine() -> MinedNegatives:
        return mine_negatives(
            collection,
            miner,
            output / CHECKPOINTS,
            options.mining_depth,
            options.mining_keep,
            options.seed,
            plan["episode"],
            options.filters,
            progress=True,
            key=key,
        )

    on_main(lambda: bool(mine()))
    return mine()


def _pool(
    collection: Collection, model: Any, options: FinetuneOptions, mined: MinedNegatives | None
) -> dict[str, np.ndarray] | None:
    both = options.stages == 2 and options.stage2_negatives == "both"
    if mined is not None and not both:
        return mined.pools()
    if not options.negatives:
        return None
    pool = on_main(lambda: bm25_negatives(collection, model.text_format, options.negative_depth))
    if mined is not None:
        for query, rows in mined.pools().items():
            pool[query] = np.union1d(pool.get(query, rows), rows)
    return pool


def _clusters(
    pairs: TrainingPairs, model: Any, output: Path, options: FinetuneOptions, mined: MinedNegatives | None
) -> torch.Tensor:
    """(pairs,) the cluster of each training pair."""
    ids = list(dict.fromkeys(pairs.queries))

    def cluster() -> dict[str, int]:
        if mined is None:
            texts = [pairs.collection.queries[query] for query in ids]
            embeddings = model.encode_queries(texts, convert_to_numpy=True, show_progress_bar=False)
        else:
            row = {query: i for i, query in enumerate(mined.queries)}
            embeddings = mined.embeddings[[row[query] for query in ids]]
        normalize = model.similarity_fn_name == "cosine"
        return training_clusters(ids, np.asarray(embeddings, np.float32), options, normalize, output)

    found = on_main(cluster)
    return torch.tensor([found[query] for query in pairs.queries])


def _sizes(clusters: torch.Tensor | None, options: FinetuneOptions) -> list[int] | None:
    if clusters is None:
        return None
    return [int(size) for size in clusters.bincount(minlength=options.clusters)]
