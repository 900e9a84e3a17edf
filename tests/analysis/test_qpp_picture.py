from __future__ import annotations

import importlib.util
import json
import math
import sys
from types import SimpleNamespace

import pytest

from beir_cocodr.analysis.qpp import Prediction, predictor_correlations
from beir_cocodr.cli.__main__ import main
from beir_cocodr.report.png_pictures import qpp_picture


def draw(path, values, quality, measure):
    rows = predictor_correlations(values, quality)
    record = SimpleNamespace(
        model="a $model", dataset="a_dataset", measure=measure, predictors=rows
    )
    qpp_picture(path, Prediction(record, values, quality))


@pytest.mark.parametrize("panels", [1, 3, 4])
def test_the_picture_is_a_png_with_one_panel_for_each_predictor(tmp_path, panels):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.image import imread

    quality = {f"q{i}": i / 9 for i in range(10)}
    values = {
        f"$p_{p}": {q: v * p + math.sin(9 * v) for q, v in quality.items()} for p in range(panels)
    }
    values["$p_0"]["q3"] = math.nan
    path = tmp_path / "qpp.png"
    draw(path, values, quality, "nDCG@10")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    height, width, _ = imread(path).shape
    assert width / height == pytest.approx({1: 1, 3: 3, 4: 3 / 2}[panels], rel=0.02)
    assert [file.name for file in tmp_path.iterdir()] == ["qpp.png"]


def test_a_predictor_without_values_has_an_empty_panel(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    quality = {"q1": 0.1, "q2": 0.2}
    values = {"p": {"q1": math.nan}}
    draw(tmp_path / "p.png", values, quality, "AP")
    assert (tmp_path / "p.png").stat().st_size > 1000


def command(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(["qpp", "--model", "bm25", *arguments])
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


def test_the_picture_is_drawn_by_default_without_pyplot(beir_folder, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    places = ("--dataset", str(beir_folder), "--output", str(tmp_path))
    status, out, _ = command(capsys, *places, "--json")
    assert (status, json.loads(out)["picture"]) == (0, "qpp.png")
    assert json.loads(out) == json.loads((tmp_path / "qpp.json").read_text())
    assert (tmp_path / "predictors.tsv").is_file()
    assert (tmp_path / "qpp.png").is_file()
    assert "matplotlib.pyplot" not in sys.modules


def test_without_matplotlib_a_picture_is_refused_if_asked_for_and_otherwise_left_out(
    beir_folder, tmp_path, monkeypatch, capsys
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "matplotlib" else find(name, *rest),
    )
    dataset = ("--dataset", str(beir_folder), "--json")
    status, _, err = command(capsys, *dataset, "--output", str(tmp_path / "asked"), "--picture")
    assert status == 2
    assert "pip install 'beir-cocodr[report]'" in err
    assert not (tmp_path / "asked").exists()
    status, out, _ = command(capsys, *dataset, "--output", str(tmp_path / "default"))
    assert (status, json.loads(out)["picture"]) == (0, None)
    assert not (tmp_path / "default" / "qpp.png").exists()
