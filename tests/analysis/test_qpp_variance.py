from __future__ import annotations

import json

import pytest

from beir_cocodr import MRL
from beir_cocodr.analysis.predictors import variance_predictors
from beir_cocodr.cli.__main__ import main


def test_an_mrl_has_variance_predictors_and_other_models_have_none(
    beir_folder, tiny_bert, tmp_path, capsys
):
    assert variance_predictors(str(tiny_bert), str(beir_folder)) == {}
    assert variance_predictors("bm25", str(beir_folder)) == {}
    model = MRL(str(tiny_bert))
    model.save_pretrained(str(tmp_path / "mrl"))
    result = variance_predictors(str(tmp_path / "mrl"), str(beir_folder))
    text = next(
        json.loads(line)["text"]
        for line in (beir_folder / "queries.jsonl").read_text().splitlines()
        if json.loads(line)["_id"] == "q20"
    )
    variance = model.encode_distribution([text], "query")[1][0]
    assert result["‖σ²‖"]["q20"] == pytest.approx(float((variance**2).sum() ** 0.5), rel=1e-5)
    assert result["Σ log σ²"]["q20"] == pytest.approx(float(variance.log().sum()), rel=1e-5)
    arguments = [
        "--dataset",
        str(beir_folder),
        "--model",
        str(tmp_path / "mrl"),
        "--output",
        str(tmp_path / "o"),
    ]
    with pytest.raises(SystemExit) as status:
        main(["qpp", *arguments, "--json"])
    assert not status.value.code
    report = json.loads(capsys.readouterr().out)
    assert {"‖σ²‖", "AvgIDF", "MaxSCQ"} <= {row["predictor"] for row in report["predictors"]}
