"""The files that documents were read from, as a browser opens them: read, never run."""

import codecs
import re
from pathlib import Path

from starlette.responses import FileResponse, Response

#: Bytes at the beginning of a file that show whether it is text.
_HEAD = 65_536

_PAGES = (".html", ".htm", ".xhtml")

_DECLARED = re.compile(rb"""<meta[^>]{0,200}charset=["']?([\w-]{1,40})""", re.IGNORECASE)

# A page of the corpus has no scripts, no network and no origin: it is another site to ours.
_SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"

# The browser's own reader of PDF does not open in a sandbox. A PDF is not of our origin for it.
_NO_NETWORK = "default-src 'none'; object-src 'self'; style-src 'unsafe-inline'"

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
)


def serve_file(path: Path) -> Response:
    """Return a file for a browser: text and pages are shown, PDF too, all else is downloaded."""
    if path.suffix.lower() == ".pdf":
        return _shown(path, "application/pdf", _NO_NETWORK)
    with path.open("rb") as file:
        encoding = _encoding(file.read(_HEAD))
    if encoding is None:
        return FileResponse(path, media_type="application/octet-stream", filename=path.name)
    kind = "text/html" if path.suffix.lower() in _PAGES else "text/plain"
    return _shown(path, f"{kind}; charset={encoding}", _SANDBOX)


def _shown(path: Path, media_type: str, policy: str) -> Response:
    return FileResponse(
        path,
        media_type=media_type,
        filename=path.name,
        content_disposition_type="inline",
        headers={"content-security-policy": policy},
    )


def _encoding(head: bytes) -> str | None:
    """Return the encoding of a text by its beginning, None for what is not text."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    if b"\0" in head:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        declared = _DECLARED.search(head)
        return "windows-1252" if declared is None else declared[1].decode()
    return "utf-8"
