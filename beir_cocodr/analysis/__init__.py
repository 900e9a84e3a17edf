"""What a corpus, its queries and a model's representations say about each other; here, the options
of the analyses.
"""

from dataclasses import dataclass

from beir_cocodr.errors import SEED_MAX
from beir_cocodr.models.spec import Options, option


@dataclass(frozen=True)
class RepresentationOptions(Options):
    """What is sampled of a corpus and how it is measured; each field is described beside its
    default.

    The loss depends on ``batch_size``, so corpora are to be compared with the same. The paper's
    temperature is 2.
    """

    sample: int = option(
        1024, "Sample at most this many documents of a corpus, and two spans of each.", min=2
    )
    batch_size: int = option(
        128, "Contrast this many documents with each other in the loss.", min=2
    )
    temperature: float = option(2.0, "Temperature of uniformity.", above=0)
    span_tokens: int = option(30, "Take at most this many tokens in a span.", min=1)
    seed: int = option(42, "Seed of the sample and the spans.", min=0, max=SEED_MAX)


@dataclass(frozen=True)
class SourceClusterOptions(Options):
    """What is sampled of source and targets, and shown; each field is described beside its
    default.
    """

    clusters: int = option(50, "Divide the source queries into this many clusters.", min=1)
    sample: int = option(1000, "Sample at most this many source queries.", min=1)
    negatives: int = option(4, "Use this many negatives of BM25 for a source query.", min=1)
    cases: int = option(
        5, "Show this many target queries with their nearest source queries.", min=1
    )
    nearest: int = option(1, "Show this many source queries for each target query.", min=1)
    seed: int = option(
        42, "Seed of the sample, the negatives and the clusters.", min=0, max=SEED_MAX
    )
