"""Claim: a calibration that has seen one strong encoder judges other strong ones.

The model of differences is fitted to the systems of some encoders and judges those of each encoder,
on collections whose families took no part in the fit. So where an encoder is left out, it is left
out with the collections that it is judged on, as a stranger's encoder is. Compared are

- what is fitted: the systems of MiniLM, of MPNet, of multilingual E5, of static word vectors, of
  several of these, or of all. An encoder's pairs on a collection weigh together like those of
  another encoder;
- how kinds are named: by the use of an encoder alone; or with a kind of their own for encoders that
  are much worse than BM25 on crops and titles, as the package does;
- the differences of pairs as they are, or made consistent: one score for each system, by weighted
  least squares, so that the pairs of a collection share their evidence.

The script prints a table for each combination, and writes
``benchmarks/results/verdict_encoders.json``:

    python benchmarks/verdict_encoders.py --work runs/collect --unseen apidocs/pandas lisa
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from collecting.searched import load_searched
from fitting.judged_collections import JudgedCollection
from fitting.labelled_pairs import LabelledPairs
from fitting.left_out import Predicted, leave_families_out
from fitting.moment_fit import CAUTION
from fitting.summaries import Summary, encoders_of, grouped, picks, share, summarize
from harness.page import markdown_table
from harness.script import add_work, option_parser, origin, settings_of, write_results

from beir_cocodr.evaluation.label_free.estimators import MADE
from beir_cocodr.evaluation.label_free.evidence import WEAK
from beir_cocodr.evaluation.label_free.verdict import GIVEN_QUERIES
from beir_cocodr.evaluation.label_free.weak_encoders import FAR_BEHIND
from beir_cocodr.models.spec import BM25

MINILM = "minilm"
MPNET = "mpnet"
E5 = "e5"
STATIC = "glove"

#: The encoders that were searched on enough collections for a table of the documentation.
DOCUMENTED = (MINILM, MPNET, E5, STATIC)

#: Encoders that are near BM25 or above it on most collections.
STRONG = frozenset({MINILM, MPNET, E5})
#: Their names in tables.
TITLES = {MINILM: "MiniLM", MPNET: "MPNet", E5: "E5"}

#: Returns the encoders of a collection that have kinds of their own.
Distinguish = Callable[[JudgedCollection], frozenset[str]]


def no_encoder(collection: JudgedCollection) -> frozenset[str]:
    """Return no encoder: kinds are named by the use alone."""
    return frozenset()


def weak_encoders(collection: JudgedCollection) -> frozenset[str]:
    """Return the encoders that are much worse than BM25 on crops and titles."""
    pairs = collection.pairs[GIVEN_QUERIES]
    systems = collection.searched.systems
    weak = set()
    for (a, b), features in zip(pairs.models, pairs.features, strict=True):
        is_alone = systems[b].use == "dense"
        if a == BM25 and is_alone and features.get(MADE, 0.0) < -FAR_BEHIND:
            weak.add(systems[b].encoder)
    return frozenset(weak)


#: How kinds are named, to the encoders that have kinds of their own.
BY_USE = "use"
PACKAGED = "use, weak or not"
KINDS: dict[str, Distinguish] = {BY_USE: no_encoder, PACKAGED: weak_encoders}


@dataclass(frozen=True)
class Part:
    """The pairs of one encoder, or of two encoders, on one collection.

    Attributes:
        encoders: The encoders, such as "minilm" or "glove and minilm".
        fitted: The pairs of the fit.
        counted: The pairs that are counted; None for an easy or an unseen collection.
    """

    encoders: str
    fitted: LabelledPairs
    counted: LabelledPairs | None

    @property
    def members(self) -> set[str]:
        """Return the names of the encoders."""
        return set(self.encoders.split(" and "))


@dataclass(frozen=True)
class Form:
    """What is fitted, and what is judged by it.

    Attributes:
        kinds: A name of :data:`KINDS`.
        fitted: The encoders that are fitted; all if there are none.
        judged: The encoders that are judged. Default: all, and the pairs of each two.
    """

    kinds: str
    fitted: frozenset[str] = frozenset()
    judged: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """Return the name of the fit."""
        if not self.fitted:
            return "all encoders"
        if self.fitted == {STATIC}:
            return "static word vectors"
        *others, last = [TITLES[name] for name in TITLES if name in self.fitted]
        return f"{', '.join(others)} and {last}" if others else last

    def judges(self, part: Part) -> bool:
        """Return true if the pairs of a part are judged."""
        if part.counted is None:
            return False
        return not self.judged or part.encoders in self.judged


def forms() -> Iterator[Form]:
    """Yield what is compared."""
    minilm = frozenset({MINILM})
    yield Form(BY_USE, minilm)
    yield Form(PACKAGED, minilm)
    yield Form(PACKAGED, STRONG)
    yield Form(PACKAGED, frozenset({STATIC}), STRONG | {STATIC})
    yield Form(PACKAGED, frozenset(), STRONG | {STATIC})
    for encoder in (MPNET, E5):
        yield Form(PACKAGED, frozenset({encoder}), STRONG)
    for encoder in TITLES:
        yield Form(PACKAGED, STRONG - {encoder}, frozenset({encoder}))


def parts_of(
    collection: JudgedCollection,
    distinguish: Distinguish,
    *,
    is_counted: bool,
) -> Iterator[Part]:
    """Yield the pairs of each encoder and of each two encoders of a collection.

    Args:
        collection: The collection.
        distinguish: Returns the encoders that have kinds of their own.
        is_counted: False if its pairs are only fitted.
    """
    apart = distinguish(collection)
    fitted = _by_encoders(collection, _renamed(collection, collection.fitted(GIVEN_QUERIES), apart))
    counted: Mapping[str, LabelledPairs] = {}
    if is_counted:
        pairs = _renamed(collection, collection.counted(GIVEN_QUERIES), apart)
        counted = _by_encoders(collection, pairs)
    for encoders, pairs in fitted.items():
        yield Part(encoders, pairs, counted.get(encoders))


def _renamed(
    collection: JudgedCollection,
    pairs: LabelledPairs,
    apart: frozenset[str],
) -> LabelledPairs:
    """Return pairs in which the systems of these encoders alone have kinds of their own."""
    systems = collection.searched.systems

    def kind_of(model: str, kind: str | None) -> str | None:
        if kind is None:
            return None
        use = kind.removeprefix(WEAK)
        return f"other {use}" if systems[model].encoder in apart else use

    kinds = []
    for (a, b), (kind_a, kind_b) in zip(pairs.models, pairs.kinds, strict=True):
        kinds.append((kind_of(a, kind_a), kind_of(b, kind_b)))
    return replace(pairs, kinds=kinds)


def _by_encoders(collection: JudgedCollection, pairs: LabelledPairs) -> dict[str, LabelledPairs]:
    names = [encoders_of(collection.searched, pair) for pair in pairs.models]
    parts = {}
    for encoders in dict.fromkeys(names):
        parts[encoders] = pairs.take(np.array([name == encoders for name in names]))
    return parts


def consistent(predicted: Predicted) -> Predicted:
    """Return the predictions with means that are differences of one score for each system.

    The scores are those of weighted least squares, with the precision of each pair as its weight.
    """
    pairs = predicted.pairs
    names = list(dict.fromkeys(name for pair in pairs.models for name in pair))
    columns = {name: column for column, name in enumerate(names)}
    signs = np.zeros((len(pairs.models), len(names)))
    for row, (a, b) in enumerate(pairs.models):
        signs[row, columns[a]] = -1
        signs[row, columns[b]] = 1
    deviations = np.array([difference.deviation for difference in predicted.differences])
    weights = 1 / np.maximum(deviations, 1e-3)
    scores, *_ = np.linalg.lstsq(signs * weights[:, None], predicted.expected * weights)
    means = (signs @ scores).tolist()
    differences = []
    for difference, mean in zip(predicted.differences, means, strict=True):
        differences.append(difference.moved(mean))
    return Predicted(pairs, differences)


def measure(
    collections: Sequence[JudgedCollection],
    form: Form,
    unseen: frozenset[str],
) -> dict[str, Summary]:
    """Judge the systems of encoders by fits that have not seen the families judged.

    Args:
        collections: The collections.
        form: What is fitted and judged.
        unseen: Names of collections that take no part.

    Returns:
        Encoders to their figures.
    """
    parts = []
    for one in collections:
        if one.name not in unseen:
            parts += parts_of(one, KINDS[form.kinds], is_counted=not one.is_easy)
    seen = [part.fitted for part in parts if not form.fitted or part.members <= form.fitted]
    judged = [part for part in parts if form.judges(part)]
    pairs = [part.counted for part in judged if part.counted is not None]
    predictions = leave_families_out(seen, pairs, caution=CAUTION[GIVEN_QUERIES])
    by_encoders: dict[str, list[Predicted]] = {}
    for part, predicted in zip(judged, predictions, strict=True):
        by_encoders.setdefault(part.encoders, []).append(predicted)
    return {name: _figures(by_encoders[name], collections) for name in sorted(by_encoders)}


def _figures(
    predictions: Sequence[Predicted],
    collections: Sequence[JudgedCollection],
) -> Summary:
    searched = {one.name: one.searched for one in collections}
    joined = [consistent(predicted) for predicted in predictions]
    return {
        "all": summarize(predictions),
        "by kind of collection": grouped(predictions, lambda pairs, _: searched[pairs.name].kind),
        "consistent": summarize(joined),
        "picks": picks(predictions, searched)["means"],
        "consistent picks": picks(joined, searched)["means"],
    }


_HEADER = ["kinds by", "fitted to", "judged", "collections", "intervals hold", "worst kind"]
_HEADER += ["width", "error", "sign right", "> 0.05 decided", "picks", "always fusion"]


def describe(results: Mapping[str, Any], encoders: Sequence[str] = ()) -> str:
    """Return the table that the script prints.

    Args:
        results: The results.
        encoders: The encoders that are shown; by default all.
    """
    rows = []
    for kinds, by_fit in results["forms"].items():
        for fitted, by_encoders in by_fit.items():
            for name, figures in by_encoders.items():
                if not encoders or name in encoders:
                    rows.append([kinds, fitted, name, *_cells(figures)])
    return markdown_table(_HEADER, rows)


def _cells(figures: Mapping[str, Any]) -> list[str]:
    summary = figures["all"]
    counts = summary["counts"]
    kinds = figures["by kind of collection"].values()
    worst = min(share(of_kind, "covered", "pairs") for of_kind in kinds)
    means = figures["picks"]
    return [
        str(summary["collections"]),
        f"{counts['covered']} of {counts['pairs']}",
        f"{worst:.0%}",
        f"{summary['width']:.2f}",
        f"{summary['error']:.3f}",
        f"{counts['right']} of {counts['decided']}",
        f"{counts['very_large_decided']} of {counts['very_large']}",
        f"{means['picked']:.3f}" if means["picked"] else "",
        f"{means['fusion']:.3f}" if means["fusion"] else "",
    ]


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = option_parser(__doc__, "verdict_encoders")
    add_work(parser, "runs/benchmark-collect")
    parser.add_argument(
        "--unseen",
        nargs="*",
        default=[],
        help="Leave these collections out altogether.",
    )
    return parser.parse_args()


def main() -> None:
    """Measure all forms and fits, and print and write the results."""
    options = parse_options()
    collections = []
    for searched in load_searched(options.work):
        if not searched.facts.pooled:
            collections.append(JudgedCollection.of(searched))
            print(f"{searched.name}: {len(searched.systems)} systems", flush=True)
    measured: dict[str, dict[str, Any]] = {kinds: {} for kinds in KINDS}
    for form in forms():
        figures = measure(collections, form, frozenset(options.unseen))
        measured[form.kinds][form.title] = figures
        print(f"{form.kinds}, fitted to {form.title}: {len(figures)} judged", flush=True)
    results = origin() | {"settings": settings_of(options), "forms": measured}
    write_results(options.results, results)
    print(describe(results))


if __name__ == "__main__":
    main()
