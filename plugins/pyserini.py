"""Pyserini: indexes and encoded queries in its formats, its query encoder, and its command lines.

Writing needs neither Pyserini nor Java. Searching needs both, and Java is started by
:func:`~beir_cocodr.plugins.lucene.start_java`::

    from beir_cocodr.plugins.pyserini import CocoDRQueryEncoder, start_java, write_index

    write_index("STORE", "INDEX")
    start_java()
    from pyserini.search.faiss import FaissSearcher

    hits = FaissSearcher("INDEX", CocoDRQueryEncoder("MODEL")).search("a query", k=10)
"""

import logging
import runpy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from beir_cocodr.arrays import Floats, non_finite_rows
from beir_cocodr.errors import InputError, explained, first_line
from beir_cocodr.evaluation.store_run import query_encoder
from beir_cocodr.io import cache_folder, draft_folder, text_sha256
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import DENSE, FUSIONS, EncoderOptions, ModelSpec
from beir_cocodr.retrieval.faiss.build import import_faiss
from beir_cocodr.retrieval.store.record import STORE_FILE
from beir_cocodr.retrieval.store.store import EmbeddingStore

from .lucene import import_pyserini, put_java_first

__all__ = [
    "CocoDRDocumentEncoder",
    "CocoDRQueryEncoder",
    "run",
    "start_java",
    "write_encoded_queries",
    "write_index",
]

#: What the name of an encoder of this package, or the folder of a store that it wrote, begins with
#: in Pyserini's option ``--encoder``.
ENCODER = "beir-cocodr:"

#: Ids and their (n, w) float32 vectors.
Piece = tuple[list[str], Floats]

# Options of Pyserini that are read here too.
_INDEX = "--index"
_ENCODER = "--encoder"
_ENCODER_OPTIONS = (_ENCODER, "--encoded-queries")
_DIMENSION = "--dimension"

# Pyserini reads encoded queries from a pickle of this protocol, in a file of this name.
_QUERIES_FILE = "embedding.pkl"
_PICKLE_PROTOCOL = 4

# Former names, and what does their work.
_FORMER = {
    "encode_index": "encode to a store with beir-cocodr encode, then write_index(store, folder)",
    "write_prebuilt_index": "share the folder of write_index, which Pyserini takes as --index",
    "register_prebuilt_index": "name the folder of an index as --index or in FaissSearcher",
}

log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """Refuse former names by what does their work."""
    if name in _FORMER:
        raise InputError(f"beir_cocodr.plugins.pyserini has no {name} any more; {_FORMER[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class CocoDRQueryEncoder:
    """A query encoder for Pyserini's ``FaissSearcher``: any encoder of this package, MRL included.

    Vectors have unit length if the model compares by cosine. An index by :func:`write_index`
    answers with the model's own scores.

    Args:
        model: A loaded encoder, a folder, a hub name, or ``minilm``.
        batch_size: Queries encoded at a time.
        encoder: How the model is loaded, if it is loaded here.

    Raises:
        InputError: The model cannot be loaded, is a search such as ``feedback:M`` and no encoder,
            or compares by neither cosine nor dot product.
    """

    def __init__(
        self,
        model: COCODR | str | Path,
        batch_size: int = 64,
        encoder: EncoderOptions = EncoderOptions(),
    ) -> None:
        """Load the model."""
        if not isinstance(model, COCODR):
            _check_encodes(model)
            model = load_encoder(model, encoder)
        self.model = model
        self.batch_size = batch_size

    @classmethod
    def from_store(
        cls,
        store: EmbeddingStore | str | Path,
        model: str | None = None,
        device: str | None = None,
        batch_size: int = 64,
    ) -> Self:
        """Return the encoder that made a complete store, with the store's lengths and prompts.

        Args:
            store: The store, or its folder.
            model: Where the model is now. Default: where it was when the store was made.
            device: Device of the model.
            batch_size: Queries encoded at a time.

        Raises:
            InputError: The model cannot be loaded, is a search and no encoder, or is another one.
        """
        if model is not None:
            _check_encodes(model)
        opened = _opened(store)
        return cls(query_encoder(opened, model, device), batch_size)

    def encode(self, query: str) -> Floats:
        """Return the (w,) vector of a query; Pyserini calls it."""
        vector: Floats = self.encode_batch([query])[0]
        return vector

    def encode_batch(self, queries: Sequence[str]) -> Floats:
        """Return the (Q, w) vectors of queries; Pyserini's ``batch_search`` calls it."""
        return np.asarray(self.model.query_vectors(queries, self.batch_size))


def start_java() -> None:
    """Start Java with Lucene in it, once, and import what Pyserini's searchers need of it.

    Call it before ``pyserini.search`` is imported. The same Java comes first on the PATH from then
    on, as Pyserini's evaluation starts one by its name.

    Raises:
        InputError: There is no Java or no Pyserini.
    """
    put_java_first()
    import_pyserini("pyserini.encode")


def write_index(store: EmbeddingStore | str | Path, folder: str | Path) -> Path:
    """Write the vectors of a store as an index for Pyserini's ``FaissSearcher``.

    The vectors are float32, and those of the model, of unit length if it compares by cosine,
    whatever the precision of the store: queries by :class:`CocoDRQueryEncoder` have the scores of
    ``search``. Memory holds the entire index, N × w × 4 bytes, as it does when Pyserini loads it.

    Args:
        store: A complete store, or its folder.
        folder: A new folder; it gets ``index``, flat, by inner product, and ``docid``.

    Returns:
        The folder.

    Raises:
        InputError: The store is not complete, the folder is not empty, Pyserini cannot read back an
            id, or FAISS is not installed.
    """
    write_index_folder(Path(folder), _pieces(_opened(store)))
    return Path(folder)


def write_index_folder(folder: Path, pieces: Iterable[Piece]) -> None:
    """Write a flat inner-product index by FAISS, ``index``, and its ids, ``docid``.

    Args:
        folder: A new folder.
        pieces: Parts of the corpus, at least one.

    Raises:
        InputError: FAISS is not installed, the folder is not empty, or Pyserini cannot read back an
            id.
    """
    faiss = import_faiss()
    index = None
    with (
        _appearing(folder) as draft,
        (draft / "docid").open("w", encoding="utf-8", newline="\n") as file,
    ):
        for ids, vectors in pieces:
            if index is None:
                index = faiss.IndexFlatIP(vectors.shape[1])
            index.add(np.ascontiguousarray(vectors, dtype=np.float32))
            for id in ids:
                _check_id(id)
                file.write(f"{id}\n")
        faiss.write_index(index, str(draft / "index"))


def write_encoded_queries(
    model: COCODR,
    queries: Mapping[str, str],
    folder: str | Path,
    batch_size: int = 64,
) -> Path:
    """Encode queries for Pyserini's ``QueryEncoder(folder)``, which finds vectors by their texts.

    The file ``embedding.pkl`` is a pickle because Pyserini reads nothing else. Give it only to
    people who trust you, and load none that you do not trust.

    Args:
        model: The encoder that made the index.
        queries: Query id to text.
        folder: A new folder; its file holds a DataFrame with the columns id, text and embedding.
        batch_size: Queries encoded at a time.

    Returns:
        The folder.

    Raises:
        InputError: There are no queries, a query has no finite vector, or the folder is not empty.
    """
    if not queries:
        raise InputError("there are no queries to encode; pass at least one")
    texts = list(queries.values())
    vectors = np.asarray(model.query_vectors(texts, batch_size))
    wrong = non_finite_rows(vectors)
    if len(wrong):
        query = list(queries)[wrong[0]]
        raise InputError(f"query {query!r} has a NaN or infinite embedding; check its text")
    # Columns of objects, as pandas 2 cannot read the text columns of pandas 3.
    frame = pd.DataFrame(
        {
            "id": pd.Series(list(queries), dtype=object),
            "text": pd.Series(texts, dtype=object),
            "embedding": pd.Series(list(vectors), dtype=object),
        }
    )
    frame.columns = frame.columns.astype(object)
    with _appearing(Path(folder)) as draft:
        frame.to_pickle(draft / _QUERIES_FILE, protocol=_PICKLE_PROTOCOL)
    return Path(folder)


def _opened(store: EmbeddingStore | str | Path) -> EmbeddingStore:
    if isinstance(store, EmbeddingStore):
        return store
    return EmbeddingStore.open(store)


def _pieces(store: EmbeddingStore) -> Iterator[Piece]:
    """Yield the ids and vectors of a store, shard by shard."""
    for shard, vectors in zip(store.shards, store.chunks(), strict=True):
        ids = store.ids(np.arange(shard.start, shard.stop))
        yield ids, _as_encoded(store, vectors)


def _as_encoded(store: EmbeddingStore, vectors: torch.Tensor) -> Floats:
    """Return (n, w) vectors of a store as the model made them, before MRL's vectors were folded."""
    if store.folding is None:
        return np.asarray(vectors)
    wide = vectors.double().numpy() + store.folding.document_mean
    wide[:, 0] -= wide[:, 1:] @ store.folding.query_mean
    return np.asarray(wide, np.float32)


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Yield a draft of a folder, which appears when the block ends without an exception."""
    with (
        explained(f"{folder} cannot be written", "choose another folder", OSError),
        draft_folder(folder) as draft,
    ):
        yield draft


def _check_id(id: str) -> None:
    """Check that Pyserini reads an id back; it drops white space at the end of a line."""
    if id != id.rstrip() or "\n" in id or "\r" in id:
        raise InputError(
            f"Pyserini would read the document id {id!r} without its white space or line break; "
            "rename it"
        )


def run(arguments: Sequence[str]) -> None:
    """Run a module of Pyserini as ``python -m pyserini.MODULE`` does, with a Java that fits.

    - ``--encoder beir-cocodr:MODEL`` names any encoder of this package, with its own lengths and
      prompts, for searching and in ``encode``.
    - ``--index STORE`` names a store, from which an index is written to the cache. The encoder is
      the store's if neither ``--encoder`` nor ``--encoded-queries`` is there.

    Args:
        arguments: The module's name, such as ``search.faiss``, and its arguments.

    Raises:
        InputError: Something cannot be loaded or read, or the module stops at its input.
    """
    module = arguments[0]
    words: list[str] = []
    for word in arguments[1:]:
        words += _split_option(word)
    put_java_first()
    _add_encoders()
    if not _is_module(f"pyserini.{module}"):
        raise InputError(
            f"Pyserini has no module {module!r} to run; try search.faiss or search.lucene"
        )
    words = _with_dimension(module, _with_index(words))
    before = sys.argv
    sys.argv = [module, *words]
    try:
        runpy.run_module(f"pyserini.{module}", run_name="__main__", alter_sys=True)
    except InputError:
        raise
    except (ValueError, OSError) as error:
        raise InputError(
            f"pyserini {module}: {first_line(error)}; see pyserini {module} --help for its options"
        ) from error
    finally:
        sys.argv = before


def _split_option(word: str) -> list[str]:
    """Return ``--option=value`` as two words, for the options that are read here."""
    name, equals, value = word.partition("=")
    if equals and name in (_INDEX, *_ENCODER_OPTIONS):
        return [name, value]
    return [word]


def _check_encodes(name: str | Path) -> None:
    """Check that a name is that of an encoder, or of a folder.

    Raises:
        InputError: It is that of a search, such as ``feedback:M`` or ``bm25``.
    """
    spec = ModelSpec.parse(str(name))
    if spec.kind == DENSE or Path(name).is_dir():
        return
    way_out = f"name {spec.encoder} alone, or " if spec.kind in FUSIONS else ""
    raise InputError(
        f"{spec.name} is a search and no encoder, and Pyserini's FAISS searches with one vector of "
        f"a query: {way_out}search with beir-cocodr evaluate, whose runs eval.trec_eval reads"
    )


def _add_encoders() -> None:
    """Add the encoders of this package to Pyserini's tables of encoders."""
    pyserini = import_pyserini("pyserini.encode")
    _put_first(pyserini.query_encoder_class_map, _query_encoder)
    _put_first(pyserini.document_encoder_class_map, _document_encoder)


def _put_first(encoders: dict[str, Any], encoder: Any) -> None:
    """Put an encoder of this package into a table of Pyserini's.

    The first key that occurs in the name of an encoder decides: ours comes before those that may
    occur in a path.
    """
    others = {keyword: kind for keyword, kind in encoders.items() if keyword != ENCODER}
    encoders.clear()
    encoders[ENCODER] = encoder
    encoders.update(others)


def _with_index(words: list[str]) -> list[str]:
    """Return the arguments of a module with an index in the place of a store."""
    if _INDEX not in words[:-1]:
        return words
    position = words.index(_INDEX) + 1
    index = Path(words[position])
    if index.suffix == ".json" and index.is_file():
        raise InputError(
            f"--index {index} is a file, and prebuilt indexes are not read any more; name a store "
            "or the folder of an index"
        )
    if not (index / STORE_FILE).is_file():
        if ModelSpec.parse(words[position]).kind in FUSIONS:
            _check_encodes(words[position])
        return words
    changed = list(words)
    if not set(_ENCODER_OPTIONS) & set(words):
        changed += [_ENCODER, f"{ENCODER}{index}"]
    changed[position] = str(_index_of(index))
    return changed


def _with_dimension(module: str, words: list[str]) -> list[str]:
    """Return the arguments of ``encode`` with the width of one of our encoders.

    Raises:
        InputError: The module would encode queries with it.
    """
    position = words.index(_ENCODER) + 1 if _ENCODER in words[:-1] else 0
    if not words or not words[position].startswith(ENCODER):
        return words
    if module == "encode.query":
        raise InputError(
            "pyserini encode.query knows only Pyserini's own encoders; call "
            "beir_cocodr.plugins.pyserini.write_encoded_queries, or search with --encoder"
        )
    if module != "encode" or _DIMENSION in words:
        return words
    model = words[position].removeprefix(ENCODER)
    width = _loaded(model).get_embedding_dimension()
    after = position + 1
    return [*words[:after], _DIMENSION, str(width), *words[after:]]


def _is_module(name: str) -> bool:
    """Return true if ``python -m`` can run a module."""
    try:
        spec = find_spec(name)
        if spec is None:
            return False
        is_package = bool(spec.submodule_search_locations)
        return not is_package or find_spec(f"{name}.__main__") is not None
    except (ImportError, ValueError):
        return False


def _query_encoder(
    encoder_dir: str,
    device: str | None = None,
    **others: object,
) -> Any:
    """Return the query encoder of a name after ``--encoder``; Pyserini calls it.

    Args:
        encoder_dir: The name, with its prefix.
        device: Device of the model.
        **others: Options of Pyserini's own kinds of encoders, ignored.
    """
    name = encoder_dir.removeprefix(ENCODER)
    if (Path(name) / STORE_FILE).is_file():
        return CocoDRQueryEncoder.from_store(name, device=device)
    return CocoDRQueryEncoder(name, encoder=EncoderOptions(device=device))


class CocoDRDocumentEncoder:
    """A document encoder for ``pyserini.encode``: any encoder of this package, MRL included.

    Args:
        model: A loaded encoder.
        batch_size: Documents encoded at a time.
    """

    def __init__(self, model: COCODR, batch_size: int = 64) -> None:
        """Take the encoder."""
        self.model = model
        self.batch_size = batch_size

    def encode(
        self,
        texts: Sequence[str],
        titles: Sequence[str | None] | None = None,
        **others: object,
    ) -> Floats:
        """Return the (N, w) float32 vectors of documents, of unit length if compared by cosine.

        Args:
            texts: (N,) texts.
            titles: (N,) titles, if ``--fields`` names them.
            **others: Options of Pyserini's own encoders, ignored: lengths are the model's own.
        """
        known_titles = titles or [""] * len(texts)
        corpus = [
            {"title": title or "", "text": text or ""}
            for title, text in zip(known_titles, texts, strict=True)
        ]
        encoded = self.model.encode_corpus(
            corpus,
            batch_size=self.batch_size,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        vectors: torch.Tensor = encoded.float().cpu()
        if self.model.similarity_fn_name == "cosine":
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return np.asarray(vectors)


@cache
def _loaded(name: str) -> COCODR:
    """Return the encoder of a name, which ``encode`` needs twice."""
    _check_encodes(name)
    return load_encoder(name)


def _document_encoder(
    model_name: str,
    device: str | None = None,
    **others: object,
) -> CocoDRDocumentEncoder:
    """Return the document encoder of a name after ``--encoder``; Pyserini calls it.

    Args:
        model_name: The name, with its prefix.
        device: Device of the model.
        **others: Options of Pyserini's own kinds of encoders, ignored.
    """
    model = _loaded(model_name.removeprefix(ENCODER))
    return CocoDRDocumentEncoder(model if device is None else model.to(device))


def _index_of(store: Path) -> Path:
    """Return the index of a store, which is written to the cache the first time."""
    opened = EmbeddingStore.open(store)
    folder = cache_folder("pyserini") / text_sha256(opened.record.key)[:32]
    if not folder.exists():
        log.info("writing the index of %s to %s, which may be deleted at any time", store, folder)
        write_index(opened, folder)
    return folder
