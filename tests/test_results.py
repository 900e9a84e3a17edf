"""The figures of the documentation stand in the files that the benchmarks wrote."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

from harness.page import measured

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "results.md").read_text()


def results_of(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def section(name: str) -> str:
    """What the page has about a benchmark, below the line with its machine and date, as one
    line.
    """
    line = measured(name)
    below = PAGE.split(f"\n{line}\n", 1)[1]
    return " ".join(re.split(r"\n## |\n\*`benchmarks/", below)[0].split())


def test_every_result_stands_with_its_script_machine_date_and_seeds():
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert f"\n{measured(file.stem)}\n" in PAGE, f"docs/results.md lacks {measured(file.stem)}"


def test_the_table_is_what_the_benchmark_wrote():
    script = import_module("quickstart")
    assert script.MARKS.read(PAGE) == script.markdown(results_of("quickstart"))


def test_the_tables_of_fusions_are_what_the_benchmark_wrote():
    tables = import_module("adaptation_tables")
    found = results_of("adaptation")
    assert tables.MARKS.read(PAGE) == tables.markdown(found)
    assert tables.SHORT_MARKS.read(README) == tables.short_table(found)
    text = section("adaptation")
    aims = found["aims"]
    assert f"{aims['hybrid over dense on prose']:.0%} above the dense encoder" in text
    gaps = aims["hybrid less the exact fusion"].values()
    assert f"at most {-min(gaps):.3f} below" in text
    fits = [
        one["methods"]["hybrid auto"]["seconds_to_fit"]
        for one in found["encoders"]["base"].values()
    ]
    assert f"took {min(fits):.0f} to {max(fits):.0f} seconds" in text
    tests = [
        test
        for one in found["tests"].values()
        for test in one["against dense"]
        if test["b"] == "hybrid auto"
    ]
    better = sum(test["p_holm"] < 0.05 and test["difference"] > 0 for test in tests)
    assert f"on {better} of {len(tests)} collections" in text
    phrases = {
        "dense": (
            "the dense encoder went from {} to {}, {} and {}",
            "on {} of {} collections for the dense encoder",
        ),
        "hybrid auto": (
            "the hybrid encoder from {} to {}, {} and {}",
            "on {} of {} for the hybrid encoder",
        ),
    }
    for label, (means, significant) in phrases.items():
        seeds = found["over seeds"]["means"][label]
        assert (
            means.format(*(f"{mean:.3f}" for mean in (seeds["untrained"], *seeds["trained"])))
            in text
        )
        tests = [
            t
            for one in found["tests"].values()
            for t in one["trained against untrained"]
            if t["a"] == label
        ]
        better = sum(test["p_holm"] < 0.05 and test["difference"] > 0 for test in tests)
        assert significant.format(better, len(tests)) in text


def test_the_figures_of_another_encoder_stand_in_a_results_file():
    script = import_module("adaptation_tables")
    found = results_of("adaptation_mpnet")
    text = " ".join(PAGE.split("### With another encoder")[1].split("\n## ")[0].split())
    base, prose = found["encoders"]["base"], found["prose"]
    parts = [
        {name: base[name] for name in names} for names in (prose, base.keys() - set(prose), base)
    ]
    for label in (
        "dense",
        "bm25",
        "fusion, w 0.5",
        "RM3 fusion",
        "feedback",
        "hybrid auto",
    ):
        assert (
            "| {} | {:.3f} | {:.3f} | {:.3f} |".format(
                label, *(script.mean(part, label) for part in parts)
            )
            in text
        )
    gaps = found["aims"]["hybrid less the exact fusion"]
    on_prose, elsewhere = (-min(gaps[name] for name in part) for part in parts[:2])
    assert f"{found['aims']['hybrid over dense on prose']:.0%} above the dense encoder" in text
    assert (
        f"at most {on_prose:.3f} below the exact fusion there and {elsewhere:.3f} on documentation"
        in text
    )
    tests = [
        test
        for one in found["tests"].values()
        for test in one["against dense"]
        if test["b"] == "hybrid auto"
    ]
    better = sum(test["p_holm"] < 0.05 and test["difference"] > 0 for test in tests)
    assert f"on {better} of {len(tests)} collections" in text


def test_what_the_readme_says_of_training_stands_in_results_files():
    short = " ".join(README.split())
    [gain] = [
        t
        for t in results_of("quickstart")["mean_over_seeds_against_base"]
        if t["b"] == "base + source"
    ]
    assert gain["t_p_holm"] < 0.05
    assert f"gained {gain['difference']:.3f} nDCG@10 in the quickstart" in short
    assert len(results_of("ablation")["targets"]) == 6
    assert (
        "COCO with iDRO was better than its base on one target of six, MRL and query-as-context on none"
        in short
    )


def test_the_figures_of_search_stand_in_a_results_file():
    results, text = results_of("search"), section("search")
    ratios, rivals = results["ratios"], results["rivals"]
    assert f"{ratios['beir / ours_dictionaries']['median']:.1f} times as fast as BEIR" in text
    assert f"{ratios['ours_arrays / faiss']['median']:.2f} of the time of FAISS" in text
    peaks = [round(rivals[name]["peak_mib"]) for name in ("ours_arrays", "faiss", "beir")]
    assert "{} MiB against {} (FAISS) and {} (BEIR)".format(*peaks) in text
    assert f"{results['machine']['instructions']} instructions" in text
    assert f"takes {ratios['faiss / product']['median']:.1f} times PyTorch's" in text
    one_dnn = ratios["ours_arrays / product_one_dnn"]["median"]
    assert f"selected, ours takes {one_dnn:.2f} times the time, and on" in text
    product = ratios["ours_arrays / product"]
    assert (
        f"takes {product['median']:.2f} times the time ({product['processor']:.2f} of the processor's)"
        in text
    )
    assert text.endswith(
        f"at most {product['at_most']:.2f} is the aim: {'met' if product['met'] else 'missed'}."
    )


def test_the_training_figures_stand_in_a_results_file():
    results, text = results_of("idro")["shapes"], section("idro")
    base, mini = results["bert-base"], results["minilm"]
    assert f"{base['one_backward_to_erm']:.2f} times the time for BERT-base" in text
    assert f"({base['triplets']} triplets, {base['clusters_present']} clusters present" in text
    assert f"and {mini['one_backward_to_erm']:.2f} for MiniLM" in text
    slower = [shape["k_calls_to_one_backward"] for shape in (base, mini)]
    assert "takes {:.1f} and {:.1f} times as long".format(*slower) in text


def test_what_coco_and_idro_did_stands_in_a_results_file():
    targets, text = results_of("ablation")["targets"], section("ablation")
    better = []
    for name, found in targets.items():
        for test in found["comparisons"]:
            if (test["a"], test["b"]) == ("base", "full") and test["t_p_holm"] < 0.05:
                better.append(name)
            if test["family"].startswith("full") and test["a"] in ("-iDRO", "GroupDRO"):
                assert test["t_p_holm"] >= 0.05
    assert better == ["apidocs/sklearn"]
    rows = targets["apidocs/sklearn"]["rows"]
    assert (
        "{:.3f} to {:.3f} nDCG@10".format(*(rows[r]["nDCG@10"]["mean"] for r in ("base", "full")))
        in text
    )


def test_the_figures_of_means_and_variances_stand_in_a_results_file():
    results, text = results_of("mrl"), section("mrl")
    told = [
        test["difference"]
        for found in results["targets"].values()
        for test in found["comparisons"]
        if (test["a"], test["b"]) == ("dot", "mrl") and test["t_p_holm"] < 0.05
    ]
    assert all(difference < 0 for difference in told)
    assert f"significantly worse on {len(told)} of them and better on none" in text
    seeds = [seed for found in results["query_performance"].values() for seed in found]
    mean = {
        name: sum(abs(seed[name]["pearson"]) for seed in seeds) / len(seeds)
        for name in ("‖σ²‖", "MaxSCQ")
    }
    assert mean["‖σ²‖"] < mean["MaxSCQ"]
    assert results["settings"]["steps"] == 40


def test_the_figures_of_the_store_stand_in_a_results_file():
    found, text = results_of("encode")["targets"], section("encode")
    assert f"{found['throughput ours / host']['median']:.2f} times the documents a second" in text
    assert f"in bfloat16 {found['throughput bf16 / ours']['median']:.2f} times ours" in text
    store, text = results_of("store"), section("store")
    corpora = store["corpora"]
    peaks = [round(corpora[size]["encode"]["peak_allocated_mib"]) for size in ("10000", "1000000")]
    assert "{} MiB for 10,000 documents, {} for 1,000,000".format(*peaks) in text
    checked = store["verification"]["100 queries"]["ratio_of_seconds"]
    assert f"takes {checked:.2f} times the seconds" in text


def test_the_figures_of_verdicts_stand_in_a_results_file():
    found, text = results_of("verdict"), section("verdict")
    short = " ".join(README.split())
    counts, made = (
        found["given queries"]["other seeds"]["counts"],
        found["given queries"]["other seeds"]["collections"],
    )
    assert f"On {made} collections" in short
    assert f"in {counts['covered'] / counts['pairs']:.0%} of {counts['pairs']:,} pairs" in short
    for part in ("left out", "other seeds"):
        counts = found["given queries"][part]["counts"]
        assert f"{found['given queries'][part]['collections']} collections" in text
        assert f"{counts['covered'] / counts['pairs']:.0%} of {counts['pairs']:,} pairs" in text
        assert f"{found['given queries'][part]['width']:.2f} wide" in text
        assert (
            f"{counts['right'] / counts['decided']:.0%} of the {counts['decided']:,} pairs that it decided"
            in text
        )
        assert (
            f"{counts['large_decided'] / counts['large']:.0%} of those that labels tell apart by more"
            in text
        )
    assert f"{len(found['given queries']['left out']['parents'])} labelled collections" in text


def test_the_figures_of_few_labels_stand_in_a_results_file():
    found, text = results_of("few_labels")["means"]["all"], section("few_labels")
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
    found, text = results_of("faults"), section("faults")
    table = PAGE.split("<!-- faults table -->")[1].split("<!-- end of faults -->")[0]
    assert table.strip() == import_module("faults.campaign").table(found, "kind")
    assert f"{len(found['mended'])} failed at first" in text


def test_what_is_said_of_extrapolation_stands_in_a_results_file():
    found, text = results_of("extrapolation"), section("extrapolation")
    settings, claims = found["settings"], found["claims"]
    sizes = "{steps} steps, {size} training queries a regime, {queries} test queries".format(
        **settings
    )
    assert f"{sizes}, {len(settings['seeds'])} seeds" in text
    assert [claim["seen_in_means"] for claim in claims] == [False, False, False, True]
    assert claims[-1]["claim"].startswith("a random start has the widest gap")
    assert f"in {claims[-1]['seen_in_seeds']} seeds" in text


def test_what_is_said_of_query_as_context_stands_in_a_results_file():
    found, text = results_of("query_as_context"), section("query_as_context")
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
            if (test["a"], test["b"]) == (a, b)
            and test["difference"] * sign > 0
            and test["t_p_holm"] < 0.05
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
    query, passage = (
        pairs["mean_tokens"][kind]["pair"] for kind in ("passage-query", "passage-passage")
    )
    assert f"has {query:.0f} tokens where two passages have {passage:.0f}" in text
    assert f"{pairs['speed_of_passage_query']:.2f} times as many steps a second" in text


def test_the_figures_of_fusing_a_large_corpus_stand_in_a_results_file():
    runs, text = (
        {run["documents"]: run for run in results_of("fuse_scale")["runs"]},
        section("fuse_scale"),
    )
    seconds, peaks = (
        [
            whole(run["steps"][step][figure] for step in run["steps"] if step != "read")
            for run in (runs[100_000], runs[1_000_000])
        ]
        for figure, whole in (("processor_seconds", sum), ("peak_mib", max))
    )
    assert (
        "{:.0f} processor seconds of 100,000 documents and {:.0f} of 1,000,000".format(*seconds)
        in text
    )
    assert "{:,} and {:,} MiB at most".format(*peaks) in text
    assert f"{runs[1_000_000]['unknown_share']:.1%} of what stands" in text


def test_the_times_of_a_first_answer_stand_in_a_results_file():
    found, text = results_of("first_answer"), section("first_answer")
    [first], [second] = found["starts"]["first"], found["starts"]["second"]
    for wall in (seconds[0] for seconds in found["search_command_seconds"].values()):
        assert f"{wall:.1f}" in text
    assert f"{first['passages']:,} passages" in text
    assert f"need takes {second['steps']['imports'][0]:.1f}," in text
    [page], [again] = found["page_seconds"]["first"], found["page_seconds"]["second"]
    assert (
        f"after {page['bm25']:.1f} seconds, and after {again['bm25']:.1f} on a second start" in text
    )
    fused = page["hybrid:minilm"], again["hybrid:minilm"]
    assert "after {:.0f} seconds, and after {:.0f} on a second start".format(*fused) in text
    assert page["bm25"] < 60
    assert again["bm25"] < 5


def test_the_figures_of_resampling_stand_in_a_results_file():
    found, text = results_of("resample"), section("resample")
    exact = found["measurements"]["exact"]
    assert f"{exact['median_seconds']:.1f} seconds and {exact['peak_mib']:.0f} MiB" in text
    assert f"{found['loop_to_ours']['exact']:.1f} times as fast as a double loop" in text
    assert found["machine"]["instructions"] in text
    seconds, ratio = (
        found["measurements"]["float32"]["median_seconds"],
        found["loop_to_ours"]["float32"],
    )
    assert f"In float32 alone it takes {seconds:.1f} seconds, {ratio:.1f} times as fast" in text
    peaks = [size["peak_mib"] for size in found["growth"]]
    assert max(peaks) < 1.1 * min(peaks)
    assert found["growth"][-1]["train_queries"] == 8 * found["growth"][0]["train_queries"]


def test_what_an_mrl_costs_stands_in_a_results_file():
    found, text = results_of("mrl_search"), section("mrl_search")
    flat, graph = (
        found["latency"][f"MRL, {kind} / plain, {kind}"]["ratio"] for kind in ("flat", "HNSW")
    )
    stored = found["storage"]["vectors_bytes"]["ratio"]
    assert (
        f"takes {stored:.2f} times the storage, and {flat:.2f} times the time of a flat search, {graph:.2f} times"
        in text
    )
    assert (
        f"Late interaction takes {found['storage']['late_interaction_times_plain']:.1f} times"
        in text
    )


def test_the_figures_of_gradient_caching_stand_in_a_results_file():
    found, text = results_of("gradient_cache"), section("gradient_cache")
    assert (
        f"{found['targets']['throughput coco / host']['median']:.2f} times the throughput" in text
    )
    assert f"a peak of {found['targets']['peak_gib coco']['value']:.1f} GiB" in text


def test_the_figures_of_late_interaction_stand_in_a_results_file():
    found, text = results_of("late_interaction"), section("late_interaction")
    late, sparse = found["late_interaction"], found["sparse"]["seconds_a_query"]
    seconds = late["seconds_a_query"]
    names = ("index", "all documents, encoded once", "1,000 of BM25, encoded as they are scored")
    assert all(f"{seconds[name]:.3f}" in text for name in names)
    assert (
        "encoding took {encoding_seconds:.0f} seconds, the index {building_seconds:.0f}".format(
            **late
        )
        in text
    )
    index, bm25 = late["recall_of_exact"].values()
    assert (
        "{recall@10:.0%} of the exact 10 best and {recall@100:.0%} of the exact 100".format(**index)
        in text
    )
    assert "({recall@10:.0%} and {recall@100:.0%})".format(**bm25) in text
    trained = found["trained"]
    index, bm25 = trained["recall_of_exact"].values()
    assert (
        f"({trained['date'][:10]}, {trained['machine']['cores']} cores of {trained['machine']['cpu']})"
        in text
    )
    assert (
        "{recall@10:.0%} of the exact 10 best and {recall@100:.0%} of the exact 100, BM25".format(
            **index
        )
        in text
    )
    assert "hold {recall@10:.0%} and {recall@100:.0%}".format(**bm25) in text
    seconds = (trained["seconds_a_query"][name] for name in names[:2])
    assert "{:.3f} seconds with the index and {:.3f} over all documents".format(*seconds) in text
    for name in ("inverted lists", "whole matrix"):
        assert f"{1000 * sparse[name]:.1f}" in text


def test_the_figures_of_the_whole_path_stand_in_a_results_file():
    found, text = results_of("path"), section("path")
    phases = found["phases"]
    shown = ("tokens counted", "BM25 index", "BM25 negatives", "mining", "encoding")
    assert (
        "counting its tokens {:.0f} seconds, BM25's index {:.0f}, its negatives {:.0f}, the mining {:.0f}".format(
            *(phases[name]["seconds"] for name in shown[:4])
        )
        in text
    )
    for name in shown[:4]:  # shared: no process has much more to do than the other
        one, other = phases[name]["cpu_seconds_of_each_process"]
        assert min(one, other) > 0.6 * max(one, other)
    assert found["same_weights"]
    assert found["same_measures"]
    assert found["killed_in"] == list(phases)
    assert f"Killed once in each of these {len(phases)} phases" in text
    assert f"Encoding for the evaluation took {phases['encoding']['seconds']:.0f} seconds" in text
    assert f"{found['settings']['documents']:,} documents" in text


def test_the_figures_of_the_input_stand_in_a_results_file():
    found, text = results_of("input"), section("input")
    for name in ("documents", "passages"):
        slowest = max(one["cpu_ms_per_pair"] for one in found["texts"][name]["workers"].values())
        assert f"{slowest:.1f} processor milliseconds" in text
        assert f"{found['texts'][name]['cores_per_gpu']:.1f} cores" in text
    assert f"{found['gpu']['pairs_per_second']:,} pairs a second" in text
    assert not found["gpu"]["measured"]


def test_the_figures_of_searching_by_fusion_stand_in_a_results_file():
    (small, large), text = results_of("fusion")["runs"], section("fusion")
    assert (small["documents"], large["documents"]) == (1_250_000, 5_000_000)
    ours, alone, before = (large[name] for name in ("block", "one_query", "query_by_query"))
    took = [run["processor_seconds_a_query"] for run in (ours, before, alone)]
    assert "a query takes {:.2f} processor seconds; the earlier".format(took[0]) in text
    assert f"code, which read the corpus for each query, took {took[1]:.2f}." in text
    assert f"{large['times_as_fast']:.1f} times as fast, with the same scores" in text
    assert max(run["largest_difference"] for run in (small, large)) < 1e-5
    assert f"{ours['memory_mib']} MiB instead of {before['memory_mib']:,}, and" in text
    assert (
        f"{small['block']['memory_mib']} instead of {small['query_by_query']['memory_mib']} over 1,250,000"
        in text
    )
    assert ours["memory_mib"] <= small["block"]["memory_mib"]
    assert f"gains little: it takes {took[2]:.2f} seconds" in text


def test_the_figures_of_bm25s_negatives_stand_in_a_results_file():
    found, text = results_of("negatives"), section("negatives")
    old, one, both = (found["parts"][name] for name in ("before", "one", "all"))
    assert (
        f"{one['query_ms']:.2f} processor milliseconds, {old['query_ms']:.2f} in the earlier code"
        in text
    )
    assert f"{found['summary']['query_speedup_one_core']:.1f} times as fast on one core" in text
    assert f"{found['summary']['query_speedup_all_cores']:.1f} times on both" in text
    assert (
        f"The index takes {one['index_seconds']:.0f} seconds on one core instead of {old['index_seconds']:.0f}"
        in text
    )
    assert f"and {both['index_wall']:.0f} on both" in text
    assert (
        f"together are {found['summary']['whole_speedup_all_cores']:.1f} times as fast on both"
        in text
    )
    assert "{} to {} seconds".format(both["walls"][0], both["walls"][-1]) in text
    assert f"{max(one['peak_mib'], both['peak_mib']):,} MiB" in text
    assert f"{found['summary']['msmarco']['hours']:.2f} hours" in text
    assert {part["same_as_before"].partition(" of ")[0] for part in (one, both)} == {
        one["same_as_before"].rpartition(" ")[2]
    }
    teacher = found["parts"]["teacher"]
    assert f"{teacher['read_and_merged_seconds']:.0f} seconds" in text
