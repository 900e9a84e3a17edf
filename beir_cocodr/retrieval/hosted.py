"""Rankers of sentence-transformers' own classes: cross-encoders and learned sparse encoders.

Late interaction has a file of its own, :mod:`beir_cocodr.retrieval.late_interaction`.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.util import load_file_path

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat, readable
from beir_cocodr.errors import InputError
from beir_cocodr.models.checkpoints.integrity import LATE_INTERACTION, SPARSE, check_loaded, loading
from beir_cocodr.models.checkpoints.loading import load_cross_encoder
from beir_cocodr.models.cocodr import set_lengths
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import Bar, in_place
from beir_cocodr.records import Json
from beir_cocodr.retrieval.ranking import Ranker, Ranking
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores
from beir_cocodr.temporary import TemporaryFolder

#: The file in which a folder of sentence-transformers names its class.
CONFIG = "config_sentence_transformers.json"

#: Documents of the first stage that a cross-encoder reads.
RERANKED = 100

#: Documents encoded at a time.
CHUNK = 256


class HostRetriever:
    """A model of sentence-transformers over a corpus.

    Args:
        name: folder or hub name of the model.
        documents: the corpus.
        options: ``batch_size`` texts, or pairs of a query and a document, pass through the model at
            a time; with ``bf16`` in bfloat16 (PyTorch's autocast). Lengths and prompts of
            ``encoder`` apply to encoders; a cross-encoder has its own length.
        first: the first stage, whose ``depth`` best documents are candidates.
        depth: the number of candidates. Default: that of the class.
        folder: where results of encoding that are too large for memory are kept. Default: a
            temporary folder.

    Raises:
        InputError: If the model cannot be loaded whole, or is of another kind, whose missing layers
            would be initialised at random.
    """

    depth = RERANKED

    def __init__(
        self,
        name: str,
        documents: Documents,
        options: SearchOptions = SearchOptions(),
        first: Ranker | None = None,
        depth: int | None = None,
        folder: Path | None = None,
    ) -> None:
        """Load the model."""
        self.documents = documents
        self.options = options
        self.first = first
        self.depth = depth or self.depth
        if folder is None:
            self._temporary = TemporaryFolder()  # removed with the ranker
            folder = self._temporary.path
        self.folder = folder
        self.model: Any = self.load(name)
        self.read = readable(self.model.tokenizer, self.model.prompts.values())

    def load(self, name: str) -> Any:
        """Load the model of the class."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the first stage, and whatever the class makes of the corpus beforehand."""
        if self.first is not None:
            self.first.prepare()

    @property
    def text_format(self) -> TextFormat:
        """Return the format that joins titles and texts."""
        return self.options.encoder.text_format

    def texts(self, documents: Iterable[dict[str, str]]) -> list[str]:
        """Return the texts that the model reads of documents."""
        return [self.read(self.text_format.document(document)) for document in documents]

    def precision(self) -> AbstractContextManager[Any]:
        """Return the context in which the model runs: autocast to bfloat16 if asked for."""
        if not self.options.bf16:
            return nullcontext()
        return torch.autocast(torch.device(self.model.device).type, torch.bfloat16)

    def encode(self, encode: Any, texts: Sequence[object], **settings: object) -> Any:
        """Call one of the model's methods on texts, or on pairs of them."""
        arguments: dict[str, object] = {
            "batch_size": self.options.batch_size,
            "show_progress_bar": self.options.shows_progress and in_place(),
        }
        arguments.update(settings)
        with self.precision():
            return encode(texts, **arguments)

    def described(self, **fields: object) -> Json:
        """Return a description for records: the given fields, the first stage and the format."""
        description: Json = dict(fields)
        if self.first is not None:
            description["first_stage"] = self.first.describe()
            description["reranked"] = self.depth
        if self.options.bf16:
            description["bf16"] = True
        description["text_format"] = {"title_separator": self.text_format.title_separator}
        return description

    def check_finite(self, scores: Floats, rows: Ints, queries: list[str]) -> None:
        """Check (Q, n) scores of documents.

        Raises:
            NonFiniteScores: If one is NaN or infinite. It names the document and the query.
        """
        is_finite = np.isfinite(scores)
        if is_finite.all():
            return
        query, column = np.argwhere(~is_finite)[0]
        ids = self.documents.ids(rows[[column]])
        raise NonFiniteScores(ids, [queries[query]])


def load_host(kind: Any, name: str, options: SearchOptions) -> Any:
    """Load a sparse or multi-vector encoder whose weights were trained as one.

    Raises:
        InputError: If the model cannot be loaded whole, or was trained as something else.
    """
    if kind is SparseEncoder:
        task = SPARSE
        architectures: tuple[str, ...] = ("ForMaskedLM",)
    else:
        task = LATE_INTERACTION
        architectures = ("HF_ColBERT", "ForRetrieval")
    with loading(name, task):
        _check_kind(name, kind.__name__, architectures)
        model = kind(name, device=options.encoder.device)
        check_loaded(model, model.tokenizer, name)
    encoder = options.encoder
    prompts = {
        "query": encoder.query_prompt,
        "document": encoder.document_prompt,
    }
    chosen = {role: prompt for role, prompt in prompts.items() if prompt is not None}
    model.prompts = model.prompts | chosen
    set_lengths(model[0], encoder.query_length, encoder.document_length)
    return model


def _check_kind(name: str, kind: str, architectures: tuple[str, ...]) -> None:
    """Check that a model was trained as a kind.

    sentence-transformers turns an encoder of another kind into the one that is asked for, with
    layers of random weights.
    """
    saved_as = _settings(name, CONFIG).get("model_type")
    if load_file_path(name, "modules.json") is not None:
        fits = saved_as in (kind, "ColBERT")
    else:
        saved: Any = _settings(name, "config.json").get("architectures") or [""]
        fits = str(saved[0]).endswith(architectures)
    if not fits:
        raise InputError(
            f"model {name!r} is not saved as {kind}, but as {saved_as or 'a bare transformer'}: "
            "it would get layers with random weights; name a model that was trained as one"
        )


def _settings(name: str, file: str) -> Json:
    path = load_file_path(name, file)
    if path is None:
        return {}
    content = Path(path).read_text(encoding="utf-8")
    return dict(json.loads(content))


class Reranking(HostRetriever):
    """The ``depth`` best documents of a first stage, reordered by a cross-encoder's raw scores."""

    def load(self, name: str) -> CrossEncoder:
        """Load the cross-encoder."""
        model: CrossEncoder
        model, _ = load_cross_encoder(name, self.options.encoder.device)
        return model

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Return the best documents of the first stage, for queries by id."""
        assert self.first is not None
        candidates = self.first.search(queries, self.depth)
        scored = []
        bar = Bar(
            total=int((candidates.rows >= 0).sum()),
            desc="Reranking",
            unit=" documents",
            disable=not self.options.shows_progress,
        )
        with bar:
            for (query, text), row in zip(queries.items(), candidates.rows, strict=True):
                rows = row[row >= 0]
                scores = self._scores(text, rows)
                self.check_finite(scores[None], rows, [query])
                scored.append((rows, scores))
                bar.update(len(rows))
        depth = min(top_k, self.depth)
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), depth)

    def _scores(self, query: str, rows: Ints) -> Floats:
        """Return (n,) float32 scores of documents for a query."""
        if not len(rows):
            return np.empty(0, np.float32)
        documents = self.texts(self.documents.take(rows))
        return self.score_texts(self.read(query), documents)

    def score_texts(self, query: str, texts: list[str]) -> Floats:
        """Return (n,) float32 scores of texts for a query."""
        raw = self.encode(
            self.model.predict,
            [(query, text) for text in texts],
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )
        return np.asarray(raw, np.float32)

    def describe(self) -> Json:
        """Describe the ranker for records."""
        return self.described(model="cross-encoder", max_length=self.model.max_seq_length)


class Sparse(HostRetriever):
    """Dot products of sparse vectors.

    The corpus is encoded once and held in memory as an inverted index; a query reads the
    lists of its dimensions. A document that shares no dimension with the query is not retrieved.

    Raises:
        InputError: If the encoder does not compare by dot product.
    """

    _postings: Any = None

    def load(self, name: str) -> SparseEncoder:
        """Load the sparse encoder."""
        model: SparseEncoder = load_host(SparseEncoder, name, self.options)
        if model.similarity_fn_name not in (None, "dot"):
            raise InputError(
                f"the sparse encoder compares by {model.similarity_fn_name}; save it with "
                'similarity_fn_name "dot"'
            )
        return model

    def prepare(self) -> None:
        """Encode the corpus."""
        if self._postings is not None:
            return
        parts = []
        for documents in self.documents.chunks(4 * CHUNK):
            texts = self.texts(documents)
            parts.append(self._vectors(self.model.encode_document, texts))
        # (V, N) in CSR format, in which a row is the list of a dimension.
        self._postings = sparse.vstack(parts, format="csc").T

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Return the best documents that share a dimension with the query, for queries by id."""
        self.prepare()
        texts = [self.read(text) for text in queries.values()]
        encoded = self._vectors(self.model.encode_query, texts)
        scored = []
        for row, query in enumerate(queries):
            scores = encoded[row] @ self._postings  # (1, N)
            self.check_finite(scores.data[None], scores.indices, [query])
            matching = scores.data > 0
            scored.append((scores.indices[matching], scores.data[matching]))
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), top_k)

    def describe(self) -> Json:
        """Describe the ranker for records."""
        self.prepare()
        documents = self._postings.shape[1]
        return self.described(
            model="sparse",
            similarity="dot",
            active_dimensions_of_a_document=float(self._postings.nnz / documents),
        )

    def _vectors(self, encode: Any, texts: list[str]) -> Any:
        """Encode n texts as an (n, V) float32 matrix in CSR format."""
        encoded = self.encode(encode, texts, convert_to_sparse_tensor=True)
        vectors = encoded.cpu().coalesce()
        values = vectors.values().float().numpy()
        places = vectors.indices().numpy()
        return sparse.csr_matrix((values, places), shape=tuple(vectors.shape))
