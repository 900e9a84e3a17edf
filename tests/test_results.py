"""The figures of the documentation are those that the benchmarks wrote."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from statistics import median

from harness.page import measured

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "results.md").read_text()


def results_of(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def section(name: str) -> str:
    """Return what the page says of a benchmark, below its machine and date, in one line."""
    line = measured(name)
    below = PAGE.split(f"\n{line}\n", 1)[1]
    return " ".join(re.split(r"\n## |\n\*`benchmarks/", below)[0].split())


def test_every_result_has_its_script_machine_date_and_seeds():
    for file in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert f"\n{measured(file.stem)}\n" in PAGE, f"docs/results.md lacks {measured(file.stem)}"


def test_the_table_is_what_the_benchmark_wrote():
    script = import_module("quickstart")
    assert script.MARKS.read(PAGE) == script.markdown(results_of("quickstart"))


def test_the_tables_of_fusions_are_what_the_benchmark_wrote():
    tables = import_module("adaptation_tables")
    results = results_of("adaptation")
    assert tables.MARKS.read(PAGE) == tables.markdown(results)
    assert tables.SHORT_MARKS.read(README) == tables.short_table(results)
    text = section("adaptation")
    aims = results["aims"]
    assert f"{aims['hybrid over dense on prose']:.0%} above the dense encoder" in text
    gaps = aims["hybrid less the exact fusion"].values()
    assert f"at most {-min(gaps):.3f} below" in text
    fits = [
        one["methods"]["hybrid auto"]["seconds_to_fit"]
        for one in results["encoders"]["base"].values()
    ]
    assert f"took {min(fits):.0f} to {max(fits):.0f} seconds" in text
    tests = [
        test
        for one in results["tests"].values()
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
        seeds = results["over seeds"]["means"][label]
        assert (
            means.format(*(f"{mean:.3f}" for mean in (seeds["untrained"], *seeds["trained"])))
            in text
        )
        tests = [
            t
            for one in results["tests"].values()
            for t in one["trained against untrained"]
            if t["a"] == label
        ]
        better = sum(test["p_holm"] < 0.05 and test["difference"] > 0 for test in tests)
        assert significant.format(better, len(tests)) in text


def test_the_figures_of_another_encoder_are_in_a_results_file():
    script = import_module("adaptation_tables")
    results = results_of("adaptation_mpnet")
    text = " ".join(PAGE.split("### With another encoder")[1].split("\n## ")[0].split())
    base = results["encoders"]["base"]
    prose = {name: base[name] for name in results["prose"]}
    documentation = {name: base[name] for name in base if name not in prose}
    parts = [prose, documentation, base]
    for label in (
        "dense",
        "bm25",
        "fusion, w 0.5",
        "RM3 fusion",
        "feedback",
        "hybrid auto",
    ):
        means = [f"{script.mean(part, label):.3f}" for part in parts]
        assert f"| {label} | {' | '.join(means)} |" in text
    gaps = results["aims"]["hybrid less the exact fusion"]
    on_prose = -min(gaps[name] for name in prose)
    elsewhere = -min(gaps[name] for name in documentation)
    assert f"{results['aims']['hybrid over dense on prose']:.0%} above the dense encoder" in text
    loss = f"at most {on_prose:.3f} below the exact fusion there and {elsewhere:.3f}"
    assert f"{loss} on documentation" in text
    tests = [
        test
        for one in results["tests"].values()
        for test in one["against dense"]
        if test["b"] == "hybrid auto"
    ]
    better = sum(test["p_holm"] < 0.05 and test["difference"] > 0 for test in tests)
    assert f"on {better} of {len(tests)} collections" in text


def test_what_the_readme_says_of_training_is_in_results_files():
    short = " ".join(README.split())
    [gain] = [
        t
        for t in results_of("quickstart")["mean_over_seeds_against_base"]
        if t["b"] == "base + source"
    ]
    assert gain["t_p_holm"] < 0.05
    assert f"gained {gain['difference']:.3f} nDCG@10 in the quickstart" in short
    assert len(results_of("ablation")["targets"]) == 6
    coco = "COCO with iDRO was better than its base on one target of six"
    assert f"{coco}, MRL and query-as-context on none" in short


def test_the_figures_of_search_are_in_a_results_file():
    results = results_of("search")
    text = section("search")
    ratios = results["ratios"]
    rivals = results["rivals"]
    assert f"{ratios['beir / ours_dictionaries']['median']:.1f} times as fast as BEIR" in text
    assert f"{ratios['ours_arrays / faiss']['median']:.2f} of the time of FAISS" in text
    peaks = [round(rivals[name]["peak_mib"]) for name in ("ours_arrays", "faiss", "beir")]
    assert "{} MiB against {} (FAISS) and {} (BEIR)".format(*peaks) in text
    assert f"{results['machine']['instructions']} instructions" in text
    assert f"takes {ratios['faiss / product']['median']:.1f} times PyTorch's" in text
    one_dnn = ratios["ours_arrays / product_one_dnn"]["median"]
    assert f"selected, ours takes {one_dnn:.2f} times the time, and on" in text
    product = ratios["ours_arrays / product"]
    by_processor = f"({product['processor']:.2f} of the processor's)"
    assert f"takes {product['median']:.2f} times the time {by_processor}" in text
    verdict = "met" if product["met"] else "missed"
    assert text.endswith(f"at most {product['at_most']:.2f} is the aim: {verdict}.")


def test_the_training_figures_are_in_a_results_file():
    results = results_of("idro")["shapes"]
    text = section("idro")
    base = results["bert-base"]
    mini = results["minilm"]
    assert f"{base['one_backward_to_erm']:.2f} times the time for BERT-base" in text
    assert f"({base['triplets']} triplets, {base['clusters_present']} clusters present" in text
    assert f"and {mini['one_backward_to_erm']:.2f} for MiniLM" in text
    slower = [shape["k_calls_to_one_backward"] for shape in (base, mini)]
    assert "takes {:.1f} and {:.1f} times as long".format(*slower) in text


def test_what_coco_and_idro_did_is_in_a_results_file():
    targets = results_of("ablation")["targets"]
    text = section("ablation")
    better = []
    for name, results in targets.items():
        for test in results["comparisons"]:
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


def test_the_figures_of_means_and_variances_are_in_a_results_file():
    results = results_of("mrl")
    text = section("mrl")
    differences = [
        test["difference"]
        for figures in results["targets"].values()
        for test in figures["comparisons"]
        if (test["a"], test["b"]) == ("dot", "mrl") and test["t_p_holm"] < 0.05
    ]
    assert all(difference < 0 for difference in differences)
    assert f"significantly worse on {len(differences)} of them and better on none" in text
    seeds = [seed for figures in results["query_performance"].values() for seed in figures]
    mean = {
        name: sum(abs(seed[name]["pearson"]) for seed in seeds) / len(seeds)
        for name in ("‖σ²‖", "MaxSCQ")
    }
    assert mean["‖σ²‖"] < mean["MaxSCQ"]
    assert results["settings"]["steps"] == 40


def test_the_figures_of_the_store_are_in_a_results_file():
    results = results_of("encode")["targets"]
    text = section("encode")
    assert f"{results['throughput ours / host']['median']:.2f} times the documents a second" in text
    assert f"in bfloat16 {results['throughput bf16 / ours']['median']:.2f} times ours" in text
    store = results_of("store")
    text = section("store")
    corpora = store["corpora"]
    peaks = [round(corpora[size]["encode"]["peak_allocated_mib"]) for size in ("10000", "1000000")]
    assert "{} MiB for 10,000 documents, {} for 1,000,000".format(*peaks) in text
    checked = store["verification"]["100 queries"]["ratio_of_seconds"]
    assert f"takes {checked:.2f} times the seconds" in text


def test_the_figures_of_whole_documents_are_in_a_results_file():
    results = results_of("chunk_pooling")
    script = import_module("chunk_pooling")
    page = (ROOT / "docs" / "adaptation.md").read_text()
    assert script.MARKS.read(page) == script.markdown(results)
    prose = " ".join(page.split("## Whole documents")[1].split("\n## ")[0].split())
    differing = {test["collection"] for test in results["tests"] if test["p"] < 0.05}
    assert differing == {"legalquad-de"}
    pieces = {
        name: figures["pieces"] / figures["documents"]
        for name, figures in results["collections"].items()
    }
    assert f"in {pieces.pop('legalquad-de'):.0f} pieces on average" in prose
    assert max(pieces.values()) < 5
    worst = {}
    for test in results["tests"]:
        if test["use"] == "alone":
            loss = -test["difference"]
            worst[test["way"]] = max(worst.get(test["way"], (0, "")), (loss, test["collection"]))
    loss, name = worst["mean"]
    assert f"is {loss:.3f} (`{name}`), that of `first+mean` {worst['first+mean'][0]:.3f}" in prose
    cut = {name: one["cut"] for name, one in results["collections"].items() if one["cut"] > 0.5}
    del cut["legalquad-de"]
    shares = "{:.0%}, {:.0%} and {:.0%}".format(*sorted(cut.values(), reverse=True))
    assert f"where {shares} are cut, nothing is gained significantly" in prose
    devised = results_of("chunk_pooling_devised")
    assert script.DEVISED_MARKS.read(page) == script.markdown(devised)
    clear = [test for test in devised["tests"] if test["p"] < 0.05]
    assert [(test["collection"], test["way"], test["use"]) for test in clear] == [
        ("time", "first+mean", "alone")
    ]
    means = devised["collections"]["time"]["means"]
    alone, fused = (
        f"{means['first+mean'][use]:.3f} instead of {means['first'][use]:.3f} {use}"
        for use in ("alone", "fused")
    )
    assert f"with `first+mean` {alone}, significantly, and {fused}, which is not" in prose
    whole = devised["collections"]["time"]
    assert f"in {whole['pieces'] / whole['documents']:.1f} pieces on average" in prose
    assert "cisi" in script.DEVISED
    assert "cisi" not in devised["collections"]
    limit = import_module("beir_cocodr.retrieval.store.encoding_cost")._MANY_PIECES
    assert f"would have more than {limit} pieces on average" in prose
    own_corpus = " ".join((ROOT / "docs" / "own-corpus.md").read_text().split())
    assert f"would have more than {limit} pieces on average" in own_corpus
    assert f"although up to {max(cut.values()):.0%} of their documents are cut" in own_corpus


def test_the_table_of_learning_from_judgements_is_in_a_results_file():
    results = results_of("thumbs")
    text = section("thumbs")
    assert f"Queries of {len(results['collections'])} labelled collections" in text
    for name, collection in results["collections"].items():
        cells = [f"| `{name}` | {collection['judged']['10']['dense']['before']:.3f} |"]
        for count in ("10", "25", "50"):
            row = collection["judged"].get(count)
            if row is not None:
                gain = row["dense"]["80%"]
                low, high = gain["range"]
                cells.append(f"{gain['mean']:+.3f} ({low:+.3f} to {high:+.3f})")
        assert all(cell in text for cell in cells)
    for use, before in (("dense", "the mean gain is"), ("hybrid", "Fused with BM25 it is")):
        said = []
        for count in ("10", "25", "50"):
            mean = results["means"][count][f"{use}, 80%"]
            low, high = mean["interval"]
            said.append(f"{mean['mean']:+.4f} ({low:+.4f} to {high:+.4f})")
        assert f"{before} {', '.join(said)}." in text
    assert f"after 50 is {results['means']['50']['dense, 95%']['mean']:+.4f}" in text


def test_the_table_of_faults_is_what_the_campaign_found():
    results = results_of("faults")
    text = section("faults")
    table = PAGE.split("<!-- faults table -->")[1].split("<!-- end of faults -->")[0]
    assert table.strip() == import_module("faults.campaign").table(results, "kind")
    failed = len(results["mended"])
    said = f"None of these {results['cases']:,} cases failed"
    if failed:
        said = f"{failed} failed at first"
    assert said in " ".join(text.split())


def test_what_is_said_of_extrapolation_is_in_a_results_file():
    results = results_of("extrapolation")
    text = section("extrapolation")
    settings = results["settings"]
    claims = results["claims"]
    training = f"{settings['steps']} steps, {settings['size']} training queries a regime"
    test = f"{settings['queries']} test queries, {len(settings['seeds'])} seeds"
    assert f"{training}, {test}" in text
    assert [claim["seen_in_means"] for claim in claims] == [False, False, False, True]
    assert claims[-1]["claim"].startswith("a random start has the widest gap")
    assert f"in {claims[-1]['seen_in_seeds']} seeds" in text


def test_what_is_said_of_query_as_context_is_in_a_results_file():
    results = results_of("query_as_context")
    text = section("query_as_context")
    settings = results["settings"]
    targets = results["targets"]
    pairs = results["pairs"]
    assert len(targets) == 5
    pretraining = f"{settings['steps']} steps of pre-training on passages with model-free queries"
    assert f"{pretraining}, then {settings['finetune_steps']} of" in text
    assert f"without labels or source, {settings['distill_steps']} steps" in text

    def different(a: str, b: str, sign: int) -> list[str]:
        """Return the targets on which b is significantly above or below a."""
        names = []
        for target, judged in targets.items():
            for test in judged["comparisons"]:
                is_pair = (test["a"], test["b"]) == (a, b)
                is_significant = test["t_p_holm"] < 0.05
                if is_pair and is_significant and test["difference"] * sign > 0:
                    names.append(target)
        return names

    assert different("COCO", "qc", 1) == different("COCO", "qc", -1) == []
    for arm in ("COCO", "qc", "mixed"):
        assert (different("source", arm, 1), different("source", arm, -1)) == ([], ["time"])
    assert different("source", "CoT-MAE", 1) == different("source", "CoT-MAE", -1) == []
    assert different("base", "distilled", 1) == []
    assert f"worse than the base on {len(different('base', 'distilled', -1))} targets" in text
    [swept] = results["queries_per_passage"].values()
    assert list(swept["rows"]) == ["C 1", "C 3", "C 5", "C 10"]
    assert "1, 3, 5 or 10 queries per passage" in text
    assert len(swept["comparisons"]) == 3
    assert all(test["t_p_holm"] >= 0.05 for test in swept["comparisons"])
    query = pairs["mean_tokens"]["passage-query"]["pair"]
    passage = pairs["mean_tokens"]["passage-passage"]["pair"]
    assert f"has {query:.0f} tokens where two passages have {passage:.0f}" in text
    assert f"{pairs['speed_of_passage_query']:.2f} times as many steps a second" in text


def test_the_figures_of_fusing_a_large_corpus_are_in_a_results_file():
    text = section("fuse_scale")
    runs = {run["documents"]: run for run in results_of("fuse_scale")["runs"]}
    seconds = []
    peaks = []
    for documents in (100_000, 1_000_000):
        steps = dict(runs[documents]["steps"])
        del steps["read"]
        seconds.append(sum(step["processor_seconds"] for step in steps.values()))
        peaks.append(max(step["peak_mib"] for step in steps.values()))
    small = f"{seconds[0]:.0f} processor seconds for 100,000 documents"
    assert f"{small} and {seconds[1]:.0f} for 1,000,000" in text
    assert f"{peaks[0]:,} and {peaks[1]:,} MiB at most" in text
    assert f"{runs[1_000_000]['unknown_share']:.1%} of all occurrences" in text


def test_the_times_of_a_first_answer_are_in_a_results_file():
    """A time is a pair: seconds of the clock, and of the processor."""
    results = results_of("first_answer")
    text = " ".join(section("first_answer").split())
    first = results["starts"]["first"]
    second = results["starts"]["second"]
    pages = results["page_seconds"]

    def span(times: list[float], digits: int) -> str:
        least, most = (f"{time:.{digits}f}" for time in (min(times), max(times)))
        return f"{least} to {most}"

    def answered(start: str, model: str, clock: int) -> list[float]:
        return [page[model][clock] for page in pages[start]]

    commands = results["search_command_seconds"]
    assert f"takes {span([run[0] for run in commands['first']], 1)} seconds from nothing" in text
    assert f"and {span([run[0] for run in commands['second']], 1)} the second time" in text
    assert {f"{run['passages']:,} passages" for run in first} <= {"1,276 passages"}
    assert [run["encoded"] for run in second] == [0, 0, 0]
    imports = [run["steps"]["imports"][0] for run in second]
    assert f"need takes {median(imports):.1f}," in text
    bm25 = [answered(start, "bm25", 0) for start in ("first", "second")]
    assert f"comes after {span(bm25[0], 1)} seconds, and after {span(bm25[1], 1)} on" in text
    fused = [answered(start, "hybrid:minilm", 0) for start in ("first", "second")]
    assert f"after {span(fused[0], 0)} seconds, which are" in text
    assert f"and after {span(fused[1], 1)} on a second start" in text
    processor = answered("first", "hybrid:minilm", 1)
    assert f"which are {span(processor, 0)} of the processor" in text
    assert max(bm25[0]) < 10
    assert max(processor) < 60
    first_lines = list(results["first_line_seconds"].values())
    assert f"first line after {span(first_lines, 1)} seconds" in text


def test_first_answers_on_a_slower_processor_are_in_a_results_file():
    results = results_of("first_answer_epyc")
    text = section("first_answer_epyc")
    [page] = results["page_seconds"]["first"]
    assert f"after {page['bm25'][0]:.1f} seconds" in text
    assert f"the fusion's after {page['hybrid:minilm'][0]:.0f}." in text
    [steps] = [run["steps"] for run in results["starts"]["first"]]
    assert f"Encoding takes {steps['index and encode'][1]:.0f} seconds of the processor" in text


def test_batched_cluster_gradients_are_compared_with_those_before():
    minilm = results_of("idro_before")["shapes"]["minilm"]
    text = section("idro_before")
    launches = minilm["launches"]
    now = launches["now"]["one_backward_adds"]
    before = launches["before"]["one_backward_adds"]
    assert f"add {now} kernels to a step" in text
    assert f"added {before:,}." in text
    ratios = {when: minilm["to_erm"][when]["median"] for when in ("now", "before")}
    assert ratios["now"] < ratios["before"]
    assert "takes {now:.2f} times the time of ERM, and took {before:.2f}".format(**ratios) in text


def test_the_figures_of_resampling_are_in_a_results_file():
    results = results_of("resample")
    text = section("resample")
    exact = results["measurements"]["exact"]
    assert f"{exact['median_seconds']:.1f} seconds and {exact['peak_mib']:.0f} MiB" in text
    assert f"{results['loop_to_ours']['exact']:.1f} times as fast as a double loop" in text
    assert results["machine"]["instructions"] in text
    seconds = results["measurements"]["float32"]["median_seconds"]
    ratio = results["loop_to_ours"]["float32"]
    assert f"In float32 alone it takes {seconds:.1f} seconds, {ratio:.1f} times as fast" in text
    peaks = [size["peak_mib"] for size in results["growth"]]
    assert max(peaks) < 1.1 * min(peaks)
    assert results["growth"][-1]["train_queries"] == 8 * results["growth"][0]["train_queries"]


def test_what_an_mrl_costs_is_in_a_results_file():
    results = results_of("mrl_search")
    text = section("mrl_search")
    flat = results["latency"]["MRL, flat / plain, flat"]["ratio"]
    graph = results["latency"]["MRL, HNSW / plain, HNSW"]["ratio"]
    stored = results["storage"]["vectors_bytes"]["ratio"]
    times = f"{flat:.2f} times the time of a flat search, {graph:.2f} times"
    assert f"takes {stored:.2f} times the storage, and {times}" in text
    late = results["storage"]["late_interaction_times_plain"]
    assert f"Late interaction takes {late:.1f} times" in text


def test_the_figures_of_gradient_caching_are_in_a_results_file():
    results = results_of("gradient_cache")
    text = section("gradient_cache")
    targets = results["targets"]
    throughput = targets["throughput coco / host"]["median"]
    assert f"{throughput:.2f} times the throughput" in text
    assert f"a peak of {targets['peak_gib coco']['value']:.1f} GiB" in text


def test_the_figures_of_late_interaction_are_in_a_results_file():
    results = results_of("late_interaction")
    text = section("late_interaction")
    late = results["late_interaction"]
    sparse = results["sparse"]["seconds_a_query"]
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
    trained = results["trained"]
    index, bm25 = trained["recall_of_exact"].values()
    machine = trained["machine"]
    hardware = f"{machine['cores']} cores of {machine['cpu']}"
    assert f"({trained['date'][:10]}, {hardware})" in text
    assert (
        "{recall@10:.0%} of the exact 10 best and {recall@100:.0%} of the exact 100, BM25".format(
            **index
        )
        in text
    )
    assert "contain {recall@10:.0%} and {recall@100:.0%}".format(**bm25) in text
    seconds = (trained["seconds_a_query"][name] for name in names[:2])
    assert "{:.3f} seconds with the index and {:.3f} over all documents".format(*seconds) in text
    for name in ("inverted lists", "whole matrix"):
        assert f"{1000 * sparse[name]:.1f}" in text


def test_the_figures_of_the_whole_path_are_in_a_results_file():
    results = results_of("path")
    text = section("path")
    phases = results["phases"]
    seconds = {name: f"{phase['seconds']:.0f}" for name, phase in phases.items()}
    counted = f"counting its tokens took {seconds['tokens counted']} seconds"
    lexical = f"BM25's index {seconds['BM25 index']}, its negatives {seconds['BM25 negatives']}"
    assert f"{counted}, {lexical}, the mining {seconds['mining']}" in text
    # These phases are shared: no process has much more to do than the other.
    for name in ("tokens counted", "BM25 index", "BM25 negatives", "mining"):
        one, other = phases[name]["cpu_seconds_of_each_process"]
        assert min(one, other) > 0.6 * max(one, other)
    assert results["same_weights"]
    assert results["same_measures"]
    assert results["killed_in"] == list(phases)
    assert f"Killed once in each of these {len(phases)} phases" in text
    assert f"Encoding for the evaluation took {seconds['encoding']} seconds" in text
    assert f"{results['settings']['documents']:,} documents" in text


def test_the_figures_of_a_gpu_are_in_a_results_file():
    text = section("gpu")
    results = results_of("gpu")
    parts = results["parts"]
    assert f"One {results['gpu']} with {results['gpu_gib']} GiB" in text
    encode, search, coco, idro = (parts[name] for name in ("encode", "search", "coco", "idro"))
    ours, host = (median(encode[f"{side}_seconds"]) for side in ("ours", "host"))
    assert f"| {ours:.1f} s, to a store on disk | {host:.1f} s," in text
    assert f"| {ours / host:.2f} times the time |" in text
    ours = median(search["ours_seconds"])
    host = median(search["product_and_topk_seconds"])
    assert f"| {ours:.3f} s | {host:.3f} s," in text
    assert f"| {search['ours_to_product_and_topk']:.2f} times the time |" in text
    for kind in ("coco", "coco with language-model losses"):
        seconds = median(coco[kind]["seconds"])
        assert f"| {seconds:.3f} s, {coco[kind]['peak_mib'] / 1024:.1f} GiB |" in text
    assert f"| {coco['documents_per_second']:,.0f} documents a second |" in text
    steps = idro["steps"]
    ours, erm = (steps["seconds"][kind]["median"] for kind in ("one_backward", "erm"))
    assert f"{steps['clusters_present']} clusters present | {ours:.3f} s | {erm:.3f} s, ERM" in text
    assert f"| {idro['one_backward_to_erm']:.2f} times the time |" in text
    assert f"takes {steps['k_calls_to_one_backward']:.1f} times as long" in text
    launches = steps["launches"]
    assert f"starts {launches['erm']:,} operations" in text
    assert f"adds {launches['one_backward_adds']} to them" in text
    passed = int(re.search(r"(\d+) passed", parts["tests"]["pytest"]["summary"][-1])[1])
    assert passed == 5
    assert "five passed" in text
    assert len(parts["tests"]["pytest"]["failed"]) == 1


def test_the_figures_of_the_input_are_in_a_results_file():
    results = results_of("input")
    text = section("input")
    for name in ("documents", "passages"):
        slowest = max(one["cpu_ms_per_pair"] for one in results["texts"][name]["workers"].values())
        assert f"{slowest:.1f} " in text
        assert f"{results['texts'][name]['cores_per_gpu']:.1f} cores" in text
        made = results["texts"][name]["pairs_per_second_and_core"]
        assert made["kept"] == round(1000 / slowest)
        assert f"{made['kept']} " in text
        assert f"{made['tokenised_again']} " in text
        assert 64 * made["kept"] > 8 * results["gpu"]["pairs_per_second"]
    assert f"{results['gpu']['pairs_per_second']:,} pairs a second" in text
    assert results["gpu"]["measured"]
    assert f"One {results['gpu']['device'].split()[-1]} trains" in text
    many, one = results["sampler"].values()
    assert f"{many['cpu_ms_per_batch']} processor milliseconds" in text
    assert f"{many['host_cpu_ms_per_batch']:.0f} by the host's" in text
    assert f"{many['host_to_ours']:.0f} times as many" in text
    ours_and_host = f"takes {one['cpu_ms_per_batch']} instead of {one['host_cpu_ms_per_batch']}"
    assert f"{ours_and_host} ({one['host_to_ours']} times)" in text


def test_the_figures_of_the_sampler_of_query_as_context_are_in_a_results_file():
    results = results_of("input")
    text = section("input")
    context = results["query_context"]
    machine = context["machine"]
    assert f"measured on {context['date'][:10]}, with {machine['cores']} cores of" in text
    assert f"cores of {machine['cpu']}. Query-as-context" in text
    queries = context["texts"] - context["passages"]
    assert f"{context['passages']:,} passages with {queries:,} generated queries" in text
    assert f"a row takes {context['cpu_ms_per_row']} processor milliseconds" in text
    assert f"samples {round(context['rows_per_second'], -4):,} rows a second" in text
    assert f"took {context['former_cpu_ms_per_row']} for the same batches" in text
    assert f"{context['former_to_now']:.0f} times as long" in text
    assert f"once, in {context['microseconds_a_text_once']} microseconds a text" in text
    of_pair = context["finetuning_cpu_ms_per_row"]
    assert f"takes {of_pair} milliseconds while its texts are read" in text
    assert f"or {round(1000 / of_pair, -3):,.0f} pairs a second" in text
    # One thread of each process samples the pairs of eight GPUs.
    assert 8 * results["gpu"]["pairs_per_second"] < context["rows_per_second"] / 5


def test_the_figures_of_the_triplets_of_finetuning_are_in_a_results_file():
    results = results_of("input")
    text = section("input")
    triplets = results["triplets"]
    assert f"takes {triplets['cpu_ms_per_triplet']} processor milliseconds" in text
    assert f"makes {triplets['triplets_per_second_and_core']:,} a second (measured on" in text
    assert f"measured on {triplets['date'][:10]} on the same machine" in text
    assert triplets["machine"] == results["query_context"]["machine"]
    assert f"One {triplets['gpu'].split()[-1]} trains".lower() in text.lower()
    assert f"on {triplets['triplets_per_second_and_gpu']:,} triplets a second" in text
    assert f"which {triplets['cores_per_gpu']} cores feed" in text
    # 64 cores feed eight GPUs with triplets, too.
    assert 8 * triplets["cores_per_gpu"] < 64


def test_the_figures_of_many_clients_are_in_a_results_file():
    results = results_of("page_load")
    text = section("page_load")
    few, many, memory = (results[name] for name in ("searches", "clients", "memory_mib"))
    assert few["statuses"] == {"200": results["settings"]["searches"]}
    assert many["statuses"] == {"200": many["answers"]}
    assert few["late"] == many["late"] == results["tracebacks"] == results["exit_status"] == 0
    assert results["logged"] == many["judged"]
    assert f"a load of {results['settings']['load_of_machine']}" in text
    assert f"{few['answers']:,} searches" in text
    speed = f"{few['per_second']} a second, with {few['processor_ms']} processor milliseconds"
    assert speed in text
    assert f"all {many['answers']:,} requests were answered" in text
    assert f"95% within {many['p95_ms'] / 1000:.1f} and the longest in" in text
    assert f"longest in {many['longest_ms'] / 1000:.1f}; all {many['judged']} judgements" in text
    mebibytes = [round(memory[name]) for name in ("before", "after_clients", "peak")]
    assert "took {} MiB before, {} MiB after and at most {} MiB".format(*mebibytes) in text


def test_large_inputs_are_read_or_left_out_in_the_memory_that_the_page_states():
    results = results_of("large_inputs")
    text = section("large_inputs")
    large = results["large_files"].values()
    assert {figures["status"] for figures in large} == {0}
    assert all(figures["said"] and figures["answers"] for figures in large)
    most = (max(figures[name] for figures in large) for name in ("processor_seconds", "seconds"))
    assert "at most {} processor seconds ({} seconds) and ".format(*most) in text
    assert f"and {max(figures['peak_mib'] for figures in large)} MiB, and the search" in text
    first, again, page = (results[name] for name in ("search", "search_again", "page"))
    assert f"took {first['processor_seconds']} processor seconds" in text
    assert f"at most {first['peak_mib']} MiB; the second took" in text
    assert f"({again['seconds']} seconds) and {again['peak_mib']} MiB" in text
    assert f"after {page['first_answer']} seconds, with at most {page['peak_mib']} MiB" in text


def test_the_figures_of_searching_by_fusion_are_in_a_results_file():
    text = section("fusion")
    small, large = results_of("fusion")["runs"]
    assert (small["documents"], large["documents"]) == (1_250_000, 5_000_000)
    ours, alone, before = (large[name] for name in ("block", "one_query", "query_by_query"))
    took = [run["processor_seconds_a_query"] for run in (ours, before, alone)]
    assert f"a query takes {took[0]:.2f} processor seconds; the earlier" in text
    assert f"code, which read the corpus for each query, took {took[1]:.2f}." in text
    assert f"{large['times_as_fast']:.1f} times as fast, with the same scores" in text
    assert max(run["largest_difference"] for run in (small, large)) < 1e-5
    assert f"{ours['memory_mib']} MiB instead of {before['memory_mib']:,}, and" in text
    small_memory = [small[name]["memory_mib"] for name in ("block", "query_by_query")]
    assert f"{small_memory[0]} instead of {small_memory[1]} over 1,250,000" in text
    assert ours["memory_mib"] <= small["block"]["memory_mib"]
    assert f"gains little: it takes {took[2]:.2f} seconds" in text


def test_the_figures_of_bm25s_negatives_are_in_a_results_file():
    results = results_of("negatives")
    text = section("negatives")
    summary = results["summary"]
    old, one, both = (results["parts"][name] for name in ("before", "one", "all"))
    assert (
        f"{one['query_ms']:.2f} processor milliseconds, {old['query_ms']:.2f} in the earlier code"
        in text
    )
    assert f"{summary['query_speedup_one_core']:.1f} times as fast on one core" in text
    assert f"{summary['query_speedup_all_cores']:.1f} times on both" in text
    index = f"The index takes {one['index_seconds']:.0f} seconds on one core"
    assert f"{index} instead of {old['index_seconds']:.0f}" in text
    assert f"and {both['index_wall']:.0f} on both" in text
    assert f"together are {summary['whole_speedup_all_cores']:.1f} times as fast on both" in text
    assert f"{both['walls'][0]} to {both['walls'][-1]} seconds" in text
    assert f"{max(one['peak_mib'], both['peak_mib']):,} MiB" in text
    assert f"{summary['msmarco']['hours']:.2f} hours" in text
    assert {part["same_as_before"].partition(" of ")[0] for part in (one, both)} == {
        one["same_as_before"].rpartition(" ")[2]
    }
    teacher = results["parts"]["teacher"]
    assert f"{teacher['read_and_merged_seconds']:.0f} seconds" in text
