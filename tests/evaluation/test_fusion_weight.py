"""BM25's weight by the estimate of what the fusion gains."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from beir_cocodr import CompareOptions, FuseOptions, compare
from beir_cocodr.cli.__main__ import main
from beir_cocodr.evaluation import fusion_weight
from beir_cocodr.evaluation.fusion_weight import WeightChoice, choose_weight
from beir_cocodr.evaluation.label_free.contamination import find_contamination
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
        options=CompareOptions(labels=False, samples=150),
    )
    return record.estimated[0]


def test_the_estimate_is_that_of_compare(verdict, corpus, tiny_cosine):
    choice = choose_weight(str(tiny_cosine), corpus)
    assert choice.estimate == pytest.approx(verdict.estimate, abs=1e-6)
    assert choice.interval == pytest.approx(verdict.interval, abs=1e-6)


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
