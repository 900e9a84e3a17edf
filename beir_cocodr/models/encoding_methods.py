"""BEIR's methods for any object that encodes texts."""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, kind_of


class EncodingMethods:
    """BEIR's methods for an object that encodes as sentence-transformers does.

    Args:
        model: has ``encode(texts, ...)``; if it also has ``encode_query`` and ``encode_document``,
            these are called instead. Its ``similarity_fn_name`` counts as cosine if it has none.
        text_format: joins title and text; None joins them by a space.
    """

    def __init__(self, model: Any, text_format: TextFormat | None = None) -> None:
        """Take the similarity of the model."""
        self.model = model
        self.text_format = text_format or TextFormat()
        similarity = getattr(model, "similarity_fn_name", None) or "cosine"
        self.similarity_fn_name = getattr(similarity, "value", similarity)

    def encode_queries(
        self,
        queries: Sequence[str],
        batch_size: int = 32,
        **kwargs: object,
    ) -> Any:
        """Encode (Q,) texts to (Q, d)."""
        encode = getattr(self.model, "encode_query", self.model.encode)
        return _call_with_known(encode, list(queries), batch_size=batch_size, **kwargs)

    def encode_corpus(
        self,
        corpus: Sequence[dict[str, str]],
        batch_size: int = 32,
        **kwargs: object,
    ) -> Any:
        """Encode (N,) documents to (N, d)."""
        encode = getattr(self.model, "encode_document", self.model.encode)
        texts = [self.text_format.document(document) for document in corpus]
        return _call_with_known(encode, texts, batch_size=batch_size, **kwargs)


def _call_with_known(
    encode: Callable[..., Any],
    texts: list[str],
    **kwargs: object,
) -> Any:
    """Call a method with those keyword arguments that its signature has."""
    parameters = signature(encode).parameters
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    known = {name: value for name, value in kwargs.items() if takes_any or name in parameters}
    return encode(texts, **known)


def with_beir_methods(model: Any) -> Any:
    """Return a model with BEIR's ``encode_queries`` and ``encode_corpus``: itself, or wrapped.

    Raises:
        InputError: If the model has no method to encode by.
    """
    if hasattr(model, "encode_queries") or hasattr(model, "encode_corpus"):
        return model
    if hasattr(model, "encode"):
        return EncodingMethods(model)
    raise InputError(
        f"model is {kind_of(model)}; give an object with encode, or with encode_queries "
        "and encode_corpus"
    )
