"""What the pages say of verdicts is what the benchmarks wrote."""

from __future__ import annotations

from importlib import import_module

import pytest
from test_results import PAGE, README, ROOT, results_of, section

from beir_cocodr.evaluation.calibration import PairFeatures
from beir_cocodr.evaluation.label_free.verdict import (
    CORPUS_ALONE,
    GIVEN_QUERIES,
    MISLED,
    NEW_KIND,
    READ_QUERIES,
    load_calibration,
)
from beir_cocodr.models.spec import RERANKED


def test_the_figures_of_verdicts_are_in_a_results_file():
    results = results_of("verdict")
    script = import_module("verdict")
    assert script.documented(results) in (ROOT / "docs" / "verdicts.md").read_text()
    text = section("verdict")
    for regime in script.regimes_of(results):
        summary = results[regime]["all"]
        counts = summary["counts"]
        held = f"{counts['covered'] / counts['pairs']:.0%}"
        assert f"hold in {held} of {counts['pairs']} pairs" in text
        assert f"{summary['width']:.2f} wide" in text
        assert f"right in {counts['right']} of {counts['decided']} decided pairs" in text
        decided = f"{counts['very_large_decided']} of the {counts['very_large']} pairs"
        assert f"decides {decided} whose labels differ by more than 0.05" in text
        missed = [aim for aim in results[regime]["aims"] if not aim["met"]]
        assert f"{len(missed)} of {len(results[regime]['aims'])} aims are missed" in text
    by_encoder = results["given queries"]["by encoder"]
    between = by_encoder["minilm and mpnet"]["counts"]
    assert f"is decided in {between['decided']} of {between['pairs']} pairs" in text
    assert f"significantly in {between['very_large']} of them" in text
    excess = {name: one["nonletter_excess"] for name, one in results["collections"].items()}
    unusual = ["cosqa-test500", "financebench-pages", "apidocs/numpy"]
    assert sorted(excess, key=excess.get, reverse=True)[:3] == unusual
    code, reports, numpy = (f"{excess[name]:.2f}" for name in unusual)
    words = f"On code it is larger by {code}, on annual reports by {reports}, on the documentation"
    assert f"{words} of numpy by {numpy}" in text
    assert script.AIM_MARKS.read(PAGE) == script.aims_table(results)
    assert script.DETAIL_MARKS.read(PAGE) == script.detail_tables(results)
    defects = results["given queries"]["defects"]
    worst = [
        f"{name['covered']} of {name['pairs']}"
        for name in (defects["shuffled"]["counts"], defects["missing"]["counts"])
    ]
    assert f"shuffled ({worst[0]})" in text
    assert f"documents are missing ({worst[1]})" in text
    covered = (defects[f"layers-{number}"]["counts"]["covered"] for number in (5, 4))
    assert "layers ({} and {} of 50)".format(*covered) in text
    right, decided = (
        sum(one["counts"][name] for one in defects.values()) for name in ("right", "decided")
    )
    assert f"{right} of the {decided} decided signs" in text
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    assert f"told {right} of {decided} decided signs rightly" in page
    biases = results["given queries"]["bias by overlap"]
    of_bm25 = {name: by_pair["bm25, dense"] for name, by_pair in biases.items()}
    crops, made_up = of_bm25["held-out crops"], of_bm25["generated queries"]
    usual, few = (-crops[part]["value"] for part in ("usual", "few"))
    assert f"lead over BM25 is too small by {usual:.2f}, and by {few:.2f} where people" in text
    for by_pair in biases.values():
        for parts in by_pair.values():  # "no slope is"
            assert abs(parts["slope"]["value"]) < 2 * parts["slope"]["error"]
    assert [round(made_up[part]["value"] * 4) for part in ("usual", "few")] == [-1, -1]
    kinds = results["given queries"]["by kind of collection"]
    before = results_of("verdict_read")["given queries"]["by kind of collection"]
    held, now = (
        [of_kinds[kind]["counts"]["covered"] for kind in ("finance", "code")]
        for of_kinds in (before, kinds)
    )
    assert {
        of_kinds[kind]["counts"]["pairs"]
        for of_kinds in (before, kinds)
        for kind in ("finance", "code")
    } == {29}
    words = "on annual reports {} of 29 intervals held, and on code {} of 29; now it is {} and {}."
    assert words.format(*held, *now) in text
    by_evidence = results["given queries"]["by evidence"]
    usual = by_evidence["what usually wins alone"]
    words = f"an error of {usual['error']:.3f} in nDCG@10, its intervals are {usual['width']:.2f}"
    assert words in text
    everything = results["given queries"]["all"]
    assert f"With all evidence the error is {everything['error']:.3f}" in text
    further = results["given queries"]["with a further family"]
    held = further["counts"]["covered"] / further["counts"]["pairs"]
    words = f"hold in {held:.0%} of pairs, are {further['width']:.2f} wide, and decide"
    assert f"{words} {further['counts']['decided']} pairs" in text
    seen = results["given queries"]["with nothing left out"]
    words = f"an error of {seen['error']:.3f} and intervals {seen['width']:.2f} wide, and decides"
    large = f"{seen['counts']['very_large_decided']} of the {seen['counts']['very_large']} pairs"
    assert f"{words} {large} beyond 0.05" in text
    values = {aim["name"]: aim["value"] for aim in results["given queries"]["aims"]}
    signs, regret = (values[aim.name] for aim in (script.RIGHT, script.REGRET))
    assert f"{signs:.3f} for 0.97, and {regret:.4f} for 0.01" in text
    short = " ".join(README.split())
    summary = results["given queries"]["all"]
    share = summary["counts"]["covered"] / summary["counts"]["pairs"]
    assert f"On {summary['collections']} labelled collections" in short
    assert f"in {share:.0%} of {summary['counts']['pairs']} pairs" in short
    counts = summary["counts"]
    right, decided = counts["right"], counts["decided"]
    assert f"{right} of {decided} decided signs were right" in short
    large = f"{counts['very_large_decided']} of {counts['very_large']}"
    assert (
        f"Of the pairs that differ significantly and by more than 0.05, it decided {large}" in short
    )
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    assert f"{counts['right']} of {counts['decided']} decided signs are right" in page
    assert f"{counts['very_large_decided']} of the {counts['very_large']} pairs" in page
    for number, text in (
        (7, "of {} pairs with a chance of about {:.0%}, labels agreed in {:.0%}"),
        (8, "of {} pairs with about {:.0%}, in {:.0%}"),
    ):
        row = results["given queries"]["reliability"][number]
        assert text.format(round(row["pairs"]), row["predicted"], row["observed"]) in page
    assert results["corpus alone"]["all"]["counts"]["decided"] == 0
    assert "a corpus without any queries gets the better bet but no decision" in short


def test_the_figures_of_a_language_model_are_in_a_results_file():
    results = results_of("verdict_read")
    text = section("verdict_read")
    without, read = (results[given]["all"] for given in (GIVEN_QUERIES, READ_QUERIES))
    counts = (read["counts"], without["counts"])
    held = "Intervals held in {} instead of {} of {} pairs"
    assert held.format(*(one["covered"] for one in counts), counts[0]["pairs"]) in text
    assert f"the error fell from {without['error']:.3f} to {read['error']:.3f}" in text
    right = [f"{one['right']} of {one['decided']}" for one in counts]
    assert "{} instead of {} decided signs".format(*right) in text
    large = [one["very_large_decided"] for one in counts]
    assert "{} instead of {} of the {}".format(*large, counts[0]["very_large"]) in text
    by_evidence = results[GIVEN_QUERIES]["by evidence"]
    alone, added, kept = (
        by_evidence[name]
        for name in (
            "written questions",
            "these and written questions",
            "crops and titles at the margins of real queries",
        )
    )
    decided, _ = (alone["counts"][name] for name in ("very_large_decided", "very_large"))
    assert f"decided {decided} of the {alone['counts']['very_large']} pairs beyond 0.05" in text
    assert f"from {kept['width']:.3f} to {added['width']:.3f} and decided" in text
    fewer, more = (one["counts"]["very_large_decided"] for one in (added, kept))
    assert f"decided {fewer} instead of {more} of these pairs" in text
    for parts in results[GIVEN_QUERIES]["bias by overlap"]["written questions"].values():
        assert all(abs(part["value"]) < 2 * part["error"] for part in parts.values())
    assert READ_QUERIES not in load_calibration().models  # "is shown and does not count"


def test_the_figures_of_specificity_are_in_a_results_file():
    results = results_of("verdict_specificity")
    script = import_module("verdict_specificity")
    assert script.MARKS.read(PAGE) == script.table(results)
    text = section("verdict_specificity")
    assert list(results["forms"]) == list(script.FORMS)
    without, kept, *others = results["forms"].values()
    errors = [one["error"] for one in (kept, *others)]
    words = f"from {without['error']:.3f} to between {min(errors):.3f} and {max(errors):.3f}"
    assert words in text
    assert max(errors) < without["error"]
    verdicts = results_of("verdict")[GIVEN_QUERIES]["all"]
    for part in ("counts", "width", "error"):
        assert kept[part] == verdicts[part]
    before, after = (one["by encoder"]["mpnet"] for one in (without, kept))
    counts = (after["counts"], before["counts"])
    assert f"from {before['error']:.3f} to {after['error']:.3f}" in text
    covered = [one["covered"] for one in counts]
    assert "{} instead of {} of {} intervals".format(*covered, counts[0]["pairs"]) in text
    large = [one["very_large_decided"] for one in counts]
    assert "{} instead of {} of the {} pairs".format(*large, counts[0]["very_large"]) in text
    right = [f"{one['right']} of {one['decided']}" for one in counts]
    assert "{} instead of {} decided signs".format(*right) in text


def test_the_figures_of_left_out_kinds_are_in_a_results_file():
    results = results_of("verdict")["given queries"]
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    counts = results["all kinds left out"]["counts"]
    held = f"{counts['covered']:,} of {counts['pairs']:,} intervals of its pairs hold"
    right = f"{counts['right']} of {counts['decided']} decided signs are right"
    large = f"{counts['very_large_decided']} of the {counts['very_large']} pairs beyond 0.05"
    assert f"{held}; {right}, and {large} are decided" in page
    for part in ("pairs", "covered", "decided", "right"):
        of_kinds = results["kinds left out"].values()
        assert counts[part] == sum(one["counts"][part] for one in of_kinds)
    trusted = load_calibration().trust[GIVEN_QUERIES][NEW_KIND]
    assert trusted == counts | {"collections": results["all kinds left out"]["collections"]}


def test_the_figures_of_new_kinds_are_in_a_results_file():
    results = results_of("verdict_kinds")
    verdicts = results_of("verdict")
    script = import_module("verdict_kinds")
    known = script.table_of_known_kinds(verdicts[GIVEN_QUERIES])
    assert script.MARKS.read(PAGE) == f"{script.table(results)}\n\n{known}"
    text = section("verdict_kinds")
    held, right, decided = described(results)
    assert (
        f"hold in {held} pairs, {right} decided signs are right, and {decided} pairs beyond" in text
    )
    against_bm25 = results["by pair"]["colbert and bm25"]["counts"]
    in_words = (
        f"{against_bm25['covered']} of {against_bm25['pairs']} pairs: the one wrong sign is there"
    )
    assert in_words in text
    assert against_bm25["decided"] - against_bm25["right"] == 1
    kinds = results["by kind of collection"]
    assert not any(kinds[kind]["counts"]["decided"] for kind in ("code", "finance", "medicine"))
    counts = verdicts[GIVEN_QUERIES]["all kinds left out"]["counts"]
    in_words = f"intervals hold in {counts['covered']} of {counts['pairs']} pairs, and "
    assert f"{in_words}{counts['right']} of {counts['decided']} decided signs are right" in text
    bm25, alone, fused, splade, late = (f"{value:.3f}" for value in results["ndcg"].values())
    assert f"it has {splade} in nDCG@10, where BM25 has {bm25}, MiniLM {alone} alone and" in text
    assert f"{fused} with BM25. Late interaction over MiniLM's tokens has {late}." in text
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    assert f"to neither of which anything was fitted, {right} decided signs were right" in page


def test_the_figures_of_a_reranker_are_in_a_results_file():
    results = results_of("verdict_kinds_reranked")
    script = import_module("verdict_kinds")
    assert script.RERANKED_MARKS.read(PAGE) == script.table(results)
    assert results["settings"] == {"fitted": ["minilm"], "strangers": ["reranker"]}
    text = " ".join(PAGE.split())
    counts = results["all"]["counts"]
    count = results["all"]["collections"]
    trained_on = import_module("reranking").TRAINED_ON
    assert trained_on == ("scifact", "nfcorpus")
    assert f"of MiniLM's fusion on the {count} other collections" in text
    assert count + len(trained_on) == results_of("verdict_kinds")["all"]["collections"]
    assert import_module("collecting.reranker").DEPTH == 10  # "the ten best documents"
    right = f"{counts['right']} of {counts['decided']}"
    held = f"Only {counts['covered']} of {counts['pairs']} intervals hold"
    assert f"{held}, and {right} decided signs are right" in text
    bm25, _, fused, reranked = (f"{value:.3f}" for value in results["ndcg"].values())
    assert f"({reranked} against {fused} in nDCG@10, BM25 {bm25})" in text
    told, against_bm25 = (
        f"{pair['right']} of {pair['decided']}"
        for pair in (
            results["by pair"][f"rerank and {use}"]["counts"] for use in ("hybrid@0.5", "bm25")
        )
    )
    assert f"told rightly wherever it was decided ({told})" in text
    assert f"against BM25 only {against_bm25} signs are right" in text
    wide = results["as rerankers are judged"]["counts"]
    assert f"are {MISLED[RERANKED]:g} times as wide as those of other new kinds" in text
    assert f"Of such intervals {wide['covered']} of {wide['pairs']} hold here" in text
    assert f"{wide['right']} of {wide['decided']} decided signs would be right" in text
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    assert f"On the pairs of a small cross-encoder only {right} are" in page


def test_the_figures_of_late_interaction_with_specificity_are_in_a_results_file():
    results = results_of("verdict_kinds_late")
    assert results["settings"]["strangers"] == ["minilm-tokens"]
    before = results_of("verdict_kinds")["by model"]["colbert"]
    text = " ".join(PAGE.split())
    held, right, decided = described(results)
    old_held, old_right, _ = described({"all": before})
    assert held == old_held  # "As before"
    widths = f"{results['all']['width']:.2f} wide instead of {before['width']:.2f}"
    assert f"its intervals hold in {held} pairs, but they are {widths}" in text
    assert f"{right} decided signs are right ({old_right} before), and {decided} pairs" in text
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    assert f"with specificity {right} are on those of the late interaction" in page


def test_the_example_of_a_better_bet_has_the_figures_of_the_calibration():
    model = load_calibration().models[CORPUS_ALONE]
    usual = model.priors["dense, hybrid"].precedent
    chance = model.predict(PairFeatures(("dense", "hybrid"), {}, 0.3)).chance
    words = f"in {usual.better} of {usual.collections} labelled collections it was better, by"
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().replace("> ", "").split())
    assert f"{words} {usual.average:.2f} on average (chance {chance:.0%})" in page


def described(figures):
    """Return in how many pairs intervals hold, how many signs are right, and what is decided."""
    counts = figures["all"]["counts"]
    return (
        f"{counts['covered']} of {counts['pairs']}",
        f"{counts['right']} of {counts['decided']}",
        f"{counts['very_large_decided']} of {counts['very_large']}",
    )


def test_the_figures_of_left_out_encoders_are_in_a_results_file():
    results = results_of("verdict_encoders")
    script = import_module("verdict_encoders")
    assert script.describe(results, script.DOCUMENTED) in PAGE
    text = section("verdict_encoders")
    packaged = results["forms"][script.PACKAGED]
    by_minilm = packaged["MiniLM"]
    stranger = packaged["MiniLM and MPNet"]["e5"]
    held, right, decided = described(stranger)
    assert f"hold in {held} pairs, {right} decided signs are right, and {decided} pairs" in text
    assert (
        "{}, {} and {}; and those of all-mpnet-base-v2 are {}, {} and {}.".format(
            *described(by_minilm["e5"]), *described(by_minilm["mpnet"])
        )
        in text
    )
    for fit in (stranger, by_minilm["e5"]):
        finance = fit["by kind of collection"]["finance"]["counts"]
        assert f"only {finance['covered']} of {finance['pairs']} pairs, by either fit" in text
        assert not finance["decided"]
    three = packaged["MiniLM, MPNet and E5"]
    both = [one["minilm and mpnet"]["all"] for one in (by_minilm, three)]
    assert (
        "are {:.2f} wide; fitted to all three encoders {:.2f}, and".format(
            *(one["width"] for one in both)
        )
        in text
    )
    counts = both[1]["counts"]
    assert f"hold in {counts['covered']} of {counts['pairs']} pairs" in text
    fewer, more = (one["minilm"]["all"]["counts"] for one in (three, by_minilm))
    words = f"{fewer['very_large_decided']} instead of {more['very_large_decided']} of MiniLM's"
    assert f"{words} {more['very_large']}, so it" in text
    held, right, _ = described(by_minilm["glove"])
    assert f"hold in {held} pairs, and {right} decided signs are right" in text
    static = packaged["static word vectors"]["minilm"]
    counts = static["all"]["counts"]
    words = (
        f"only {counts['very_large_decided']} of MiniLM's {counts['very_large']} pairs are decided"
    )
    assert words in text
    picks = static["picks"]
    assert f"({picks['picked']:.3f} against {picks['fusion']:.3f})" in text
    counts = packaged["all encoders"]["minilm"]["all"]["counts"]
    words = f"{counts['very_large_decided']} of the {counts['very_large']} are decided"
    assert f"{words} ({counts['right']} of {counts['decided']} signs are right)" in text
    counts = by_minilm["glove and minilm"]["all"]["counts"]
    both = f"{counts['covered']} of {counts['pairs']} intervals hold"
    assert f"{both}, and {counts['right']} of {counts['decided']} decided signs are right" in text
    by_use = results["forms"][script.BY_USE]["MiniLM"]
    before, after = (one["minilm"]["all"] for one in (by_use, by_minilm))
    assert f"from {before['error']:.3f} to {by_use['minilm']['consistent']['error']:.3f}" in text
    assert f"from {before['error']:.3f} to {after['error']:.3f} and the width" in text
    assert f"from {before['width']:.2f} to {after['width']:.2f}" in text
    picked = [one["glove"]["picks"]["picked"] for one in (by_use, by_minilm)]
    assert "from {:.3f} to {:.3f}, of whose pairs".format(*picked) in text
    decided = [one["counts"]["very_large_decided"] for one in (after, before)]
    assert "decide {} instead of {} of MiniLM's".format(*decided) in text
    verdicts = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    for figures in (stranger, by_minilm["glove"]):
        held, right, _ = described(figures)
        assert f"{held} pairs, and {right} decided signs are right" in verdicts


def test_the_figures_of_few_labels_are_in_a_results_file():
    content = results_of("few_labels")
    script = import_module("few_labels")
    results = content["means"]
    assert script.MARKS.read(PAGE) == script.describe(results)
    text = section("few_labels")
    assert f"on {len(content['collections'])} of the" in text
    none, ten = results["0"], results["10"]
    fused = none["fixed hybrid@0.5:minilm"]
    assert f"taking the fusion ({none['joined']:.3f} against {fused:.3f})" in text
    gained, most = (none[name] - fused for name in ("joined", "best"))
    assert gained > most / 2
    assert ten["joined"] == pytest.approx(none["joined"], abs=0.001)  # "add nothing to that"
    assert f"by themselves they choose worse ({ten['labels alone']:.3f})" in text
    assert results["50"]["labels alone"] == pytest.approx(results["50"]["joined"], abs=0.001)
    assert f"as twenty whole ones ({results['20 drawn']['joined']:.3f})" in text
    above = {count: row["better than the encoder alone"] for count, row in results.items()}
    words = f"lies above 0 in {above['10']:.0%} of draws, without any in {above['0']:.0%}"
    assert f"{words}, with 50 in {above['50']:.0%}" in text
    short = " ".join(README.split())
    assert f"ten judged queries decided {above['10']:.0%} of the choices" in short
    page = " ".join((ROOT / "docs" / "verdicts.md").read_text().split())
    cases = f"in {above['0']:.0%} of cases without judgements, in {above['10']:.0%} with ten"
    assert f"{cases} judged queries and in {above['50']:.0%} with fifty" in page
    assert min(row["of these right"] for row in results.values()) >= 0.97
    held = [results[count]["interval holds"] for count in ("10", "20", "50")]
    assert "hold in {:.0%}, {:.0%} and {:.0%} of draws".format(*held) in text
    assert f"50 settle it in {results['50']['held-out gain above 0']:.0%} of draws" in text
    drawn = results["20 drawn"]["interval holds"]
    of_collections = {
        name: one["judged"]["20 drawn"]["interval holds"]["mean"]
        for name, one in content["collections"].items()
        if "20 drawn" in one["judged"]
    }
    least, next_one, *_ = sorted(of_collections, key=of_collections.get)
    assert f"hold in {drawn:.0%}, and least often on `{least}`" in text
    shares = (of_collections[least], of_collections[next_one])
    assert f"`{least}` ({shares[0]:.0%}) and `{next_one}` ({shares[1]:.0%})" in text
    assert f"in {min(held):.0%} to {max(held):.0%} of draws, and in {drawn:.0%} if only ten" in page


def test_the_figures_of_judges_are_in_a_results_file():
    results = results_of("judge")
    simulated = results["simulated"]
    text = section("judge")
    assert import_module("judge").describe(simulated) in PAGE
    held = ", ".join(f"{row['sequence']['holds_at_every_look']:.0%}" for row in simulated.values())
    assert f"held every time in {held} of samples" in text
    for row in simulated.values():
        for count in (20, 50):
            assert row[f"{count} labelled"]["holds"] >= 0.88
            assert row[f"{count} labelled"]["width_ratio"] <= 1
        assert row["sequence"]["holds_at_every_look"] >= 0.9
    for count in (20, 50):
        assert simulated["0.6"][f"{count} labelled"]["labels_needed"] <= 0.8
    for model in results["models"].values():
        agreement = model["agreement"]
        assert f"Its kappa is {agreement['kappa']:.2f} (relevant or not)" in text
        assert f"{agreement['kappa_quadratic']:.2f} (grades, quadratic weights)" in text
        assert f"correlation of its grades with the labels is {model['correlation']:.2f}" in text
        assert f"calls {agreement['relevant_by_judge']:.0%} of the passages relevant" in text
        assert f"labels call {agreement['relevant_by_labels']:.0%} relevant" in text
        assert f"({agreement['pairs']} pairs," in text
