"""Claim: the papers' tables can be made again, step by step, beside what was published.

``--plan`` prints commands, collections and costs of a table, and runs nothing. ``--scale paper``
trains and judges as the paper did, and prints the published figure and the gap beside ours.
``--scale here`` runs the same path with tiny encoders on parts of the packaged documentation:
nothing that it prints can be compared. A finished step is not run again, a step that was killed
continues, and a step that fails stops no other. A cell without a figure says why. Tables are
written to ``--output``, and also to the folder of ``--results``:

    python benchmarks/reproduce coco-dr-table2 --plan
    python benchmarks/reproduce coco-dr-table2 --data DATA --download
    python benchmarks/reproduce coco-dr-table2 --scale here
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from beir_cocodr.errors import InputError
from beir_cocodr.io import output_folder, remove_unfinished, sole_writer, write_text
from reproduce import cocodr, extrapolation, mrl, query_as_context
from reproduce.plans import describe_plan
from reproduce.scales import HereScale, PaperScale, Scale
from reproduce.shared import TASKS
from reproduce.specification import Paper, Table
from reproduce.tables import add_models, choose, leave_out, markdown, read_no_more, read_results
from reproduce.workshop import Workshop

PAPERS: dict[str, Paper] = {}
#: A table's name to its paper and itself.
TABLES: dict[str, tuple[Paper, Table]] = {}
for _paper in (cocodr.PAPER, mrl.PAPER, query_as_context.PAPER, extrapolation.PAPER):
    PAPERS[_paper.name] = _paper
    for _table in _paper.tables:
        TABLES[_table.name] = (_paper, _table)


def option_parser() -> argparse.ArgumentParser:
    """Create the runner's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table",
        nargs="*",
        help=f"{', '.join(TABLES)}; or a paper: {', '.join(PAPERS)}; or all",
    )
    parser.add_argument(
        "--scale",
        choices=("paper", "here"),
        default="paper",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="Print commands, collections and costs; run nothing.",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="Print a plan without commands.",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="Take collections from this folder of BEIR folders.",
    )
    parser.add_argument(
        "--download",
        action="store_true",
        help="Let ir_datasets and the hub download what is missing.",
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=8,
        help="GPUs of this machine. Default: 8.",
    )
    _add_choices(parser)
    return parser


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what is made, and where it is written."""
    parser.add_argument(
        "--rows",
        nargs="+",
        default=[],
        metavar="ROW",
        help="Only these rows, and their means.",
    )
    parser.add_argument(
        "--without",
        default="",
        metavar="TASK,TASK",
        help="Leave out these tasks: their rows, and their corpora in pre-training.",
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="Only these columns.",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        help="Add a column to a table by tasks; repeat it.",
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="Also write TABLE.SCALE.json to this folder.",
    )
    parser.add_argument(
        "--inside",
        action="store_true",
        help="Run all commands in this process.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="The folder of all steps. Default: runs/reproduce/SCALE.",
    )


def main(arguments: list[str] | None = None) -> None:
    parser = option_parser()
    options = parser.parse_args(arguments)
    names: list[str] = []
    for wanted in options.table:
        names += named_tables(wanted, parser)
    check_options(options, names, parser)
    output = options.output or Path("runs/reproduce") / options.scale
    scale = make_scale(options, output)
    inside = options.inside or options.scale == "here"
    shops = {}
    for name, paper in PAPERS.items():
        shops[name] = Workshop(
            paper,
            scale,
            output / name,
            inside=inside,
            without=left_out_tasks(options.without, parser),
        )
    has_failed = False
    with ExitStack() as stack:
        if not options.plan:
            folders = [folder for shop in shops.values() for folder in shop.records_folders()]
            stack.enter_context(holding(output, folders, parser))
        for name in names:
            paper, table = TABLES[name]
            shop = shops[paper.name]
            table = leave_out(shop, add_models(shop, table, options.model))
            if options.rows or options.columns:
                table = read_no_more(shop, choose(table, options.rows, options.columns))
            if options.plan:
                print(describe_plan(shop, table, with_commands=not options.short), end="\n\n")
            elif not make_table(
                shop,
                table,
                output,
                options,
            ):
                has_failed = True
    if has_failed:
        sys.exit(1)


@contextmanager
def holding(
    output: Path,
    folders: Iterable[Path],
    parser: argparse.ArgumentParser,
) -> Iterator[None]:
    """Keep other processes from the output, and remove what killed ones left half-written.

    Args:
        output: The output.
        folders: Further folders to which this script writes by itself.
        parser: Ends the program if another process writes to the output.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(sole_writer(output_folder(output)))
        except InputError as error:
            parser.error(str(error))
        for folder in folders:
            remove_unfinished(folder)
        yield


def named_tables(name: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the tables that a name on the command line means."""
    if name == "all":
        return list(TABLES)
    if name in PAPERS:
        return [table.name for table in PAPERS[name].tables]
    if name not in TABLES:
        parser.error(
            f"there is no table {name}; tables: {', '.join(TABLES)}; papers: {', '.join(PAPERS)}; "
            "or all"
        )
    return [name]


def left_out_tasks(text: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the tasks of ``--without``."""
    tasks = [task.strip() for task in text.split(",") if task.strip()]
    unknown = sorted(set(tasks) - set(TASKS))
    if unknown:
        parser.error(f"--without {', '.join(unknown)}: no such task; it has {', '.join(TASKS)}")
    return tasks


def check_options(
    options: argparse.Namespace,
    names: list[str],
    parser: argparse.ArgumentParser,
) -> None:
    """End the program if an option is wrong."""
    if not names:
        parser.error(f"name a table: {', '.join(TABLES)}; a paper: {', '.join(PAPERS)}; or all")
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data {options.data} is no folder")
    if len(set(options.model)) < len(options.model):
        parser.error("--model names a model twice; name each once")
    if options.gpus < 0:
        parser.error("--gpus is negative; give a number from 0 on")
    for name in names:
        _, table = TABLES[name]
        for kind, wanted, known in (
            ("row", options.rows, table.rows),
            ("column", options.columns, table.columns),
        ):
            unknown = sorted(set(wanted) - set(known))
            if unknown:
                parser.error(
                    f"{name} has no {kind} {', '.join(unknown)}; it has {', '.join(known)}"
                )
        if options.model and table.judged is None:
            parser.error(f"{name} takes no --model; tables by tasks do")


def make_scale(options: argparse.Namespace, output: Path) -> Scale:
    """Make the scale that the options name."""
    if options.scale == "here":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        return HereScale(output)
    return PaperScale(options.data, max(1, options.gpus), options.download)


def make_table(
    shop: Workshop,
    table: Table,
    output: Path,
    options: argparse.Namespace,
) -> bool:
    """Run all steps of a table, write and print it, and say whether all went well."""
    for cell in table.cells.values():
        for step in cell.steps():
            shop.make(step)
    results = read_results(shop, table)
    text = (
        json.dumps(
            results,
            indent=1,
            ensure_ascii=False,
        )
        + "\n"
    )
    write_text(output / f"{table.name}.json", text)
    if options.results is not None:
        write_text(options.results / f"{table.name}.{options.scale}.json", text)
    print(markdown(results, table.digits), end="\n\n")
    figures = []
    for row in results["cells"].values():
        figures += [entry["ours"] for entry in row.values()]
    has_figure = any(figure is not None for figure in figures)
    return has_figure and not shop.failed
