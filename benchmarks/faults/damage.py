"""Ways to break a file: cut, flipped, emptied, replaced, of wrong types, huge, missing, doubled.

Each is a function of the path and a generator of random numbers. It returns what it did, or None
where it does not apply. The tables say which damage shows in the file itself (broken JSON, a
missing tensor, a doubled line), so that a command that ends well with other results was careless.
Only a checksum could show the rest (a changed word, a file that was cut at the end of a line).
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TEXTS = (".json", ".jsonl", ".tsv", ".run", ".txt")


class Plausible(str):
    """A change of a file after which it is still a valid file.

    It has another value of the same type, or it is a file that not every folder has.
    """


#: Breaks a file, and says what it did.
Break = Callable[[Path, random.Random], "str | None"]

#: Changes a line to other lines.
Change = Callable[[bytes], list[bytes]]


@dataclass(frozen=True)
class Damage:
    """One way to break a file.

    Attributes:
        apply: The function that breaks it.
        shows: Whether the damage shows in the file itself.
    """

    apply: Break
    shows: bool = True


#: Files without which a folder is another one, and complete.
OPTIONAL = {
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "text_format.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "training.json",
    "run.json",
    "README.md",
}


def _without(path: Path, text: str) -> str:
    return Plausible(text) if path.name in OPTIONAL else text


def write(path: Path, content: bytes) -> None:
    """Replace a file, and not the file to which it links."""
    path.unlink()
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> str | None:
    """Cut in the middle of a line or of binary content."""
    content = path.read_bytes()
    if len(content) < 4:
        return None
    end = rng.randrange(1, len(content) - 2)
    while end > 1 and content[end - 1 : end + 1].count(b"\n"):
        end -= 1
    write(path, content[:end])
    return f"cut after byte {end} of {len(content)}"


def flip(path: Path, rng: random.Random) -> str | None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    if not content:
        return None
    position = rng.randrange(len(content))
    bit = rng.randrange(8)
    content[position] ^= 1 << bit
    write(path, bytes(content))
    return f"bit {bit} of byte {position} flipped"


def flip_head(path: Path, rng: random.Random) -> str | None:
    """Change one of the first bytes, which belong to a header."""
    content = bytearray(path.read_bytes())
    if not content:
        return None
    position = rng.randrange(min(128, len(content)))
    content[position] ^= 1 + rng.randrange(255)
    write(path, bytes(content))
    return f"byte {position} changed"


def zeros(path: Path, rng: random.Random) -> str | None:
    """Write 32 zeros somewhere."""
    content = bytearray(path.read_bytes())
    if len(content) < 64:
        return None
    position = rng.randrange(len(content) - 32)
    content[position : position + 32] = bytes(32)
    write(path, bytes(content))
    text = f"32 zeros from byte {position}"
    return text if path.suffix in TEXTS else Plausible(text)


def empty(path: Path, rng: random.Random) -> str | None:
    """Leave no content."""
    write(path, b"")
    return "emptied"


def garbage(path: Path, rng: random.Random) -> str | None:
    """Write random bytes."""
    size = min(4096, path.stat().st_size)
    write(path, rng.randbytes(max(16, size)))
    return "random bytes"


FOREIGN = [
    ("a PNG", b"\x89PNG\r\n\x1a\n" + bytes(100)),
    ("a zip", b"PK\x03\x04" + bytes(100)),
    ("a gzip", b"\x1f\x8b\x08\x00" + bytes(40)),
    ("a page", b"<!doctype html><title>404</title><p>Not found"),
    ("a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
    ("a pickle", pickle.dumps({"a": [1, 2]})),
    ("UTF-16", "Grüße\n".encode("utf-16")),
    ("a list", b"[1, 2, 3]\n"),
    ("a number", b"12\n"),
    ("a string", b'"text"\n'),
    ("null", b"null\n"),
    ("an object", b"{}\n"),
]


def foreign(path: Path, rng: random.Random) -> str | None:
    """Write another kind of file."""
    name, content = rng.choice(FOREIGN)
    write(path, content)
    text = f"replaced by {name}"
    return _without(path, text) if name == "an object" else text


def appended(path: Path, rng: random.Random) -> str | None:
    """Append rubbish."""
    with path.open("ab") as file:
        file.write(b"\x00\xff\xfe rubbish")
    return "rubbish appended"


def not_text(path: Path, rng: random.Random) -> str | None:
    """Insert bytes that are no UTF-8."""
    content = path.read_bytes()
    position = rng.randrange(len(content) + 1)
    write(path, content[:position] + b"\xff\xfe\x80" + content[position:])
    return f"not UTF-8 at byte {position}"


def missing(path: Path, rng: random.Random) -> str | None:
    """Remove the file."""
    path.unlink()
    return _without(path, "missing")


def as_folder(path: Path, rng: random.Random) -> str | None:
    """Make a folder of the same name."""
    path.unlink()
    path.mkdir()
    return "replaced by a folder"


def loop(path: Path, rng: random.Random) -> str | None:
    """Make a link to itself."""
    path.unlink()
    path.symlink_to(path.name)
    return "a link to itself"


def dangling(path: Path, rng: random.Random) -> str | None:
    """Make a link to nowhere."""
    path.unlink()
    path.symlink_to("nowhere")
    return _without(path, "a link to nowhere")


def unreadable(path: Path, rng: random.Random) -> str | None:
    """Take the permission to read away; commands run as an ordinary user."""
    path.chmod(0)
    return "not readable"


#: Damage of any file.
ANY = [
    Damage(cut),
    Damage(flip, shows=False),
    Damage(flip_head, shows=False),
    Damage(zeros),
    Damage(empty),
    Damage(garbage),
    Damage(foreign),
    Damage(appended),
    Damage(missing),
    Damage(as_folder),
    Damage(loop),
    Damage(dangling),
    Damage(unreadable),
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

#: The keys and positions that lead to a value in parsed JSON.
Keys = tuple[Any, ...]


def find_values(content: Any, prefix: Keys = ()) -> list[Keys]:
    """List all values of parsed JSON."""
    values = [prefix] if prefix else []
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content)
    for key, value in items:
        values += find_values(value, (*prefix, key))
    return values


def _change_value(
    content: Any,
    rng: random.Random,
    values: list[Any],
) -> str | None:
    """Replace or remove one value of parsed JSON, and say which."""
    every = find_values(content)
    if not every:
        return None
    top = [keys for keys in every if len(keys) == 1]
    *above, last = rng.choice(top if rng.random() < 0.5 else every)
    inner = content
    for key in above:
        inner = inner[key]
    value = rng.choice([*values, ...])
    name = ".".join(map(str, (*above, last)))[:60]
    if value is ...:
        del inner[last]
        return Plausible(f"{name} left out")
    before = inner[last]
    inner[last] = value
    if type(before) is type(value) and before == value:
        return None
    text = f"{name} is {str(value)[:20]!r}"
    is_free = name.partition(".")[0] == "metadata"  # of which the format says nothing
    return Plausible(text) if is_free or _could_be(before, value) else text


def _could_be(before: Any, value: Any) -> bool:
    """Say whether a value could be right where another was."""
    if value is None:
        return True
    if type(before) is type(value) is not float:
        return True
    known = 0 if before is None else before  # A number may be right where there was none.
    return _is_finite(known) and _is_finite(value)


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < float("inf")


def json_wrong(path: Path, rng: random.Random) -> str | None:
    """Change a value of JSON to one of a wrong type."""
    return _change_json(path, rng, WRONG)


def json_huge(path: Path, rng: random.Random) -> str | None:
    """Change a value of JSON to a huge one."""
    return _change_json(path, rng, HUGE)


def _change_json(
    path: Path,
    rng: random.Random,
    values: list[Any],
) -> str | None:
    content = json.loads(path.read_text())
    text = _change_value(content, rng, values)
    if text:
        write(path, json.dumps(content, indent=2).encode())
    return text


def json_deep(path: Path, rng: random.Random) -> str | None:
    """Write deeply nested JSON."""
    write(path, b"[" * 100_000 + b"]" * 100_000)
    return "brackets 100,000 deep"


def json_unknown(path: Path, rng: random.Random) -> str | None:
    """Add a key to JSON."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        return None
    write(path, json.dumps(content | {"surprise": 1}).encode())
    return "a key more"


#: Damage of JSON; what stands twice is drawn twice as often.
JSON = [
    Damage(json_wrong),
    Damage(json_wrong),
    Damage(json_huge),
    Damage(json_deep),
    Damage(json_unknown, shows=False),
]


def _change_line(
    path: Path,
    rng: random.Random,
    change: Change,
) -> int:
    """Change one line, and return its number."""
    lines = path.read_bytes().splitlines(keepends=True)
    row = rng.randrange(len(lines)) if lines else 0
    if lines:
        lines[row : row + 1] = change(lines[row])
    write(path, b"".join(lines))
    return row + 1


def line_twice(path: Path, rng: random.Random) -> str | None:
    """Double a line."""
    number = _change_line(path, rng, lambda line: [line, line])
    return f"line {number} doubled"


def line_gone(path: Path, rng: random.Random) -> str | None:
    """Remove a line."""
    number = _change_line(path, rng, lambda line: [])
    return f"line {number} left out"


def line_blank(path: Path, rng: random.Random) -> str | None:
    """Insert a blank line."""
    number = _change_line(path, rng, lambda line: [line, b"  \n"])
    return f"a blank line after line {number}"


def line_rubbish(path: Path, rng: random.Random) -> str | None:
    """Insert a line of rubbish."""
    number = _change_line(path, rng, lambda line: [line, b"rubbish\n"])
    return f"rubbish after line {number}"


def line_long(path: Path, rng: random.Random) -> str | None:
    """Insert a very long line."""
    number = _change_line(path, rng, lambda line: [line, b"a b " * 250_000 + line])
    return f"a line of a megabyte after line {number}"


def last_lines(path: Path, rng: random.Random) -> str | None:
    """Cut at the end of a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        return None
    end = rng.randrange(1, len(lines))
    write(path, b"".join(lines[:end]))
    return f"cut after line {end} of {len(lines)}"


CELLS = [
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
#: Cells that could be right.
POSSIBLE_CELLS = ("-1", "text", "9" * 30)
#: Further values of a line of JSON.
LINE_VALUES = ["x" * 100_000, "\ud800", "\x00", " ", 10**400]


def line_value(path: Path, rng: random.Random) -> str | None:
    """Change a value in a line of JSON, or a cell of a table."""
    texts: list[str | None] = []

    def change(line: bytes) -> list[bytes]:
        try:
            content = json.loads(line)
        except ValueError:
            changed, text = _change_cell(line, rng)
            texts.append(text)
            return [changed]
        texts.append(_change_value(content, rng, [*WRONG, *LINE_VALUES]))
        return [json.dumps(content).encode() + b"\n"]

    number = _change_line(path, rng, change)
    if not texts or texts[0] is None:
        return None
    text = texts[0]
    return type(text)(f"line {number}: {text}")


def _change_cell(line: bytes, rng: random.Random) -> tuple[bytes, str]:
    separator = "\t" if b"\t" in line else " "
    cells = line.decode().rstrip("\n").split(separator)
    column = rng.randrange(len(cells))
    value = rng.choice(CELLS)
    cells[column : column + 1] = [] if value is None else [value]
    text = f"cell {column + 1} is {value!r}"
    if value in POSSIBLE_CELLS:
        text = Plausible(text)
    return separator.join(cells).encode() + b"\n", text


def line_ends(path: Path, rng: random.Random) -> str | None:
    """Write the line ends of Windows."""
    write(path, path.read_bytes().replace(b"\n", b"\r\n"))
    return "CRLF line ends"


def mark(path: Path, rng: random.Random) -> str | None:
    """Begin with a byte order mark."""
    write(path, b"\xef\xbb\xbf" + path.read_bytes())
    return "a byte order mark"


#: Damage of files of lines.
LINES = [
    Damage(line_twice),
    Damage(line_gone, shows=False),
    Damage(line_blank, shows=False),
    Damage(line_rubbish),
    Damage(line_long, shows=False),
    Damage(last_lines, shows=False),
    Damage(line_value),
    Damage(line_value),
    Damage(not_text),
    Damage(line_ends, shows=False),
    Damage(mark, shows=False),
]
