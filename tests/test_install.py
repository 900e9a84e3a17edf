"""What installs the package agrees with itself: Makefile, constraints, Dockerfile and the guide."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import beir_cocodr

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
GUIDE = (ROOT / "docs" / "install.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
CONSTRAINTS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
]
PYTHONS = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if ":: 3." in line]

#: A Python of this version as far as make asks, which writes down how it was called.
PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit {status}
echo "$0" "$@" >> called
mkdir -p .venv/bin && touch .venv/bin/python
"""


@pytest.fixture
def clone(tmp_path):
    """Return a folder with the Makefile, and one that is the whole PATH of make."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "mkdir", "touch"):
        (programs / name).symlink_to(shutil.which(name))
    return tmp_path, programs


def put(programs: Path, name: str, status: int = 0) -> None:
    (programs / name).write_text(PYTHON.format(status=status))
    (programs / name).chmod(0o755)


def make_environment(clone: tuple[Path, Path]) -> subprocess.CompletedProcess[str]:
    folder, programs = clone
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS")
    }
    return subprocess.run(
        [shutil.which("make"), ".venv/bin/python"],
        cwd=folder,
        env=kept | {"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3.13", "python3"])
def test_make_takes_the_python_that_is_there(clone, name):
    put(clone[1], name)
    assert make_environment(clone).returncode == 0
    assert (clone[0] / "called").read_text().endswith(f"{name} -m venv .venv\n")


def test_make_passes_over_a_python_that_does_not_run_or_fit(clone):
    put(clone[1], "python3.11", status=127)
    put(clone[1], "python3.13")
    put(clone[1], "uv")
    assert make_environment(clone).returncode == 0
    assert "python3.13 -m venv" in (clone[0] / "called").read_text()


def test_uv_brings_a_python_where_there_is_none(clone):
    put(clone[1], "python3", status=1)  # too old, or too new
    put(clone[1], "uv")
    assert make_environment(clone).returncode == 0
    words = (clone[0] / "called").read_text().split()
    assert words[1] == "venv"
    assert "--seed" in words  # pip installs the rest
    assert words[words.index("--python") + 1] == ">=3.11,<3.14"


def test_make_says_what_to_do_without_python_and_uv(clone):
    completed = make_environment(clone)
    assert completed.returncode == 2
    assert "install uv" in completed.stderr.splitlines()[0]


@pytest.mark.parametrize("minor", range(9, 17))
def test_the_check_of_make_takes_the_supported_pythons_alone(minor):
    [check] = re.findall(r"^SUPPORTED := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    check = check.replace("sys.version_info[:2]", f"(3, {minor})")
    with pytest.raises(SystemExit) as status:
        exec(check)
    assert (not status.value.code) == (f"3.{minor}" in PYTHONS)


@pytest.mark.parametrize("python", ["3.11.2", "3.11.9", "3.12.0", "3.13.0"])
def test_constraints_pin_every_name_once_for_each_python(python):
    environment = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    names = []
    for pin in CONSTRAINTS:
        [specifier] = pin.specifier
        assert specifier.operator == "=="
        if pin.marker is None or pin.marker.evaluate(environment):
            names.append(canonicalize_name(pin.name))
    assert len(names) == len(set(names))
    assert len(names) > 150


def test_the_pinned_torch_may_be_built_for_the_cpu():
    [torch] = [pin for pin in CONSTRAINTS if pin.name == "torch"]
    [specifier] = torch.specifier
    assert torch.specifier.contains(f"{specifier.version}+cpu")


def test_constraints_satisfy_the_bounds():
    pins = {canonicalize_name(pin.name): pin for pin in CONSTRAINTS if not pin.marker}
    for line in chain(PROJECT["project"]["dependencies"], *EXTRAS.values()):
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name not in ("beir-cocodr", "faiss-gpu"):  # faiss-gpu excludes faiss-cpu
            [specifier] = pins[name].specifier
            assert requirement.specifier.contains(specifier.version), line


def instructions(name: str) -> list[list[str]]:
    return [shlex.split(words) for words in re.findall(rf"^{name} (.*)$", DOCKERFILE, re.M)]


def test_the_image_gets_every_file_that_the_package_is_built_of():
    copied = {source for *sources, _ in instructions("COPY") for source in sources}
    assert all((ROOT / source).exists() for source in copied)
    built_of = set(PROJECT["tool"]["setuptools"]["package-dir"].values())
    built_of |= {"pyproject.toml", "constraints.txt", PROJECT["project"]["readme"]}
    assert built_of | set(PROJECT["project"]["license-files"]) == copied
    let_through = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in let_through if line.startswith("!")} == copied


def test_the_image_runs_the_program_with_extras_that_exist():
    [[python]] = instructions("FROM")
    assert python.removeprefix("python:").partition("-")[0] in PYTHONS
    [[entry]] = [json.loads(line) for line in re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.M)]
    assert entry in PROJECT["project"]["scripts"]
    [extras] = re.findall(r'"\.\[(.*)\]"', DOCKERFILE)
    assert {*extras.split(",")} <= EXTRAS.keys()
    assert all(f"`{extra}`" in GUIDE for extra in extras.split(","))
    for command in ("make image", "docker build", "docker run"):
        assert command in GUIDE
    assert "\nimage: " in (ROOT / "Makefile").read_text()
    # uv, too, is installed with the versions that were tested.
    assert DOCKERFILE.count("pip install") == DOCKERFILE.count("--constraint")


def test_the_guide_has_the_measured_sizes_of_every_extra():
    script = import_module("sizes")
    results = json.loads((ROOT / "benchmarks" / "results" / "sizes.json").read_text())
    assert script.MARKS.read(GUIDE) == script.markdown(results)
    assert script.EXTRAS.keys() | {"faiss-gpu", "all"} == EXTRAS.keys()
    for build in ("with CUDA", "without CUDA"):
        assert f"{results[build]['torch'] / 1000:.1f} GB" in GUIDE
    saved = results["with CUDA"]["core"] - results["without CUDA"]["core"]
    assert f"{saved / 1000:.0f} GB smaller" in GUIDE


def test_commands_of_the_guide_name_the_wheel_the_extras_and_options_that_exist():
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", GUIDE, re.S)).replace("\\\n", "")
    wheels = re.findall(r"beir_cocodr-([\d.]+)-py3", lines)
    assert wheels
    assert {*map(Version, wheels)} == {Version(beir_cocodr.__version__)}
    for extras in re.findall(r"(?:whl|beir-cocodr)\[([\w,-]+)\]", GUIDE):
        assert {*extras.split(",")} <= EXTRAS.keys()
    from test_readme import parse
    from typer.main import get_command

    from beir_cocodr.cli.__main__ import app

    commands = re.findall(r" beir-cocodr +(try|search) (.*)$", lines, re.M)
    assert len(commands) == 4
    for command, rest in commands:
        parse(get_command(app), [command, *shlex.split(rest)])
