"""What a stage of ``adapt`` hands to its training."""

from __future__ import annotations

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.training import adapt as adapt_module
from beir_cocodr.training import stages
from beir_cocodr.training.adapt import AdaptOptions
from beir_cocodr.training.presets import GPL_TEACHER, adapt_options
from beir_cocodr.training.stages import StageData, StageRun


@pytest.mark.parametrize(
    ("stage", "named", "teaches"),
    [
        ("distill", None, "rm3"),
        ("distill", GPL_TEACHER, GPL_TEACHER),
        ("distill", "my/cross-encoder", "my/cross-encoder"),
        ("gpl", None, GPL_TEACHER),
        ("gpl", "my/cross-encoder", "my/cross-encoder"),
    ],
)
def test_a_named_teacher_is_the_teacher(stage, named, teaches, tmp_path, monkeypatch):
    taught_by = []
    monkeypatch.setattr(stages, "distill", lambda *_, teacher, **__: taught_by.append(teacher))
    data = StageData(target=None, queries_folder=tmp_path, teacher=named)
    run = StageRun(data, start=None, output=tmp_path / "o", options=adapt_options(stage))
    {"distill": stages.distill_stage, "gpl": stages.gpl_stage}[stage](run)
    assert taught_by == [teaches]


@pytest.mark.parametrize(
    ("generator", "named", "kinds", "filtering"),
    [
        ("lexical", {}, "claims,keywords,titles", (None, 1, None)),
        ("some/model", {}, "questions,claims,keywords,titles", ("hybrid:MODEL", 10, 0.8)),
        ("some/model", {"near_duplicates": 0.5}, None, ("hybrid:MODEL", 10, 0.5)),
        ("some/model", {"filter_retriever": "bm25", "filter_top": 3}, None, ("bm25", 3, None)),
        ("some/model", {"query_kinds": "questions"}, "questions", ("hybrid:MODEL", 10, 0.8)),
    ],
)
def test_what_a_language_model_writes_for_distillation_is_filtered(
    generator, named, kinds, filtering, beir_folder, tiny_mlm, tmp_path, monkeypatch
):
    """The queries that adapt asks for, of several kinds and with their documents found again."""
    asked_for = []

    def generate(dataset, generator, output, options, **_):
        asked_for.append(options)
        raise InputError("no further")

    monkeypatch.setattr(adapt_module, "generate_queries", generate)
    options = AdaptOptions(
        stages="distill", generator=generator, generation=GenerationOptions(**named)
    )
    with pytest.raises(InputError, match="no further"):
        adapt_module.adapt(str(tiny_mlm), str(beir_folder), output=tmp_path / "o", options=options)
    [asked] = asked_for
    assert kinds in (None, asked.query_kinds)
    retriever, top, similar = filtering
    if retriever is not None:
        retriever = retriever.replace("MODEL", str(tiny_mlm))
    assert (asked.filter_retriever, asked.filter_top, asked.near_duplicates) == (
        retriever,
        top,
        similar,
    )
