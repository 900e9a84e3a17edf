"""Pyserini: indexes and encoded queries in its formats, its query encoder, its Lucene.

Writing needs neither Pyserini nor Java. Searching needs both, and Java comes from
:func:`~beir_cocodr.plugins.pyserini_java.start_java`::

    from .pyserini import CocoDRQueryEncoder, start_java, write_index

    write_index("STORE", "INDEX")
    start_java()
    from pyserini.search.faiss import FaissSearcher

    hits = FaissSearcher("INDEX", CocoDRQueryEncoder("MODEL")).search("a query", k=10)
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from beir_cocodr.arrays import Floats, non_finite_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import draft_folder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.faiss.build import import_faiss
from beir_cocodr.retrieval.store.store import EmbeddingStore

from .pyserini_java import start_java

if TYPE_CHECKING:
    from .pyserini_encoder import CocoDRQueryEncoder

#: Ids and their (n, w) float32 vectors.
Piece = tuple[list[str], Floats]


def write_index_folder(folder: Path, pieces: Iterable[Piece]) -> None:
    """Write a flat inner-product index by FAISS, ``index``, and ``docid``, an id a line in its order, of pieces of the
    corpus, at least one. An InputError where FAISS is not installed, ``folder`` is not empty, or an id cannot be there.
    """
    faiss = import_faiss()
    index = None
    with appearing(folder) as draft, (draft / "docid").open("w", encoding="utf-8", newline="\n") as file:
        for ids, vectors in pieces:
            index = faiss.IndexFlatIP(vectors.shape[1]) if index is None else index
            index.add(np.ascontiguousarray(vectors, dtype=np.float32))
            file.writelines(f"{_line(id)}\n" for id in ids)
        faiss.write_index(index, str(draft / "index"))


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A draft of ``folder``; ``InputError`` where there is something in that already, or it cannot be made."""
    with explained(f"{folder} cannot be written", "choose another folder", OSError), draft_folder(folder) as draft:
        yield draft


def _line(id: str) -> str:
    """An id as Pyserini reads it back: to the end of its line, less the white space there."""
    if id != id.rstrip() or "\n" in id or "\r" in id:
        raise InputError(f"Pyserini would read the document id {id!r} without its white space or line break: rename it")
    return id


def query_vectors(model: COCODR, texts: list[str], batch_size: int) -> Floats:
    """(Q,) texts to (Q, w) float32, unit vectors where the model compares by cosine."""
    encoded = model.encode_queries(texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False)
    vectors = encoded.detach().float().cpu()
    normal = F.normalize(vectors, dim=-1) if model.similarity_fn_name == "cosine" else vectors
    return np.asarray(normal)


__all__ = ["CocoDRQueryEncoder", "encode_index", "start_java", "write_encoded_queries", "write_index"]

_ROWS = 16_384


def __getattr__(name: str) -> Any:
    # Its base class is Pyserini's, which is not there where indexes are only written.
    if name == "CocoDRQueryEncoder":
        from .pyserini_encoder import CocoDRQueryEncoder

        return CocoDRQueryEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def write_index(store: EmbeddingStore | str | Path, folder: str | Path) -> Path:
    """Write the vectors of a store as an index for Pyserini's ``FaissSearcher``.

    The vectors are those that the model gave, in float32 and unit vectors where it compares by cosine, whatever the
    precision of the store: queries by :class:`CocoDRQueryEncoder` have the scores of ``search``. Memory holds the whole
    index, N × w × 4 bytes, as it does when Pyserini loads it.

    Args:
        store: complete, or its folder.
        folder: to be made; holds ``index``, flat, by inner product, and ``docid``.

    Raises:
        InputError: no complete store, something in ``folder``, an id that Pyserini cannot read back, or no FAISS.
    """
    opened = store if isinstance(store, EmbeddingStore) else EmbeddingStore.open(store)
    pieces = (
        (opened.ids(np.arange(shard.start, shard.stop)), _as_encoded(opened, chunk))
        for shard, chunk in zip(opened.shards, opened.chunks(), strict=True)
    )
    write_index_folder(Path(folder), pieces)
    return Path(folder)


def encode_index(model: COCODR, documents: Documents, folder: str | Path, token_budget: int | None = None) -> Path:
    """As :func:`write_index`, with its errors, from a corpus that is encoded now, in batches of so many tokens as by
    :class:`~beir_cocodr.retrieval.corpus_encoder.CorpusEncoder`, which has to give every document a finite vector.
    """
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"an index needs cosine or dot product, the model has {model.similarity_fn_name}")
    encoder = CorpusEncoder(model, documents, token_budget)

    def pieces() -> Iterator[Piece]:
        for start in range(0, len(documents), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(documents)))
            yield documents.ids(rows), encoder.encode(rows)

    write_index_folder(Path(folder), pieces())
    return Path(folder)


def write_encoded_queries(model: COCODR, queries: Mapping[str, str], folder: str | Path, batch_size: int = 64) -> Path:
    """Encode queries for Pyserini's ``QueryEncoder(folder)``, which finds vectors by the text of the query.

    Args:
        model: the encoder that made the index.
        queries: query id to text, such as :func:`~beir_cocodr.data.collection.load_queries` finds.
        folder: to be made; holds ``embedding.pkl``, a DataFrame with the columns id, text and embedding. It is a pickle
            because Pyserini reads nothing else: give it only to those who trust you, and load none that you do not.
        batch_size: queries encoded at a time.

    Raises:
        InputError: no queries, a query without a finite vector, or something in ``folder``.
    """
    if not queries:
        raise InputError("there are no queries to encode")
    vectors = query_vectors(model, list(queries.values()), batch_size)
    if len(wrong := non_finite_rows(vectors)):
        raise InputError(f"NaN or infinite embedding of query {list(queries)[wrong[0]]!r}: look at its text")
    # Columns of objects: the text columns of pandas 3 cannot be read by pandas 2.
    columns = {"id": list(queries), "text": list(queries.values()), "embedding": list(vectors)}
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})
    frame.columns = frame.columns.astype(object)
    with appearing(Path(folder)) as draft:
        frame.to_pickle(draft / "embedding.pkl", protocol=4)
    return Path(folder)


def _as_encoded(store: EmbeddingStore, vectors: torch.Tensor) -> Floats:
    """(n, w) of a store without what was done to MRL's vectors before they lost precision."""
    if store.folding is None:
        return np.asarray(vectors)
    wide = vectors.double().numpy() + store.folding.document_mean
    wide[:, 0] -= wide[:, 1:] @ store.folding.query_mean
    return np.asarray(wide, np.float32)
