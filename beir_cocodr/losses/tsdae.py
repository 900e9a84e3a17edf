"""TSDAE: sentence-transformers' denoising loss, resumable, in parts, and right on several ranks."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from beir_cocodr.distributed import sum_over_ranks, world_size
from beir_cocodr.errors import InputError, explained
from beir_cocodr.models.papers import bibtex
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class TSDAELoss(DenoisingAutoEncoderLoss):
    """TSDAE: a decoder rebuilds a text from the embedding of its damaged copy.

    Use it to adapt an encoder to a corpus without labels, as an alternative to
    :class:`~beir_cocodr.losses.coco.COCOLoss` that needs no large batches.

    The decoder is the encoder's checkpoint as a language model, and shares all parameters that both
    have. Its own parameters are the cross attention, drawn at random, and the language-model
    layers. They belong to this loss and never to the model; ``state_dict`` holds exactly them, for
    checkpoints.

    Args:
        model: The encoder, loaded from a checkpoint that transformers can load as a causal language
            model with cross attention: BERT, RoBERTa, ELECTRA and related ones, but not DistilBERT
            or MPNet.
        mini_batch_size: Examples in memory at a time, by recomputing activations in the backward
            pass. Default: all at once.

    Raises:
        InputError: transformers has no decoder for the encoder's architecture, or the width of the
            embeddings is not that of the encoder.

    References:
        Wang et al., TSDAE: Using transformer-based sequential denoising auto-encoder for
        unsupervised sentence embedding learning, 2021, section 3.

    Inputs:
        +-----------------------------------------------+--------+
        | Texts                                         | Labels |
        +===============================================+========+
        | (damaged_sentence, original_sentence)         | none   |
        +-----------------------------------------------+--------+

        The loss is the mean over the tokens of the batch of all ranks. A label is ignored.

    Relations:
        sentence-transformers' ``DenoisingAutoEncoderLoss`` is the same loss, without
        ``mini_batch_size`` and checkpoints of the decoder, and on one process.
    """

    #: Checkpoints have to store the decoder, as the host stores the model alone.
    stateful = True

    def __init__(self, model: Any, mini_batch_size: int | None = None) -> None:
        """Load the decoder, and share the encoder's parameters with it."""
        device = model.device
        config = model.transformers_model.config
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise InputError(_unsupported(config))
        problem = f"tsdae: no decoder can be loaded from {config._name_or_path}"
        with explained(problem, "choose another objective", OSError, ValueError):
            super().__init__(model)
        # Some decoders take an encoder's output and ignore it.
        names = [name for name, _ in self.decoder.named_modules()]
        if not any("crossattention" in name for name in names):
            raise InputError(_unsupported(config))
        width = model.get_embedding_dimension()
        if width != config.hidden_size:
            raise InputError(
                f"tsdae decodes embeddings of the encoder's width {config.hidden_size}, and this "
                f"model has {width}; choose an encoder without a projection"
            )
        self.mini_batch_size = mini_batch_size
        # The host leaves the decoder in evaluation mode, and the trainer does not change that.
        self.decoder.train()
        self.to(device)  # the shared parameters are the decoder's, which were loaded on the CPU
        if world_size() > 1:
            # Neither encoder nor decoder is called through the data-parallel wrapper, so the hooks
            # of that do not average the gradients.
            for parameter in self.parameters():
                register = parameter.register_post_accumulate_grad_hook
                register(_average_gradient)  # type: ignore[no-untyped-call]

    def forward(
        self,
        sentence_features: Iterable[dict[str, Tensor]],
        labels: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch of damaged and original texts."""
        columns = list(sentence_features)
        padding = self.tokenizer_decoder.pad_token_id
        # (B,) tokens that are predicted: all except for the first.
        predicted = columns[1]["input_ids"][:, 1:]
        tokens = (predicted != padding).sum(dim=1)
        total = sum_over_ranks(tokens.sum()) / world_size()
        size = self.mini_batch_size or len(tokens)
        losses = []
        for start in range(0, len(tokens), size):
            rows = slice(start, start + size)
            mean = partial(self._mean, columns, rows, labels)
            if self.mini_batch_size is None:
                value = mean()
            else:
                value = checkpoint(mean, use_reentrant=False)
            losses.append(value * (tokens[rows].sum() / total))
        return torch.stack(losses).sum()

    def _mean(
        self,
        columns: list[dict[str, Tensor]],
        rows: slice,
        labels: Tensor | None,
    ) -> Tensor:
        """Return the host's loss of some rows, from new mappings, as the encoder changes them."""
        parts = []
        for column in columns:
            part = {}
            for name, value in column.items():
                part[name] = value[rows] if isinstance(value, Tensor) else value
            parts.append(part)
        # The host ignores labels, but its type does not allow None.
        loss: Tensor = super().forward(parts, labels)  # type: ignore[arg-type]
        return loss

    def state_dict(self, *args: object, **kwargs: object) -> Json:  # type: ignore[override]
        """Return the decoder's parameters that it does not share with the encoder."""
        return {name: parameter.detach() for name, parameter in self._decoder_parameters()}

    def load_state_dict(
        self,
        state_dict: Any,
        strict: bool = True,
        assign: bool = False,
    ) -> Any:
        """Load what :meth:`state_dict` returned.

        Args:
            state_dict: Parameters by name.
            strict: Ignored; the names have to be those of this decoder.
            assign: Assign the tensors instead of copying them.

        Raises:
            InputError: The names are not those of this decoder.
        """
        names = dict(self._decoder_parameters()).keys()
        if names != state_dict.keys():
            differing = ", ".join(sorted(names ^ state_dict.keys()))
            raise InputError(
                f"these weights are those of another decoder, they differ in {differing}; "
                "resume with the model and the objective of the checkpoint"
            )
        return self.decoder.load_state_dict(state_dict, strict=False, assign=assign)

    def _decoder_parameters(self) -> list[tuple[str, nn.Parameter]]:
        shared = {id(parameter) for parameter in self.encoder.parameters()}
        parameters = self.decoder.named_parameters()
        return [(name, parameter) for name, parameter in parameters if id(parameter) not in shared]

    @property
    def citation(self) -> str:
        """Return the BibTeX entry of the paper."""
        return bibtex("wang2021tsdae")


def _average_gradient(parameter: Tensor) -> None:
    """Average a gradient over the processes; a hook."""
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= world_size()


def _unsupported(config: PretrainedConfig) -> str:
    return (
        f"tsdae needs a decoder with cross attention, and transformers has none for "
        f"{config.model_type}; choose a BERT or RoBERTa encoder, or another objective"
    )
