"""A page read back: elements with their text, and whether its tags fit together."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "br", "img", "input", "hr"}
RAW = {"script", "style"}


class Page(HTMLParser):
    """``elements``: (tag, attributes, text within) in order; ``faults``: tags that do not fit
    together.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.text = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict, list[str]]] = []
        self.faults: list[str] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(self.text)
        self.close()
        self.faults += [f"{tag} is never closed" for tag, _ in self._open]

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        if len(names) != len(set(names)):
            self.faults.append(f"{tag} has an attribute twice")
        within: list[str] = []
        self.elements.append((tag, dict(attributes), within))
        if tag not in VOID:
            self._open.append((tag, within))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes nothing")
        else:
            self._open.pop()

    def handle_data(self, data):
        for tag, within in self._open:
            if tag not in RAW or tag == self._open[-1][0]:
                within.append(data)

    def find(self, tag: str, **attributes: str) -> list[str]:
        """The text of elements with these attributes; ``class_`` asks for one of the classes."""
        wanted = attributes.pop("class_", None)
        return [
            " ".join("".join(within).split())
            for name, found, within in self.elements
            if name == tag
            and all(found.get(key) == value for key, value in attributes.items())
            and (wanted is None or wanted in (found.get("class") or "").split())
        ]

    def section(self, id: str) -> str | None:
        return next(iter(self.find("section", id=id)), None)

    @property
    def data(self) -> dict | None:
        """Return the rows that the drill-down shows."""
        for tag, attributes, within in self.elements:
            if tag == "script" and attributes.get("id") == "data":
                return json.loads("".join(within))
        return None

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes, _ in self.elements if "id" in attributes]
