"""Ways to break a file or a folder: cut, flipped, emptied, foreign, of wrong types, huge, missing, twice there.

Each is a function of the path and a generator of random numbers that returns what it did, or None where it does not
apply. The tables say which damage shows in the file itself (a broken JSON, a tensor that is missing, a line that stands
twice), so that a command that ends well with other results was careless; the rest (a word that was changed, a line cut
off at its end) only a checksum could show.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Damage = Callable[[Path, random.Random], "str | None"]


@dataclass(frozen=True)
class Done:
    """What was done to which file of a part; ``shows`` says whether the file itself gives it away."""

    file: str
    what: str
    shows: bool


def _write(path: Path, content: bytes) -> None:
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
    _write(path, content[:at])
    return f"cut after byte {at} of {len(content)}"


def flip(path: Path, rng: random.Random) -> str | None:
    content = bytearray(path.read_bytes())
    if not content:
        return None
    at, bit = rng.randrange(len(content)), rng.randrange(8)
    content[at] ^= 1 << bit
    _write(path, bytes(content))
    return f"bit {bit} of byte {at} flipped"


def flip_head(path: Path, rng: random.Random) -> str | None:
    """As a flip, among the first bytes, where headers stand."""
    content = bytearray(path.read_bytes())
    if not content:
        return None
    at = rng.randrange(min(128, len(content)))
    content[at] ^= 1 + rng.randrange(255)
    _write(path, bytes(content))
    return f"byte {at} changed"


def zeros(path: Path, rng: random.Random) -> str | None:
    content = bytearray(path.read_bytes())
    if len(content) < 64:
        return None
    at = rng.randrange(len(content) - 32)
    content[at : at + 32] = bytes(32)
    _write(path, bytes(content))
    return f"32 zeros from byte {at}"


def empty(path: Path, rng: random.Random) -> str | None:
    _write(path, b"")
    return "emptied"


def garbage(path: Path, rng: random.Random) -> str | None:
    _write(path, rng.randbytes(max(16, min(4096, path.stat().st_size))))
    return "random bytes"


def foreign(path: Path, rng: random.Random) -> str | None:
    """Another kind of file in its place."""
    name, content = rng.choice(
        [
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
    )
    _write(path, content)
    return f"{name} in its place"


def appended(path: Path, rng: random.Random) -> str | None:
    with path.open("ab") as file:
        file.write(b"\x00\xff\xfe rubbish")
    return "rubbish appended"


def not_text(path: Path, rng: random.Random) -> str | None:
    content = path.read_bytes()
    at = rng.randrange(len(content) + 1)
    _write(path, content[:at] + b"\xff\xfe\x80" + content[at:])
    return f"not UTF-8 at byte {at}"


def missing(path: Path, rng: random.Random) -> str | None:
    path.unlink()
    return "missing"


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
    return "a link to nowhere"


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
WRONG: list[Any] = [None, True, "text", "", 3, -7, 0.5, float("nan"), float("inf"), [], {}, [[1]], {"a": 1}, ["x"]]


def _places(content: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [prefix] if prefix else []
    items: Any = (
        content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
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
        return f"{named} left out"
    before, inner[last] = inner[last], choice
    return None if type(before) is type(choice) and before == choice else f"{named} is {str(choice)[:20]!r}"


def json_wrong(path: Path, rng: random.Random) -> str | None:
    return _json(path, rng, WRONG)


def json_huge(path: Path, rng: random.Random) -> str | None:
    return _json(path, rng, HUGE)


def _json(path: Path, rng: random.Random, values: list[Any]) -> str | None:
    content = json.loads(path.read_text())
    if what := _changed(content, rng, values):
        _write(path, json.dumps(content, indent=2).encode())
    return what


def json_deep(path: Path, rng: random.Random) -> str | None:
    _write(path, b"[" * 100_000 + b"]" * 100_000)
    return "brackets 100,000 deep"


def json_unknown(path: Path, rng: random.Random) -> str | None:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        return None
    _write(path, json.dumps(content | {"surprise": 1}).encode())
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
    _write(path, b"".join(lines))
    return at + 1


def line_twice(path: Path, rng: random.Random) -> str | None:
    return f"line {_line(path, rng, lambda line: [line, line])} stands twice"


def line_gone(path: Path, rng: random.Random) -> str | None:
    return f"line {_line(path, rng, lambda line: [])} left out"


def line_blank(path: Path, rng: random.Random) -> str | None:
    return f"a blank line after line {_line(path, rng, lambda line: [line, b'  ' + chr(10).encode()])}"


def line_rubbish(path: Path, rng: random.Random) -> str | None:
    return f"rubbish after line {_line(path, rng, lambda line: [line, b'rubbish' + chr(10).encode()])}"


def line_long(path: Path, rng: random.Random) -> str | None:
    return f"a line of a megabyte after line {_line(path, rng, lambda line: [line, b'a b ' * 250_000 + line])}"


def last_lines(path: Path, rng: random.Random) -> str | None:
    """Cut at the end of a line."""
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        return None
    at = rng.randrange(1, len(lines))
    _write(path, b"".join(lines[:at]))
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
                ["", "nan", "inf", "-1", "1e400", "text", "a b", "9" * 30, "\u2028", "1\t2", "\x00", None]
            )
            cells[at : at + 1] = [] if value is None else [value]
            done.append(f"cell {at + 1} is {value!r}")
            return [("\t" if b"\t" in line else " ").join(cells).encode() + b"\n"]
        what = _changed(content, rng, [*WRONG, "x" * 100_000, "\ud800", "\x00", " ", 10**400])
        done.append(what or "nothing")
        return [json.dumps(content).encode() + b"\n"]

    number = _line(path, rng, change)
    return f"line {number}: {done[0]}" if done and done[0] != "nothing" else None


def line_ends(path: Path, rng: random.Random) -> str | None:
    _write(path, path.read_bytes().replace(b"\n", b"\r\n"))
    return "CRLF line ends"


def mark(path: Path, rng: random.Random) -> str | None:
    _write(path, b"\xef\xbb\xbf" + path.read_bytes())
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


def tensors(path: Path, rng: random.Random) -> str | None:
    """A safetensors file that is whole and wrong."""
    from safetensors.numpy import load_file, save_file

    content = load_file(path)
    name = rng.choice(sorted(content))
    kind = rng.choice(["left out", "reshaped", "not a number", "infinite", "renamed", "as integers", "twice as wide"])
    tensor = content.pop(name)
    if kind == "renamed":
        content[f"other.{name}"] = tensor
    elif kind == "reshaped":
        content[name] = tensor.reshape(-1)
    elif kind in ("not a number", "infinite"):
        content[name] = np.full_like(tensor, np.nan if kind[0] == "n" else np.inf)
    elif kind == "as integers":
        content[name] = tensor.astype(np.int64)
    elif kind == "twice as wide":
        content[name] = np.concatenate([tensor, tensor])
    path.unlink()
    save_file(content, path)
    return f"tensor {name} {kind}"


def array(path: Path, rng: random.Random) -> str | None:
    """A numpy file that is whole and wrong."""
    content = np.load(path)
    kind = rng.choice(["shorter", "longer", "of another type", "of objects", "flat", "shuffled", "zeros", "nan"])
    changed = {
        "shorter": lambda: content[:-1],
        "longer": lambda: np.concatenate([content, content[-1:]]),
        "of another type": lambda: content.astype(np.int8),
        "of objects": lambda: content.astype(object),
        "flat": lambda: content.reshape(-1) if content.ndim > 1 else content[:, None],
        "shuffled": lambda: content[::-1],
        "zeros": lambda: np.zeros_like(content),
        "nan": lambda: np.full(content.shape, np.nan),
    }[kind]()
    path.unlink()
    np.save(path, changed, allow_pickle=True)
    return f"an array {kind}"


#: Of a config.json: what the weights cannot be, and code from outside.
CONFIGS: list[dict[str, Any]] = [
    {"num_hidden_layers": 4},
    {"num_hidden_layers": 1},
    {"num_hidden_layers": 0},
    {"hidden_size": 32},
    {"hidden_size": 17},
    {"intermediate_size": 64},
    {"num_attention_heads": 3},
    {"vocab_size": 9},
    {"vocab_size": 100_000},
    {"vocab_size": 10**12},
    {"max_position_embeddings": 4},
    {"max_position_embeddings": 512},
    {"model_type": "roberta", "architectures": ["RobertaModel"]},
    {"model_type": "distilbert", "architectures": ["DistilBertModel"]},
    {"model_type": "gpt2", "architectures": ["GPT2Model"]},
    {"model_type": "nonsense"},
    {"hidden_act": "nonsense"},
    {"torch_dtype": "nonsense", "dtype": "nonsense"},
    {"auto_map": {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil", "AutoTokenizer": "evil.Evil"}},
    {"quantization_config": {"quant_method": "nonsense"}},
]


def config(path: Path, rng: random.Random) -> str | None:
    change = rng.choice(CONFIGS)
    _write(path, json.dumps(json.loads(path.read_text()) | change).encode())
    _evil_module(path.parent)
    return f"config has {json.dumps(change)}"


def modules(path: Path, rng: random.Random) -> str | None:
    content = json.loads(path.read_text())
    kind = rng.choice(["os.system", "evil.Evil", "sentence_transformers.models.Nonsense", "twice", "none", "turned"])
    if kind == "twice":
        content += content[-1:]
    elif kind == "turned":
        content = content[::-1]
    elif kind == "none":
        content = []
    else:
        content[rng.randrange(len(content))]["type"] = kind
    _write(path, json.dumps(content).encode())
    _evil_module(path.parent)
    return f"modules: {kind}"


#: Made by code that a model brings along, wherever it is run.
EXECUTED = "EXECUTED"


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (EXECUTED,)


def _evil_module(folder: Path) -> None:
    (folder / "evil.py").write_text(f"import os\nos.makedirs({EXECUTED!r}, exist_ok=True)\nclass Evil: pass\n")


def pickled(path: Path, rng: random.Random) -> str | None:
    """Weights as a pickle that runs code."""
    path.unlink()
    kind = rng.choice(["a pickle", "a pickle of PyTorch"])
    target = path.with_name("pytorch_model.bin")
    if kind == "a pickle":
        target.write_bytes(pickle.dumps(_Evil()))
    else:
        import torch

        torch.save({"weight": _Evil()}, target)
    return f"{kind} that runs code instead of weights"


def folder_damage(part: Path, rng: random.Random) -> str:
    """The whole part in another state."""
    kind = rng.choice(["missing", "a file", "emptied", "another part", "a link to itself", "one folder deeper"])
    if kind == "one folder deeper":
        inner = part.with_name("inner")
        part.rename(inner)
        part.mkdir()
        inner.rename(part / part.name)
        return kind
    shutil.rmtree(part)
    if kind == "a file":
        part.write_text("text\n")
    elif kind == "emptied":
        part.mkdir()
    elif kind == "another part":
        others = sorted(p for p in part.parent.iterdir() if p.is_symlink() and p.is_dir())
        other = rng.choice(others)
        shutil.copytree(other.resolve(), part, symlinks=True)
        return f"a copy of {other.name}"
    elif kind == "a link to itself":
        part.symlink_to(part.name)
    return f"folder {kind}"


def damages(path: Path) -> list[tuple[Damage, bool]]:
    """All that applies to a file, what is particular to its kind as often as what is not."""
    special: list[tuple[Damage, bool]] = []
    if path.suffix in (".jsonl", ".tsv", ".run", ".txt"):
        special = LINES
    elif path.suffix == ".json":
        special = [*JSON, (not_text, True)]
        if path.name == "config.json" and path.parent.name != "1_Pooling":
            special = special + [(config, True)] * 6
        if path.name == "modules.json":
            special = special + [(modules, True)] * 3
    elif path.suffix == ".safetensors":
        special = [(tensors, True)] * 8 + [(pickled, True)] * 2
    elif path.suffix == ".npy":
        special = [(array, True)] * 6
    return ANY + special


def break_part(part: Path, rng: random.Random) -> Done:
    """Break one file of a part, or the part itself; the choice and the damage are the generator's."""
    if rng.random() < 0.05:
        return Done(part.name, folder_damage(part, rng), True)
    files = sorted(path for path in part.rglob("*") if path.is_file() and not path.name.startswith("."))
    if part.is_file():
        files = [part]
    while True:
        path = rng.choice(files)
        damage, shows = rng.choice(damages(path))
        if path.is_symlink():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
        try:
            what = damage(path, rng)
        except Exception:  # what is another kind of file than its name is not broken in this way
            what = None
        if what is not None:
            return Done(path.relative_to(part.parent).as_posix(), what, shows)
