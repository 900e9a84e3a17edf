"""The commands that pass everything behind the first word on to another tool."""

from typing import Annotated

from typer import Argument

from beir_cocodr import load_plugin

#: Settings of a command whose words are another tool's.
PASSED_ON: dict[str, object] = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}


def irds(
    arguments: Annotated[
        list[str],
        Argument(
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
        Argument(
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
