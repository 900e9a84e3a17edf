"""A corpus and a model that answer typed queries: what a person searches with, by hand or on a
page.
"""

import copy
import tempfile
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from beir_cocodr.data.analyzers import SEARCHED, Analyzer, snippet
from beir_cocodr.data.collection import Collection, Dataset, load_collection
from beir_cocodr.data.file_folder import ABOVE, TextFiles
from beir_cocodr.data.memory import MemorySource
from beir_cocodr.errors import InputError, check_count
from beir_cocodr.io import cache_folder, text_sha256
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Parts
from beir_cocodr.retrieval.resolve import Model, resolve_model
from beir_cocodr.retrieval.resources import Resources


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Args:
        rank: from 1.
        id, title, text: of the document; of a folder of files, a passage and the title of its file.
        score: the model's.
        snippet: the part of the text that says most about the query, in one line.
        matches: ranges in the snippet, first character and the one after the last, of words that
            match the query.
        words: all that match in title and text, as they stand there, each once.
        file: where the document stands in a folder of files; None elsewhere.
        section: its heading there, if it has one.
        dense, lexical: what the encoder's and BM25's part add to the score, where the model has
            them; their sum is the score but for rounding.
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
        """The file where there is one, else the id."""
        return self.id if self.file is None else self.file

    def to_json(self) -> Json:
        return asdict(self)


class Searcher:
    """Searches a corpus with a model, which both stay loaded.

    Args:
        dataset: as for :func:`~beir_cocodr.data.collection.load_collection`; needs neither queries
            nor labels.
        model: any model name, such as bm25, minilm, hybrid:minilm or the folder of a trained model.
        options: see :class:`~beir_cocodr.models.spec.SearchOptions`; its analyzer also finds the
            words that match.
        snippet_length: characters of a snippet, about.

    Attributes:
        documents: the corpus.
        kept: the folder where its embeddings are kept from run to run.

    Raises:
        InputError: the collection or the model cannot be found or read, or a store is not the
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
        check_count("snippet_length", snippet_length)
        spec = resolve_model(model, argument="model")
        check_device(options.encoder.device, [spec])
        collection = load_collection(dataset, labels="none")
        self.dataset = collection.name
        self.model = spec.name
        self.options = options
        self.snippet_length = snippet_length
        self.analyzer = Analyzer(options.analyzer)
        self.documents = collection.documents
        self._files = collection.source if isinstance(collection.source, TextFiles) else None
        self.kept = self._kept_folder(collection)
        place = tempfile.TemporaryDirectory(prefix="beir-cocodr-", ignore_cleanup_errors=True)
        self._resources = Resources(self.documents, Path(place.name), options, self.kept)
        weakref.finalize(self._resources, place.cleanup)  # searchers beside this one share them
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
        return cache_folder("embeddings") / text_sha256(corpus_name, repr(reading))[:32]

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
        other.model = spec.name
        self._resources.watcher = watcher
        try:
            other._ranker = self._resources.ranker(spec)
        finally:
            self._resources.watcher = None
        return other

    def prepare(self) -> None:
        """Make what searching needs, an index or embeddings; the first search does it, too."""
        self._ranker.prepare()

    def search(self, query: str, top_k: int = 10) -> list[Hit]:
        """The best documents for a query, best first; of BM25 those that share a term with it.

        Raises:
            InputError: an empty query, or ``top_k`` below 1.
        """
        return self.search_all({"query": query}, top_k)["query"]

    def search_all(self, queries: Mapping[str, str], top_k: int = 10) -> dict[str, list[Hit]]:
        """Query ids to what is found for their texts."""
        check_count("top_k", top_k)
        for id, text in queries.items():
            if not text.strip():
                raise InputError(f"query {id!r} is empty; give it words")
        ranking = self._ranker.search(dict(queries), top_k)
        found = zip(queries, queries.values(), ranking.rows, ranking.scores, strict=True)
        return {
            id: self._hits(text, rows[rows >= 0], scores[rows >= 0])
            for id, text, rows, scores in found
        }

    def full_text(self, id: str) -> str:
        """The text of a document; of a passage of a file, or of a record of a table, the texts of
        all its passages.
        """
        if id not in self.documents:
            raise InputError(f"{self.dataset} has no document {id!r}; give the id of a hit")
        if self._files is None or not self._files.corpus.is_dir() or self.file_of(id) is None:
            return self.documents[id]["text"]
        place = self._files.begins(id)  # they stand side by side
        row = int(self.documents.rows([id])[0])
        first, last = row, row
        while first and self.documents.ids([first - 1])[0].startswith(place):
            first -= 1
        while last + 1 < len(self.documents) and self.documents.ids([last + 1])[0].startswith(
            place
        ):
            last += 1
        return "\n\n".join(
            document["text"] for document in self.documents.take(np.arange(first, last + 1))
        )

    def file_of(self, id: str) -> str | None:
        """The file that a document is of, as its path in the folder; None where the corpus is no
        files.
        """
        return None if self._files is None else self._files.file_of(id)

    def _hits(self, query: str, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        if not len(rows):
            return []
        parts = getattr(self._ranker, "parts", None)
        dense, lexical = Parts() if parts is None else parts(query, rows, scores)
        terms = frozenset(self.analyzer(query))
        hits = []
        for place, document in enumerate(self.documents.take(rows)):
            title, text = document["title"], document["text"]
            shown = snippet(text or title, query, self.analyzer, self.snippet_length)
            whole = f"{title}\n{text}"[:SEARCHED]
            words = dict.fromkeys(
                whole[start:end].lower() for start, end, _ in self.analyzer.matches(whole, terms)
            )
            heading, _, section = (
                title.partition(ABOVE) if self._files is not None else (title, "", "")
            )
            hits.append(
                Hit(
                    rank=place + 1,
                    id=document["_id"],
                    score=float(scores[place]),
                    title=heading,
                    text=text,
                    snippet=shown.text,
                    matches=shown.matches,
                    words=tuple(words),
                    file=self.file_of(document["_id"]),
                    section=section or None,
                    dense=None if dense is None else float(dense[place]),
                    lexical=None if lexical is None else float(lexical[place]),
                )
            )
        return hits
