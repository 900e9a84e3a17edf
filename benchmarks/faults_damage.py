"""Ways to break a file: cut, flipped, emptied, foreign, of wrong types, huge, missing, twice there.

Each is a function of the path and a generator of random numbers that returns what it did, or None
where it does not apply. The tables say which damage shows in the file itself (a broken JSON, a
tensor that is missing, a line that stands twice), so that a command that ends well with other
results was careless; the rest (a word that was changed, a line cut off at its end) only a checksum
could show.
"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXTS = (".json", ".jsonl", ".tsv", ".run", ".txt")

Damage = Callable[[Path, random.Random], "str | None"]


class Plausible(str):
    """What was done, where the file could as well have been made so: another value of the same
    type, or a file that not every folder has.
    """


#: Files without which a folder is another one that is whole.
OPTIONAL = {
    *(
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "text_format.json",
    ),
    *("tokenizer_config.json", "special_tokens_map.json", "training.json", "run.json", "README.md"),
}


def without(path: Path, what: str) -> str:
    return Plausible(what) if path.name in OPTIONAL else what


def write(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> str | None:
    """Cut in the middle of a line or of binary content."""
    content = path.read_bytes()
    if len(content) < 4:
        return None
    at = rng.randrange(1, len(content) - 2)
    while at > 1 and content[at - 1 : at + 1].count(b"\n"):
        at -= 1
    write(path, content[:at])
    return f"cut after byte {at} of {len(content)}"


def flip(path: Path, rng: random.Random) -> str | None:
    content = bytearray(path.read_bytes())
    if not content:
        return None
    at, bit = rng.randrange(len(content)), rng.randrange(8)
    content[at] ^= 1 << bit
    write(path, bytes(content))
    return f"bit {bit} of byte {at} flipped"


def flip_head(path: Path, rng: random.Random) -> str | None:
    """As a flip, among the first bytes, where headers stand."""
    content = bytearray(path.read_bytes())
    if not content:
        return None
    at = rng.randrange(min(128, len(content)))
    content[at] ^= 1 + rng.randrange(255)
    write(path, bytes(content))
    return f"byte {at} changed"


def zeros(path: Path, rng: random.Random) -> str | None:
    content = bytearray(path.read_bytes())
    if len(content) < 64:
        return None
    at = rng.randrange(len(content) - 32)
    content[at : at + 32] = bytes(32)
    write(path, bytes(content))
    what = f"32 zeros from byte {at}"
    return what if path.suffix in TEXTS else Plausible(what)


def empty(path: Path, rng: random.Random) -> str | None:
    write(path, b"")
    return "emptied"


def garbage(path: Path, rng: random.Random) -> str | None:
    write(path, rng.randbytes(max(16, min(4096, path.stat().st_size))))
    return "random bytes"


def foreign(path: Path, rng: random.Random) -> str | None:
    """Another kind of file in its place."""
    name, content = rng.choice(
        [
            ("a PNG", b"\x89PNG\r\n\x1a\n" + bytes(100)),
            ("a zip", b"PK\x03\x04" + bytes(100)),
            ("a gzip", b"\x1f\x8b\x08\x00" + bytes(40)),
            ("a page", b"<!doctype html><title>404</title><p>Not found"),
            (
                "a Git LFS pointer",
                b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            ),
            ("a pickle", pickle.dumps({"a": [1, 2]})),
            ("UTF-16", "Grüße\n".encode("utf-16")),
            ("a list", b"[1, 2, 3]\n"),
            ("a number", b"12\n"),
            ("a string", b'"text"\n'),
            ("null", b"null\n"),
            ("an object", b"{}\n"),
        ]
    )
    write(path, content)
    return f"{name} in its place"


def appended(path: Path, rng: random.Random) -> str | None:
    with path.open("ab") as file:
        file.write(b"\x00\xff\xfe rubbish")
    return "rubbish appended"


def not_text(path: Path, rng: random.Random) -> str | None:
    content = path.read_bytes()
    at = rng.randrange(len(content) + 1)
    write(path, content[:at] + b"\xff\xfe\x80" + content[at:])
    return f"not UTF-8 at byte {at}"


def missing(path: Path, rng: random.Random) -> str | None:
    path.unlink()
    return without(path, "missing")


def as_folder(path: Path, rng: random.Random) -> str | None:
    path.unlink()
    path.mkdir()
    return "a folder in its place"


def loop(path: Path, rng: random.Random) -> str | None:
    path.unlink()
    path.symlink_to(path.name)
    return "a link to itself"


def dangling(path: Path, rng: random.Random) -> str | None:
    path.unlink()
    path.symlink_to("nowhere")
    return without(path, "a link to nowhere")


def unreadable(path: Path, rng: random.Random) -> str | None:
    if os.geteuid() == 0:  # who reads everything
        return None
    path.chmod(0)
    return "not readable"


#: Damage of any file, and whether it shows.
ANY: list[tuple[Damage, bool]] = [
    (cut, True),
    (flip, False),
    (flip_head, False),
    (zeros, True),
    (empty, True),
    (garbage, True),
    (foreign, True),
    (appended, True),
    (missing, True),
    (as_folder, True),
    (loop, True),
    (dangling, True),
    (unreadable, True),
]

HUGE = [10**18, -(10**18), 1e308, -1, 0, 2**31, 2**63, "x" * 100_000]
WRONG: list[Any] = [
    None,
    True,
    "text",
    "",
    3,
    -7,
    0.5,
    float("nan"),
    float("inf"),
    [],
    {},
    [[1]],
    {"a": 1},
    ["x"],
]


def _places(content: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [prefix] if prefix else []
    items: Any = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in items:
        found += _places(value, (*prefix, key))
    return found


def _changed(content: Any, rng: random.Random, values: list[Any]) -> str | None:
    places = _places(content)
    if not places:
        return None
    top = [place for place in places if len(place) == 1]
    *above, last = rng.choice(top if rng.random() < 0.5 else places)
    inner = content
    for key in above:
        inner = inner[key]
    choice = rng.choice([*values, ...])
    named = ".".join(map(str, (*above, last)))[:60]
    if choice is ...:
        del inner[last]
        return Plausible(f"{named} left out")
    before, inner[last] = inner[last], choice
    if type(before) is type(choice) and before == choice:
        return None
    what = f"{named} is {str(choice)[:20]!r}"
    known = 0 if before is None else before  # in the place of nothing a number may be right
    finite = all(
        type(value) in (int, float) and abs(value) < float("inf") for value in (known, choice)
    )
    return (
        Plausible(what)
        if choice is None or finite or type(before) is type(choice) is not float
        else what
    )


def json_wrong(path: Path, rng: random.Random) -> str | None:
    return _json(path, rng, WRONG)


def json_huge(path: Path, rng: random.Random) -> str | None:
    return _json(path, rng, HUGE)


def _json(path: Path, rng: random.Random, values: list[Any]) -> str | None:
    content = json.loads(path.read_text())
    if what := _changed(content, rng, values):
        write(path, json.dumps(content, indent=2).encode())
    return what


def json_deep(path: Path, rng: random.Random) -> str | None:
    write(path, b"[" * 100_000 + b"]" * 100_000)
    return "brackets 100,000 deep"


def json_unknown(path: Path, rng: random.Random) -> str | None:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        return None
    write(path, json.dumps(content | {"surprise": 1}).encode())
    return "a key more"


JSON: list[tuple[Damage, bool]] = [
    (json_wrong, True),
    (json_wrong, True),
    (json_huge, True),
    (json_deep, True),
    (json_unknown, False),
]


def _line(path: Path, rng: random.Random, change: Callable[[bytes], list[bytes]]) -> int:
    lines = path.read_bytes().splitlines(keepends=True)
    at = rng.randrange(len(lines)) if lines else 0
    if lines:
        lines[at : at + 1] = change(lines[at])
    write(path, b"".join(lines))
    return at + 1


def line_twice(path: Path, rng: random.Random) -> str | None:
    return f"line {_line(path, rng, lambda line: [line, line])} stands twice"


def line_gone(path: Path, rng: random.Random) -> str | None:
    return f"line {_line(path, rng, lambda line: [])} left out"


def line_blank(path: Path, rng: random.Random) -> str | None:
    return (
        f"a blank line after line {_line(path, rng, lambda line: [line, b'  ' + chr(10).encode()])}"
    )


def line_rubbish(path: Path, rng: random.Random) -> str | None:
    return (
        f"rubbish after line {_line(path, rng, lambda line: [line, b'rubbish' + chr(10).encode()])}"
    )


def line_long(path: Path, rng: random.Random) -> str | None:
    return f"a line of a megabyte after line {_line(path, rng, lambda line: [line, b'a b ' * 250_000 + line])}"


def last_lines(path: Path, rng: random.Random) -> str | None:
    """Cut at the end of a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        return None
    at = rng.randrange(1, len(lines))
    write(path, b"".join(lines[:at]))
    return f"cut after line {at} of {len(lines)}"


def line_value(path: Path, rng: random.Random) -> str | None:
    """A wrong value in a line of JSON, or a wrong cell of a table."""
    done: list[str] = []

    def change(line: bytes) -> list[bytes]:
        try:
            content = json.loads(line)
        except ValueError:
            cells = line.decode().rstrip("\n").split("\t" if b"\t" in line else " ")
            at = rng.randrange(len(cells))
            value = rng.choice(
                [
                    "",
                    "nan",
                    "inf",
                    "-1",
                    "1e400",
                    "text",
                    "a b",
                    "9" * 30,
                    "\u2028",
                    "1\t2",
                    "\x00",
                    None,
                ]
            )
            cells[at : at + 1] = [] if value is None else [value]
            what = f"cell {at + 1} is {value!r}"
            done.append(Plausible(what) if value in ("-1", "text", "9" * 30) else what)
            return [("\t" if b"\t" in line else " ").join(cells).encode() + b"\n"]
        what = _changed(content, rng, [*WRONG, "x" * 100_000, "\ud800", "\x00", " ", 10**400])
        done.append(what or "nothing")
        return [json.dumps(content).encode() + b"\n"]

    number = _line(path, rng, change)
    if not done or done[0] == "nothing":
        return None
    return type(done[0])(f"line {number}: {done[0]}")


def line_ends(path: Path, rng: random.Random) -> str | None:
    write(path, path.read_bytes().replace(b"\n", b"\r\n"))
    return "CRLF line ends"


def mark(path: Path, rng: random.Random) -> str | None:
    write(path, b"\xef\xbb\xbf" + path.read_bytes())
    return "a byte order mark"


LINES: list[tuple[Damage, bool]] = [
    (line_twice, True),
    (line_gone, False),
    (line_blank, False),
    (line_rubbish, True),
    (line_long, False),
    (last_lines, False),
    (line_value, True),
    (line_value, True),
    (not_text, True),
    (line_ends, False),
    (mark, False),
]
