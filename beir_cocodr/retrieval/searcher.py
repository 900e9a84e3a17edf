"""A corpus and a model that answer typed queries, for a person or a page."""

import copy
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from beir_cocodr.cache import note_corpus
from beir_cocodr.data.analyzers import SEARCHED, Analyzer, snippet
from beir_cocodr.data.collection import Collection, Dataset, load_collection
from beir_cocodr.data.files.file_folder import ABOVE, TextFiles
from beir_cocodr.data.memory import MemorySource
from beir_cocodr.errors import (
    InputError,
    check_characters,
    check_integer,
    check_options_type,
    check_type,
    kind_of,
    quoted,
)
from beir_cocodr.io import cache_folder, text_sha256
from beir_cocodr.models.spec import BM25, SearchOptions, check_device
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Parts
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.temporary import TemporaryFolder

if TYPE_CHECKING:
    from beir_cocodr.retrieval.vectors.corpus_encoder import EncodingClock
    from beir_cocodr.retrieval.vectors.dense import Dense

#: Depth of the first ranking from which documents are kept.
_FIRST_DEPTH = 100


@dataclass(frozen=True)
class Hit:
    """A document of an answer.

    Attributes:
        rank: from 1.
        id, title, text: of the document; in a folder of files, of a passage and its file's title.
        score: the model's score.
        snippet: the part of the text that is closest to the query, in one line.
        matches: ranges in the snippet of words that match the query, each from its first character
            to the one after the last.
        words: the matching words of title and text as they are written there, each once.
        file: the file of the document in a folder of files; None elsewhere.
        section: its heading in the file, if it has one.
        dense, lexical: the parts of the score that the encoder and BM25 add, where the model has
            them; they sum up to the score, except for rounding.
    """

    rank: int
    id: str
    score: float
    title: str
    text: str
    snippet: str
    matches: tuple[tuple[int, int], ...]
    words: tuple[str, ...]
    file: str | None = None
    section: str | None = None
    dense: float | None = None
    lexical: float | None = None

    @property
    def place(self) -> str:
        """Return the file if there is one, else the id."""
        return self.id if self.file is None else self.file

    def to_json(self) -> Json:
        """Return the fields as plain JSON."""
        return asdict(self)


class Searcher:
    """Searches a corpus with a model; both stay loaded.

    Args:
        dataset: as for :func:`~beir_cocodr.data.collection.load_collection`; it needs neither
            queries nor labels.
        model: a name such as bm25, minilm, hybrid:minilm or the folder of a trained model, a loaded
            ``SentenceTransformer``, or any object with ``encode`` or with ``search``.
        options: see :class:`~beir_cocodr.models.spec.SearchOptions`; its analyzer also finds the
            words that match.
        snippet_length: characters of a snippet, approximately.

    Attributes:
        documents: the corpus.
        source: where the corpus was read from; None for a collection that a program made.
        kept: the folder where indexes of hosted models are kept from run to run.

    Raises:
        InputError: If the collection or the model cannot be found or read, or a store is not the
            model's.

    Example:
        >>> from beir_cocodr import Searcher
        >>> searcher = Searcher("apidocs/numpy", "bm25")
        >>> for hit in searcher.search("return a sorted copy of an array", top_k=3):
        ...     line = f"{hit.rank} {hit.score:.2f} {hit.id} {hit.snippet}"
        >>> "sorted" in searcher.search("a sorted copy")[0].words
        True
    """

    def __init__(
        self,
        dataset: Dataset,
        model: Model = "bm25",
        options: SearchOptions = SearchOptions(),
        snippet_length: int = 240,
    ) -> None:
        """Load the corpus, and the encoder of the model if it has one."""
        check_integer("snippet_length", snippet_length)
        check_options_type(options, SearchOptions)
        spec = resolve_model(model, argument="model")
        check_device(options.encoder.device, [spec])
        collection = load_collection(dataset, labels="none")
        self._dataset = dataset
        self._spec = spec
        self.dataset = collection.name
        self.source = collection.source
        self.model = spec.name
        self.options = options
        self.snippet_length = snippet_length
        self.documents = collection.documents
        self._files: TextFiles | None = None
        if isinstance(collection.source, TextFiles):
            self._files = collection.source
        self.kept = self._kept_folder(collection)
        work = TemporaryFolder()
        self._resources = Resources(self.documents, work.path, options, self.kept)
        self.analyzer = Analyzer(self._resources.analyzer)
        # Searchers beside this one share the resources, and may outlive it.
        weakref.finalize(self._resources, work.remove)
        self._ranker = self._resources.ranker(spec)
        self._resources.check_stores_used()

    def _kept_folder(self, collection: Collection) -> Path:
        """Return the folder of the corpus in the cache."""
        if collection.source is None or isinstance(collection.source, MemorySource):
            corpus_name = collection.documents.content_hash
        else:
            # As seen from here: elsewhere the same name may be another corpus.
            file = Path(collection.source.documents_file)
            corpus_name = str(file.resolve()) if file.exists() else str(file)
        reading = self._files and self._files.reading
        key = text_sha256(corpus_name, repr(reading))
        folder = cache_folder("embeddings") / key[:32]
        if folder.exists():
            note_corpus(folder, collection.documents.name)
        return folder

    def beside(self, model: Model, watcher: Callable[[int], object] | None = None) -> "Searcher":
        """Return a searcher with another model over the same corpus.

        The two share BM25, encoders and embeddings.

        Args:
            model: as for :class:`Searcher`.
            watcher: called with the number of documents after each batch that is encoded now; what
                it raises ends the encoding.
        """
        spec = resolve_model(model, argument="model")
        check_device(self.options.encoder.device, [spec])
        other = copy.copy(self)
        other._spec = spec
        other.model = spec.name
        self._resources.watcher = watcher
        try:
            other._ranker = self._resources.ranker(spec)
        finally:
            self._resources.watcher = None
        return other

    def renewed(self) -> "Searcher":
        """Return a searcher over the corpus as its files are now; encoders stay loaded."""
        renewed = Searcher(self._dataset, BM25, self.options, self.snippet_length)
        renewed._resources.encoders = self._resources.encoders
        return renewed if self._spec.kind == BM25 else renewed.beside(self._spec)

    def seconds_left(self) -> float | None:
        """Return the seconds that encoding the corpus still takes, None where that is unknown."""
        clock = self._clock
        return None if clock is None else clock.seconds_left()

    def texts_to_encode(self) -> int | None:
        """Return the texts that this process encodes, None before it begins."""
        clock = self._clock
        return None if clock is None else clock.documents

    @property
    def _clock(self) -> "EncodingClock | None":
        dense = getattr(self._ranker, "dense", self._ranker)
        return getattr(dense, "clock", None)

    @property
    def dense(self) -> "Dense | None":
        """Return the search by document vectors that the model has; None for one without."""
        dense: Any = getattr(self._ranker, "dense", self._ranker)
        return dense if hasattr(dense, "search_embeddings") else None

    def prepare(self) -> None:
        """Make the index or the embeddings that searching needs; else the first search does it."""
        self._ranker.prepare()

    def search(self, query: str, top_k: int = 10) -> list[Hit]:
        """Return the best documents for a query, best first.

        Args:
            query: a text.
            top_k: documents to return; BM25 returns only those that share a term with the query.

        Raises:
            InputError: If the query is not text or is empty, or ``top_k`` is not an integer of at
                least 1.
        """
        return self.search_all({"query": query}, top_k)["query"]

    def search_within(
        self,
        query: str,
        keeps: Callable[[str], bool],
        top_k: int = 10,
    ) -> list[Hit]:
        """Return the best documents among those whose ids are kept, best first.

        The ranking is made deeper until it has enough of them, or ends.

        Args:
            query: a text.
            keeps: returns whether a document may be among the results, by its id.
            top_k: documents to return.

        Raises:
            InputError: If the query is not text or is empty, or ``top_k`` is not an integer of at
                least 1.
        """
        _check_queries({"query": query}, top_k)
        if not callable(keeps):
            raise InputError(f"keeps is {kind_of(keeps)}; give a function of an id")
        depth = max(_FIRST_DEPTH, top_k)
        while True:
            ranking = self._ranker.search({"query": query}, min(depth, len(self.documents)))
            [rows] = ranking.rows
            [scores] = ranking.scores
            ranked = np.flatnonzero(rows >= 0)
            ids = self.documents.ids(rows[ranked])
            kept = [column for column, id in zip(ranked, ids, strict=True) if keeps(id)]
            kept = kept[:top_k]
            is_whole = len(ranked) < depth
            if len(kept) == top_k or is_whole:
                return self._hits(query, rows[kept], scores[kept])
            depth *= 10

    def search_all(self, queries: Mapping[str, str], top_k: int = 10) -> dict[str, list[Hit]]:
        """Return query id to the best documents for its text, see :meth:`search`."""
        _check_queries(queries, top_k)
        ranking = self._ranker.search(dict(queries), top_k)
        answers = {}
        ranked = zip(queries.items(), ranking.rows, ranking.scores, strict=True)
        for (id, text), rows, scores in ranked:
            is_result = rows >= 0
            answers[id] = self._hits(text, rows[is_result], scores[is_result])
        return answers

    def full_text(self, id: str) -> str:
        """Return the text of a document.

        For a passage of a file, or of a record of a table, these are the texts of all its passages.

        Raises:
            InputError: If there is no such document.
        """
        self._check_id(id)
        is_of_folder = self._files is not None and self._files.corpus.is_dir()
        if self._files is None or not is_of_folder or self.file_of(id) is None:
            return self.documents[id]["text"]
        beginning = self._files.begins(id)
        passages = self.documents.take(self._rows_beside(id, beginning))
        return "\n\n".join(passage["text"] for passage in passages)

    def _check_id(self, id: str) -> None:
        if not isinstance(id, str) or id not in self.documents:
            raise InputError(f"{self.dataset} has no document {quoted(id)}; give the id of a hit")

    def _rows_beside(self, id: str, beginning: str) -> np.ndarray:
        """Return the rows of all documents whose ids begin alike, which follow each other."""
        row = int(self.documents.rows([id])[0])
        first = row
        while first and self._id(first - 1).startswith(beginning):
            first -= 1
        end = row + 1
        while end < len(self.documents) and self._id(end).startswith(beginning):
            end += 1
        return np.arange(first, end)

    def _id(self, row: int) -> str:
        return self.documents.ids([row])[0]

    def file_of(self, id: str) -> str | None:
        """Return the file of a document, as its path in the folder; None for other corpora."""
        return None if self._files is None else self._files.file_of(id)

    def path_of(self, id: str) -> Path | None:
        """Return the file of a document on the disk; None for other corpora.

        Raises:
            InputError: If there is no such document, its file is gone, or the file lies outside
                the folder.
        """
        self._check_id(id)
        file = self.file_of(id)
        if self._files is None or file is None:
            return None
        corpus = self._files.corpus.resolve()
        if corpus.is_file():
            return corpus
        path = (corpus / file).resolve()
        if not path.is_relative_to(corpus):
            raise InputError(f"{file} leads out of {self.dataset} and is not opened")
        if not path.is_file():
            raise InputError(f"{path} is no longer a file; start again to search what is there now")
        return path

    def _hits(
        self,
        query: str,
        rows: np.ndarray,
        scores: np.ndarray,
    ) -> list[Hit]:
        if not len(rows):
            return []
        parts = getattr(self._ranker, "parts", None)
        dense, lexical = Parts() if parts is None else parts(query, rows, scores)
        terms = frozenset(self.analyzer(query))
        hits = []
        for i, document in enumerate(self.documents.take(rows)):
            hit = replace(
                self._hit(document, query, terms),
                rank=i + 1,
                score=float(scores[i]),
            )
            if dense is not None:
                hit = replace(hit, dense=float(dense[i]))
            if lexical is not None:
                hit = replace(hit, lexical=float(lexical[i]))
            hits.append(hit)
        return hits

    def _hit(
        self,
        document: Mapping[str, str],
        query: str,
        terms: frozenset[str],
    ) -> Hit:
        """Return a document, not ranked yet, with the words that match the terms of a query."""
        title = document["title"]
        text = document["text"]
        excerpt = snippet(text or title, query, self.analyzer, self.snippet_length)
        searched = f"{title}\n{text}"[:SEARCHED]
        words: dict[str, None] = {}
        for start, end, _ in self.analyzer.matches(searched, terms):
            word = searched[start:end]
            words[word.lower()] = None
        section = ""
        if self._files is not None:
            title, _, section = title.partition(ABOVE)
        return Hit(
            rank=0,
            id=document["_id"],
            score=0.0,
            title=title,
            text=text,
            snippet=excerpt.text,
            matches=excerpt.matches,
            words=tuple(words),
            file=self.file_of(document["_id"]),
            section=section or None,
        )


def _check_queries(queries: Mapping[str, str], top_k: int) -> None:
    check_integer("top_k", top_k)
    check_type("queries", queries, Mapping, "a mapping of ids to texts")
    for id, text in queries.items():
        if not isinstance(text, str):
            raise InputError(f"query {id!r} is {kind_of(text)}; give a text")
        if not text.strip():
            raise InputError(f"query {id!r} is empty; give it words")
        check_characters(f"query id {id!r}", str(id))
        check_characters(f"query {id!r}", text)
