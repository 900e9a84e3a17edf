"""A BEIR corpus searched by way of a store that outlives the search."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.files.arrow_corpus import CorpusWriter, open_corpus
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.retrieval.encode import encode_documents
from beir_cocodr.retrieval.ranking import Ranking
from beir_cocodr.retrieval.store.search import search_store

_CHUNK = 4_096


class _Corpus(Protocol):
    def ids(self) -> list[str]: ...

    def chunks(self, size: int) -> Iterator[list[Mapping[str, str | None]]]: ...


def search_stored(
    model: Any,
    corpus: Documents | _Corpus,
    queries: Mapping[str, str],
    top_k: int,
    folder: str | Path,
    excluded_rows: npt.NDArray[np.int64] | None,
    batch_size: int,
    progress: bool,
) -> Ranking:
    """Encode what the store in ``folder`` has not got, and search it.

    Args:
        model: an encoder of this package.
        corpus: its documents; those of another kind than `Documents` are written to a temporary file first.
        queries: query id to text.
        top_k: documents wanted for each query.
        folder: of the store.
        excluded_rows: (Q,), a row that each query must not retrieve, -1 for none.
        batch_size: queries encoded at a time.
        progress: show bars on stderr.

    Raises:
        InputError: another kind of model, or a store of another model or corpus.
    """
    if not isinstance(model, COCODR):
        raise InputError(
            f"a store is keyed by the weights of its encoder, and {type(model).__name__} is none of this "
            "package's: load it with load_encoder, or search without store"
        )
    with _documents(corpus) as documents:
        store = encode_documents(model, documents, folder, queries=list(queries.values()), progress=progress)
    vectors = model.encode_queries(
        list(queries.values()), batch_size=batch_size, convert_to_tensor=True, show_progress_bar=progress
    )
    device = str(model.device)
    return search_store(store, list(queries), vectors, top_k, [device], excluded_rows=excluded_rows)


@contextmanager
def _documents(corpus: Documents | _Corpus) -> Iterator[Documents]:
    if isinstance(corpus, Documents):
        yield corpus
        return
    ids = iter(corpus.ids())
    rows = (
        (0, next(ids), document.get("title") or "", document.get("text") or "")
        for chunk in corpus.chunks(_CHUNK)
        for document in chunk
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.arrow"
        CorpusWriter(path).write(rows, {})
        yield open_corpus(path).documents
