"""Pictures that stand in the page and follow its colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from beir_cocodr.report.html.allowed_text import allowed_text
from beir_cocodr.report.scatter import has_matplotlib

#: Colours that are drawn, and the variables of the style sheet that take their place.
INK, MUTED, LINE, BETTER, WORSE, ACCENT = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
SERIES = ("#070707", "#080808", "#090909", "#0a0a0a", "#0b0b0b")
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    BETTER: "var(--better)",
    WORSE: "var(--worse)",
    ACCENT: "var(--accent)",
} | {colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)}
_WIDTH = 5.6
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


@dataclass(frozen=True)
class Picture:
    """Attributes: title, caption: above and below it; svg: markup, safe to stand in a page."""

    title: str
    caption: str
    svg: str


def picture(
    name: str, title: str, caption: str, height: float, draw: Callable[[Any], None], columns: int = 1
) -> Picture | None:
    """Draw with matplotlib; None where it is not installed.

    Args:
        name: unique on the page; ids within the picture begin with it.
        title, caption: above and below.
        height: in inches, of 5.6 in width.
        draw: gets the axes, or the list of them if there are several columns.
        columns: axes side by side.
    """
    if not has_matplotlib():
        return None
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_style()):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        axes = figure.subplots(1, columns, squeeze=False)[0].tolist()
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
        draw(axes[0] if columns == 1 else axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return Picture(title, caption, _for_page(file.getvalue(), name, title))


def plain(text: str) -> str:
    """Text as it stands: matplotlib takes dollar signs for formulas."""
    return allowed_text(text).replace("$", r"\$")


def _style() -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
        "font.size": 9,
        "axes.facecolor": "none",
        "axes.edgecolor": LINE,
        "axes.labelcolor": MUTED,
        "axes.titlecolor": INK,
        "axes.titlesize": 9,
        "axes.linewidth": 0.8,
        "text.color": INK,
        "xtick.color": LINE,
        "ytick.color": LINE,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": MUTED,
        "legend.frameon": False,
        "axes.unicode_minus": True,
    }


def _for_page(text: str, name: str, title: str) -> str:
    """Ids unique on the page, colours by variables, fonts of the page, no width or height of its own."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.attrib[key] = _attribute(key, value, name)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", title)
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = re.sub(r"url\(#", f"url(#{name}-", value)
    if key != "style":
        return value
    value = re.sub(r"(font(?:-family)?:[^;]*?)'[^;]*", r"\1system-ui, sans-serif", value)
    for colour, variable in _VARIABLES.items():
        value = value.replace(colour, variable)
    return value
