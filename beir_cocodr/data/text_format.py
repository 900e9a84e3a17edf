"""How a query or a document becomes the text that an encoder reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TextFormat:
    """One text format for training, mining, encoding and evaluation.

    Args:
        title_separator: stands between title and text (default one space, as in BEIR).
        query_prompt: put before every query.
        document_prompt: put before every document.
        query_length: tokens a query is cut to, special tokens and prompt included; None means the
            encoder's own maximum.
        document_length: the same for documents.

    Source: COCO-DR, section 5 (title and text joined, 64 and 128 tokens).
    """

    title_separator: str = " "
    query_prompt: str = ""
    document_prompt: str = ""
    query_length: int | None = None
    document_length: int | None = None

    def document(self, document: Mapping[str, str | None]) -> str:
        """Title and text of one document as one string, without the prompt.

        An empty or absent part leaves no separator behind.
        """
        title = (document.get("title") or "").strip()
        text = (document.get("text") or "").strip()
        return f"{title}{self.title_separator}{text}" if title and text else title or text

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
