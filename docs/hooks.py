"""Hooks of mkdocs.

They make the reference of commands from their parsers, turn the roles of docstrings into links, and
build a site that needs no network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

COMMANDS = "<!-- commands -->"

#: Tags whose attribute makes a browser load something.
_LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "use": "href",
}
_ELSEWHERE = re.compile(r"(?:https?:)?//", re.IGNORECASE)
_STYLES = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s]+)""", re.IGNORECASE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(COMMANDS, command_reference()) if COMMANDS in markdown else markdown


def on_page_content(html: str, **_: Any) -> str:
    return re.sub(r":(?:func|class|mod|data|meth|attr):<code>(~?)([\w.]+)</code>", _link, html)


def on_post_build(config: Any, **_: Any) -> None:
    from mkdocs.exceptions import PluginError

    if found := sorted(loaded_from_elsewhere(Path(config["site_dir"]))):
        raise PluginError(f"the site is not to need the network, and loads {', '.join(found[:5])}")


def _link(role: re.Match[str]) -> str:
    short, name = role.groups()
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref identifier="{name}" optional><code>{shown}</code></autoref>'


def command_reference() -> str:
    """All commands in Markdown, as their parsers have them."""
    import typer

    from beir_cocodr.cli.__main__ import app

    return "\n".join(_command(typer.main.get_command(app), ""))


def _command(command: Any, path: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        if path:
            level = "###" if " " in path else "##"
            yield from (f"{level} {path}", "", command.help or "", "")
        for name, inner in command.commands.items():
            yield from _command(inner, f"{path} {name}".strip())
        return
    yield from (f"{'###' if ' ' in path else '##'} {path}", "", _text(command.help), "")
    context = command.context_class(command)
    arguments = [
        parameter.get_help_record(context)
        for parameter in command.params
        if _is_argument(parameter)
    ]
    yield from (
        "```",
        " ".join(["beir-cocodr", path, *(word for word, _ in arguments), "[OPTIONS]"]),
        "```",
        "",
    )
    yield from ("| option | meaning |", "| --- | --- |")
    options = [
        parameter.get_help_record(context)
        for parameter in command.params
        if not _is_argument(parameter)
    ]
    for words, help in filter(None, [*arguments, *options]):  # None is hidden
        yield f"| `{_cell(words)}` | {_cell(help)} |"
    yield ""


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _text(help: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (help or "").split("\n\n"))


def _cell(text: str | None) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


class _Loaded(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set(_STYLES.findall(text))
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        address = given.get(_LOADS.get(tag, "")) or ""
        if _ELSEWHERE.match(address) and given.get("rel") != "canonical":
            self.found.add(address)


def loaded_from_elsewhere(site: Path) -> set[str]:
    """Addresses of scripts, styles, fonts and pictures that pages and styles of a site load from
    other machines.
    """
    found: set[str] = set()
    for page in site.rglob("*.html"):
        found |= _Loaded(page.read_text(encoding="utf-8")).found
    for style in site.rglob("*.css"):
        found |= set(_STYLES.findall(style.read_text(encoding="utf-8")))
    return found
