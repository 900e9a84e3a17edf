"""Encoders that are far behind BM25 on a corpus, such as an English one on German texts.

What usually wins among the uses of an encoder does not hold for them: a fusion loses by them. So
their uses have kinds of their own in the calibration. A corpus with queries shows without labels
which encoders are weak. From the corpus alone this is not concluded, because crops mislead too
often.
"""

from collections.abc import Mapping
from dataclasses import replace

from beir_cocodr.evaluation.label_free.estimators import MADE
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.made_queries import MadeQueries
from beir_cocodr.models.spec import BM25, DENSE

#: An encoder that is behind BM25 by more than this on crops and titles is weak.
FAR_BEHIND = 0.15


def mark_weak_encoders(evidence: Evidence, encoders: Mapping[str, str | None]) -> Evidence:
    """Return evidence that knows the encoders of models, and which of them are weak.

    An encoder that is not compared by itself is not looked at.

    Args:
        evidence: What was seen of the models.
        encoders: Model to its encoder; None if it has none.
    """
    if not evidence.real:
        return replace(evidence, encoders=encoders)
    crops_and_titles = MadeQueries(MADE)
    weak = set()
    for model, encoder in encoders.items():
        if encoder is not None and evidence.kinds[model] == DENSE:
            lead = crops_and_titles.features(evidence, BM25, model).get(MADE, 0.0)
            if lead < -FAR_BEHIND:
                weak.add(encoder)
    models = frozenset(model for model, encoder in encoders.items() if encoder in weak)
    return replace(evidence, encoders=encoders, weak=models)
