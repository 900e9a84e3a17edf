"""Which of the evaluated models to use, and why.

The query-document pairs whose labels would move a comparison most.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.io import atomic_writer
from beir_cocodr.retrieval.ranking import Results

#: How the ablation's encoders are called in tables.
BASE = "base"

MODES = ("", ", feedback", ", fused")

LEVEL = 0.05

TRAINING, USE, COCO, STAGE = (
    "trained against the base, used in the same way",
    "everything against the base alone",
    "COCO before a stage against that stage alone",
    "one stage more against the same without it",
)

_COCO = " + COCO"

_COCO_VERDICTS = {
    "better": "COCO helped",
    "worse": "COCO hurt",
    "cannot tell": "COCO did not help measurably",
}


def ablation_families(encoders: list[str]) -> dict[str, list[tuple[str, str]]]:
    """The ablation's questions, each a family of (a, b) comparisons.

    Args:
        encoders: labels, the base first; the others are "base + A + B", for stages A and then B.
    """
    trained = encoders[1:]
    everything = ["bm25", *(label + mode for label in encoders for mode in MODES)]
    families = {
        TRAINING: [(BASE + mode, label + mode) for label in trained for mode in MODES],
        USE: [(BASE, other) for other in everything if other != BASE],
    }
    without_coco = {label: label.replace(_COCO, "", 1) for label in trained if _COCO + " + " in label}
    without_last = {label: label.rsplit(" + ", 1)[0] for label in trained}
    for family, counterparts in ((COCO, without_coco), (STAGE, without_last)):
        pairs = [(other, label) for label, other in counterparts.items() if other in trained]
        if pairs:
            families[family] = [(a + mode, b + mode) for a, b in pairs for mode in MODES]
    return families


def recommend(results: dict[str, Any]) -> dict[str, Any]:
    """Name one model and the reasons, from the results of an adaptation.

    Training has to pay, and so has everything else. A trained encoder may be chosen in a mode (alone, with
    feedback, fused) only if it is significantly better there than the base in the same mode: two-tailed
    paired t-test, p < 0.05 after Holm's correction over the
    comparisons that answer the same question. Of these and the untrained
    ones the best in the first measure is taken, if it is significantly better than the base alone, else
    the base.

    Args:
        results: of :func:`~beir_cocodr.evaluation.evaluate.evaluate` over the ablation's labels and families.

    Returns:
        ``model`` (its label), ``measure``, ``verdicts`` (each trained encoder against the base: "better",
        "worse" or "cannot tell"), ``verdict`` over all of them, and ``reasons`` for a person.
    """
    measure = next(iter(results["models"][BASE]["measures"]))
    value = {label: record["measures"][measure] for label, record in results["models"].items()}
    tests = {
        (test["family"], test["a"], test["b"]): test
        for test in results["comparisons"]
        if test["measure"] == measure
    }
    encoders = [label for label in value if label.startswith(f"{BASE} + ") and ", " not in label]
    allowed = ["bm25", *(BASE + mode for mode in MODES)]
    allowed += [
        label + mode
        for label in encoders
        for mode in MODES
        if verdict(tests[TRAINING, BASE + mode, label + mode]) == "better"
    ]
    winners = [label for label in allowed if label != BASE and verdict(tests[USE, BASE, label]) == "better"]
    chosen = max(winners, key=value.__getitem__, default=BASE)
    verdicts = {label: verdict(tests[TRAINING, BASE, label]) for label in encoders}
    reasons = [
        f"{label} against {BASE}: {_describe_test(tests[TRAINING, BASE, label])}." for label in encoders
    ]
    for (family, without, label), test in tests.items():
        if ", " in label:
            continue
        if family == COCO:
            stages = without.removeprefix(f"{BASE} + ")
            meaning = _COCO_VERDICTS[verdict(test)]
            reasons.append(
                f"COCO before {stages}, against {stages} alone: {_describe_test(test)}; {meaning}."
            )
        elif family == STAGE:
            reasons.append(f"{label} against {without}: {_describe_test(test)}.")
    reasons.append(_choice(chosen, value, measure))
    reasons.append("The choice was made on these labels, so the chosen model's own figure is optimistic.")
    return {
        "model": chosen,
        "measure": measure,
        "verdict": overall(list(verdicts.values())),
        "verdicts": verdicts,
        "reasons": reasons,
    }


def verdict(test: dict[str, Any]) -> str:
    """ "better" or "worse" where the difference is significant, else "cannot tell"."""
    p = test["t_p_holm"]
    if p is None or p >= LEVEL or test["difference"] == 0:
        return "cannot tell"
    return "better" if test["difference"] > 0 else "worse"


def overall(verdicts: list[str]) -> str:
    """ "better" if some are, "worse" if all are, else "cannot tell"."""
    if "better" in verdicts:
        return "better"
    return "worse" if verdicts and set(verdicts) == {"worse"} else "cannot tell"


def _describe_test(test: dict[str, Any]) -> str:
    p = "one query, no test" if test["t_p_holm"] is None else f"p = {test['t_p_holm']:.3g} after Holm"
    span = "" if test["interval"] is None else " [{:+.4f}, {:+.4f}]".format(*test["interval"])
    return f"{test['difference']:+.4f}{span} {test['measure']}, {p}, {verdict(test)}"


def _choice(chosen: str, value: dict[str, float], measure: str) -> str:
    if chosen == BASE:
        return f"Nothing is significantly better than {BASE} alone ({value[BASE]:.4f} {measure}), so keep it."
    training = "" if chosen.split(",")[0] in (BASE, "bm25") else ", and than the base used in the same way"
    return (
        f"Use {chosen}: {value[chosen]:.4f} {measure}, significantly better than {BASE} alone "
        f"({value[BASE]:.4f}){training}."
    )


#: Ranks that the measure sees.
DEPTH = 10

#: Where they are written.
LABELS_FILE = "labels_wanted.tsv"

COLUMNS = ("query_id", "document_id", "weight", "rank_a", "rank_b", "query", "document")

_TEXT = 300


def annotation_candidates(
    first: Results,
    second: Results,
    judged: Mapping[str, Mapping[str, int]] | None = None,
    count: int = 50,
) -> list[dict[str, Any]]:
    """The unjudged pairs that two rankings place most differently.

    The weight of a pair is by how much the difference of the two models' DCG@10 changes if its document turns
    out to be relevant: |1 / log2(1 + rank_a) − 1 / log2(1 + rank_b)|, 0 beyond rank 10. Among equal weights
    the queries come first on which the lists differ most, by the sum of their weights.

    Args:
        first, second: results of models a and b for the same queries.
        judged: qrels; pairs in them are left out.
        count: the most pairs.

    Returns:
        rows with ``query_id``, ``document_id``, ``weight``, ``rank_a``, ``rank_b`` (None beyond rank 10),
        the heaviest first.
    """
    rows: list[tuple[float, float, dict[str, Any]]] = []
    for query in dict.fromkeys([*first, *second]):
        ranks = [
            {document: rank for rank, (document, _) in enumerate(found.get(query, [])[:DEPTH], 1)}
            for found in (first, second)
        ]
        known = (judged or {}).get(query, {})
        weights = {
            document: abs(_discount(ranks[0].get(document)) - _discount(ranks[1].get(document)))
            for document in {**ranks[0], **ranks[1]}
            if document not in known
        }
        total = sum(weights.values())
        for document, weight in weights.items():
            if weight > 0:
                pair = {"query_id": query, "document_id": document, "weight": weight}
                pair |= {"rank_a": ranks[0].get(document), "rank_b": ranks[1].get(document)}
                rows.append((weight, total, pair))
    # Sums are rounded, as their last bits depend on the order of their terms.
    rows.sort(key=lambda row: (-row[0], -round(row[1], 12), row[2]["query_id"], row[2]["document_id"]))
    return [pair for _, _, pair in rows[:count]]


def with_texts(
    rows: list[dict[str, Any]], queries: Mapping[str, str], documents: Documents
) -> list[dict[str, Any]]:
    """The rows with the query and the beginning of the document, for whoever labels them."""
    found = documents.rows([row["document_id"] for row in rows])
    texts = {int(row): documents.take([int(row)])[0] for row in np.unique(found) if row >= 0}
    told = []
    for row, place in zip(rows, found.tolist(), strict=True):
        document = texts.get(place, {"title": "", "text": ""})
        text = f"{document['title']} {document['text']}".strip()
        told.append(row | {"query": queries.get(row["query_id"], ""), "document": text[:_TEXT]})
    return told


def write_annotation_candidates(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows as TSV with a header; tabs and line ends in texts become spaces."""
    with atomic_writer(path) as file:
        file.write("\t".join(COLUMNS) + "\n")
        for row in rows:
            cells = ["" if row[name] is None else str(row[name]) for name in COLUMNS]
            file.write("\t".join(" ".join(cell.split()) for cell in cells) + "\n")


def _discount(rank: int | None) -> float:
    return 0.0 if rank is None else 1 / float(np.log2(1 + rank))
