"""The refit of the calibration is a command, also with an estimator of one's own."""

from __future__ import annotations

import sys
from pathlib import Path

import label_free_fitting
from conftest import write_beir

from beir_cocodr.evaluation.calibration import Calibration
from beir_cocodr.evaluation.label_free.estimators import ESTIMATORS
from beir_cocodr.evaluation.label_free.verdict import CORPUS_ALONE, GIVEN_QUERIES

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_estimator.py"


def test_a_refit_learns_the_feature_of_a_new_estimator(tiny_cosine, tmp_path, monkeypatch, capsys):
    datasets = [str(write_beir(tmp_path / f"c{seed}", seed=seed)) for seed in (1, 2, 3, 4)]
    output = tmp_path / "calibration.json"
    arguments = ["--dataset", *datasets, "--model", str(tiny_cosine), "--samples", "12"]
    arguments += ["--script", str(EXAMPLE), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["label_free_fitting.py", *arguments])
    try:
        label_free_fitting.main()
    finally:
        ESTIMATORS.pop("score gap", None)
    calibration = Calibration.read(output)
    assert calibration.models.keys() == {GIVEN_QUERIES, CORPUS_ALONE}
    for model in calibration.models.values():
        assert "score gap" in model.slopes
        assert model.knows("hybrid")
    assert calibration.collections == datasets
    printed = capsys.readouterr().out
    assert "score gap: " in printed
    assert "with each collection left out once, the interval holds" in printed
