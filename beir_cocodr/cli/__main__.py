"""The command line: one thin command per function, results on stdout, progress on stderr."""

import errno
import io
import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path

import typer

from beir_cocodr.cli import guide
from beir_cocodr.cli.commands import Program
from beir_cocodr.cli.noise import Noise, hush
from beir_cocodr.errors import InputError, describe_full_disk, first_line, no_room
from beir_cocodr.progress import LineHandler, saying_soon

app = typer.Typer(
    help="Adapt a dense retriever to a corpus without labels, and learn whether it got better.",
    cls=Program,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.callback()(guide.root)


@cache
def _program() -> typer.core.TyperGroup:
    """Return the program, built once for many calls in one process."""
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    return program


def main(arguments: list[str] | None = None) -> None:
    """Run a command, and end with status 0 on success or 2 with one line on bad input."""
    _replace_closed_streams()
    handler = LineHandler(sys.stderr)
    handler.addFilter(Noise())
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    hush()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal's encoding lacks is printed as an escape.
            stream.reconfigure(errors="backslashreplace")
    if arguments is None:
        arguments = sys.argv[1:]
    with _saying_that_it_starts(arguments):
        status = _run(arguments or ["--help"])
    sys.exit(status)


def _saying_that_it_starts(arguments: list[str]) -> AbstractContextManager[None]:
    """Say that a command has begun, if it prints nothing for a moment as it loads libraries."""
    if "torch" in sys.modules or not arguments or "--help" in arguments:
        return nullcontext()
    return saying_soon(f"{arguments[0]} has begun and loads its libraries and data ...")


def _replace_closed_streams() -> None:
    """Let standard streams that are closed be the null device.

    Otherwise the next file that is opened would have a stream's number, and get what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            stream = open(number, "r" if number == 0 else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _run(arguments: list[str]) -> int:
    """Run a command, and return its exit status."""
    try:
        Path.cwd()
    except OSError as error:
        return _fail(f"the working folder cannot be used: {error.strerror}; change to another")
    try:
        status = _program().main(args=arguments, prog_name="beir-cocodr", standalone_mode=False)
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except InputError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    except (Exception, SystemExit) as error:
        return _status(error)
    return status if isinstance(status, int) else 0


#: The most characters of an error's line.
_LONGEST = 1_000


def _fail(message: str) -> int:
    """Print an error's line, and return the exit status of bad input."""
    line = " ".join(message.split())
    if len(line) > _LONGEST:
        # An id can be a megabyte. What is at fault comes first, the way out last.
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    with suppress(OSError):  # stderr may be closed
        print("error: " + line, file=sys.stderr)
    return 2


def _status(error: Exception | SystemExit) -> int:
    """Return the exit status of an error that is no ``InputError``, or raise it again.

    It is 0 if the reader of a pipe has left, as ``head`` does, and 2 if nothing can be written, a
    permission is missing, a name is too long, or typer describes a usage error.
    """
    # Typer turns an OSError into a SystemExit.
    cause = error.__context__ if isinstance(error, SystemExit) else error
    if _stdout_is_gone(cause):
        with suppress(OSError):
            # Python would write the rest once more as it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(cause, BrokenPipeError):
        return 0
    if isinstance(error, SystemExit):
        raise error
    if no_room(error) is not None:
        return _fail(describe_full_disk(error))
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return _fail(f"{str(error.filename)[:80]}...: {error.strerror}; choose another name")
    denied = _denied(error)
    if denied is not None:
        return _fail(f"{denied}; give yourself the permission, or choose another file or folder")
    if hasattr(error, "format_message"):  # a usage error of typer
        return _fail(error.format_message())
    raise error


# A person may not read or write, or the file system refuses it.
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def _denied(error: BaseException | None) -> str | None:
    """Return the file and the reason if a permission is missing."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DENIED:
            if error.filename is None:
                return first_line(error)
            return f"{os.fsdecode(error.filename)}: {error.strerror}"
        error = error.__cause__ or error.__context__
    return None


def _stdout_is_gone(cause: BaseException | None) -> bool:
    if not isinstance(cause, OSError) or cause.filename is not None:
        return False
    return cause.errno in (errno.EPIPE, errno.ENOSPC)


if __name__ == "__main__":
    main()
