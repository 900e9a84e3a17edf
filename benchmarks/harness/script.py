"""The beginning and the end of every script: its options, and a results file with its origin."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from beir_cocodr.io import write_text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"

#: Seeds of every experiment that trains models.
SEEDS = (13, 42, 97)


class _TwoOrMore(argparse.Action):
    """Take a list of at least two values, as a spread needs."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values is None or len(values) < 2:
            parser.error(f"{option_string} takes at least two values, as a spread needs two")
        setattr(namespace, self.dest, values)


def results_file(name: str) -> Path:
    """Return the path of the results file of this name."""
    return RESULTS / f"{name}.json"


def option_parser(description: str | None, results: str) -> argparse.ArgumentParser:
    """Create the parser of a script.

    Args:
        description: The docstring of the script.
        results: The name of its results file, which ``--results`` changes.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=results_file(results),
        metavar="FILE",
        help=(
            "Write the results to this file. Pages of the documentation show those of the default, "
            f"benchmarks/results/{results}.json."
        ),
    )
    return parser


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add ``--seeds``, two or more."""
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=list(SEEDS),
        action=_TwoOrMore,
        help="Train once with each of these seeds, two or more. Default: 13 42 97.",
    )


def add_work(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add ``--work``, the folder of intermediate files, which is required without a default."""
    parser.add_argument(
        "--work",
        type=Path,
        default=None if default is None else Path(default),
        required=default is None,
        metavar="DIR",
        help="Keep intermediate files in this folder."
        + (f" Default: {default}." if default else ""),
    )


def add_collections(parser: argparse.ArgumentParser) -> None:
    """Add ``--collections``, the folder of the classic test collections."""
    parser.add_argument(
        "--collections",
        type=Path,
        metavar="DIR",
        help="Also use cranfield, cisi, npl and time from this folder of BEIR folders.",
    )


def add_beir_folders(parser: argparse.ArgumentParser) -> None:
    """Add ``--collections``, the folder of all collections that a study reads, and needs."""
    parser.add_argument(
        "--collections",
        type=Path,
        required=True,
        metavar="DIR",
        help="Read the collections, BEIR folders, from this folder.",
    )


def add_integers(parser: argparse.ArgumentParser, options: Mapping[str, tuple[int, str]]) -> None:
    """Add options that take one integer each: name to default and help."""
    for name, (default, text) in options.items():
        parser.add_argument(
            name,
            type=int,
            default=default,
            help=f"{text} Default: {default:,}.",
        )


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that describe the experiment: all except paths."""
    return {name: value for name, value in vars(options).items() if not isinstance(value, Path)}


def machine() -> dict[str, Any]:
    """Describe the processor, the cores that this process may use, the memory and the system."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _processor(),
        "cores": cores,
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.system(),
    }


def _processor() -> str:
    """Name the processor, on Linux by its model name."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2]
                return " ".join(name.split())
    return platform.processor() or platform.machine()


def origin(*packages: str, **details: object) -> dict[str, Any]:
    """Say when, on which machine and with which versions results were measured.

    Args:
        packages: Further distributions whose versions matter.
        details: Further facts about the machine, such as its number of threads.
    """
    # Imported late: a process that measures its memory imports this module and no records.
    from beir_cocodr.records import versions

    installed = {"python": platform.python_version()}
    for package in packages:
        installed[package] = version(package)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | details,
        "versions": installed | versions(),
    }


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write results as JSON, atomically."""
    write_text(
        path,
        json.dumps(
            content,
            indent=2,
            ensure_ascii=False,
        )
        + "\n",
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content
