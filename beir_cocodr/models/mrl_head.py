"""The two projections of an MRL encoder, and the token that its variance is computed from."""

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

#: The token that follows [CLS] in every text.
VARIANCE_TOKEN = "[VAR]"
_COLUMN = 1

#: Factor on the scores of cosine encoders in all losses of this package.
COSINE_SCALE = 20.0

# Deviation of the initial W_Σ, small beside the activations of any encoder.
_DEVIATION = 0.02

# Beyond this, β times the activation is returned as the softplus of it.
_LINEAR_FROM = 40


class MRLHead(SavedModule):
    """Projections of token embeddings to the normal distribution of a query or a document.

    μ = W_M h and σ² = softplus_β(W_Σ h_VAR), where h is [CLS]'s last hidden state or the mean over
    all tokens except [VAR]. All further arithmetic is float64 and the result float32, with q·d =
    −2·KL(Q‖D) up to terms of the query.

    Args:
        hidden_size: d of the backbone.
        k: Variables of the distribution; flattened vectors have 2k + 1 numbers.
        beta: β of the softplus (default 1; in the paper any β ≥ 1 is as good).
        pooling: What h is: "cls" (the paper) or "mean".
        normalize_mean: Scale h to unit length, for encoders that compare by cosine.
        formula: "exact" or, for ablation, "paper" (2k + 2 numbers), see
            :mod:`beir_cocodr.models.kl`.
        variance_floor: Least σ² (1e-4, ours).

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
        """Make the projections, whose weights :meth:`initialize` draws."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.hidden_size = hidden_size
        self.k = k
        self.beta = beta
        self.pooling = pooling
        self.normalize_mean = normalize_mean
        self.formula = formula
        self.variance_floor = variance_floor
        self.mean_projection = nn.Linear(hidden_size, k, bias=False)
        self.variance_projection = nn.Linear(hidden_size, k, bias=False)

    def initialize(self, seed: int) -> None:
        """Draw W_M semi-orthogonal, which preserves distances, and W_Σ so small that σ² ≈ ln 2 / β.

        Distances of unit vectors are so short that differences of variances would outweigh them.
        For these W_M is longer, so that −KL begins as 20 times the cosine.

        Args:
            seed: Seed of the weights.
        """
        generator = torch.Generator().manual_seed(seed)
        gain = 1.0
        if self.normalize_mean:
            scale = COSINE_SCALE * math.log(2) / self.beta
            gain = math.sqrt(scale * self.hidden_size / self.k)
        # In float32 the last bits would depend on the number of threads, and so a resumed run on
        # its machine.
        weight = torch.empty(self.mean_projection.weight.shape, dtype=torch.float64)
        nn.init.orthogonal_(weight, gain, generator=generator)
        self.mean_projection.weight.data.copy_(weight)
        nn.init.normal_(self.variance_projection.weight, std=_DEVIATION, generator=generator)

    def forward(
        self,
        features: Features,
        task: str | None = None,
        flatten: bool = True,
        **kwargs: object,
    ) -> Features:
        """Set ``sentence_embedding`` in the features.

        Args:
            features: The backbone's features.
            task: "query" or "document". Default: the task in the features.
            flatten: Set (B, 2k + 1) float32 vectors; otherwise (B, 2k), [μ, σ²].
            **kwargs: Ignored.
        """
        task = check_task(task or features.get("task"), "MRL")
        mean, variance = self.distribution(features)  # (B, k) each
        if flatten:
            to_vector = flatten_query if task == "query" else flatten_document
            reference_variance = math.log(2) / self.beta
            log_reference = self.k * math.log(reference_variance)
            vectors = to_vector(mean, variance, self.formula, log_reference)
        else:
            vectors = torch.cat([mean, variance], dim=-1)
        features["sentence_embedding"] = vectors.float()
        return features

    def distribution(self, features: Features) -> tuple[Tensor, Tensor]:
        """Return μ and σ², (B, k) each, in float64."""
        tokens = features["token_embeddings"]  # (B, L, d)
        wide = torch.float64
        if tokens.device.type == "mps":
            wide = torch.float32
        with torch.autocast(tokens.device.type, enabled=False):
            hidden = self._pool(tokens, features["attention_mask"]).to(wide)
            if self.normalize_mean:
                hidden = F.normalize(hidden, dim=-1)
            mean = F.linear(hidden, self.mean_projection.weight.to(wide))
            of_token = tokens[:, _COLUMN].to(wide)
            raw = F.linear(of_token, self.variance_projection.weight.to(wide))
            variance = F.softplus(raw, self.beta, threshold=_LINEAR_FROM)
            # The value stays at the floor and the gradient passes: a variance has to be able to
            # grow again.
            raised = variance.clamp(min=self.variance_floor) - variance
            return mean, variance + raised.detach()

    def _pool(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Return h, (B, d)."""
        if self.pooling == "cls":
            return tokens[:, 0]
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        counted = attention_mask * (columns != _COLUMN)
        weights = counted.float()[:, :, None]  # (B, L, 1)
        sums = (tokens.float() * weights).sum(dim=1)
        return sums / weights.sum(dim=1)

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of flattened vectors."""
        more = 1 if self.formula == "exact" else 2
        return 2 * self.k + more

    def on_model_ready(self, model: Any) -> None:
        """Add [VAR] again; the host calls it after loading, as it resets a tokenizer's template."""
        add_variance_token(model)


def add_variance_token(model: Any) -> None:
    """Make an encoder read ``[CLS] [VAR] text [SEP]``, by its tokenizer's own template.

    So [VAR] is there wherever the tokenizer is used, counts in the length, and is never cut off.
    Its embedding starts as that of [CLS], which the encoder knows as a token that summarises a
    text. A second call changes nothing.

    Args:
        model: The encoder.

    Raises:
        InputError: The tokenizer does not make ``[CLS] text [SEP]`` of a text.
    """
    tokenizer = model.tokenizer
    vocabulary = tokenizer.get_vocab()
    empty = list(tokenizer("")["input_ids"])
    if empty[1:2] == [vocabulary.get(VARIANCE_TOKEN)]:
        return
    begins_with_cls = len(empty) == 2 and empty[0] == tokenizer.cls_token_id
    if not tokenizer.is_fast or not begins_with_cls:
        tokens = tokenizer.convert_ids_to_tokens(empty)
        raise InputError(
            "MRL needs a BERT-like encoder, whose tokenizer makes [CLS] text [SEP] of a text; "
            f"{type(tokenizer).__name__} makes {tokens} of an empty text"
        )
    is_new = VARIANCE_TOKEN not in vocabulary
    token = AddedToken(VARIANCE_TOKEN, special=True, normalized=False)
    tokenizer.add_tokens([token], special_tokens=True)
    _set_template(tokenizer, empty)
    if is_new:
        _add_embedding(model.transformers_model, tokenizer, empty[0])


def _set_template(tokenizer: Any, empty: list[int]) -> None:
    """Set the template with [VAR]; ``empty`` are the ids of an empty text, [CLS] and [SEP]."""
    variance_id = tokenizer.convert_tokens_to_ids(VARIANCE_TOKEN)
    first, last = tokenizer.convert_ids_to_tokens(empty)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} {VARIANCE_TOKEN} $A {last}",
        pair=f"{first} {VARIANCE_TOKEN} $A {last} $B:1 {last}:1",
        special_tokens=[(first, empty[0]), (VARIANCE_TOKEN, variance_id), (last, empty[1])],
    )


def _add_embedding(
    backbone: Any,
    tokenizer: Any,
    cls_id: int,
) -> None:
    """Add the embedding of [VAR] as a copy of that of [CLS]."""
    variance_id = tokenizer.convert_tokens_to_ids(VARIANCE_TOKEN)
    # Some models have rows to spare.
    if variance_id >= backbone.get_input_embeddings().num_embeddings:
        backbone.resize_token_embeddings(variance_id + 1, mean_resizing=False)
    weight = backbone.get_input_embeddings().weight
    with torch.no_grad():
        weight[variance_id] = weight[cls_id]
