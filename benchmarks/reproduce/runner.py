"""Tables of the papers, made again: planned, run, gone on with after a kill, and printed beside
what was published.

    python benchmarks/reproduce coco-dr-table2 --plan
    python benchmarks/reproduce coco-dr-table2 --data DATA --download
    python benchmarks/reproduce coco-dr-table2 --scale here

``--scale paper`` trains and judges as the paper did, and prints the published figure and the gap
beside ours. ``--scale here`` runs the same path with tiny encoders on parts of embedded
documentation: nothing it prints can be compared. A step that is finished is not run again, one that
was killed goes on; a step that fails stops no other. A cell without a figure says why.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from machine import machine

from beir_cocodr.io import write_text
from beir_cocodr.records import versions
from reproduce import cocodr, extrapolation, mrl, query_as_context
from reproduce.commands import run, shown, unavailable
from reproduce.costs import Cost, cost, size, throughputs
from reproduce.scales import HereScale, PaperScale, Scale, resolve
from reproduce.shared import BY_HAND
from reproduce.specification import COMBINATIONS, Cell, Paper, Step, Table, mean, read

PAPERS = {
    paper.name: paper
    for paper in (cocodr.PAPER, mrl.PAPER, query_as_context.PAPER, extrapolation.PAPER)
}
TABLES = {table.name: (paper, table) for paper in PAPERS.values() for table in paper.tables}


@functools.cache
def _split(line: str) -> tuple[str, ...]:
    return tuple(shlex.split(line))


NOT_COMPARABLE = "Not comparable: it shows that the path runs (tiny random encoders, parts of documentation, few steps)."


@dataclass
class Workshop:
    """Steps of one paper at one scale, in folders below ``output``.

    Attributes:
        inside: whether commands are run in this process.
        failed: step to what went wrong in this run.
    """

    paper: Paper
    scale: Scale
    output: Path
    inside: bool = False
    steps: dict[str, Step] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    _first: dict[tuple[str, ...], str] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = dict(self.paper.steps)

    @property
    def gpus(self) -> int:
        return getattr(self.scale, "gpus", 1)

    def same(self, name: str) -> str:
        """The first step that runs the same commands: at a small scale many do."""
        if name not in self._names:
            key = tuple(
                resolve(command, self.scale, self.folder) for command in self.steps[name].commands
            )
            self._names[name] = self._first.setdefault(key, name)
        return self._names[name]

    def folder(self, name: str) -> Path:
        return self.output / "steps" / self.same(name)

    def _record(self, name: str) -> Path:
        folder = self.folder(name)
        return folder.with_name(f"{folder.name}.progress.json")

    def words(self, name: str) -> list[list[str]]:
        """The commands as they are run."""
        out = self.folder(name)
        lines = [
            resolve(command, self.scale, self.folder, out) for command in self.steps[name].commands
        ]
        return [self.scale.words([*_split(line)]) for line in lines]

    def order(self, name: str) -> Iterator[str]:
        """A step behind those that it needs."""
        for needed in self.steps[name].needs("step"):
            yield from self.order(needed)
        yield name

    def progress(self, name: str) -> dict[str, Any]:
        """Which commands are finished, and how long they took."""
        file = self._record(name)
        return (
            json.loads(file.read_text())
            if file.is_file()
            else {"finished": 0, "seconds": [], "commands": []}
        )

    def done(self, name: str) -> bool:
        return bool(self.progress(name)["finished"] == len(self.steps[name].commands))

    def cannot(self, name: str, look: bool = True) -> str:
        """Why a step cannot be run, or why one that it needs cannot; ``look``: whether collections
        have to be here.
        """
        for one in self.order(name):
            for words in self.words(one):
                if reason := unavailable(words):
                    return f"cannot be run yet: {reason}"
            for data in self.steps[one].needs("data") if look and not self.done(one) else ():
                if reason := self.scale.missing(data):
                    return reason
            if self.same(one) in self.failed:
                return f"{one} failed: {self.failed[self.same(one)]}"
        return ""

    def make(self, name: str) -> None:
        """Run what a step lacks, and those that it needs; what fails is written down."""
        for one in self.order(name):
            if self.cannot(one):
                return
            if not self.done(one):
                try:
                    self._run(one)
                except RuntimeError as error:
                    self.failed[self.same(one)] = str(error)
                    print(f"{one} failed: {error}", file=sys.stderr)
                    return

    def _run(self, name: str) -> None:
        found, words, file = self.progress(name), self.words(name), self._record(name)
        if found["commands"] != words[: len(found["commands"])]:
            ways = f"remove it and {file.name}, or choose another --output"
            raise RuntimeError(f"{self.folder(name)} was begun with other commands: {ways}")
        file.parent.mkdir(parents=True, exist_ok=True)
        log = file.with_name(f"{self.folder(name).name}.log")
        for number in range(found["finished"], len(words)):
            print(f"{name}: {shlex.join(shown(words[number], self.gpus))[:150]}", file=sys.stderr)
            found["commands"] = words[: number + 1]
            write_text(file, json.dumps(found, indent=1) + "\n")
            started = time.perf_counter()
            run(words[number], log, self.gpus, self.inside)
            found["finished"] = number + 1
            found["seconds"].append(round(time.perf_counter() - started, 1))
            write_text(file, json.dumps(found, indent=1) + "\n")
        for part in self.steps[name].discard:
            shutil.rmtree(self.folder(name) / part, ignore_errors=True)

    def figure(self, cell: Cell) -> tuple[Any, str]:
        """A cell's figure, or None and why there is none."""
        if cell.why:
            return None, cell.why
        if cell.combine:
            found = [self.figure(part) for part in cell.parts]
            if why := next((why for value, why in found if value is None), ""):
                return None, why
            return COMBINATIONS[cell.combine]([value for value, _ in found]) * cell.factor, ""
        if not self.done(cell.step):
            return None, self.cannot(cell.step) or "not run"
        try:
            value = read(self.folder(cell.step), resolve(cell.read, self.scale, self.folder))
        except (LookupError, ValueError, OSError) as error:
            return None, f"no such figure: {cell.step} has no {cell.read} ({type(error).__name__})"
        return (
            value * cell.factor if isinstance(value, (int, float)) else value
        ), "" if value is not None else "not defined there"


NOT_ASKED = "not asked for"


def further_models(shop: Workshop, table: Table, models: Sequence[str]) -> Table:
    """The table with a column for each model that the command line names, and of the others the
    published figures.
    """
    if not models:
        return table
    assert table.judged is not None
    averages = means(table)
    cells = {}
    for row in table.rows:
        for model in models:
            known = table.cells[row, model].published if model in table.columns else ""
            if row in averages:
                cells[row, model] = mean((cells[task, model] for task in averages[row]), known)
            else:
                cells[row, model] = replace(table.judged(model, row), published=known)
        for column in [name for name in table.columns if name not in models]:
            old = table.cells[row, column]
            parts = tuple(cells[task, column] for task in averages.get(row, ()))
            new = (
                replace(old, parts=parts) if parts else Cell(published=old.published, why=NOT_ASKED)
            )
            cells[row, column] = new
    shop.steps |= cocodr.judgements.steps
    return replace(table, cells=cells)


def means(table: Table) -> dict[str, list[str]]:
    """Row of averages to the rows that it averages."""
    first = table.columns[0]  # rows that lack it are no averages
    cells = {row: table.cells[row, first] for row in table.rows if (row, first) in table.cells}
    at = {id(cell): row for row, cell in cells.items()}
    found = {}
    for row, cell in cells.items():
        parts = [at.get(id(part)) for part in cell.parts]
        if parts and None not in parts:
            found[row] = [part for part in parts if part is not None]
    return found


def chosen(table: Table, rows: Sequence[str], columns: Sequence[str]) -> Table:
    """Some rows and columns, all where none are named; averages are over the rows that are left."""
    averages, cells = means(table), dict(table.cells)
    if columns:
        cells = {(row, column): cell for (row, column), cell in cells.items() if column in columns}
    for (row, column), cell in list(cells.items()) if rows else ():
        left = tuple(cells[part, column] for part in averages.get(row, ()) if part in rows)
        if left:
            cells[row, column] = replace(cell, parts=left, published="")
        elif row not in rows:
            del cells[row, column]
    return replace(table, cells=cells)


def plan(shop: Workshop, table: Table) -> dict[str, Any]:
    """What making a table takes: commands in order, collections, costs, and the cells that cannot
    be made.
    """
    reasons: dict[str, list[str]] = {}
    names: dict[str, None] = {}
    for (row, column), cell in table.cells.items():
        missing = (shop.cannot(step, look=False) for step in cell.steps())
        why = next((why for why in (*cell.reasons(), *missing) if why), "")
        if why:
            reasons.setdefault(why, []).append(f"{row}, {column}")
        else:
            names |= dict.fromkeys(
                shop.same(one) for step in cell.steps() for one in shop.order(step)
            )
    found, total = [], Cost()
    for name in names:
        step = shop.steps[name]
        guess = cost(step, shop.gpus, shop.steps) if shop.scale.name == "paper" else Cost()
        total += guess
        lines = [shlex.join(shown(words, shop.gpus)) for words in shop.words(name)]
        disk = guess.disk_gib if not step.discard else 0
        found.append(
            {
                "step": name,
                "done": shop.done(name),
                "commands": lines,
                **vars(guess),
                "kept_gib": disk,
            }
        )
    data = sorted({data for name in names for data in shop.steps[name].needs("data")})
    return {
        "table": table.name,
        "steps": found,
        "data": data,
        "reasons": reasons,
        "total": vars(total),
    }


def describe_plan(shop: Workshop, table: Table, commands: bool = True) -> str:
    """A plan to read."""
    found, gpu = plan(shop, table), throughputs()["gpu"]
    cells = len(table.cells)
    lacking = sum(map(len, found["reasons"].values()))
    lines = [
        f"# {table.name}: {table.title}",
        "",
        f"{cells - lacking} of {cells} cells from {len(found['steps'])} steps.",
    ]
    for step in found["steps"] if commands else ():
        lines += ["", f"## {step['step']}{' (done)' if step['done'] else ''}"]
        if shop.scale.name == "paper":
            lines.append(describe_cost(step))
        lines += [f"    {line}" for line in step["commands"]]
    lines += ["", f"Collections: {', '.join(describe_data(shop, data) for data in found['data'])}."]
    if shop.scale.name == "paper":
        kept = sum(step["kept_gib"] for step in found["steps"])
        most = max((step["disk_gib"] for step in found["steps"]), default=0)
        total = found["total"]
        known = "measured on" if gpu["measured"] else "none was measured; assumed for"
        lines.append(
            f"About {total['hours']:,.0f} hours on {shop.gpus} GPUs, {total['steps']:,} steps of training, at most "
            f"{total['gpu_gib']:,.0f} GiB of a GPU, {kept + most:,.0f} GiB of disk: a guess from "
            f"{gpu['sustained_tflops']:g} TFLOP/s a GPU ({known} {gpu['device']}: {gpu['why']})"
        )
    for why, where in found["reasons"].items():
        lines.append(f"- {len(where)} cells, such as {where[0]}: {why}")
    return "\n".join(lines)


def describe_cost(step: dict[str, Any]) -> str:
    steps = f"{step['steps']:,} steps, " if step["steps"] else ""
    memory = f"{step['gpu_gib']:.0f} GiB of a GPU, {step['disk_gib']:,.3g} GiB of disk"
    return f"about {step['hours']:.3g} hours, {steps}{memory}"


def describe_data(shop: Workshop, name: str) -> str:
    found = shop.scale.data(name)
    if shop.scale.name == "paper" and name.split("/")[0] in BY_HAND:
        return f"{name} (by hand: {BY_HAND[name.split('/')[0]]})"
    return f"{name} ({found})"


def results(shop: Workshop, table: Table) -> dict[str, Any]:
    """All cells: ours, the published figure and the gap at the paper's scale, or why there is no
    figure.

    Averages over rows are of those rows that have a figure of ours, the published ones too.
    """
    averages, cells = means(table), dict(table.cells)
    made = {
        row for (row, _), cell in cells.items() if row not in averages and not shop.figure(cell)[1]
    }
    over = {row: [part for part in parts if part in made] for row, parts in averages.items()}
    for (row, column), cell in table.cells.items():
        if over.get(row) and len(over[row]) < len(averages[row]):
            left = tuple(table.cells[part, column] for part in over[row])
            cells[row, column] = replace(cell, parts=left, published="")
    entries: dict[str, dict[str, Any]] = {}
    for (row, column), cell in cells.items():
        ours, why = shop.figure(cell)
        entry: dict[str, Any] = {"ours": ours} if not why else {"ours": None, "why": why}
        if shop.scale.name == "paper":
            published = entry["published"] = table.published(cell)
            if published is not None and isinstance(ours, (int, float)):
                entry["gap"] = ours - published
        entries.setdefault(row, {})[column] = entry
    names = dict.fromkeys(
        shop.same(one) for c in table.cells.values() for s in c.steps() for one in shop.order(s)
    )
    seconds = {name: sum(shop.progress(name)["seconds"]) for name in names if shop.done(name)}
    return {
        "table": table.name,
        "title": table.title,
        "scale": shop.scale.name,
        "comparable": shop.scale.name == "paper",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "seconds": {"all": round(sum(seconds.values()), 1), "steps": seconds},
        "other_sizes": other_sizes(shop, table) if shop.scale.name == "paper" else {},
        "averages": {
            row: f"{len(over[row])} of {len(parts)}" for row, parts in averages.items() if over[row]
        },
        "cells": entries,
    }


def other_sizes(shop: Workshop, table: Table) -> dict[str, str]:
    """Collections that are judged, and are not of the published sizes: another version."""
    found = {}
    for step in {
        s
        for cell in table.cells.values()
        for s in cell.steps()
        if s.startswith("judged/") and shop.done(s)
    }:
        [data] = shop.steps[step].needs("data")
        record = json.loads((shop.folder(step) / "judged" / "results.json").read_text())
        ours = (record["documents"], record["queries"])
        if "/" not in data and ours != size(data):
            published = " and ".join(f"{number:,}" for number in size(data))
            found[data] = (
                f"{ours[0]:,} documents and {ours[1]:,} queries, published {published}: another version"
            )
    return found


def markdown(found: dict[str, Any], digits: int) -> str:
    """A table to read: ours, and in brackets the published figure and the gap."""
    columns = list(dict.fromkeys(column for cells in found["cells"].values() for column in cells))
    lines = [f"# {found['table']}: {found['title']}", ""]
    lines += [] if found["comparable"] else [NOT_COMPARABLE, ""]
    lines += [f"| | {' | '.join(columns)} |", f"| --- {'| ---: ' * len(columns)}|"]
    reasons: dict[str, list[str]] = {}
    for row, cells in found["cells"].items():
        texts = [_cell(cells[column], digits) if column in cells else "" for column in columns]
        over = found["averages"].get(row, "")
        lines.append(f"| {row}{f' ({over} rows)' if over else ''} | {' | '.join(texts)} |")
        for column in cells:
            if why := cells[column].get("why"):
                reasons.setdefault(why, []).append(f"{row}, {column}")
    lines.append("")
    lines += [f"- {data}: {text}" for data, text in found["other_sizes"].items()]
    reasons.pop(NOT_ASKED, None)
    lines += [f"- no figure of ours for {_some(where)}: {why}" for why, where in reasons.items()]
    return "\n".join(lines)


def _some(where: list[str]) -> str:
    return where[0] if len(where) == 1 else f"{len(where)} cells, such as {where[0]}"


def _cell(entry: dict[str, Any], digits: int) -> str:
    ours, published = entry["ours"], entry.get("published")
    text = "–" if ours is None else ours if isinstance(ours, str) else f"{ours:.{digits}f}"
    if published is None:
        return str(text)
    gap = f", {entry['gap']:+.{digits}f}" if "gap" in entry else ""
    return f"{text} ({published:.{digits}f}{gap})"


def options() -> argparse.ArgumentParser:
    """The runner's command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "table", nargs="*", help=f"{', '.join(TABLES)}; or a paper: {', '.join(PAPERS)}; or all"
    )
    parser.add_argument("--scale", choices=("paper", "here"), default="paper")
    parser.add_argument(
        "--plan", action="store_true", help="print commands, collections and costs; run nothing"
    )
    parser.add_argument("--short", action="store_true", help="of a plan: no commands")
    parser.add_argument(
        "--data", type=Path, help="folder of folders in BEIR's form, named as BEIR names them"
    )
    parser.add_argument(
        "--download", action="store_true", help="let ir_datasets download what is missing"
    )
    parser.add_argument("--gpus", type=int, default=8, help="of this machine")
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="ROW", help="only these, and means over them"
    )
    parser.add_argument("--columns", nargs="+", default=[], metavar="COLUMN", help="only these")
    parser.add_argument(
        "--model", action="append", default=[], help="a further column of a table by tasks; repeat"
    )
    parser.add_argument(
        "--results", type=Path, help="folder that TABLE.SCALE.json is written to, too"
    )
    parser.add_argument(
        "--inside", action="store_true", help="run all commands in this process, without torchrun"
    )
    parser.add_argument(
        "--output", type=Path, help="default: runs/reproduce/SCALE; run again, it goes on"
    )
    return parser


def main(arguments: list[str] | None = None) -> None:
    parser = options()
    given = parser.parse_args(arguments)
    names = [name for wanted in given.table for name in _named(wanted, parser)]
    if not names:
        parser.error(f"name a table: {', '.join(TABLES)}; a paper: {', '.join(PAPERS)}; or all")
    if given.data is not None and not given.data.is_dir():
        parser.error(f"{given.data} is no folder")
    if len(set(given.model)) < len(given.model):
        parser.error("a model is named twice")
    if given.gpus < 0:
        parser.error("--gpus is a number from 0 on")
    output = given.output or Path("runs/reproduce") / given.scale
    if given.scale == "here":
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        scale: Scale = HereScale(output)
    else:
        scale = PaperScale(given.data, max(1, given.gpus), given.download)
    inside = given.inside or given.scale == "here"
    shops = {name: Workshop(paper, scale, output / name, inside) for name, paper in PAPERS.items()}
    failed = False
    for name in names:
        paper, table = TABLES[name]
        for what, wanted, known in (
            ("row", given.rows, table.rows),
            ("column", given.columns, table.columns),
        ):
            if unknown := set(wanted) - set(known):
                parser.error(
                    f"{name} has no {what} {', '.join(sorted(unknown))}; there are {', '.join(known)}"
                )
        if given.model and table.judged is None:
            parser.error(f"{name} takes no further model; those by tasks do")
        shop = shops[paper.name]
        table = further_models(shop, table, given.model)
        if given.rows or given.columns:
            table = chosen(table, given.rows, given.columns)
        if given.plan:
            print(describe_plan(shop, table, not given.short), end="\n\n")
            continue
        for cell in table.cells.values():
            for step in cell.steps():
                shop.make(step)
        found = results(shop, table)
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        write_text(output / f"{name}.json", text)
        if given.results is not None:
            write_text(given.results / f"{name}.{given.scale}.json", text)
        print(markdown(found, table.digits), end="\n\n")
        failed |= bool(shop.failed) or not any(
            e["ours"] is not None for row in found["cells"].values() for e in row.values()
        )
    if failed:
        sys.exit(1)


def _named(wanted: str, parser: argparse.ArgumentParser) -> list[str]:
    if wanted == "all":
        return list(TABLES)
    if wanted in PAPERS:
        return [table.name for table in PAPERS[wanted].tables]
    if wanted not in TABLES:
        parser.error(
            f"there is no table {wanted}; there are {', '.join(TABLES)}; papers: {', '.join(PAPERS)}; all"
        )
    return [wanted]
