"""Pyserini: indexes and encoded queries in its formats, its query encoder, its Lucene, its command
lines.

Writing needs neither Pyserini nor Java. Searching needs both, and Java comes from
:func:`~beir_cocodr.plugins.lucene.start_java`::

    from .pyserini import CocoDRQueryEncoder, start_java, write_index

    write_index("STORE", "INDEX")
    start_java()
    from pyserini.search.faiss import FaissSearcher

    hits = FaissSearcher("INDEX", CocoDRQueryEncoder("MODEL")).search("a query", k=10)
"""

import json
import logging
import runpy
import shutil
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch

from beir_cocodr.arrays import Floats, non_finite_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, explained, first_line
from beir_cocodr.evaluation.store_run import query_encoder
from beir_cocodr.io import cache_folder, draft_folder, parse_json, text_sha256, write_text
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.corpus_encoder import CorpusEncoder
from beir_cocodr.retrieval.faiss.build import import_faiss
from beir_cocodr.retrieval.store.record import STORE_FILE
from beir_cocodr.retrieval.store.store import EmbeddingStore

from .lucene import import_pyserini

log = logging.getLogger(__name__)

#: Ids and their (n, w) float32 vectors.
Piece = tuple[list[str], Floats]


def write_index_folder(folder: Path, pieces: Iterable[Piece]) -> None:
    """Write a flat inner-product index by FAISS, ``index``, and ``docid``, an id a line in its
    order, of pieces of the corpus, at least one. An InputError where FAISS is not installed,
    ``folder`` is not empty, or an id cannot be there.
    """
    faiss = import_faiss()
    index = None
    with (
        appearing(folder) as draft,
        (draft / "docid").open("w", encoding="utf-8", newline="\n") as file,
    ):
        for ids, vectors in pieces:
            index = faiss.IndexFlatIP(vectors.shape[1]) if index is None else index
            index.add(np.ascontiguousarray(vectors, dtype=np.float32))
            file.writelines(f"{_line(id)}\n" for id in ids)
        faiss.write_index(index, str(draft / "index"))


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A draft of ``folder``; ``InputError`` where there is something in that already, or it cannot
    be made.
    """
    with (
        explained(f"{folder} cannot be written", "choose another folder", OSError),
        draft_folder(folder) as draft,
    ):
        yield draft


def _line(id: str) -> str:
    """An id as Pyserini reads it back: to the end of its line, less the white space there."""
    if id != id.rstrip() or "\n" in id or "\r" in id:
        raise InputError(
            f"Pyserini would read the document id {id!r} without its white space or line break: rename it"
        )
    return id


__all__ = [
    "CocoDRQueryEncoder",
    "encode_index",
    "register_prebuilt_index",
    "run",
    "start_java",
    "write_encoded_queries",
    "write_index",
    "write_prebuilt_index",
]

_ROWS = 16_384


class CocoDRQueryEncoder:
    """Any encoder of this package, MRL among them, for Pyserini's ``FaissSearcher``.

    Vectors are unit vectors where the model compares by cosine, and what the model gives elsewhere;
    an index by :func:`~beir_cocodr.plugins.pyserini.write_index` answers with the model's own
    scores. An InputError: the model cannot be found, or compares neither by cosine nor by dot
    product.

    Args:
        model: a loaded encoder, or what one is loaded by: a folder, a hub name, ``minilm``.
        batch_size: queries encoded at a time.
        encoder: how the model is loaded where it is loaded here.
    """

    def __init__(
        self,
        model: COCODR | str | Path,
        batch_size: int = 64,
        encoder: EncoderOptions = EncoderOptions(),
    ) -> None:
        self.model = model if isinstance(model, COCODR) else load_encoder(model, encoder)
        self.batch_size = batch_size

    @classmethod
    def from_store(
        cls,
        store: EmbeddingStore | str | Path,
        model: str | None = None,
        device: str | None = None,
        batch_size: int = 64,
    ) -> Self:
        """The encoder that made a complete store, with the store's own lengths and prompts; an
        InputError where it cannot be found or is another. ``model`` is where it is now, by default
        where it was then.
        """
        opened = store if isinstance(store, EmbeddingStore) else EmbeddingStore.open(store)
        return cls(query_encoder(opened, model, device), batch_size)

    def encode(self, query: str) -> Floats:
        """A text to its (w,) vector."""
        vector: Floats = self.encode_batch([query])[0]
        return vector

    def encode_batch(self, queries: Sequence[str]) -> Floats:
        """(Q,) texts to (Q, w); ``batch_search`` calls it."""
        return np.asarray(self.model.query_vectors(queries, self.batch_size))


def start_java() -> None:
    """Start Java with Lucene in it, once, and import what Pyserini's searchers need of it; to be
    called before ``pyserini.search`` is imported. An InputError where there is no Java or no
    Pyserini.
    """
    import_pyserini("pyserini.encode")


def write_index(store: EmbeddingStore | str | Path, folder: str | Path) -> Path:
    """Write the vectors of a store as an index for Pyserini's ``FaissSearcher``. An InputError: no
    complete store, something in ``folder``, an id that Pyserini cannot read back, or no FAISS.

    The vectors are those that the model gave, in float32 and unit vectors where it compares by
    cosine, whatever the precision of the store: queries by :class:`CocoDRQueryEncoder` have the
    scores of ``search``. Memory holds the whole index, N × w × 4 bytes, as it does when Pyserini
    loads it.

    Args:
        store: complete, or its folder.
        folder: to be made; holds ``index``, flat, by inner product, and ``docid``.
    """
    opened = store if isinstance(store, EmbeddingStore) else EmbeddingStore.open(store)
    pieces = (
        (opened.ids(np.arange(shard.start, shard.stop)), _as_encoded(opened, chunk))
        for shard, chunk in zip(opened.shards, opened.chunks(), strict=True)
    )
    write_index_folder(Path(folder), pieces)
    return Path(folder)


def encode_index(
    model: COCODR, documents: Documents, folder: str | Path, token_budget: int | None = None
) -> Path:
    """As :func:`write_index`, with its errors, from a corpus that is encoded now, in batches of so
    many tokens as by :class:`~beir_cocodr.retrieval.corpus_encoder.CorpusEncoder`, which has to
    give every document a finite vector.
    """
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(
            f"an index needs cosine or dot product, the model has {model.similarity_fn_name}"
        )
    encoder = CorpusEncoder(model, documents, token_budget)

    def pieces() -> Iterator[Piece]:
        for start in range(0, len(documents), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(documents)))
            yield documents.ids(rows), encoder.encode(rows)

    write_index_folder(Path(folder), pieces())
    return Path(folder)


def write_encoded_queries(
    model: COCODR, queries: Mapping[str, str], folder: str | Path, batch_size: int = 64
) -> Path:
    """Encode queries for Pyserini's ``QueryEncoder(folder)``, which finds vectors by the text of
    the query. An InputError: no queries, a query without a finite vector, or something in
    ``folder``.

    Args:
        model: the encoder that made the index.
        queries: query id to text, such as :func:`~beir_cocodr.data.collection.load_queries` finds.
        folder: to be made; holds ``embedding.pkl``, a DataFrame with the columns id, text and
            embedding. It is a pickle because Pyserini reads nothing else: give it only to those who
            trust you, and load none that you do not.
        batch_size: queries encoded at a time.
    """
    if not queries:
        raise InputError("there are no queries to encode")
    vectors = np.asarray(model.query_vectors(list(queries.values()), batch_size))
    if len(wrong := non_finite_rows(vectors)):
        raise InputError(
            f"NaN or infinite embedding of query {list(queries)[wrong[0]]!r}: look at its text"
        )
    # Columns of objects: the text columns of pandas 3 cannot be read by pandas 2.
    columns = {"id": list(queries), "text": list(queries.values()), "embedding": list(vectors)}
    frame = pd.DataFrame(
        {name: pd.Series(values, dtype=object) for name, values in columns.items()}
    )
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


#: Before the name of an encoder of this package, or the folder of a store that it made, in
#: ``--encoder``.
ENCODER = "beir-cocodr:"


def run(arguments: Sequence[str]) -> None:
    """Run a module of Pyserini as ``python -m pyserini.MODULE`` does, with a Java that is started
    before.

    - ``--encoder beir-cocodr:MODEL`` is any encoder of this package, with its own lengths and
      prompts.
    - ``--index STORE`` is a store, of which an index is made in the cache; it brings its encoder
      where neither ``--encoder`` nor ``--encoded-queries`` is given.
    - ``--index NAME.json`` is what :func:`write_prebuilt_index` wrote.

    What cannot be found or read, and what the module itself stops at, is an InputError.
    """
    module, words = arguments[0], [part for word in arguments[1:] for part in _parted(word)]
    encoders = import_pyserini("pyserini.encode").query_encoder_class_map
    if not _is_module(f"pyserini.{module}"):
        raise InputError(
            f"Pyserini has no module {module!r} to run; there are such as search.faiss and search.lucene"
        )
    # The first keyword that stands in the name of an encoder decides on its class: ours, before
    # those in its path.
    others = [(keyword, kind) for keyword, kind in encoders.items() if keyword != ENCODER]
    encoders.clear()
    encoders.update([(ENCODER, _encoder), *others])
    at = words.index("--index") + 1 if "--index" in words[:-1] else 0
    index = Path(words[at]) if at else Path()
    if at and (index / STORE_FILE).is_file():
        if not {"--encoder", "--encoded-queries"} & {*words}:
            words += ["--encoder", f"{ENCODER}{index}"]
        words[at] = str(_index_of(index))
    elif at and index.suffix == ".json" and index.is_file():
        words[at] = register_prebuilt_index(index)
    before, sys.argv = sys.argv, [module, *words]
    try:
        runpy.run_module(f"pyserini.{module}", run_name="__main__", alter_sys=True)
    except (ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"pyserini {module}: {first_line(error)}; pyserini {module} --help has its options"
        ) from error
    finally:
        sys.argv = before


def _parted(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    return (
        [name, value]
        if equals and name in ("--index", "--encoder", "--encoded-queries")
        else [word]
    )


def _is_module(name: str) -> bool:
    try:
        spec = find_spec(name)
        return spec is not None and (
            not spec.submodule_search_locations or find_spec(f"{name}.__main__") is not None
        )
    except (ImportError, ValueError):
        return False


def _encoder(encoder_dir: str, device: str | None = None, **others: Any) -> Any:
    """What Pyserini makes a query encoder by; the options of its own kinds of encoders count for
    none of ours.
    """
    name = encoder_dir[len(ENCODER) :]
    if (Path(name) / STORE_FILE).is_file():
        return CocoDRQueryEncoder.from_store(name, device=device)
    return CocoDRQueryEncoder(name, encoder=EncoderOptions(device=device))


def _index_of(store: Path) -> Path:
    """The index of a store, in the cache: made the first time."""
    opened = EmbeddingStore.open(store)
    folder = cache_folder("pyserini") / text_sha256(opened.record.key)[:32]
    if not folder.exists():
        log.info("the index of %s is made in %s, which may be deleted at any time", store, folder)
        write_index(opened, folder)
    return folder


def write_prebuilt_index(
    store: str | Path, folder: str | Path, name: str, url: str | None = None
) -> Path:
    """Pack a complete store as an index that Pyserini downloads, unpacks and verifies by its name,
    as its own prebuilt ones.

    Args:
        folder: to be made; holds ``faiss.NAME.tar.gz``, to be put anywhere, and ``NAME.json``, its
            row in Pyserini's table, for :func:`register_prebuilt_index` and ``search.faiss
            --index``; gives this file.
        url: where the archive is going to be; by default where it is.
    """
    if not name or Path(name).name != name:
        raise InputError(f"an index cannot be named {name!r}: leave out slashes")
    opened, folder = EmbeddingStore.open(store), Path(folder)
    archive = f"faiss.{name}.tar.gz"
    with appearing(folder) as draft:
        inner = write_index(opened, draft / f"faiss.{name}")
        with tarfile.open(draft / archive, "w:gz") as packed:
            packed.add(inner, inner.name)
        shutil.rmtree(inner)
        with (draft / archive).open("rb") as file:
            row = {
                "description": f"{len(opened)} documents by {opened.record.model.name or 'an encoder of beir-cocodr'}",
                "filename": archive,
                "urls": [url or (folder.resolve() / archive).as_uri()],
                "md5": file_digest(file, "md5").hexdigest(),
                "size compressed (bytes)": (draft / archive).stat().st_size,
                **{"documents": len(opened), "downloaded": False, "texts": None},
            }
        write_text(draft / f"{name}.json", json.dumps({name: row}, indent=2) + "\n")
    return folder / f"{name}.json"


def register_prebuilt_index(file: str | Path) -> str:
    """Put an index of :func:`write_prebuilt_index` into Pyserini's table, once; gives its name, for
    ``FaissSearcher.from_prebuilt_index``. An InputError where there is none, or another has its
    name.
    """
    kinds = (OSError, ValueError, AttributeError, AssertionError)
    with explained(f"{file} is no prebuilt index", "write it again", *kinds):
        [(name, row)] = parse_json(Path(file).read_text(encoding="utf-8")).items()
        assert {"urls", "md5", "filename"} <= row.keys()
    table = import_pyserini("pyserini.prebuilt_index_info").FAISS_INDEX_INFO
    if table.get(name, row) != row:
        raise InputError(
            f"{file}: Pyserini has an index {name} already; write it under another name"
        )
    table[name] = row
    return str(name)
