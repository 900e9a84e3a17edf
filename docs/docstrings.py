"""How the API's pages read our docstrings."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Our ``Example:`` is the parser's ``Examples:``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
