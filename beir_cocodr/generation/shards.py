"""Generated queries from their generator to a BEIR folder: one file a finished shard, cleaned,
selected, written.
"""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from beir_cocodr.arrays import Bools
from beir_cocodr.data.beir_folder import link_beside
from beir_cocodr.data.documents import Documents, hashes_of
from beir_cocodr.data.passages import Passage
from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import atomic_writer, parse_json
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.resources import Resources


class Query(NamedTuple):
    """A query as it was generated, maybe empty, and whether a limit ended it instead of its
    generator.
    """

    text: str
    cut: bool = False


class Generated(NamedTuple):
    """The queries of each of some passages, and what happened on the way, by kind."""

    queries: list[list[Query]]
    counts: dict[str, int]


class Generator(Protocol):
    """What makes queries for passages."""

    def describe(self) -> Json:
        """What the queries depend on beside passages and options: name, kind, hash of weights,
        precision.
        """

    def prepare(self, folder: Path) -> None:
        """Make what generating needs; what is worth keeping for other processes goes to
        ``folder``.
        """

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """The queries of the passages of a shard, the same ones whenever they are asked for."""


#: The folder of shards below an output.
SHARDS = "shards"


class PassageQueries(NamedTuple):
    """A passage by its place, see :class:`Passage`, and the cleaned texts made for it, "" where
    nothing came out.
    """

    row: int
    number: int
    start: int
    end: int
    queries: list[str]


class QueryShards:
    """The shards of a corpus below an output: ``shard_documents`` consecutive documents each, fewer
    in the last.
    """

    def __init__(self, output: Path, documents: int, shard_documents: int) -> None:
        self.folder, self.documents, self.shard_documents = (
            output / SHARDS,
            documents,
            shard_documents,
        )
        self.count = -(-documents // shard_documents)

    def rows(self, shard: int) -> range:
        """The corpus rows of a shard."""
        start = shard * self.shard_documents
        return range(start, min(start + self.shard_documents, self.documents))

    def missing(self) -> list[int]:
        """The shards that are not finished."""
        return [shard for shard in range(self.count) if not self._file(shard).is_file()]

    def describe(self) -> str:
        """How many are finished, for a person."""
        return f"{self.count - len(self.missing())} of {self.count} shards are complete and not generated again"

    def write(
        self,
        shard: int,
        passages: list[Passage],
        queries: list[list[str]],
        counts: dict[str, int],
        seconds: float,
    ) -> None:
        """Write a finished shard in one step."""
        with atomic_writer(self._file(shard)) as file:
            file.write(json.dumps({"counts": counts, "seconds": seconds}) + "\n")
            for passage, texts in zip(passages, queries, strict=True):
                place = PassageQueries(
                    passage.row, passage.number, passage.start, passage.end, texts
                )
                file.write(json.dumps(place, ensure_ascii=False) + "\n")

    def passages(self) -> Iterator[PassageQueries]:
        """Stream the passages of all shards with their queries, in corpus order."""
        for shard in range(self.count):
            for line in islice(self._lines(shard), 1, None):
                yield PassageQueries(*line)

    def totals(self) -> tuple[Counter[str], float]:
        """The counts of all shards, summed, and their seconds."""
        heads = [next(self._lines(shard)) for shard in range(self.count)]
        counts: Counter[str] = Counter()
        for head in heads:
            counts.update(head["counts"])
        return counts, sum(head["seconds"] for head in heads)

    def _lines(self, shard: int) -> Iterator[Any]:
        path = self._file(shard)
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                with explained(
                    f"{path}:{number} is damaged", "delete the file and run again", ValueError
                ):
                    found = parse_json(line)
                yield found

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:06d}.jsonl"


GENERATION_FILE = "generation.json"


@dataclass(frozen=True)
class GeneratedFrom:
    """The corpus that queries were generated from."""

    corpus_sha256: str
    name: str = ""
    documents: int | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationPlan(Record):
    """What makes two generations the same.

    Attributes:
        dataset: the corpus.
        generator: what :meth:`Generator.describe` gives.
        tokenizer_sha256: of what counts the tokens of passages.
        settings: what decides which queries are generated.
        selection: what decides which of them stay; unfinished work goes on under another one.
    """

    dataset: GeneratedFrom
    settings: Json
    generator: Json = field(default_factory=dict)
    tokenizer_sha256: str | None = None
    selection: Json = field(default_factory=dict)

    def identity(self, with_selection: bool) -> Json:
        """Return what makes two generations the same; unfinished ones may differ in selection.

        Names and paths are left out, as they may change while their content stays: hashes are
        there for them.
        """
        return {
            "dataset": {
                "corpus_sha256": self.dataset.corpus_sha256,
                "documents": self.dataset.documents,
            },
            "generator": {k: v for k, v in self.generator.items() if k != "name"},
            "tokenizer_sha256": self.tokenizer_sha256,
            "settings": {k: v for k, v in self.settings.items() if k != "tokenizer"},
            "selection": self.selection if with_selection else None,
        }


@dataclass(frozen=True)
class GenerationRecord(GenerationPlan):
    """The content of generation.json: a plan, and what came of it.

    Attributes:
        counts: passages, queries, and what was left out, by kind.
        seconds: ``generating`` and ``selecting``.
        versions: of the packages that the queries may depend on.
    """

    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def read_generation(folder: Path) -> GenerationRecord:
    """The record of a folder that ``generate-queries`` finished; an InputError where there is
    none.
    """
    path = folder / GENERATION_FILE
    if not path.is_file():
        raise InputError(
            f"{folder} has no {GENERATION_FILE}; make the folder with beir-cocodr generate-queries"
        )
    return GenerationRecord.read(path)


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# No tokenizer's tokens are so long on average; a text that is longer than its tokens allow is a
# defect.
_CHARACTERS_A_TOKEN = 16


def clean_queries(
    queries: Sequence[Sequence[Query]], max_length: int
) -> tuple[list[list[str]], dict[str, int]]:
    """The texts of each passage's queries on one line each, without control characters and
    surrounding space; "" where nothing is left. A text of more than 16 characters a token, of
    ``max_length``, is cut there. Counted are ``generated`` (all), ``empty`` and ``cut`` (by a
    limit, the generator's or this one).
    """
    counts = {"generated": 0, "empty": 0, "cut": 0}
    cleaned: list[list[str]] = []
    for found in queries:
        texts = []
        for query in found:
            text = " ".join(_CONTROL.sub(" ", query.text).split())
            short = text[: _CHARACTERS_A_TOKEN * max_length].rstrip()
            counts["generated"] += 1
            counts["empty"] += not short
            counts["cut"] += bool(short) and (query.cut or short != text)
            texts.append(short)
        cleaned.append(texts)
    return cleaned, counts


_BLOCK = 10_000


class ConsistencyFilter:
    """Keeps a query if its document is among the first r, ``top``, of a retriever (round-trip
    consistency).

    ``documents`` is the corpus that is searched, ``retriever`` a name as for ``evaluate``; an
    InputError where there is none, found out at once, before hours of generating.

    Source: Dai et al., 2022 (Promptagator), section 3.2, with r = 1.
    """

    def __init__(
        self, documents: Documents, retriever: str, top: int, search: SearchOptions
    ) -> None:
        self.documents, self.retriever, self.top, self.search = (
            documents,
            retriever,
            min(top, len(documents)),
            search,
        )
        with self._open(None):
            pass

    def keeps(self, queries: Iterable[tuple[int, str]], folder: Path) -> Iterator[np.ndarray]:
        """For blocks of (row, query), bool (n,): which queries find their row; embeddings go below
        ``folder``.
        """
        stream = iter(queries)
        with self._open(folder) as retriever:
            while block := list(islice(stream, _BLOCK)):
                texts = {str(i): text for i, (_, text) in enumerate(block)}
                rows = np.array([row for row, _ in block])
                yield (retriever.search(texts, self.top).rows == rows[:, None]).any(1)

    @contextmanager
    def _open(self, folder: Path | None) -> Iterator[Ranker]:
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            yield Resources(self.documents, Path(temporary), self.search).ranker(self.retriever)


#: The prefix that BEIR's and GPL's loaders expect of generated files.
QGEN_PREFIX = "qgen"
_CHUNK = 1000


def select_queries(
    shards: QueryShards, dedupe: bool, consistency: ConsistencyFilter | None
) -> tuple[Bools, dict[str, int]]:
    """bool (n,) over all generated queries in corpus order, which of them stay, and how many were
    left out.

    Args:
        shards: all finished.
        dedupe: of equal texts only the first stays (equal by a 64-bit hash: that two of ten million
            texts share one by chance has a probability of three in a million); the count
            ``duplicates``.
        consistency: only queries that it keeps stay; the count ``inconsistent``, 0 where it was not
        asked for.
    """
    kept = np.fromiter((bool(text) for _, text in _texts(shards)), bool)
    counts = {"duplicates": 0, "inconsistent": 0}
    if dedupe:
        first = np.unique(hashes_of(text for _, text in _texts(shards)), return_index=True)[1]
        unique = np.zeros(len(kept), bool)
        unique[first] = True
        counts["duplicates"] = int((kept & ~unique).sum())
        kept &= unique
    if consistency is not None:
        stream = compress(_texts(shards), kept)
        found = np.concatenate([np.zeros(0, bool), *consistency.keeps(stream, shards.folder)])
        counts["inconsistent"] = int((~found).sum())
        kept[np.flatnonzero(kept)] = found
    return kept, counts


def write_queries(
    shards: QueryShards, kept: Bools, documents: Documents, output: Path
) -> dict[str, int]:
    """Write ``queries.jsonl`` and ``qrels/train.tsv``, and both a second time by the names of qgen
    folders; gives the counts ``queries`` and ``passages_without_query``.

    The metadata of a query name its document, the number of the passage in it, and the passage's
    character range in the document's title and text joined.
    """
    queries, qrels = output / "queries.jsonl", output / "qrels" / "train.tsv"
    counts = Counter({"queries": 0, "passages_without_query": 0})
    place = 0
    with ExitStack() as stack:
        to_queries, to_qrels = (
            stack.enter_context(atomic_writer(path)) for path in (queries, qrels)
        )
        to_qrels.write("query-id\tcorpus-id\tscore\n")
        for passage, document in _with_ids(shards, documents):
            left = kept[place : place + len(passage.queries)]
            place += len(passage.queries)
            counts["passages_without_query"] += not left.any()
            metadata = {
                "document": document,
                "number": passage.number,
                "start": passage.start,
                "end": passage.end,
            }
            for number in np.flatnonzero(left).tolist():
                id = f"genQ{passage.row}-{passage.number}-{number}"
                query = {"_id": id, "text": passage.queries[number], "metadata": metadata}
                to_queries.write(json.dumps(query, ensure_ascii=False) + "\n")
                to_qrels.write(f"{id}\t{document}\t1\n")
                counts["queries"] += 1
    link_beside(queries, f"{QGEN_PREFIX}-{queries.name}")
    link_beside(qrels, f"../{QGEN_PREFIX}-qrels/{qrels.name}")
    return dict(counts)


def _texts(shards: QueryShards) -> Iterator[tuple[int, str]]:
    """The row of its document and the text of every generated query."""
    return ((passage.row, text) for passage in shards.passages() for text in passage.queries)


def _with_ids(shards: QueryShards, documents: Documents) -> Iterator[tuple[PassageQueries, str]]:
    stream = shards.passages()
    while chunk := list(islice(stream, _CHUNK)):
        yield from zip(chunk, documents.ids([passage.row for passage in chunk]), strict=True)
