"""Text that a document may hold."""

from __future__ import annotations

import re

# What neither HTML nor XML may hold, even as a reference.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def allowed_text(text: str) -> str:
    """The text with U+FFFD for every character that is not allowed, so that it is seen; keeps its type."""
    return type(text)(_FORBIDDEN.sub("\ufffd", text)) if _FORBIDDEN.search(text) else text
