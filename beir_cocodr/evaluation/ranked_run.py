"""A TREC run in rank order."""

from __future__ import annotations

from pathlib import Path

from beir_cocodr.evaluation.trec_run import read_trec_run
from beir_cocodr.retrieval.ranking import Results


def ranked_run(path: Path) -> Results:
    """Each query's documents by descending score, ties by descending document id as in trec_eval.

    Raises:
        InputError: see :func:`~beir_cocodr.evaluation.trec_run.read_trec_run`.
    """
    return {
        query: sorted(found.items(), key=lambda hit: (hit[1], hit[0]), reverse=True)
        for query, found in read_trec_run(path).items()
    }
