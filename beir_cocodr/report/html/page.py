"""The page itself, from its parts."""

from __future__ import annotations

from importlib import resources
from typing import Any

from beir_cocodr.report.html.allowed_text import allowed_text

_FOLDER = "beir_cocodr.report.html"
#: Marks a page as ours.
GENERATOR = "beir-cocodr report"


def page(parts: dict[str, Any]) -> str:
    """Fill the template; everything from data is escaped, pictures come as markup of their own.

    Args:
        parts: what the template names.
    """
    import jinja2
    from markupsafe import Markup

    def read(name: str) -> str:
        return resources.files(_FOLDER).joinpath(name).read_text(encoding="utf-8")

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_allowed,
    )
    # The order of keys has a meaning, and is not the alphabet's.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    style, script = Markup(read("style.css")), Markup(read("script.js"))
    return environment.get_template("page.html").render(
        generator=GENERATOR, style=style, script=script, markup=Markup, **parts
    )


def _allowed(value: Any) -> Any:
    return allowed_text(value) if isinstance(value, str) else value
