"""The check that the files of a model hold numbers of the right types.

Hosts convert whatever a file holds: integers in place of floating-point weights would become
another model without a word. Only the headers of the files are read.
"""

import pickle
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from beir_cocodr.errors import InputError
from beir_cocodr.io import parse_json

# The types of weights that hosts read, as safetensors and as torch name them.
_FLOATS = {"F16", "BF16", "F32", "F64"}
_TORCH_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}

# More bytes of a header than any model has.
_MOST = 100_000_000


def check_number_types(model: Any, folder: Path, noun: str) -> None:
    """Check that a model's floating-point weights were floating-point numbers in its files.

    Args:
        model: The loaded model.
        folder: The folder of its files.
        noun: What the model is to the user, for messages.

    Raises:
        InputError: A file holds integers, truth values or quantized numbers in their place.
    """
    weights: Mapping[str, torch.Tensor] = model.state_dict()
    by_last_part = defaultdict(list)
    for key, weight in weights.items():
        if weight.is_floating_point():
            by_last_part[key.rpartition(".")[2]].append(key)
    for file in _weight_files(folder):
        for name, dtype in _other_types(file):
            for key in by_last_part[name.rpartition(".")[2]]:
                if _is_same_tensor(key, name):
                    raise InputError(
                        f"{file} holds {dtype} numbers in {name!r}, where the {noun} computes with "
                        "floating-point weights; take the model as it was saved"
                    )


def _is_same_tensor(key: str, name: str) -> bool:
    """Return true if two names differ only in what wrappers put before them."""
    if key == name:
        return True
    return key.endswith(f".{name}") or name.endswith(f".{key}")


def _weight_files(folder: Path) -> list[Path]:
    files: list[Path] = []
    for part in (folder, *sorted(folder.glob("[0-9]*_*"))):
        safe = sorted(part.glob("*.safetensors"))
        files += safe or sorted(part.glob("pytorch_model*.bin"))
    return files


def _other_types(file: Path) -> Iterator[tuple[str, str]]:
    """Iterate over the tensors of a file that are no floating-point numbers, and their types."""
    types = _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
    for name, dtype in types.items():
        if dtype not in _FLOATS:
            yield name, dtype


def _safetensors(file: Path) -> dict[str, str]:
    with file.open("rb") as content:
        size = int.from_bytes(content.read(8), "little")
        if size > _MOST:
            return {}
        try:
            header = parse_json(content.read(size).decode("utf-8"))
        except ValueError:
            header = None
    if not isinstance(header, dict):  # the host that reads the file reports it
        return {}
    return {
        name: str(tensor["dtype"])
        for name, tensor in header.items()
        if isinstance(tensor, dict) and "dtype" in tensor
    }


def _pickled(file: Path) -> dict[str, str]:
    if not zipfile.is_zipfile(file):  # an old form, which cannot be read without its numbers
        return {}
    try:
        tensors = torch.load(file, map_location="meta", weights_only=True, mmap=True)
    except (RuntimeError, ValueError, pickle.UnpicklingError):  # the host reports it
        return {}
    types = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            is_float = tensor.dtype in _TORCH_FLOATS
            types[name] = "F32" if is_float else str(tensor.dtype).removeprefix("torch.")
    return types
