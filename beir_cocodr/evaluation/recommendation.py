"""The choice among the models of an adaptation by the labels of its target, with its reasons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from beir_cocodr.evaluation.chains import (
    BASE,
    COCO,
    MODES,
    Chain,
)
from beir_cocodr.evaluation.results import EvaluationRecord, PairedTest, Recommendation
from beir_cocodr.models.spec import BM25

#: The questions that an ablation answers. Tests are corrected within each of them.
TRAINING = "trained against the base, used in the same way"
USE = "everything against the base alone"
COCO_FIRST = "COCO before a stage against that stage alone"
STAGE = "one stage more against the same without it"

_COCO_MEANINGS = {
    "better": "COCO helped",
    "worse": "COCO hurt",
    "cannot tell": "COCO did not help measurably",
}

#: Labels of two models, a and b; the question is about b.
LabelPair = tuple[str, str]


def ablation_families(encoders: Sequence[Chain]) -> dict[str, list[LabelPair]]:
    """Return the questions of an ablation, each with the pairs of labels that answer it.

    Args:
        encoders: The encoders, each used alone, the base first.
    """
    trained = encoders[1:]
    uses = [encoder.used(mode) for encoder in encoders for mode in encoder.modes]
    labels = [BM25, *(use.label for use in uses)]
    families = {
        TRAINING: in_each_use((Chain(), encoder) for encoder in trained),
        USE: [(BASE, label) for label in labels if label != BASE],
    }
    coco_pairs = coco_comparisons(trained)
    if coco_pairs:
        families[COCO_FIRST] = in_each_use(coco_pairs)
    stage_pairs = stage_comparisons(trained)
    if stage_pairs:
        families[STAGE] = in_each_use(stage_pairs)
    return families


def in_each_use(pairs: Iterable[tuple[Chain, Chain]]) -> list[LabelPair]:
    """Return the labels of pairs of encoders in each mode that the second one has."""
    labels = []
    for a, b in pairs:
        for mode in b.modes:
            used_a = a.used(mode)
            used_b = b.used(mode)
            labels.append((used_a.label, used_b.label))
    return labels


def coco_comparisons(trained: Sequence[Chain]) -> list[tuple[Chain, Chain]]:
    """Return the chains with COCO before another stage, each after the same chain without it."""
    pairs = []
    for encoder in trained:
        earlier_stages = encoder.stages[:-1]
        if COCO not in earlier_stages:
            continue
        without = encoder.without(COCO)
        if without in trained:
            pairs.append((without, encoder))
    return pairs


def stage_comparisons(trained: Sequence[Chain]) -> list[tuple[Chain, Chain]]:
    """Return the chains that continue another one, each after the chain that it continues."""
    return [
        (encoder.without_last, encoder) for encoder in trained if encoder.without_last in trained
    ]


def recommend(results: EvaluationRecord, encoders: Sequence[Chain]) -> Recommendation:
    """Name one model and the reasons, from the results of an adaptation.

    Training has to pay, and so has everything else. A trained encoder may be chosen in a mode only
    if it is significantly better there than the base in the same mode: two-tailed paired t-test,
    p < 0.05 after Holm's correction over the comparisons that answer the same question. Among these
    and the untrained models the best one in the first measure is taken if it is significantly
    better than the base alone, and the base otherwise.

    Args:
        results: The record of :func:`~beir_cocodr.evaluation.evaluate.evaluate` over
            :func:`ablation_families`.
        encoders: The encoders that were evaluated, as for :func:`ablation_families`.
    """
    ablation = _Ablation.of(results, encoders[1:])
    chosen = ablation.chosen()
    verdicts = {
        encoder.label: ablation.test(TRAINING, BASE, encoder.label).verdict
        for encoder in ablation.trained
    }
    choice = ablation.choice_reason(chosen)
    reasons = [
        *ablation.training_reasons(),
        *ablation.coco_reasons(),
        *ablation.stage_reasons(),
        choice,
        "The choice was made on these labels, so the chosen model's own figure is optimistic.",
    ]
    return Recommendation(
        model=chosen.label if chosen else BM25,
        measure=ablation.measure,
        verdict=overall_verdict(list(verdicts.values())),
        verdicts=verdicts,
        reasons=reasons,
        choice=choice,
    )


@dataclass(frozen=True)
class _Ablation:
    """The results of an adaptation in the measure that decides.

    Attributes:
        measure: Its name.
        values: Label of a model to its value.
        tests: (question, label of a, label of b) to the test.
        trained: The trained encoders, each used alone.
    """

    measure: str
    values: Mapping[str, float]
    tests: Mapping[tuple[str, str, str], PairedTest]
    trained: Sequence[Chain]

    @classmethod
    def of(cls, results: EvaluationRecord, trained: Sequence[Chain]) -> "_Ablation":
        measure = results.measures[0]
        values = {label: model.measures[measure] for label, model in results.models.items()}
        tests = {
            (test.family, test.a, test.b): test
            for test in results.comparisons
            if test.measure == measure
        }
        return cls(measure, values, tests, trained)

    def test(
        self,
        family: str,
        a: str,
        b: str,
    ) -> PairedTest:
        return self.tests[family, a, b]

    def chosen(self) -> Chain | None:
        """Return the recommended model; None for BM25."""
        allowed: list[Chain | None] = [None]
        allowed += [Chain().used(mode) for mode in MODES[1:]]
        for encoder in self.trained:
            uses = map(encoder.used, encoder.modes)
            allowed += [use for use in uses if self._paid(use)]
        better = []
        for model in allowed:
            test = self.test(USE, BASE, _label(model))
            if test.verdict == "better":
                better.append(model)
        return max(
            better,
            key=lambda model: self.values[_label(model)],
            default=Chain(),
        )

    def _paid(self, use: Chain) -> bool:
        """Return true if training made an encoder better than the base in the same mode."""
        base = Chain().used(use.mode)
        test = self.test(TRAINING, base.label, use.label)
        return test.verdict == "better"

    def training_reasons(self) -> list[str]:
        """Say for each trained encoder how it compares with the base."""
        reasons = []
        for encoder in self.trained:
            test = self.test(TRAINING, BASE, encoder.label)
            described = _describe_test(test)
            reasons.append(f"{encoder.label} against {BASE}: {described}.")
        return reasons

    def coco_reasons(self) -> list[str]:
        """Say what COCO before other stages changed."""
        reasons = []
        for without, encoder in coco_comparisons(self.trained):
            test = self.test(COCO_FIRST, without.label, encoder.label)
            stages = " + ".join(without.stages)
            meaning = _COCO_MEANINGS[test.verdict]
            reasons.append(
                f"COCO before {stages}, against {stages} alone: {_describe_test(test)}; {meaning}."
            )
        return reasons

    def stage_reasons(self) -> list[str]:
        """Say what the last stage of each chain changed."""
        reasons = []
        for without, encoder in stage_comparisons(self.trained):
            test = self.test(STAGE, without.label, encoder.label)
            described = _describe_test(test)
            reasons.append(f"{encoder.label} against {without.label}: {described}.")
        return reasons

    def choice_reason(self, chosen: Chain | None) -> str:
        """Say why a model was chosen."""
        base = f"{BASE} alone ({self.values[BASE]:.4f}"
        if chosen == Chain():
            return f"Nothing is significantly better than {base} {self.measure}), so keep it."
        trained = chosen is not None and bool(chosen.stages)
        training = ", and than the base used in the same way" if trained else ""
        label = _label(chosen)
        figure = f"{self.values[label]:.4f} {self.measure}"
        return f"Use {label}: {figure}, significantly better than {base}){training}."


def _label(model: Chain | None) -> str:
    return BM25 if model is None else model.label


def overall_verdict(verdicts: Sequence[str]) -> str:
    """Return "better" if some verdict is, one that all share, and otherwise "cannot tell"."""
    if "better" in verdicts:
        return "better"
    return verdicts[0] if len(set(verdicts)) == 1 else "cannot tell"


def _describe_test(test: PairedTest) -> str:
    difference = f"{test.difference:+.4f}"
    if test.interval is not None:
        low, high = test.interval
        difference += f" [{low:+.4f}, {high:+.4f}]"
    p = "one query, no test"
    if test.t_p_holm is not None:
        p = f"p = {test.t_p_holm:.3g} after Holm"
    return f"{difference} {test.measure}, {p}, {test.verdict}"
