"""The output folder of a training.

It belongs to one plan, resumes under the same one alone, and is never overwritten.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from beir_cocodr import io as files
from beir_cocodr.distributed import on_main, rank
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.loading import fingerprint
from beir_cocodr.provenance import RECORD_FILE, TrainingPlan, TrainingRecord, read_record
from beir_cocodr.records import CollectionProvenance
from beir_cocodr.same_run import check_same_run
from beir_cocodr.training.checkpoints import CHECKPOINTS
from beir_cocodr.training.shared_options import TrainingOptions
from beir_cocodr.training.start import Start

_PLAN_FILE = "plan.json"


def training_plan(
    stage: str,
    start: Start,
    options: TrainingOptions,
    seen: Sequence[CollectionProvenance],
) -> TrainingPlan:
    """Return the plan of a stage.

    Args:
        stage: its name.
        start: the encoder that it starts from.
        options: the stage's options.
        seen: the collections that it is given.
    """
    model = start.model
    parts = fingerprint(model)
    weights = parts.pop("weights")
    parts["text_format"] = files.json_sha256(
        [model.text_format.as_dict(), model.similarity_fn_name]
    )
    return TrainingPlan(
        stage=stage,
        base=start.name,
        base_sha256=weights,
        encoder=options.encoder.describe(),
        options=options.recorded(),
        seen=tuple(seen),
        base_parts=parts,
        precision=training_precision(model.device, options.precision),
    )


def training_precision(device: torch.device, asked: str = "auto") -> str:
    """Return the precision in which a training computes.

    Args:
        device: of the model.
        asked: one of :data:`~beir_cocodr.training.shared_options.PRECISIONS`. "auto" means bfloat16
            on GPUs that have it, float16 on other GPUs, and float32 on a CPU.

    Raises:
        InputError: The device does not support the precision that is asked for.
    """
    on_gpu = device.type == "cuda"
    has_bfloat16 = not on_gpu or torch.cuda.is_bf16_supported(including_emulation=False)
    if asked == "float16" and not on_gpu:
        raise InputError(
            f"precision float16 needs a GPU, and training is on {device}: choose bfloat16 or "
            "float32"
        )
    if asked == "bfloat16" and not has_bfloat16:
        raise InputError(
            f"precision bfloat16 is not supported by {device}: choose float16 or float32"
        )
    if asked != "auto":
        return asked
    if not on_gpu:
        return "float32"
    return "bfloat16" if has_bfloat16 else "float16"


@contextmanager
def lock_output(
    output: Path,
    resume: bool,
    plan: TrainingPlan,
) -> Iterator[TrainingRecord | None]:
    """Hold ``output`` for a plan, by all processes of a run.

    Gives None if there is something to train, else the record of the model that is already there.

    Raises:
        InputError: The folder holds files and ``resume`` is off, it was started under another plan
            or not by a training, or another run holds it.
    """
    with ExitStack() as stack:
        yield on_main(lambda: _lock(stack, output, resume, plan))


def _lock(
    stack: ExitStack, output: Path, resume: bool, plan: TrainingPlan
) -> TrainingRecord | None:
    stack.enter_context(files.sole_writer(files.output_folder(output, utf8=True)))
    record = read_record(output)
    if record is not None:
        return _finished(output, resume, plan, record)
    started_plan = output / CHECKPOINTS / _PLAN_FILE
    if started_plan.is_file() and resume:
        try:
            before = TrainingPlan.read(started_plan)
        except InputError as error:
            raise InputError(
                f"{error}, as nothing in {output} can be resumed; empty it or choose another"
            ) from error
        check_same_run(output, before.settings(), plan.settings())
    elif files.files_below(output):
        way_out = "nothing in it can be resumed" if resume else "or --resume if it was interrupted"
        raise InputError(f"{output} is not empty; choose another --output, {way_out}")
    return None


def _finished(
    output: Path, resume: bool, plan: TrainingPlan, record: TrainingRecord
) -> TrainingRecord:
    """Return the record of a finished training, if it is this one."""
    if not resume:
        raise InputError(
            f"{output} already contains a trained model; choose another --output, or --resume to "
            "keep it"
        )
    # A finished model is the same wherever it would be trained now.
    now = replace(plan, precision=record.precision)
    check_same_run(output, record.settings(), now.settings())
    if (output / CHECKPOINTS).is_dir():  # left by a run that died as it finished
        shutil.rmtree(output / CHECKPOINTS)
    return record


@contextmanager
def started(output: Path, plan: TrainingPlan) -> Iterator[None]:
    """Mark an output that :func:`lock_output` took as begun, so that what is prepared is resumed.

    Bad input that turns up inside empties the folder again, if nothing was trained in it yet.
    """
    on_main(lambda: plan.write(output / CHECKPOINTS / _PLAN_FILE))
    try:
        yield
    except InputError:
        trained = [*output.rglob("checkpoint-*"), *output.rglob(RECORD_FILE)]
        if rank() == 0 and not trained:
            empty(output)
        raise


def empty(folder: Path) -> None:
    """Delete what a folder holds, apart from files of the system."""
    for path in list(folder.iterdir()):
        if files.is_incidental(path):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def check_unused(output: Path, resume: bool) -> None:
    """Check that an output can be written to, and holds nothing that is not resumed.

    Raises:
        InputError: it cannot be a folder, or it has files and ``resume`` is off.
    """
    was_there = output.exists()
    folder = files.output_folder(output, utf8=True)
    has_files = bool(files.files_below(folder))
    if not was_there:
        folder.rmdir()
    if has_files and not resume:
        raise InputError(
            f"{output} is not empty; choose another --output, or --resume to continue it"
        )
