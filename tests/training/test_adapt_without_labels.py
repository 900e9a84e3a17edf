"""adapt on a corpus without labels: what is estimated, what is recommended, and what is left
alone.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import cache

import pytest
from conftest import write_beir
from graded import calibrated_by_crops

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.chains import MODES, Chain
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.label_free import verdict as label_free
from beir_cocodr.evaluation.label_free.choice import recommend_label_free
from beir_cocodr.evaluation.label_free.estimators import ESTIMATORS, LIKELIHOOD, WRITTEN
from beir_cocodr.evaluation.results import (
    AdaptationRecord,
    AnnotationCandidates,
    Best,
    ComparisonRecord,
    Estimate,
    PairVerdict,
    PseudoQueryFigures,
)
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.provenance import TrainingRecord, collection_provenance, write_record
from beir_cocodr.report import terminal
from beir_cocodr.report.evaluation_tables import print_adaptation, verdict_tables
from beir_cocodr.training import stages
from beir_cocodr.training.adapt import AdaptOptions, adapt
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.presets import adapt_options

pytestmark = pytest.mark.usefixtures("few_resamples")
SMALL = {"max_steps": 3, "batch_size": 4, "learning_rate": 1e-3}
VERDICTS = {"better", "worse", "no difference", "cannot tell"}
USES = {"alone": "", "feedback": ", feedback", "fused": ", fused", "RM3": ", RM3"}


#: The estimators of a comparison without a language model.
SHOWN = [name for name in ESTIMATORS if name not in (WRITTEN, LIKELIHOOD)]


@pytest.fixture(autouse=True)
def calibrated(monkeypatch):
    """The tests need a calibration by which crops alone tell the difference."""
    monkeypatch.setattr(label_free, "load_calibration", calibrated_by_crops)


def unlabelled(folder, target, *names):
    target.mkdir()
    for name in names:
        shutil.copy(folder / f"{name}.jsonl", target / f"{name}.jsonl")
    return str(target)


@pytest.fixture(scope="module")
def adapted(beir_folder, tiny_mlm, tmp_path_factory):
    """COCO and generated queries, for a corpus with queries and no labels."""
    place = tmp_path_factory.mktemp("adapted")
    whole = write_beir(place / "whole", queries=8, seed=5)
    corpus = unlabelled(whole, place / "corpus", "corpus", "queries")
    settings = {
        "coco": PretrainOptions.of(**SMALL, span_tokens=12),
        "qgen": adapt_options("qgen", **SMALL),
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(label_free, "load_calibration", calibrated_by_crops)
        report = adapt(
            str(tiny_mlm),
            corpus,
            output=place / "o",
            options=AdaptOptions(
                stages=["coco", "qgen"],
                generation=GenerationOptions(per_passage=2, seed=50),
                samples=20,
                stage_options=settings,
            ),
        ).to_json()
    return report, place / "o"


def test_cards_have_the_verdict_and_no_figure_that_labels_would_give(adapted):
    report, output = adapted
    figures = (
        (output / "models" / "coco" / "README.md")
        .read_text()
        .split("## Figures")[1]
        .split("## ")[0]
    )
    pair = pairs_by_label(report)["base", "base + COCO"]
    [row] = [line for line in figures.splitlines() if line.startswith("| alone |")]
    assert row.split(" | ")[1] == "not measured"
    assert row.endswith(f"| {pair['verdict']} |")
    assert all(trust in figures for trust in report["recommendation"]["trust"])


def pairs_by_label(report):
    labels = {name: label for label, name in report["candidates"].items()}
    return {(labels[pair["a"]], labels[pair["b"]]): pair for pair in report["comparison"]["pairs"]}


def test_every_trained_encoder_is_judged_against_the_base_in_the_same_use(adapted):
    report, output = adapted
    assert json.loads((output / "adapt.json").read_text()) == json.loads(json.dumps(report))
    assert report["results"] is None
    encoders = ["base + COCO", "base + QGen", "base + COCO + QGen"]
    found = report["recommendation"]
    assert list(found["verdicts"]) == encoders
    pairs = pairs_by_label(report)
    for encoder in encoders:
        assert set(found["verdicts_by_use"][encoder].values()) <= VERDICTS
        for use, mode in USES.items():
            pair = pairs[f"base{mode}", encoder + mode]
            assert found["verdicts_by_use"][encoder][use] == pair["verdict"]
            assert [estimate["estimator"] for estimate in pair["estimates"]] == SHOWN
            for estimate in pair["estimates"]:
                low, high = estimate["interval"]
                assert low - 1e-9 <= estimate["difference"] <= high + 1e-9
                assert estimate["difference"] == pytest.approx(estimate["b"] - estimate["a"])
        told = [
            reason for reason in found["reasons"] if reason.startswith(f"{encoder} against base")
        ]
        assert len(told) == 2 + len(SHOWN)
    assert found["calibrated"]
    assert "right in 6 of 7 decided pairs" in found["trust"][0]


def test_the_recommendation_is_the_best_bet_among_what_may_be_chosen(
    adapted, beir_folder, tmp_path
):
    report, _ = adapted
    chosen, pairs = report["recommendation"]["model"], pairs_by_label(report)
    assert report["path"] == report["candidates"][chosen]
    if chosen != "base":
        assert pairs["base", chosen]["probability"] > 0.5
        assert report["recommendation"]["decided"] == (pairs["base", chosen]["verdict"] == "better")
    if "+" in chosen:
        mode = chosen.partition(", ")[2] or "alone"
        encoder = chosen.partition(",")[0]
        assert report["recommendation"]["verdicts_by_use"][encoder][mode] == "better"
    evaluate([report["path"]], str(beir_folder), output=tmp_path)  # usable as a model name


def test_training_and_estimates_share_no_query_and_no_seed(adapted, capsys):
    report, output = adapted
    seed = report["comparison"]["seed"]
    used = {50, *(record["options"]["seed"] for record in records(output))}
    assert seed not in used
    told = report["comparison"]["pseudo_queries"]
    # Two queries of every passage were trained on, titles and salient sentences among them.
    assert told["generated queries"]["counts"]["queries_trained_on"] > 0
    left_out = sum(found["counts"].get("queries_trained_on", 0) for found in told.values())
    [reason] = [reason for reason in report["recommendation"]["reasons"] if "drawn anew" in reason]
    assert f"the seed {seed}" in reason
    assert f"; {left_out} that" in reason
    for pair in report["comparison"]["pairs"]:
        crops, generated, *_ = pair["estimates"]
        for estimate, stage in ((crops, "coco"), (generated, "qgen")):
            a, b = (stage in pair[side].rsplit("/", 1)[-1].split("+") for side in "ab")
            ahead = estimate["difference"] > 0 if b else estimate["difference"] < 0
            is_rehearsed = "the other was not" in estimate["remark"]
            assert is_rehearsed == (a != b and ahead)
        assert crops["applies"] == ("the other was not" not in crops["remark"])
        assert not generated["applies"]  # the calibration of the test rests on crops
    print_adaptation(AdaptationRecord.from_json(report, "adapt.json"), as_json=False)
    printed = capsys.readouterr().out
    assert "right in 6 of 7 decided pairs" in printed
    assert f"Recommended: {report['recommendation']['model']} ({report['path']})" in printed


def test_the_command_compare_picks_among_the_same_methods(adapted, capsys):
    report, _ = adapted
    names = ["bm25", *(f"base + COCO{mode}" for mode in USES.values())]
    models = [report["candidates"][name] for name in names]
    assert any(model.startswith("feedback:") for model in models)
    with pytest.raises(SystemExit) as status:
        main(["compare", *models, "--dataset", report["corpus"], "--samples", "12", "--json"])
    assert not status.value.code
    told = json.loads(capsys.readouterr().out)
    assert sorted(told["ranking"]) == sorted(models)
    assert len(told["pairs"]) == len(models) * (len(models) - 1) / 2
    assert told["best"]["model"] == told["ranking"][0]
    assert told["best"]["reason"] in " ".join(
        table.caption
        for table in verdict_tables(ComparisonRecord.from_json(told, "stdout"))
        if table.caption
    )


def records(output):
    return [json.loads(path.read_text()) for path in (output / "models").glob("*/training.json")]


def test_pairs_to_label_are_those_of_the_base_and_its_best_open_rival(adapted):
    report, output = adapted
    wanted = report["comparison"]["labels_wanted"]
    ranking = report["recommendation"]["ranking"]
    others = [report["candidates"][label] for label in ranking if label != "base"]
    base = report["candidates"]["base"]
    verdicts = {}
    for pair in report["comparison"]["pairs"]:
        if base in (pair["a"], pair["b"]):
            verdicts[pair["b"] if pair["a"] == base else pair["a"]] = pair["verdict"]
    assert wanted["a"] == base
    assert wanted["b"] == next(
        other
        for verdict in ("cannot tell", "better", "worse", "no difference")
        for other in others
        if verdicts[other] == verdict
    )
    rows = (output / "labels_wanted.tsv").read_text().splitlines()[1:]
    assert 0 < len(rows) == len(wanted["pairs"]) <= 100
    queries = load_collection(report["corpus"], labels="optional").queries
    assert {row.split("\t")[0] for row in rows} <= set(queries)


def stage_that_makes(encoder, spans=False):
    """Give the stage coco a result from elsewhere, whose record says if it learned by spans."""

    def train(run):
        shutil.copytree(encoder, run.output)
        given = collection_provenance(run.data.target, queries=False)
        record = TrainingRecord(
            "coco",
            run.start.name,
            seen=(given,),
            seconds=0.0,
            rehearsed=("spans",) if spans else (),
        )
        write_record(run.output, record)
        return record

    return train


def adapt_to(corpus, base, made, output, monkeypatch, **options):
    monkeypatch.setattr(stages, "pretrain_stage", stage_that_makes(made, **options))
    return adapt(
        base, corpus, output=output, options=AdaptOptions(stages=["coco"], samples=20)
    ).to_json()


@pytest.fixture(scope="module")
def hurt(distinct, clean, damaged, tmp_path_factory):
    """The report on a stage that hurts, for a corpus with the named files; made once for each."""

    @cache
    def report(*names):
        place = tmp_path_factory.mktemp("hurt")
        corpus = unlabelled(distinct, place / "corpus", *names)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(label_free, "load_calibration", calibrated_by_crops)
            return adapt_to(corpus, clean, damaged, place / "o", patched)

    return report


@pytest.mark.parametrize("names", [("corpus", "queries"), ("corpus",)])
def test_a_stage_that_hurts_is_found_out_and_not_recommended(hurt, names):
    report = hurt(*names)
    found = report["recommendation"]
    assert (found["verdict"], found["verdicts"]) == ("worse", {"base + COCO": "worse"})
    assert "COCO" not in found["model"]
    assert "models/coco" not in report["path"]
    pair = pairs_by_label(report)["base", "base + COCO"]
    assert pair["estimates"][0]["sign"] == -1
    wanted = report["comparison"]["labels_wanted"]
    assert wanted["pairs"]
    if len(names) == 1:
        assert any("the collection has no queries" in reason for reason in found["reasons"])


def test_a_stage_that_helps_is_found_out(distinct, clean, damaged, tmp_path, monkeypatch):
    corpus = unlabelled(distinct, tmp_path / "corpus", "corpus", "queries")
    report = adapt_to(corpus, damaged, clean, tmp_path / "o", monkeypatch)
    found = report["recommendation"]
    assert found["verdicts"] == {"base + COCO": "better"}
    assert found["model"] != "base"
    assert pairs_by_label(report)["base", found["model"]]["verdict"] == "better"
    # The same gain of a stage that was trained on spans of these documents: crops are no evidence
    # of it.
    again = adapt_to(corpus, damaged, clean, tmp_path / "p", monkeypatch, spans=True)
    before, after = (
        pairs_by_label(told)["base", "base + COCO"]["estimates"][0] for told in (report, again)
    )
    assert (before["sign"], before["applies"]) == (1, True)
    assert (after["sign"], after["applies"], after["effect"]) == (0, False, 0)
    assert after["difference"] == pytest.approx(before["difference"])
    assert "trained to find documents of this corpus by spans" in after["remark"]


def test_labels_of_another_split_are_refused_and_not_read(distinct, clean, tmp_path):
    corpus = tmp_path / "corpus"
    unlabelled(distinct, corpus, "corpus", "queries")
    (corpus / "qrels").mkdir()
    (corpus / "qrels" / "other.tsv").write_text("\x00 this is\tno table\nat all\n")
    with pytest.raises(InputError, match=re.escape("other")):
        adapt(clean, str(corpus), output=tmp_path / "o", options=AdaptOptions(stages=["coco"]))
    assert not (tmp_path / "o").exists()
    report = label_free_pick(corpus, clean, tmp_path / "p")
    assert report.labels is False


def label_free_pick(corpus, encoder, output):
    from beir_cocodr.evaluation.compare import CompareOptions, compare

    return compare(
        ["bm25", encoder], str(corpus), output=output, options=CompareOptions(samples=20)
    )


def test_no_samples_are_refused_before_anything_is_trained(distinct, clean, tmp_path):
    with pytest.raises(InputError, match=r"samples .*0"):
        adapt(
            clean,
            str(distinct),
            output=tmp_path / "o",
            options=AdaptOptions(stages=["coco"], samples=0),
        )
    assert not (tmp_path / "o").exists()


def comparison_of(verdicts, ranking, unlikely=()):
    """A comparison by hand: verdict of b against a for pairs of labels, which are the models'
    names; labels that are unlikely to be better than the base.
    """
    known = Estimate("held-out crops", 0.5, 0.6, 0.1, (0.05, 0.15), 0.5, 9, 0, 1, 10, True, "")
    pairs = [
        PairVerdict(
            a=a,
            b=b,
            family="models of one kind",
            verdict=verdict,
            probability=0.07 if b in unlikely else 0.93,
            rule="calibrated",
            score=0.0,
            reason="what it rests on",
            distance=0.5,
            estimate=0.05,
            interval=(0.01, 0.09),
            trust="told",
            features={},
            estimates=[known],
        )
        for (a, b), verdict in verdicts.items()
    ]
    return ComparisonRecord(
        ranking=ranking,
        best=Best(ranking[0], "", []),
        pseudo_queries={
            name: PseudoQueryFigures(0) for name in ("held-out crops", "generated queries")
        },
        calibration=calibrated_by_crops(),
        seed=43,
        pairs=pairs,
        dataset="d",
        split=None,
        labels=False,
        documents=1,
        queries=0,
        corpus_sha256="",
        identical_ids="keep",
        models=ranking,
        labels_wanted=AnnotationCandidates("base", "bm25", [], "none"),
        seen={},
        versions={},
    )


CHAINS = {
    chain.label: chain
    for encoder in (Chain(), Chain(("COCO",)))
    for chain in map(encoder.used, MODES)
}
LABELS = ["bm25", *CHAINS]


FUSED = ("base", "base, fused")


@pytest.mark.parametrize(
    ("better", "unlikely", "chosen"),
    [
        # The first by estimates is no better than the base in the same use: training did not pay.
        ({("base", "base + COCO, fused")}, [], "base, fused"),
        (
            {("base", "base + COCO, fused"), ("base, fused", "base + COCO, fused")},
            [],
            "base + COCO, fused",
        ),
        ({("base", "base + COCO, fused"), FUSED}, [], "base, fused"),
        ({("base", "bm25")}, ["base, fused"], "bm25"),
        # Better than the base in the same use, which is worse than the base alone.
        ({("base, fused", "base + COCO, fused")}, LABELS, "base"),
        (set(), LABELS, "base"),
        # Without any verdict, what usually wins is the best bet; a trained encoder never is.
        (set(), [], "base, fused"),
    ],
)
def test_only_what_pays_is_recommended(better, unlikely, chosen):
    ranking = ["base + COCO, fused", "base, fused", "bm25", "base + COCO", "base", "base, feedback"]
    asked = [("base", label) for label in LABELS if label != "base"]
    asked += [(f"base{mode}", f"base + COCO{mode}") for mode in USES.values() if mode]
    verdicts = {pair: "better" if pair in better else "cannot tell" for pair in asked}
    candidates = {label: label for label in LABELS}
    comparison = comparison_of(verdicts, [*ranking, "base + COCO, feedback"], unlikely)
    found = recommend_label_free(comparison, candidates, CHAINS)
    assert found.model == chosen
    assert found.verdict == "cannot tell"
    assert found.decided == (("base", chosen) in better)
    assert found.choice.startswith("Use ") == found.decided
    assert chosen in found.choice
    assert ("is the best bet" in found.choice) == (not found.decided and chosen != "base")


def test_a_calibration_is_told_in_words():
    asked = [("base", label) for label in LABELS if label != "base"]
    asked += [(f"base{mode}", f"base + COCO{mode}") for mode in USES.values() if mode]
    report = comparison_of(dict.fromkeys(asked, "better"), LABELS)
    found = recommend_label_free(report, {label: label for label in LABELS}, CHAINS)
    assert (found.calibrated, found.trust, found.model) == (True, ["told"], "bm25")
    told = next(
        reason for reason in found.reasons if reason.startswith("base + COCO against base: better")
    )
    assert "what it rests on" in told
    [told] = [reason for reason in found.reasons if reason.startswith("Use bm25")]
    assert "+0.050 nDCG@10 against base alone, 90% +0.010 to +0.090" in told
    [told] = {reason for reason in found.reasons if "held-out crops: " in reason}
    assert told.endswith("crops: 0.500 to 0.600 (+0.100, 95% +0.050 to +0.150), supports it.")


def test_the_statement_of_a_calibration_is_printed(hurt, capsys):
    report = hurt("corpus", "queries")
    assert report["recommendation"]["verdicts"] == {"base + COCO": "worse"}
    print_adaptation(AdaptationRecord.from_json(report, "adapt.json"), as_json=False)
    printed = capsys.readouterr().out
    assert "right in 6 of 7 decided pairs" in printed
    assert "estimates without labels" in printed
    assert "Did training make the encoder better? worse." in printed
    fused = AdaptationRecord.from_json(report | {"stages": ["fuse"]}, "adapt.json")
    print_adaptation(fused, as_json=False)
    assert "Did fusing with BM25 make the encoder better? worse." in capsys.readouterr().out


def test_judged_queries_choose_among_all_uses_of_the_base(
    distinct, clean, damaged, tmp_path, monkeypatch, capsys
):
    corpus = unlabelled(distinct, tmp_path / "corpus", "corpus", "queries")
    monkeypatch.setattr(stages, "pretrain_stage", stage_that_makes(damaged))
    lines = (distinct / "qrels" / "test.tsv").read_text().splitlines()[1:21]
    judged = tmp_path / "judged.tsv"
    judged.write_text("\n".join(lines) + "\n")
    record = adapt(
        clean,
        corpus,
        output=tmp_path / "o",
        options=AdaptOptions(stages=["coco"], samples=20, judgements=judged),
    )
    few = record.comparison.few_labels
    assert (few.queries, few.reference) == (20, clean)
    assert {
        "base, hybrid@0.3",
        "base, vector",
        "base, fused",
    } <= record.candidates.keys()
    assert "base, hybrid@0.5" not in record.candidates  # it is "base, fused"
    assert record.recommendation.verdicts == {"base + COCO": "worse"}
    assert record.path in record.candidates.values()
    assert "coco" not in record.path
    assert any(
        "20 queries and 20 documents are judged" in reason
        for reason in record.recommendation.reasons
    )
    assert AdaptationRecord.read(tmp_path / "o" / "adapt.json") == record
    monkeypatch.setattr(terminal, "_WIDTH", 400)  # so that no cell of a table is wrapped
    print_adaptation(record, as_json=False)
    assert "base, vector" in capsys.readouterr().out
    judged.write_text("nothing 0 d1 1\n")
    with pytest.raises(InputError, match=r"judged\.tsv: no judged query"):
        adapt(
            clean,
            corpus,
            output=tmp_path / "p",
            options=AdaptOptions(stages=["coco"], judgements=judged),
        )
    assert not (tmp_path / "p").exists()
