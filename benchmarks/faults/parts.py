"""Breaking a part of the world: which damage fits which file.

Weights, arrays and the settings of models also break in ways of their own.
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

from faults.damage import ANY, JSON, LINES, TEXTS, Damage, Plausible, not_text, write

#: The folder that code makes which a model brings along, wherever it is run.
EXECUTED = "EXECUTED"


@dataclass(frozen=True)
class Broken:
    """A part that was broken.

    Attributes:
        file: The file of the part, or the option.
        damage: What was done to it.
        shows: Whether the file itself shows it.
    """

    file: str
    damage: str
    shows: bool


TENSOR_KINDS = [
    "left out",
    "reshaped",
    "not a number",
    "infinite",
    "renamed",
    "as integers",
    "twice as wide",
]


def break_tensors(path: Path, rng: random.Random) -> str | None:
    """Write a valid safetensors file with a wrong tensor."""
    from safetensors.numpy import load_file, save_file

    content = load_file(path)
    name = rng.choice(sorted(content))
    kind = rng.choice(TENSOR_KINDS)
    tensor = content.pop(name)
    if kind == "renamed":
        content[f"other.{name}"] = tensor
    elif kind == "reshaped":
        content[name] = tensor.reshape(-1)
    elif kind == "not a number":
        content[name] = np.full_like(tensor, np.nan)
    elif kind == "infinite":
        content[name] = np.full_like(tensor, np.inf)
    elif kind == "as integers":
        content[name] = tensor.astype(np.int64)
    elif kind == "twice as wide":
        content[name] = np.concatenate([tensor, tensor])
    path.unlink()
    save_file(content, path)
    return f"tensor {name} {kind}"


ARRAY_CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "shorter": lambda array: array[:-1],
    "longer": lambda array: np.concatenate([array, array[-1:]]),
    "of another type": lambda array: array.astype(np.int8),
    "of objects": lambda array: array.astype(object),
    "flat": lambda array: array.reshape(-1) if array.ndim > 1 else array[:, None],
    "shuffled": lambda array: array[::-1],
    "zeros": np.zeros_like,
    "nan": lambda array: np.full(array.shape, np.nan),
}


def break_array(path: Path, rng: random.Random) -> str | None:
    """Write a valid numpy file with a wrong array."""
    content = np.load(path)
    kind = rng.choice(list(ARRAY_CHANGES))
    changed = ARRAY_CHANGES[kind](content)
    path.unlink()
    np.save(path, changed, allow_pickle=True)
    return f"an array {kind}"


#: Settings of a config.json that do not fit the weights, or that load code from outside.
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
    {
        "model_type": "roberta",
        "architectures": ["RobertaModel"],
    },
    {
        "model_type": "distilbert",
        "architectures": ["DistilBertModel"],
    },
    {
        "model_type": "gpt2",
        "architectures": ["GPT2Model"],
    },
    {"model_type": "nonsense"},
    {"hidden_act": "nonsense"},
    {
        "torch_dtype": "nonsense",
        "dtype": "nonsense",
    },
    {
        "auto_map": {
            "AutoModel": "evil.Evil",
            "AutoConfig": "evil.Evil",
            "AutoTokenizer": "evil.Evil",
        }
    },
    {"quantization_config": {"quant_method": "nonsense"}},
]


def break_config(path: Path, rng: random.Random) -> str | None:
    """Change the settings of a transformer."""
    change = rng.choice(CONFIGS)
    content = json.loads(path.read_text()) | change
    write(path, json.dumps(content).encode())
    write_evil_module(path.parent)
    text = f"config has {json.dumps(change)}"
    # The tensors of BERT and RoBERTa have the same names and shapes: only who saved the model knows
    # which of the two it is.
    return Plausible(text) if change.get("model_type") == "roberta" else text


MODULE_KINDS = [
    "os.system",
    "evil.Evil",
    "sentence_transformers.models.Nonsense",
    "twice",
    "none",
    "turned",
]


def break_modules(path: Path, rng: random.Random) -> str | None:
    """Change the modules of a sentence-transformers model."""
    content = json.loads(path.read_text())
    kind = rng.choice(MODULE_KINDS)
    if kind == "twice":
        content += content[-1:]
    elif kind == "turned":
        content = content[::-1]
    elif kind == "none":
        content = []
    else:
        content[rng.randrange(len(content))]["type"] = kind
    write(path, json.dumps(content).encode())
    write_evil_module(path.parent)
    return f"modules: {kind}"


class _Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (EXECUTED,)


def write_evil_module(folder: Path) -> None:
    """Write a module beside a model that leaves a mark if it is imported."""
    code = f"import os\nos.makedirs({EXECUTED!r}, exist_ok=True)\nclass Evil: pass\n"
    (folder / "evil.py").write_text(code)


#: The file that takes the place of weights.
PICKLE = "pytorch_model.bin"


def break_into_pickle(path: Path, rng: random.Random) -> str | None:
    """Replace weights by a pickle that runs code."""
    path.unlink()
    kind = rng.choice(["a pickle", "a pickle of PyTorch"])
    target = path.with_name(PICKLE)
    if kind == "a pickle":
        target.write_bytes(pickle.dumps(_Evil()))
    else:
        import torch

        torch.save({"weight": _Evil()}, target)
    return f"{kind} that runs code instead of weights"


FOLDER_KINDS = [
    "missing",
    "a file",
    "emptied",
    "another part",
    "a link to itself",
    "one folder deeper",
]


def break_folder(part: Path, rng: random.Random) -> str:
    """Break a part as a folder."""
    kind = rng.choice(FOLDER_KINDS)
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
        others = [path for path in part.parent.iterdir() if path.is_symlink() and path.is_dir()]
        other = rng.choice(sorted(others))
        shutil.copytree(other.resolve(), part, symlinks=True)
        return Plausible(f"a copy of {other.name}")
    elif kind == "a link to itself":
        part.symlink_to(part.name)
    return f"folder {kind}"


def damages_of(path: Path) -> list[Damage]:
    """List the damage that fits a file; damage of its kind is drawn about as often as any other."""
    special: list[Damage] = []
    if path.suffix == ".json":
        special = [*JSON, Damage(not_text)]
        if path.name == "config.json" and path.parent.name != "1_Pooling":
            special += [Damage(break_config)] * 6
        if path.name == "modules.json":
            special += [Damage(break_modules)] * 3
    elif path.suffix in TEXTS:
        special = LINES
    elif path.suffix == ".safetensors":
        special = [Damage(break_tensors)] * 8 + [Damage(break_into_pickle)] * 2
    elif path.suffix == ".npy":
        special = [Damage(break_array)] * 6
    return ANY + special


def break_part(part: Path, rng: random.Random) -> Broken:
    """Break one file of a part, or the part itself, as the generator chooses."""
    if rng.random() < 0.05:
        text = break_folder(part, rng)
        return Broken(part.name, str(text), not isinstance(text, Plausible))
    files = [path for path in part.rglob("*") if path.is_file() and not path.name.startswith(".")]
    files = [part] if part.is_file() else sorted(files)
    while True:
        path = rng.choice(files)
        damage = rng.choice(damages_of(path))
        if path.is_symlink():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
        done = _apply(damage, path, rng)
        if done is not None:
            shows = damage.shows and not isinstance(done, Plausible)
            return Broken(path.relative_to(part.parent).as_posix(), str(done), shows)


def _apply(
    damage: Damage,
    path: Path,
    rng: random.Random,
) -> str | None:
    try:
        return damage.apply(path, rng)
    except Exception:  # A file of another kind than its name says does not break in this way.
        return None
