"""Work that the hosts repeat for every model, and the tests do once."""

from __future__ import annotations

import functools
import sys
from pathlib import Path


def compile_once() -> None:
    """Compile the template of model cards once, and look for packages once."""
    import jinja2

    jinja2.Environment.from_string = functools.cache(jinja2.Environment.from_string)
    if host := sys.modules.get("sentence_transformers.util.environment"):
        host.check_package_availability = functools.cache(host.check_package_availability)  # type: ignore[attr-defined]
    if host := sys.modules.get("sentence_transformers.base.model_card"):
        jinja2.Template(Path(host.__file__).with_name("model_card_template.md").read_text())
