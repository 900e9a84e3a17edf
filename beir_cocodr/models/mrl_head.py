"""The two projections of an MRL encoder, and the token that its variance is read from."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, processors
from torch import Tensor, nn

from beir_cocodr.arrays import Features
from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import check_task
from beir_cocodr.models.kl import Formula, flatten_document, flatten_query
from beir_cocodr.models.saved_module import SavedModule

#: Stands right after [CLS] in every text, and in which column.
VARIANCE_TOKEN, _COLUMN = "[VAR]", 1

# Scores of cosine encoders are multiplied by this in all losses of this package.
_COSINE_SCALE = 20.0


class MRLHead(SavedModule):
    """Token embeddings to the flattened normal distribution of a query or a document.

    μ = W_M h and σ² = softplus_β(W_Σ h_VAR), where h is [CLS]'s last hidden state or the mean over
    all tokens but [VAR]. From there on everything is float64; what leaves is float32, and q·d =
    −2·KL(Q‖D) up to terms of the query.

    Args:
        hidden_size: d of the backbone.
        k: variables of the distribution; the flattened vectors have 2k + 1 numbers.
        beta: β of the softplus (default 1; the paper finds any β ≥ 1 as good).
        pooling: "cls" (the paper) or "mean", what h is.
        normalize_mean: scale h to unit length, for encoders that compare by cosine (default off).
        formula: "exact" or, for ablation, "paper" (2k + 2 numbers), see
            :mod:`beir_cocodr.models.kl`.
        variance_floor: least σ² (1e-4, ours).

    References:
        MRL, section 4.1, Eq. 11.
    """

    forward_kwargs = {"task", "flatten"}  # noqa: RUF012 - the host's way to declare it

    def __init__(
        self,
        hidden_size: int,
        k: int,
        beta: float = 1.0,
        pooling: Literal["cls", "mean"] = "cls",
        normalize_mean: bool = False,
        formula: Formula = "exact",
        variance_floor: float = 1e-4,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.hidden_size, self.k, self.beta, self.pooling = hidden_size, k, beta, pooling
        self.normalize_mean, self.formula, self.variance_floor = (
            normalize_mean,
            formula,
            variance_floor,
        )
        self.mean_projection = nn.Linear(hidden_size, k, bias=False)
        self.variance_projection = nn.Linear(hidden_size, k, bias=False)

    def initialize(self, seed: int) -> None:
        """W_M semi-orthogonal, so that distances survive it, and W_Σ small, so that at first σ² ≈
        ln 2 / β. With unit vectors, distances are so short that differences of variances would
        outweigh them: W_M is longer there, so that −KL begins as 20 times the cosine.
        """
        generator = torch.Generator().manual_seed(seed)
        gain = 1.0
        if self.normalize_mean:
            gain = math.sqrt(_COSINE_SCALE * math.log(2) / self.beta * self.hidden_size / self.k)
        # In float32 the last bits would depend on the number of threads, and a resumed run on its
        # machine.
        wide = torch.empty(self.mean_projection.weight.shape, dtype=torch.float64)
        nn.init.orthogonal_(wide, gain, generator=generator)
        self.mean_projection.weight.data.copy_(wide)
        nn.init.normal_(self.variance_projection.weight, std=0.02, generator=generator)

    def forward(
        self, features: Features, task: str | None = None, flatten: bool = True, **kwargs: Any
    ) -> Features:
        """Set ``sentence_embedding``: (B, 2k + 1) float32, or (B, 2k) [μ, σ²] without ``flatten``.
        The task, "query" or "document", comes from the argument or else the features.
        """
        task = check_task(task or features.get("task"), "MRL")
        mean, variance = self.distribution(features)  # (B, k) each
        vectors = torch.cat([mean, variance], dim=-1)
        if flatten:
            to_vector = flatten_query if task == "query" else flatten_document
            vectors = to_vector(
                mean, variance, self.formula, self.k * math.log(math.log(2) / self.beta)
            )
        features["sentence_embedding"] = vectors.float()
        return features

    def distribution(self, features: Features) -> tuple[Tensor, Tensor]:
        """μ and σ², (B, k) each, in float64."""
        tokens = features["token_embeddings"]  # (B, L, d)
        wide = torch.float32 if tokens.device.type == "mps" else torch.float64
        with torch.autocast(tokens.device.type, enabled=False):
            hidden = self._pool(tokens, features["attention_mask"]).to(wide)
            if self.normalize_mean:
                hidden = F.normalize(hidden, dim=-1)
            mean = F.linear(hidden, self.mean_projection.weight.to(wide))
            raw = F.linear(tokens[:, _COLUMN].to(wide), self.variance_projection.weight.to(wide))
            variance = F.softplus(raw, self.beta, threshold=40)
            # The value is held at the floor, the gradient stays: a variance has to find its way up
            # again.
            return mean, variance + (variance.clamp(min=self.variance_floor) - variance).detach()

    def _pool(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        if self.pooling == "cls":
            return tokens[:, 0]
        places = torch.arange(tokens.shape[1], device=tokens.device)
        weights = (attention_mask * (places != _COLUMN)).float()[:, :, None]  # (B, L, 1)
        return (tokens.float() * weights).sum(dim=1) / weights.sum(dim=1)

    def get_embedding_dimension(self) -> int:
        return 2 * self.k + (1 if self.formula == "exact" else 2)

    def on_model_ready(self, model: Any) -> None:
        """The host's call after loading, when a tokenizer is back at its class's template, without
        [VAR].
        """
        add_variance_token(model)


def add_variance_token(model: Any) -> None:
    """Make an encoder read ``[CLS] [VAR] text [SEP]``, by its tokenizer's own template, once; an
    InputError where that does not make ``[CLS] text [SEP]``.

    So wherever the tokenizer is used, [VAR] is there, counts in the length, and is never cut off.
    Its embedding starts as [CLS]'s: a token that the encoder knows as one that sums a text up.
    """
    tokenizer = model.tokenizer
    empty = list(tokenizer("")["input_ids"])
    if empty[1:2] == [tokenizer.get_vocab().get(VARIANCE_TOKEN)]:
        return
    if not tokenizer.is_fast or len(empty) != 2 or empty[0] != tokenizer.cls_token_id:
        raise InputError(
            "MRL needs a BERT-like encoder, whose tokenizer makes [CLS] text [SEP]; "
            f"{type(tokenizer).__name__} makes {tokenizer.convert_ids_to_tokens(empty)} of an empty text"
        )
    is_new = VARIANCE_TOKEN not in tokenizer.get_vocab()
    tokenizer.add_tokens(
        [AddedToken(VARIANCE_TOKEN, special=True, normalized=False)], special_tokens=True
    )
    variance_id = tokenizer.convert_tokens_to_ids(VARIANCE_TOKEN)
    first, last = tokenizer.convert_ids_to_tokens(empty)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} {VARIANCE_TOKEN} $A {last}",
        pair=f"{first} {VARIANCE_TOKEN} $A {last} $B:1 {last}:1",
        special_tokens=[(first, empty[0]), (VARIANCE_TOKEN, variance_id), (last, empty[1])],
    )
    if is_new:
        backbone = model.transformers_model
        if (
            variance_id >= backbone.get_input_embeddings().num_embeddings
        ):  # some models have rows to spare
            backbone.resize_token_embeddings(variance_id + 1, mean_resizing=False)
        weight = backbone.get_input_embeddings().weight
        with torch.no_grad():
            weight[variance_id] = weight[empty[0]]
