"""The findings of a judge about several models, as comparison.json has them."""

from collections.abc import Iterator
from dataclasses import dataclass

from beir_cocodr.evaluation.judge.prediction_powered import Ends, PoweredMean

#: The known faults of language models as judges.
BIASES = (
    "A judge overrates documents, favours what resembles its own writing, and misses subtle "
    "differences: it never decides alone."
)


@dataclass(frozen=True)
class LabelAgreement:
    """The agreement of a judge with the labels, over pairs that both graded.

    Attributes:
        pairs: The pairs.
        kappa: Cohen's kappa of relevant or not; a label counts as relevant from 1, a judge's grade
            from 2. None where one of the two calls all pairs the same.
        kappa_quadratic: Kappa of the grades with quadratic weights, the labels stretched to the
            judge's scale; None where neither varies.
        relevant_by_labels: The share of the pairs that labels call relevant.
        relevant_by_judge: The share of the pairs that the judge calls relevant.
        counts_unjudged: True if documents without a label count as not relevant, as they do in
            nDCG, because the labels name relevant documents alone.
    """

    pairs: int
    kappa: float | None
    kappa_quadratic: float | None
    relevant_by_labels: float
    relevant_by_judge: float
    counts_unjudged: bool


@dataclass(frozen=True)
class JudgedDifference:
    """The difference in nDCG@10 of model b from model a by a judge, and by labels and judge.

    Attributes:
        opinion: The mean difference by the judge alone, which is not counted.
        opinion_interval: Its 90% interval over queries; None with fewer than two queries.
        joined: The estimate from labels and judge together; None without labels.
    """

    a: str
    b: str
    opinion: float
    opinion_interval: Ends | None
    joined: PoweredMean | None


@dataclass(frozen=True, kw_only=True)
class JudgeFindings:
    """The findings of a judge about several models.

    Attributes:
        judge: The name of the judge.
        prompt: The version of the prompt.
        queries: The queries that it judged.
        labelled: The queries among them that a person labelled.
        pairs: The pairs of a query and a document that it graded.
        kept: The pairs among them that were graded in an earlier run.
        empty: The pairs whose document has no text, which get grade 0.
        cut: The pairs whose document was too long to be read whole.
        refused: The pairs that the judge declined to grade.
        unreadable: The pairs whose answer states no grade.
        tokens: Tokens that it read and wrote in this run.
        seconds: Time of grading in this run.
        values: Model to its nDCG@10 by the judge's grades.
        agreement: The agreement with the labels; None without labels.
        differences: The difference of each pair of models.
    """

    judge: str
    prompt: str
    queries: int
    labelled: int
    pairs: int
    kept: int
    empty: int
    cut: int
    refused: int
    unreadable: int
    tokens: int
    seconds: float
    values: dict[str, float]
    agreement: LabelAgreement | None
    differences: list[JudgedDifference]

    @property
    def title(self) -> str:
        """Return the title of the figures: an opinion unless labels correct them."""
        if self.labelled:
            return f"labels and the judge {self.judge} together"
        return f"opinion of {self.judge}, not counted"

    def describe(self) -> Iterator[str]:
        """Yield sentences: what was graded, how far the judge is right, and what may mislead."""
        yield (
            f"{self.judge} graded {self.pairs:,} pairs of {self.queries:,} queries: {self.kept:,} "
            f"in earlier runs, the others in {self.seconds:.0f} seconds with {self.tokens:,} "
            "tokens."
        )
        if self.agreement is not None:
            yield _describe_agreement(self.agreement)
        else:
            yield (
                "There are no labels to check it against, so its figures are an opinion; judge "
                "some pairs and give them with --judgements."
            )
        yield BIASES
        without_grade = {
            "have a document without text and count as not relevant": self.empty,
            "have a document that was cut": self.cut,
            "were refused by the judge and count as not relevant": self.refused,
            "got an answer without a grade and count as not relevant": self.unreadable,
        }
        for remark, count in without_grade.items():
            if count:
                yield f"{count:,} pairs {remark}."


def _describe_agreement(agreement: LabelAgreement) -> str:
    kappa = _number(agreement.kappa)
    quadratic = _number(agreement.kappa_quadratic)
    unjudged = ""
    if agreement.counts_unjudged:
        unjudged = "; documents without a label count as not relevant"
    return (
        f"Agreement with the labels on {agreement.pairs:,} pairs: kappa {kappa} (relevant or not), "
        f"{quadratic} (grades, quadratic weights); the judge calls "
        f"{agreement.relevant_by_judge:.0%} relevant, the labels "
        f"{agreement.relevant_by_labels:.0%}{unjudged}."
    )


def _number(value: float | None) -> str:
    if value is None:
        return "undefined"
    return f"{value:.2f}"
