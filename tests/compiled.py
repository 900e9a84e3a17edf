"""What the tests do once, and the hosts for every model."""

from __future__ import annotations

import functools
import sys
from pathlib import Path


def compile_once() -> None:
    """A model card's template is compiled once, and packages are looked for once, not for every
    model.
    """
    import jinja2

    jinja2.Environment.from_string = functools.cache(jinja2.Environment.from_string)
    if host := sys.modules.get("sentence_transformers.util.environment"):
        host.check_package_availability = functools.cache(host.check_package_availability)  # type: ignore[attr-defined]
    if host := sys.modules.get("sentence_transformers.base.model_card"):
        jinja2.Template(Path(host.__file__).with_name("model_card_template.md").read_text())
