"""BM25 by Lucene, as Pyserini computes it."""

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranking, blocks

from .pyserini_java import import_pyserini, java_class, start_java

# Documents handed to Lucene, and queries searched, at a time.
_DOCUMENTS, _QUERIES = 10_000, 256


class LuceneBM25:
    """A Lucene index over title and text of a corpus, searched by Pyserini's ``LuceneSearcher``.

    Scores are Pyserini's: rounded to four decimals, and of documents that tie those with the greater id lowered by a
    millionth each, so that its order is in the scores: a run equals that of Pyserini.

    Args:
        documents: the corpus; its texts are streamed.
        folder: of the index, to be made; the caller removes it.
        text_format: joins titles and texts; prompts and lengths play no part.
        analyzer: "english" takes out Lucene's stop words and stems by Porter's algorithm, "none" does neither; else an
            InputError.
        k1, b: as in Anserini's BEIR baselines, 0.9 and 0.4.
        threads: of Lucene; all cores by default. They change no score.
    """

    def __init__(
        self,
        documents: Documents,
        folder: Path,
        text_format: TextFormat | None = None,
        analyzer: str = "english",
        k1: float = 0.9,
        b: float = 0.4,
        threads: int | None = None,
    ) -> None:
        if analyzer not in ("english", "none"):
            raise InputError(f"lucene-bm25 reads by english or none, not by {analyzer!r}; bm25 knows other languages")
        self.documents, self.folder, self.text_format = documents, folder, text_format or TextFormat()
        self.analyzer, self.k1, self.b = analyzer, k1, b
        self.threads = threads or os.cpu_count() or 1
        #: Documents without text, which Lucene leaves out and no query finds.
        self.empty = 0
        self._searcher: Any = None

    def prepare(self) -> None:
        """Build the index, once; InputError: no Pyserini or Java, or Lucene did not take all documents."""
        if self._searcher is not None:
            return
        start_java()
        self._build()
        searcher = import_pyserini("pyserini.search.lucene").LuceneSearcher(str(self.folder))
        if searcher.num_docs != len(self.documents) - self.empty:
            raise InputError(
                f"Lucene indexed {searcher.num_docs} of {len(self.documents) - self.empty} documents with "
                f"text in {self.folder}; is the disk full?"
            )
        searcher.set_bm25(self.k1, self.b)
        if self.analyzer == "none":
            analysis = import_pyserini("pyserini.analysis")
            searcher.set_analyzer(analysis.get_lucene_analyzer(stemming=False, stopwords=False))
        # A long query has more terms than the 1,024 that Lucene takes elsewhere.
        java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(2**31 - 1)
        self._searcher = searcher

    def scores(self, query: str) -> np.ndarray:
        """(N,) float32 scores of all documents for one query, 0 where no term is shared."""
        self.prepare()
        found = np.zeros(len(self.documents), np.float32)
        [(rows, scores)] = self._hits([query], len(self.documents))
        found[rows] = scores
        return found

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """The documents that share a term with the query, at most ``top_k`` a query."""
        self.prepare()
        depth = min(top_k, len(self.documents))
        hits = (hit for _, texts in blocks(queries, _QUERIES) for hit in self._hits(texts, depth))
        return Ranking.of_best(queries, hits, self.documents.tie_ranks(), depth)

    def describe(self) -> Json:
        return {
            "model": "BM25 (Lucene)",
            "analyzer": self.analyzer,
            "k1": self.k1,
            "b": self.b,
            "similarity": "bm25",
            "text_format": {"title_separator": self.text_format.title_separator},
            "empty_documents": self.empty,
            "pyserini": version("pyserini"),
        }

    def _build(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        arguments = ["-index", str(self.folder)]
        if self.analyzer == "none":
            arguments += ["-stemmer", "none", "-keepStopwords"]
        indexer = import_pyserini("pyserini.index.lucene").LuceneIndexer(args=arguments, threads=self.threads)
        self.empty = 0
        for chunk in self.documents.chunks(_DOCUMENTS):
            texts = [self.text_format.document(document) for document in chunk]
            self.empty += sum(not text.strip() for text in texts)
            pairs = zip(chunk, texts, strict=True)
            raw = [json.dumps({"id": document["_id"], "contents": text}) for document, text in pairs if text.strip()]
            indexer.add_batch_raw(raw)
        indexer.close()

    def _hits(self, texts: list[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each query the rows of its documents, (n,) int64, and their scores, (n,) float32."""
        names = [str(number) for number in range(len(texts))]
        found = self._searcher.batch_search(texts, names, depth, self.threads)
        return [
            (self.documents.rows(hit.docid for hit in hits), np.array([hit.score for hit in hits], dtype=np.float32))
            for hits in map(found.__getitem__, names)
        ]
