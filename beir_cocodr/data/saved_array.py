"""Arrays that several processes may write and read."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a ``.npy`` file in one step."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.save(file, array)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
