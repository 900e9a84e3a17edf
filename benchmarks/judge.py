"""Claim: a judge saves labels, and the intervals of labels and judge together hold.

Queries are simulated: two systems rank twenty documents each, one of them better, and a judge keeps
a label with the probability that is its kappa and otherwise draws a grade as labels are
distributed. So kappa, with quadratic weights or without, is known, and the errors of the judge are
independent; real judges err together on related documents, which is why compare prints the
correlation that was measured. Of all queries that the judge judged, one in ten is labelled.

Measured are: how often the 90% interval of a fixed sample holds the true difference, how wide it is
beside that of labels alone, and how many labels it needs; how often a confidence sequence holds at
every look; the same where queries are labelled with unequal probabilities; and the form for
disjoint samples, used rightly and used wrongly.

With ``--judge`` and ``--collections`` a real judge grades the best documents of a few queries of
some collections, and its own agreement with the labels is measured.

The script prints a table, and writes ``benchmarks/results/judge.json``:

    python benchmarks/judge.py [--judge hf:MODEL --collections FOLDER]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness.page import markdown_table
from harness.script import add_integers, option_parser, origin, write_results
from scipy.stats import spearmanr

from beir_cocodr import SearchOptions, load_collection
from beir_cocodr.arrays import Doubles
from beir_cocodr.data.judgements import Judgements
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.judge.assessment import compare_grades
from beir_cocodr.evaluation.judge.graders import load_grader
from beir_cocodr.evaluation.judge.material import complete_judgements
from beir_cocodr.evaluation.judge.pooling import grade_pool, pool_documents
from beir_cocodr.evaluation.judge.prediction_powered import (
    Labelled,
    confidence_sequence,
    disjoint_mean,
    power_mean,
    student_interval,
)
from beir_cocodr.evaluation.judge.prompt import PROMPT_VERSION
from beir_cocodr.retrieval.resources import Resources

KAPPAS = (0.2, 0.4, 0.6, 0.8)
#: Numbers of labelled queries.
LABELLED = (20, 50)
#: Judged queries for each labelled one.
JUDGED = 10
#: Labelled queries at which one looks at a confidence sequence.
LOOKS = (10, 100)
#: Documents of a query, and how often a label is each of the grades 0 to 3.
DOCUMENTS = 20
GRADES = (0.75, 0.12, 0.08, 0.05)
#: Queries from which samples are drawn, so many that their mean is the true difference.
POPULATION = 50_000

_DISCOUNTS = 1 / np.log2(2 + np.arange(10))


@dataclass(frozen=True)
class Simulated:
    """Differences in nDCG@10 of many queries, by labels and by a judge.

    Attributes:
        human: (Q,) differences by labels.
        judged: (Q,) differences by the judge.
    """

    human: Doubles
    judged: Doubles

    @property
    def truth(self) -> float:
        """The mean difference of all queries."""
        return float(self.human.mean())

    @property
    def correlation(self) -> float:
        return float(np.corrcoef(self.human, self.judged)[0, 1])


def ndcg(grades: Doubles, scores: Doubles) -> Doubles:
    """Return (Q,) nDCG@10 of (Q, D) documents that are ranked by scores."""
    order = np.argsort(-scores, axis=1)[:, :10]
    gain = np.take_along_axis(grades, order, axis=1) @ _DISCOUNTS
    ideal = -np.sort(-grades, axis=1)[:, :10] @ _DISCOUNTS
    values: Doubles = np.divide(gain, ideal, out=np.zeros_like(gain), where=ideal > 0)
    return values


def simulate(rng: np.random.Generator, queries: int, kappa: float) -> Simulated:
    """Return queries of different difficulty, on which systems err alike."""
    shape = (queries, DOCUMENTS)
    labels = rng.choice(len(GRADES), size=shape, p=GRADES).astype(float)
    ease = 2 * rng.random((queries, 1))
    common = rng.normal(size=shape)
    first = 0.8 * ease * labels + common + 0.7 * rng.normal(size=shape)
    second = 1.0 * ease * labels + common + 0.7 * rng.normal(size=shape)
    drawn = rng.choice(len(GRADES), size=shape, p=GRADES)
    grades = np.where(rng.random(shape) < kappa, labels, drawn)
    return Simulated(
        ndcg(labels, second) - ndcg(labels, first),
        ndcg(grades, second) - ndcg(grades, first),
    )


def samples(
    rng: np.random.Generator,
    simulated: Simulated,
    judged: int,
    draws: int,
) -> Iterator[tuple[Doubles, Doubles]]:
    """Yield samples of queries, by labels and by the judge."""
    for _ in range(draws):
        rows = rng.integers(0, len(simulated.human), judged)
        yield simulated.human[rows], simulated.judged[rows]


def holds(interval: tuple[float, float] | None, truth: float) -> bool:
    assert interval is not None
    low, high = interval
    return low <= truth <= high


def width(interval: tuple[float, float] | None) -> float:
    assert interval is not None
    low, high = interval
    return high - low


def measure_fixed(
    rng: np.random.Generator,
    simulated: Simulated,
    labelled: int,
    draws: int,
) -> dict[str, float]:
    """Measure the intervals of a fixed sample, beside those of labels alone."""
    rows = []
    for human, judged in samples(rng, simulated, JUDGED * labelled, draws):
        joined = power_mean(Labelled(human[:labelled], judged[:labelled], judged))
        rows.append(
            [
                holds(joined.interval, simulated.truth),
                holds(joined.alone_interval, simulated.truth),
                width(joined.interval),
                width(joined.alone_interval),
                joined.worth,
            ]
        )
    covers, covers_alone, together, alone, worth = np.mean(rows, axis=0).tolist()
    return {
        "holds": round(covers, 4),
        "holds_labels_alone": round(covers_alone, 4),
        "width": round(together, 4),
        "width_labels_alone": round(alone, 4),
        "width_ratio": round(together / alone, 3),
        "labels_needed": round((together / alone) ** 2, 3),
        "worth": round(worth, 1),
    }


def measure_sequence(
    rng: np.random.Generator,
    simulated: Simulated,
    draws: int,
) -> dict[str, float]:
    """Measure how often a confidence sequence holds at every look."""
    first, last = LOOKS
    held = 0
    at_fifty = []
    for human, judged in samples(rng, simulated, JUDGED * last, draws):
        always = True
        for count in range(first, last + 1):
            interval = confidence_sequence(Labelled(human[:count], judged[:count], judged))
            always &= holds(interval, simulated.truth)
            if count == 50:
                nothing = Labelled(human[:50], np.zeros(50), np.zeros(len(judged)))
                at_fifty.append([width(interval), width(confidence_sequence(nothing))])
        held += always
    together, alone = np.mean(at_fifty, axis=0).tolist()
    return {
        "holds_at_every_look": round(held / draws, 4),
        "width_at_50": round(together, 4),
        "width_at_50_labels_alone": round(alone, 4),
    }


def measure_drawn(
    rng: np.random.Generator,
    simulated: Simulated,
    labelled: int,
    draws: int,
) -> dict[str, float]:
    """Measure intervals where queries are labelled more often the more systems seem to differ."""
    held = []
    widths = []
    for human, judged in samples(rng, simulated, JUDGED * labelled, draws):
        sizes = np.abs(judged) + 0.5 * np.abs(human)
        chances = 0.5 / len(human) + 0.5 * sizes / sizes.sum()
        order = np.argsort(rng.random(len(human)) / chances)[:labelled]
        together = Labelled(human[order], judged[order], judged, 1 / chances[order])
        joined = power_mean(together)
        held.append(holds(joined.interval, simulated.truth))
        widths.append(width(joined.interval))
    return {"holds": round(float(np.mean(held)), 4), "width": round(float(np.mean(widths)), 4)}


def measure_disjoint(
    rng: np.random.Generator,
    simulated: Simulated,
    labelled: int,
    draws: int,
) -> dict[str, float]:
    """Measure the form for disjoint samples, on such samples and on overlapping ones.

    There are twice as many judged queries as labelled ones: with more of them the two forms agree.
    """
    rightly = 0
    wrongly = 0
    size = 2 * labelled
    for human, judged in samples(rng, simulated, size + labelled, draws):
        for is_disjoint in (True, False):
            others = judged[labelled:] if is_disjoint else judged[:size]
            mean, variance, _ = disjoint_mean(human[:labelled], judged[:labelled], others)
            held = holds(student_interval(mean, variance, labelled), simulated.truth)
            rightly += held and is_disjoint
            wrongly += held and not is_disjoint
    return {
        "holds": round(rightly / draws, 4),
        "holds_with_an_overlap": round(wrongly / draws, 4),
    }


def measure_kappa(kappa: float, options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything for judges of one kappa."""
    rng = np.random.default_rng([options.seed, round(100 * kappa)])
    simulated = simulate(rng, POPULATION, kappa)
    figures: dict[str, Any] = {
        "correlation": round(simulated.correlation, 3),
        "difference": round(simulated.truth, 4),
    }
    for count in LABELLED:
        figures[f"{count} labelled"] = measure_fixed(rng, simulated, count, options.draws)
        figures[f"{count} drawn"] = measure_drawn(rng, simulated, count, options.draws)
    figures["disjoint"] = measure_disjoint(rng, simulated, LABELLED[-1], options.draws)
    figures["sequence"] = measure_sequence(rng, simulated, options.sequences)
    return figures


def measure_model(judge: str, dataset: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Let a real judge grade some documents of a collection, and compare it with the labels.

    They are each query's best documents by some systems, fewer than compare has graded.
    """
    collection = load_collection(str(dataset))
    kept = spaced(collection.qrels, options.queries)
    queries = {query: collection.queries[query] for query in kept}
    results = {}
    with Resources.temporary(collection.documents, SearchOptions()) as resources:
        for model in options.systems:
            ranking = resources.ranker(model).search(queries, options.depth)
            results[model] = ranking.results(collection.documents)
    pool = pool_documents(results, kept)
    graded = grade_pool(load_grader(judge), pool, queries, collection.documents)
    labels = complete_judgements({query: collection.qrels[query] for query in kept}, dataset.name)
    agreement = compare_grades(labels, graded, pool)
    grades = [grade for of_query in graded.grades.values() for grade in of_query.values()]
    human, by_judge = labelled_pairs(labels, graded.grades)
    costs = {name: value for name, value in vars(graded).items() if name != "grades"}
    return {
        "judge": Path(judge.removeprefix("hf:")).name,
        "prompt": PROMPT_VERSION,
        "systems": options.systems,
        "queries": len(kept),
        "agreement": None if agreement is None else asdict(agreement),
        "correlation": round(float(np.corrcoef(human, by_judge)[0, 1]), 3),
        "rank_correlation": round(float(spearmanr(human, by_judge).statistic), 3),
        "grades": {str(grade): grades.count(grade) for grade in range(len(GRADES))},
        "costs": costs,
    }


def labelled_pairs(
    labels: Judgements,
    grades: Mapping[str, Mapping[str, int]],
) -> tuple[list[int], list[int]]:
    """Return the label and the grade of each graded pair; a document without a label has 0."""
    human = []
    by_judge = []
    for query, of_query in grades.items():
        for document, grade in of_query.items():
            human.append(max(0, labels.queries[query].grades.get(document, 0)))
            by_judge.append(grade)
    return human, by_judge


def describe(kappas: dict[str, dict[str, Any]]) -> str:
    """Return the table that the script prints."""
    columns = ["kappa", "labelled", "holds", "width", "beside labels alone", "labels needed"]
    rows = []
    for kappa, figures in kappas.items():
        for count in LABELLED:
            fixed = figures[f"{count} labelled"]
            numbers: Sequence[str] = (
                f"{fixed['holds']:.3f}",
                f"{fixed['width']:.3f}",
                f"{fixed['width_ratio']:.2f}",
                f"{fixed['labels_needed']:.2f}",
            )
            rows.append([kappa, str(count), *numbers])
    return markdown_table(columns, rows)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "judge")
    integers = {
        "--draws": (4_000, "Samples of queries of a fixed size."),
        "--sequences": (500, "Samples that are looked at after every label."),
        "--queries": (30, "Queries of a collection that a real judge judges."),
        "--depth": (3, "Documents of each model that it grades for a query."),
        "--seed": (42, "The seed of all simulations."),
    }
    add_integers(parser, integers)
    parser.add_argument("--judge", help="Also measure this judge, named as for compare.")
    parser.add_argument(
        "--systems",
        nargs="+",
        default=["bm25", "minilm"],
        help="Let it grade the best documents of these. Default: bm25 minilm.",
    )
    parser.add_argument(
        "--collections",
        type=Path,
        nargs="*",
        default=[],
        metavar="DIR",
        help="The labelled BEIR folders on which it is measured.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    started = time.process_time()
    kappas = {str(kappa): measure_kappa(kappa, options) for kappa in KAPPAS}
    print(describe(kappas))
    models: dict[str, Any] = {}
    if options.judge:
        for dataset in options.collections:
            models[dataset.name] = measure_model(options.judge, dataset, options)
    settings = {
        name: getattr(options, name) for name in ("draws", "sequences", "queries", "depth", "seed")
    }
    content = {
        **origin(),
        "settings": settings,
        "processor_seconds": round(time.process_time() - started, 1),
        "simulated": kappas,
        "models": models,
    }
    write_results(options.results, content)


if __name__ == "__main__":
    main()
