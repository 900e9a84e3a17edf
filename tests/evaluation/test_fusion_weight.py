"""BM25's weight by the estimate of what the fusion gains."""

from __future__ import annotations

import html
import json
import shutil
from dataclasses import replace

import pytest

from beir_cocodr import CompareOptions, FuseOptions, Searcher, compare, evaluate
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation import fusion_weight
from beir_cocodr.evaluation.fusion_weight import WeightChoice, choose_weight
from beir_cocodr.evaluation.label_free.contamination import find_contamination
from beir_cocodr.evaluation.runs import ranked_run
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.provenance import read_record


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def corpus(beir_folder, tmp_path_factory) -> str:
    """Return a collection with queries and without labels."""
    folder = tmp_path_factory.mktemp("unlabelled") / "corpus"
    folder.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        shutil.copy(beir_folder / name, folder)
    return str(folder)


@pytest.fixture(scope="module")
def verdict(corpus, tiny_cosine, tmp_path_factory):
    """Return compare's own verdict on the fusion, which is the oracle of the estimate."""
    models = [str(tiny_cosine), f"hybrid@0.5:{tiny_cosine}"]
    record = compare(
        models,
        corpus,
        output=tmp_path_factory.mktemp("compared") / "out",
        options=CompareOptions(labels=False, samples=150, seed=7_042),
    )
    return record.estimated[0]


def test_the_estimate_is_that_of_compare(verdict, corpus, tiny_cosine):
    choice = choose_weight(str(tiny_cosine), corpus)
    assert choice.estimate == pytest.approx(verdict.estimate, abs=1e-6)
    assert choice.interval == pytest.approx(verdict.interval, abs=1e-6)


def unlabelled(corpus, folder) -> str:
    """Return the corpus alone, as a file."""
    file = folder / "corpus.jsonl"
    shutil.copy(f"{corpus}/corpus.jsonl", file)
    return str(file)


def test_hybrid_by_estimate_rests_on_the_corpus_alone(
    corpus, beir_folder, tiny_cosine, tmp_path, caplog
):
    """Queries and labels of an evaluation change nothing: the oracle has seen neither."""
    expected = choose_weight(str(tiny_cosine), unlabelled(corpus, tmp_path))
    name = f"hybrid@estimate:{tiny_cosine}"
    with caplog.at_level("INFO"):
        record = evaluate([name, f"hybrid@0.5:{tiny_cosine}"], str(beir_folder))
    retrieval = record.models[name].retrieval
    assert retrieval["bm25_weight"] == expected.weight
    assert retrieval["weight_reason"] == str(expected)
    assert caplog.text.count(str(expected)) == 1


@pytest.mark.parametrize(("estimate", "weight"), [(-0.02, 0.2), (0.02, 0.5)])
def test_hybrid_by_estimate_searches_with_the_weight_that_it_chose(
    verdict, estimate, weight, beir_folder, tiny_cosine, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        fusion_weight, "decide", lambda *arguments: replace(verdict, estimate=estimate)
    )
    estimated, named = f"hybrid@estimate:{tiny_cosine}", f"hybrid@{weight}:{tiny_cosine}"
    output = tmp_path / "out"
    evaluate([estimated, named], str(beir_folder), output=output)
    results = json.loads((output / "results.json").read_text())["models"]
    ours, theirs = (ranked_run(output / results[name]["run"]) for name in (estimated, named))
    assert ours == theirs
    reason = results[estimated]["retrieval"]["weight_reason"]
    assert f"{abs(estimate):.3f} nDCG@10" in reason
    page = tmp_path / "report.html"
    assert run("report", str(output), "--output", str(page)) == 0
    assert f"{reason}." in html.unescape(page.read_text())


def test_a_searcher_takes_the_estimated_weight(verdict, corpus, tiny_cosine, monkeypatch):
    losing = replace(verdict, estimate=-0.02)
    monkeypatch.setattr(fusion_weight, "decide", lambda *arguments: losing)
    query = "method alpha"
    estimated = Searcher(corpus, f"hybrid@estimate:{tiny_cosine}")
    named = Searcher(corpus, f"hybrid@0.2:{tiny_cosine}")
    assert estimated.search(query) == named.search(query)


def test_a_comparison_estimates_the_weight_again_without_what_judges(
    corpus, tiny_cosine, tmp_path, monkeypatch
):
    """The weight that pseudo-queries judge was chosen in a corpus that they were cut out of."""
    corpora = []
    whole = fusion_weight._estimate

    def estimate(resources, *arguments):
        corpora.append(resources.documents.content_hash)
        return whole(resources, *arguments)

    monkeypatch.setattr(fusion_weight, "_estimate", estimate)
    name = f"hybrid@estimate:{tiny_cosine}"
    record = compare(
        [str(tiny_cosine), name],
        corpus,
        output=tmp_path / "out",
        options=CompareOptions(labels=False, samples=20),
    )
    assert len(set(corpora)) == len(corpora) == 3  # the corpus, and its two copies
    assert record.corpus_sha256 in corpora


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("rm3", "'estimate' is not a setting of rm3"),
        ("feedback", "'estimate' is not a setting of feedback"),
        ("rrf", "rrf has no settings"),
        ("vector", "settings of vector were removed"),
    ],
)
def test_only_hybrid_is_weighted_by_estimate(kind, reason, corpus):
    with pytest.raises(InputError, match=reason):
        evaluate([f"{kind}@estimate:minilm"], corpus)


@pytest.mark.parametrize(("estimate", "weight"), [(-0.001, 0.2), (0.0, 0.5), (0.1, 0.5)])
def test_an_expected_loss_halves_the_weight_and_more(verdict, estimate, weight):
    choice = WeightChoice.of(replace(verdict, estimate=estimate))
    assert choice.weight == weight
    options = choice.applied_to(FuseOptions(seed=7))
    assert options.bm25_weight == weight
    assert options.seed == 7
    assert f"{abs(estimate):.3f} nDCG@10" in options.weight_reason


def test_the_weight_and_its_reason_are_said_and_saved(
    verdict, beir_folder, tiny_cosine, tmp_path, monkeypatch, capsys
):
    losing = replace(verdict, estimate=-0.02)
    monkeypatch.setattr(fusion_weight, "decide", lambda *arguments: losing)
    output = tmp_path / "fused"
    command = ["fuse", "--dataset", str(beir_folder), "--model", str(tiny_cosine)]
    assert run(*command, "--output", str(output), "--weight-by-estimate") == 0
    assert "expected to lose 0.020" in " ".join(capsys.readouterr().out.split())
    record = read_record(output)
    assert record.options["bm25_weight"] == 0.2 == HybridEncoder(output).head.bm25_weight
    assert "expected to lose 0.020" in record.options["weight_reason"]
    assert "expected to lose 0.020" in (output / "README.md").read_text()
    # The crops and titles that chose the weight do not judge the model afterwards.
    [corpus] = record.seen
    uses = {"fused": str(output), "feedback:fused": str(output)}
    assert find_contamination(uses, corpus.corpus_sha256).terms == set(uses)


def test_an_output_is_looked_at_before_the_estimate(
    verdict, beir_folder, tiny_cosine, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(fusion_weight, "decide", lambda *_: replace(verdict, estimate=-0.02))
    command = ["fuse", "--dataset", str(beir_folder), "--model", str(tiny_cosine)]
    by_estimate, plain = tmp_path / "by estimate", tmp_path / "plain"
    assert run(*command, "--output", str(by_estimate), "--weight-by-estimate") == 0
    assert run(*command, "--output", str(plain)) == 0
    trained_at = (by_estimate / "training.json").stat().st_mtime_ns
    monkeypatch.setattr(fusion_weight, "decide", lambda *_: pytest.fail("it estimates again"))
    capsys.readouterr()

    command.append("--weight-by-estimate")
    assert run(*command, "--output", str(by_estimate), "--resume") == 0
    assert (by_estimate / "training.json").stat().st_mtime_ns == trained_at
    assert run(*command, "--output", str(by_estimate), "--resume", "--seed", "3") == 2
    assert "seed" in capsys.readouterr().err
    assert run(*command, "--output", str(by_estimate)) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run(*command, "--output", str(plain), "--resume") == 2
    assert "was fused without --weight-by-estimate" in capsys.readouterr().err


def test_a_plain_record_says_nothing_of_it(beir_folder, tiny_cosine, tmp_path):
    output = tmp_path / "fused"
    command = ["fuse", "--dataset", str(beir_folder), "--model", str(tiny_cosine)]
    assert run(*command, "--output", str(output)) == 0
    assert "weight_reason" not in json.loads((output / "training.json").read_text())["options"]


def test_two_weights_are_refused(beir_folder, tiny_cosine, tmp_path, capsys):
    command = ["fuse", "--dataset", str(beir_folder), "--model", str(tiny_cosine)]
    command += ["--output", str(tmp_path / "fused"), "--weight-by-estimate", "--bm25-weight", "0.3"]
    assert run(*command) == 2
    assert "--bm25-weight" in capsys.readouterr().err
