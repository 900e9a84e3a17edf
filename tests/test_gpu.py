"""Every part of benchmarks/gpu.py runs once on a CPU with tiny sizes, as the guide says."""

from __future__ import annotations

import json
from pathlib import Path

import gpu
import pytest
import torch

ROOT = Path(__file__).parents[1]

#: What pages say until a GPU has run the code.
NEVER_RUN = "No code of this package has been run on a GPU yet"

#: Part to the ratio to its rival, and which way is better does not matter here.
RATIOS = {
    "encode": "throughput_ours_to_host",
    "search": "ours_to_product_and_topk",
    "coco": "throughput_ours_to_host",
    "idro": "one_backward_to_erm",
    "mining": "throughput_ours_to_host",
}


def test_every_part_runs_and_is_not_run_again(tmp_path, capsys):
    given = ["--device", "cpu", "--tiny", "--work", str(tmp_path)]
    gpu.main(given)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert set(found["parts"]) == set(gpu.PARTS) == {*RATIOS, "tests"}
    for part, ratio in RATIOS.items():
        assert found["parts"][part][ratio] > 0
    assert found["parts"]["search"]["same_rows"] == 1.0
    assert (
        "not installed" in found["parts"]["search"]["faiss_gpu_seconds"]
        or torch.cuda.is_available()
    )
    assert found["parts"]["tests"]["pytest"]["status"] == 0
    assert found["parts"]["coco"]["coco"]["peak_mib"] > 0
    assert (found["device"], found["sizes"]["shape"]) == ("cpu", "tiny")
    capsys.readouterr()
    gpu.main(given)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == list(
        gpu.PARTS
    )  # times of parts, and no figure
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"] == found["parts"]


def test_a_figure_of_other_sizes_is_not_kept(tmp_path):
    path = tmp_path / "gpu.json"
    first = gpu.Report(path, "cpu", gpu.TINY)
    assert first.once("part", "figure", lambda: 1) == 1
    assert gpu.Report(path, "cpu", gpu.TINY).once("part", "figure", lambda: 2) == 1
    assert gpu.Report(path, "cpu", gpu.Sizes()).once("part", "figure", lambda: 3) == 3


def test_a_part_that_fails_stops_no_other(tmp_path, monkeypatch):
    def fails(bench):
        raise ValueError("broken")

    ran = []
    monkeypatch.setattr(gpu, "PARTS", {"one": fails, "two": ran.append})
    bench = gpu.Bench("cpu", gpu.TINY, tmp_path, gpu.Report(tmp_path / "r.json", "cpu", gpu.TINY))
    assert list(gpu.run(["one", "two"], bench)) == ["one: ValueError: broken"]
    assert ran == [bench]


@pytest.mark.parametrize("given", [["--device", "cpu"], ["--only", "nothing"]])
def test_bad_options_are_status_2(given, tmp_path):
    with pytest.raises(SystemExit) as status:
        gpu.main([*given, "--work", str(tmp_path / "w")])
    assert status.value.code == 2
    assert not (tmp_path / "w").exists()


def test_the_guide_says_that_no_gpu_has_run_it_until_one_has():
    for file in ("docs/scale.md", "README.md"):
        page = " ".join((ROOT / file).read_text().split())
        assert (NEVER_RUN in page) is not gpu.RESULTS.is_file()


def test_no_page_and_no_script_says_that_no_gpu_was_measured():
    """Single figures may be missing: what a sentence says of them is not looked at here."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md")]
    scripts = [
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "benchmarks" / "reproduce").glob("*.py"),
    ]
    assert len(pages) > 20
    for path in [*pages, *scripts]:
        text = " ".join(path.read_text(encoding="utf-8").split())
        for denial in (NEVER_RUN, "No GPU was measured", "a guess, as none was measured"):
            assert denial.lower() not in text.lower(), path
