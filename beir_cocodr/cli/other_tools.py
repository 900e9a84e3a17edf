"""The commands that run other tools over this machine's collections and stores."""

from typing import Annotated

import typer

from beir_cocodr import load_plugin


def irds(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="Run register FOLDER ID, register OUTPUT [ID], forget ID, or a command of "
            "ir_datasets, such as list or export ID docs."
        ),
    ],
) -> None:
    """Run ir_datasets on this machine's collections.

    These are the collections that register keeps and those that study resample writes.
    """
    load_plugin("irds commands")(arguments)


def pyserini(
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="Run this module with its options, such as search.faiss --index STORE --topics "
            "T --output RUN."
        ),
    ],
) -> None:
    """Run Pyserini over stores of this package.

    The command chooses a suitable Java. A store serves as an index, and --encoder beir-cocodr:MODEL
    names an encoder of this package.
    """
    load_plugin("pyserini commands")(arguments)
