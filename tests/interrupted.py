"""Copies of the folder of a training as a kill at the end of a step would leave it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from transformers import TrainerCallback

from beir_cocodr.training import trainer


class _Copying(TrainerCallback):
    def __init__(self, output: Path, copies: Mapping[int, Path]) -> None:
        self.output = output
        self.copies = copies

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in self.copies:
            shutil.copytree(self.output, self.copies[state.global_step])


@contextmanager
def copied_at_steps(output: Path, copies: Mapping[int, Path]) -> Iterator[None]:
    """Copy the output of a training at the end of steps, before a checkpoint of the step is saved.

    One whole training gives the folders of several that were killed.

    Args:
        output: The folder of the training.
        copies: The folder of each copy by its step.
    """
    original = trainer.Stage.__init__
    copying = _Copying(output, copies)

    def with_copies(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if copying not in self.callbacks:  # a stage may be made from another
            object.__setattr__(self, "callbacks", [*self.callbacks, copying])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Stage, "__init__", with_copies)
        yield
    assert all(copy.is_dir() for copy in copies.values())
