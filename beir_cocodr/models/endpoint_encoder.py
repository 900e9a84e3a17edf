"""An encoder whose texts are embedded by a server with OpenAI's ``/v1/embeddings``."""

import logging
from collections.abc import Sequence
from typing import Any

import regex
import torch
from sentence_transformers.base.modules import InputModule

from beir_cocodr.endpoints import Endpoint, in_parallel
from beir_cocodr.errors import InputError
from beir_cocodr.http_requests import ServerError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import ENDPOINT_PREFIX

log = logging.getLogger(__name__)

# Texts of a request.
_BATCH = 32

# The status of an answer to a request that is too large.
_TOO_LARGE = 413

# A text that is embedded to learn whether the server answers, and how wide its vectors are.
_PROBE = "a"

# Tokens of a server's model are not known here. A piece is about one: a character of a script
# without spaces, up to four letters of a word, or a mark.
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
_PIECES = regex.compile(rf"{_UNSPACED}|[\p{{L}}\p{{M}}\p{{N}}_]{{1,4}}|[^\s]")


class Pieces:
    """A tokenizer that counts pieces of about a token, called as those of transformers are."""

    def __call__(
        self,
        texts: Sequence[str],
        max_length: int | None = None,
        **settings: Any,
    ) -> dict[str, list[list[int]]]:
        """Return the lengths of the pieces of each text in place of their numbers.

        Args:
            texts: The texts.
            max_length: The most pieces of a text.
            **settings: Settings of other tokenizers, which change nothing here.
        """
        pieces = [_PIECES.findall(text)[:max_length] for text in texts]
        return {"input_ids": [[len(piece) for piece in of_text] for of_text in pieces]}

    def cut(self, text: str, length: int) -> str:
        """Return the beginning of a text that has so many pieces."""
        for number, piece in enumerate(_PIECES.finditer(text), 1):
            if number > length:
                return text[: piece.start()].rstrip()
        return text


class EndpointModule(InputModule):
    """The module of a sentence-transformers model that asks an endpoint for embeddings.

    Args:
        url: See :class:`~beir_cocodr.endpoints.Endpoint`.
        model: See :class:`~beir_cocodr.endpoints.Endpoint`.
        key_variable: See :class:`~beir_cocodr.endpoints.Endpoint`.
        dimension: The width of the vectors.
    """

    config_keys = ["url", "model", "dimension"]  # noqa: RUF012 the host's name

    def __init__(
        self,
        url: str,
        model: str,
        key_variable: str,
        dimension: int,
    ) -> None:
        """Take the endpoint; nothing is sent."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.endpoint = Endpoint(url, model, key_variable)
        self.url = url
        self.model = model
        self.dimension = dimension
        self.pieces = Pieces()
        self.tokenizer: Any = self.pieces
        self.query_length: int | None = None
        self.document_length: int | None = None

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors; the host asks for it."""
        return self.dimension

    def preprocess(
        self,
        inputs: Sequence[Any],
        prompt: str | None = None,
        task: str | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Return the texts that are sent, each with its prompt and cut to its length."""
        length = self.document_length
        if task == "query":
            length = self.query_length
        texts = [f"{prompt or ''}{text}" for text in inputs]
        if length is not None:
            texts = [self.pieces.cut(text, length) for text in texts]
        return {"texts": texts}

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        """Ask for the embeddings of the texts, several requests at a time."""
        texts = features["texts"]
        batches = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        concurrency = self.endpoint.options.concurrency
        vectors: list[list[float]] = []
        for batch in in_parallel(self._embed, batches, concurrency):
            vectors += batch
        features["sentence_embedding"] = torch.tensor(vectors, dtype=torch.float32)
        return features

    def _embed(self, texts: list[str]) -> list[list[float]]:
        """Return the embeddings of a batch, in halves if the server finds it too large."""
        try:
            # Servers refuse an empty text; a space has no words either.
            vectors = self.endpoint.embed([text or " " for text in texts])
        except ServerError as error:
            if error.status != _TOO_LARGE or len(texts) == 1:
                raise
            middle = len(texts) // 2
            return self._embed(texts[:middle]) + self._embed(texts[middle:])
        width = len(vectors[0])
        if width != self.dimension:
            raise ServerError(
                f"{self.endpoint} gave embeddings of {width} dimensions, and of {self.dimension} "
                "before; the model on the server has changed: start again"
            )
        return vectors

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to be saved, as there are no weights."""
        raise InputError(
            f"{self.endpoint} has no weights here that could be saved or trained; name a model "
            "that is loaded"
        )


class EndpointEncoder(COCODR):
    """An encoder behind an endpoint, which is used as any other, except that it cannot be trained.

    Vectors are compared by cosine. Lengths are counted in pieces of about a token; by default
    nothing is cut here.

    Args:
        name: ``endpoint:URL#MODEL``, see :meth:`~beir_cocodr.endpoints.Endpoint.parse`.
        query_length: See :class:`~beir_cocodr.models.cocodr.COCODR`.
        document_length: See :class:`~beir_cocodr.models.cocodr.COCODR`.
        **kwargs: Prompts and the title separator, see :class:`~beir_cocodr.models.cocodr.COCODR`.

    Raises:
        InputError: The name has another form, the server does not answer, or its key is missing.
    """

    #: The texts are embedded elsewhere, so a batch may be larger than this machine could encode.
    is_remote = True

    def __init__(
        self,
        name: str,
        *,
        query_length: int | None = None,
        document_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Ask the server for the width of its vectors."""
        endpoint = Endpoint.parse(name.removeprefix(ENDPOINT_PREFIX))
        [vector] = endpoint.embed([_PROBE])
        module = EndpointModule(
            endpoint.url, endpoint.model, endpoint.key_variable, dimension=len(vector)
        )
        module.query_length = query_length
        module.document_length = document_length
        kwargs.pop("device", None)  # nothing is computed here
        super().__init__(modules=[module], similarity_fn_name="cosine", device="cpu", **kwargs)
        log.info("%s embeds texts as %d numbers; texts are sent there", endpoint, len(vector))
