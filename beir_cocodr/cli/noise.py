"""The messages that reach the terminal beside results: ours, and those of libraries on request."""

import logging
import os
import sys
import warnings
from typing import Annotated

from typer import Option

#: Environment variables that keep the libraries' bars and notes off the terminal. The libraries
#: read them when they are imported.
_QUIET = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


class Noise(logging.Filter):
    """Filter that passes our own messages, and those of libraries from a level on."""

    #: The lowest level at which a library's message passes.
    least = logging.ERROR

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is printed."""
        return record.name.startswith("beir_cocodr") or record.levelno >= self.least


def hush() -> None:
    """Keep libraries quiet, unless the environment or Python's own flags say otherwise."""
    Noise.least = logging.ERROR
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _hear(verbose: bool) -> None:
    if not verbose:
        return
    Noise.least = logging.WARNING
    for name, value in _QUIET.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    warnings.simplefilter("default")


#: The flag that every command and the program itself have.
Verbose = Annotated[
    bool,
    Option(
        "--verbose",
        "-v",
        callback=_hear,
        expose_value=False,
        help="Also print the progress bars and warnings of libraries.",
    ),
]
