"""The options that the command proposed at the end of another one takes over from it."""

import shlex
from collections.abc import Iterable
from typing import Any

from beir_cocodr.errors import InputError

#: Options that say how a corpus is read, searched and judged, by the names of their parameters.
CARRIED = frozenset(
    {
        "text_column",
        "language",
        "strict",
        "split",
        "bm25_analyzer",
        "query_length",
        "document_length",
        "pooling",
        "chunk_pooling",
        "title_separator",
        "identical_ids",
    }
)


def carried_options(context: Any, following: str) -> str:
    """Return the options that a following command takes over, as a shell reads them.

    Only options that were given count, and only those that the following command has. A command
    that is proposed again takes all of them.

    Args:
        context: click's context of the command that ended.
        following: the following command line, without the name of the program.

    Returns:
        The options with a space before each, "" where there are none.
    """
    words = shlex.split(following)
    if words[-1] == "--help":
        return ""
    is_again = _is_named(context, words)
    wanted = [
        parameter
        for parameter in context.command.params
        if (is_again or parameter.name in CARRIED) and was_given(context, parameter.name)
    ]
    if not wanted:
        return ""  # the other command is not imported for nothing
    command = _command(context.find_root().command, words)
    known = {option for parameter in command.params for option in parameter.opts}
    options = []
    for parameter in wanted:
        option = next((name for name in parameter.opts if name.startswith("--")), None)
        if option is not None and option in known and option not in words:
            options += _as_words(option, parameter, context.params[parameter.name])
    return "".join(f" {shlex.quote(word)}" for word in options)


def _is_named(context: Any, words: list[str]) -> bool:
    """Return True if the first words name the command that ended."""
    name: list[str] = context.command_path.split()[1:]  # without the name of the program
    return words[: len(name)] == name


def _command(group: Any, words: list[str]) -> Any:
    """Return the command that the first words name."""
    for word in words:
        if not hasattr(group, "commands"):
            break
        group = group.commands[word]
    return group


def was_given(context: Any, name: str) -> bool:
    """Return True if a parameter was given on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_unused(context: Any, names: Iterable[str], other: str) -> None:
    """Refuse options that do nothing beside another one.

    Args:
        context: click's context of the running command.
        names: Names of the parameters.
        other: The option that does not use them, as it is written.

    Raises:
        InputError: One of them was given; the message names all that were.
    """
    parameters = {parameter.name: parameter for parameter in context.command.params}
    flags = []
    for name in names:
        if was_given(context, name):
            words = _as_words(f"--{name.replace('_', '-')}", parameters[name], context.params[name])
            flags.append(words[0])
    if len(flags) == 1:
        raise InputError(f"{flags[0]} is not used with {other}; leave one of them out")
    if flags:
        raise InputError(
            f"{', '.join(flags)} are not used with {other}; leave them out, or leave {other} out"
        )


def _as_words(option: str, parameter: Any, value: Any) -> list[str]:
    """Return the words of an option: a flag, or the option before each of its values."""
    if getattr(parameter, "is_flag", False):
        negative = next(iter(parameter.secondary_opts), None)
        if value:
            return [option]
        return [] if negative is None else [negative]
    values = value if isinstance(value, list | tuple) else [value]
    words = []
    for one in values:
        words += [option, str(one)]
    return words
