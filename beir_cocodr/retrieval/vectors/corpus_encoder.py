"""Documents to vectors: in batches of similar length, halved where memory runs out, without NaN."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from beir_cocodr.arrays import Bools, Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError, listed
from beir_cocodr.models.document_tokens import DocumentTokens
from beir_cocodr.retrieval.store.record import Backend

if TYPE_CHECKING:
    from beir_cocodr.retrieval.store.embeddings import Embeddings
    from beir_cocodr.retrieval.vectors.vector_cache import KnownVectors, VectorCache


log = logging.getLogger(__name__)

#: Tokens of a batch by default, on the CPU and on any other device.
CPU_BUDGET = 4_096
DEVICE_BUDGET = 32_768

#: Called with the number of documents after each batch; what it raises ends the encoding.
Watcher = Callable[[int], object]

# Texts that are tokenised at a time to learn their lengths.
_WINDOW = 1_024


def token_batches(lengths: Ints, budget: int) -> Iterator[Ints]:
    """Yield batches of texts of similar length, longest first, as (b,) indices.

    Padding is then small, batches are about as much work, and a batch that does not fit into memory
    is found at once.

    Args:
        lengths: (n,) tokens of each text after truncation.
        budget: the most tokens of a batch, padding included; a longer text is a batch of its own.

    Raises:
        ValueError: If the budget is below 1.
    """
    if budget < 1:
        raise ValueError(f"a token budget is at least 1, not {budget}")
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        size = max(1, budget // longest)
        yield order[start : start + size]
        start += size


class EncodingClock:
    """The time that an encoding still takes, by the tokens of the texts that are done and left.

    Texts are encoded longest first, so their number says little about the time.

    Args:
        documents: all documents that are to be encoded; by default those that are planned.
    """

    def __init__(self, documents: int = 0) -> None:
        """Begin before the first batch."""
        self.documents = documents
        self._planned_documents = 0
        self._planned_tokens = 0
        self._tokens = 0
        self._seconds = 0.0
        self._since = time.perf_counter()

    def plan(self, lengths: Ints) -> None:
        """Take in the (n,) tokens of the next texts, which are encoded from now on."""
        self._planned_documents += len(lengths)
        self._planned_tokens += int(lengths.sum())
        self._since = time.perf_counter()

    def count(self, lengths: Ints) -> None:
        """Take in that a batch of (b,) lengths is done."""
        now = time.perf_counter()
        self._seconds += now - self._since
        self._since = now
        self._tokens += int(lengths.sum())

    def seconds_left(self) -> float | None:
        """Return the seconds that all documents still take, None before the first batch."""
        if not self._tokens:
            return None
        unplanned = max(0, self.documents - self._planned_documents)
        a_document = self._planned_tokens / self._planned_documents
        left = self._planned_tokens - self._tokens + unplanned * a_document
        return left * self._seconds / self._tokens


class CorpusEncoder:
    """Encodes rows of a corpus with one model on its device.

    The vectors equal those of ``model.encode_corpus``, except for the last bits, which depend on
    the batches. Models that compare by cosine give unit vectors. Texts are read from the corpus a
    batch at a time.

    Args:
        model: the encoder, a :class:`~beir_cocodr.models.cocodr.COCODR`.
        documents: the corpus.
        token_budget: tokens of a batch, padding included; by default 4,096 on the CPU and 32,768
            on other devices.
        backend: "fp32" leaves the model as it is; "bf16" runs it in bfloat16 (PyTorch's autocast),
            which is faster where the processor has it, and less exact.
        watcher: called with the number of documents after each batch, beside the callback of
            :meth:`encode`; what it raises ends the encoding.
        cache: the vectors of texts that were encoded before, which are not encoded again; what is
            encoded is added batch by batch.

    Attributes:
        clock: the work that is done and left.
    """

    def __init__(
        self,
        model: Any,
        documents: Documents,
        token_budget: int | None = None,
        backend: Backend = "fp32",
        watcher: Watcher | None = None,
        cache: VectorCache | None = None,
    ) -> None:
        """Choose the token budget of the model's device."""
        self.model = model
        self.documents = documents
        self.backend = backend
        self.watcher = watcher
        self.cache = cache
        self.clock = EncodingClock()
        is_remote = getattr(model, "is_remote", False)  # see EndpointEncoder
        on_cpu = torch.device(model.device).type == "cpu" and not is_remote
        self.token_budget = token_budget or (CPU_BUDGET if on_cpu else DEVICE_BUDGET)
        self.normalize = model.similarity_fn_name == "cosine"
        # Lowered when memory runs out, so that not every batch has to fail first.
        self._most_tokens: int | None = None

    def encode(self, rows: Ints, encoded: Callable[[int], Any] = lambda count: None) -> Floats:
        """Encode (n,) corpus rows to (n, w) float32, in their order.

        Args:
            rows: of the corpus.
            encoded: called with the number of documents after each batch; documents that the cache
                has are not counted.

        Raises:
            InputError: If there are no rows, a vector has NaN or infinity, or a single text does
                not fit into memory; names the documents.
        """
        if not len(rows):
            raise InputError("there are no documents to encode")
        known = None if self.cache is None else self.cache.look_up(self.documents, rows)
        is_missing = np.ones(len(rows), bool) if known is None else known.is_missing
        vectors = None if known is None else known.vectors()
        if is_missing.any():
            vectors = self._encode_missing(rows, is_missing, known, vectors, encoded)
        assert vectors is not None
        self._warn_of_zeros(rows[~vectors.any(axis=1)], len(rows))
        return vectors

    def _encode_missing(
        self,
        rows: Ints,
        is_missing: Bools,
        known: KnownVectors | None,
        vectors: Floats | None,
        encoded: Callable[[int], Any],
    ) -> Floats:
        """Encode the documents that are missing, and return the vectors of all.

        The batches are those of all documents, so that a batch which is missing as a whole has the
        vectors that it has without a cache, to the last bit.
        """
        lengths, tokens = self._tokenise(rows)
        self.clock.plan(lengths[is_missing])
        with self._known(tokens):
            for planned in token_batches(lengths, self.token_budget):
                batch = planned[is_missing[planned]]
                if not len(batch):
                    continue
                longest = int(lengths[batch[0]])
                batch_vectors = self._encode(rows[batch], longest).numpy()
                if known is not None:
                    batch_vectors = known.keep(batch, batch_vectors)
                if vectors is None:
                    vectors = np.empty((len(rows), batch_vectors.shape[1]), np.float32)
                vectors[batch] = batch_vectors
                self.clock.count(lengths[batch])
                encoded(len(batch))
                if self.watcher is not None:
                    self.watcher(len(batch))
        assert vectors is not None
        return vectors

    @contextmanager
    def _known(self, tokens: DocumentTokens | None) -> Iterator[None]:
        """Let the model use the tokens of documents that are known already."""
        self.model.document_tokens = tokens
        try:
            yield
        finally:
            self.model.document_tokens = None

    def _warn_of_zeros(self, rows: Ints, encoded: int) -> None:
        """Log how many documents, of those encoded, have a zero embedding."""
        if len(rows):
            (first,) = self.documents.ids(rows[:1])
            log.warning(
                "%d of %d documents have a zero embedding, the first is %r: look at its text, "
                "and at the model",
                len(rows),
                encoded,
                first,
            )

    def _encode(self, rows: Ints, longest: int) -> torch.Tensor:
        """Encode (n,) rows of at most ``longest`` tokens to (n, w) float32 on the CPU.

        The batch is halved where it does not fit into memory.
        """
        if len(rows) == 1 or self._most_tokens is None or len(rows) * longest <= self._most_tokens:
            try:
                return self._forward(rows)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                reason = " ".join(str(error).split())
            # After the except clause, whose traceback holds the tensors that filled the memory.
            self._make_room(rows, longest, reason)
        half = len(rows) // 2
        return torch.cat([self._encode(rows[:half], longest), self._encode(rows[half:], longest)])

    def _forward(self, rows: Ints) -> torch.Tensor:
        device = torch.device(self.model.device).type
        precision: Any = nullcontext()
        if self.backend == "bf16":
            precision = torch.autocast(device, dtype=torch.bfloat16)
        with precision:
            encoded = self.model.encode_corpus(
                self.documents.take(rows),
                batch_size=len(rows),
                convert_to_tensor=True,
                show_progress_bar=False,
            )
        vectors = encoded.detach().float().cpu()
        wrong = (~vectors.isfinite().all(dim=1)).nonzero().squeeze(1).tolist()
        if wrong:
            raise InputError(
                f"NaN or infinite embedding of {named(self.documents, rows[wrong])}: look at the "
                "text, and encode in float32 if the model runs in half precision"
            )
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def _make_room(
        self,
        rows: Ints,
        longest: int,
        reason: str,
    ) -> None:
        clear_device_cache(garbage_collection=True)
        if len(rows) == 1:
            raise InputError(
                f"out of memory with a single text, {named(self.documents, rows)} ({reason}): "
                "lower the document length, or choose another device"
            )
        self._most_tokens = len(rows) * longest // 2
        log.warning(
            "out of memory with %d texts of up to %d tokens: batches have at most %d tokens from "
            "here on (--token-budget %d avoids the attempt)",
            len(rows),
            longest,
            self._most_tokens,
            self._most_tokens,
        )

    def _tokenise(self, rows: Ints) -> tuple[Ints, DocumentTokens | None]:
        """Return how many tokens each of (n,) documents has after truncation, and the tokens.

        Documents that fit into one batch even if all are as long as the limit are not tokenised
        here: their lengths would not change the batch.
        """
        text_format = self.model.text_format
        limit = text_format.document_length
        if limit is not None and len(rows) * limit <= self.token_budget:
            return np.full(len(rows), limit, dtype=np.int64), None
        known = DocumentTokens(self.model.tokenizer)
        lengths: list[int] = []
        for start in range(0, len(rows), _WINDOW):
            documents = self.documents.take(rows[start : start + _WINDOW])
            texts = [text_format.document(document) for document in documents]
            tokens = self.model.tokenize_documents(texts)
            known.add(texts, tokens)
            lengths += map(len, tokens)
        return np.array(lengths, dtype=np.int64), known


class HybridCorpusEncoder(CorpusEncoder):
    """Encodes a corpus with a hybrid encoder whose dense part is encoded elsewhere.

    Args:
        model: a :class:`~beir_cocodr.models.hybrid_encoder.HybridEncoder`.
        documents: the corpus.
        dense: (N, d) embeddings of the dense part, or the encoder that makes them.
    """

    def __init__(
        self,
        model: Any,
        documents: Documents,
        dense: Embeddings | CorpusEncoder,
    ) -> None:
        """Take the embeddings of the dense part."""
        super().__init__(model, documents)
        self.dense = dense
        if isinstance(dense, CorpusEncoder):
            self.clock = dense.clock

    def encode(self, rows: Ints, encoded: Callable[[int], Any] = lambda count: None) -> Floats:
        """Encode (n,) corpus rows to (n, w) float32, see :meth:`CorpusEncoder.encode`."""
        documents = self.documents.take(rows)
        texts = [self.model.text_format.document(document) for document in documents]
        if isinstance(self.dense, CorpusEncoder):
            dense = torch.from_numpy(self.dense.encode(rows, encoded))
        else:
            dense = self.dense.rows(rows)
            encoded(len(rows))
        return torch.cat([dense, self.model.head.document_part(texts)], dim=1).numpy()


def named(documents: Documents, rows: Ints) -> str:
    """Return the names of documents for an error message."""
    ids = [repr(id) for id in documents.ids(rows)]
    return f"document{'s' if len(rows) > 1 else ''} {listed(ids)}"


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return bool(should_reduce_batch_size(error))
