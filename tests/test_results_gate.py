"""What the pages say of the gate and of sizes of passages is what the benchmarks wrote."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from statistics import mean

from test_results import ROOT, results_of, section

from beir_cocodr.evaluation.gate import MARGIN, GateOptions
from beir_cocodr.evaluation.gate_rule import RULE
from beir_cocodr.evaluation.passage_sizes import ERROR

GATE = (ROOT / "docs" / "gate.md").read_text()
NUMBERS = {4: "four", 7: "seven", 8: "eight"}


def fault_table(results) -> str:
    """The kinds of faults, how many of them cost much, and how many of these were noticed."""
    lines = ["| fault | cost more than 0.02 | noticed |", "| --- | --- | --- |"]
    for kind, counts in results["faults"].items():
        lines.append(f"| {kind} | {counts['costly']} of {counts['all']} | {counts['noticed']} |")
    return "\n".join(lines) + "\n\n"


def alarms_without_queries(results, script) -> list[str]:
    """The kinds of harmless changes that would be called worse if queries were not asked."""
    return [
        case["change"].partition(":")[0]
        for case in results["cases"]
        if case["collection"] in script.MEASURED
        and case["kind"] == "harmless"
        and (case["loses_documents"] or case["loses_unasked_documents"])
    ]


def test_the_figures_of_the_gates_guide_are_in_a_results_file():
    results = results_of("gate")
    script = import_module("gate")
    rates = results["rates"]
    page = " ".join(GATE.split())
    assert fault_table(results) in GATE
    where = f"On {NUMBERS[rates['collections']]} labelled collections"
    assert f"{where}, from families to which the rule was not fitted" in page
    assert f"at a margin of {rates['margin']:g} and without their labels" in page
    noticed = f"the gate noticed {rates['found']:.1%} of {rates['faults']} seeded faults"
    assert f"{noticed} that cost more than {script.COST:g}" in page
    alarms = f"{rates['false_alarms']:.1%} of {rates['changes']} harmless changes"
    assert f"raised a false alarm for {alarms}" in page
    assert rates["margin"] == MARGIN == script.COST / 2
    half = f"{MARGIN:g} in nDCG@10, half of the loss of {script.COST:g}"
    assert f"The default margin is {half}" in page
    assert results["rule"] == vars(RULE)
    assert f"(a distance of {RULE.far:g})" in page
    assert f"{GateOptions().samples} of each (`--samples`)" in page
    assert RULE.lost == 2  # "a larger share of what OLD finds than twice the margin"
    assert RULE.enough == 10  # "at least ten queries of your own"
    few, without = results["rates_with_few_queries"], results["rates_without_queries"]
    by_ten = f"noticed {few['10']['found']:.1%}, with false alarms for"
    assert (
        f"With ten of each collection's queries it {by_ten} {few['10']['false_alarms']:.1%}" in page
    )
    by_none = f"it noticed {without['found']:.1%}, with false alarms for"
    assert f"from the documents alone, {by_none} {without['false_alarms']:.1%}" in page
    assert set(alarms_without_queries(results, script)) == {"hnsw", "ivf"}


def test_the_figures_of_the_gate_are_in_a_results_file():
    results = results_of("gate")
    script = import_module("gate")
    rates = results["rates"]
    text = section("gate")
    assert " ".join(fault_table(results).split()) in text
    assert {case["collection"] for case in results["cases"]} == {*script.FITTED, *script.MEASURED}
    fitted, measured = results["rates_where_fitted"]["collections"], rates["collections"]
    assert (fitted, measured) == (len(script.FITTED), len(script.MEASURED))
    assert f"The rule was fitted to {NUMBERS[fitted]} collections of other families" in text
    names = ", ".join(f"`{name}`" for name in script.MEASURED)
    assert f"On the {NUMBERS[measured]} measured ones ({names}) it noticed" in text
    noticed = f"it noticed {rates['found']:.1%} of the {rates['faults']} faults that cost more"
    assert f"{noticed} than {script.COST:g} in nDCG@10" in text
    assert f"left {rates['faults_undecided']:.1%} undecided" in text
    alarms = f"{rates['false_alarms']:.1%} of {rates['changes']} harmless changes"
    assert f"raised a false alarm for {alarms}" in text
    changes = import_module("gate_changes")
    assert f"indexes with at least {changes._PARITY:.0%} of the exact results" in text
    harmless = {case["change"] for case in results["cases"] if case["kind"] == "harmless"}
    assert {name.partition(":")[0] for name in harmless} == {
        *("fp16", "bf16", "int8", "bf16 encoder", "batch size"),
        *("reordered documents", "hnsw", "ivf"),
    }
    by_encoder = results["rates_by_encoder"]
    for one in by_encoder.values():
        shares = f"({one['found']:.1%} of {one['faults']} faults"
        assert f"{shares}, {one['false_alarms']:.1%} of {one['changes']} changes)" in text
        assert one["collections"] == measured
    size = changes.Size(results["settings"]["documents"])
    assert results["settings"]["bfloat16"]
    searched = f"in at most {size.documents:,} documents, by at most {size.queries} queries"
    samples = f"the {size.samples} spans and {size.samples} generated queries"
    assert f"{searched}, and with {samples} that the command takes" in text
    assert size.samples == GateOptions().samples
    few, without = results["rates_with_few_queries"], results["rates_without_queries"]
    counts = [f"{one['found']:.1%} of the faults" for one in few.values()]
    assert f"(ten draws) the gate noticed {counts[0]}" in text
    of_20, of_none = (
        f"{one['found']:.1%} and {one['false_alarms']:.1%}" for one in (few["20"], without)
    )
    assert f"by 20 queries these are {of_20}, and without queries {of_none}" in text
    assert f"a false alarm for {without['false_alarms']:.1%} of the changes, all HNSW" in text
    where_fitted = results["rates_where_fitted"]
    alarms = f"{where_fitted['false_alarms']:.1%} of {where_fitted['changes']} changes"
    noticed = f"{where_fitted['found']:.1%} of {where_fitted['faults']} faults"
    assert f"and where the rule was fitted ({alarms}, {noticed})" in text
    assert rates["found"] == without["found"]  # "misses no costly fault that the third one noticed"
    assert rates["false_alarms"] == where_fitted["false_alarms"] == 0  # "all false alarms"
    other = results["replacements"]
    assert f"Of {other['worse']} further changes that labels call worse" in text
    ended = f"{other['worse_noticed']:.1%} ended as worse and {other['worse_undecided']:.1%} as"
    assert f"{ended} undecided" in text
    better = f"of {other['better']} that labels call better, {other['better_called_worse']:.1%}"
    assert f"{better} ended as worse" in text


def right_signs(rows, models):
    """Return in how many pairs of sizes that labels tell apart the sign is right."""
    apart = [row for row in rows if row["model"] in models and abs(row["by_labels"]) > 0.02]
    right = sum(row["difference"] * row["by_labels"] > 0 for row in apart)
    return f"{right} of {len(apart)}"


def test_the_figures_of_sizes_of_passages_are_in_a_results_file():
    results = results_of("passages")
    script = import_module("passages")
    text = section("passages")
    collections = list(dict.fromkeys(row["collection"] for row in results["rows"]))
    assert collections == list(script.COLLECTIONS)
    names = ", ".join(f"`{name}`" for name in collections)
    assert f"Documents of {NUMBERS[len(collections)]} collections ({names}) were cut" in text
    *sizes, last = results["sizes"]
    assert f"cut to {', '.join(map(str, sizes))} and {last} words" in text
    assert {row["model"] for row in results["rows"]} == {
        *("bm25", "static vectors"),
        *script.TRANSFORMERS,
    }
    assert f"deviates from the difference by labels by {results['error']:.3f} in nDCG@10" in text
    assert round(results["error"], 3) == ERROR  # what the package counts
    assert f"contained {results['held']:.0%} of {results['pairs']} differences" in text
    apart = f"differ by more than 0.02 in the labels ({results['apart']} pairs)"
    assert f"{apart}, the sign was right in {results['sign_right']:.0%}" in text
    of_static, of_bm25, of_minilm = (
        right_signs(results["rows"], models)
        for models in (("static vectors",), ("bm25",), script.TRANSFORMERS)
    )
    assert f"in {of_static} with static vectors and {of_bm25} with BM25" in text
    assert f"but only in {of_minilm} with MiniLM alone and fused" in text
    lost, by_chance = (
        mean(choice[key] for choice in results["best"]) for key in ("lost", "lost_by_chance")
    )
    assert f"lost {lost:.3f} in nDCG@10 against the best one, on average" in text
    assert f"a random size lost {by_chance:.3f}" in text
    by_model = {
        model: tuple(
            mean(choice[key] for choice in results["best"] if choice["model"] == model)
            for key in ("lost", "lost_by_chance")
        )
        for model in ("bm25", "static vectors", "hybrid:minilm", "minilm")
    }
    of_bm25, of_static, of_fusion, of_minilm = (
        f"{lost:.3f} and {by_chance:.3f}" for lost, by_chance in by_model.values()
    )
    assert f"these are {of_bm25} with BM25, {of_static} with static vectors" in text
    assert f"{of_fusion} with the fusion, and {of_minilm} with MiniLM alone" in text
    page = " ".join((ROOT / "docs" / "own-corpus.md").read_text().split())
    lost, by_chance = by_model["hybrid:minilm"]
    assert f"lost {lost:.3f} in nDCG@10 against the best size with `hybrid:minilm`" in page
    assert f"and a random size {by_chance:.3f}; with `minilm` alone" in page
    held = Counter(
        row["model"]
        for row in results["rows"]
        if row["interval"][0] <= row["by_labels"] <= row["interval"][1]
    )
    assert held["bm25"] == held["hybrid:minilm"] == 24
    assert f"{held['minilm']} of 24 with MiniLM and {held['static vectors']} of 24" in text
