"""The pool that a judge grades: each query's best documents by any of the models."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.annotation import DEPTH
from beir_cocodr.evaluation.judge.grade_cache import GradeCache, KeptGrade
from beir_cocodr.evaluation.judge.graders import Grader
from beir_cocodr.evaluation.judge.prompt import document_text, grading_prompt
from beir_cocodr.progress import Bar, describe_seconds
from beir_cocodr.retrieval.ranking import Results

log = logging.getLogger(__name__)

# Pairs that are graded to measure the time of one.
_MEASURED = 16

# Pairs whose prompts are handed to the judge at once.
_BLOCK = 256

#: Query id to the ids of its pooled documents.
Pool = dict[str, list[str]]


def pool_documents(
    results: Mapping[str, Results],
    queries: Sequence[str],
) -> Pool:
    """Return the documents that some model ranks among a query's ten best, by query.

    Args:
        results: Model to its results.
        queries: The ids of the queries that are pooled.
    """
    pool: Pool = {}
    for query in queries:
        documents: dict[str, None] = {}
        for run in results.values():
            for document, _ in run.get(query, [])[:DEPTH]:
                documents[document] = None
        pool[query] = list(documents)
    return pool


@dataclass(frozen=True)
class GradedPool:
    """The grades of a pool, and what they cost.

    Attributes:
        grades: Query id to document id to grade; a document without a grade is left out.
        pairs: The pairs of the pool.
        kept: The pairs among them that were graded before.
        empty: The pairs whose document has no text; they get grade 0 without a judge.
        cut: The pairs whose document was cut.
        refused: The pairs that the judge declined to grade.
        unreadable: The pairs whose answer states no grade.
        tokens: Tokens that the judge read and wrote now.
        seconds: Time of grading now.
    """

    grades: dict[str, dict[str, int]]
    pairs: int
    kept: int
    empty: int
    cut: int
    refused: int
    unreadable: int
    tokens: int
    seconds: float


def grade_pool(
    grader: Grader,
    pool: Pool,
    queries: Mapping[str, str],
    documents: Documents,
) -> GradedPool:
    """Grade all pairs of a pool; those that the cache has are not graded again.

    What grading takes is logged before it begins, and how long, once some pairs are graded.

    Args:
        grader: The judge.
        pool: The documents to grade, by query.
        queries: Query id to text.
        documents: The corpus.

    Raises:
        InputError: The judge cannot be asked, or gave no grade at all.
    """
    cache = GradeCache(grader.identity)
    texts, cut = _texts(pool, documents)
    pairs = []
    for query, ids in pool.items():
        pairs += [(queries[query], texts[id]) for id in ids if texts[id]]
    missing = cache.missing(pairs)
    began = time.perf_counter()
    tokens = _grade(
        grader,
        cache,
        missing,
        kept=len(pairs) - len(missing),
    )
    seconds = time.perf_counter() - began
    grades: dict[str, dict[str, int]] = {}
    lost: list[KeptGrade] = []
    for query, ids in pool.items():
        grades[query] = {}
        for id in ids:
            kept = cache.get(queries[query], texts[id]) if texts[id] else KeptGrade(0)
            assert kept is not None  # all that were missing are graded
            if kept.grade is None:
                lost.append(kept)
            else:
                grades[query][id] = kept.grade
    if pairs and len(lost) == len(pairs):
        raise InputError(
            f"judge {grader.name} gave no grade in {len(lost)} answers; the first is "
            f"{lost[0].answer!r}; name a model that follows instructions, or let its server allow "
            "only answers such as 'Grade: 2', and forget these answers with cache --clear judge"
        )
    refused = sum(kept.is_refused for kept in lost)
    return GradedPool(
        grades=grades,
        pairs=sum(len(ids) for ids in pool.values()),
        kept=len(pairs) - len(missing),
        empty=sum(len(ids) for ids in pool.values()) - len(pairs),
        cut=sum(id in cut for ids in pool.values() for id in ids),
        refused=refused,
        unreadable=len(lost) - refused,
        tokens=tokens,
        seconds=round(seconds, 1) if missing else 0.0,
    )


def _texts(pool: Pool, documents: Documents) -> tuple[dict[str, str], set[str]]:
    """Return the text of each pooled document, "" where there is none, and the ids of cut ones."""
    ids = list(dict.fromkeys(id for of_query in pool.values() for id in of_query))
    texts: dict[str, str] = {}
    cut: set[str] = set()
    for id, row in zip(ids, documents.rows(ids).tolist(), strict=True):
        texts[id] = ""
        if row >= 0:
            texts[id], is_cut = document_text(documents.take([row])[0])
            if is_cut:
                cut.add(id)
    return texts, cut


def _grade(
    grader: Grader,
    cache: GradeCache,
    missing: Sequence[tuple[str, str]],
    kept: int,
) -> int:
    """Grade pairs into a cache, and return the tokens that it took."""
    if not missing:
        log.info("%s: all %d pairs were graded before", grader.name, kept)
        return 0
    expected = grader.count_tokens([grading_prompt(*pair) for pair in missing])
    log.info(
        "%s: %d pairs of a query and a document to grade, about %d tokens (%d were graded before); "
        "the price depends on who runs the model",
        grader.name,
        len(missing),
        expected,
        kept,
    )
    began = time.perf_counter()
    tokens = 0
    with Bar(total=len(missing), desc="grading", unit=" pairs") as bar:
        for number, kept_grade in enumerate(_replies(grader, cache, missing), 1):
            tokens += kept_grade.tokens
            bar.update()
            if number == _MEASURED < len(missing):
                left = len(missing) - number
                seconds = (time.perf_counter() - began) / number * left
                log.info(
                    "%s: about %s for the other %d pairs, measured on the first %d",
                    grader.name,
                    describe_seconds(seconds),
                    left,
                    number,
                )
    return tokens


def _replies(
    grader: Grader,
    cache: GradeCache,
    missing: Sequence[tuple[str, str]],
) -> Iterator[KeptGrade]:
    """Yield the grade of each pair once it is kept; the first pairs are a block of their own."""
    starts = [0, *range(_MEASURED, len(missing), _BLOCK)]
    for start, end in zip(
        starts,
        [*starts[1:], len(missing)],
        strict=True,
    ):
        block = missing[start:end]
        for number, reply in grader.replies([grading_prompt(*pair) for pair in block]):
            kept_grade = KeptGrade.of(reply)
            cache.add(*block[number], kept_grade)
            yield kept_grade
