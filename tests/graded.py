"""A collection on which an untrained encoder works, and copies that work less well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def distinct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a collection in which every document repeats four words of its own."""
    from conftest import COMMON, TOPICS

    folder = tmp_path_factory.mktemp("distinct")
    rng = np.random.default_rng(3)
    (folder / "qrels").mkdir()
    vocabulary = [word for topic in TOPICS for word in topic]
    corpus, queries, qrels = [], [], ["query-id\tcorpus-id\tscore"]
    for i in range(40):
        own = rng.choice(vocabulary, 4, replace=False)
        parts = [
            " ".join(str(rng.choice(own if rng.random() < 0.6 else COMMON)) for _ in range(12))
            + " ."
            for _ in range(4)
        ]
        corpus.append({"_id": f"d{i}", "title": "", "text": " ".join(parts)})
        queries.append({"_id": f"q{i}", "text": " ".join(own)})
        qrels.append(f"q{i}\td{i}\t1")
    for name, records in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps(record) for record in records]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "qrels" / "test.tsv").write_text("\n".join(qrels) + "\n")
    return folder


def changed(source: str | Path, target: Path, change: Callable[[str, Any], None]) -> str:
    """Return a copy of an encoder with weights changed by name."""
    import torch

    from beir_cocodr.models.checkpoints.loading import load_encoder

    model = load_encoder(source)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            change(name, weight)
    model.save_pretrained(str(target))
    return str(target)


@pytest.fixture(scope="session")
def clean(tiny_cosine: str | Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An encoder that is little more than the mean of its random word vectors, and so works
    untrained.
    """

    def change(name: str, weight: Any) -> None:
        if "position_embeddings" in name or ".output.dense" in name:
            weight.mul_(0.02)

    return changed(tiny_cosine, tmp_path_factory.mktemp("clean"), change)


@pytest.fixture(scope="session")
def damaged(clean: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a copy of an encoder that has one vector for most words."""

    def change(name: str, weight: Any) -> None:
        if "word_embeddings" in name:
            lost = np.random.default_rng(5).random(len(weight)) < 0.85
            weight[lost] = weight.mean(dim=0)

    return changed(clean, tmp_path_factory.mktemp("damaged"), change)


KINDS = ("bm25", "dense", "feedback", "hybrid", "rm3")


def model_by_crops(deviation=0.05, vague=1e3):
    """A model by which the lead on held-out crops is the difference, whatever usually wins."""
    from itertools import combinations_with_replacement

    from beir_cocodr.evaluation.calibration import DifferenceModel, KindPrior, Reach, kind_pair
    from beir_cocodr.evaluation.label_free.estimators import CROPS

    prior = KindPrior(0.0, vague)
    return DifferenceModel(
        slopes={CROPS: 1.0},
        noise=[[deviation**2]],
        priors={kind_pair(a, b): prior for a, b in combinations_with_replacement(KINDS, 2)},
        others=prior,
        floor=1.0,
        freedom=1e9,
        widening=0.1,
        reaches=[Reach(0.0, 1.645, 1.645)],
    )


def calibrated_by_crops(deviation=0.05, **trust):
    """A calibration by which the lead on held-out crops is the difference, for any collection."""
    from beir_cocodr.evaluation.calibration import Calibration
    from beir_cocodr.evaluation.label_free.verdict import CORPUS_ALONE, GIVEN_QUERIES

    model = model_by_crops(deviation)
    models = {GIVEN_QUERIES: model, CORPUS_ALONE: model}
    counts = {
        "collections": 3,
        "pairs": 9,
        "covered": 8,
        "decided": 7,
        "right": 6,
        "large": 5,
        "large_decided": 4,
    } | trust
    by_group = {given: {"models of one kind": counts} for given in models}
    return Calibration(["c1", "c2", "c3"], [], by_group, "2026-01-01", models)
