"""What a stage of ``adapt`` hands to its training."""

from __future__ import annotations

import pytest

from beir_cocodr.training import stages
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
