"""Systems of the study: BM25, encoders, their fusions by the package's own code, and defects.

A system's name is a model's name as the package reads it, such as ``hybrid@0.5:minilm``. A defect
follows its encoder after a slash, as in ``hybrid@0.5:minilm/bits-4``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr import load_object
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.spec import BM25 as BM25_NAME
from beir_cocodr.models.spec import DENSE, FUSIONS, ModelSpec, calibration_kind
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.ranking import Ranker

Floats = npt.NDArray[np.float32]

#: How an encoder is used, and how a defect is.
USES = ("", "hybrid@0.2:", "hybrid@0.3:", "hybrid@0.5:", "hybrid@1:", "rrf:", "rm3@0.5:")
USES += ("feedback@0.5:",)
DEFECT_USES = ("", "hybrid@0.5:")

#: The uses of an encoder whose best documents a language model reads.
READ_USES = ("", "hybrid@0.5:", "rm3@0.5:", "feedback@0.5:")

#: How a sparse encoder is used, and how the vectors of tokens are.
SPLADE = "splade:"
COLBERT = "colbert:"

#: Defects that are derived from vectors.
DERIVED = ("noise-0.4", "noise-0.8", "bits-4", "bits-8", "quarter", "shuffled", "missing")

# Shares of documents whose vectors are exchanged, and that have none.
_SHUFFLED = 0.05
_MISSING = 0.03
# Another seed than that of crops, which would be drawn from just the documents that are damaged.
_SEED = 1042


@dataclass(frozen=True)
class System:
    """A system's name, in parts.

    Attributes:
        name: Its name.
        encoder: The name of its encoder without the defect, "" for BM25 alone.
        use: "bm25", "dense", or the name of a fusion.
        weight: BM25's weight in the fusion, if that has one.
        defect: What is wrong with its encoder, "" if nothing is.
        kind: Its kind in the calibration.
    """

    name: str
    encoder: str
    use: str
    weight: float | None
    defect: str
    kind: str | None

    @classmethod
    def parse(cls, name: str) -> System:
        """Return what a name says."""
        spec = ModelSpec.parse(name)
        encoder, _, defect = spec.encoder.partition("/")
        return cls(
            name=name,
            encoder="" if spec.kind == BM25_NAME else encoder,
            use=spec.kind,
            weight=spec.bm25_weight,
            defect=defect,
            kind=calibration_kind(spec),
        )

    @property
    def is_defect(self) -> bool:
        """Return true if its encoder has a known defect."""
        return bool(self.defect)


class HeldBM25(BM25):
    """BM25 that keeps the scores of all documents for queries of counted terms.

    The fusions of many encoders ask for the same scores.
    """

    def __init__(self, documents: Documents, analyzer: str) -> None:
        """Describe the index of a corpus."""
        super().__init__(documents, analyzer=analyzer)
        self._held: dict[tuple[tuple[int, float], ...], Floats] = {}

    def term_scores(
        self,
        weights: Mapping[int, float],
        first: int = 0,
        last: int | None = None,
    ) -> Floats:
        """Return the (n,) scores of consecutive documents."""
        if not isinstance(weights, Counter):
            return super().term_scores(weights, first, last)
        key = tuple(weights.items())
        if key not in self._held:
            self._held[key] = super().term_scores(weights)
        return self._held[key][first:last]


class StoredEncoder:
    """What the package's dense search asks of an encoder, from vectors that exist.

    Args:
        similarity: "cosine" or "dot".
        texts: (Q,) queries.
        vectors: (Q, d) their vectors.
    """

    def __init__(
        self,
        similarity: str,
        texts: Sequence[str],
        vectors: Floats,
    ) -> None:
        """Take the vectors of queries."""
        import torch

        self.similarity_fn_name = similarity
        self.device = torch.device("cpu")
        self.texts_cut = 0
        self._vectors = dict(zip(texts, vectors, strict=True))

    def query_vectors(self, texts: Sequence[str], batch_size: int = 64) -> Any:
        """Return the (Q, d) vectors of known queries."""
        import torch

        return torch.from_numpy(np.stack([self._vectors[text] for text in texts]))

    def truncated_share(self, texts: Sequence[str], task: str) -> float:
        """Return 0: it is not known how many texts were cut."""
        return 0.0

    def cut(self, texts: Sequence[str]) -> list[tuple[str, bool]]:
        """Return the texts as they are."""
        return [(text, False) for text in texts]


@dataclass(frozen=True)
class Vectors:
    """An encoder's vectors of a corpus and of queries.

    Attributes:
        similarity: "cosine" or "dot".
        documents: (N, d) vectors.
        queries: (Q, d) vectors.
    """

    similarity: str
    documents: Floats
    queries: Floats

    def derive(self, defect: str) -> Vectors:
        """Return the vectors with a defect of :data:`DERIVED`."""
        rng = np.random.default_rng(_SEED)
        if defect.startswith("noise-"):
            scale = float(defect.removeprefix("noise-")) / np.sqrt(self.documents.shape[1])
            noise = rng.standard_normal(self.documents.shape).astype(np.float32)
            query_noise = rng.standard_normal(self.queries.shape).astype(np.float32)
            return self._with(
                self.documents + np.float32(scale) * noise,
                self.queries + np.float32(scale) * query_noise,
            )
        if defect.startswith("bits-"):
            bits = int(defect.removeprefix("bits-"))
            return Vectors(self.similarity, quantize(self.documents, bits), self.queries)
        if defect == "quarter":
            width = self.documents.shape[1] // 4
            return self._with(self.documents[:, :width], self.queries[:, :width])
        documents = self.documents.copy()
        if defect == "shuffled":
            rows = _some_rows(rng, len(documents), _SHUFFLED)
            documents[rows] = documents[np.roll(rows, 1)]
        elif defect == "missing":
            documents[_some_rows(rng, len(documents), _MISSING)] = 0
        else:
            raise ValueError(f"unknown defect {defect!r}; take one of {', '.join(DERIVED)}")
        return Vectors(self.similarity, documents, self.queries)

    def _with(self, documents: Floats, queries: Floats) -> Vectors:
        if self.similarity == "cosine":
            documents = unit(documents)
            queries = unit(queries)
        return Vectors(self.similarity, documents, queries)


def _some_rows(
    rng: np.random.Generator,
    size: int,
    share: float,
) -> npt.NDArray[np.int64]:
    count = max(2, round(share * size))
    return rng.permutation(size)[:count]


def unit(vectors: Floats) -> Floats:
    """Return rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(
        vectors,
        axis=1,
        keepdims=True,
    )
    scaled: Floats = vectors / np.where(lengths > 0, lengths, 1)
    return scaled


def quantize(vectors: Floats, bits: int) -> Floats:
    """Round each dimension to the nearest of 2^bits values between its least and its largest."""
    low = vectors.min(axis=0)
    step = (vectors.max(axis=0) - low) / (2**bits - 1)
    step = np.where(step > 0, step, 1)
    rounded: Floats = (low + np.round((vectors - low) / step) * step).astype(np.float32)
    return rounded


def dense_ranker(documents: Documents, vectors: Vectors, texts: Sequence[str]) -> Any:
    """Return the package's dense search over stored vectors, for the queries ``texts``."""
    import torch

    from beir_cocodr.retrieval.store.embeddings import MemoryEmbeddings
    from beir_cocodr.retrieval.vectors.dense import Dense

    encoder: Any = StoredEncoder(vectors.similarity, texts, vectors.queries)
    embeddings = MemoryEmbeddings(torch.from_numpy(np.ascontiguousarray(vectors.documents)))
    return Dense(encoder, documents, documents.path.parent, given=embeddings)


def fitting_ranker(documents: Documents, model: Any, vectors: Floats) -> Any:
    """Return the package's dense search with a loaded encoder, whose (N, d) vectors exist."""
    import torch

    from beir_cocodr.retrieval.store.embeddings import MemoryEmbeddings
    from beir_cocodr.retrieval.vectors.dense import Dense

    embeddings = MemoryEmbeddings(torch.from_numpy(vectors))
    return Dense(model, documents, documents.path.parent, given=embeddings)


def ranker(system: System, dense: Any, bm25: BM25) -> Ranker:
    """Return the package's ranker of a system.

    Args:
        system: The system.
        dense: The dense search of its encoder.
        bm25: BM25 over the same corpus.
    """
    if system.use == BM25_NAME:
        return bm25
    if system.use in (DENSE, SPLADE.rstrip(":")):
        return dense  # type: ignore[no-any-return]
    settings = {} if system.weight is None else {"bm25_weight": system.weight}
    built: Ranker = load_object(FUSIONS[system.use].build)(dense, bm25, **settings)
    return built
