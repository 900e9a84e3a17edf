"""Several commands one after another in two processes of torchrun's launcher, forked with
everything imported.

python tests/torchrun_commands.py commands.json LOGS

In place of a command may stand an object of module attributes and their values, in force from there
on. A test for which the start of an interpreter does not matter calls `launch` in a forked process.
"""

from __future__ import annotations

import gc
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from compiled import compile_once

from beir_cocodr.cli.__main__ import main
from beir_cocodr.cli.noise import hush


def run(commands: list[Any]) -> None:
    for command in commands:
        if isinstance(command, dict):
            for name, value in command.items():
                module, _, attribute = name.rpartition(".")
                setattr(import_module(module), attribute, value)
            continue
        try:
            main(command)
        except SystemExit as end:
            if end.code:
                print(f"exit status {end.code}", file=sys.stderr)


def launch(commands: list[Any], logs: Path) -> None:
    """Run the commands in two processes, which write their streams below ``logs``."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    streams = DefaultLogsSpecs(str(logs), redirects=Std.ALL)
    rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "max_restarts": 0}
    config = LaunchConfig(
        1, 1, 2, logs_specs=streams, run_id="two", start_method="fork", **rendezvous
    )
    elastic_launch(config, run)(commands)


def printed(logs: Path) -> tuple[str, str]:
    """Return what the two processes wrote to stdout and to stderr."""
    texts = []
    for name in ("stdout", "stderr"):
        files = sorted(logs.rglob(f"{name}.log"))
        assert len(files) == 2
        texts.append("".join(file.read_text() for file in files))
    return texts[0], texts[1]


if __name__ == "__main__":
    gc.disable()  # nothing is thrown away while everything is imported
    hush()  # as main does before anything of a host is imported
    for name in ("finetuning.finetune", "pretraining.pretrain", "distillation.distill"):
        import_module(f"beir_cocodr.training.{name}")
    import_module("beir_cocodr.resampling.regimes.regimes")
    compile_once()
    gc.freeze()  # what was imported is not looked through before every training
    gc.enable()
    launch(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
