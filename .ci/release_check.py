"""Would a release work? Builds sdist and wheel, checks both, and uses the wheel where there are no
extras.

The environment has what the wheel requires without extras, linked from the one that runs this;
nothing is downloaded.

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
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import beir_cocodr

ROOT = Path(__file__).parents[1]

#: What the documents of the check are; one is typed, one is a table, one needs an extra.
FILES = {
    "notes/wing.md": "# Wings\n\nA wing lifts an aircraft.\n",
    "notes/heat.txt": "Heat flows through a wall.\n",
}

DATA = ["--dataset", "notes"]

#: Commands that work, to what they print.
WORKS = {
    ("--version",): beir_cocodr.__version__,
    ("--help",): "Begin",
    ("validate", *DATA): "0 errors",
    ("search", *DATA, "--model", "bm25", "wing"): "wing.md",
    ("search", *DATA, "heat"): "heat.txt",
    ("doctor", "--hub-timeout", "0.1"): "quickstart",
}

#: Commands that need an extra, to the extra that their one line names.
NEEDS = {
    ("search", *DATA, "--model", "minilm", "wing"): "quickstart",
    ("search", *DATA, "--model", "lucene-bm25", "wing"): "pyserini",
    ("encode", *DATA, "--model", "minilm", "--output", "store", "--ray"): "ray",
    ("validate", "--dataset", "page.pdf"): "files",
    ("try", "notes", "--no-browser"): "serve",
}


def checked(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command}\n{done.stdout}{done.stderr}")


def requirements(wheel: Distribution) -> set[str]:
    """Names of all that a distribution needs without its extras; what it needs may need some of its
    own.
    """
    found: set[tuple[str, str]] = set()
    todo = [(wheel, "")]
    while todo:
        owner, extra = todo.pop()
        for needed in map(Requirement, owner.requires or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                new = {
                    (canonicalize_name(needed.name), further) for further in ("", *needed.extras)
                } - found
                found |= new
                todo += [(distribution(name), further) for name, further in new]
    return {name for name, _ in found}


def link(names: set[str], target: Path) -> None:
    """Put distributions that are installed here into another environment."""
    for name in names:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            if not (target / top).exists():
                (target / top).symlink_to(Path(str(found.locate_file(top))))


def build(folder: Path) -> Path:
    """The wheel, made and checked with the sdist; it has every file of the package, and no
    tests.
    """
    checked(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    checked(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir())
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    assert f"-{beir_cocodr.__version__}" in wheel.name, wheel
    there = set(zipfile.ZipFile(wheel).namelist())
    package = subprocess.check_output(
        ["git", "ls-files", "beir_cocodr"], cwd=ROOT, text=True
    ).split()
    assert not set(package) - there, f"not in the wheel: {set(package) - there}"
    assert not [name for name in there if name.startswith(("tests", "plugins"))]
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "plugins/beir.py",
        "benchmarks/published/cocodr.json",
    } <= names
    return wheel


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        wheel = build(place / "dist")
        environment = place / "environment"
        venv.create(environment)
        [packages] = environment.glob("lib/python*/site-packages")
        [info] = [
            entry for entry in zipfile.Path(wheel).iterdir() if entry.name.endswith(".dist-info")
        ]
        link(requirements(PathDistribution(info)), packages)
        pip = [sys.executable, "-m", "pip", "--python", environment]
        checked(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
        for name, text in FILES.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text)
        (place / "page.pdf").write_bytes(b"%PDF-1.4\n")
        program = environment / "bin" / "beir-cocodr"
        alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        alone |= {"BEIR_COCODR_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1"}
        for arguments, word in (WORKS | NEEDS).items():
            done = subprocess.run(
                [program, *arguments],
                capture_output=True,
                text=True,
                check=False,
                cwd=place,
                env=alone,
            )
            wanted, said = (
                (0, done.stdout) if arguments in WORKS else (2, done.stderr.splitlines()[-1])
            )
            if done.returncode != wanted or word not in said:
                sys.exit(f"{arguments}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    print(json.dumps({"wheel": wheel.name, "works": len(WORKS), "names the extra": len(NEEDS)}))


if __name__ == "__main__":
    main()
