"""Breaking parts: which damage fits which file, and what only weights, arrays and the settings of
models can suffer.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from faults_damage import ANY, JSON, LINES, TEXTS, Damage, Plausible, not_text, write


@dataclass(frozen=True)
class Done:
    """What was done to which file of a part; ``shows`` says whether the file itself gives it
    away.
    """

    file: str
    what: str
    shows: bool


def tensors(path: Path, rng: random.Random) -> str | None:
    """A safetensors file that is whole and wrong."""
    from safetensors.numpy import load_file, save_file

    content = load_file(path)
    name = rng.choice(sorted(content))
    kind = rng.choice(
        [
            "left out",
            "reshaped",
            "not a number",
            "infinite",
            "renamed",
            "as integers",
            "twice as wide",
        ]
    )
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
    kind = rng.choice(
        ["shorter", "longer", "of another type", "of objects", "flat", "shuffled", "zeros", "nan"]
    )
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
    {
        "auto_map": {
            "AutoModel": "evil.Evil",
            "AutoConfig": "evil.Evil",
            "AutoTokenizer": "evil.Evil",
        }
    },
    {"quantization_config": {"quant_method": "nonsense"}},
]


def config(path: Path, rng: random.Random) -> str | None:
    change = rng.choice(CONFIGS)
    write(path, json.dumps(json.loads(path.read_text()) | change).encode())
    _evil_module(path.parent)
    what = f"config has {json.dumps(change)}"
    # Its tensors have the same names and shapes: only who saved it knows which of the two it is.
    return Plausible(what) if change.get("model_type") == "roberta" else what


def modules(path: Path, rng: random.Random) -> str | None:
    content = json.loads(path.read_text())
    kind = rng.choice(
        [
            "os.system",
            "evil.Evil",
            "sentence_transformers.models.Nonsense",
            "twice",
            "none",
            "turned",
        ]
    )
    if kind == "twice":
        content += content[-1:]
    elif kind == "turned":
        content = content[::-1]
    elif kind == "none":
        content = []
    else:
        content[rng.randrange(len(content))]["type"] = kind
    write(path, json.dumps(content).encode())
    _evil_module(path.parent)
    return f"modules: {kind}"


#: Made by code that a model brings along, wherever it is run.
EXECUTED = "EXECUTED"


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (EXECUTED,)


def _evil_module(folder: Path) -> None:
    (folder / "evil.py").write_text(
        f"import os\nos.makedirs({EXECUTED!r}, exist_ok=True)\nclass Evil: pass\n"
    )


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
    kind = rng.choice(
        ["missing", "a file", "emptied", "another part", "a link to itself", "one folder deeper"]
    )
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
        return Plausible(f"a copy of {other.name}")
    elif kind == "a link to itself":
        part.symlink_to(part.name)
    return f"folder {kind}"


def damages(path: Path) -> list[tuple[Damage, bool]]:
    """All that applies to a file, what is particular to its kind as often as what is not."""
    special: list[tuple[Damage, bool]] = []
    if path.suffix in TEXTS and path.suffix != ".json":
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
    """Break one file of a part, or the part itself; the choice and the damage are the
    generator's.
    """
    if rng.random() < 0.05:
        what = folder_damage(part, rng)
        return Done(part.name, str(what), not isinstance(what, Plausible))
    files = sorted(
        path for path in part.rglob("*") if path.is_file() and not path.name.startswith(".")
    )
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
            shows = shows and not isinstance(what, Plausible)
            return Done(path.relative_to(part.parent).as_posix(), str(what), shows)
