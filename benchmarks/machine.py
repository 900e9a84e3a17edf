"""What machine a number was measured on, and how the documentation shows results."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

from beir_cocodr.io import write_text

ROOT = Path(__file__).parents[1]

#: The page of the documentation with all measured results.
PAGE = ROOT / "docs" / "results.md"


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory and operating system."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        names = [
            line.split(":", 1)[1]
            for line in information.read_text().splitlines()
            if "model name" in line
        ]
        cpu = " ".join(names[0].split()) if names else cpu
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": cpu, "cores": cores, "memory_gib": round(gib, 1), "system": platform.system()}


def peak_memory() -> int:
    """Bytes, the most this process has held so far; of a process's usage, the most that its parent
    held is part.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def measured(name: str) -> str:
    """By which script, when, where and with which seeds a results file was made: a line of the
    documentation.

    What stands after the script's name and "_" says what else was measured with it.
    """
    found = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    found |= {} if "machine" in found else next(iter(found["shapes"].values()))
    on, given = found["machine"], found | found.get("settings", {})
    seeds = given.get("seeds") or [given[name] for name in ("seed", "other_seed") if name in given]
    drawn = f"; seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if seeds else ""
    where = f"{on['cores']} cores of {on['cpu']}, {on['memory_gib']} GiB"
    script = name if (ROOT / "benchmarks" / f"{name}.py").is_file() else name.rpartition("_")[0]
    return f"*`benchmarks/{script}.py`, {found['date'][:10]}; {where}{drawn}.*"


def write_table(page: Path, start: str, end: str, table: str) -> None:
    """Put a table between its marks in a page of the documentation."""
    before, rest = page.read_text().split(start)
    write_text(page, f"{before}{start}\n{table}\n{end}{rest.split(end)[1]}")
