"""The documentation as mkdocs builds it: all pages, the true commands, nothing from the network."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import beir_cocodr
import beir_cocodr.losses
from beir_cocodr.cli.__main__ import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text()


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"- (?:\w+: )?([\w/-]+\.md)$", CONFIG, flags=re.MULTILINE))
    assert named == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_the_api_has_every_public_name():
    pages = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    homes = {home.replace(":", ".") for home in beir_cocodr._HOMES.values()}
    homes |= {f"beir_cocodr.losses.{module}" for module in beir_cocodr.losses._HOMES.values()}
    assert homes <= set(re.findall(r"^::: ([\w.]+)$", pages, flags=re.MULTILINE))


def test_the_reference_has_every_command_and_option(hooks):
    import typer

    page = hooks.on_page_markdown(f"Before.\n{hooks.COMMANDS}\n")
    assert page.startswith("Before.")

    def leaves(command):
        if not hasattr(command, "commands"):
            return [command]
        return [leaf for inner in command.commands.values() for leaf in leaves(inner)]

    for name, command in typer.main.get_command(app).commands.items():
        part = re.split(r"^## ", page.split(f"\n## {name}\n")[1], flags=re.MULTILINE)[0]
        flags = {
            flag
            for one in leaves(command)
            for option in one.params
            for flag in option.opts
            if flag.startswith("--")
        }
        assert flags <= set(re.findall(r"--[\w-]+", part)) | {"--help"}
        assert all(
            re.fullmatch(r"\| `[^`]+` \| .+ \|", line)
            for line in part.splitlines()
            if line.startswith("| `")
        )
    assert hooks.on_page_markdown("No such mark.") == "No such mark."


def test_roles_of_docstrings_become_links(hooks):
    html = "See :func:<code>~beir_cocodr.evaluation.evaluate.evaluate</code> and <code>:x:</code>."
    link = (
        '<autoref identifier="beir_cocodr.evaluation.evaluate.evaluate"'
        " optional><code>evaluate</code></autoref>"
    )
    assert hooks.on_page_content(html) == f"See {link} and <code>:x:</code>."


@pytest.mark.parametrize(
    "line",
    [
        '<script src="https://example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<img alt="" src="HTTP://example.org/a.png">',
        "<style>@import 'https://example.org/a.css'</style>",
        '<p style="background: url(https://example.org/a.png)">',
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(hooks, line, tmp_path):
    page = tmp_path / "a" / "index.html"
    page.parent.mkdir()
    page.write_text(
        '<a href="https://example.org">far</a><script src="near.js"></script><link rel="icon"'
        ' href="i.png">'
    )
    (tmp_path / "near.css").write_text("a { background: url(near.png) } /* https://example.org */")
    assert hooks.loaded_from_elsewhere(tmp_path) == set()
    page.write_text(line)
    assert len(hooks.loaded_from_elsewhere(tmp_path)) == 1


def test_fonts_and_what_counts_stars_stay_out():
    assert "\n  font: false" in CONFIG
    assert not re.search(r"^(repo_url|extra_javascript|extra_css):", CONFIG, flags=re.MULTILINE)


def test_no_page_has_marks_of_an_unfinished_merge():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    marks = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert [page.name for page in pages if marks.search(page.read_text())] == []
