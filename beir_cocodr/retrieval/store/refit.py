"""The distance of a corpus from the one that a hybrid encoder was fused with."""

from collections import Counter
from dataclasses import asdict, dataclass

import torch

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.checksums import checked_path
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.models.checkpoints.loading import model_source
from beir_cocodr.models.hybrid_encoder import HybridHead
from beir_cocodr.provenance import read_record
from beir_cocodr.records import Json, Record
from beir_cocodr.retrieval.store.store import EmbeddingStore

#: The file beside a hybrid encoder's store that says how well its fit still holds.
REFIT_FILE = "refit.json"

#: Limits beyond which a refit is due: the share of unknown terms above that of the fit, and the
#: change of a deviation. With a quarter of documents of another kind, in three pairs of
#: collections, one of them was exceeded, and queries for these documents found 0.10 to 0.19 less of
#: the fusion's best ten than after a refit.
MOST_UNKNOWN = 0.01
MOST_DRIFT = 0.1

# Documents that a refit is judged by, and those of them that are used as queries.
_DOCUMENTS = 16_384
_PROBES = 256


@dataclass(frozen=True)
class Refit(Record):
    """The distance of a corpus from the one that a hybrid encoder was fused with.

    Attributes:
        documents: How many documents were looked at, evenly spaced.
        unknown_share: Share of their terms that the model does not know.
        unknown_before: The same when it was fused; None if its training.json no longer exists.
        dense_drift: How much the deviations of dense scores over the corpus differ from those that
            queries are divided by: the median of ``|s' / s - 1|``, with documents as queries.
        lexical_drift: The same for the lexical part.
    """

    documents: int
    unknown_share: float
    unknown_before: float | None
    dense_drift: float
    lexical_drift: float

    @property
    def due(self) -> bool:
        """Return true if the model should be fused again."""
        unknown = self.unknown_share - (self.unknown_before or 0.0)
        drift = max(self.dense_drift, self.lexical_drift)
        return unknown > MOST_UNKNOWN or drift > MOST_DRIFT

    def describe(self) -> Json:
        """Describe the refit for the record of an encoding."""
        return asdict(self) | {"due": self.due, "line": str(self)}

    def __str__(self) -> str:
        """Return one line for people."""
        verdict = "due: fuse the model again" if self.due else "not due"
        before = self.unknown_before or 0
        return (
            f"refit {verdict}: {self.unknown_share:.1%} of terms are unknown ({before:.1%} when it "
            f"was fused, {MOST_UNKNOWN:.0%} more is too much), deviations differ by "
            f"{self.dense_drift:.0%} (dense) and {self.lexical_drift:.0%} (BM25; {MOST_DRIFT:.0%} "
            "is too much)"
        )


def check_refit(
    store: EmbeddingStore,
    head: HybridHead,
    text_format: TextFormat,
    name: str,
    documents: Documents,
) -> Refit:
    """Measure how far a store is from the fit of its hybrid encoder, and write that beside it.

    Args:
        store: A complete store of the hybrid encoder.
        head: The encoder's head.
        text_format: The encoder's format.
        name: What the encoder was loaded by; its training.json says what was unknown then.
        documents: The corpus.
    """
    rows = spaced_rows(len(documents), _DOCUMENTS)
    texts = (text_format.document(document) for document in documents.take(rows))
    terms: Counter[str] = Counter()
    for text in texts:
        terms.update(head.analyze(text))
    unknown = sum(count for term, count in terms.items() if term not in head.vocabulary)
    vectors = store.rows(rows)
    dense = vectors[:, : head.dimension]
    lexical = vectors[:, head.dimension :] / head.scale.cpu()
    refit = Refit(
        documents=len(rows),
        unknown_share=round(unknown / max(1, terms.total()), 4),
        unknown_before=_unknown_before(name),
        dense_drift=_drift(dense, head.dense_spread.cpu()),
        lexical_drift=_drift(lexical, head.lexical_spread.cpu()),
    )
    with checked_path(store.folder / REFIT_FILE) as temporary:
        refit.write(temporary)
    return refit


def _unknown_before(name: str) -> float | None:
    record = read_record(model_source(name))
    if record is None:
        return None
    share = record.details.get("unknown_share")
    if share is None:
        return None
    return round(float(str(share)), 4)


def _drift(vectors: torch.Tensor, spread: torch.Tensor) -> float:
    """Return how much the deviations of scores differ from those of the fit.

    Args:
        vectors: (n, m) one part of documents.
        spread: (m, m) root of the covariance at the fit.
    """
    rows = spaced_rows(len(vectors), _PROBES)
    probes = vectors[torch.from_numpy(rows)]
    fitted = (probes @ spread).norm(dim=1)
    now = (probes @ vectors.T).std(dim=1, correction=0)
    all_changes = (now / fitted - 1).abs()
    changes = all_changes[fitted > 0]
    if not len(changes):
        return 0.0
    return round(float(changes.median()), 4)
