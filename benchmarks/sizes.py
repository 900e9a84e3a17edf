"""Claim: an installation takes the disk space that docs/install.md says.

The script adds up the files of the distributions that the package and each of its extras require,
as they are installed in the environment that runs it, with or without CUDA. It writes
``benchmarks/results/sizes.json`` and puts the table into ``docs/install.md``:

    python benchmarks/sizes.py
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from harness.page import Marks, markdown_table
from harness.script import ROOT, machine, option_parser, read_json, write_results
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

GUIDE = ROOT / "docs" / "install.md"
MARKS = Marks("<!-- sizes table -->", "<!-- end of sizes -->")

#: What each extra is for, in the order of the table.
EXTRAS = {
    "quickstart": "the weights of MiniLM as a package, under the name `minilm`",
    "serve": "the local page of `try` and `serve`",
    "files": "PDF and Word documents in a folder of files",
    "report": "pictures in reports",
    "faiss-cpu": "approximate indexes over a store (`faiss-gpu` on a GPU)",
    "mteb": "MTEB",
    "pyterrier": "PyTerrier, without Java",
    "pyserini": "Pyserini, with a Java runtime for it",
    "qdrant": "handing vectors over to Qdrant",
    "mcp": "search and verdicts as tools for an agent",
    "ray": "encoding and searching on a cluster",
    "word-vectors": "the predictors of query performance that train word vectors",
    "docs": "what `make docs` needs",
    "test": "what `make test` needs, with all of the above except `docs`",
}


def required(extra: str = "") -> set[str]:
    """Return the names of all distributions that the package requires with an extra.

    Distributions that are not installed here are left out.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras.get(extra, ())]
    needed: set[tuple[str, str]] = set()
    waiting = []
    for line in lines:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) == "beir-cocodr":
            lines += [inner for option in requirement.extras for inner in extras[option]]
        else:
            waiting += _with_extras(requirement)
    while waiting:
        name, option = waiting.pop()
        try:
            owner = distribution(name)
        except PackageNotFoundError:
            continue
        if (name, option) not in needed:
            needed.add((name, option))
            waiting += _requirements(owner, option)
    return {name for name, _ in needed}


def _requirements(owner: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Yield the requirements of a distribution with an extra, each with its own extras."""
    for line in owner.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from _with_extras(requirement)


def _with_extras(requirement: Requirement) -> list[tuple[str, str]]:
    """Return the name of a requirement without an extra, and with each of its extras."""
    name = canonicalize_name(requirement.name)
    return [(name, option) for option in ("", *requirement.extras)]


def megabytes(names: set[str]) -> float:
    """Return the size of the files of distributions, in millions of bytes."""
    total = 0
    for name in names:
        for file in distribution(name).files or []:
            path = Path(str(distribution(name).locate_file(file)))
            if path.is_file():
                total += path.stat().st_size
    return total / 1e6


def measure() -> dict[str, Any]:
    """Return the sizes of the package alone and of what each extra adds, in megabytes."""
    core = required()
    cuda = {name for name in core if name.startswith(("nvidia-", "cuda-", "triton"))}
    extras = {extra: round(megabytes(required(extra) - core)) for extra in EXTRAS}
    return {
        "core": round(megabytes(core)),
        "torch": round(megabytes({"torch"} | cuda)),
        "cuda": bool(cuda),
        "extras": extras,
    }


def markdown(results: dict[str, Any]) -> str:
    """Format the table."""
    without, with_cuda = results["without CUDA"], results["with CUDA"]
    rows = [
        [
            "none",
            "search, verdicts, training, fusing",
            f"{_gigabytes(without['core'])}; {_gigabytes(with_cuda['core'])} with CUDA",
        ]
    ]
    for extra, purpose in EXTRAS.items():
        rows.append([f"`{extra}`", purpose, f"+ {without['extras'][extra]:,} MB"])
    return markdown_table(["extra", "what it adds", "on disk"], rows)


def _gigabytes(size: float) -> str:
    return f"{size / 1000:.1f} GB"


def main() -> None:
    parser = option_parser(__doc__, "sizes")
    options = parser.parse_args()
    sizes = measure()
    results = read_json(options.results) if options.results.is_file() else {}
    results["with CUDA" if sizes.pop("cuda") else "without CUDA"] = sizes
    results |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    write_results(options.results, results)
    if {"with CUDA", "without CUDA"} <= results.keys():
        MARKS.write(GUIDE, markdown(results))
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
