"""Documents to vectors: batches of like length and at most so many tokens, halved where memory runs
out; no NaN.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import cut_text
from beir_cocodr.errors import InputError, listed
from beir_cocodr.retrieval.store.record import Backend

if TYPE_CHECKING:
    from beir_cocodr.retrieval.store.embeddings import Embeddings


def token_batches(lengths: Ints, budget: int) -> Iterator[Ints]:
    """Part texts into batches, (b,) indices each, of like length and longest first, so that padding
    is little, batches are about as much work, and what does not fit into memory is known at once.

    ``lengths`` are (n,) tokens of each text after truncation, ``budget`` the most of a batch, at
    least 1 (else a ValueError), padding included; a text above it is a batch of its own.
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


#: Tokens of a batch where none are asked for, on the CPU and on anything else.
CPU_BUDGET, DEVICE_BUDGET = 4_096, 32_768

#: Called with the number of documents after each batch; what it raises ends the encoding.
Watcher = Callable[[int], object]

# Texts that are tokenised at a time to learn their lengths.
_WINDOW = 1_024
log = logging.getLogger(__name__)


class CorpusEncoder:
    """Encodes rows of a corpus with one model on its device.

    The vectors are those of ``model.encode_corpus``, to the last bits, which depend on how texts
    are batched. Models that compare by cosine give unit vectors. Texts are taken from the corpus a
    batch at a time.

    Args:
        model: the encoder, a :class:`~beir_cocodr.models.cocodr.COCODR`.
        documents: the corpus.
        token_budget: tokens of a batch, padding included; 4,096 on the CPU and 32,768 elsewhere by
            default.
        backend: "fp32" leaves the model as it is, "bf16" runs it in bfloat16 (PyTorch's autocast),
            faster where the processor has it and less exact.
        watcher: called with the number of documents after each batch, beside the callback of
            :meth:`encode`; what it raises ends the encoding.
    """

    def __init__(
        self,
        model: Any,
        documents: Documents,
        token_budget: int | None = None,
        backend: Backend = "fp32",
        watcher: Watcher | None = None,
    ) -> None:
        self.model = model
        self.documents = documents
        self.backend = backend
        self.watcher = watcher
        on_cpu = torch.device(model.device).type == "cpu"
        self.token_budget = token_budget or (CPU_BUDGET if on_cpu else DEVICE_BUDGET)
        self.normalize = model.similarity_fn_name == "cosine"
        # Lowered when memory runs out, so that not every batch has to fail first.
        self._most_tokens: int | None = None

    def encode(self, rows: Ints, encoded: Callable[[int], Any] = lambda count: None) -> Floats:
        """(n,) corpus rows to (n, w) float32, in their order.

        ``encoded`` is called with the number of documents after each batch. An InputError names
        documents with NaN or infinity, or a single text that does not fit into memory.
        """
        lengths = self._lengths(rows)
        vectors: Floats | None = None
        for batch in token_batches(lengths, self.token_budget):
            found = self._encode(rows[batch], int(lengths[batch[0]]))
            if vectors is None:
                vectors = np.empty((len(rows), found.shape[1]), dtype=np.float32)
            vectors[batch] = found.numpy()
            encoded(len(batch))
            if self.watcher is not None:
                self.watcher(len(batch))
        if vectors is None:
            raise InputError("there are no documents to encode")
        if len(zero := np.flatnonzero(~vectors.any(axis=1))):
            (first,) = self.documents.ids(rows[zero[:1]])
            log.warning(
                "%d of %d documents have a zero embedding, the first is %r: look at its text, and at the model",
                len(zero), len(rows), first,
            )  # fmt: skip
        return vectors

    def _encode(self, rows: Ints, longest: int) -> torch.Tensor:
        """(n,) rows of at most ``longest`` tokens to (n, w) float32 on the CPU, in halves where
        need be.
        """
        if len(rows) == 1 or self._most_tokens is None or len(rows) * longest <= self._most_tokens:
            try:
                return self._forward(rows)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                reason = " ".join(str(error).split())
            # Behind the except clause, whose traceback holds on to the tensors that filled the
            # memory.
            self._make_room(rows, longest, reason)
        half = len(rows) // 2
        return torch.cat([self._encode(rows[:half], longest), self._encode(rows[half:], longest)])

    def _forward(self, rows: Ints) -> torch.Tensor:
        device = torch.device(self.model.device).type
        with (
            nullcontext()
            if self.backend == "fp32"
            else torch.autocast(device, dtype=torch.bfloat16)
        ):
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
                f"NaN or infinite embedding of {named(self.documents, rows[wrong])}: look at the text, and "
                "encode in float32 if the model runs in half precision"
            )
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def _make_room(self, rows: Ints, longest: int, reason: str) -> None:
        clear_device_cache(garbage_collection=True)
        if len(rows) == 1:
            raise InputError(
                f"out of memory with a single text, {named(self.documents, rows)} ({reason}): lower the "
                "document length, or choose another device"
            )
        self._most_tokens = len(rows) * longest // 2
        log.warning(
            "out of memory with %d texts of up to %d tokens: batches have at most %d tokens from here on "
            "(--token-budget %d saves the attempt)", len(rows), longest, self._most_tokens, self._most_tokens,
        )  # fmt: skip

    def _lengths(self, rows: Ints) -> Ints:
        """(n,) tokens after truncation."""
        text_format, tokenizer = self.model.text_format, self.model.tokenizer
        prompt, limit = text_format.document_prompt, text_format.document_length
        lengths: list[int] = []
        for start in range(0, len(rows), _WINDOW):
            texts = [
                text_format.document(d) for d in self.documents.take(rows[start : start + _WINDOW])
            ]
            texts = [
                prompt + (text if limit is None else cut_text(text, limit)[0]) for text in texts
            ]
            tokens = tokenizer(texts, truncation=limit is not None, max_length=limit, padding=False)
            lengths += map(len, tokens["input_ids"])
        return np.array(lengths, dtype=np.int64)


class HybridCorpusEncoder(CorpusEncoder):
    """Of a hybrid encoder of whose dense part (N, d) embeddings are ``held``: nothing is encoded
    but terms.
    """

    def __init__(self, model: Any, documents: Documents, held: Embeddings) -> None:
        super().__init__(model, documents)
        self.held = held

    def encode(self, rows: Ints, encoded: Callable[[int], Any] = lambda count: None) -> Floats:
        texts = [
            self.model.text_format.document(document) for document in self.documents.take(rows)
        ]
        vectors = torch.cat([self.held.rows(rows), self.model.head.document_part(texts)], dim=1)
        encoded(len(rows))
        return vectors.numpy()


def named(documents: Documents, rows: Ints) -> str:
    """Documents for an error message."""
    return f"document{'s' if len(rows) > 1 else ''} {listed(list(map(repr, documents.ids(rows))))}"


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or should_reduce_batch_size(
        error
    )
