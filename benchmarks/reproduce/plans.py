"""Plans of tables: commands, collections and costs, before anything is run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from reproduce.commands import command_line
from reproduce.costs import Cost, corpora_gib, cost, throughputs
from reproduce.shared import BY_HAND
from reproduce.specification import Cell, Table, task_of
from reproduce.workshop import Workshop


def plan(shop: Workshop, table: Table) -> dict[str, Any]:
    """Return commands in order, collections, costs, and the cells that cannot be made."""
    reasons: dict[str, list[str]] = {}
    names: dict[str, None] = {}
    for (row, column), cell in table.cells.items():
        reason = _reason(shop, cell)
        if reason:
            reasons.setdefault(reason, []).append(f"{row}, {column}")
        else:
            names |= dict.fromkeys(steps_of(shop, [cell]))
    steps = []
    total = Cost()
    data: set[str] = set()
    for name in names:
        step = shop.steps[name]
        data.update(step.needs("data"))
        estimate = Cost()
        if shop.scale.name == "paper":
            estimate = cost(step, shop.gpus, shop.steps)
        total += estimate
        commands = [shlex.join(command_line(words, shop.gpus)) for words in shop.words(name)]
        steps.append(
            {
                "step": name,
                "done": shop.is_done(name),
                "commands": commands,
                **vars(estimate),
                "kept_gib": 0 if step.discard else estimate.disk_gib,
            }
        )
    return {
        "table": table.name,
        "without": list(shop.without),
        "steps": steps,
        "data": sorted(data),
        "corpora_gib": corpora_gib(data) if shop.scale.name == "paper" else 0.0,
        "reasons": reasons,
        "too_large": [step["step"] for step in steps if step["gpu_gib"] > _card_gib()],
        "total": vars(total),
    }


def _card_gib() -> float:
    """Return the memory of the GPU that plans count with."""
    memory: float = throughputs()["gpu"]["memory_gib"]
    return memory


def steps_of(shop: Workshop, cells: Iterable[Cell]) -> list[str]:
    """Return all steps that cells need, in order; of equal steps the first."""
    names: dict[str, None] = {}
    for cell in cells:
        for step in cell.steps():
            names |= dict.fromkeys(shop.first_equal(needed) for needed in shop.order(step))
    return list(names)


def _reason(shop: Workshop, cell: Cell) -> str:
    """Say why a cell cannot be made; "" if it can."""
    for reason in cell.reasons():
        if reason:
            return reason
    for step in cell.steps():
        reason = shop.obstacle(step, needs_data=False)
        if reason:
            return reason
    return ""


def describe_plan(
    shop: Workshop,
    table: Table,
    *,
    with_commands: bool = True,
) -> str:
    """Write a plan for a reader."""
    planned = plan(shop, table)
    is_paper = shop.scale.name == "paper"
    total = len(table.cells)
    lacking = sum(len(cells) for cells in planned["reasons"].values())
    count = f"{total - lacking} of {total} cells from {len(planned['steps'])} steps."
    lines = [f"# {table.name}: {table.title}", "", count]
    if planned["without"]:
        lines.append(f"Without {', '.join(planned['without'])}.")
    if with_commands:
        for step in planned["steps"]:
            done = " (done)" if step["done"] else ""
            lines += ["", f"## {step['step']}{done}"]
            if is_paper:
                lines.append(describe_cost(step))
            lines += [f"    {line}" for line in step["commands"]]
    data = ", ".join(describe_data(shop, name) for name in planned["data"])
    lines += ["", f"Collections: {data}."]
    if is_paper:
        lines.append(_describe_total(planned, shop.gpus))
        lines += _warnings(planned)
    for reason, cells in planned["reasons"].items():
        lines.append(f"- {len(cells)} cells, such as {cells[0]}: {reason}")
    return "\n".join(lines)


def _describe_total(planned: dict[str, Any], gpus: int) -> str:
    gpu = throughputs()["gpu"]
    total = planned["total"]
    kept = sum(step["kept_gib"] for step in planned["steps"])
    most = max((step["disk_gib"] for step in planned["steps"]), default=0)
    disk = kept + most + planned["corpora_gib"]
    known = "measured on" if gpu["measured"] else "none was measured; assumed for"
    return (
        f"About {total['hours']:,.0f} hours on {gpus} GPUs, {total['steps']:,} steps of training, "
        f"at most {total['gpu_gib']:,.0f} GiB of a GPU, {disk:,.0f} GiB of disk, of "
        f"which {planned['corpora_gib']:,.0f} for corpora: a guess "
        f"from {gpu['sustained_tflops']:g} TFLOP/s a GPU ({known} {gpu['device']}: {gpu['why']})"
    )


def _warnings(planned: dict[str, Any]) -> list[str]:
    """Warn of each step that needs more memory than the GPU has."""
    card = f"a GPU with {_card_gib():g} GiB ({throughputs()['gpu']['device']})"
    lines = []
    for step in planned["steps"]:
        if step["step"] in planned["too_large"]:
            lines.append(
                f"Warning: {step['step']} needs about {step['gpu_gib']:.0f} GiB and does not fit "
                f"{card}; lower its batch size, or take a larger GPU"
            )
    return lines


def describe_cost(step: dict[str, Any]) -> str:
    """Write the cost of a step for a reader."""
    steps = f"{step['steps']:,} steps, " if step["steps"] else ""
    memory = f"{step['gpu_gib']:.0f} GiB of a GPU, {step['disk_gib']:,.3g} GiB of disk"
    return f"about {step['hours']:.3g} hours, {steps}{memory}"


def describe_data(shop: Workshop, name: str) -> str:
    """Say where a collection comes from."""
    task = task_of(name)
    source = shop.scale.data(name)
    if shop.scale.name == "paper" and task in BY_HAND:
        return f"{name} (by hand: {BY_HAND[task]})"
    return f"{name} ({source})"
