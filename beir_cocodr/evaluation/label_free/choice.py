"""The choice among the models of an adaptation by estimates without labels, with its reasons."""

from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass

from beir_cocodr.evaluation import results as records
from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.chains import ALONE, BASE, Chain
from beir_cocodr.evaluation.label_free.verdict import (
    BETTER,
    DIFFERENT_KINDS,
    NEW_KIND,
    SAME_KIND,
)
from beir_cocodr.evaluation.recommendation import LabelPair, overall_verdict
from beir_cocodr.evaluation.results import CALIBRATED
from beir_cocodr.models.spec import BM25

#: (label of a, label of b) to the verdict on b against a.
LabelPairs = Mapping[LabelPair, records.PairVerdict]


def recommend_label_free(
    comparison: records.ComparisonRecord,
    candidates: Mapping[str, str],
    chains: Mapping[str, Chain],
) -> records.Recommendation:
    """Name one model and the reasons, from estimates.

    A trained encoder may be chosen in a mode only if the verdict on it is better than the base in
    the same mode. Among these and the untrained models the one with the highest expected value is
    taken, unless the base alone is more likely to be better.

    Args:
        comparison: The record of a comparison of the candidates without labels, in which the uses
            of the base come before everything that they are compared with.
        candidates: Label to model name.
        chains: Label to chain, of all candidates except BM25.
    """
    choice = _Choice.of(comparison, candidates, chains)
    by_use = choice.verdicts_by_use()
    verdicts = {label: uses[ALONE] for label, uses in by_use.items()}
    chosen = choice.chosen(by_use)
    return records.Recommendation(
        model=chosen,
        measure=None,
        verdict=overall_verdict(list(verdicts.values())),
        verdicts=verdicts,
        reasons=list(choice.reasons(chosen, by_use)),
        choice=choice.choice_reason(chosen),
        verdicts_by_use=by_use,
        ranking=choice.ranking,
        calibrated=comparison.estimated[0].rule == CALIBRATED,
        trust=choice.trust(),
        probability=choice.probability(chosen),
        decided=choice.is_decided(chosen),
    )


def label_pairs(comparison: records.ComparisonRecord, candidates: Mapping[str, str]) -> LabelPairs:
    """Return the pairs of a comparison by the labels of their models.

    Args:
        comparison: A comparison without labels.
        candidates: Label to model name.
    """
    labels = {name: label for label, name in candidates.items()}
    return {(labels[pair.a], labels[pair.b]): pair for pair in comparison.estimated}


def training_pairs(chains: Iterable[Chain]) -> list[LabelPair]:
    """Return (base, trained encoder) pairs of labels in the same use, where both exist."""
    all_chains = list(chains)
    pairs = []
    for chain in all_chains:
        base = Chain().used(chain.mode)
        if chain.stages and base in all_chains:
            pairs.append((base.label, chain.label))
    return pairs


@dataclass(frozen=True)
class _Choice:
    """A comparison without labels, by the labels of its models.

    Attributes:
        comparison: The comparison.
        labels: Model name to label.
        pairs: The verdicts by labels.
        chains: The candidates except BM25.
    """

    comparison: records.ComparisonRecord
    labels: Mapping[str, str]
    pairs: LabelPairs
    chains: Sequence[Chain]

    @classmethod
    def of(
        cls,
        comparison: records.ComparisonRecord,
        candidates: Mapping[str, str],
        chains: Mapping[str, Chain],
    ) -> "_Choice":
        return cls(
            comparison=comparison,
            labels={name: label for label, name in candidates.items()},
            pairs=label_pairs(comparison, candidates),
            chains=list(chains.values()),
        )

    @property
    def ranking(self) -> list[str]:
        """Return the labels, best estimates first."""
        return [self.labels[name] for name in self.comparison.ranking]

    def verdicts_by_use(self) -> dict[str, dict[str, str]]:
        """Return trained encoder to mode to the verdict against the base in the same mode."""
        by_use: dict[str, dict[str, str]] = {}
        for encoder in self.chains:
            if encoder.stages and encoder.mode == ALONE:
                by_use[encoder.label] = {
                    mode: self._against_base(encoder.used(mode)) for mode in encoder.modes
                }
        return by_use

    def _against_base(self, chain: Chain) -> str:
        base = Chain().used(chain.mode)
        return self.pairs[base.label, chain.label].verdict

    def chosen(self, by_use: Mapping[str, Mapping[str, str]]) -> str:
        """Return the label of the recommended model."""
        allowed = {BM25}
        for chain in self.chains:
            if not chain.stages and chain.mode != ALONE:
                allowed.add(chain.label)
            if chain.stages and by_use[chain.encoder.label].get(chain.mode) == BETTER:
                allowed.add(chain.label)
        for label in self.ranking:
            if label == BASE:
                break
            if label in allowed and self.pairs[BASE, label].probability > 0.5:
                return label
        return BASE

    def is_decided(self, chosen: str) -> bool:
        """Return true if the verdict on the chosen model is better than the base alone."""
        return chosen != BASE and self.pairs[BASE, chosen].verdict == BETTER

    def probability(self, chosen: str) -> float | None:
        """Return the chance that the chosen model is better than the base; None for the base."""
        return None if chosen == BASE else self.pairs[BASE, chosen].probability

    def trust(self) -> list[str]:
        """Return the statements on how often such verdicts are right."""
        statements = {pair.family: pair.trust for pair in self.pairs.values()}
        families = [SAME_KIND, DIFFERENT_KINDS, NEW_KIND]
        known = [statements[family] for family in families if family in statements]
        return list(dict.fromkeys(known))

    def reasons(self, chosen: str, by_use: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        """Yield sentences: what was seen, what may be chosen, and what is chosen."""
        yield (
            "The target has no labels, so these are estimates: from what usually wins on labelled "
            "collections, and from how well each model finds documents by crops and titles that "
            "were taken from them."
        )
        if self.comparison.few_labels is not None:
            yield from self.comparison.few_labels.describe()
        for label, uses in by_use.items():
            yield from self._verdict_reasons(label, uses)
        yield self.choice_reason(chosen)
        yield (
            f"{len(self.pairs)} pairs were judged, each by itself: among many, one may be wrong "
            "by chance alone."
        )
        yield self._sample_reason()
        yield self._annotation_reason()

    def _verdict_reasons(self, label: str, uses: Mapping[str, str]) -> Iterator[str]:
        pair = self.pairs[BASE, label]
        compared = f"{label} against {BASE}"
        yield f"{compared}: {uses[ALONE]}; {pair.reason}."
        for estimate in pair.estimates:
            described = _describe_estimate(estimate)
            yield f"{compared}, {estimate.estimator}: {described}."
        others = [f"{mode} {verdict}" for mode, verdict in uses.items() if mode != ALONE]
        verdicts = ", ".join(others)
        yield f"{compared} used in the same way: {verdicts}."

    def choice_reason(self, chosen: str) -> str:
        """Say why a model was chosen."""
        if chosen == BASE:
            return (
                "Among the models that may be chosen, none is expected to be better than "
                f"{BASE} alone, so keep it."
            )
        pair = self.pairs[BASE, chosen]
        low, high = pair.interval
        gain = (
            f"{pair.estimate:+.3f} nDCG@10 against {BASE} alone, 90% {low:+.3f} to {high:+.3f}, "
            f"with a chance of {pair.probability:.0%} to be better"
        )
        best = "it has the highest expected nDCG@10 of the models that may be chosen"
        if not self.is_decided(chosen):
            return (
                f"{chosen} is the best bet, without a verdict: {best} ({gain}; "
                f"{pair.prior_share:.0%} of this is what usually wins){_usually(pair)}."
            )
        same_use = ""
        if any(chain.stages for chain in self.chains if chain.label == chosen):
            same_use = ", and than the base used in the same way"
        return f"Use {chosen}: {best}, and is better than {BASE} alone{same_use} ({gain})."

    def _sample_reason(self) -> str:
        left_out = sum(
            figures.counts.get(records.TRAINED_ON, 0)
            for figures in self.comparison.pseudo_queries.values()
        )
        return (
            f"Crops and generated queries were drawn anew with the seed {self.comparison.seed}, "
            f"which no training used; {left_out} that a model was trained on were left out."
        )

    def _annotation_reason(self) -> str:
        wanted = self.comparison.labels_wanted
        between = f"{self.labels[wanted.a]} and {self.labels[wanted.b]}"
        if not wanted.pairs:
            return f"No labels would distinguish between {between}: {wanted.remark}."
        origin = f" ({wanted.remark})" if wanted.remark else ""
        return (
            f"Labels would help: the {len(wanted.pairs)} pairs in {LABELS_FILE} are those that say "
            f"most about {between}{origin}."
        )


def _usually(pair: records.PairVerdict) -> str:
    if pair.precedent is None:
        return ""
    return pair.describe_precedent()


def _describe_estimate(estimate: records.Estimate) -> str:
    if estimate.a is None or estimate.b is None or estimate.difference is None:
        return f"not available ({estimate.remark})"
    difference = f"{estimate.difference:+.3f}"
    if estimate.interval:
        low, high = estimate.interval
        difference += f", 95% {low:+.3f} to {high:+.3f}"
    values = f"{estimate.a:.3f} to {estimate.b:.3f}"
    return f"{values} ({difference}), {_meaning(estimate)}"


def _meaning(estimate: records.Estimate) -> str:
    if not estimate.applies:
        return f"does not count: {estimate.remark}"
    meanings = {
        0: "supports neither",
        1: "supports it",
        -1: "contradicts it",
    }
    return meanings[estimate.sign]
