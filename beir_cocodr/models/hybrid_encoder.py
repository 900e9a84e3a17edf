"""The hybrid encoder: a dense encoder and BM25 as one vector, whose dot product is their fusion.

:mod:`beir_cocodr.retrieval.hybrid.fuse` fits it to a corpus.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers.util import load_file_path
from torch import Tensor

from beir_cocodr.arrays import Doubles, Features
from beir_cocodr.data.analyzers import Analyzer
from beir_cocodr.errors import InputError, check_type
from beir_cocodr.io import json_sha256
from beir_cocodr.models.checkpoints.hub import PLACES
from beir_cocodr.models.chunk_pooling import FIRST, VectorForm
from beir_cocodr.models.cocodr import COCODR, TwoSidedEncoder, check_task
from beir_cocodr.models.saved_module import SavedModule
from beir_cocodr.models.term_weights import length_norms

# The vocabulary of a saved head, a term a line.
_TERMS_FILE = "terms.txt"

# Fills the rows of texts with fewer terms.
_NO_TERM = -1

# A deviation below this share of the largest that a query could have comes from rounding alone.
_NO_DEVIATION = 1e-6

#: Weight of BM25 by the query's length: for each content term, at least, and at most.
BY_LENGTH = (
    0.05,
    0.2,
    0.6,
)


class HybridHead(SavedModule):
    """Appends BM25's part to the vectors of a dense encoder, so that a dot product fuses both.

    With BM25's weights A_d of a document's terms and a query's term counts c_q, BM25's score is
    c_q · A_d. Both are projected to x_d = Vᵀ A_d and y_q = Vᵀ c_q (truncated SVD), and what that
    loses is added by signed feature hashing. Then

        query [e_q / s_S, w y_q / s_B] / (1 + w)      document [e_d, x_d]
        s_S² = e_qᵀ C e_q, s_B² = y_qᵀ G y_q          C, G: covariances of e_d and x_d

    has the dot product of the z-normalised fusion, up to a term of the query. The mean of x_d is
    such a term and is subtracted. A factor moves from the query to x_d, so that both parts of a
    document have numbers of like size and lose as little in fp16 and int8. A part whose deviation
    is 0 becomes 0.

    References:
        Salton and Buckley, 1988, and Deerwester et al., 1990 (truncated SVD of term weights);
        Weinberger et al., 2009 (signed feature hashing); Lin and Lin, 2021 and 2023 (dense lexical
        representations).
    """

    forward_kwargs = {"task", "parts"}  # noqa: RUF012 - the host's way to declare it

    def __init__(  # noqa: PLR0913 - the host saves and restores a module's options by name
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
        """Make a head whose projection, means and covariances are 0.

        Args:
            dimension: Numbers of the dense part, d.
            terms: Terms of the vocabulary, T.
            components: Components of the SVD, r; may be 0.
            hashed: Buckets for what the SVD loses, or for everything without an SVD; may be 0.
            normalize: Scale the dense part to unit length, for encoders that compare by cosine.
            analyzer: Analyzer of BM25, "english" or "none".
            k1: Parameter of BM25.
            b: Parameter of BM25.
            mean_length: Terms of a document of the corpus, on average.
            bm25_weight: Weight w of BM25, against 1 of the dense part.
            weight_by_length: Set w to 0.05 for each content term of the query, at least 0.2 and at
                most 0.6.
            analysis: A hash of the vocabulary and of how the analyzer reads it.
            hashed_weight: Weight of what the SVD loses, which hashing makes noisy, against 1 of the
                SVD.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.dimension = dimension
        self.terms = terms
        self.components = components
        self.hashed = hashed
        self.normalize = normalize
        self.analyzer = analyzer
        self.k1 = k1
        self.b = b
        self.mean_length = mean_length
        self.bm25_weight = bm25_weight
        self.weight_by_length = weight_by_length
        self.analysis = analysis
        self.hashed_weight = hashed_weight
        width = components + hashed
        self.register_buffer("idf", torch.zeros(terms))
        self.register_buffer("projection", torch.zeros(terms, components))
        self.register_buffer(
            "hashed_projection",
            torch.zeros(components, hashed),
        )
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.zeros(width))
        self.register_buffer(
            "dense_spread",
            torch.zeros(dimension, dimension),
        )
        self.register_buffer("lexical_spread", torch.zeros(width, width))
        self.analyze = Analyzer(analyzer)
        self.vocabulary: dict[str, int] = {}

    def set_vocabulary(self, terms: Sequence[str]) -> None:
        """Take (T,) terms; their buckets and signs follow from their text alone."""
        self.vocabulary = {term: number for number, term in enumerate(terms)}
        self._buckets = torch.zeros(0)
        self._signs = torch.zeros(0)
        if self.hashed:
            self._buckets, self._signs = hash_terms(terms, self.hashed)

    def analysis_of(self, terms: Sequence[str]) -> str:
        """Return a hash of a vocabulary, and of how the analyzer reads it now."""
        analysed = self.analyze(" ".join(terms))
        stop_words = sorted(self.analyze.stop_words)
        return json_sha256([list(terms), analysed, stop_words])

    def features(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Return the known terms of (n,) texts.

        Returns:
            The numbers of all terms and how often each occurs in its text, where each text begins,
            and how many content terms each text has.
        """
        numbers: list[int] = []
        occurrences: list[int] = []
        starts: list[int] = []
        lengths: list[int] = []
        for text in texts:
            terms = self.analyze(text)
            known = (self.vocabulary.get(term) for term in terms)
            counts = Counter(number for number in known if number is not None)
            starts.append(len(numbers))
            lengths.append(len(terms))
            numbers += counts
            occurrences += counts.values()
        return {
            "terms": torch.tensor(numbers, dtype=torch.long),
            "term_counts": torch.tensor(occurrences, dtype=torch.float32),
            "term_starts": torch.tensor(starts, dtype=torch.long),
            "content_terms": torch.tensor(lengths, dtype=torch.float32),
        }

    def term_weights(self, features: dict[str, Tensor], task: str) -> Tensor:
        """Return the weights of all terms of what :meth:`features` returns.

        They are BM25's weights for documents, and the terms' counts for queries.
        """
        counts = features["term_counts"]
        if task == "query":
            return counts
        wide = torch.float32 if counts.device.type == "mps" else torch.float64
        lengths = features["content_terms"].clamp(min=1).to(wide)
        norms_of_texts = length_norms(lengths, self.mean_length, self.k1, self.b)
        norms = norms_of_texts[_text_rows(features)]
        saturated = counts / (counts + norms)
        idf = self.idf[features["terms"]]
        weights: Tensor = saturated.float() * idf
        return weights

    def lexical(self, features: dict[str, Tensor], task: str) -> Tensor:
        """Return the (n, r + hashed) vectors of what :meth:`features` returns.

        They are y_q for queries, and x_d before its mean and scale for documents.
        """
        weights = self.term_weights(features, task)
        starts = features["term_starts"]
        parts = [torch.zeros(len(starts), 0, device=starts.device)]
        if self.components:
            bag = F.embedding_bag(
                features["terms"],
                self.projection,
                starts,
                mode="sum",
                per_sample_weights=weights,
            )
            parts.append(bag)
        if self.hashed:
            lost = self._hashed_sums(features, weights)
            if self.components:
                kept = parts[-1] @ self.hashed_projection
                lost = (lost - kept) * self.hashed_weight**0.5
            parts.append(lost)
        return torch.cat(parts, dim=1)

    def _hashed_sums(self, features: dict[str, Tensor], weights: Tensor) -> Tensor:
        """Return the (n, hashed) sums of signed term weights in their buckets."""
        numbers = features["terms"]
        device = numbers.device
        count = len(features["term_starts"])
        buckets = self._buckets.to(device)
        signs = self._signs.to(device)
        sums = torch.zeros(count * self.hashed, device=device)
        first_places = _text_rows(features) * self.hashed
        sums.index_add_(
            0,
            first_places + buckets[numbers],
            weights * signs[numbers],
        )
        return sums.reshape(count, self.hashed)

    def forward(
        self, features: Features, task: str | None = None, parts: bool = False, **kwargs: object
    ) -> Features:
        """Set ``sentence_embedding`` to (B, d + r + hashed) float32 vectors.

        Args:
            features: The dense encoder's features, and those of :func:`terms_by_row`.
            task: "query" or "document".
            parts: Return [e_q, y_q, w] of queries, for :meth:`join`.
            **kwargs: Ignored.

        Raises:
            InputError: There is no task, or the features have no terms.
        """
        task = check_task(task or features.get("task"), HybridEncoder.kind)
        if "terms" not in features:
            raise InputError(
                "a hybrid encoder also reads the terms of texts: load it with "
                "beir_cocodr.load_encoder"
            )
        dense = features["sentence_embedding"].float()
        with torch.autocast(dense.device.type, enabled=False):
            dense = F.normalize(dense, dim=-1) if self.normalize else dense
            lexical = self.lexical(flat_terms(features), task)
            if task == "document":
                scaled = (lexical - self.mean) * self.scale
                vectors = torch.cat([dense, scaled], dim=-1)
            else:
                weight = self._query_weights(dense, features)
                vectors = torch.cat([dense, lexical, weight], dim=-1)
                if not parts:
                    vectors = self.join(vectors)
        features["sentence_embedding"] = vectors
        return features

    def _query_weights(self, dense: Tensor, features: Features) -> Tensor:
        """Return w of (B,) queries, (B, 1)."""
        if not self.weight_by_length:
            return torch.full_like(dense[:, :1], self.bm25_weight)
        of_term, least, most = BY_LENGTH
        terms = features["content_terms"][:, None]
        weights: Tensor = (of_term * terms).clamp(least, most)
        return weights

    def join(self, parts: Tensor) -> Tensor:
        """Return the vectors to search with, from (Q, d + r + hashed + 1) parts [e_q, y_q, w]."""
        dense = parts[:, : self.dimension]
        lexical = parts[:, self.dimension : -1]
        weight = parts[:, -1:]
        standardized_dense = over_deviation(dense, self.dense_spread)
        standardized_lexical = over_deviation(lexical, self.lexical_spread)
        joined = [
            standardized_dense / (1 + weight),
            standardized_lexical * weight / (1 + weight) / self.scale,
        ]
        return torch.cat(joined, dim=-1)

    def document_part(self, texts: Sequence[str]) -> Tensor:
        """Return what follows the dense vectors of (n,) documents, (n, r + hashed) on the CPU."""
        features = self.features(texts)
        on_device = {name: part.to(self.idf.device) for name, part in features.items()}
        lexical = self.lexical(on_device, "document")
        part: Tensor = (lexical - self.mean) * self.scale
        return part.cpu()

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors."""
        return self.dimension + self.components + self.hashed

    # A private name of torch, by which ``half()``, ``to()`` and others convert all tensors.
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the head to a device; it stays float32 whatever the precision of the encoder.

        In half precision idf and covariances would be rounded, and small ones become 0.
        """

        def without_conversion(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device)

        move: Callable[..., Self] = super()._apply
        return move(without_conversion, recurse)

    def save(
        self, output_path: str, *args: object, safe_serialization: bool = True, **kwargs: object
    ) -> None:
        """Write the head and its vocabulary to a folder."""
        super().save(output_path, *args, safe_serialization=safe_serialization, **kwargs)
        lines = "".join(f"{term}\n" for term in self.vocabulary)
        (Path(output_path) / _TERMS_FILE).write_text(lines, encoding="utf-8")

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Self:
        """Read what :meth:`save` wrote, from a folder or the hub.

        Raises:
            InputError: The vocabulary is missing, or the analyzer no longer reads it as it did.
        """
        head = super().load(model_name_or_path, *args, **kwargs)
        names = ("subfolder", *PLACES)
        places = {name: value for name, value in kwargs.items() if name in names}
        path = load_file_path(model_name_or_path, _TERMS_FILE, **places)
        if path is None:
            raise InputError(
                f"{model_name_or_path} has lost {_TERMS_FILE}, the terms of its BM25 part; "
                "fuse it again"
            )
        content = Path(path).read_text(encoding="utf-8")
        terms = content.split("\n")[:-1]
        is_whole = len(terms) == head.terms
        if not is_whole or head.analysis_of(terms) != head.analysis:
            raise InputError(
                f"{path}: the analyzer does not read its {len(terms)} terms as it did when the "
                "model was fused; the file is damaged, or bm25s or PyStemmer are of another "
                "version; fuse it again"
            )
        head.set_vocabulary(terms)
        return head


def terms_by_row(features: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what :meth:`HybridHead.features` returns with a row for each of (n,) texts.

    Hosts cut all features by these rows, for mini-batches and for several devices. They also cut
    columns of padding from features that are as wide as the tokens; the dimension of 1 keeps them
    from these.

    Returns:
        ``terms`` (n, 1, W), where -1 fills the rows, ``term_counts`` (n, 1, W), and
        ``content_terms`` (n,).
    """
    counts = _terms_of_texts(features)
    width = int(counts.max()) if len(counts) else 0
    is_term = torch.arange(width) < counts[:, None, None]
    terms = torch.full(is_term.shape, _NO_TERM)
    terms[is_term] = features["terms"]
    term_counts = torch.zeros(is_term.shape)
    term_counts[is_term] = features["term_counts"]
    return {
        "terms": terms,
        "term_counts": term_counts,
        "content_terms": features["content_terms"],
    }


def flat_terms(features: Features) -> dict[str, Tensor]:
    """Return features by :func:`terms_by_row` as :meth:`HybridHead.features` returned them."""
    terms = features["terms"]
    is_term = terms != _NO_TERM
    counts = is_term.sum(dim=(1, 2))
    return {
        "terms": terms[is_term],
        "term_counts": features["term_counts"][is_term],
        "term_starts": counts.cumsum(0) - counts,
        "content_terms": features["content_terms"],
    }


def _terms_of_texts(features: dict[str, Tensor]) -> Tensor:
    """Return how many distinct terms each of (n,) texts has."""
    starts = features["term_starts"]
    end = starts.new_tensor([len(features["terms"])])
    return torch.diff(starts, append=end)


def _text_rows(features: dict[str, Tensor]) -> Tensor:
    """Return the row of the text that each term is of."""
    counts = _terms_of_texts(features)
    rows = torch.arange(len(counts), device=counts.device)
    return torch.repeat_interleave(rows, counts)


#: How a saved folder names the head.
HYBRID_CLASS = f"{HybridHead.__module__}.{HybridHead.__name__}"


def hash_terms(terms: Sequence[str], buckets: int) -> tuple[Tensor, Tensor]:
    """Return an int64 bucket and a float32 sign for each of (T,) terms.

    They are those of scikit-learn's feature hashing.
    """
    from sklearn.feature_extraction import FeatureHasher

    hasher = FeatureHasher(buckets, input_type="string")
    rows = hasher.transform([term] for term in terms).tocsr()
    term_buckets = torch.from_numpy(rows.indices).long()
    term_signs = torch.from_numpy(rows.data).float()
    return term_buckets, term_signs


def over_deviation(vectors: Tensor, spread: Tensor) -> Tensor:
    """Divide queries by the deviation of their dot products with the documents, |q S|.

    A query whose deviation is 0 becomes 0.

    Args:
        vectors: (Q, m) queries q.
        spread: (m, m) S with S Sᵀ the covariance of the documents. A root keeps in float32 what the
            covariance loses.
    """
    deviation = (vectors @ spread).norm(dim=-1, keepdim=True)
    return divided_by_deviation(vectors, deviation, spread.norm())


def divided_by_deviation(vectors: Tensor, deviation: Tensor, largest: Tensor) -> Tensor:
    """Divide vectors by the deviation of their dot products with documents.

    A vector becomes 0 if its deviation is what rounding leaves of equal products.

    Args:
        vectors: (Q, m) vectors.
        deviation: (Q, 1) deviations.
        largest: an upper bound of the deviation of a unit vector.
    """
    lengths = vectors.norm(dim=-1, keepdim=True)
    rounding = _NO_DEVIATION * lengths * largest
    tiny = torch.finfo(torch.float32).tiny
    divided = vectors / deviation.clamp(min=tiny)
    return torch.where(deviation <= rounding, torch.zeros_like(vectors), divided)


def covariance_root(covariance: Doubles) -> Doubles:
    """Return the symmetric square root of an (m, m) covariance."""
    values, axes = np.linalg.eigh(covariance)
    deviations = np.sqrt(values.clip(min=0))
    root: Doubles = (axes * deviations) @ axes.T
    return root


class HybridEncoder(TwoSidedEncoder):
    """A dense encoder fused with BM25: one vector whose dot product ranks as their fusion does.

    :func:`beir_cocodr.fuse` makes it from any encoder and a corpus; this class loads what that
    saved. Queries and documents have different vectors: plain ``encode`` is an error, and so is
    what changes vectors afterwards, such as normalisation and truncation. The dense part is the
    first ``head.dimension`` numbers of a document's vector.

    Example:
        >>> from tempfile import mkdtemp
        >>> from beir_cocodr import FuseOptions, HybridEncoder, fuse
        >>> folder = f"{mkdtemp()}/numpy"
        >>> options = FuseOptions(sample=16, probes=4)
        >>> record = fuse("minilm", "apidocs/numpy", output=folder, options=options)
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
        **kwargs: object,
    ) -> None:
        """Load a hybrid encoder, or fuse a dense encoder with a fitted head.

        Args:
            model_name_or_path: A saved hybrid encoder, a folder or hub name; with ``head``, the
                dense encoder.
            head: A fitted head.
            **kwargs: As for :class:`COCODR`.

        Raises:
            InputError: The model is not found, damaged, or no hybrid encoder.
        """
        super().__init__(model_name_or_path, **kwargs)
        check_type("head", head, (HybridHead, NoneType), "a HybridHead, or leave it out")
        if head is not None:
            self.append(head.to(self.device))
            self.module_kwargs = None
            # The host's private name for the base's card, which does not describe a fusion.
            self._model_card_text = None
        if not isinstance(self[-1], HybridHead):
            raise InputError(
                f"{model_name_or_path} is not a hybrid encoder and has no head; give a head, or "
                "make a hybrid encoder from it with beir-cocodr fuse"
            )
        self.similarity_fn_name = "dot"
        self.model_card_data.ir_model = True  # the host's model card may not call plain encode

    @property
    def head(self) -> HybridHead:
        """Return the head."""
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
            chunk_pooling=dense.chunk_pooling,
            device=str(dense.device),
        )

    def dense_part(self) -> COCODR:
        """Return the encoder that was fused, whose modules are shared."""
        return COCODR(
            modules=[*self][:-1],
            prompts=self.prompts,
            similarity_fn_name="cosine" if self.head.normalize else "dot",
            title_separator=self.title_separator,
            chunk_pooling=self.chunk_pooling,
            device=str(self.device),
        )

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> Any:
        """Return the dense encoder's features of texts and BM25's, which ignore the prompt."""
        features = super().preprocess(inputs, prompt=prompt, **kwargs)
        if len(inputs) and len(self) and isinstance(self[-1], HybridHead):
            texts = [str(text) for text in inputs]
            features |= terms_by_row(self.head.features(texts))
        return features

    def encode_document(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Encode texts of documents; BM25's part always reads them whole.

        See :meth:`COCODR.encode_document`.

        Raises:
            InputError: An argument would change the vectors, or asks for something else than one
                vector of each text.
        """
        if self.chunk_pooling == FIRST:
            return super().encode_document(inputs, *args, **kwargs)
        form, arguments = VectorForm.split(args, kwargs)
        self._refuse_changes(form.normalize_embeddings, form.truncate_dim, form.precision)
        if isinstance(inputs, str):
            return self.encode_document([inputs], *args, **kwargs)[0]
        texts = list(inputs)
        if not texts:
            return super().encode_document(texts, *args, **kwargs)
        dense = self.dense_part().encode_document(texts, convert_to_tensor=True, **arguments)
        lexical = self.head.document_part(texts).to(dense.device)
        return form.of(torch.cat([dense.float(), lexical], dim=1))

    def encode_query_parts(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """Return the (Q, d + r + hashed + 1) parts [e_q, y_q, w] of (Q,) queries, on the CPU."""
        encoded: Any = self.encode_query(
            list(texts),
            batch_size=batch_size,
            convert_to_tensor=True,
            show_progress_bar=False,
            parts=True,
        )
        parts: Tensor = encoded.float().cpu()
        return parts

    def join(self, parts: Tensor) -> Tensor:
        """Return :meth:`HybridHead.join`, computed on the model's device, on the CPU."""
        return self.head.join(parts.to(self.device)).cpu()
