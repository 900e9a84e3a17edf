"""The rule of the gate: symmetric, monotone, and sure of nothing that it has not seen."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from beir_cocodr.evaluation.gate_rule import (
    GENERATED,
    JUDGED,
    LABELLED,
    NOT_WORSE,
    RATES_WITH_FEW_QUERIES,
    RATES_WITH_QUERIES,
    RATES_WITHOUT_QUERIES,
    REAL,
    SPANS,
    WORSE,
    GateEvidence,
    assess,
    measured_rates,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "gate.json"

shares = st.floats(0, 1)
differences = st.floats(-1, 1)
errors = st.floats(0.001, 0.2)


def evidence(kind: str, difference: float, error: float, distance: float) -> GateEvidence:
    return GateEvidence(
        kind, 200, distance, old=0.5, new=0.5, difference=difference, standard_error=error
    )


@given(differences, errors, differences, errors, shares)
def test_exchanging_both_sides_negates_the_estimate(spans, spans_error, judged, error, distance):
    figures = [evidence(SPANS, spans, spans_error, distance)]
    figures.append(evidence(LABELLED, judged, error, distance))
    turned = [evidence(SPANS, -spans, spans_error, distance)]
    turned.append(evidence(LABELLED, -judged, error, distance))
    first = assess(figures, 0.01)
    second = assess(turned, 0.01)
    assert second.estimate == pytest.approx(-first.estimate, abs=1e-12)
    assert second.deviation == pytest.approx(first.deviation)
    low, high = first.interval
    assert second.interval == pytest.approx((-high, -low))


@given(
    differences,
    st.floats(0, 0.5),
    errors,
    shares,
    st.floats(0, 0.2),
    st.floats(0, 0.2),
    st.integers(0, 20),
)
def test_a_larger_loss_or_a_smaller_margin_never_clears(
    difference, further, error, distance, margin, further_margin, queries
):
    order = [NOT_WORSE, "cannot tell", WORSE]

    def severity(lost: float, tolerated: float) -> int:
        figures = [evidence(SPANS, difference - lost, error, distance)]
        if queries:
            figures.append(GateEvidence(REAL, queries, distance))
        found = assess(figures, tolerated)
        return order.index(found.decide())

    assert severity(further, margin) >= severity(0, margin)
    assert severity(0, margin) >= severity(0, margin + further_margin)


@given(st.floats(0, 0.1))
def test_equal_lists_are_never_worse_at_the_default_margin(tolerated):
    figures = [evidence(SPANS, 0.0, 0.0, 0.0), GateEvidence(REAL, 100, 0.0)]
    assert assess(figures, 0.01 + tolerated).decide() == NOT_WORSE


@pytest.mark.parametrize("margin", [0.0, 0.0015, 0.01])
def test_the_same_lists_are_not_worse_at_any_margin(margin):
    rounded = 2e-16
    figures = [evidence(SPANS, 0.0, 0.0, rounded), GateEvidence(REAL, 100, 0.0)]
    labelled = [*figures, evidence(LABELLED, 0.0, 0.01, 0.0)]
    for one in (figures, labelled):
        assert assess(one, margin).is_unchanged
        assert assess(one, margin).decide() == NOT_WORSE
    # The least change of one list among 1,000.
    swapped = (1 / math.log2(10) - 1 / math.log2(11)) / sum(1 / math.log2(2 + k) for k in range(10))
    differing = [evidence(SPANS, 0.0, 0.0, 0.0), GateEvidence(REAL, 1000, swapped / 1000)]
    assert not assess(differing, margin).is_unchanged
    # NEW lacks documents that OLD holds, and no query has asked for them.
    assert not assess(figures, margin, lacks_documents=True).is_unchanged


def test_the_least_margin_at_which_lists_that_differ_can_pass():
    least = -stats.norm.ppf(0.2) * 0.002  # "not worse" below 20%, the error is at least 0.002
    assert least == pytest.approx(0.0017, abs=0.00005)
    hardly = [evidence(SPANS, 0.0, 0.0, 1e-6), GateEvidence(REAL, 100, 1e-6)]
    assert assess(hardly, 0.0016).decide() == "cannot tell"
    assert assess(hardly, 0.0017).decide() == NOT_WORSE


def test_two_runs_that_differ_much_cannot_be_told_without_labels():
    assert assess([GateEvidence(REAL, 100, 0.6)], 0.01).decide() == "cannot tell"
    assert assess([GateEvidence(REAL, 100, 0.0)], 0.01).decide() == NOT_WORSE


def test_far_lists_are_cleared_by_labels_alone():
    far = [evidence(SPANS, 0.3, 0.01, 0.6), GateEvidence(REAL, 100, 0.6)]
    assert assess(far, 0.01).estimate > 0.05
    assert assess(far, 0.01).decide() == "cannot tell"
    labelled = [evidence(SPANS, 0.3, 0.01, 0.6), evidence(LABELLED, 0.1, 0.01, 0.6)]
    assert assess(labelled, 0.01).decide() == NOT_WORSE


def test_lost_documents_count_for_close_lists_unless_labels_clear_them():
    lost = [evidence(SPANS, -0.05, 0.01, 0.05), evidence(GENERATED, -0.05, 0.01, 0.05)]
    assert assess(lost, 0.01).loses_documents
    far = [evidence(SPANS, -0.05, 0.01, 0.6), evidence(GENERATED, -0.05, 0.01, 0.6)]
    assert not assess(far, 0.01).loses_documents
    few = [*lost, evidence(JUDGED, 0.0, 0.05, 0.05)]
    assert assess(few, 0.01).loses_documents
    many = [*lost, evidence(LABELLED, 0.0, 0.002, 0.05)]
    assert not assess(many, 0.01).loses_documents
    assert assess(many, 0.01).decide() == NOT_WORSE


def test_lost_documents_do_not_count_where_the_lists_of_real_queries_hardly_differ():
    lost = evidence(SPANS, -0.05, 0.01, 0.05)
    hardly = assess([lost, GateEvidence(REAL, 10, 0.009)], 0.01)
    assert (hardly.loses_documents, hardly.loses_unasked_documents) == (False, True)
    assert hardly.decide() == NOT_WORSE
    for queries, distance in ((10, 0.01), (9, 0.009)):
        counted = assess([lost, GateEvidence(REAL, queries, distance)], 0.01)
        assert (counted.loses_documents, counted.loses_unasked_documents) == (True, False)
    # What NEW is known to lack may be what the next queries ask for.
    lacking = assess([lost, GateEvidence(REAL, 10, 0.0)], 0.01, lacks_documents=True)
    assert (lacking.loses_documents, lacking.loses_unasked_documents) == (True, False)
    nothing = assess([evidence(SPANS, 0.0, 0.01, 0.05), GateEvidence(REAL, 10, 0.009)], 0.01)
    assert not nothing.loses_documents
    assert not nothing.loses_unasked_documents


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=30))
def test_figures_are_those_of_scipy(pairs):
    old, new = (np.array(side) for side in zip(*pairs, strict=True))
    figures = GateEvidence.of(SPANS, np.zeros(len(old)), (old, new))
    size = len(old)
    expected = stats.sem(new - old) * math.sqrt((size - 1) / size)
    assert figures.standard_error == pytest.approx(expected, abs=1e-9)
    assert figures.difference == pytest.approx(float(np.mean(new) - np.mean(old)), abs=1e-9)
    assert figures.better + figures.worse == int((new != old).sum())


@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=30))
def test_equal_weights_change_nothing_and_judged_queries_are_less_sure(pairs):
    old, new = (np.array(side) for side in zip(*pairs, strict=True))
    distances = np.zeros(len(old))
    plain = GateEvidence.of(SPANS, distances, (old, new))
    weighted = GateEvidence.of(SPANS, distances, (old, new), np.full(len(old), 3.0))
    assert weighted.standard_error == pytest.approx(plain.standard_error, abs=1e-12)
    judged = GateEvidence.of(JUDGED, distances, (old, new))
    assert judged.standard_error > plain.standard_error


def test_the_packaged_rates_are_the_measured_ones():
    results = json.loads(RESULTS.read_text())
    assert asdict(RATES_WITH_QUERIES) == results["rates"]
    assert asdict(RATES_WITH_FEW_QUERIES) == results["rates_with_few_queries"]["10"]
    assert asdict(RATES_WITHOUT_QUERIES) == results["rates_without_queries"]


def test_the_rates_are_those_of_as_many_queries():
    known = evidence(SPANS, 0.0, 0.01, 0.0)
    rates = {
        queries: measured_rates([known, GateEvidence(REAL, queries, 0.0)])
        for queries in (9, 10, 49, 50)
    }
    assert measured_rates([known]) == rates[9] == RATES_WITHOUT_QUERIES
    assert rates[10] == rates[49] == RATES_WITH_FEW_QUERIES
    assert rates[50] == RATES_WITH_QUERIES
    assert measured_rates([known, evidence(LABELLED, 0.0, 0.01, 0.0)]) == RATES_WITH_QUERIES
    # Two runs answer no queries whose document is known.
    assert measured_rates([GateEvidence(REAL, 300, 0.5)]) is None
    assert measured_rates([GateEvidence(SPANS, 200, 0.5), GateEvidence(REAL, 300, 0.5)]) is None


@given(st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_lists_that_are_cut_short_only_lose_and_more_so_the_shorter_they_are(distance, further):
    estimates = [
        assess([GateEvidence(REAL, 300, one)], 0.01, is_cut=True).estimate
        for one in (distance, distance + further)
    ]
    assert 0 > estimates[0] > estimates[1]
    # Queries with a known document at the first rank show no loss, and do not clear it.
    known = evidence(SPANS, 0.0, 0.0, distance)
    found = assess([known, GateEvidence(REAL, 300, distance)], 0.01, is_cut=True)
    assert found.estimate == estimates[0]
    assert assess([GateEvidence(REAL, 300, 0.5)], 0.01, is_cut=True).decide() == WORSE


@given(shares, st.floats(0, 0.2))
def test_two_runs_are_never_called_worse_without_labels(distance, margin):
    assert assess([GateEvidence(REAL, 300, distance)], margin).decide() != WORSE
