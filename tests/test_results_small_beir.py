"""What the pages say of training with labels is what ``benchmarks/beir_small.py`` wrote."""

from __future__ import annotations

from importlib import import_module

import pytest
from test_results import README, ROOT, results_of, section


def check_nfcorpus(nfcorpus, prose: str) -> None:
    """Check what the page says of NFCorpus, where pre-training before fine-tuning gains."""

    def mean(row: str, use: str) -> str:
        return f"{nfcorpus['rows'][row][use]['mean']:.3f}"

    figures = [mean(row, use) for use in ("alone", "fused") for row in ("ERM", "MiniLM")]
    assert "ERM has {} instead of {} alone and {} instead of {} fused".format(*figures) in prose
    assert f"neither significantly ({mean('COCO', 'alone')} and {mean('COCO', 'fused')})" in prose
    differing = {}
    for use, tests in nfcorpus["tests"].items():
        for test in tests:
            if test["t_p_holm"] < 0.05:
                differing[test["a"], test["b"], use] = test
    others = ("hard negatives", "rm3", "half")
    known = [(a, b) for a, b, _ in differing if not any(other in b for other in others)]
    pretrained = ("COCO, ERM", "query-as-context, ERM")
    assert sorted(known) == [*(("ERM", row) for row in pretrained), ("MiniLM", "MRL")]
    assert differing["MiniLM", "MRL", "alone"]["verdict"] == "worse"
    mrl = f"({mean('MRL', 'fused')} against {mean('MiniLM', 'fused')}, not significant)"
    assert f"MiniLM alone ({mean('MRL', 'alone')}), and fused it is not {mrl}" in prose
    for row in pretrained:
        gain = differing["ERM", row, "alone"]
        pair = f"{mean(row, 'alone')} against {mean('ERM', 'alone')}"
        assert gain["verdict"] == "better"
        assert f"fine-tuning alone ({pair}, p = {gain['t_p_holm']:.3f}" in prose


def check_fine_tuning_after_coco(scifact, prose: str) -> None:
    """Check what the page says of SciFact, where pre-training before fine-tuning gains nothing."""
    rows = scifact["rows"]
    pairs = {}
    for use, tests in scifact["tests"].items():
        for test in tests:
            if test["family"] == "pre-training before fine-tuning":
                pairs[test["b"], use] = test
    after_coco = pairs.pop(("COCO, ERM", "alone"))
    assert after_coco["verdict"] == "worse"
    assert all(test["t_p_holm"] > 0.05 for test in pairs.values())
    alone, fused = (
        f"{rows['COCO, ERM'][use]['mean']:.3f} against {rows['ERM'][use]['mean']:.3f}"
        for use in ("alone", "fused")
    )
    p = f"p = {after_coco['t_p_holm']:.3f}"
    words = f"significantly worse than fine-tuning alone ({alone}, {p}), fused it is not ({fused})"
    assert words in prose


def check_robust_weightings(tasks, prose: str) -> None:
    """Check what the page says of weightings over clusters against equal weights."""
    differing = []
    for task, of_task in tasks.items():
        for use, tests in of_task["tests"].items():
            for test in tests:
                is_robust = test["family"] == "robust weightings against equal weights"
                if is_robust and test["t_p_holm"] < 0.05:
                    differing.append((task, use, test["a"], test["b"]))
                    assert test["verdict"] == "worse"
                    assert test["t_p_holm"] < 0.001
    assert differing == [("scifact", "alone", "ERM", "CVaR")]
    rows = tasks["scifact"]["rows"]
    alone, fused = (
        f"{rows['CVaR'][use]['mean']:.3f} against {rows['ERM'][use]['mean']:.3f}"
        for use in ("alone", "fused")
    )
    words = (
        f"worse on SciFact alone ({alone}, p < 0.001), fused it is not ({fused}), nor on NFCorpus"
    )
    assert words in prose


#: Rows that are trained with labels, whose halves are merged with MiniLM.
LABELLED = ("ERM", "iDRO", "COCO, ERM", "COCO, iDRO", "group DRO", "CVaR", "query-as-context, ERM")


class OfTask:
    """The figures of one task, as the page writes them."""

    def __init__(self, tasks, name: str) -> None:
        self.rows = tasks[name]["rows"]
        self.tests = {}
        for use, tests in tasks[name]["tests"].items():
            self.tests |= {(test["a"], test["b"], use): test for test in tests}

    def mean(self, row: str, use: str) -> str:
        return f"{self.rows[row][use]['mean']:.3f}"

    def verdict(self, a: str, b: str, use: str) -> str:
        return self.tests[a, b, use]["verdict"]

    def p_of(self, a: str, b: str, use: str, verdict: str) -> str:
        """The corrected p of a test, which has to give a verdict."""
        assert self.verdict(a, b, use) == verdict
        p = self.tests[a, b, use]["t_p_holm"]
        return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"

    def halves(self) -> list[str]:
        """The rows with labels that were also merged."""
        return [row for row in LABELLED if half(row) in self.rows]


def half(row: str) -> str:
    return f"{row}, a half merged"


def check_halves_on_nfcorpus(nfcorpus: OfTask, prose: str) -> None:
    """Check what the page says of merged weights on NFCorpus, where they gain."""
    p = nfcorpus.p_of("ERM", half("ERM"), "alone", "better")
    words = f"half of ERM has {nfcorpus.mean(half('ERM'), 'alone')} alone, significantly better"
    assert f"{words} than {nfcorpus.mean('ERM', 'alone')} unmerged ({p})" in prose
    p = nfcorpus.p_of("MiniLM", half("ERM"), "fused", "better")
    fusion = nfcorpus.mean("MiniLM", "fused")
    words = f"{nfcorpus.mean(half('ERM'), 'fused')} fused, significantly better than"
    assert f"{words} the untrained fusion's {fusion} ({p})" in prose
    listed: dict[str, list[str]] = {"better": [], "cannot tell": []}
    for row in nfcorpus.halves():
        nfcorpus.p_of("MiniLM", row, "fused", "cannot tell")
        verdict = nfcorpus.verdict("MiniLM", half(row), "fused")
        p = nfcorpus.p_of("MiniLM", half(row), "fused", verdict)
        if row != "ERM":
            listed[verdict].append(f"{row} ({nfcorpus.mean(half(row), 'fused')}, {p})")
    gaining, open_yet = listed.values()
    said = f"So are halves of {'; '.join(gaining)}. "
    if open_yet:
        said += f"Not significant are the gains of halves of {'; '.join(open_yet)}. "
    assert f"{said}Unmerged, none of them differs from it significantly." in prose
    row = half("query-as-context, ERM")
    p = nfcorpus.p_of("MiniLM", row, "alone", "better")
    words = f"A half of the weights has {nfcorpus.mean(row, 'alone')} alone there, significantly"
    assert f"{words} better than MiniLM's {nfcorpus.mean('MiniLM', 'alone')} ({p})" in prose
    others = [other for other in nfcorpus.halves() if half(other) != row]
    for other in others:
        nfcorpus.p_of("MiniLM", half(other), "alone", "cannot tell")  # "the only half that"


def check_halves_on_scifact(scifact: OfTask, prose: str) -> None:
    """Check what the page says of merged weights on SciFact, where they lose."""
    unclear = ("query-as-context, ERM", "fused")
    for row in scifact.halves():
        for use in ("alone", "fused"):
            if (row, use) != unclear:
                scifact.p_of(row, half(row), use, "worse")
    row, use = unclear
    p = scifact.p_of(row, half(row), use, "cannot tell")
    pair = f"{scifact.mean(half(row), use)} against {scifact.mean(row, use)}, {p}"
    values = [scifact.mean(row, use) for row in (half("ERM"), "ERM") for use in ("alone", "fused")]
    words = "a half of ERM has {} alone and {} fused, significantly worse than all of it"
    others = "so are the other halves there of models that were trained with labels, except for"
    others += f" that of {row} {use} ({pair})."
    assert f"{words} ({{}} and {{}}); {others}".format(*values) in prose


def check_halves_of_coco(nfcorpus: OfTask, scifact: OfTask, prose: str) -> None:
    """Check what the page says of a half of the weights of COCO, which needs no labels."""
    name = half("COCO")
    told = []
    for task, verdict in ((scifact, "worse"), (nfcorpus, "cannot tell")):
        p = task.p_of("MiniLM", name, "fused", verdict)
        told.append(f"({task.mean(name, 'fused')} against {task.mean('MiniLM', 'fused')}, {p})")
        task.p_of("MiniLM", name, "alone", "cannot tell")
    assert "SciFact {}, and not significantly better on NFCorpus {}".format(*told) in prose
    values = [task.mean(name, "alone") for task in (nfcorpus, scifact)]
    words = "Alone it differs from MiniLM significantly on neither ({} and {})"
    assert words.format(*values) in prose


def check_halves(tasks, prose: str) -> None:
    """Check what the page says of trained weights that are merged with the base."""
    nfcorpus, scifact = (OfTask(tasks, name) for name in ("nfcorpus", "scifact"))
    check_halves_on_nfcorpus(nfcorpus, prose)
    check_halves_on_scifact(scifact, prose)
    check_halves_of_coco(nfcorpus, scifact, prose)
    for task in (nfcorpus, scifact):
        for row, of_row in task.rows.items():
            assert "half" not in row or len(of_row["seeds"]) in (1, 2)  # "one or two seeds"


def check_published(results) -> None:
    """Check that what needs no training agrees with published figures, as the page says."""
    tasks = ("scifact", "nfcorpus")
    found = {}
    for row in ("MiniLM", "BM25"):
        found[row] = [results["tasks"][task]["rows"][row]["alone"]["mean"] for task in tasks]
    published = results["published"]
    for row, name, most in (
        ("MiniLM", "MiniLM (MTEB)", 0.0005),
        ("BM25", "BM25 (Anserini, one field)", 0.005),
    ):
        assert found[row] == pytest.approx([published[name][task] for task in tasks], abs=most)
    text = section("beir_small")
    minilm = "MiniLM alone has {:.4f} on SciFact and {:.4f} on NFCorpus".format(*found["MiniLM"])
    assert minilm in text
    assert "BM25 has {:.3f} and {:.3f}. Anserini".format(*found["BM25"]) in text
    quoted = [published["BM25 (BEIR, two fields)"][task] for task in tasks]
    assert "The {} and {} that papers quote come from searching".format(*quoted) in text


def check_trained_regimes(resampled, text: str) -> None:
    """Check what the page says of models that were trained on resampled queries."""
    figures = []
    losses = []
    for method in ("restrain", "resttest"):
        [row] = resampled[f"{method} dense"]
        assert row["seeds"] == [13]
        of_row = row["measures"]["nDCG@10"]
        figures.append(f"{of_row['interpolation']:.3f} and {of_row['extrapolation']:.3f}")
        losses.append(-of_row["gap"])
        [lexical] = resampled[f"{method} bm25"]
        assert abs(lexical["measures"]["nDCG@10"]["gap"]) < 0.01
    restrain, resttest = figures
    assert f"without hard negatives has {restrain} by ReSTrain, and {resttest} by ReSTTest" in text
    assert "extrapolation is {:.0%} and {:.0%}, BM25's less than 1%".format(*losses) in text


def check_scifact_mrl(scifact, prose: str) -> None:
    """Check what the page says of MRL on SciFact, where it does not differ from MiniLM."""
    pairs = []
    for use in ("alone", "fused"):
        [test] = [one for one in scifact["tests"][use] if (one["a"], one["b"]) == ("MiniLM", "MRL")]
        assert test["t_p_holm"] > 0.05
        means = (scifact["rows"][row][use]["mean"] for row in ("MRL", "MiniLM"))
        pairs.append("{:.3f} against {:.3f} {}".format(*means, use))
    assert f"differ significantly from MiniLM ({', '.join(pairs)})" in prose


def check_distilled(tasks, prose: str) -> None:
    """Check what the page says of distillation without labels, before and after merging."""
    merged, unmerged = "distilled without labels", "distilled without labels, unmerged"

    def mean(task: str, row: str, use: str) -> str:
        return f"{tasks[task]['rows'][row][use]['mean']:.3f}"

    tests = {}
    for task, of_task in tasks.items():
        for use, of_use in of_task["tests"].items():
            for test in of_use:
                if test["a"] == "MiniLM" and test["b"] in ("COCO", "MRL", merged, unmerged):
                    assert test["verdict"] != "better"  # "no training without labels gained"
                    tests[task, test["b"], use] = test
    for use in ("alone", "fused"):
        assert mean("scifact", merged, use) == mean("scifact", "MiniLM", use)  # "unchanged"
    worse = tests["scifact", unmerged, "fused"]
    assert worse["verdict"] == "worse"
    others = [one for key, one in tests.items() if "distilled" in key[1] and one is not worse]
    assert all(one["t_p_holm"] > 0.05 for one in others)
    alone, base, fused, fusion = (
        mean("scifact", row, use) for use in ("alone", "fused") for row in (unmerged, "MiniLM")
    )
    assert (
        f"model has {alone} alone, which is no significant gain over {base}, and {fused}" in prose
    )
    assert f"significantly worse than {fusion} (p = {worse['t_p_holm']:.3f})" in prose
    after, before, base = (mean("nfcorpus", row, "alone") for row in (merged, unmerged, "MiniLM"))
    assert f"Alone this has {after}, and before merging {before} instead of {base}" in prose
    fused, fusion = (mean("nfcorpus", row, "fused") for row in (merged, "MiniLM"))
    assert f"fused it has {fused} instead of {fusion}" in prose
    rows = tasks["nfcorpus"]["rows"]
    gain = rows[unmerged]["alone"]["mean"] / rows["MiniLM"]["alone"]["mean"] - 1
    assert f"a gain of {gain:.0%} that is not significant" in prose


def test_the_figures_of_small_beir_are_what_the_benchmark_wrote():
    script, tables = import_module("beir_small"), import_module("beir_small_tables")
    results = results_of("beir_small")
    page = (ROOT / "docs" / "adaptation.md").read_text()
    assert tables.MARKS.read(page) == tables.markdown(results, [arm.name for arm in script.ARMS])
    prose = " ".join(page.split("## With labelled queries")[1].split("\n## ")[0].split())
    scifact = results["tasks"]["scifact"]
    check_published(results)
    alone, fused = (
        {row: uses[use]["mean"] for row, uses in scifact["rows"].items() if use in uses}
        for use in (tables.ALONE, tables.FUSED)
    )
    gains = [f"{scores[row]:.3f}" for scores in (alone, fused) for row in (tables.BASE, "ERM")]
    assert "from {} to {}, and fused from {} to {}".format(*gains) in prose
    assert alone["ERM"] < fused[tables.BASE]  # "does not reach the untrained fusion"
    short = " ".join(README.split())
    assert "raise the fusion there from {} to {}".format(*gains[2:]) in short
    vector = f"{fused[tables.VECTOR]:.3f}"
    with_feedback = f"that vector with feedback only {fused[tables.FEEDBACK]:.3f}"
    large = results["published"]["COCO-DR Large"]["scifact"]
    assert f"has {gains[2]}, {with_feedback}, and COCO-DR Large {large}" in short
    of_nfcorpus = results["tasks"]["nfcorpus"]["rows"][tables.FEEDBACK][tables.FUSED]["mean"]
    assert f"single vector of `fuse` with feedback {of_nfcorpus:.3f}" in short
    assert f"which has BM25's index: {vector} against {gains[2]}" in " ".join(page.split())
    of_vectors = {
        task: next(
            test
            for test in results["tasks"][task]["tests"][tables.FUSED]
            if test["b"] == tables.VECTOR
        )
        for task in ("scifact", "nfcorpus")
    }
    assert of_vectors["scifact"]["verdict"] == "worse"
    assert of_vectors["nfcorpus"]["t_p_holm"] > 0.05
    assert f"does not change MiniLM significantly ({alone['COCO']:.3f})" in prose
    assert f"with BM25 significantly worse ({fused['COCO']:.3f})" in prose
    tests = {(test["b"], use): test for use in scifact["tests"] for test in scifact["tests"][use]}
    assert tests["COCO", tables.ALONE]["t_p_holm"] > 0.05
    assert tests["COCO", tables.FUSED]["verdict"] == "worse"
    check_robust_weightings(results["tasks"], prose)
    check_fine_tuning_after_coco(scifact, prose)
    check_halves(results["tasks"], prose)
    check_nfcorpus(results["tasks"]["nfcorpus"], prose)
    check_scifact_mrl(scifact, prose)
    check_distilled(results["tasks"], prose)
    steps = {cell["steps"] for cells in results["cells"].values() for cell in cells}
    assert steps == {0, 100, 300}
    figures = [f"{scores['query-as-context, ERM']:.3f}" for scores in (alone, fused)]
    figures += [f"{scores['ERM']:.3f}" for scores in (alone, fused)]
    assert "nothing: {} alone and {} fused, against {} and {}.".format(*figures) in prose
    cells = results["cells"]["scifact"]
    trained = [cell for cell in cells if cell["seed"] is not None and cell["device"] != "cpu"]
    seconds = sorted(cell["train_seconds"] for cell in trained if "COCO" not in cell["row"])
    text = section("beir_small")
    assert f"took {seconds[0]:.0f} to {seconds[-1]:.0f} seconds" in text
    [gpu] = {cell["device"] for cell in trained}
    assert " ".join(gpu.split()[:2]) in text
    for method in ("restrain", "resttest"):
        [row] = results["resampled"][f"{method} bm25"]
        of_row = row["measures"]["nDCG@10"]
        for regime in ("interpolation", "extrapolation"):
            assert f"{of_row[regime]:.3f}" in text
    check_trained_regimes(results["resampled"], text)
