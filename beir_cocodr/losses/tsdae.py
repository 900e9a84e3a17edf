"""TSDAE: sentence-transformers' denoising loss, resumable, sparing of memory, right on several
ranks.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from beir_cocodr.distributed import sum_over_ranks, world_size
from beir_cocodr.errors import InputError, explained
from beir_cocodr.records import Json


class TSDAELoss(DenoisingAutoEncoderLoss):
    """A decoder has to rebuild a text from the embedding of its damaged copy. An InputError:
    transformers has no decoder for the encoder's architecture.

    The decoder is the encoder's own checkpoint as a language model; all parameters that both have
    are shared. Its own are the cross attention, drawn at random, and the language-model layers.
    They live in this loss and never in the model; ``state_dict`` holds exactly them, for
    checkpoints.

    Args:
        model: the encoder, loaded from a checkpoint with a causal language model with cross
            attention (BERT, RoBERTa, ELECTRA and kin; not DistilBERT or MPNet).
        mini_batch_size: examples in memory at a time, by recomputing activations in the backward
            pass; None keeps all.

    Inputs:
        Columns damaged_sentence and original_sentence. The loss is the mean over the tokens of the
        batch, over several ranks that of all ranks. A label is ignored.

    References:
        TSDAE (Wang et al., 2021), section 3.
    """

    #: Its own parameters belong into checkpoints (``beir_cocodr.training.trainer``).
    stateful = True

    def __init__(self, model: Any, mini_batch_size: int | None = None) -> None:
        device, config = model.device, model.transformers_model.config
        if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
            raise InputError(_unsupported(config))
        none = f"tsdae: no decoder can be made of {config._name_or_path}"
        with explained(none, "take another objective", OSError, ValueError):
            super().__init__(model)
        # Some decoders take an encoder's output and drop it.
        if not any("crossattention" in name for name, _ in self.decoder.named_modules()):
            raise InputError(_unsupported(config))
        if model.get_embedding_dimension() != config.hidden_size:
            raise InputError(
                f"tsdae decodes embeddings of the encoder's width {config.hidden_size}, this model's have "
                f"{model.get_embedding_dimension()}: take an encoder without a projection"
            )
        self.mini_batch_size = mini_batch_size
        self.decoder.train()  # it comes in evaluation mode, and the trainer does not look after it
        self.to(device)  # tied parameters are the decoder's, which were loaded on the CPU
        if world_size() > 1:
            # Neither encoder nor decoder is called through the data-parallel wrapper, whose hooks
            # then rest.
            for parameter in self.parameters():
                parameter.register_post_accumulate_grad_hook(_average_gradient)  # type: ignore[no-untyped-call]

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        columns = list(sentence_features)
        padding = self.tokenizer_decoder.pad_token_id
        tokens = (columns[1]["input_ids"][:, 1:] != padding).sum(dim=1)  # (B,), the first is given
        total = sum_over_ranks(tokens.sum()) / world_size()
        losses, size = [], self.mini_batch_size or len(tokens)
        for rows in (slice(i, i + size) for i in range(0, len(tokens), size)):
            mean = partial(self._mean, columns, rows, labels)
            value = (
                mean() if self.mini_batch_size is None else checkpoint(mean, use_reentrant=False)
            )
            losses.append(value * (tokens[rows].sum() / total))
        return torch.stack(losses).sum()

    def _mean(self, columns: list[dict[str, Tensor]], rows: slice, labels: Tensor | None) -> Tensor:
        """The host's loss over some rows, from fresh mappings, as the encoder writes into them."""
        part = [
            {k: v[rows] if isinstance(v, Tensor) else v for k, v in column.items()}
            for column in columns
        ]
        loss: Tensor = super().forward(part, labels)  # type: ignore[arg-type]  # labels are ignored
        return loss

    def state_dict(self, *args: Any, **kwargs: Any) -> Json:  # type: ignore[override]
        """The decoder's own parameters, those that it does not share with the encoder."""
        return {name: parameter.detach() for name, parameter in self._own()}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        own = dict(self._own())
        if own.keys() != state_dict.keys():
            differing = ", ".join(sorted(own.keys() ^ state_dict.keys()))
            raise InputError(f"these weights are another decoder's, they differ in {differing}")
        return self.decoder.load_state_dict(state_dict, strict=False, assign=assign)

    def _own(self) -> list[tuple[str, nn.Parameter]]:
        shared = {id(parameter) for parameter in self.encoder.parameters()}
        return [(name, p) for name, p in self.decoder.named_parameters() if id(p) not in shared]


def _average_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad)
    parameter.grad /= world_size()


def _unsupported(config: Any) -> str:
    return (
        f"tsdae needs a decoder, and transformers has none with cross attention for {config.model_type}; "
        "take a BERT or RoBERTa encoder, or another objective"
    )
