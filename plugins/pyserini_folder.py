"""Folders in Pyserini's formats, written without Pyserini and without Java."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.index.kinds import import_faiss

#: Ids and their (n, w) float32 vectors.
Piece = tuple[list[str], npt.NDArray[np.float32]]


def write_index_folder(folder: Path, pieces: Iterable[Piece]) -> None:
    """A flat inner-product index with its ids.

    Args:
        folder: to be made: ``index``, by FAISS, and ``docid``, an id a line in the order of the index.
        pieces: of the corpus, in order, at least one.

    Raises:
        InputError: FAISS is not installed, there is something in ``folder``, or an id cannot be one there.
    """
    faiss = import_faiss()
    index = None
    with appearing(folder) as draft, (draft / "docid").open("w", encoding="utf-8", newline="\n") as file:
        for ids, vectors in pieces:
            index = faiss.IndexFlatIP(vectors.shape[1]) if index is None else index
            index.add(np.ascontiguousarray(vectors, dtype=np.float32))
            file.writelines(f"{_line(id)}\n" for id in ids)
        faiss.write_index(index, str(draft / "index"))


def write_queries_folder(folder: Path, queries: Mapping[str, str], vectors: npt.NDArray[np.float32]) -> None:
    """Encoded queries, as Pyserini looks them up by their text.

    Args:
        folder: to be made: ``embedding.pkl``, a DataFrame with the columns id, text and embedding.
        queries: query id to text.
        vectors: (Q, w), in their order.

    Raises:
        InputError: there is something in ``folder``.
    """
    # Columns of objects: the text columns of pandas 3 cannot be read by pandas 2.
    columns = {"id": list(queries), "text": list(queries.values()), "embedding": list(vectors)}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    frame.columns = frame.columns.astype(object)
    with appearing(folder) as draft:
        frame.to_pickle(draft / "embedding.pkl", protocol=4)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes ``folder`` when all is in it.

    Raises:
        InputError: there is something in ``folder`` already, or it cannot be made.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} is there already and not empty: choose another folder, or delete it")
    draft = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        yield draft
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o777 & ~umask)  # mkdtemp's own mode shuts everybody else out
        draft.rename(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{folder} cannot be written: {reason}; choose another folder") from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def _line(id: str) -> str:
    """An id as Pyserini reads it back: to the end of its line, less the white space there."""
    if id != id.rstrip() or "\n" in id or "\r" in id:
        raise InputError(
            f"Pyserini would read the document id {id!r} without its white space or line break: rename it"
        )
    return id
