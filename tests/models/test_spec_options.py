"""Every option declares the values that it may have, and none gets past its class with another."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from beir_cocodr.analysis import RepresentationOptions, SourceClusterOptions
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import SEED_MAX, InputError, Limits, check_name
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.models.spec import (
    EncoderOptions,
    ModelSpec,
    SearchOptions,
    check_device,
    described,
)
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.retrieval.faiss.transform import FaissOptions
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.training.options import (
    DistillOptions,
    FinetuneOptions,
    MiningOptions,
    PretrainOptions,
)
from beir_cocodr.training.presets import stage_options
from beir_cocodr.training.pretraining.objectives import CoTMAEOptions, HeadOptions

KINDS = (
    *(
        PretrainOptions,
        FinetuneOptions,
        DistillOptions,
        MiningOptions,
        GenerationOptions,
        EncoderOptions,
    ),
    *(
        SearchOptions,
        EncodeOptions,
        FaissOptions,
        RepresentationOptions,
        SourceClusterOptions,
        Recipe,
    ),
)

#: The own options of losses, weightings, objectives, students and teachers.
TABLES = {
    name: table
    for kind in (PretrainOptions, FinetuneOptions, DistillOptions)
    for name, table in {**kind.TABLES, **kind.FREE_TABLES}.items()
}
_OWN = {row.options for table in TABLES.values() for row in table.values()} - {None}
KINDS = (*KINDS, *sorted(_OWN, key=lambda kind: kind.__name__))

OPTIONS = [(kind, field.name) for kind in KINDS for field in fields(kind)]

#: Options inside options, what takes objects, and one that the command line sets.
NO_OPTIONS = {"encoder", "mining", "targets", "measures", "progress", "sharpening"}


def types(kind: type, name: str) -> tuple[object, ...]:
    hint = get_type_hints(kind)[name]
    return get_args(hint) if get_origin(hint) is not Literal and get_args(hint) else (hint,)


def wrong_values(kind: type, name: str) -> list[object]:
    """Just beyond each bound, and what no number or name is."""
    limits: Limits = described(kind, name, "limits")
    allowed = types(kind, name)
    step = 1 if int in allowed else 1e-6
    bounds = (limits.above, limits.below, limits.min - step, limits.max + step)
    wrong: list[object] = [bound for bound in bounds if math.isfinite(bound)]
    if int in allowed or float in allowed:
        wrong += [math.nan, math.inf, -math.inf, True, "1"]
    if int in allowed:
        wrong += [1.5, 10**30]
        assert math.isfinite(limits.min), f"{kind.__name__}.{name}: how small may it be?"
    if bool in allowed:
        wrong += [1, "yes"]
    if str in allowed:
        wrong += [1, "\udcff"]
    if limits.choices is not None or get_origin(get_type_hints(kind)[name]) is Literal:
        wrong.append("spam")
    if limits.is_name:
        wrong += ["", " "]
    return wrong


@pytest.mark.parametrize(("kind", "name"), OPTIONS)
def test_every_option_is_checked(kind, name):
    if name in NO_OPTIONS or name.endswith("_options"):
        return
    assert described(kind, name, "limits") is not None, (
        "a field of an options class is made by option()"
    )
    wrong = wrong_values(kind, name)
    assert wrong or get_origin(get_type_hints(kind)[name]) is tuple
    for value in wrong:
        with pytest.raises(InputError, match=name) as error:
            kind(**{name: value})
        assert "\n" not in str(error.value)
        assert str(value)[:20] in str(error.value) or repr(value) in str(error.value)


def test_an_array_is_no_name_of_a_row():
    names = np.array(["mlm", "coco"])
    with pytest.raises(InputError, match="objective is array"):
        PretrainOptions(objective=names)
    with pytest.raises(InputError, match="weighting is array"):
        FinetuneOptions(weighting=names)


def test_layers_are_bounded():
    """A layer more takes a moment to make."""
    with pytest.raises(InputError, match=r"n_head_layers .*at most 100"):
        HeadOptions(n_head_layers=2**31 - 1)
    with pytest.raises(InputError, match=r"decoder_layers .*at most 100"):
        CoTMAEOptions(decoder_layers=2**31 - 1)


def test_every_seed_is_one_that_all_hosts_take():
    for kind in KINDS:
        if any(field.name == "seed" for field in fields(kind)):
            assert described(kind, "seed", "limits") == Limits(min=0, max=SEED_MAX)
            assert kind(seed=SEED_MAX)
    with pytest.raises(InputError, match="seed 4294967295 and episodes 1"):
        FinetuneOptions.of(seed=SEED_MAX, episodes=1)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rho=NaN", "rho must be at least 0, not nan"),
        ("learning_rate=Infinity", "learning_rate must be above 0, not inf"),
        ("save_steps=0", "save_steps must be at least 1, not 0"),
        ("seed=4294967296", "seed .*4294967295.*4294967296"),
        ("gram=spam", "unknown gram 'spam'.*one_backward"),
        ("batch_size=99999999999999999999", "batch_size .*at most 2147483647"),
        (f"batch_size=1{'0' * 400}", "batch_size .*at most 2147483647, not a number of over 300"),
        # As many processes or rows would take all memory.
        ("loader_workers=2147483647", "loader_workers .*at most 1024"),
        ("consecutive=2147483647", "consecutive .*at most 1000"),
        # As many rounds of work would not end.
        ("kmeans_restarts=2147483647", "kmeans_restarts .*at most 1000"),
        ("kmeans_iterations=2147483647", "kmeans_iterations .*at most 10000"),
        ("episodes=2147483647", "episodes .*at most 1000"),
    ],
)
def test_settings_are_checked_as_options_are(assignment, message):
    with pytest.raises(InputError, match=message):
        stage_options(FinetuneOptions, "finetune", None, [assignment], weighting="idro")


@pytest.mark.parametrize("device", ["cup", "tpu", "cuda:", "cuda:-1", "CPU", "", "meta"])
def test_an_unknown_device_is_named_without_torch(device):
    with pytest.raises(InputError, match="unknown device"):
        EncoderOptions(device=device)
    with pytest.raises(InputError, match="unknown device"):
        Recipe(device=device)


def test_a_device_that_is_not_here_is_named_where_it_is_needed():
    check_device("cuda:99", ["bm25", "lucene-bm25"])
    for models in (["minilm"], ["bm25", "hybrid:minilm"]):
        with pytest.raises(InputError, match=r"no device 'cuda:99'; choose one of cpu"):
            check_device("cuda:99", models)
    check_device("cpu", ["minilm"])
    check_device(None, ["minilm"])


def test_a_name_that_no_file_can_have():
    for name in ("a" * 5_000, "a/" * 4_000, f"hybrid:{'é' * 200}"):
        with pytest.raises(InputError, match=r"too long") as error:
            ModelSpec.parse(name)
        assert len(str(error.value)) < 250
    check_name("model name", "/tmp/" + "a" * 255)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["pretrain", "--model", "minilm", "--learning-rate", "nan"],
            "learning_rate must be above 0",
        ),
        (
            ["finetune", "--model", "minilm", "--set", "save_steps=0"],
            "save_steps must be at least 1",
        ),
        (["evaluate", "--model", "minilm", "--device", "cup"], "unknown device 'cup'"),
        (["evaluate", "--model", "minilm", "--device", "cuda:99"], "no device 'cuda:99'"),
        (
            ["evaluate", "--model", "bm25", "--measures", "nDCG@0"],
            "the cutoff of nDCG@0 must be at least 1",
        ),
        (["evaluate", "--model", "bm25", "--top-k", "0"], "top_k must be at least 1"),
        (
            ["evaluate", "--model", "bm25", "--encode-batch-size", "0"],
            r"batch_size .--encode-batch-size. .*at least 1",
        ),
        (["evaluate", "--model", "a" * 5_000], "too long"),
        (
            ["resample", "restrain", "--encoder", "minilm", "--k", "1", "--seed", "-1"],
            "seed must be at least 0",
        ),
    ],
)
def test_the_command_line_checks_before_it_works(command, message, tmp_path, capsys):
    where = (
        ["--train", "x", "--test", "y"]
        if command[0] == "resample"
        else ["--dataset", str(tmp_path / "none")]
    )
    with pytest.raises(SystemExit) as status:
        main([*command, *where, "--output", str(tmp_path / "out")])
    assert status.value.code == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(line) < 400

    assert re.search(message, line)
    assert not (tmp_path / "out").exists()
