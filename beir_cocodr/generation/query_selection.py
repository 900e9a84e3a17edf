"""From generated queries to a BEIR folder: they are cleaned, selected and written."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Bools
from beir_cocodr.data.documents import Documents, hashes_of
from beir_cocodr.data.files.beir_folder import link_beside
from beir_cocodr.distributed import do_each, on_main, rank, working_alone, world_size
from beir_cocodr.generation.generators import Query
from beir_cocodr.generation.near_duplicates import without_near_duplicates
from beir_cocodr.generation.shards import PassageQueries, QueryShards
from beir_cocodr.io import atomic_writer
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Json
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.temporary import TemporaryFolder

#: The prefix that BEIR's and GPL's loaders expect of generated files.
QGEN_PREFIX = "qgen"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# No tokenizer has such long tokens on average: a text that is longer than its tokens allow is a
# defect.
_CHARACTERS_A_TOKEN = 16

# The filter searches for so many blocks of queries, so that many processes have equal shares, if
# they are neither too small nor too large.
_BLOCKS = 64
_SMALLEST_BLOCK = 256
_BLOCK = 10_000

# Passages whose ids are looked up at a time.
_CHUNK = 1_000


def clean_queries(
    queries: Sequence[Sequence[Query]],
    max_length: int,
) -> tuple[list[list[str]], dict[str, int]]:
    """Put each query on one line, without control characters and surrounding space.

    A text of more than 16 characters for each token of ``max_length`` is cut there.

    Args:
        queries: The queries of each passage.
        max_length: Tokens of a query at most.

    Returns:
        The texts of each passage, "" where nothing is left; and the counts ``generated`` (all),
        ``empty``, ``unfinished`` (those of the empty ones that a limit ended) and ``cut`` (others
        that a limit ended, the generator's or this one).
    """
    counts = {"generated": 0, "empty": 0, "unfinished": 0, "cut": 0}
    longest = _CHARACTERS_A_TOKEN * max_length
    cleaned: list[list[str]] = []
    for passage_queries in queries:
        texts = []
        for query in passage_queries:
            line = " ".join(_CONTROL.sub(" ", query.text).split())
            text = line[:longest].rstrip()
            counts["generated"] += 1
            if not text:
                counts["empty"] += 1
                counts["unfinished"] += query.cut
            elif query.cut or text != line:
                counts["cut"] += 1
            texts.append(text)
        cleaned.append(texts)
    return cleaned, counts


class ConsistencyFilter:
    """A filter that keeps a query if a retriever finds its document (round-trip consistency).

    Args:
        documents: The corpus to search.
        retriever: Name of the retriever, as for ``evaluate``.
        top: r, how many first documents the query's own has to be among.
        search: How the retriever is loaded and searches.

    Raises:
        InputError: There is no such retriever. It is raised at once, before hours of generating.

    References:
        Dai et al., Promptagator, 2022, section 3.2, with r = 1.
    """

    def __init__(
        self,
        documents: Documents,
        retriever: str,
        top: int,
        search: SearchOptions,
    ) -> None:
        """Check that the retriever can be loaded."""
        self.documents = documents
        self.retriever = retriever
        self.top = min(top, len(documents))
        self.search = search
        with self._open(None):
            pass

    def keeps(self, shards: QueryShards, kept: Bools) -> Bools:
        """Return which queries find their document.

        All processes of a run call this. They encode and index the corpus together, and each
        searches for its blocks of queries, which do not depend on the number of processes.

        Args:
            shards: Shards, all finished; embeddings are written beside them, and removed again.
            kept: (n,) bool over all generated queries, true for those to search for.

        Returns:
            (k,) bool for those, in corpus order.
        """
        count = int(kept.sum())
        size = min(_BLOCK, max(_SMALLEST_BLOCK, math.ceil(count / _BLOCKS)))
        own_blocks = range(rank(), math.ceil(count / size), world_size())
        with ExitStack() as held:
            ranker = held.enter_context(self._open(shards.folder))
            if world_size() > 1:
                shared = on_main(lambda: held.enter_context(TemporaryFolder(shards.folder)))
                _prepare_together(ranker, shared)

            def search() -> dict[int, Bools]:
                candidates = compress(shards.texts(), kept)
                consistent: dict[int, Bools] = {}
                with working_alone():  # the processes search for different numbers of blocks
                    for number, block in enumerate(_blocks(candidates, size)):
                        if number in own_blocks:
                            consistent[number] = self._find_own(ranker, block)
                return consistent

            of_blocks: dict[int, Bools] = {}
            for of_process in do_each(search):
                of_blocks |= of_process
        in_order = [of_blocks[number] for number in sorted(of_blocks)]
        return np.concatenate([np.zeros(0, bool), *in_order])

    def _find_own(self, ranker: Ranker, queries: Sequence[tuple[int, str]]) -> Bools:
        """Return which (n,) queries, each with the row of its document, find that document."""
        texts = {str(number): text for number, (_, text) in enumerate(queries)}
        rows = np.array([row for row, _ in queries])
        ranking = ranker.search(texts, self.top)
        is_own = ranking.rows == rows[:, None]  # (n, top)
        consistent: Bools = is_own.any(axis=1)
        return consistent

    @contextmanager
    def _open(self, folder: Path | None) -> Iterator[Ranker]:
        with TemporaryFolder(folder) as temporary:
            resources = Resources(self.documents, temporary, self.search)
            yield resources.ranker(self.retriever)


def _prepare_together(ranker: Ranker, folder: Path) -> None:
    """Encode and index the corpus by all processes of a run, which call this together.

    What is not the package's own encoder or BM25 is left to each process.

    Args:
        ranker: Searches the corpus.
        folder: Receives vectors and postings; all processes see it.
    """
    dense = getattr(ranker, "dense", ranker)
    if hasattr(dense, "encode_together"):
        dense.encode_together(folder / "vectors")
    index = getattr(ranker, "bm25", ranker)
    if isinstance(index, BM25):
        index.keep(folder)


def _blocks(
    queries: Iterable[tuple[int, str]],
    size: int,
) -> Iterator[list[tuple[int, str]]]:
    """Yield consecutive queries, ``size`` of them at a time."""
    stream = iter(queries)
    while block := list(islice(stream, size)):
        yield block


@dataclass(frozen=True)
class DuplicateRule:
    """Which queries repeat earlier ones.

    Attributes:
        equal: Texts that are equal repeat each other. They are equal by a 64-bit hash: that two of
            ten million texts share one by chance has a probability of three in a million.
        similarity: Texts whose sets of words have at least this Jaccard similarity repeat each
            other; None for no such texts.
    """

    equal: bool = False
    similarity: float | None = None


def select_queries(
    shards: QueryShards,
    duplicates: DuplicateRule,
    consistency: ConsistencyFilter | None,
) -> tuple[Bools, dict[str, int]]:
    """Select the queries to keep; all processes of a run call this.

    Args:
        shards: Shards, all finished.
        duplicates: The rule by which only the first of several queries is kept.
        consistency: Keep only queries that this filter keeps.

    Returns:
        (n,) bool over all generated queries in corpus order, true for those to keep; and the counts
        ``duplicates``, ``near_duplicates`` and ``inconsistent`` of those that were left out.
    """
    kept, counts = on_main(lambda: _without_repeated(shards, duplicates))
    counts["inconsistent"] = 0
    if consistency is not None:
        consistent = consistency.keeps(shards, kept)
        counts["inconsistent"] = int((~consistent).sum())
        kept[np.flatnonzero(kept)] = consistent
    similarity = duplicates.similarity
    if similarity is not None:
        texts = (text for _, text in compress(shards.texts(), kept))
        is_new = without_near_duplicates(texts, similarity)
        counts["near_duplicates"] = int((~is_new).sum())
        kept[np.flatnonzero(kept)] = is_new
    return kept, counts


def _without_repeated(
    shards: QueryShards,
    duplicates: DuplicateRule,
) -> tuple[Bools, dict[str, int]]:
    """Return which queries have a text that is not equal to an earlier one, and ``duplicates``."""
    has_text = (bool(text) for _, text in shards.texts())
    kept = np.fromiter(has_text, bool)
    counts = {"duplicates": 0}
    if duplicates.equal:
        hashes = hashes_of(text for _, text in shards.texts())
        _, first_rows = np.unique(hashes, return_index=True)
        is_first = np.zeros(len(kept), bool)
        is_first[first_rows] = True
        is_repeated = kept & ~is_first
        counts["duplicates"] = int(is_repeated.sum())
        kept &= is_first
    return kept, counts


def write_queries(
    shards: QueryShards,
    kept: Bools,
    documents: Documents,
    output: Path,
) -> dict[str, int]:
    """Write ``queries.jsonl`` and ``qrels/train.tsv``, and link both by the names of qgen folders.

    The metadata of a query name its document, the number of the passage in it, and the passage's
    character range in the document's title and text joined; and the kind of the query where kinds
    were asked for.

    Args:
        shards: Shards, all finished.
        kept: (n,) bool over all generated queries, true for those to write.
        documents: The corpus.
        output: The output folder.

    Returns:
        The counts ``queries``, one for each kind, and ``passages_without_query``.
    """
    queries_file = output / "queries.jsonl"
    qrels_file = output / "qrels" / "train.tsv"
    counts = Counter({"queries": 0, "passages_without_query": 0})
    start = 0
    with ExitStack() as stack:
        queries = stack.enter_context(atomic_writer(queries_file))
        qrels = stack.enter_context(atomic_writer(qrels_file))
        qrels.write("query-id\tcorpus-id\tscore\n")
        for passage, document in _with_ids(shards, documents):
            is_kept = kept[start : start + len(passage.queries)]
            start += len(passage.queries)
            if not is_kept.any():
                counts["passages_without_query"] += 1
            for number in np.flatnonzero(is_kept).tolist():
                kind = None
                if passage.kinds:
                    kind = passage.kinds[number]
                    counts[kind] += 1
                query = _query_record(passage, document, number, kind)
                queries.write(json.dumps(query, ensure_ascii=False) + "\n")
                qrels.write(f"{query['_id']}\t{document}\t1\n")
                counts["queries"] += 1
    link_beside(queries_file, f"{QGEN_PREFIX}-{queries_file.name}")
    link_beside(qrels_file, f"../{QGEN_PREFIX}-qrels/{qrels_file.name}")
    return dict(counts)


def _query_record(
    passage: PassageQueries,
    document: str,
    number: int,
    kind: str | None,
) -> Json:
    """Return one query of a passage as a line of ``queries.jsonl``."""
    metadata: Json = {
        "document": document,
        "number": passage.number,
        "start": passage.start,
        "end": passage.end,
    }
    if kind is not None:
        metadata["kind"] = kind
    return {
        "_id": f"genQ{passage.row}-{passage.number}-{number}",
        "text": passage.queries[number],
        "metadata": metadata,
    }


def _with_ids(shards: QueryShards, documents: Documents) -> Iterator[tuple[PassageQueries, str]]:
    """Yield all passages with the ids of their documents."""
    stream = shards.passages()
    while chunk := list(islice(stream, _CHUNK)):
        ids = documents.ids([passage.row for passage in chunk])
        yield from zip(chunk, ids, strict=True)
