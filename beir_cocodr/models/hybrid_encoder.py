"""The hybrid encoder: a dense encoder and BM25 as one vector, whose dot product is their fusion.

What it applies is fitted to a corpus by :mod:`beir_cocodr.retrieval.fuse`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers.util import load_file_path
from torch import Tensor

from beir_cocodr.arrays import Doubles, Features
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.errors import InputError
from beir_cocodr.io import json_sha256
from beir_cocodr.models.cocodr import COCODR, TwoSidedEncoder, check_task
from beir_cocodr.models.hub import PLACES
from beir_cocodr.models.saved_module import SavedModule

# The vocabulary of a saved head, a term a line.
_TERMS_FILE = "terms.txt"

# Below this share of the largest deviation that a query could have, it has none but rounding.
_NO_DEVIATION = 1e-6

#: Weight of BM25 by the query's length: so much a content term, at least and at most.
BY_LENGTH = (0.05, 0.2, 0.6)


class HybridHead(SavedModule):
    """Appends BM25's part to the vectors of a dense encoder, and scales both so that a dot product
    is their fusion.

    With BM25's weights A_d of a document's terms and a query's term counts c_q, BM25's score is c_q
    · A_d. Both are projected to x_d = Vᵀ A_d and y_q = Vᵀ c_q (truncated SVD), and what that loses
    is added by signed feature hashing. Then

        query [e_q / s_S, w y_q / s_B] / (1 + w)      document [e_d, x_d] s_S² = e_qᵀ C e_q, s_B² =
        y_qᵀ G y_q          C, G: covariances of e_d and x_d over the corpus

    has the dot product of the z-normalised fusion, up to a term of the query. The mean of x_d is
    such a term and taken out, and a factor is moved from the query to x_d, so that both parts of a
    document have numbers of like size and lose as little in fp16 and int8. A part whose deviation
    is 0 is 0.

    Args:
        dimension: d, of the dense part.
        terms: T, of the vocabulary.
        components: r, of the SVD; may be 0.
        hashed: buckets of what the SVD loses, or of everything without one; may be 0.
        normalize: whether the dense part is scaled to unit length, as for encoders that compare by
            cosine.
        analyzer: of BM25, "english" or "none".
        k1, b, mean_length: of BM25; the mean length is the corpus's, in terms.
        bm25_weight: w, of BM25 against 1 of the dense part.
        weight_by_length: w is 0.05 for each content term of the query instead, at least 0.2 and at
            most 0.6.
        analysis: a hash of the vocabulary and of what the analyzer makes of it.
        hashed_weight: of what the SVD loses, whose hashing is noisy, against 1 of the SVD.

    References:
        Salton and Buckley, 1988, and Deerwester et al., 1990 (truncated SVD of term weights);
        Weinberger et al., 2009 (signed feature hashing); Lin and Lin, 2021 and 2023 (dense lexical
        representations).
    """

    forward_kwargs = {"task", "parts"}  # noqa: RUF012 - the host's way to declare it

    def __init__(
        self,
        dimension: int,
        terms: int,
        components: int,
        hashed: int,
        normalize: bool,
        analyzer: str,
        k1: float,
        b: float,
        mean_length: float,
        bm25_weight: float,
        weight_by_length: bool = False,
        analysis: str = "",
        hashed_weight: float = 1.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dimension, self.terms, self.components, self.hashed = (
            dimension,
            terms,
            components,
            hashed,
        )
        self.normalize, self.analyzer, self.k1, self.b, self.mean_length = (
            normalize,
            analyzer,
            k1,
            b,
            mean_length,
        )
        self.bm25_weight, self.weight_by_length, self.analysis = (
            bm25_weight,
            weight_by_length,
            analysis,
        )
        self.hashed_weight = hashed_weight
        width = components + hashed
        for name, shape in (
            ("idf", (terms,)),
            ("projection", (terms, components)),
            ("hashed_projection", (components, hashed)),
            ("mean", (width,)),
            ("scale", (width,)),
            ("dense_spread", (dimension, dimension)),
            ("lexical_spread", (width, width)),
        ):
            self.register_buffer(name, torch.zeros(shape))
        self.analyze = Analyzer(analyzer)
        self.vocabulary: dict[str, int] = {}

    def set_vocabulary(self, terms: Sequence[str]) -> None:
        """Take (T,) terms; their buckets and signs follow from their text alone."""
        self.vocabulary = {term: number for number, term in enumerate(terms)}
        self._buckets, self._signs = (
            hash_terms(terms, self.hashed) if self.hashed else (torch.zeros(0), torch.zeros(0))
        )

    def analysis_of(self, terms: Sequence[str]) -> str:
        """A hash of a vocabulary, and of what the analyzer makes of it now."""
        return json_sha256(
            [list(terms), self.analyze(" ".join(terms)), sorted(self.analyze.stop_words)]
        )

    def features(self, texts: Sequence[str], task: str) -> dict[str, Tensor]:
        """Of (n,) texts the known terms and their weights, flat, where each text begins, and its
        content terms.
        """
        numbers: list[int] = []
        weights: list[float] = []
        starts, lengths = [], []
        for text in texts:
            found = self.analyze(text)
            counts = Counter(
                number for term in found if (number := self.vocabulary.get(term)) is not None
            )
            share = self.k1 * (1 - self.b + self.b * max(1, len(found)) / self.mean_length)
            starts.append(len(numbers))
            lengths.append(len(found))
            numbers += counts
            weights += (n if task == "query" else n / (n + share) for n in counts.values())
        return {
            "terms": torch.tensor(numbers, dtype=torch.long),
            "term_weights": torch.tensor(weights, dtype=torch.float32),
            "term_starts": torch.tensor(starts, dtype=torch.long),
            "content_terms": torch.tensor(lengths, dtype=torch.float32),
        }

    def lexical(self, features: dict[str, Tensor], task: str) -> Tensor:
        """What :meth:`features` gives to (n, r + hashed): y_q, or x_d before its mean and scale."""
        numbers, weights, starts = (
            features[name] for name in ("terms", "term_weights", "term_starts")
        )
        if task == "document":
            weights = weights * self.idf[numbers]
        parts = [torch.zeros(len(starts), 0, device=starts.device)]
        if self.components:
            bag = F.embedding_bag(
                numbers, self.projection, starts, mode="sum", per_sample_weights=weights
            )
            parts.append(bag)
        if self.hashed:
            buckets, signs = self._buckets.to(starts.device), self._signs.to(starts.device)
            ends = torch.cat([starts[1:], starts.new_tensor([len(numbers)])])
            rows = torch.repeat_interleave(
                torch.arange(len(starts), device=starts.device), ends - starts
            )
            flat = torch.zeros(len(starts) * self.hashed, device=starts.device)
            flat.index_add_(0, rows * self.hashed + buckets[numbers], weights * signs[numbers])
            lost = flat.reshape(len(starts), self.hashed)
            if self.components:
                lost = (lost - parts[-1] @ self.hashed_projection) * self.hashed_weight**0.5
            parts.append(lost)
        return torch.cat(parts, dim=1)

    def forward(
        self, features: Features, task: str | None = None, parts: bool = False, **kwargs: Any
    ) -> Features:
        """Set ``sentence_embedding``: (B, d + r + hashed) float32; ``parts``: [e_q, y_q, w], see
        :meth:`join`.
        """
        task = check_task(task or features.get("task"), HybridEncoder.kind)
        if "terms" not in features:
            raise InputError(
                "a hybrid encoder reads the terms of texts, too: load it with beir_cocodr.load_encoder"
            )
        dense = features["sentence_embedding"].float()
        with torch.autocast(dense.device.type, enabled=False):
            dense = F.normalize(dense, dim=-1) if self.normalize else dense
            lexical = self.lexical(features, task)
            if task == "document":
                vectors = torch.cat([dense, (lexical - self.mean) * self.scale], dim=-1)
            else:
                weight = torch.full_like(dense[:, :1], self.bm25_weight)
                if self.weight_by_length:
                    each, least, most = BY_LENGTH
                    weight = (each * features["content_terms"][:, None]).clamp(least, most)
                vectors = torch.cat([dense, lexical, weight], dim=-1)
                vectors = vectors if parts else self.join(vectors)
        features["sentence_embedding"] = vectors
        return features

    def join(self, parts: Tensor) -> Tensor:
        """(Q, d + r + hashed + 1) [e_q, y_q, w] of queries to the vectors that are searched
        with.
        """
        dense, lexical, weight = (
            parts[:, : self.dimension],
            parts[:, self.dimension : -1],
            parts[:, -1:],
        )
        joined = [
            over_deviation(dense, self.dense_spread) / (1 + weight),
            over_deviation(lexical, self.lexical_spread) * weight / (1 + weight) / self.scale,
        ]
        return torch.cat(joined, dim=-1)

    def document_part(self, texts: Sequence[str]) -> Tensor:
        """The part of (n,) documents that stands behind their dense vectors, (n, r + hashed) on the
        CPU.
        """
        found = {
            name: part.to(self.idf.device)
            for name, part in self.features(texts, "document").items()
        }
        part: Tensor = (self.lexical(found, "document") - self.mean) * self.scale
        return part.cpu()

    def get_embedding_dimension(self) -> int:
        return self.dimension + self.components + self.hashed

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any
    ) -> None:
        super().save(output_path, *args, safe_serialization=safe_serialization, **kwargs)
        (Path(output_path) / _TERMS_FILE).write_text(
            "".join(f"{term}\n" for term in self.vocabulary), encoding="utf-8"
        )

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Self:
        head = super().load(model_name_or_path, *args, **kwargs)
        places = {name: value for name, value in kwargs.items() if name in ("subfolder", *PLACES)}
        path = load_file_path(model_name_or_path, _TERMS_FILE, **places)
        if path is None:
            raise InputError(
                f"{model_name_or_path} has lost {_TERMS_FILE}, the terms of its BM25 part; fuse it again"
            )
        terms = Path(path).read_text(encoding="utf-8").split("\n")[:-1]
        if len(terms) != head.terms or head.analysis_of(terms) != head.analysis:
            raise InputError(
                f"{path}: {len(terms)} terms, which the analyzer does not read as it did when the model was fused: the "
                "file is damaged, or bm25s or PyStemmer are of another version; fuse it again"
            )
        head.set_vocabulary(terms)
        return head


#: How a saved folder names the head.
HYBRID_CLASS = f"{HybridHead.__module__}.{HybridHead.__name__}"


def hash_terms(terms: Sequence[str], buckets: int) -> tuple[Tensor, Tensor]:
    """(T,) terms to a bucket each, int64, and a sign, float32: by scikit-learn's feature
    hashing.
    """
    from sklearn.feature_extraction import FeatureHasher

    rows = FeatureHasher(buckets, input_type="string").transform([term] for term in terms).tocsr()
    return torch.from_numpy(rows.indices).long(), torch.from_numpy(rows.data).float()


def over_deviation(vectors: Tensor, spread: Tensor) -> Tensor:
    """(Q, m) vectors q over the deviation of their dot products with the documents, |q S|; 0 where
    that is 0. ``spread`` is (m, m) S with S Sᵀ the covariance of the documents; a root keeps in
    float32 what the covariance loses.
    """
    deviation = (vectors @ spread).norm(dim=-1, keepdim=True)
    none = deviation <= _NO_DEVIATION * vectors.norm(dim=-1, keepdim=True) * spread.norm()
    return torch.where(
        none,
        torch.zeros_like(vectors),
        vectors / deviation.clamp(min=torch.finfo(torch.float32).tiny),
    )


def covariance_root(covariance: Doubles) -> Doubles:
    """The symmetric square root of an (m, m) covariance."""
    values, axes = np.linalg.eigh(covariance)
    root: Doubles = (axes * np.sqrt(values.clip(min=0))) @ axes.T
    return root


class HybridEncoder(TwoSidedEncoder):
    """A dense encoder fused with BM25: one vector whose dot product ranks as the z-normalised
    fusion does. An InputError: it is not found, damaged, or no hybrid encoder.

    Made by :func:`beir_cocodr.fuse` from any encoder and a corpus; this loads what that saved.
    Queries and documents have different vectors: plain ``encode`` is an error, and so is what
    changes vectors afterwards (normalisation, truncation). The dense part is the first
    ``head.dimension`` numbers of a document's vector.

    Args:
        model_name_or_path: a saved hybrid encoder, a folder or hub name.
        head: for what fits one, with ``model_name_or_path`` the dense encoder.
        **kwargs: as for :class:`COCODR`.

    Example:
        >>> from tempfile import mkdtemp
        >>> from beir_cocodr import FuseOptions, HybridEncoder, fuse
        >>> folder = f"{mkdtemp()}/pandas"
        >>> options = FuseOptions(sample=16, probes=4)
        >>> record = fuse("minilm", "apidocs/pandas", output=folder, options=options)
        >>> model = HybridEncoder(folder)
        >>> model.encode_query("sort an array").shape == model.encode_document("Sort it.").shape
        True
    """

    # A private name of the host, see MRL.
    _module_classes = {HYBRID_CLASS: HybridHead}  # noqa: RUF012

    kind = "a hybrid encoder"

    #: Its kind in the calibration of verdicts.
    calibration_kind = "hybrid"

    def __init__(
        self,
        model_name_or_path: str | Path | None = None,
        *,
        head: HybridHead | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model_name_or_path, **kwargs)
        if head is not None:
            self.append(head.to(self.device))
            self.module_kwargs = None
            self._model_card_text = (
                None  # the host's private name for the base's card, which is not that of a fusion
            )
        if not isinstance(self[-1], HybridHead):
            raise InputError(
                f"{model_name_or_path} is no hybrid encoder; make one of it by beir-cocodr fuse"
            )
        self.similarity_fn_name = "dot"
        self.model_card_data.ir_model = True  # the host's model card may not call plain encode

    @property
    def head(self) -> HybridHead:
        head = self[-1]
        assert isinstance(head, HybridHead)
        return head

    @classmethod
    def of(cls, dense: COCODR, head: HybridHead) -> Self:
        """Fuse a loaded dense encoder, whose modules are shared, with a fitted head."""
        return cls(
            head=head,
            modules=[*dense],
            prompts=dense.prompts,
            title_separator=dense.title_separator,
            device=str(dense.device),
        )

    def dense_part(self) -> COCODR:
        """The encoder that was fused, of the same modules."""
        return COCODR(
            modules=[*self][:-1],
            prompts=self.prompts,
            similarity_fn_name="cosine" if self.head.normalize else "dot",
            title_separator=self.title_separator,
            device=str(self.device),
        )

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> Any:
        """The dense encoder's features of texts, and BM25's, which reads whole texts and no
        prompt.
        """
        features = super().preprocess(inputs, prompt=prompt, **kwargs)
        if len(self) and isinstance(self[-1], HybridHead):
            features |= self.head.features(
                [str(text) for text in inputs], check_task(kwargs.get("task"), self.kind)
            )
        return features

    def encode_query_parts(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """(Q,) texts to (Q, d + r + hashed + 1) [e_q, y_q, w], for :meth:`HybridHead.join`, on the
        CPU.
        """
        found: Any = self.encode_query(
            list(texts),
            batch_size=batch_size,
            convert_to_tensor=True,
            show_progress_bar=False,
            parts=True,
        )
        parts: Tensor = found.float().cpu()
        return parts

    def join(self, parts: Tensor) -> Tensor:
        """:meth:`HybridHead.join` on the model's device, back on the CPU."""
        return self.head.join(parts.to(self.device)).cpu()
