"""Models assessed by a judge, alone and together with labels."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from beir_cocodr.arrays import Array, Doubles, Ints
from beir_cocodr.data.judgements import Judgements
from beir_cocodr.evaluation.annotation import DEPTH
from beir_cocodr.evaluation.few_labels import judged_scores, query_weights, usual_variance
from beir_cocodr.evaluation.judge.findings import (
    JudgedDifference,
    JudgeFindings,
    LabelAgreement,
)
from beir_cocodr.evaluation.judge.graders import Grader
from beir_cocodr.evaluation.judge.material import Material, complete_judgements
from beir_cocodr.evaluation.judge.pooling import GradedPool, grade_pool, pool_documents
from beir_cocodr.evaluation.judge.prediction_powered import (
    Ends,
    Labelled,
    power_mean,
    student_interval,
)
from beir_cocodr.evaluation.judge.prompt import GRADES, PROMPT_VERSION, RELEVANT
from beir_cocodr.evaluation.label_free.agreement import rank_distance
from beir_cocodr.retrieval.ranking import Results


def assess(grader: Grader, material: Material) -> JudgeFindings:
    """Let a judge grade the pool of several models, and join its grades with the labels.

    Args:
        grader: The judge.
        material: Models, queries and labels.

    Raises:
        InputError: The judge cannot be asked, or gave no grade at all.
    """
    models = list(material.results)
    pool = pool_documents(material.results, list(material.queries))
    graded = grade_pool(grader, pool, material.queries, material.documents)
    runs = list(material.results.values())
    opinions = judged_scores(complete_judgements(graded.grades, grader.name), runs)  # (N, M)
    labelled = material.labelled
    return JudgeFindings(
        judge=grader.name,
        prompt=PROMPT_VERSION,
        queries=len(material.queries),
        labelled=0 if labelled is None else len(labelled.queries),
        pairs=graded.pairs,
        kept=graded.kept,
        empty=graded.empty,
        cut=graded.cut,
        refused=graded.refused,
        unreadable=graded.unreadable,
        tokens=graded.tokens,
        seconds=graded.seconds,
        values=dict(zip(models, opinions.mean(axis=0).tolist(), strict=True)),
        agreement=None if labelled is None else compare_grades(labelled, graded, pool),
        differences=_differences(material, opinions),
    )


def _differences(material: Material, opinions: Doubles) -> list[JudgedDifference]:
    """Return the differences of all pairs of models, from (N, M) scores by the judge."""
    labelled = material.labelled
    rows: list[int] = []
    if labelled is not None:
        numbers = {query: row for row, query in enumerate(material.queries)}
        rows = [numbers[query] for query in labelled.queries]
        labels = judged_scores(labelled, list(material.results.values()))  # (n, M)
        weights = query_weights(labelled) if labelled.drawn else None
    differences = []
    lists = [_best_rows(results, material) for results in material.results.values()]
    for (i, a), (j, b) in itertools.combinations(enumerate(material.results), 2):
        everything = opinions[:, j] - opinions[:, i]
        joined = None
        if labelled is not None:
            beside_labels = Labelled(
                human=labels[:, j] - labels[:, i],
                judged=everything[rows],
                everything=everything,
                weights=weights,
                usual=usual_variance(float(rank_distance(lists[i], lists[j]).mean())),
            )
            joined = power_mean(beside_labels)
        mean = float(everything.mean())
        interval = _interval(everything)
        differences.append(JudgedDifference(a, b, mean, interval, joined))
    return differences


def _best_rows(results: Results, material: Material) -> Ints:
    """Return the (N, 10) corpus rows that a model ranks first, -1 for no result."""
    rows = np.full((len(material.queries), DEPTH), -1, np.int64)
    for number, query in enumerate(material.queries):
        best = [id for id, _ in results.get(query, ())[:DEPTH]]
        rows[number, : len(best)] = material.documents.rows(best)
    return rows


def _interval(values: Doubles) -> Ends | None:
    """Return the 90% interval of the mean of a fixed sample."""
    count = len(values)
    if count < 2:
        return None
    mean = float(values.mean())
    variance = float(np.var(values, ddof=1)) / count
    return student_interval(mean, variance, count)


def compare_grades(
    labelled: Judgements,
    graded: GradedPool,
    pool: Mapping[str, Sequence[str]],
) -> LabelAgreement | None:
    """Return the agreement of the judge with the labels; None where no pair has both.

    Labels that name no document as not relevant, as most test collections have them, are taken as
    nDCG takes them: other documents are not relevant.

    Args:
        labelled: The labels.
        graded: The grades of the judge.
        pool: The pooled documents by query.
    """
    labels: list[int] = []
    for of_query in labelled.queries.values():
        labels += of_query.grades.values()
    counts_unjudged = all(grade > 0 for grade in labels)
    unjudged = 0 if counts_unjudged else None
    human: list[int] = []
    judge: list[int] = []
    for query, of_query in labelled.queries.items():
        for document in pool.get(query, ()):
            grade = graded.grades[query].get(document)
            label = of_query.grades.get(document, unjudged)
            if grade is not None and label is not None:
                human.append(max(label, 0))
                judge.append(grade)
    if not human:
        return None
    highest = max(*labels, 1)
    stretch = GRADES[-1] / highest
    by_labels = np.array(human, dtype=np.float64)
    by_judge = np.array(judge, dtype=np.float64)
    is_relevant = by_labels > 0
    is_called_relevant = by_judge >= RELEVANT
    return LabelAgreement(
        pairs=len(human),
        kappa=quadratic_kappa(is_relevant, is_called_relevant),
        kappa_quadratic=quadratic_kappa(by_labels * stretch, by_judge),
        relevant_by_labels=float(is_relevant.mean()),
        relevant_by_judge=float(is_called_relevant.mean()),
        counts_unjudged=counts_unjudged,
    )


def quadratic_kappa(first: Array, second: Array) -> float | None:
    """Return Cohen's kappa with quadratic weights: 1 less the ratio of two mean squares.

    They are the mean squared difference of the pairs, and that of the two sets of grades drawn
    independently. For grades of two values it is Cohen's kappa without weights.

    Args:
        first: (P,) grades of one rater.
        second: (P,) grades of the other.

    Returns:
        Kappa; None if all grades are the same.

    References:
        Cohen, 1968 (weighted kappa).
    """
    a = np.asarray(first, dtype=np.float64)
    b = np.asarray(second, dtype=np.float64)
    variances = np.var(a) + np.var(b)
    difference = a.mean() - b.mean()
    by_chance = float(variances + difference**2)
    if by_chance == 0:
        return None
    observed = float(np.square(a - b).mean())
    return 1 - observed / by_chance
