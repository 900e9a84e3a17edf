"""Checkpoints: which are complete, what a loss adds to them, and the seal that closes them."""

import json
import logging
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_utils import sort_checkpoints

from beir_cocodr.distributed import rank, wait_for_all
from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_path, file_sha256, files_sha256, parse_json, write_text

log = logging.getLogger(__name__)

#: The folder of checkpoints, and of what a resumed run needs beside them.
CHECKPOINTS = "checkpoints"

#: In a checkpoint: the checksums of its files, which are written last.
SEAL_FILE = "complete.json"

#: In a checkpoint: the state of a loss.
LOSS_FILE = "loss_state.safetensors"


def checkpoint_to_resume(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, and delete later ones.

    Those were being written when the run died, or are damaged. A training that resumes from further
    back, even from the start, reaches the same weights.
    """
    checkpoints = _checkpoints(folder)
    last = last_checkpoint(folder)
    later = checkpoints
    if last is not None:
        later = checkpoints[: checkpoints.index(last)]
    if later:
        start = "the start" if last is None else last.name
        log.warning(
            "%s: %s is not complete; training resumes from %s", folder, later[0].name, start
        )
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    return last


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint."""
    return next(filter(is_complete, _checkpoints(folder)), None)


def is_complete(checkpoint: Path) -> bool:
    """Return true if every file is as the seal says."""
    try:
        sealed = parse_json((checkpoint / SEAL_FILE).read_text())
        return all(file_sha256(checkpoint / name) == digest for name, digest in sealed.items())
    except (OSError, ValueError, AttributeError):
        return False


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, newest first."""
    return [Path(checkpoint) for checkpoint in reversed(sort_checkpoints(str(folder)))]


class LossState(TrainerCallback):
    """Saves the state of a loss beside each checkpoint, and loads it from the resumed one.

    The state of the loss's ``model`` is the host's.

    Args:
        loss: the loss.
        checkpoint: the checkpoint that the training resumes from.
    """

    def __init__(self, loss: nn.Module, checkpoint: Path | None) -> None:
        """Keep the loss at hand."""
        self.loss = loss
        self.checkpoint = checkpoint

    def _file(self, checkpoint: Path) -> Path:
        """Return the file of this process's state; processes share one unless weights differ."""
        is_per_rank = getattr(self.loss, "scope", "all") == "rank" and rank() > 0
        if is_per_rank:
            return checkpoint / f"rank{rank()}.{LOSS_FILE}"
        return checkpoint / LOSS_FILE

    def on_train_begin(
        self, args: object, state: object, control: object, **kwargs: object
    ) -> None:
        """Load the state."""
        if self.checkpoint is None:
            return
        file = self._file(self.checkpoint)
        if not file.is_file():
            raise InputError(
                f"{self.checkpoint} has no cluster weights of process {rank()}, and the option "
                "scope=rank keeps one set for each process; resume with as many processes as before"
            )
        self.loss.load_state_dict(load_file(file), strict=False)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Save the state."""
        finish_step = getattr(self.loss, "finish_step", None)
        if finish_step is not None:
            finish_step()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        file = self._file(folder)
        if rank() > 0 and file.name == LOSS_FILE:
            return
        tensors = {
            name: tensor.detach().cpu().clone()
            for name, tensor in self.loss.state_dict().items()
            if not name.startswith("model.")
        }
        with atomic_path(file) as temporary:
            save_file(tensors, temporary)


class Seal(TrainerCallback):
    """Records the checksums of a checkpoint's files, once all processes have written theirs.

    It is the last callback.
    """

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Write the seal."""
        wait_for_all()
        if rank() == 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            seal = json.dumps(files_sha256(folder), indent=2) + "\n"
            write_text(folder / SEAL_FILE, seal)
