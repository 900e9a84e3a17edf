"""Queries generated without a model, as queries for the documents that they were made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.generation.generated import Passage
from beir_cocodr.data.generation.lexical_queries import LexicalGenerator
from beir_cocodr.data.passage_reader import PassageReader
from beir_cocodr.data.text_format import TextFormat
from beir_cocodr.data.token_counts import word_counter
from beir_cocodr.evaluation.label_free.pseudo_queries import TRAINED_ON, PseudoQueries, verbatim_share

_PASSAGE_WORDS = 144
_CHUNK = 256
_LOOKS = 20


def lexical_queries(
    documents: Documents,
    folder: Path,
    size: int = 300,
    seed: int = 42,
    trained_on: Callable[[str], bool] | None = None,
) -> PseudoQueries:
    """One query of :class:`LexicalGenerator` for each of ``size`` random documents.

    A query is the title, a sentence or some terms of a passage of its document, so nearly all of its words
    stand there: it leaks, and models that match words do better on it than on real queries.

    Args:
        documents: the corpus; read once for document frequencies.
        folder: for what the generator keeps; the caller removes it.
        size: queries wanted.
        seed: of documents, passages and queries.
        trained_on: tells the queries that a model was trained on, which are left out and counted.
    """
    rng = np.random.default_rng(seed)
    text_format = TextFormat()
    reader = PassageReader(documents, text_format, word_counter().count, _PASSAGE_WORDS, "en")
    generator = LexicalGenerator(documents, text_format, per_passage=1, seed=seed)
    generator.prepare(folder)
    order = rng.permutation(len(documents))[: _LOOKS * size]
    texts: list[str] = []
    rows: list[int] = []
    looked = known = 0
    for start in range(0, len(order), _CHUNK):
        if len(texts) == size:
            break
        taken = order[start : start + min(_CHUNK, size - len(texts))]
        looked += len(taken)
        passages = _one_a_document(reader.read(taken.tolist())[0], rng)
        for passage, made in zip(passages, generator.generate(passages, 0).queries, strict=True):
            if made and trained_on is not None and trained_on(made[0].text):
                known += 1
            elif made and made[0].text.strip():
                texts.append(made[0].text)
                rows.append(passage.row)
    found = [text_format.document(document) for document in documents.take(rows)]
    counts = {"documents_looked_at": looked, "documents_without_query": looked - known - len(texts)}
    counts |= {TRAINED_ON: known} if known else {}
    return PseudoQueries(texts, np.array(rows, np.int64), verbatim_share(texts, found), counts)


def _one_a_document(passages: list[Passage], rng: np.random.Generator) -> list[Passage]:
    of_row: dict[int, list[Passage]] = {}
    for passage in passages:
        of_row.setdefault(passage.row, []).append(passage)
    return [found[int(rng.integers(len(found)))] for found in of_row.values()]
