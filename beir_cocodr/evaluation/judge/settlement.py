"""Verdicts that labels and a judge settle together, where no verdict could be given before."""

import math
from collections.abc import Sequence
from dataclasses import replace

from beir_cocodr.evaluation.judge.findings import JudgedDifference, JudgeFindings
from beir_cocodr.evaluation.judge.prediction_powered import Ends, PoweredMean
from beir_cocodr.evaluation.label_free.verdict import (
    BETTER,
    CANNOT_TELL,
    NO_DIFFERENCE,
    WORSE,
    best_of,
    rank_by_lead,
    undefeated_first,
)
from beir_cocodr.evaluation.results import JUDGED, Findings, PairVerdict


def settle(findings: Findings, judge: JudgeFindings) -> Findings:
    """Return findings whose open pairs are decided by labels and a judge together.

    Only the interval that holds however often one looks decides, and only where there are labels:
    without them a judge has an opinion, and all verdicts stay as they are. A verdict that was given
    stays, too, and so do paired tests with the labels of a split.

    Args:
        findings: The findings without the judge.
        judge: What the judge found.
    """
    if findings.calibration is None:
        return findings
    margin = findings.calibration.margin
    settled = []
    for pair in findings.estimated:
        settled.append(_settle_pair(pair, _joined(pair, judge.differences), judge, margin))
    if settled == findings.estimated:
        return findings
    leads = {(pair.a, pair.b): pair.estimate for pair in settled}
    ranking = undefeated_first(rank_by_lead(findings.ranking, leads), settled)
    return replace(
        findings,
        pairs=settled,
        ranking=ranking,
        best=best_of(ranking, settled),
    )


def _joined(pair: PairVerdict, differences: Sequence[JudgedDifference]) -> PoweredMean | None:
    for difference in differences:
        if (difference.a, difference.b) == (pair.a, pair.b):
            return difference.joined
    return None


def _settle_pair(
    pair: PairVerdict,
    joined: PoweredMean | None,
    judge: JudgeFindings,
    margin: float,
) -> PairVerdict:
    """Return an open pair with the verdict of labels and judge, if they have one."""
    if pair.verdict != CANNOT_TELL or joined is None or joined.sequence is None:
        return pair
    verdict = verdict_of(joined.sequence, margin)
    if verdict == CANNOT_TELL:
        return pair
    low, high = joined.sequence
    chance = _chance(joined)
    return replace(
        pair,
        verdict=verdict,
        probability=chance,
        rule=JUDGED,
        score=2 * chance - 1,
        reason=(
            f"nDCG@10 {joined.difference:+.3f}, {low:+.3f} to {high:+.3f} however often one looks, "
            f"by {judge.labelled} labelled queries and {judge.queries} that {judge.judge} judged"
        ),
        estimate=joined.difference,
        interval=joined.sequence,
        prior_share=0.0,
    )


def verdict_of(interval: Ends, margin: float) -> str:
    """Return the verdict of an interval of the difference of b and a.

    Args:
        interval: Its ends.
        margin: Differences within it do not matter.
    """
    low, high = interval
    if low > 0:
        return BETTER
    if high < 0:
        return WORSE
    if max(-low, high) <= margin:
        return NO_DIFFERENCE
    return CANNOT_TELL


def _chance(joined: PoweredMean) -> float:
    """Return the chance that b is better, as a normal error has it."""
    if not joined.deviation:
        return 0.5
    return 0.5 * math.erfc(-joined.difference / joined.deviation / math.sqrt(2))
