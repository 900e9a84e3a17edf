"""The table of the commands, and the program, which makes each command when it is asked for.

The module of a command is imported when the command runs, or when its help or its options are
needed. A search is not to wait for the options of thirty other commands.
"""

from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from beir_cocodr import load_object
from beir_cocodr.cli import guide
from beir_cocodr.cli.reading import reads_files


@dataclass(frozen=True)
class CommandRow:
    """A command of the table.

    Attributes:
        function: the function that it runs, as ``module:function`` of this room.
        passes_on: it passes its words on to another tool, which knows their options.
    """

    function: str
    passes_on: bool = False

    def make(self, name: str) -> Any:
        """Return the command, whose module is imported now."""
        function = load_object(f"{__package__}.{self.function}")
        settings = None
        if self.passes_on:
            settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        register = app.command(name, cls=guide.Command, context_settings=settings)
        register(reads_files(function))
        return typer.main.get_command(app)


@dataclass(frozen=True)
class GroupRow:
    """A group of commands below one word.

    Attributes:
        help: its summary.
        rows: its commands.
    """

    help: str
    rows: "Mapping[str, CommandRow | GroupRow]"

    def make(self, name: str) -> Any:
        """Return the group; its commands are made later, one by one."""
        commands: Any = Commands(self.rows)
        return TyperGroup(name=name, help=self.help, commands=commands, rich_markup_mode=None)


class Commands(UserDict[str, Any]):
    """Commands by their names; each is made when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        """Return a command, which is the same one each time."""
        entry = self.data[name]
        if isinstance(entry, CommandRow | GroupRow):
            entry = entry.make(name)
            self.data[name] = entry
        return entry


_RESAMPLE = GroupRow(
    help="Make interpolation and extrapolation collections.",
    rows={
        "restrain": CommandRow("resampling:restrain"),
        "resttest": CommandRow("resampling:resttest"),
        "evaluate": CommandRow("resampling:evaluate"),
    },
)

_STUDY = GroupRow(
    help="Run an analysis from the papers, such as study qpp.",
    rows={
        "qpp": CommandRow("study:qpp"),
        "shift": CommandRow("study:shift"),
        "representation": CommandRow("study:representation"),
        "source-clusters": CommandRow("study:source_clusters"),
        "overlap": CommandRow("study:overlap"),
        "resample": _RESAMPLE,
    },
)

#: The headings of the help with their commands, in the order in which they are shown.
GROUPS: dict[str, dict[str, CommandRow | GroupRow]] = {
    "Start here": {
        "quickstart": CommandRow("first_steps:quickstart"),
        "try": CommandRow("serving:try_folder"),
        "search": CommandRow("search:search"),
        "compare": CommandRow("judging:compare"),
        "gate": CommandRow("gating:gate"),
        "adapt": CommandRow("training:adapt"),
        "fuse": CommandRow("training:fuse"),
        "evaluate": CommandRow("judging:evaluate"),
        "report": CommandRow("judging:report"),
        "validate": CommandRow("first_steps:validate"),
        "doctor": CommandRow("first_steps:doctor"),
        "cache": CommandRow("caching:cache"),
    },
    "Train": {
        "pretrain": CommandRow("training:pretrain"),
        "finetune": CommandRow("training:finetune"),
        "distill": CommandRow("training:distill"),
        "generate-queries": CommandRow("training:generate_queries"),
        "export": CommandRow("training:export"),
    },
    "Encode and serve": {
        "encode": CommandRow("encoding:encode"),
        "serve": CommandRow("serving:serve"),
        "hand-over": CommandRow("encoding:hand_over"),
        "learn": CommandRow("learning:learn"),
    },
    "Repeat the analyses of the papers": {"study": _STUDY},
    "Run other tools": {
        "irds": CommandRow("other_tools:irds", passes_on=True),
        "pyserini": CommandRow("other_tools:pyserini", passes_on=True),
    },
}


class Program(TyperGroup):
    """The program: its commands under the headings of :data:`GROUPS`, and their former names."""

    def __init__(self, **settings: Any) -> None:
        """Take typer's settings, and the commands of the table."""
        super().__init__(**settings)
        self.commands = Commands()
        for rows in GROUPS.values():
            self.commands.update(rows)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; typer would make each of them."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first words name."""
        return super().resolve_command(ctx, guide.current_words(args))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each heading's commands with their summaries."""
        for heading, names in GROUPS.items():
            rows = [(name, guide.summary(self.commands[name])) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)
