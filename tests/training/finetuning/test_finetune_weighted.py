"""Fine-tuning with weighted clusters, end to end on a tiny BERT."""

from __future__ import annotations

import json

import pytest

from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions

SMALL = {"max_steps": 4, "batch_size": 6, "learning_rate": 1e-3}
CLUSTERS = {"clusters": 3, "min_cluster_size": 1, "log_clusters": 2}


@pytest.mark.parametrize("weighting", ["idro", "groupdro", "cvar", "erm"])
@pytest.mark.parametrize("loss", ["triplet", "infonce"])
def test_every_weighting_trains_and_logs(weighting, loss, beir_folder, two_layer_mlm, tmp_path):
    clusters = {} if weighting == "erm" else CLUSTERS
    options = FinetuneOptions.of(**SMALL, **clusters, weighting=weighting, loss=loss)
    record = finetune(str(two_layer_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    assert record.steps == 4
    log = tmp_path / "m" / "cluster_weights.jsonl"
    assert log.is_file() == (weighting != "erm")
    if weighting == "erm":
        return
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert all(sum(line["examples"]) == 12 for line in lines)
    for line in lines:
        for mean, examples in zip(line["losses"], line["examples"], strict=True):
            assert (mean is None) == (examples == 0)
    assert lines[0]["weights"] != [1 / 3] * 3  # batches of one cluster leave them as they are
    clusters = (tmp_path / "m" / "clusters.tsv").read_text().splitlines()[1:]
    assert len(clusters) == 16
    assert sum(record.details["pairs_of_clusters"]) == record.details["pairs"] == 24
