"""What the pages say of adaptation without labels is what ``benchmarks/gains.py`` wrote."""

from __future__ import annotations

import json
from importlib import import_module

import adaptation
from test_results import README, ROOT, results_of, section

from beir_cocodr.evaluation.judged_vectors import CONFIDENCE
from beir_cocodr.retrieval.store.encode import encode

PAGE = (ROOT / "docs" / "adaptation.md").read_text()
PROSE = " ".join(PAGE.split())
SHORT = " ".join(README.split())

#: Methods that fuse the encoder with BM25.
FUSIONS = ("hybrid", "rm3", "fuse", "fuse, feedback")


def figures() -> dict:
    return results_of("gains")["encoders"]["minilm"]


def means(part: str) -> dict[str, dict[str, float]]:
    """Return collection to the means of all methods on it."""
    collections = figures()["collections"]
    return {name: collections[name]["means"] for name in import_module("gains_tables").GROUPS[part]}


def test_the_tables_of_adaptation_are_what_the_benchmark_wrote():
    tables = import_module("gains_tables")
    results = results_of("gains")
    for name, marks in tables.MARKS.items():
        assert marks.read(PAGE) == tables.markdown(name, results)


def test_what_the_readme_says_of_adaptation_is_what_the_benchmark_wrote():
    rows = results_of("beir_small")["tasks"]["nfcorpus"]["rows"]
    published = json.loads((ROOT / "benchmarks" / "published" / "cocodr.json").read_text())
    large = published["table1"]["scores"]["nfcorpus"]["coco-dr-large"]
    on_nfcorpus = SHORT.split("BEIR's NFCorpus")[1].split(". ")[0]
    assert f"MiniLM alone has {rows['MiniLM']['alone']['mean']:.3f}" in on_nfcorpus
    of_vector = rows["MiniLM, fuse with feedback"]["fused"]["mean"]
    assert f"single vector of `fuse` with feedback {of_vector:.3f}, and COCO-DR" in on_nfcorpus
    assert f"has {large:.3f} as published" in on_nfcorpus
    groups = figures()["groups"]["new"]
    dense, hybrid, feedback = (
        f"{groups[label]['mean']:.3f}" for label in ("dense", "hybrid", "fuse, feedback")
    )
    gains = f"MiniLM alone has {dense}, the fusion `hybrid` {hybrid}, and the single vector"
    on_new = SHORT.split("nine collections that had no")[1]
    assert f"{gains} with feedback {feedback}, which is significantly below the fusion" in on_new
    assert groups["fuse, feedback"]["against hybrid"] == {"better": 0, "worse": 2}
    assert "on two of them; on two, every fusion is below MiniLM alone" in on_new


def test_fusions_lose_where_the_page_says_so():
    losing = []
    for name, of_collection in means("new").items():
        if all(of_collection[label] < of_collection["dense"] for label in FUSIONS):
            losing.append(name)
    assert sorted(losing) == ["cosqa-test500", "financebench-pages"]
    assert "on `cosqa-test500` and `financebench-pages`, BM25 is so much weaker" in PROSE
    groups = figures()["groups"]
    new = groups["new"]
    highest = max(new, key=lambda label: new[label]["mean"])
    assert highest.startswith("hybrid")
    behind, more = (new["hybrid"]["mean"] - new[label]["mean"] for label in FUSIONS[2:])
    assert f"without feedback it is {behind:.3f} below `hybrid` there" in PROSE
    assert f"and with feedback {more:.3f}, significantly on one and on two collections" in PROSE
    assert [new[label]["against hybrid"]["worse"] for label in FUSIONS[2:]] == [1, 2]
    old = groups["chosen on"]
    ahead = old["fuse, feedback"]["mean"] - old["hybrid"]["mean"]
    assert f"feedback was chosen it is {ahead:.3f} above `hybrid`" in PROSE


def test_the_aims_are_met_or_missed_as_the_page_says():
    tables = import_module("gains_tables")
    collections = figures()["collections"]
    cut = [name for name, one in collections.items() if one["documents"] < one["of"]]
    assert cut == ["apidocs/pandas"]
    assert "Collections are whole, but for the documentation of pandas" in PROSE
    table = tables.MARKS["aims"].read(PAGE)
    assert (table.count(": met"), table.count(": missed")) == (1, 11)
    estimates = figures()["estimates"]
    lighter = [name for name in collections if estimates.get(name, 0) < 0]
    assert lighter == ["dbpedia-pool"]  # the rule acts nowhere else
    worst = figures()["groups"]["chosen on"]["fuse, feedback"]["worst against dense"]
    assert worst[0] == "dbpedia-pool"
    tasks = results_of("beir_small")["tasks"]
    for task, of_task in tasks.items():
        in_float32 = of_task["rows"]["MiniLM"]["alone"]["mean"]
        assert abs(collections[task]["means"]["dense"] - in_float32) <= 0.003


def test_the_estimate_from_the_corpus_alone_changes_no_weight():
    """What ``hybrid@estimate`` would choose on every collection."""
    results = results_of("gains")
    estimates = results["corpus alone"]
    assert set(estimates) == set(results["encoders"])
    assert {len(of_encoder) for of_encoder in estimates.values()} == {29}
    assert all(value > 0 for of_encoder in estimates.values() for value in of_encoder.values())
    assert "above 0 on all 29 labelled collections with each of the four encoders" in PROSE
    least = []
    for name in ("mpnet", "e5"):
        encoder = results["encoders"][name]
        of_corpus = {one: estimates[name][one] for one in encoder["collections"]}
        assert encoder["estimates"] == of_corpus
        least.append(min(of_corpus.values()))
        for group in encoder["groups"].values():
            for label in ("hybrid", "fuse, feedback"):
                for figure in ("mean", "against dense"):
                    assert group[f"{label}, w by estimate"][figure] == group[label][figure]
    assert f"The estimate is at least {min(least):.2f} on every collection, so the weight" in PROSE


def test_the_figures_of_stronger_encoders_are_what_the_benchmark_wrote():
    encoders = results_of("gains")["encoders"]
    labels = ("dense", "hybrid", "fuse, feedback")
    said = (
        "all-mpnet-base-v2 has {} alone, {} with `hybrid`, and {} with `fuse` and feedback; "
        "multilingual-e5-small has {}, {} and {}."
    )
    means = []
    for name, better in (("mpnet", 0), ("e5", 2)):
        encoder = encoders[name]
        assert set(encoder["collections"]) == set(encoders["glove"]["collections"])
        assert max(one["documents"] for one in encoder["collections"].values()) == 3_000
        new = encoder["groups"]["new"]
        means += [f"{new[label]['mean']:.3f}" for label in labels]
        assert new["fuse, feedback"]["against hybrid"] == {"better": better, "worse": 0}
        of = {one: content["means"] for one, content in encoder["collections"].items()}
        assert all(of["cosqa-test500"][label] < of["cosqa-test500"]["dense"] for label in FUSIONS)
    assert said.format(*means) in PROSE
    german = {
        name: encoder["collections"]["legalquad-de"]["means"] for name, encoder in encoders.items()
    }
    ours, bm25 = german["e5"], german["minilm"]["bm25"]
    others = "where the English encoders have {:.3f} and {:.3f}".format(
        *(german[name]["dense"] for name in ("mpnet", "minilm"))
    )
    assert f"multilingual-e5-small has {ours['dense']:.3f} alone, {others}" in PROSE
    assert (
        f"and {ours['hybrid']:.3f} with `hybrid`, about as much as BM25 alone ({bm25:.3f})" in PROSE
    )
    med = encoders["mpnet"]["collections"]["med"]["means"]
    assert all(med[label] < med["dense"] for label in FUSIONS)
    assert f"(with feedback {med['fuse, feedback']:.3f} against {med['dense']:.3f}, not" in PROSE
    old = encoders["mpnet"]["groups"]["chosen on"]
    assert all(old[label]["against dense"]["worse"] == 0 for label in FUSIONS)


def test_whole_documents_with_another_encoder_are_what_the_benchmark_wrote():
    script = import_module("chunk_pooling")
    results = results_of("chunk_pooling_mpnet")
    assert script.MPNET_MARKS.read(PAGE) == script.markdown(results)
    assert list(results["collections"]) == ["aila-statutes", "anthropic-docs", "financebench-pages"]
    [clear] = [test for test in results["tests"] if test["p"] < 0.05]
    assert (clear["way"], clear["use"]) == ("mean", "fused")
    means = results["collections"][clear["collection"]]["means"]
    figures = f"({means['mean']['fused']:.3f} against {means['first']['fused']:.3f}, "
    assert clear["difference"] < 0
    lost = f"loses significantly on `{clear['collection']}` {figures}p = {clear['p']:.3f})"
    assert f"Nothing gains significantly either, and `mean` fused with BM25 {lost}" in PROSE


def test_one_vector_is_the_fusion_on_small_collections_alone():
    collections = figures()["collections"]
    small, large = [], []
    for one in collections.values():
        gap = one["means"]["fuse"] - one["means"]["hybrid"]
        (small if one["documents"] <= 1_033 else large).append(gap)
    assert max(map(abs, small)) < 0.0025
    assert f"on the {len(small)} collections of at most 1,033 documents the two differ" in PROSE
    span = f"{min(large):+.3f} to {max(large):+.3f}"
    assert f"On the other {len(large)} the difference is {span}" in PROSE
    above = sum(gap > 0 for gap in large)
    assert f"is below `hybrid` on {len(large) - above} and above it on {above}" in PROSE
    scifact = results_of("beir_small")["tasks"]["scifact"]
    [test] = [one for one in scifact["tests"]["fused"] if one["b"] == "MiniLM, fuse"]
    assert (test["a"], test["t_p_holm"] < 0.001) == ("MiniLM", True)
    rows = scifact["rows"]
    fused = [rows[row]["fused"]["mean"] for row in ("MiniLM, fuse", "MiniLM")]
    pair = "{:.3f} against {:.3f}".format(*fused)
    assert f"largest loss is that on SciFact ({pair}, p < 0.001)" in PROSE
    assert f"BM25's index: {pair} (p < 0.001)" in PROSE


def test_the_source_of_splades_figures_is_on_the_page():
    splade = import_module("gains_tables").SPLADE
    said = f"{splade['scifact']} on SciFact and {splade['nfcorpus']} on NFCorpus"
    assert said in PROSE.split("Anserini](https://github.com/castorini/anserini)")[1]


def test_reranking_by_pieces_is_what_the_benchmark_wrote():
    script = import_module("reranking")
    results = results_of("reranking")
    assert script.MARKS.read(PAGE) == script.markdown(results)
    said = " ".join(PAGE.split("### Rerankers")[1].split("## With another encoder")[0].split())
    assert all(test["p"] >= 0.05 for test in results["tests"])
    losses = [-test["difference"] for test in results["tests"]]
    assert f"lower on all five, by {min(losses):.3f} to {max(losses):.3f}" in said
    assert len(losses) == 5
    assert min(losses) > 0
    collections = results["collections"].values()
    ratios = [of["seconds"][script.PIECES] / of["seconds"][script.CUT] for of in collections]
    assert f"between {min(ratios):.0f} and {max(ratios):.0f} times as long" in said
    means = [of["means"] for of in collections]
    worse = [of[script.CUT] < of[script.FIRST] - 0.05 for of in means]
    assert f"worse than the fusion on {in_words(sum(worse))} of the five" in said
    settings = results["settings"]
    assert f"in {settings['steps']} steps" in said
    assert settings["depth"] == 10


NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen"
).split()


def in_words(count: int) -> str:
    return NUMBERS[count - 1]


def distilled() -> tuple[str, dict, dict, dict]:
    """Return the prose below the table, and the changes of all rows: trained, a half, and kept."""
    script = import_module("distillation")
    results = results_of("distillation")
    said = PROSE.split("<!-- end of distillation -->")[1].split("## What did not work")[0]
    of_tasks = results_of("beir_small")["tasks"]
    changes = []
    for row in (script.UNMERGED, script.HALF, script.MERGED):
        of_row = {
            use: {name: of[row][use] / of["MiniLM"][use] - 1 for name, of in means.items()}
            for use in ("alone", "fused")
            for means in [results["means"]]
        }
        for name, of in of_tasks.items():
            if row in of["rows"]:
                for use, by_name in of_row.items():
                    after, before = (of["rows"][one][use]["mean"] for one in (row, "MiniLM"))
                    by_name[name] = after / before - 1
        changes.append(of_row)
    trained, half, kept = changes
    return said, trained, half, kept


def test_the_figures_of_distillation_without_labels_are_what_the_benchmark_wrote():
    script = import_module("distillation")
    results = results_of("distillation")
    assert script.MARKS.read(PAGE) == script.markdown(results)
    said, trained, half, _kept = distilled()
    rows, total = len(half["alone"]), len(trained["alone"])
    assert f"With SciFact and NFCorpus these are {in_words(total)} collections" in said
    raised = [change for change in trained["alone"].values() if change > 0]
    words = f"raised {in_words(len(raised))} of them, by {min(raised):.0%} to {max(raised):.0%}"
    assert f"{words}, on none significantly" in said
    lowered = sorted((change, name) for name, change in trained["alone"].items() if change < 0)
    *first, last = [f"`{name}` ({change:.1%})" for change, name in lowered]
    [(name, p_alone)] = [
        (name, value)
        for name, value in results["p"][script.UNMERGED]["alone"].items()
        if value < 0.05
    ]
    assert trained["alone"][name] < 0
    words = f"{', '.join(first)} and {last}, only `{name}` significantly (p = {p_alone:.3f})"
    assert f"It lowered {words}" in said
    p = results["p"]
    assert min(p[script.UNMERGED]["fused"].values()) >= 0.05
    for of in results_of("beir_small")["tasks"].values():
        [test] = [one for one in of["tests"]["alone"] if one["b"] == script.UNMERGED]
        assert test["t_p_holm"] >= 0.05
    whole = figures()["collections"]
    teachers = {name: whole[name]["means"] for name in trained["alone"]}
    behind = [name for name, of in teachers.items() if of["rm3"] < of["dense"]]
    *first, last = [f"`{name}`" for name in behind]
    assert f"On {', '.join(first)} and {last} the teacher, `rm3`, is itself below MiniLM" in said
    worse = {name for name, change in trained["alone"].items() if change < 0}
    assert f"it is above on the other {in_words(len(worse - set(behind)))} as well" in said

    means = results["means"]
    lower = [of[script.UNMERGED]["fused"] < of["MiniLM"]["fused"] for of in means.values()]
    assert f"{in_words(sum(lower))} of the {in_words(rows)} collections of the table are lower" in (
        said
    )
    better = [of["MiniLM"]["fused"] > of[script.UNMERGED]["alone"] for of in means.values()]
    for of in results_of("beir_small")["tasks"].values():
        of_rows = of["rows"]
        better.append(
            of_rows["MiniLM"]["fused"]["mean"] > of_rows[script.UNMERGED]["alone"]["mean"]
        )
    assert f"vectors alone on {in_words(sum(better))} of the {in_words(total)}" in said


def test_the_figures_of_merged_distillation_are_what_the_benchmark_wrote():
    script = import_module("distillation")
    results = results_of("distillation")
    said, _trained, half, kept = distilled()
    for use in ("alone", "fused"):
        values = half[use].values()
        assert f"{min(values):+.0%} to {max(values):+.0%} {use}" in said
    clear = [name for name, value in results["p"][script.HALF]["alone"].items() if value < 0.05]
    assert clear == ["cacm"]
    after, before = (results["means"]["cacm"][row]["alone"] for row in (script.HALF, "MiniLM"))
    many = in_words(sum(change >= 0.02 for change in half["alone"].values()))
    words = f"at least 2% better on {many} of the {in_words(len(half['alone']))}"
    assert f"{words}, significantly on `cacm` ({before:.3f} to {after:.3f})" in said
    total = in_words(len(kept["alone"]))
    many = in_words(sum(change >= 0.02 for change in kept["alone"].values()))
    assert (
        f"at least 2% better alone on {many} of the {total}, and significantly worse on none"
        in (said)
    )
    same = in_words(sum(change == 0 for change in kept["alone"].values()))
    assert f"On {same} of the {total} the stage keeps MiniLM unchanged" in said
    of_kept = results["p"][script.MERGED]
    assert all(value >= 0.05 for use in ("alone", "fused") for value in of_kept[use].values())


def test_what_checks_a_distilled_model_is_what_the_benchmark_wrote():
    script = import_module("distillation")
    results = results_of("distillation")
    means = results["means"]
    said, trained, _half, _kept = distilled()
    merging = {name: of["merging"] for name, of in results["collections"].items()}
    assert (merging["npl"]["kind"], merging["npl"]["share"]) == ("crops", 0)
    assert trained["alone"]["npl"] > 0.01
    barely = merging["cranfield"]
    assert (barely["share"], barely["gain"] > 0) == (0, True)
    assert f"({barely['confidence']:.2%} of {CONFIDENCE:.0%})" in said
    for name in ("cacm", "cisi", "lisa", "liveqa-medquad"):
        assert (merging[name]["kind"], merging[name]["share"]) == ("titles", 0)
        assert merging[name]["queries"] == 100
        assert trained["alone"][name] > 0.01
    assert (merging["anthropic-docs"]["kind"], merging["anthropic-docs"]["share"]) == (
        "titles",
        0.5,
    )
    after, before = (means["anthropic-docs"][row]["alone"] for row in (script.MERGED, "MiniLM"))
    assert f"a half is kept ({before:.3f} to {after:.3f})" in said
    shares = ("0.25", "0.5", "0.75", "1.0")
    falling = [merging["cisi"]["means"][share] for share in shares]
    assert falling == sorted(falling, reverse=True)  # "pointed the other way"
    of_others = ("dbpedia-pool", "msmarco-pool", "time")
    for name in ("aila-statutes", "financebench-pages", *of_others):
        assert trained["alone"][name] < 0
        assert merging[name]["share"] == 0
    assert (merging["cosqa-test500"]["kind"], merging["cosqa-test500"]["share"]) == ("claims", 0.25)
    kept, base, all_weights = (
        means["cosqa-test500"][row]["alone"] for row in (script.MERGED, "MiniLM", script.UNMERGED)
    )
    words = f"({kept:.3f} instead of {base:.3f}, where all of the weights have {all_weights:.3f})"
    assert words in said

    confirmed = results["held out by name"]["keywords"]
    losses = {}
    for name in ("msmarco-pool", "cosqa-test500"):
        assert confirmed["collections"][name]["merging"]["share"] == 1
        after, before = (confirmed["means"][name][row] for row in (script.UNMERGED, "MiniLM"))
        losses[name] = {use: f"{after[use]:.3f} instead of {before[use]:.3f}" for use in after}
    on_web, on_code = losses.values()
    assert f"{on_web['alone']} and {on_code['alone']} alone" in said
    assert f"fused {on_web['fused']} and, significantly, {on_code['fused']}." in said
    p = confirmed["p"][script.UNMERGED]["fused"]
    assert p["cosqa-test500"] < 0.05 <= p["msmarco-pool"]
    on_claims = confirmed["means"]["med"][script.UNMERGED]["alone"]
    on_keywords = means["med"][script.UNMERGED]["alone"]
    words = f"claims had {on_claims:.3f} alone, and training on keywords has {on_keywords:.3f}"
    assert words in said


def test_the_other_rule_of_merging_is_what_the_benchmark_wrote():
    script = import_module("distillation")
    content = results_of("distillation")["collections"]
    said, _trained, half, kept = distilled()
    confidences = {name: script.confidence_of_half(of) for name, of in content.items()}
    others = [
        name
        for name, confidence in confidences.items()
        if confidence is not None and name not in ("cacm", "cisi", "med")
    ]
    assert f"Of the {in_words(len(others))} others with such a figure it keeps a half" in said
    by_rule = [name for name in others if confidences[name] >= CONFIDENCE]
    *first, last = [f"`{name}`" for name in by_rule]
    assert f"keeps a half on {', '.join(first)} and {last}" in said
    assert changes_of(half, by_rule, "{} alone and {} fused") in said
    now = [name for name in others if content[name]["merging"]["share"]]
    assert [content[name]["merging"]["share"] for name in now] == [0.5, 0.25]
    assert now == ["anthropic-docs", "cosqa-test500"]
    assert changes_of(kept, now, "{} alone, {} fused") in said


def changes_of(changes: dict, names: list[str], words: str) -> str:
    """Return the changes of some collections in words, alone and fused."""
    listed = []
    for use in ("alone", "fused"):
        *first, last = [f"{changes[use][name]:+.1%}" for name in names]
        listed.append(f"{', '.join(first)} and {last}")
    return words.format(*listed)


def check_sharpening(bullet: str) -> None:
    """Check what the page says of queries that move vectors, at the default weight."""
    weight = import_module("beir_cocodr.retrieval.store.record").SHARPEN_WEIGHT
    collections = results_of("sharpening")["collections"]
    changes, contrastive, written = sharpened_by(collections, weight)
    assert f"At the weight {weight}, queries without a language model changed" in bullet
    alone, fused = changes
    low, high = min(alone.values())[0], max(alone.values())[0]
    assert f"nDCG@10 by {low:+.3f} to {high:+.3f} on eight collections" in bullet
    assert len(alone) == 8
    assert [name for name, (_, p) in alone.items() if p < 0.05] == ["legalquad-de"]
    low, high = min(fused.values())[0], max(fused.values())[0]
    assert f"changed it by {low:+.3f} to {high:+.3f}, nowhere significantly" in bullet
    assert all(p > 0.05 for _, p in fused.values())
    losses = f"lost {-mean(contrastive[0]):.3f} and {-written[0]:.3f} on average"
    assert f"those of a small language model, {losses}" in bullet


def mean(changes: dict) -> float:
    """Return the mean of the differences of some collections."""
    return sum(difference for difference, _ in changes.values()) / len(changes)


def sharpened_by(collections: dict, weight: float) -> tuple[list, list, list]:
    """Return the changes at a weight, alone and fused.

    Those of all queries and of contrastive ones without a language model by collection, and the
    difference by the queries of a small language model.
    """
    script = import_module("sharpening")
    changes, contrastive, written = [], [], []
    for use in ("alone", "fused"):
        rows = script.table(collections, use)
        of_all, of_some = dict(rows[f"all, {weight}"]), dict(rows[f"contrastive, {weight}"])
        written.append(of_all.pop("anthropic-docs, language model")[0])
        del of_some["anthropic-docs, language model"]
        changes.append(of_all)
        contrastive.append(of_some)
    return changes, contrastive, written


def test_the_figures_of_sharpening_are_what_the_benchmark_wrote():
    script = import_module("sharpening")
    collections = results_of("sharpening")["collections"]
    assert script.MARKS.read(script.PAGE.read_text()) == script.markdown(collections)
    text = section("sharpening")
    means, rest = {}, {}
    for weight in script.WEIGHTS:
        (alone, fused), contrastive, written = sharpened_by(collections, weight)
        means[weight] = (mean(alone), mean(fused))
        others = [
            {name: one for name, one in part.items() if name != "legalquad-de"}
            for part in (alone, fused)
        ]
        rest[weight] = tuple(map(mean, others))
        assert all(difference < 0 for difference in written)
        if weight == 0.25:
            assert {round(mean(one), 3) for one in contrastive} == {-0.003}
            assert "they change the eight by -0.003 on average, alone and fused" in text
    said = "the weight 0.25 gains {:.3f} alone and {:.3f} fused on average over the eight"
    assert said.format(*means[0.25]) in text
    assert "and 0.5 gains {:.3f} and {:.3f}.".format(*means[0.5]) in text
    said = "means are {:+.3f} and {:+.3f} at 0.25, and {:+.3f} and {:+.3f} at 0.5."
    assert said.format(*rest[0.25], *rest[0.5]) in text
    contrastive = script.table(collections, "alone")["contrastive, 1.0"]
    losing = [name for name, (difference, p) in contrastive.items() if p < 0.05 and difference < 0]
    assert losing == ["cranfield", "anthropic-docs", "financebench-pages"]
    assert "significantly on `cranfield`, `anthropic-docs` and `financebench-pages`, by" in text
    written = collections["anthropic-docs, language model"]
    kept = f"kept some for {written['with queries']} of the {written['documents']} documents"
    assert kept in text


def test_distillation_on_written_queries_is_what_the_benchmark_wrote():
    script = import_module("distillation")
    results = results_of("distillation")
    of_model = results["language model"]
    assert script.MODEL_MARKS.read(PAGE) == script.markdown(of_model)
    said = PROSE.split("### Queries by a small language model")[1].split("## What did not")[0]
    [(name, content)] = of_model["collections"].items()
    generation = content["generation"]
    counts = generation["counts"]
    passages = counts["passages"] + counts["passages_left_out"]
    assert f"For {counts['passages']} of the {passages:,} passages of `{name}`" in said
    minutes = generation["seconds"]["generating"] / 60
    assert f"{counts['generated'] // 4} queries of each kind, in {minutes:.0f} minutes" in said
    assert f"Of these {counts['generated']:,}, {counts['empty']} had no usable text" in said
    removed = f"removed {counts['inconsistent']:,}, and {counts['near_duplicates']} were near"
    assert removed in said
    kinds = ("questions", "claims", "keywords", "titles")
    left = "{} questions, {} claims, {} keywords and {} titles were left"
    assert left.format(*(counts[kind] for kind in kinds)) in said
    assert sum(counts[kind] for kind in kinds) == counts["queries"]
    assert content["merging"]["kind"] == "titles"
    assert content["merging"]["share"] == 0
    means = of_model["means"][name]
    base, trained, half_row = (means[row] for row in (script.BASE, script.UNMERGED, script.HALF))
    without = results["means"][name][script.UNMERGED]["alone"]
    figures = f"{trained['alone']:.3f} alone instead of {base['alone']:.3f}, where queries without"
    assert f"{figures} a model lead to {without:.3f}" in said
    p = of_model["p"][script.HALF]["fused"][name]
    assert f"({half_row['fused']:.3f} against {base['fused']:.3f}, p = {p:.3f})" in said
    assert p < 0.05


def test_what_did_not_work_is_in_results_files():
    listed, kept_nowhere = PAGE.split("## What did not work")[1].split("early trials")
    bullets = [" ".join(bullet.split()) for bullet in listed.split("\n- ")[1:]]
    weight, sharpening, judgements, distillation = bullets

    collections = figures()["collections"].values()
    for label, said in (
        ("hybrid", "is worse on {} of the {} collections"),
        ("fuse, feedback", "`fuse` with feedback on {}"),
    ):
        worse = [one["means"][f"{label}, w 0.2"] < one["means"][label] for one in collections]
        assert said.format(sum(worse), len(worse)) in weight

    check_sharpening(sharpening)

    gains = results_of("thumbs")["means"]
    alone, fused = (
        {count: f"{gains[count][f'{use}, 80%']['mean']:+.4f}" for count in ("10", "50")}
        for use in ("dense", "hybrid")
    )
    assert alone["10"] == fused["10"]
    average = f"{alone['10']} on average over {gains['collections']} collections"
    assert f"{average}, by the vectors alone and fused alike" in judgements
    assert f"With 50 it gains: {alone['50']} alone and {fused['50']} fused" in judgements

    results = results_of("query_as_context")
    steps = results["settings"]["distill_steps"]
    worse = {}
    for name, target in results["targets"].items():
        [test] = [one for one in target["comparisons"] if one["b"] == "distilled"]
        assert test["difference"] < 0 or test["t_p_holm"] >= 0.05  # "better on none"
        if test["t_p_holm"] < 0.05:
            worse[name] = test["difference"]
    said = f"on {len(worse)} of {len(results['targets'])} targets"
    each = ", ".join(f"{loss:+.3f} on `{name}`" for name, loss in worse.items())
    assert f"{steps} steps, was significantly worse than the base {said} ({each})" in distillation

    assert not any(character.isdigit() for character in kept_nowhere.replace("BM25", ""))


def test_the_script_of_adaptation_measures_a_small_collection(beir_folder, tiny_cosine, tmp_path):
    encode(str(beir_folder), str(tiny_cosine), tmp_path / "store")
    subject = adaptation.Subject(
        str(beir_folder), str(tiny_cosine), tmp_path / "store", only_few=True
    )
    figures = adaptation.Study(subject, tmp_path).run()
    assert set(figures["methods"]) == set(adaptation.FEW)
    assert {len(values) for values in figures["per_query"].values()} == {figures["queries"]}
