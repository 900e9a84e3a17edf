"""Queries that a language model wrote, kept by the content of their passages, and their costs."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.passages import Passage, PassageReader
from beir_cocodr.data.text import words
from beir_cocodr.generation.generators import Generated, Query, WritingGenerator
from beir_cocodr.generation.query_kinds import kinds_in_turn
from beir_cocodr.generation.question_text import clean_question, is_question
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.shards import QueryShards
from beir_cocodr.generation.text_cache import TextCache
from beir_cocodr.io import parse_json
from beir_cocodr.records import Json

log = logging.getLogger(__name__)

# Options that do not change what is written about a passage.
_NOT_ABOUT_A_PASSAGE = ("shard_documents", "max_passages", "batch_size", "tokenizer")

# The same passages may come in other shards, and their queries follow their content alone.
_ANY_SHARD = 0

# Documents from which costs are estimated, and tokens of a word.
_LOOKED_AT = 200
_TOKENS_A_WORD = 1.4


class KeptGenerator:
    """A generator that asks another one for queries of passages that it has not written yet.

    Queries are on the disk after each batch of passages. So a run that was killed repeats at most
    one batch, and a corpus that has changed pays for its new passages alone. What the other
    generator draws for a passage has to depend on its text and not on the passages beside it, as
    these are only those that are not written yet. Queries lose labels and marks around them; those
    that are too short or speak of "the passage" are emptied and counted. A passage without a
    usable query is not kept: a server may answer better the next time.

    Args:
        inner: The generator that writes.
        options: Its options, with kinds of queries.
    """

    def __init__(self, inner: WritingGenerator, options: GenerationOptions) -> None:
        """Open what the generator wrote before."""
        self.inner = inner
        self.options = options
        self.counter = inner.counter
        settings = options.generation()
        for name in _NOT_ABOUT_A_PASSAGE:
            settings.pop(name, None)
        self._cache = TextCache("questions", {"generator": inner.describe(), "options": settings})

    def describe(self) -> Json:
        """Return what the queries depend on beside passages and options."""
        return self.inner.describe()

    def prepare(self, folder: Path) -> None:
        """Prepare the generator that writes."""
        self.inner.prepare(folder)

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """Return the queries of passages, with counts of those that were kept and refused.

        The other generator's counts are added. They are of the passages that it writes now.
        """
        written = {passage.text: self._kept(passage) for passage in passages}
        missing = [passage for passage in passages if not written[passage.text]]
        counts = self._write_all(missing, written)
        queries: list[list[Query]] = []
        refused: list[str] = []
        for passage in passages:
            of_passage, no_queries = _usable(written[passage.text])
            queries.append(of_passage)
            refused += no_queries
        counts["passages_kept"] = len(passages) - len(missing)
        counts["refused"] = len(refused)
        return Generated(queries, dict(counts), refused[0] if refused else "")

    def prompts_of(self, passage: Passage) -> list[str]:
        """Return what the generator that writes reads for a passage, nothing if it is kept."""
        return [] if self.knows(passage) else self.inner.prompts_of(passage)

    def knows(self, passage: Passage) -> bool:
        """Return true if queries of a passage are kept, and at least one can be used."""
        return bool(self._kept(passage))

    def _write_all(
        self,
        passages: Sequence[Passage],
        written: dict[str, list[Query]],
    ) -> Counter[str]:
        """Write queries batch by batch, once for each text, and keep those of use.

        Args:
            passages: The passages.
            written: Gets the queries of each text, as they were written.

        Returns:
            The writer's counts.
        """
        counts: Counter[str] = Counter()
        distinct = list({passage.text: passage for passage in passages}.values())
        size = self.options.batch_size
        for start in range(0, len(distinct), size):
            batch = distinct[start : start + size]
            generated = self.inner.generate(batch, _ANY_SHARD)
            counts.update(generated.counts)
            for passage, queries in zip(batch, generated.queries, strict=True):
                written[passage.text] = queries
                if _is_any_usable(queries):
                    content = json.dumps(queries, ensure_ascii=False)
                    self._cache.put(self._key(passage), content)
        return counts

    def _kept(self, passage: Passage) -> list[Query]:
        """Return the kept queries of a passage as they were written, none if none is of use."""
        content = self._cache.get(self._key(passage)) or "[]"
        queries = [Query(text, is_cut) for text, is_cut in parse_json(content)]
        return queries if _is_any_usable(queries) else []

    def _key(self, passage: Passage) -> str:
        """Return what the queries of a passage are kept by: their kinds, and the text."""
        kinds = kinds_in_turn(self.options.kinds, passage.text, self.options.per_passage)
        names = ",".join(kinds)
        return f"{names}\n{passage.text}"


def _usable(written: Sequence[Query]) -> tuple[list[Query], list[str]]:
    """Return queries without marks around them, emptied where refused; and the refused texts."""
    queries = []
    refused = []
    for text, is_cut in written:
        question = clean_question(text)
        if question and not is_question(question):
            refused.append(question)
            queries.append(Query(""))
        else:
            queries.append(Query(question, is_cut))
    return queries, refused


def _is_any_usable(written: Sequence[Query]) -> bool:
    """Return true if at least one of some queries is neither empty nor refused."""
    queries, _ = _usable(written)
    return any(query.text for query in queries)


def describe_costs(
    name: str,
    reader: PassageReader,
    generator: WritingGenerator,
    options: GenerationOptions,
    shards: QueryShards,
) -> str:
    """Return about how many queries are written, and how many tokens that takes.

    Passages and their lengths are estimated from some documents of the shards that are not
    finished, evenly spaced.

    Args:
        name: The generator's name.
        reader: Reads the passages of the corpus.
        generator: Says what is read for a passage.
        options: How queries are generated.
        shards: The shards, of which one at least is not finished.
    """
    missing = shards.missing()
    starts = np.cumsum([0, *(len(shards.rows(shard)) for shard in missing)])
    documents = int(starts[-1])
    looked_at = spaced_rows(documents, _LOOKED_AT)
    of_shard = np.searchsorted(starts, looked_at, side="right") - 1
    rows = [
        shards.rows(missing[shard])[number - starts[shard]]
        for shard, number in zip(of_shard.tolist(), looked_at.tolist(), strict=True)
    ]
    passages, _ = reader.read(rows)
    sampled = max(len(passages), 1)
    total = len(passages) / len(rows) * shards.documents
    if options.max_passages is not None:
        total = min(total, options.max_passages)
    left = total * documents / shards.documents  # the rest is in finished shards
    prompts = [generator.prompts_of(passage) for passage in passages]
    share = sum(map(bool, prompts)) / sampled
    words_of_prompts = sum(len(words(prompt)) for of_passage in prompts for prompt in of_passage)
    queries = left * share * options.per_passage
    read = left * _TOKENS_A_WORD * words_of_prompts / sampled
    written = queries * options.max_length
    known = 1 - share * documents / shards.documents
    return (
        f"{name} writes about {queries:,.0f} queries (about {read:,.0f} tokens to read, at most "
        f"{written:,.0f} to write); {known:.0%} of the passages were written about before"
    )
