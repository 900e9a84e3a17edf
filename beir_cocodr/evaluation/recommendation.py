"""Which of the evaluated models to use, and why."""

from __future__ import annotations

from typing import Any

#: How the ablation's encoders are called in tables.
BASE = "base"
TRAINED = {"source": "base + source", "coco": "base + COCO", "coco+source": "base + COCO + source"}
MODES = ("", ", feedback", ", fused")
LEVEL = 0.05

TRAINING, USE, COCO = (
    "trained against the base, used in the same way",
    "everything against the base alone",
    "COCO before the source against the source alone",
)

NO_LABELS: dict[str, Any] = {
    "model": BASE,
    "measure": None,
    "verdict": "cannot tell",
    "verdicts": {},
    "reasons": [
        "The target has no labels, so nothing here shows whether adaptation helped.",
        "The base is recommended until some queries are labelled; the trained models are kept.",
    ],
}


def ablation_families(encoders: list[str]) -> dict[str, list[tuple[str, str]]]:
    """The ablation's three questions, each a family of (a, b) comparisons.

    Args:
        encoders: labels, the base first.
    """
    trained = encoders[1:]
    everything = ["bm25", *(label + mode for label in encoders for mode in MODES)]
    families = {
        TRAINING: [(BASE + mode, label + mode) for label in trained for mode in MODES],
        USE: [(BASE, other) for other in everything if other != BASE],
    }
    if {TRAINED["source"], TRAINED["coco+source"]} <= set(trained):
        families[COCO] = [(TRAINED["source"] + mode, TRAINED["coco+source"] + mode) for mode in MODES]
    return families


def recommend(results: dict[str, Any] | None) -> dict[str, Any]:
    """Name one model and the reasons, from the results of an adaptation.

    Training has to pay, and so has everything else. A trained encoder may be chosen in a mode (alone, with
    feedback, fused) only if it is significantly better there than the base in the same mode: two-tailed
    paired t-test, p < 0.05 after Holm's correction over the
    comparisons that answer the same question. Of these and the untrained
    ones the best in the first measure is taken, if it is significantly better than the base alone, else
    the base.

    Args:
        results: of :func:`~beir_cocodr.evaluation.protocol.evaluate` over the ablation's labels and families,
            or None where the target has no labels.

    Returns:
        ``model`` (its label), ``measure``, ``verdicts`` (each trained encoder against the base: "better",
        "worse" or "cannot tell"), ``verdict`` over all of them, and ``reasons`` for a person.
    """
    if results is None:
        return dict(NO_LABELS)
    measure = next(iter(results["models"][BASE]["measures"]))
    value = {label: record["measures"][measure] for label, record in results["models"].items()}
    tests = {
        (test["family"], test["a"], test["b"]): test
        for test in results["comparisons"]
        if test["measure"] == measure
    }
    encoders = [label for label in TRAINED.values() if label in value]
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
    reasons = [f"{label} against {BASE}: {_told(tests[TRAINING, BASE, label])}." for label in encoders]
    without, with_coco = TRAINED["source"], TRAINED["coco+source"]
    if test := tests.get((COCO, without, with_coco)):
        meaning = {
            "better": "COCO helped",
            "worse": "COCO hurt",
            "cannot tell": "COCO did not help measurably",
        }
        reasons.append(
            f"COCO before the source, against the source alone: {_told(test)}; {meaning[verdict(test)]}."
        )
    reasons.append(_choice(chosen, value, measure))
    reasons.append("The choice was made on these labels, so the chosen model's own figure is optimistic.")
    return {
        "model": chosen,
        "measure": measure,
        "verdict": _overall(list(verdicts.values())),
        "verdicts": verdicts,
        "reasons": reasons,
    }


def verdict(test: dict[str, Any]) -> str:
    """ "better" or "worse" where the difference is significant, else "cannot tell"."""
    p = test["t_p_holm"]
    if p is None or p >= LEVEL or test["difference"] == 0:
        return "cannot tell"
    return "better" if test["difference"] > 0 else "worse"


def _overall(verdicts: list[str]) -> str:
    if "better" in verdicts:
        return "better"
    return "worse" if verdicts and set(verdicts) == {"worse"} else "cannot tell"


def _told(test: dict[str, Any]) -> str:
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
