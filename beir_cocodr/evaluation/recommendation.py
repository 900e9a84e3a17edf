"""Which of the evaluated models to use, and why."""

from __future__ import annotations

from typing import Any

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
        results: of :func:`~beir_cocodr.evaluation.protocol.evaluate` over the ablation's labels and families.

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
    reasons = [f"{label} against {BASE}: {_told(tests[TRAINING, BASE, label])}." for label in encoders]
    for (family, without, label), test in tests.items():
        if ", " in label:
            continue
        if family == COCO:
            stages = without.removeprefix(f"{BASE} + ")
            meaning = _COCO_VERDICTS[verdict(test)]
            reasons.append(f"COCO before {stages}, against {stages} alone: {_told(test)}; {meaning}.")
        elif family == STAGE:
            reasons.append(f"{label} against {without}: {_told(test)}.")
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
