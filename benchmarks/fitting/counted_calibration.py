"""The calibration that is fitted to all collections, with counts of how often it was right."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence

from beir_cocodr.evaluation.calibration import Calibration
from fitting.counts import count_trust, reliability
from fitting.labelled_pairs import LabelledPairs
from fitting.left_out import MARGIN, Predicted, calibrate, spread_figures_of
from fitting.moment_fit import CAUTION


def calibration_of(
    by_regime: Mapping[str, Sequence[LabelledPairs]],
    corpora: Mapping[str, Sequence[str]],
    left_out: Mapping[str, Sequence[Predicted]],
    new_kinds: Mapping[str, Sequence[Predicted]] | None = None,
) -> Calibration:
    """Return the calibration that is fitted to all collections.

    Args:
        by_regime: What is given, such as "given queries", to the pairs of the collections.
        corpora: Collection to the content hashes of its documents, as they were cut and whole.
        left_out: What is given to the collections, each predicted without its family.
        new_kinds: What is given to the collections, each predicted without its family and one of
            the kinds of the predicted pairs.
    """
    from beir_cocodr.evaluation.label_free.verdict import (
        DIFFERENT_KINDS,
        GIVEN_QUERIES,
        NEW_KIND,
        SAME_KIND,
        is_same_kind,
    )

    models = {}
    for regime, collections in by_regime.items():
        models[regime], _ = calibrate(collections, caution=CAUTION[regime])
    trust = {}
    for regime, predictions in left_out.items():
        trust[regime] = {
            SAME_KIND: count_trust(predictions, is_same_kind),
            DIFFERENT_KINDS: count_trust(predictions, lambda kinds: not is_same_kind(kinds)),
        }
    for regime, predictions in (new_kinds or {}).items():
        names = {predicted.pairs.name for predicted in predictions}
        trust[regime][NEW_KIND] = count_trust(predictions) | {"collections": len(names)}
    return Calibration(
        collections=list(corpora),
        corpora=list(itertools.chain.from_iterable(corpora.values())),
        trust=trust,
        date=datetime.date.today().isoformat(),
        models=models,
        margin=MARGIN,
        figures=spread_figures_of(by_regime[GIVEN_QUERIES]),
        reliability=reliability(left_out[GIVEN_QUERIES]),
    )
