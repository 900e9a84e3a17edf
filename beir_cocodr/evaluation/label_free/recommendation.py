"""Which of the models of an adaptation to use on a corpus without labels, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from beir_cocodr.evaluation.label_free.calibration import DIFFERENT_KINDS, SAME_KIND
from beir_cocodr.evaluation.label_free.pseudo_queries import TRAINED_ON
from beir_cocodr.evaluation.labels_wanted import LABELS_FILE
from beir_cocodr.evaluation.recommendation import BASE, MODES, TRAINING, ablation_families, overall

_USES = dict(zip(MODES, ("alone", "with feedback", "fused"), strict=True))

#: (label of a, label of b) to the pair's entry in comparison.json.
LabelPairs = Mapping[tuple[str, str], Mapping[str, Any]]


def recommend_label_free(comparison: Mapping[str, Any], candidates: Mapping[str, str]) -> dict[str, Any]:
    """Name one model and the reasons, from estimates.

    As with labels, training has to pay, and so has everything else. A trained encoder may be chosen in a use
    (alone, with feedback, fused) only if the rule finds it better there than the base in the same use. Of
    these and the untrained ones the best by estimates is taken that the rule finds better than the base
    alone, else the base.

    Args:
        comparison: of :func:`~beir_cocodr.evaluation.model_comparison.compare_models` over the candidates
            without labels, the uses of the base before everything that they are compared with.
        candidates: label ("bm25", "base", "base, fused", "base + COCO", ...) to model name.

    Returns:
        ``model``, ``measure`` (None), ``verdict``, ``verdicts`` and ``reasons`` as
        :func:`~beir_cocodr.evaluation.recommendation.recommend`; also ``verdicts_by_use`` (trained encoder to
        use to verdict), ``ranking`` (labels, best estimates first), ``calibrated`` and ``trust`` (what is
        known of how often such verdicts are right).
    """
    pairs = label_pairs(comparison, candidates)
    trained = [label for label in candidates if label.startswith(f"{BASE} + ") and ", " not in label]
    by_use = {
        label: {use: pairs[BASE + mode, label + mode]["verdict"] for mode, use in _USES.items()}
        for label in trained
    }
    verdicts = {label: found["alone"] for label, found in by_use.items()}
    allowed = {"bm25", *(BASE + mode for mode in MODES[1:])}
    allowed |= {
        label + mode for label in trained for mode, use in _USES.items() if by_use[label][use] == "better"
    }
    labels = {name: label for label, name in candidates.items()}
    ranking = [labels[name] for name in comparison["ranking"]]
    winners = (label for label in ranking if label in allowed and pairs[BASE, label]["verdict"] == "better")
    chosen = next(winners, BASE)
    trust = {pair["family"]: pair["trust"] for pair in comparison["pairs"]}
    return {
        "model": chosen,
        "measure": None,
        "verdict": overall(list(verdicts.values())),
        "verdicts": verdicts,
        "verdicts_by_use": by_use,
        "ranking": ranking,
        "reasons": [
            "The target has no labels, so these are estimates: from held-out crops, from generated queries, "
            "and from how far the lists of models agree.",
            *_verdicts_told(comparison, pairs, by_use),
            _choice(chosen, pairs),
            f"{len(pairs)} pairs were judged, each for itself: with many, one may be wrong by chance alone.",
            _fresh(comparison),
            _to_label(comparison["labels_wanted"], labels),
        ],
        "calibrated": comparison["pairs"][0]["rule"] == "calibrated",
        "trust": list(dict.fromkeys(trust[name] for name in (SAME_KIND, DIFFERENT_KINDS) if name in trust)),
    }


def label_pairs(comparison: Mapping[str, Any], candidates: Mapping[str, str]) -> LabelPairs:
    """The pairs of a comparison by the labels of its models."""
    labels = {name: label for label, name in candidates.items()}
    return {(labels[pair["a"]], labels[pair["b"]]): pair for pair in comparison["pairs"]}


def training_pairs(candidates: Mapping[str, str]) -> list[tuple[str, str]]:
    """(base, trained encoder), each in the same use."""
    encoders = [label for label in candidates if label != "bm25" and ", " not in label]
    return ablation_families(encoders)[TRAINING]


def _verdicts_told(
    comparison: Mapping[str, Any], pairs: LabelPairs, by_use: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    for label, uses in by_use.items():
        pair = pairs[BASE, label]
        yield f"{label} against {BASE}: {uses['alone']}; {_weighed(pair, comparison)}."
        for estimate in pair["estimates"]:
            yield f"{label} against {BASE}, {estimate['estimator']}: {_told(estimate)}."
        others = ", ".join(f"{use} {found}" for use, found in uses.items() if use != "alone")
        yield f"{label} against {BASE} used in the same way: {others}."


def _weighed(pair: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """What the verdict on a pair of models of one kind rests on."""
    if pair["rule"] == "calibrated":
        threshold = comparison["calibration"]["threshold"]
        return (
            f"the chance that it is better is put at {pair['probability']:.2f}, and it takes {threshold:.2f} "
            f"to call it better, {1 - threshold:.2f} to call it worse"
        )
    signs = [found["sign"] for found in pair["estimates"]]
    return (
        f"{signs.count(1)} of {len(signs)} estimates speak for it and {signs.count(-1)} against it, and it "
        "takes two and none on the other side"
    )


def _told(estimate: Mapping[str, Any]) -> str:
    if estimate["difference"] is None:
        return f"not to be had ({estimate['remark']})"
    span = ", 95% {:+.3f} to {:+.3f}".format(*estimate["interval"]) if estimate["interval"] else ""
    if not estimate["applies"]:
        meaning = f"does not count: {estimate['remark']}"
    else:
        meaning = {1: "speaks for it", -1: "speaks against it", 0: "speaks for neither"}[estimate["sign"]]
    return f"{estimate['a']:.3f} to {estimate['b']:.3f} ({estimate['difference']:+.3f}{span}), {meaning}"


def _choice(chosen: str, pairs: LabelPairs) -> str:
    if chosen == BASE:
        return f"Of what may be chosen the rule finds nothing better than {BASE} alone, so keep it."
    p = pairs[BASE, chosen]["probability"]
    chance = "" if p is None else f" (the chance is put at {p:.2f})"
    same = ", and than the base used in the same way" if chosen.startswith(f"{BASE} + ") else ""
    return (
        f"Use {chosen}: the best by estimates of what the rule finds better than {BASE} alone{chance}{same}."
    )


def _fresh(comparison: Mapping[str, Any]) -> str:
    """That nobody is asked what training has answered."""
    told = comparison["pseudo_queries"]
    known = sum(told[name]["counts"].get(TRAINED_ON, 0) for name in ("held-out crops", "generated queries"))
    return (
        f"Crops and generated queries were drawn anew with the seed {comparison['seed']}, which no training "
        f"used; {known} that a model was trained on were left out."
    )


def _to_label(wanted: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    between = f"{labels[wanted['a']]} and {labels[wanted['b']]}"
    if not wanted["pairs"]:
        return f"There is nothing to label that would tell {between} apart: {wanted['remark']}."
    return (
        f"Labels would tell more: the {len(wanted['pairs'])} pairs in {LABELS_FILE} are those that tell most "
        f"between {between}."
    )
