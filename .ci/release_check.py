"""Check that a release would work.

The script builds sdist and wheel, checks both, and uses the wheel in an environment that has only
what the wheel requires without extras. These distributions are linked from the environment that
runs the script, so that nothing is downloaded. It prints how many commands were tried:

    python .ci/release_check.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import beir_cocodr

ROOT = Path(__file__).parents[1]

#: The documents of the check, in formats that need no extra.
FILES = {
    "notes/wing.md": "# Wings\n\nA wing lifts an aircraft.\n",
    "notes/heat.txt": "Heat flows through a wall.\n",
}

DATA = ["--dataset", "notes"]

#: Commands that work without extras, each to a word that it prints.
WORKS = {
    ("--version",): beir_cocodr.__version__,
    ("--help",): "Start here",
    ("validate", *DATA): "0 errors",
    ("search", *DATA, "--model", "bm25", "wing"): "wing.md",
    ("search", *DATA, "heat"): "heat.txt",
    ("doctor", "--hub-timeout", "0.1"): "quickstart",
}

#: Commands that need an extra, each to the extra that its one line names.
NEEDS = {
    ("search", *DATA, "--model", "minilm", "wing"): "quickstart",
    ("search", *DATA, "--model", "lucene-bm25", "wing"): "pyserini",
    ("encode", *DATA, "--model", "minilm", "--output", "store", "--ray"): "ray",
    ("validate", "--dataset", "page.pdf"): "files",
    ("try", "notes", "--no-browser"): "serve",
}

#: Files that the sdist must have.
SOURCES = {
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "plugins/beir.py",
    "benchmarks/published/cocodr.json",
}


def run(*command: str | Path) -> None:
    """Run a command, and end the program with its messages if it fails."""
    words = [str(word) for word in command]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    if completed.returncode:
        sys.exit(f"{words}\n{completed.stdout}{completed.stderr}")


def required_names(wheel: Distribution) -> set[str]:
    """Return the names of all distributions that a wheel needs without its extras."""
    needed: set[tuple[str, str]] = set()
    waiting = [(wheel, "")]
    while waiting:
        owner, extra = waiting.pop()
        new = set(_requirements(owner, extra)) - needed
        needed |= new
        waiting += [(distribution(name), further) for name, further in new]
    return {name for name, _ in needed}


def _requirements(owner: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Yield the requirements of a distribution with an extra, each with its own extras."""
    for line in owner.requires or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": extra}):
            for further in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), further


def link_distributions(names: set[str], target: Path) -> None:
    """Link distributions that are installed here into another environment."""
    for name in names:
        installed = distribution(name)
        tops = {file.parts[0] for file in installed.files or []}
        for top in tops - {"..", "__pycache__"}:
            if not (target / top).exists():
                source = Path(str(installed.locate_file(top)))
                (target / top).symlink_to(source)


def build(folder: Path) -> Path:
    """Build wheel and sdist, check their files, and return the wheel."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir())
    [wheel] = folder.glob("*.whl")
    [sdist] = folder.glob("*.tar.gz")
    assert f"-{beir_cocodr.__version__}" in wheel.name, wheel
    packed = set(zipfile.ZipFile(wheel).namelist())
    listing = subprocess.check_output(["git", "ls-files", "beir_cocodr"], cwd=ROOT, text=True)
    missing = set(listing.split()) - packed
    assert not missing, f"not in the wheel: {missing}"
    assert not [name for name in packed if name.startswith(("tests", "plugins"))]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= SOURCES, f"not in the sdist: {SOURCES - names}"
    return wheel


def install(wheel: Path, environment: Path) -> Path:
    """Install a wheel and what it requires in a new environment, and return its program."""
    venv.create(environment)
    [packages] = environment.glob("lib/python*/site-packages")
    entries = zipfile.Path(wheel).iterdir()
    [info] = [entry for entry in entries if entry.name.endswith(".dist-info")]
    link_distributions(required_names(PathDistribution(info)), packages)
    pip = [sys.executable, "-m", "pip", "--python", environment]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    return environment / "bin" / "beir-cocodr"


def write_documents(folder: Path) -> None:
    """Write the documents of the check."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "page.pdf").write_bytes(b"%PDF-1.4\n")


def try_commands(program: Path, folder: Path) -> None:
    """Run all commands, and end the program if one does not do what it should."""
    environment = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    environment |= {"BEIR_COCODR_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    for arguments, word in (WORKS | NEEDS).items():
        completed = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env=environment,
        )
        if arguments in WORKS:
            is_right = completed.returncode == 0 and word in completed.stdout
        else:
            last = completed.stderr.splitlines()[-1:]
            is_right = completed.returncode == 2 and word in "".join(last)
        if not is_right:
            status = f"{arguments}: status {completed.returncode}"
            sys.exit(f"{status}\n{completed.stdout}\n{completed.stderr}")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel = build(folder / "dist")
        program = install(wheel, folder / "environment")
        write_documents(folder)
        try_commands(program, folder)
    counts = {"works": len(WORKS), "names the extra": len(NEEDS)}
    print(json.dumps({"wheel": wheel.name, **counts}))


if __name__ == "__main__":
    main()
