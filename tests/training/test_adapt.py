"""The main job end to end on a tiny model, and what is said about it."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
import sentence_transformers
import torch
from conftest import write_beir
from packaging.version import Version
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from beir_cocodr import COCODR
from beir_cocodr.data import collection
from beir_cocodr.errors import InputError
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.checkpoints import loading
from beir_cocodr.models.checkpoints.loading import weights_sha256
from beir_cocodr.models.spec import EncoderOptions, ModelSpec, SearchOptions
from beir_cocodr.training.adapt import AdaptOptions, adapt
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.presets import adapt_options

pytestmark = pytest.mark.usefixtures("few_resamples")
OPTIONS = {"max_steps": 3, "batch_size": 4, "learning_rate": 1e-3}
SETTINGS = {
    "stage_options": {
        "coco": PretrainOptions.of(**OPTIONS, span_tokens=12),
        "finetune": FinetuneOptions.of(**OPTIONS),
    }
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_beir(tmp_path_factory.mktemp("small") / "tiny", documents=24, queries=8)


@pytest.fixture(scope="module")
def counts() -> Counter:
    """How often ``adapted`` loaded each collection and encoder, and parsed each name."""
    return Counter()


def count_calls(patched: pytest.MonkeyPatch, counts: Counter) -> None:
    def counted(module, name):
        original = getattr(module, name)

        def call(first, *arguments, **settings):
            counts[name, str(first)] += 1
            return original(first, *arguments, **settings)

        patched.setattr(module, name, call)

    counted(loading, "_load_by_name")
    counted(collection, "load_source")
    parse = ModelSpec.parse.__func__

    def parsed(cls, name):
        if isinstance(name, str):
            counts["parse", name] += 1
        return parse(cls, name)

    patched.setattr(ModelSpec, "parse", classmethod(parsed))


@pytest.fixture(scope="module")
def adapted(small, tiny_mlm, tmp_path_factory, counts):
    output = tmp_path_factory.mktemp("adapted") / "o"
    data = str(small)
    options = AdaptOptions(search=SearchOptions(EncoderOptions(document_length=40)), **SETTINGS)
    with pytest.MonkeyPatch.context() as patched:
        count_calls(patched, counts)
        report = adapt(str(tiny_mlm), data, source=data, output=output, options=options)
    return report, output


def test_ablation_is_trained_in_order_and_evaluated(adapted):
    report, output = adapted
    rows = list(report.results.models)
    encoders = ["base", "base + source", "base + COCO", "base + COCO + source"]
    assert rows == [
        "bm25",
        *(label + mode for label in encoders for mode in ("", ", feedback", ", fused", ", RM3")),
    ]
    record = json.loads((output / "models" / "coco+source" / "training.json").read_text())
    assert record["stage"] == "finetune"
    assert record["parent"]["stage"] == "coco"
    assert (
        json.loads((output / "models" / "source" / "training.json").read_text())["parent"] is None
    )
    assert json.loads((output / "adapt.json").read_text()) == json.loads(
        json.dumps(report.to_json())
    )


def test_cards_have_the_figures_of_the_ablation(adapted):
    report, output = adapted
    for name, label in (("coco", "base + COCO"), ("coco+source", "base + COCO + source")):
        figures = (
            (output / "models" / name / "README.md")
            .read_text()
            .split("## Figures")[1]
            .split("## ")[0]
        )
        result = report.results.models[f"{label}, fused"]
        [row] = [line for line in figures.splitlines() if line.startswith("| fused |")]
        assert f"{result.measures['nDCG@10']:.4f}" in row
        assert "{:.4f} to {:.4f}".format(*result.intervals["nDCG@10"]) in row
        assert report.results.corpus_sha256[:16] in figures
        assert f"`{report.recommendation.model}`" in figures
        assert "Not measured" not in figures


def test_lengths_hold_in_training_and_evaluation(adapted):
    report, output = adapted
    assert COCODR(str(output / "models" / "coco")).text_format.document_length == 40
    for label, record in report.results.models.items():
        if label != "bm25":
            assert record.retrieval["text_format"]["document_length"] == 40


def test_resume_keeps_finished_models_and_a_taken_output_is_refused(adapted, small, tiny_mlm):
    report, output = adapted
    data = str(small)
    with pytest.raises(InputError, match="not empty"):
        adapt(str(tiny_mlm), data, source=data, output=output, options=AdaptOptions(**SETTINGS))
    stamp = (output / "models" / "source" / "model.safetensors").stat().st_mtime_ns
    shutil.rmtree(output / "models" / "coco+source")
    again = adapt(
        str(tiny_mlm),
        data,
        source=data,
        output=output,
        resume=True,
        options=AdaptOptions(search=SearchOptions(EncoderOptions(document_length=40)), **SETTINGS),
    )
    assert (output / "models" / "source" / "model.safetensors").stat().st_mtime_ns == stamp
    figures = [
        {label: record.measures for label, record in found.results.models.items()}
        for found in (report, again)
    ]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"measures": []}, "measures names no measure"),
        ({"teacher": " "}, "the teacher has no name"),
    ],
)
def test_an_adaptation_without_measures_or_teacher_is_refused(
    wrong, message, small, tiny_mlm, tmp_path
):
    options = AdaptOptions(stages="coco", **wrong)
    with pytest.raises(InputError, match=message):
        adapt(str(tiny_mlm), str(small), output=tmp_path / "o", options=options)


@pytest.mark.parametrize(
    ("unread", "message"),
    [
        ({"stages": "coco", "source": True}, "the source is read by the stage finetune"),
        (
            {"stages": "coco", "teacher": "bm25"},
            "the teacher is read by the stages gpl and distill",
        ),
        ({"stages": "coco,fuse", "generator": "t5"}, "no stage of coco, fuse needs generated"),
        ({"stages": "coco", "generated": "queries"}, "no stage of coco needs generated"),
        (
            {"stages": "distill", "generated": "queries", "generator": "t5"},
            "taken from queries, so none are generated",
        ),
        (
            {
                "stages": "distill",
                "generated": "queries",
                "generation": GenerationOptions(query_kinds="titles"),
            },
            "taken from queries, so none are generated",
        ),
    ],
)
def test_what_no_stage_reads_is_refused(unread, message, small, tiny_mlm, tmp_path):
    source = str(small) if unread.get("source") else None
    asked = {name: value for name, value in unread.items() if name != "source"}
    options = AdaptOptions(**asked | {"stages": unread["stages"].split(",")})
    with pytest.raises(InputError, match=message):
        adapt(str(tiny_mlm), str(small), source=source, output=tmp_path / "o", options=options)
    assert not (tmp_path / "o").exists()


@pytest.fixture(scope="module")
def cross_encoder(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross-encoder")
    torch.manual_seed(1)
    AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=1).save_pretrained(
        folder
    )
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return str(folder)


def test_pseudo_labels_of_the_target_come_last_alone_and_together(
    small, tiny_mlm, cross_encoder, tmp_path
):
    stages = ["hybrid-distill", "gpl", "qgen", "qc", "cotmae"]
    data, output = str(small), tmp_path / "o"
    settings = {
        stage: adapt_options(stage, max_steps=2, batch_size=4, learning_rate=1e-3, warmup=0.1)
        for stage in stages
    }
    encoded, method = Counter(), COCODR.encode_corpus

    def encode_corpus(model, corpus, **given):
        weights = weights_sha256(model)
        encoded.update((weights, document["_id"]) for document in corpus)
        return method(model, corpus, **given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(COCODR, "encode_corpus", encode_corpus)
        report = adapt(
            str(tiny_mlm),
            data,
            output=output,
            options=AdaptOptions(stages=stages, teacher=cross_encoder, stage_options=settings),
        )
    # The base, as teacher, as student of two stages and in judgement, and every model that was
    # trained.
    # A distillation that its held-out queries reject leaves the weights as they were.
    rejected = 0
    for file in (output / "models").glob("*/training.json"):
        merging = json.loads(file.read_text()).get("merging")
        rejected += merging is not None and merging["share"] == 0
    assert len({weights for weights, _ in encoded}) >= len(report.models) - rejected
    twice = {weights for (weights, _), times in encoded.items() if times > 1}
    # With the oldest hosts that are allowed the base is encoded once more; the reason is not known.
    old = Version(sentence_transformers.__version__) < Version("6.2")
    assert twice <= ({weights_sha256(COCODR(str(tiny_mlm)))} if old else set())
    assert report.stages == ["cotmae", "qc", "qgen", "gpl", "distill"]
    names = ["cotmae", "qc", "qgen", "gpl", "distill"]
    chains = ["+".join(names[:length]) for length in range(2, 6)]
    assert list(report.models) == ["base", *names, *chains]
    record = json.loads((output / "models" / chains[-1] / "training.json").read_text())
    found = []
    while record:
        found.append(record["stage"])
        record = record["parent"]
    assert found == ["distill", "distill", "finetune", "qc", "cotmae"]
    models = output / "models"
    gpl, qgen = (
        json.loads((models / name / "training.json").read_text()) for name in ("gpl", "qgen")
    )
    assert gpl["teacher"] == cross_encoder
    distilled = json.loads((models / "distill" / "training.json").read_text())
    assert distilled["teacher"] == cross_encoder  # a named teacher teaches every stage that has one
    assert [gpl["options"][name] for name in ("loss", "positives", "m_hard")] == [
        "margin_mse",
        1,
        1,
    ]
    assert [qgen["options"][name] for name in ("loss", "negatives")] == ["infonce", 0]
    assert (output / "queries" / "generation.json").is_file()
    assert "base + CoT-MAE + QC + QGen + GPL + distill, fused" in report.results.models
    again = adapt(
        str(tiny_mlm),
        data,
        output=tmp_path / "p",
        options=AdaptOptions(
            stages=["qgen"],
            generated=output / "queries",
            stage_options={"qgen": settings["qgen"]},
        ),
    )
    assert again.generated_queries == str(output / "queries")
    other = write_beir(tmp_path / "other", documents=24, queries=8, seed=5)
    with pytest.raises(InputError, match="another corpus"):
        adapt(
            str(tiny_mlm),
            str(other),
            output=tmp_path / "q",
            options=AdaptOptions(stages=["qgen"], generated=output / "queries"),
        )


def test_collections_and_encoders_are_loaded_once_and_names_parsed_once(adapted, counts, tiny_mlm):
    _, output = adapted
    assert {times for (name, _), times in counts.items() if name == "parse"} == {1}
    loaded = {first: times for (name, first), times in counts.items() if name == "_load_by_name"}
    folders = [str(output / "models" / name) for name in ("coco", "source", "coco+source")]
    assert loaded == dict.fromkeys([str(tiny_mlm), *folders], 1)
    # The target and, from another split of the same folder, the source.
    assert sum(times for (name, _), times in counts.items() if name == "load_source") == 2
