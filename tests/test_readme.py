"""The README's snippets run as printed, and its numbers stand in a results file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_five_snippets_and_the_beir_script_is_short():
    assert len(SNIPPETS) == 5
    [script] = [snippet for snippet in SNIPPETS if "EvaluateRetrieval(" in snippet]
    assert len([line for line in script.splitlines() if line.strip()]) < 15


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet_runs_as_printed(number, minilm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(SNIPPETS[number], f"README snippet {number + 1}", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_two_commands_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"quickstart", "test"} <= targets
    for command in ("make quickstart", "make test"):
        assert command in README
    assert "make test\n" in (ROOT / ".ci" / "run").read_text()


def test_the_table_is_what_the_benchmark_wrote():
    import sys

    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from quickstart import END, START, markdown
    finally:
        sys.path.pop(0)
    results = json.loads((ROOT / "benchmarks" / "results" / "quickstart.json").read_text())
    assert README.split(START)[1].split(END)[0].strip() == markdown(results)


def test_the_speed_figures_stand_in_a_results_file():
    results = json.loads((ROOT / "benchmarks" / "results" / "search.json").read_text())
    speed = " ".join(README.split("## Speed")[1].split())
    ratios, rivals = results["ratios"], results["rivals"]
    assert f"{ratios['beir / ours_dictionaries']['median']:.1f} times as fast as BEIR" in speed
    assert f"{ratios['ours_arrays / faiss']['median']:.2f} of the time of FAISS" in speed
    peaks = [round(rivals[name]["peak_mib"]) for name in ("ours_arrays", "faiss", "beir")]
    assert "{} MiB against {} (FAISS) and {} (BEIR)".format(*peaks) in speed
    assert results["date"][:10] in speed


def test_the_training_figures_stand_in_a_results_file():
    results = json.loads((ROOT / "benchmarks" / "results" / "idro.json").read_text())["shapes"]
    speed = " ".join(README.split("## Speed")[1].split())
    base, mini = results["bert-base"], results["minilm"]
    assert f"{base['one_backward_to_erm']:.2f} times the time for BERT-base" in speed
    assert f"({base['triplets']} triplets, {base['clusters_present']} clusters present" in speed
    assert f"and {mini['one_backward_to_erm']:.2f} for MiniLM" in speed
    slower = [shape["k_calls_to_one_backward"] for shape in (base, mini)]
    assert "takes {:.1f} and {:.1f} times as long".format(*slower) in speed
    targets = json.loads((ROOT / "benchmarks" / "results" / "ablation.json").read_text())["targets"]
    better = []
    for name, found in targets.items():
        for test in found["comparisons"]:
            if (test["a"], test["b"]) == ("base", "full") and test["t_p_holm"] < 0.05:
                better.append(name)
            if test["family"].startswith("full") and test["a"] in ("-iDRO", "GroupDRO"):
                assert test["t_p_holm"] >= 0.05
    assert better == ["apidocs/sklearn"]
    rows = targets["apidocs/sklearn"]["rows"]
    assert "{:.3f} to {:.3f} nDCG@10".format(*(rows[r]["nDCG@10"]["mean"] for r in ("base", "full"))) in speed


def test_the_figures_of_means_and_variances_stand_in_a_results_file():
    results = json.loads((ROOT / "benchmarks" / "results" / "mrl.json").read_text())
    speed = " ".join(README.split("## Speed")[1].split())
    told = [
        test["difference"]
        for found in results["targets"].values()
        for test in found["comparisons"]
        if (test["a"], test["b"]) == ("dot", "mrl") and test["t_p_holm"] < 0.05
    ]
    assert all(difference < 0 for difference in told)
    assert f"significantly worse on {len(told)} of them and better on none" in speed
    seeds = [seed for found in results["query_performance"].values() for seed in found]
    mean = {
        name: sum(abs(seed[name]["pearson"]) for seed in seeds) / len(seeds) for name in ("‖σ²‖", "MaxSCQ")
    }
    assert mean["‖σ²‖"] < mean["MaxSCQ"]
    assert results["settings"]["steps"] == 40
