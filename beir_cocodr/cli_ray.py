"""The option ``--ray [ADDRESS]`` of commands whose work a cluster can share."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_NAME = "--ray"
# What the option means where it stands alone.
_DEFAULT = "auto"

Address = Annotated[
    str | None,
    typer.Option(
        _NAME,
        metavar="[ADDRESS]",
        help="Do it on a Ray cluster, with the same files to the byte: HOST:PORT of its head, auto (the one "
        "that RAY_ADDRESS names or that runs on this machine; meant where no ADDRESS is given), or local "
        "(one that is started for this and ended).",
    ),
]


class RayCommand(TyperCommand):
    """A command whose ``--ray`` may stand without a value: typer itself has no such options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _with_address(args))


def ray_plugin() -> Any:
    """The plugin that does the work of ``encode`` and ``search`` on a cluster."""
    # By name: the plugins stand outside this folder in the source tree.
    return import_module("beir_cocodr.plugins.ray")


def _with_address(args: list[str]) -> list[str]:
    following = [*args[1:], "-"]
    return [
        f"{_NAME}={_DEFAULT}" if word == _NAME and following[place].startswith("-") else word
        for place, word in enumerate(args)
    ]
