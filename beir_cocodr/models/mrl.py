"""The multivariate encoder: texts are normal distributions, and dot-product indexes serve them."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.util import load_file_path
from torch import Tensor

from beir_cocodr.errors import InputError, Limits
from beir_cocodr.io import Keywords
from beir_cocodr.models.checkpoints.hub import places_in
from beir_cocodr.models.cocodr import COCODR, TwoSidedEncoder, check_task
from beir_cocodr.models.kl import Formula
from beir_cocodr.models.mrl_head import MRLHead, add_variance_token

log = logging.getLogger(__name__)

#: The name of the head's class in a saved folder.
HEAD_CLASS = f"{MRLHead.__module__}.{MRLHead.__name__}"

# The least length that leaves room for a token of the text, beside [CLS], [VAR] and [SEP].
_LEAST_LENGTH = 4


class MRL(TwoSidedEncoder):
    """An encoder of queries and documents as normal distributions, compared by −KL(Q‖D).

    ``encode_query`` and ``encode_document`` (BEIR: ``encode_queries``, ``encode_corpus``) return
    flattened vectors whose dot product is −2·KL up to terms of the query, so every dot-product
    index serves them as they are. Queries and documents are flattened differently: plain ``encode``
    is an error, and so is all that changes vectors afterwards (normalisation, truncation,
    quantisation).

    It starts from any BERT-like encoder, or one that sentence-transformers saved with [CLS] or mean
    pooling; or it is a saved MRL, see :meth:`load`. Inputs are ``[CLS] [VAR] text [SEP]``; all of
    these tokens count in the lengths.

    Args:
        model_name_or_path: An alias, a hub name, or a folder.
        k: Variables of the distribution. Default: the most that make vectors no wider than the
            start encoder's own, such as 383 for 768 dimensions.
        beta: β of the softplus that makes variances. Default: 1.
        pooling: What W_M projects to the mean, "cls" or "mean". Default: the start encoder's own
            pooling, because [CLS] of a mean-pooled encoder was never trained to summarise; [CLS]
            for a bare BERT.
        normalize_mean: Project a unit vector. Default: if the start encoder normalises or declares
            cosine, as its geometry is one of directions.
        formula: "exact", or "paper" for ablation, see :mod:`beir_cocodr.models.kl`. This is the
            only option that may be changed when a saved MRL is loaded. Default: "exact".
        seed: Seed of the new projections.
        **kwargs: Arguments of :class:`COCODR`.

    Raises:
        InputError: The encoder cannot be found, is not BERT-like, or an option does not fit it.

    Example:
        >>> from beir_cocodr import MRL
        >>> model = MRL("minilm", k=63)  # to be trained by distill
        >>> model.encode_query(["how do I sort an array?"]).shape  # 2k + 1
        (1, 127)
        >>> mean, variance = model.encode_distribution(["Return a sorted copy."], "document")
        >>> mean.shape, variance.shape
        (torch.Size([1, 63]), torch.Size([1, 63]))

    References:
        MRL, sections 4.1 and 4.3.
    """

    # A private name of the host: classes that need no trust_remote_code, because we hand them over
    # ourselves. All others that a folder names stay untrusted. Saved models do not load if the name
    # changes.
    _module_classes = {HEAD_CLASS: MRLHead}  # noqa: RUF012

    kind = "an MRL"
    pools_chunks = False

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
        **kwargs: object,
    ) -> None:
        """Load a saved MRL, or put a new head on an encoder."""
        super().__init__(model_name_or_path, **kwargs)
        options: Keywords = {
            "k": k,
            "beta": beta,
            "pooling": pooling,
            "normalize_mean": normalize_mean,
            "formula": formula,
        }
        chosen = {name: value for name, value in options.items() if value is not None}
        if isinstance(self[-1], MRLHead):
            _change_formula(self.head, chosen)
        else:
            self._put_head(_new_head(self, chosen), seed)
        add_variance_token(self)
        transformer: Any = self[0]
        transformer.unpad_inputs = False  # the head finds its tokens by their column
        self.similarity_fn_name = "dot"
        self.model_card_data.ir_model = True  # the host's model card may not call plain encode
        self._check_lengths()

    def _put_head(self, head: MRLHead, seed: int) -> None:
        """Replace all modules after the transformer by a new head."""
        head.initialize(seed)
        log.info("MRL: projections and [VAR] are new, to be trained (seed %d)", seed)
        del self[1:]
        self.append(head.to(self.device))
        self.module_kwargs = None
        # The host's private name for the base's card, which does not describe an MRL.
        self._model_card_text = None

    def _check_lengths(self) -> None:
        text_format = self.text_format
        for length in (text_format.query_length, text_format.document_length):
            if length is not None and length < _LEAST_LENGTH:
                raise InputError(
                    f"length {length} leaves no room for text beside [CLS], [VAR] and [SEP]; "
                    f"choose at least {_LEAST_LENGTH}"
                )

    @property
    def head(self) -> MRLHead:
        """Return the head, the last module."""
        head = self[-1]
        assert isinstance(head, MRLHead)
        return head

    @classmethod
    def load(cls, input_path: str | Path, **kwargs: Any) -> "MRL":
        """Load a saved MRL from a folder or the hub.

        sentence-transformers trusts whatever a folder names if ``trust_remote_code`` is set; here
        this package's own head is trusted, and nothing else.

        Args:
            input_path: A folder or a hub name.
            **kwargs: Arguments of :class:`MRL`.

        Raises:
            InputError: There is no saved MRL.
        """
        name = str(input_path)
        modules = None
        with suppress(OSError, ValueError):
            modules = load_file_path(name, "modules.json", **places_in(kwargs))
        if modules is None or HEAD_CLASS.encode() not in Path(modules).read_bytes():
            raise InputError(
                f"there is no saved MRL in {name}; MRL({name!r}) starts a new one from an encoder"
            )
        return cls(name, **kwargs)

    def encode_distribution(
        self,
        texts: Sequence[str],
        task: str,
        batch_size: int = 32,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Encode texts as the means and variances of their distributions.

        Args:
            texts: (N,) texts.
            task: "query" or "document", which decides on prompt and length.
            batch_size: Texts at a time.
            **kwargs: Arguments of ``encode_query``.

        Returns:
            (N, k) float32 means and (N, k) float32 variances.
        """
        check_task(task, self.kind)
        encode = self.encode_query if task == "query" else self.encode_document
        both: Any = encode(
            list(texts),
            batch_size=batch_size,
            convert_to_tensor=True,
            flatten=False,
            **kwargs,
        )
        k = self.head.k
        pairs = both.reshape(len(texts), 2 * k)
        mean, variance = pairs.split(k, dim=-1)
        return mean, variance


def _change_formula(head: MRLHead, chosen: Mapping[str, Any]) -> None:
    """Change the formula of a saved MRL, and check that the other options are its own."""
    _check_options(head.hidden_size, chosen)
    for name, value in chosen.items():
        saved = getattr(head, name)
        if name != "formula" and saved != value:
            raise InputError(
                f"this MRL was saved with {name} {saved}, so it cannot be {value}; leave {name} out"
            )
    head.formula = chosen.get("formula", head.formula)


def _new_head(model: COCODR, chosen: Mapping[str, object]) -> MRLHead:
    """Return a head for an encoder, with defaults that suit what follows its transformer."""
    kinds = [type(module) for module in model]
    if kinds not in ([Transformer, Pooling], [Transformer, Pooling, Normalize]):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InputError(
            f"MRL starts from Transformer, Pooling and at most Normalize; this encoder is {names}, "
            "choose another"
        )
    pooling: Any = model[1]
    is_known = pooling.pooling_mode in ("cls", "mean") and pooling.include_prompt
    if "pooling" not in chosen and not is_known:
        without = "" if pooling.include_prompt else " without the prompt"
        raise InputError(
            "MRL's mean comes from [CLS] or from all tokens, and this encoder pools by "
            f"{pooling.pooling_mode}{without}; choose pooling cls or mean"
        )
    width = int(pooling.embedding_dimension)
    settings: Keywords = {
        "k": (width - 1) // 2,
        "pooling": pooling.pooling_mode,
        "normalize_mean": Normalize in kinds or model.similarity_fn_name == "cosine",
        **chosen,
    }
    _check_options(width, settings)
    return MRLHead(hidden_size=width, **settings)


def _check_options(width: int, options: Mapping[str, object]) -> None:
    """Check those of a head's options that are there."""
    limits = {
        "k": Limits(min=1, max=width),
        "beta": Limits(above=0),
        "pooling": Limits(choices=("cls", "mean")),
        "formula": Limits(choices=get_args(Formula)),
    }
    for name, limit in limits.items():
        if name in options:
            limit.check(name, options[name])
