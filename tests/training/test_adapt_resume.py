"""An adaptation that is killed leaves nothing behind when it is resumed, and is resumed as it was
asked for.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from conftest import exit_code

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.training.adapt import AdaptOptions, adapt
from beir_cocodr.training.options import PretrainOptions

OPTIONS = PretrainOptions(max_steps=2, batch_size=4, learning_rate=1e-3, span_tokens=12)


def _die(data: Path, model: Path, output: Path) -> None:
    EvaluationRecord.write = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    adapt(
        str(model),
        str(data),
        output=output,
        options=AdaptOptions(stages=["coco"], stage_options={"coco": OPTIONS}),
    )


def left_over(output: Path) -> list[Path]:
    return [path for path in output.rglob(".*") if path.is_dir() or path.name == ".lock"]


def run_scores(path: Path) -> dict[tuple[str, str], float]:
    rows = [line.split() for line in path.read_text().splitlines()]
    return {(query, document): float(score) for query, _, document, _, score, _ in rows}


@pytest.fixture(scope="module")
def killed(beir_folder, tiny_mlm, tmp_path_factory) -> Path:
    """The output of an adaptation that was killed as it wrote its results."""
    output = tmp_path_factory.mktemp("killed") / "o"
    assert exit_code(_die, beir_folder, tiny_mlm, output) == -signal.SIGKILL
    assert left_over(output)
    return output


def test_other_settings_are_refused(killed, beir_folder, tiny_mlm):
    data, model = str(beir_folder), str(tiny_mlm)
    for name, changes in {
        "measures": {"measures": "R@10"},
        "options: coco": {"stage_options": {"coco": OPTIONS.with_overrides(seed=1)}},
        "queries": {"queries": 5},
        "samples": {"samples": 5},
        "corpus": {"split": "train"},
    }.items():
        given = {"stage_options": {"coco": OPTIONS}} | changes
        with pytest.raises(InputError, match=f"other .*{name}"):
            adapt(
                model,
                data,
                output=killed,
                resume=True,
                options=AdaptOptions(stages=["coco"], **given),
            )
    with pytest.raises(InputError, match="not empty"):
        adapt(
            model,
            data,
            output=killed,
            options=AdaptOptions(stages=["coco"], stage_options={"coco": OPTIONS}),
        )


def test_a_resumed_one_ends_as_one_that_was_not_killed(
    killed, beir_folder, tiny_mlm, tmp_path, caplog
):
    (killed / "models" / "coco" / ".unfinished-1").mkdir()
    plan = killed / "plan.json"
    content = plan.read_bytes()
    for broken in (b"", b"{", b"[]", content[:-30]):
        plan.write_bytes(broken)
        with pytest.raises(InputError, match=r"plan.json.*remove it"):
            adapt(
                str(tiny_mlm),
                str(beir_folder),
                output=killed,
                resume=True,
                options=AdaptOptions(stages=["coco"], stage_options={"coco": OPTIONS}),
            )
    other = json.loads(content)
    del other["settings"]["search"]["bm25_weight"]
    plan.write_text(json.dumps(other))
    with pytest.raises(InputError, match=r"other .*search: bm25_weight"):
        adapt(
            str(tiny_mlm),
            str(beir_folder),
            output=killed,
            resume=True,
            options=AdaptOptions(stages=["coco"], stage_options={"coco": OPTIONS}),
        )
    plan.unlink()  # to go on without it
    stamp = (killed / "models" / "coco" / "model.safetensors").stat().st_mtime_ns
    for output, resume in ((killed, True), (tmp_path / "whole", False), (killed, True)):
        adapt(
            str(tiny_mlm),
            str(beir_folder),
            output=output,
            resume=resume,
            options=AdaptOptions(stages=["coco"], stage_options={"coco": OPTIONS}),
        )
    assert (killed / "models" / "coco" / "model.safetensors").stat().st_mtime_ns == stamp
    assert "earlier version" in caplog.text
    assert not left_over(killed)
    files = [
        {p.relative_to(o).as_posix() for p in o.rglob("*")} for o in (killed, tmp_path / "whole")
    ]
    assert files[0] == files[1]
    runs = sorted(path.name for path in killed.glob("*.run"))
    assert len(runs) == 9
    for name in runs:
        scores = run_scores(tmp_path / "whole" / name)
        # Two processes trained the two models, and products of matrices may differ in the last
        # bits with where their operands lie in memory.
        assert run_scores(killed / name) == pytest.approx(scores, rel=1e-4, abs=1e-4)


def test_an_adaptation_that_cannot_begin_leaves_its_folder_empty(beir_folder, tmp_path):
    for _ in range(2):
        with pytest.raises(InputError, match="nowhere"):
            adapt(
                str(tmp_path / "nowhere"),
                str(beir_folder),
                output=tmp_path / "o",
                options=AdaptOptions(stages=["coco"]),
            )
    assert not list((tmp_path / "o").iterdir())
