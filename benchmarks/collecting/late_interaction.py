"""Late interaction over the token vectors of an encoder that was trained for one vector a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from beir_cocodr.arrays import Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.late_interaction import LateInteraction
from collecting.encoders import QUERY
from collecting.mpnet_attention import fuse_attention

#: The most tokens of a text.
TOKENS = 256


class TokenEncoder:
    """A multi-vector encoder: the states of an encoder's tokens, each of length 1.

    Its search is that of ``colbert:M``: exact MaxSim over the 1,000 best documents of BM25.

    Attributes:
        name: Its name in the study.
        model: The encoder as sentence-transformers' ``MultiVectorEncoder``.
    """

    similarity = "maxsim"

    def __init__(self, name: str, model: str) -> None:
        """Load an encoder.

        Args:
            name: Its name in the study.
            model: The name or folder of an encoder that averages tokens.
        """
        from sentence_transformers import MultiVectorEncoder
        from sentence_transformers.base.modules import Normalize
        from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
        from sentence_transformers.sentence_transformer.modules import Transformer

        from beir_cocodr.models.checkpoints.loading import model_source

        modules = [
            Transformer(model_source(model), max_seq_length=TOKENS),
            MultiVectorMask(),
            Normalize(module_input_name="token_embeddings"),
        ]
        self.name = name
        self.model: Any = MultiVectorEncoder(
            modules=modules,
            similarity_fn_name="maxsim",
            device="cpu",
        )
        fuse_attention(self.model[0].auto_model)
        self._bf16 = False
        self._held: dict[str, Any] = {}

    def use_bfloat16(self) -> None:
        """Compute in bfloat16."""
        self._bf16 = True

    def encode(self, texts: Sequence[str], role: str) -> list[Any]:
        """Return the (n, d) vectors of the tokens of each text."""
        is_query = role == QUERY
        encode = self.model.encode_query if is_query else self.model.encode_document
        vectors: list[Any] = encode(list(texts))
        return vectors

    def ranker(self, documents: Documents, bm25: BM25) -> LateInteraction:
        """Return the package's late interaction over a corpus."""
        options = SearchOptions(bf16=self._bf16)
        return _HeldLateInteraction(self.model, self._held, documents, options, bm25)

    def forget(self) -> None:
        """Forget the vectors of documents."""
        self._held.clear()


def maxsim(
    queries: Sequence[torch.Tensor],
    documents: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the (Q, n) scores of sentence-transformers' ``maxsim``, in a quarter of its time.

    Documents are not padded to the length of the longest one.

    Args:
        queries: (Q,) vectors of tokens, each (t, d).
        documents: (n,) the same of documents.
        dtype: The type in which products are computed.
    """
    lengths = [len(tokens) for tokens in documents]
    products = torch.cat(list(queries)).to(dtype) @ torch.cat(list(documents)).to(dtype).T
    best = torch.stack([part.amax(dim=1) for part in products.split(lengths, dim=1)], dim=1)
    counts = torch.tensor([len(tokens) for tokens in queries])
    query_of = torch.repeat_interleave(torch.arange(len(queries)), counts)
    scores = torch.zeros(len(queries), len(documents))
    return scores.index_add_(0, query_of, best.float())


class _HeldLateInteraction(LateInteraction):
    """Late interaction that keeps the vectors of documents, which changed corpora share.

    With bfloat16 they are kept in float16.
    """

    def __init__(
        self,
        model: Any,
        held: dict[str, Any],
        documents: Documents,
        options: SearchOptions,
        first: BM25,
    ) -> None:
        self._model = model
        self._held = held
        super().__init__("", documents, options, first)

    def load(self, name: str) -> Any:
        """Return the model, which is loaded already."""
        return self._model

    def _scores(
        self,
        queries: list[str],
        encoded: Sequence[torch.Tensor],
        rows: Ints,
        vectors: Sequence[torch.Tensor],
    ) -> Floats:
        """Return (Q, n) scores of documents."""
        dtype = torch.bfloat16 if self.options.bf16 else torch.float32
        scores: Floats = maxsim(encoded, vectors, dtype).numpy()
        return scores

    def vectors(self, texts: list[str]) -> list[Any]:
        """Return the (n, d) vectors of documents."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._held]
        for text, vectors in zip(missing, super().vectors(missing), strict=True):
            self._held[text] = vectors.half() if self.options.bf16 else vectors
        return [self._held[text].float() for text in texts]
