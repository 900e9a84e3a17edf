"""What a corpus, its queries and a model's representations say about each other; here, the options of the analyses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from beir_cocodr.errors import InputError, check_at_least
from beir_cocodr.models.spec import option


@dataclass(frozen=True)
class RepresentationOptions:
    """What is sampled of a corpus and how it is measured; each field is described beside its default.

    The loss depends on ``batch_size``, so corpora are to be compared with the same. The paper's temperature is 2.
    """

    sample: int = option(1024, "Most documents of a corpus, a pair of spans of each.")
    batch_size: int = option(128, "Documents contrasted with each other in the loss.")
    temperature: float = option(2.0, "Temperature of uniformity.")
    span_tokens: int = option(30, "Most tokens of a span.")
    seed: int = option(42, "Seed of the sample and the spans.")

    def __post_init__(self) -> None:
        check_at_least(self, 2, "sample", "batch_size")
        check_at_least(self, 1, "span_tokens")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature must be positive, not {self.temperature}")


@dataclass(frozen=True)
class SourceClusterOptions:
    """What is sampled of source and targets, and shown; each field is described beside its default."""

    clusters: int = option(50, "Clusters of source queries.")
    sample: int = option(1000, "Most source queries.")
    negatives: int = option(4, "BM25 negatives a source query.")
    cases: int = option(5, "Target queries shown with their nearest source queries.")
    nearest: int = option(1, "Source queries shown for each.")
    seed: int = option(42, "Seed of the sample, the negatives and the clusters.")

    def __post_init__(self) -> None:
        check_at_least(self, 1, "clusters", "sample", "negatives", "cases", "nearest")
