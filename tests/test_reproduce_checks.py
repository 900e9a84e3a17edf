"""Planned commands are checked by the command line's own parsing and by the options' classes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from reproduce import commands, runner
from reproduce.commands import unavailable
from reproduce.scales import PaperScale
from reproduce.shared import TRAIN_QUERIES
from reproduce.workshop import Workshop

from beir_cocodr.resampling import RestrainOptions
from beir_cocodr.resampling.restrain import check_targets

#: A command of each kind that is planned, which is accepted as it is.
ACCEPTED = {
    "encode": "encode --dataset d --model m --output o --backend bf16",
    "evaluate": "evaluate --dataset d --model m --output o --overwrite",
    "generate": "generate-queries --dataset d --generator g --output o",
    "overlap": "overlap --train t --test u --encoder e --output o",
    "restrain": "resample restrain --train t --test u --encoder e --output o --size 10",
    "resttest": "resample resttest --train t --test u --encoder e --output o",
    "regimes": (
        "resample evaluate --preset extrapolation --folder f --start s --output o "
        "--other-start a=b --architecture bm25,dense@a"
    ),
    "qpp": "qpp --dataset d --model m --output o",
    "pretrain": "pretrain --preset cocodr-base --dataset d --model m --output o",
    "finetune": "finetune --preset cocodr-base --weighting idro --dataset d --model m --output o",
    "distill": "distill --preset mrl --dataset d --model m --teacher t --output o",
}

#: Words that are refused behind a command, and a word of the reason.
REFUSED = [
    ("encode", "--precision fp17", "fp17"),
    ("encode", "--processes 0", "processes"),
    ("encode", "--document-length 1", "document_length"),
    ("evaluate", "--measures nDGC@10", "nDGC"),
    ("evaluate", "--identical-ids perhaps", "perhaps"),
    ("evaluate", "--bm25-weight -1", "bm25_weight"),
    ("evaluate", "--top-k many", "valid integer"),
    ("generate", "--passage-tokens 2", "passage_tokens"),
    ("generate", "--per-passage 0", "per_passage"),
    ("overlap", "--query-length 1", "query_length"),
    ("restrain", "--seed -1", "seed"),
    ("restrain", "--k 5", "not both"),
    ("resttest", "--seed -1", "seed"),
    ("resttest", "--size 5", "--size"),
    ("regimes", "--set rerank=0", "rerank"),
    ("regimes", "--architecture dens", "dens"),
    ("regimes", "--architecture dense@b", "dense@b"),
    ("regimes", "--measures nDGC@10", "nDGC"),
    ("qpp", "--measure nDGC@10", "nDGC"),
    ("pretrain", "--set flush_probability=2", "flush_probability"),
    ("finetune", "--loss triplet --negatives 0", "negatives"),
    ("distill", "--set m_bm25=1000", "candidates"),
]


def test_a_command_that_is_not_there_is_named():
    assert "no command" in unavailable(["embroider", "--dataset", "x"])
    assert "--colour" in unavailable(["evaluate", "--colour", "red"])
    assert "takes one --output" in unavailable(["evaluate", "--output", "a", "--output", "b"])
    assert "--dataset" in unavailable(["evaluate", "--model", "a", "--output", "b"])
    assert unavailable(shlex.split(f"{ACCEPTED['evaluate']} --model b")) == ""


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("paper", runner.PAPERS)
def test_every_planned_command_passes_its_own_checks(paper, gpus, tmp_path):
    """But for what is said to be lacking, which other versions may have."""
    place = Workshop(runner.PAPERS[paper], PaperScale(gpus=gpus), tmp_path)
    lacking = {
        reason
        for name in place.steps
        for words in place.words(name)
        if (reason := unavailable(words, gpus))
    }
    known = ("models of the kind",)
    assert [reason for reason in lacking if not reason.startswith(known)] == []


@pytest.mark.parametrize(("kind", "words", "reason"), REFUSED)
def test_a_plan_names_what_a_command_would_refuse(kind, words, reason):
    accepted = shlex.split(ACCEPTED[kind])
    assert unavailable(accepted, 8) == ""
    found = unavailable([*accepted, *shlex.split(words)], 8)
    assert "refuses its options" in found or "has no option" in found
    assert reason in found


def test_a_training_is_checked_for_as_many_processes_as_it_would_have(monkeypatch):
    asked = []
    options_of = commands.options_of

    def asking(words: list[str], processes: int) -> object:
        asked.append(processes)
        return options_of(words, processes)

    monkeypatch.setattr(commands, "options_of", asking)
    words = shlex.split(f"{ACCEPTED['finetune']} --seed 7")
    commands._fitting_processes.cache_clear()
    assert unavailable(words, 8) == ""
    assert asked[-1] == 8
    commands._fitting_processes.cache_clear()
    assert unavailable(words, 1) == ""
    assert asked[-1] == 1


def test_the_sizes_of_resampled_sets_can_be_drawn():
    """``check_targets`` imports torch, so that a plan asks for less."""
    place = Workshop(runner.PAPERS["extrapolation"], PaperScale(), Path("nowhere"))
    checked = 0
    for name in place.steps:
        for words in place.words(name):
            if words[:2] == ["resample", "restrain"]:
                sizes = [int(words[i + 1]) for i, word in enumerate(words) if word == "--size"]
                check_targets(RestrainOptions(sizes=tuple(sizes)), TRAIN_QUERIES)
                checked += 1
    assert checked > 1
