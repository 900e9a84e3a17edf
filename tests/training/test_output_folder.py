"""The output of a training: one plan, one process, and what is broken in it."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from test_io import hold

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.generation_record import GeneratedFrom, GenerationPlan
from beir_cocodr.generation.settings import SELECTION, GenerationOptions
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.provenance import TrainingPlan, TrainingRecord
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.regimes import RegimeOptions, _check_resumable, evaluate_regimes
from beir_cocodr.resampling.regimes.regimes import _settings as _regime_settings
from beir_cocodr.same_run import differences
from beir_cocodr.training.adapt import AdaptationPlan, AdaptOptions, _settings, adapt
from beir_cocodr.training.checkpoints import (
    CHECKPOINTS,
    SEAL_FILE,
    checkpoint_to_resume,
    is_complete,
)
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
from beir_cocodr.training.output_folder import lock_output, started
from beir_cocodr.training.presets import adapt_options
from beir_cocodr.training.pretraining.pretrain import pretrain
from beir_cocodr.training.rows import rows_with_option
from beir_cocodr.training.shared_options import TrainingOptions, setting_fields

#: Options that another value of changes no result, and why.
HARMLESS = {
    "device": (
        "the same numbers up to rounding; what is computed in another precision is compared beside"
        " the options"
    ),
    "progress": "only what is shown",
    "targets": "in the plan by content",
    "measures": "in the plan beside the targets",
    "loader_workers": "every batch is drawn by its numbers, whoever prepares it",
    "report_to": "only where losses are shown",
    "encode_batch_size": "texts encoded at a time",
    "verify": "files are read with their checksums or without",
    "stores": "embeddings that would be computed otherwise, checked against encoder and corpus",
    "batch_size of SearchOptions": "queries encoded at a time",
    # What was generated stays, and is selected anew as a whole at the end.
    **dict.fromkeys(SELECTION, "selection is made at the end, of all that was generated"),
}

VALUES = [
    True,
    False,
    0,
    1,
    2,
    3,
    7,
    64,
    0.25,
    0.5,
    1.5,
    "x",
    "mlm",
    "qc",
    "masked",
    "infonce",
    "triplet",
    "cvar",
    "mined",
    "mrl",
]
VALUES += [
    "kl",
    "mean",
    "fused",
    "cross-encoder",
    "paper",
    "sketch",
    "none",
    "minilm",
    "fr",
    "{passage}",
    ("a",),
    "keep",
    "reset",
    "tokens",
    "lamb",
    "rank",
    "titles",
    "claims,titles",
    "bfloat16",
]


def changed(options: Any, name: str) -> Any:
    """The options with another value of one field that they take."""
    training = isinstance(options, TrainingOptions)
    text = isinstance(getattr(options, name, None), str)
    for value in (value for value in VALUES if isinstance(value, str) or not text):
        try:
            if training:
                made = options.with_overrides(**{name: value})
            else:
                made = replace(options, **{name: value})
        except (InputError, TypeError, AttributeError, ValueError):
            continue
        if made != options:
            return made
    raise AssertionError(f"no other value for {name}: add one")


def with_option(kind: type, name: str) -> Any:
    """Options of a kind with a row that has an option."""
    if kind not in (PretrainOptions, FinetuneOptions, DistillOptions):
        return kind()
    for table, rows in kind.TABLES.items():
        for row in rows_with_option(rows, name):
            return kind(**{table: row})
    if name == "consecutive":
        return kind(loss="triplet")  # a loss within the batch takes no query several times
    return kind()


def every_field() -> list[tuple[Any, str]]:
    kinds = (
        PretrainOptions,
        FinetuneOptions,
        DistillOptions,
        GenerationOptions,
        Recipe,
        EncoderOptions,
        SearchOptions,
    )
    names = {
        kind: [*dict.fromkeys(field.name for _, field in setting_fields(kind))]
        if issubclass(kind, TrainingOptions)
        else [field.name for field in fields(kind)]
        for kind in kinds
    }
    return [
        (kind, name)
        for kind in kinds
        for name in names[kind]
        if name not in HARMLESS and f"{name} of {kind.__name__}" not in HARMLESS
    ]


@pytest.mark.parametrize(
    ("kind", "name"), every_field(), ids=lambda value: getattr(value, "__name__", value)
)
def test_no_option_can_be_forgotten_when_work_is_resumed(kind, name, tmp_path):
    before = with_option(kind, name)
    if kind is SearchOptions:
        now = (
            replace(before, encoder=EncoderOptions(5))
            if name == "encoder"
            else changed(before, name)
        )
        assert differences(before.describe(), now.describe())
        return
    now = changed(before, name)
    if kind is GenerationOptions:
        plans = [
            GenerationPlan(GeneratedFrom("c"), each.generation(), {}, "t") for each in (before, now)
        ]
        identities = [plan.identity(with_selection=False) for plan in plans]
        found = differences(*identities)
        # A tokenizer is known by its content.
        assert found == [f"settings: {name}"] or name == "tokenizer"
        other = replace(plans[0], tokenizer_sha256="u")
        assert differences(identities[0], other.identity(with_selection=False)) == [
            "tokenizer_sha256"
        ]
    elif kind is Recipe:
        if name != "start":  # whose content is read
            before, now = (replace(each, start=str(tmp_path)) for each in (before, now))
        output = tmp_path / "o"
        output.mkdir()
        _check_resumable(output, _regime_settings("of the manifest", before, ["R@5"]), {})
        (output / "cells").mkdir()
        with pytest.raises(InputError, match=f"other .*{name}"):
            _check_resumable(output, _regime_settings("of the manifest", now, ["R@5"]), {})
    else:
        encoder = kind is EncoderOptions
        plans = [
            TrainingPlan("s", encoder=each.describe())
            if encoder
            else TrainingPlan("s", encoder=each.encoder.describe(), options=each.recorded())
            for each in (before, now)
        ]
        with started(tmp_path, plans[0]):
            pass
        with lock_output(tmp_path, True, plans[0]) as record:
            assert record is None
        with (
            pytest.raises(InputError, match=f"other .*{name}"),
            lock_output(tmp_path, True, plans[1]),
        ):
            pass


#: What a function takes beside options: what is compared, by the name it has there, or why it is
#: not.
ARGUMENTS = {
    pretrain: {"dataset": "seen", "model": "base_sha256", "queries": "seen"},
    finetune: {"dataset": "seen", "model": "base_sha256", "split": "seen"},
    distill: {"dataset": "seen", "model": "base_sha256", "split": "seen", "teacher": "teacher"},
    adapt: {"dataset": "corpus", "source": "source", "model": "in the plan of every stage"},
    generate_queries: {
        "dataset": "dataset",
        "generator": "generator",
        "part": "shares the same work",
    },
    evaluate_regimes: {
        "folder": "manifest_sha256",
        "architectures": "adds cells",
        "models": "adds cells, known by their content",
        "starts": "starts",
        "recipe": "recipe",
    },
    RegimeOptions: {
        "seeds": "adds cells",
        "ood": "adds to cells",
        "measures": "measures",
        "keep_models": "what is left of them",
    },
}


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__name__)
def test_no_argument_can_be_forgotten_either(function):
    always = {"output", "options", "resume", "encoder", "device", "progress"}
    assert set(signature(function).parameters) - always == set(ARGUMENTS[function]) - always


def test_an_adaptation_compares_all_that_it_is_asked_for(beir_folder, tmp_path):
    target = load_collection(beir_folder, "test")
    stages = ("finetune", "gpl", "qgen")
    whole = AdaptOptions(stages=stages, teacher="x")

    def settings(**changes: Any) -> dict[str, Any]:
        options = replace(whole, **changes)
        source = load_collection(beir_folder, options.source_split)
        plan = AdaptationPlan(target, source, options.chosen(), options, tmp_path)
        return _settings(plan)

    other = {"qgen": adapt_options("qgen").with_overrides(seed=7)}
    table = tmp_path / "table.tsv"
    table.write_text("q\td\t1\n")
    queries = tmp_path / "queries"
    queries.mkdir()
    (queries / "queries.jsonl").write_text("{}\n")
    for changes, name in [
        ({"stage_options": other}, "options: qgen: seed"),
        ({"source_split": "test"}, "source"),
        ({"generator": "some/model"}, "generator"),
        ({"generation": GenerationOptions(seed=1)}, "generation: seed"),
        ({"generated": str(queries)}, "generated"),
        ({"teacher": str(table)}, "teacher"),
        ({"stages": ["finetune", "gpl"]}, "stages"),
        ({"measures": "R@10"}, "measures"),
        ({"queries": 5}, "queries"),
        ({"samples": 5}, "samples"),
        ({"search": SearchOptions(bm25_weight=1.0)}, "search: bm25_weight"),
    ]:
        assert name in differences(settings(), settings(**changes))
    # What decides where the options are found, and what judges again.
    elsewhere = {"split", "judgements"}
    compared = {"stages", "stage_options", "source_split", "measures", "queries", "samples"}
    compared |= {"generated", "generator", "generation", "teacher", "search"}
    assert {field.name for field in fields(AdaptOptions)} == compared | elsewhere


OPTIONS = FinetuneOptions(
    max_steps=6, batch_size=4, mini_batch_size=3, learning_rate=1e-3, save_steps=2
)


@pytest.fixture(scope="module")
def whole(beir_folder, tiny_mlm, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "m"
    finetune(str(tiny_mlm), str(beir_folder), output=folder, options=OPTIONS)
    return folder


@pytest.fixture(scope="module")
def died(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("died") / "m"


@pytest.fixture
def interrupted(died, beir_folder, tiny_mlm, tmp_path, dies_at) -> Path:
    """A copy of a training that died at step 5, with checkpoints of steps 2 and 4."""
    if not died.exists():
        with dies_at(5):
            finetune(str(tiny_mlm), str(beir_folder), output=died, options=OPTIONS)
    return Path(shutil.copytree(died, tmp_path / "m"))


def same_weights(first: Path, second: Path) -> bool:
    a, b = (load_file(folder / "model.safetensors") for folder in (first, second))
    return a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


def test_two_trainings_in_one_output_are_refused(beir_folder, tiny_mlm, tmp_path):
    (tmp_path / "m").mkdir()
    process = hold(tmp_path / "m", 60)
    try:
        with pytest.raises(InputError, match="another process writes"):
            finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=OPTIONS)
        with pytest.raises(InputError, match="another process writes"):
            adapt(
                str(tiny_mlm),
                str(beir_folder),
                output=tmp_path / "m",
                options=AdaptOptions(stages=["coco"]),
            )
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_died_as_it_wrote_its_plan_begins_anew(resume, tmp_path):
    place = tmp_path / CHECKPOINTS / ".unfinished-0"
    place.mkdir(parents=True)
    (place / "plan.json").write_text("{")
    with lock_output(tmp_path, resume, TrainingPlan("finetune")) as record:
        assert record is None


@pytest.mark.parametrize(
    "file", ["optimizer.pt", "model.safetensors", "trainer_state.json", "scheduler.pt"]
)
def test_a_damaged_checkpoint_is_left_out_for_one_further_back(
    file, interrupted, whole, beir_folder, tiny_mlm, caplog
):
    damaged = interrupted / CHECKPOINTS / "checkpoint-4" / file
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        record = finetune(
            str(tiny_mlm), str(beir_folder), output=interrupted, options=OPTIONS, resume=True
        )
    assert record.resumed_from == "checkpoint-2"
    assert "checkpoint-4 is not complete" in caplog.text
    assert same_weights(interrupted, whole)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"gone.pt": "0"}'])
def test_a_checkpoint_without_a_whole_seal_is_not_complete(content, tmp_path):
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    if content is not None:
        (folder / SEAL_FILE).write_bytes(content)
    assert not is_complete(folder)
    for name in ("checkpoint-2", "checkpoint-9"):
        (tmp_path / name).mkdir()
        (tmp_path / name / SEAL_FILE).write_text("{}")
    assert checkpoint_to_resume(tmp_path) == tmp_path / "checkpoint-9"  # the newest by number
    assert not folder.exists()


def test_without_a_whole_checkpoint_training_starts_anew(
    interrupted, whole, beir_folder, tiny_mlm, caplog
):
    for checkpoint in (interrupted / CHECKPOINTS).glob("checkpoint-*"):
        (checkpoint / "optimizer.pt").unlink()
    record = finetune(
        str(tiny_mlm), str(beir_folder), output=interrupted, options=OPTIONS, resume=True
    )
    assert record.resumed_from is None
    assert "from the start" in caplog.text
    assert same_weights(interrupted, whole)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"stage": 3}', '{"parent": "x"}', "\xff"]
)
def test_a_broken_record_or_plan_is_one_line(
    content, whole, interrupted, beir_folder, tiny_mlm, tmp_path
):
    finished = tmp_path / "finished"
    shutil.copytree(whole, finished)
    for folder, file in (
        (finished, finished / "training.json"),
        (interrupted, interrupted / CHECKPOINTS / "plan.json"),
    ):
        file.write_bytes(content.encode("latin-1"))
        with pytest.raises(InputError, match=file.name) as error:
            finetune(str(tiny_mlm), str(beir_folder), output=folder, options=OPTIONS, resume=True)
        assert "\n" not in str(error.value)


def test_the_base_is_known_by_its_tokenizer_and_format_too(
    interrupted, beir_folder, tiny_mlm, tmp_path
):
    other = tmp_path / "other"
    shutil.copytree(tiny_mlm, other)
    rules = json.loads((other / "tokenizer.json").read_text())
    words = rules["model"]["vocab"]
    words["wing"], words["flow"] = words["flow"], words["wing"]
    (other / "tokenizer.json").write_text(json.dumps(rules))
    with pytest.raises(InputError, match="tokenizer"):
        finetune(str(other), str(beir_folder), output=interrupted, options=OPTIONS, resume=True)


@pytest.mark.parametrize("name", ["base_parts", "precision"])
def test_a_plan_that_does_not_state_all_is_refused(name, interrupted, beir_folder, tiny_mlm):
    file = interrupted / CHECKPOINTS / "plan.json"
    content = json.loads(file.read_text())
    del content[name]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"other settings.*{name}"):
        finetune(str(tiny_mlm), str(beir_folder), output=interrupted, options=OPTIONS, resume=True)


def changes(before, now):
    return differences(before.settings(), now.settings())


def test_training_in_another_precision_is_refused_and_a_finished_model_kept():
    plan = TrainingPlan("finetune", precision="bfloat16")
    assert changes(plan, replace(plan, precision="float32")) == ["precision"]


def test_options_that_another_plan_does_not_have_are_named():
    before, now = (
        TrainingPlan("distill", options={"seed": 1}),
        TrainingPlan("distill", options={"seed": 1, "new": 2}),
    )
    assert changes(now, before) == changes(before, now) == ["options: new"]


def test_teachers_are_known_by_their_content(tmp_path):
    plan = TrainingPlan("distill", teacher="a", teacher_sha256="1")
    assert changes(plan, replace(plan, teacher="moved")) == []
    assert changes(plan, replace(plan, teacher_sha256="2")) == ["teacher_sha256"]
    named = replace(plan, teacher_sha256=None)
    assert changes(named, plan) == ["teacher_sha256", "teacher"]
    assert changes(named, replace(named, teacher="b")) == ["teacher"]
    record = TrainingRecord.from_json(replace(plan, targets=()).to_json(), "x")
    assert (record.teacher_sha256, record.targets) == ("1", ())
