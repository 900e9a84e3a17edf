"""Claim: how specific results are is evidence, however exactly it is measured.

The model of differences is fitted with the lead on crops and titles, and with the specificity of
results in several forms, one after another: more or fewer first documents of a query, best
documents of other queries, and queries of a sample; other floors of the logarithm; and more or less
of what crops show subtracted. Each time, all pairs of undamaged systems are judged by fits without
the family of their collection, with the collection's queries.

The script prints the table, and writes it to ``docs/results.md`` and
``benchmarks/results/verdict_specificity.json``:

    python benchmarks/verdict_specificity.py --work runs/collect
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collecting.searched import load_searched
from fitting.judged_collections import JudgedCollection, with_features
from fitting.labelled_pairs import LabelledPairs
from fitting.left_out import leave_families_out
from fitting.moment_fit import CAUTION
from fitting.summaries import encoders_of, grouped, share, summarize
from harness.page import PAGE, Marks, markdown_table
from harness.script import (
    add_work,
    option_parser,
    origin,
    results_file,
    settings_of,
    write_results,
)

from beir_cocodr.evaluation.label_free.estimators import MADE, SPECIFICITY
from beir_cocodr.evaluation.label_free.hubs import HubForm, Specificity
from beir_cocodr.evaluation.label_free.verdict import GIVEN_QUERIES

MARKS = Marks("<!-- forms of specificity -->", "<!-- end of forms of specificity -->")

#: Encoders whose uses are fitted and judged.
ENCODERS = ("minilm", "minilm-fitted", "mpnet")

#: What differs from the packaged form to the form; without one, crops and titles count alone.
FORMS: dict[str, HubForm | None] = {
    "no specificity": None,
    "specificity, as it counts": HubForm(),
    "the best document of a query": HubForm(first=1),
    "the three best": HubForm(first=3),
    "the five best": HubForm(first=5),
    "among the five best of other queries": HubForm(depth=5),
    "among their twenty best": HubForm(depth=20),
    "samples of five queries": HubForm(sample=5),
    "samples of twenty": HubForm(sample=20),
    "a floor of 0.1": HubForm(floor=0.1),
    "a floor of 0.4": HubForm(floor=0.4),
    "nothing of crops subtracted": HubForm(of_crops=0.0),
    "all of crops subtracted": HubForm(of_crops=1.0),
}

_COLUMNS = ["", "intervals hold", "worst kind", "width", "error", "sign right", "> 0.05 decided"]


def with_form(
    one: JudgedCollection,
    pairs: LabelledPairs,
    form: HubForm | None,
) -> LabelledPairs:
    """Return the pairs of a collection with specificity in another form."""
    pairs = with_features(pairs, [MADE])
    if form is None:
        return pairs
    estimator = Specificity(SPECIFICITY, form)
    evidence = one.searched.with_queries
    features = []
    for (a, b), known in zip(pairs.models, pairs.features, strict=True):
        features.append(known | estimator.features(evidence, a, b))
    return replace(pairs, features=features)


def judge(collections: Sequence[JudgedCollection], form: HubForm | None) -> dict[str, Any]:
    """Judge all counted pairs by fits with one form of specificity."""
    kinds = {one.name: one.searched.kind for one in collections}
    fitted = [with_form(one, one.pairs[GIVEN_QUERIES], form) for one in collections]
    judged = [
        with_form(one, one.counted(GIVEN_QUERIES), form) for one in collections if not one.is_easy
    ]
    predictions = leave_families_out(fitted, judged, caution=CAUTION[GIVEN_QUERIES])
    by_kind = grouped(predictions, lambda pairs, _: kinds[pairs.name])
    searched = {one.name: one.searched for one in collections}
    return summarize(predictions) | {
        "by encoder": grouped(
            predictions, lambda pairs, row: encoders_of(searched[pairs.name], pairs.models[row])
        ),
        "worst kind": min(share(summary, "covered", "pairs") for summary in by_kind.values()),
    }


def table(results: Mapping[str, Any]) -> str:
    """Return the table of all forms."""
    rows = []
    for name, summary in results["forms"].items():
        counts = summary["counts"]
        rows.append(
            [
                name,
                f"{counts['covered']} of {counts['pairs']}",
                f"{summary['worst kind']:.0%}",
                f"{summary['width']:.3f}",
                f"{summary['error']:.3f}",
                f"{counts['right']} of {counts['decided']}",
                f"{counts['very_large_decided']} of {counts['very_large']}",
            ]
        )
    return markdown_table(_COLUMNS, rows)


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = option_parser(__doc__, "verdict_specificity")
    add_work(parser, "runs/benchmark-collect")
    parser.add_argument(
        "--encoders",
        nargs="+",
        default=list(ENCODERS),
        help=f"Judge the uses of these encoders. Default: {' '.join(ENCODERS)}.",
    )
    return parser.parse_args()


def main() -> None:
    """Judge all pairs with all forms, and print and write the results."""
    options = parse_options()
    collections = []
    for searched in load_searched(options.work, tuple(options.encoders)):
        if not searched.facts.pooled:
            collections.append(JudgedCollection.of(searched))
    forms = {}
    for name, form in FORMS.items():
        forms[name] = judge(collections, form)
        print(name, flush=True)
    results = origin() | {"settings": settings_of(options), "forms": forms}
    write_results(options.results, results)
    text = table(results)
    if options.results.resolve() == results_file("verdict_specificity"):
        MARKS.write(PAGE, text)
    print(text)


if __name__ == "__main__":
    main()
