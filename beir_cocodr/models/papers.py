"""The papers behind the methods, as BibTeX entries by key."""

from pathlib import Path

from beir_cocodr.errors import InputError

_FILE = Path(__file__).with_name("papers.bib")


def _read_entries(text: str) -> dict[str, str]:
    """Return the entries of a BibTeX file, which blank lines separate, by key."""
    entries: dict[str, str] = {}
    for block in text.split("\n\n"):
        entry = block.strip()
        head = entry.splitlines()[0]  # such as @inproceedings{yu2022cocodr,
        key = head.partition("{")[2].rstrip(",")
        entries[key] = entry
    return entries


#: The BibTeX entry of each paper that this package builds on, by key.
PAPERS = _read_entries(_FILE.read_text(encoding="utf-8"))


def bibtex(*keys: str) -> str:
    """Return the BibTeX entries of some keys, separated by blank lines.

    Args:
        *keys: Keys of entries in ``papers.bib``, such as ``yu2022cocodr``.

    Raises:
        InputError: A key is unknown.
    """
    for key in keys:
        if key not in PAPERS:
            known = ", ".join(PAPERS)
            raise InputError(f"unknown BibTeX key {key!r}; {_FILE.name} has {known}")
    return "\n\n".join(PAPERS[key] for key in keys)
