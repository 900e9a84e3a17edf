"""From generated queries to a BEIR folder: they are cleaned, selected and written."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Bools
from beir_cocodr.data.documents import Documents, hashes_of
from beir_cocodr.data.files.beir_folder import link_beside
from beir_cocodr.data.text import words
from beir_cocodr.generation.generators import Query
from beir_cocodr.generation.shards import PassageQueries, QueryShards
from beir_cocodr.io import atomic_writer
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.temporary import TemporaryFolder

#: The prefix that BEIR's and GPL's loaders expect of generated files.
QGEN_PREFIX = "qgen"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

# No tokenizer has such long tokens on average: a text that is longer than its tokens allow is a
# defect.
_CHARACTERS_A_TOKEN = 16

# Queries that the filter searches at a time, and passages whose ids are looked up at a time.
_BLOCK = 10_000
_CHUNK = 1_000

# What a product of a similarity and a whole number may lack by rounding.
_ROUNDING = 1e-9


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
        ``empty`` and ``cut`` (by a limit, the generator's or this one).
    """
    counts = {"generated": 0, "empty": 0, "cut": 0}
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

    def keeps(self, queries: Iterable[tuple[int, str]], folder: Path) -> Iterator[Bools]:
        """Yield which queries find their document, in blocks.

        Args:
            queries: The document's row and the text of each query.
            folder: Where embeddings are written, and removed again.

        Yields:
            (n,) bool for each block.
        """
        stream = iter(queries)
        with self._open(folder) as ranker:
            while block := list(islice(stream, _BLOCK)):
                texts = {str(number): text for number, (_, text) in enumerate(block)}
                rows = np.array([row for row, _ in block])
                ranking = ranker.search(texts, self.top)
                is_own = ranking.rows == rows[:, None]  # (n, top)
                yield is_own.any(axis=1)

    @contextmanager
    def _open(self, folder: Path | None) -> Iterator[Ranker]:
        with TemporaryFolder(folder) as temporary:
            resources = Resources(self.documents, temporary, self.search)
            yield resources.ranker(self.retriever)


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
    """Select the queries to keep.

    Args:
        shards: Shards, all finished.
        duplicates: The rule by which only the first of several queries is kept.
        consistency: Keep only queries that this filter keeps.

    Returns:
        (n,) bool over all generated queries in corpus order, true for those to keep; and the counts
        ``duplicates``, ``near_duplicates`` and ``inconsistent`` of those that were left out.
    """
    has_text = (bool(text) for _, text in shards.texts())
    kept = np.fromiter(has_text, bool)
    counts = {"duplicates": 0, "inconsistent": 0}
    if duplicates.equal:
        hashes = hashes_of(text for _, text in shards.texts())
        _, first_rows = np.unique(hashes, return_index=True)
        is_first = np.zeros(len(kept), bool)
        is_first[first_rows] = True
        is_repeated = kept & ~is_first
        counts["duplicates"] = int(is_repeated.sum())
        kept &= is_first
    if consistency is not None:
        candidates = compress(shards.texts(), kept)
        blocks = consistency.keeps(candidates, shards.folder)
        consistent = np.concatenate([np.zeros(0, bool), *blocks])
        counts["inconsistent"] = int((~consistent).sum())
        kept[np.flatnonzero(kept)] = consistent
    if duplicates.similarity is not None:
        texts = [text for _, text in compress(shards.texts(), kept)]
        is_new = without_near_duplicates(texts, duplicates.similarity)
        counts["near_duplicates"] = int((~is_new).sum())
        kept[np.flatnonzero(kept)] = is_new
    return kept, counts


def without_near_duplicates(texts: Sequence[str], similarity: float) -> Bools:
    """Return which texts have less than a Jaccard similarity to all earlier ones that are kept.

    The comparison is exact. Words are put in the order of their rarity: two sets can be so similar
    only if they share one of their first |A| - ⌈s |A|⌉ + 1 words, so only sets that share one of
    these are compared.

    Args:
        texts: n texts.
        similarity: s, the similarity from which texts are near duplicates, above 0.

    Returns:
        (n,) bool.

    References:
        Bayardo, Ma and Srikant, Scaling up all pairs similarity search, 2007; Xiao et al.,
        Efficient similarity joins for near duplicate detection, 2008 (the prefix filter).
    """
    word_sets = [frozenset(words(text)) for text in texts]
    frequencies: Counter[str] = Counter()
    for word_set in word_sets:
        frequencies.update(word_set)
    kept = np.zeros(len(texts), bool)
    with_word: dict[str, list[int]] = defaultdict(list)
    for row, word_set in enumerate(word_sets):
        rarest_first = sorted(word_set, key=lambda word: (frequencies[word], word))
        least_shared = math.ceil(similarity * len(word_set) - _ROUNDING)
        prefix = rarest_first[: len(word_set) - least_shared + 1]
        candidates: set[int] = set()
        for word in prefix:
            candidates.update(with_word[word])
        kept[row] = all(_jaccard(word_set, word_sets[other]) < similarity for other in candidates)
        if kept[row]:
            for word in prefix:
                with_word[word].append(row)
    return kept


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    shared = len(a & b)
    return shared / len(a | b)


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
