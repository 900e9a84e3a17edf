"""The dense encoder: a sentence-transformers model that is also a BEIR model."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from types import NoneType
from typing import Any

import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from torch import Tensor

from beir_cocodr.data.text import TextFormat, cut_text, read_literally
from beir_cocodr.errors import (
    InputError,
    check_characters,
    check_integer,
    check_type,
    kind_of,
)
from beir_cocodr.io import Keywords
from beir_cocodr.models.checkpoints.bare_encoder import bare_encoder
from beir_cocodr.models.checkpoints.hub import (
    find_file,
    local_folder,
    model_source,
    places_in,
    reachable,
)
from beir_cocodr.models.checkpoints.integrity import (
    ENCODER,
    RELEASED,
    check_loaded,
    loading,
    positions,
)
from beir_cocodr.models.checkpoints.known_checkpoints import released_form
from beir_cocodr.models.checkpoints.score_projection import score_projection
from beir_cocodr.models.chunk_pooling import (
    CHUNK_POOLINGS,
    FIRST,
    DocumentPieces,
    VectorForm,
)
from beir_cocodr.models.document_tokens import DocumentTokens

#: A model's card.
CARD_FILE = "README.md"

#: The model's name in the examples of a card, which the host replaces when it uploads the model.
PLACEHOLDER = "sentence_transformers_model_id"

# The least length that leaves room for a token of the text, beside [CLS] and [SEP].
_LEAST_LENGTH = 3

# Characters: a shorter text is never cut before it is tokenised.
_LONG = 10_000

# What to use in place of the arguments that change vectors.
_MINING = (
    "; to mine hard negatives, use beir-cocodr export --model MODEL --form sentence-transformers, "
    "which ranks by the model's own scores"
)
_SMALLER = "; beir-cocodr encode --precision int8 stores 8 bits per number and a scale per vector"

# The file for what sentence-transformers' own files cannot store, and its only key.
_FORMAT_FILE = "text_format.json"
_FORMAT_KEY = "title_separator"
_POOLING_KEY = "chunk_pooling"

# Tokens of a piece where an encoder has no limit.
_ANY_LENGTH = 1 << 30

# Numbers of a piece's vector, which is never truncated.
_ANY_WIDTH = 1 << 30

log = logging.getLogger(__name__)


class COCODR(SentenceTransformer):
    """A dense encoder of queries and documents.

    A folder or hub name with a ``modules.json`` keeps its own pooling, similarity, prompts and
    lengths. Anything else is a bare transformer, such as the published ``OpenMatch/cocodr-*``, and
    :data:`~beir_cocodr.models.checkpoints.known_checkpoints.KNOWN_CHECKPOINTS` says how its tokens
    are pooled. One that is not in this table becomes the last layer's [CLS] vector, compared by dot
    product, with queries cut to 64 and documents to 128 tokens, and a warning says so. What
    ``save_pretrained`` writes consists of stock modules and loads with
    ``SentenceTransformer(path)``.

    Args:
        model_name_or_path: An alias such as ``minilm``, a hub name, the folder of a transformer, or
            the folder of a sentence-transformers model.
        query_length: Tokens that queries are cut to. Default: the model's own.
        document_length: Tokens that documents are cut to. Default: the model's own.
        query_prompt: Text before every query. Default: the model's own.
        document_prompt: Text before every document. Default: the model's own.
        title_separator: Text between title and text of a document. Default: the model's own, or a
            space.
        pooling: How a bare transformer pools its tokens, "cls" or "mean".
        **kwargs: ``chunk_pooling``, see :mod:`~beir_cocodr.models.chunk_pooling`, and arguments of
            ``SentenceTransformer`` (``device``, ``model_kwargs``, ``modules``, ...).

    Raises:
        InputError: The model cannot be found or read, or a length is outside of what it can read.

    Example:
        >>> from beir_cocodr import COCODR
        >>> model = COCODR("minilm", query_length=32)  # or "OpenMatch/cocodr-base-msmarco"
        >>> corpus = [{"title": "sort", "text": "Return a sorted copy of an array."}]
        >>> model.encode_corpus(corpus).shape
        (1, 384)
        >>> model.text_format.query_length, model.similarity_fn_name
        (32, 'cosine')

    References:
        COCO-DR, section 5 and appendix B; hub models ``OpenMatch/cocodr-{base,large}[-msmarco]``.
    """

    #: Its kind in the calibration of verdicts.
    calibration_kind = "dense"

    #: True if a document's vector may be the mean of those of its pieces.
    pools_chunks = True

    #: The tokens of documents that were tokenised before they are encoded; None if none were.
    document_tokens: DocumentTokens | None = None

    def __init__(
        self,
        model_name_or_path: str | Path | None = None,
        *,
        query_length: int | None = None,
        document_length: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        title_separator: str | None = None,
        pooling: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Load or assemble the encoder."""
        self.texts_cut = 0
        self.chunk_pooling = FIRST
        chunk_pooling = kwargs.pop("chunk_pooling", None)
        prompts = dict(kwargs.pop("prompts", None) or {})
        texts = {
            "query_prompt": query_prompt,
            "document_prompt": document_prompt,
            "title_separator": title_separator,
            "pooling": pooling,
        }
        for setting, text in texts.items():
            check_type(setting, text, (str, NoneType), "a text")
        check_type("the model", model_name_or_path, (str, Path, NoneType), "a name or a folder")
        if query_prompt is not None:
            prompts["query"] = query_prompt
        if document_prompt is not None:
            prompts["document"] = document_prompt
        if model_name_or_path is None and not kwargs.get("modules"):
            raise InputError("the model is None; give a name or a folder, or its modules")
        if model_name_or_path is None and pooling is not None:
            raise InputError(
                f"pooling {pooling} is for a checkpoint, not for modules; leave it out"
            )
        if model_name_or_path is None:
            super().__init__(None, prompts=prompts, **kwargs)
            self._set_format(title_separator)
        else:
            source = model_source(str(model_name_or_path))
            settings = {"prompts": prompts, "pooling": pooling, "chunk_pooling": chunk_pooling}
            self._load(source, title_separator, {**kwargs, **settings})
        set_lengths(self[0], query_length, document_length)
        if chunk_pooling is not None:
            self.chunk_pooling = self._checked_pooling(chunk_pooling)

    def _load(
        self,
        name: str,
        title_separator: str | None,
        kwargs: Keywords,
    ) -> None:
        """Load a folder or hub model whole, or raise an InputError."""
        if local_folder(name) != Path(name):
            kwargs = reachable(name, kwargs)
        places = places_in(kwargs)
        trusted = bool(kwargs.get("trust_remote_code"))
        pooling = kwargs.pop("pooling", None)
        chunk_pooling = kwargs.pop("chunk_pooling", None)
        # The host's private name for the classes that a model may name, see MRL.
        known = tuple(self._module_classes)
        form = None if trusted else released_form(find_file(name, "config.json", places))
        with loading(
            name,
            ENCODER if form is None else RELEASED,
            trusted=trusted,
            known=known,
            hub=places,
        ):
            if kwargs.get("modules") is None and not find_file(name, "modules.json", places):
                super().__init__(**bare_encoder(name, pooling, kwargs))
                if form is not None and form.projects:
                    for module in score_projection(name, places):
                        self.append(module)
            elif pooling is not None:
                raise InputError(
                    f"model {name!r} says in modules.json how its tokens are pooled; leave "
                    f"pooling {pooling} out"
                )
            else:
                super().__init__(name, **kwargs)
            if title_separator is None:
                title_separator = _saved_format(name, places, _FORMAT_KEY)
            self._set_format(title_separator)
            check_loaded(self, self.tokenizer, name)
            self._check_encodes(name)
            if chunk_pooling is None:
                self.chunk_pooling = self._kept_pooling(name, places)

    def _kept_pooling(self, name: str, places: Keywords) -> str:
        """Return how a saved model reads documents, as far as this encoder can read them so."""
        saved = _saved_format(name, places, _POOLING_KEY)
        if saved in (None, FIRST) or self.pools_chunks:
            return self._checked_pooling(saved)
        log.info(
            "%s was saved with chunk pooling %s, and vectors of %s cannot be averaged over pieces: "
            "only the beginning of a long document is read",
            name,
            saved,
            type(self).__name__,
        )
        return FIRST

    def _checked_pooling(self, chunk_pooling: str | None) -> str:
        """Return how documents are read whole, if this encoder can be read so."""
        if chunk_pooling in (None, FIRST):
            return FIRST
        if chunk_pooling not in CHUNK_POOLINGS:
            raise InputError(
                f"chunk_pooling is {chunk_pooling!r}; choose one of {', '.join(CHUNK_POOLINGS)}"
            )
        if not self.pools_chunks:
            raise InputError(
                f"vectors of {type(self).__name__} cannot be averaged over pieces of a document; "
                "leave --chunk-pooling out"
            )
        return chunk_pooling

    def _set_format(self, title_separator: str | None) -> None:
        self.title_separator = " " if title_separator is None else title_separator
        self._literally = read_literally(self.tokenizer, self.prompts.values())

    def _check_encodes(self, name: str) -> None:
        """Encode a text, as settings of the right types may not fit each other, or the weights."""
        encoded = self.encode_document(["a"], convert_to_tensor=True, show_progress_bar=False)
        vector = encoded[0]
        if not bool(vector.isfinite().all()):
            raise InputError(
                f"model {name!r} encodes a text as NaN or infinite numbers; its weights or "
                "settings are damaged, download it again"
            )
        width = self.get_embedding_dimension()
        if len(vector) != width:
            raise InputError(
                f"model {name!r} encodes a text as {len(vector)} numbers but its settings say "
                f"{width}; download it again"
            )

    def preprocess(
        self,
        inputs: Any,
        prompt: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the host's features of some texts.

        Special tokens in a text are read as text, and texts that are far too long are cut before
        they are tokenised.
        """
        readable = self.readable(inputs)

        def of_host(texts: Sequence[Any]) -> Any:
            literal = [self._literally(text) if isinstance(text, str) else text for text in texts]
            return super(COCODR, self).preprocess(literal, prompt=prompt, **kwargs)

        if self.document_tokens is not None and kwargs.get("task") == "document":
            features = self.document_tokens.features(inputs, lambda: of_host(readable[:1]))
            if features is not None:
                return features
        return of_host(readable)

    def tokenize_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens that are read of documents.

        Args:
            texts: (n,) texts without prompt.
        """
        text_format = self.text_format
        limit = text_format.document_length
        prompt = text_format.document_prompt
        tokens: list[list[int]] = self.tokenizer(
            [prompt + self._literally(text) for text, _ in self.cut(texts)],
            truncation=limit is not None,
            max_length=limit,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]
        return tokens

    @property
    def text_format(self) -> TextFormat:
        """Return the format in force: the separator, the prompts, and the lengths in tokens."""
        transformer = self[0]
        longest = self.max_seq_length
        return TextFormat(
            title_separator=self.title_separator,
            query_prompt=self.prompts.get("query") or "",
            document_prompt=self.prompts.get("document") or "",
            query_length=getattr(transformer, "query_length", None) or longest,
            document_length=getattr(transformer, "document_length", None) or longest,
            chunk_pooling=self.chunk_pooling,
        )

    @property
    def _most_tokens(self) -> int:
        text_format = self.text_format
        return max(text_format.query_length or 0, text_format.document_length or 0)

    def cut(self, texts: Sequence[Any]) -> list[tuple[Any, bool]]:
        """Return as much of each text as is tokenised, and whether words are lost.

        See :func:`~beir_cocodr.data.text.cut_text`.
        """
        if not any(isinstance(text, str) and len(text) > _LONG for text in texts):
            return [(text, False) for text in texts]
        tokens = self._most_tokens
        parts: list[tuple[Any, bool]] = []
        for text in texts:
            can_cut = tokens > 0 and isinstance(text, str)
            parts.append(cut_text(text, tokens) if can_cut else (text, False))
        return parts

    def readable(self, texts: Sequence[Any]) -> list[Any]:
        """Return as much of each text as is tokenised.

        Texts that lose words are counted in ``texts_cut``, and a warning shows the first.

        Raises:
            InputError: A text contains an unpaired surrogate.
        """
        for text in texts:
            if isinstance(text, str):
                check_characters("a text", text)
        parts = self.cut(texts)
        shortened = [text for text, words_lost in parts if words_lost]
        if shortened and not self.texts_cut:
            log.warning(
                "a text is cut to %d characters before it is cut to %d tokens: %.60r; further "
                "texts are counted",
                len(shortened[0]),
                self._most_tokens,
                shortened[0],
            )
        self.texts_cut += len(shortened)
        return [text for text, _ in parts]

    def encode_queries(
        self,
        queries: Sequence[str],
        batch_size: int = 128,
        **kwargs: Any,
    ) -> Any:
        """Encode queries, by BEIR's name for ``encode_query``.

        Args:
            queries: (Q,) texts; a single text is one query.
            batch_size: Texts at a time.
            **kwargs: Arguments of ``encode_query``.

        Returns:
            (Q, d) embeddings.

        Raises:
            InputError: A query is not a text or contains an unpaired surrogate, or the batch size
                is not an integer from 1.
        """
        check_integer("batch_size", batch_size)
        texts = [queries] if isinstance(queries, str) else queries
        check_type("queries", texts, Iterable, "a list of texts")
        if isinstance(texts, (Mapping, set, frozenset)):  # its ids, or its texts in no order
            raise InputError(f"queries is {kind_of(texts)}; give a list of texts")
        texts = list(texts)
        for number, text in enumerate(texts):
            check_type("a query", text, str, "a text")
            check_characters(f"query {number}, counted from 0,", text)
        return self.encode_query(texts, batch_size=batch_size, **kwargs)

    def query_vectors(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """Encode queries as search needs them.

        Args:
            texts: (Q,) texts.
            batch_size: Texts at a time.

        Returns:
            (Q, d) float32 vectors on the CPU, of unit length if the similarity is cosine.
        """
        encoded = self.encode_queries(
            texts,
            batch_size=batch_size,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        vectors: Tensor = encoded.detach().float().cpu()
        return F.normalize(vectors, dim=-1) if self.similarity_fn_name == "cosine" else vectors

    def encode_corpus(
        self,
        corpus: Sequence[Mapping[str, str | None]] | Mapping[str, Sequence[str | None]],
        batch_size: int = 128,
        **kwargs: Any,
    ) -> Any:
        """Encode documents, by BEIR's name.

        Args:
            corpus: (N,) mappings with title and text, or one mapping of these columns.
            batch_size: Documents at a time.
            **kwargs: Arguments of ``encode_document``.

        Returns:
            (N, d) embeddings.

        Raises:
            InputError: A document is not a mapping or contains an unpaired surrogate, the columns
                are neither title nor text, or the batch size is not an integer from 1.
        """
        if isinstance(corpus, Mapping):
            names = [name for name in ("title", "text") if name in corpus]
            if corpus and not names:
                raise InputError(
                    f"corpus is {kind_of(corpus)} and has neither 'title' nor 'text'; give a list "
                    "of documents, or a mapping of these columns"
                )
            rows = zip(*(corpus[name] for name in names), strict=True)
            corpus = [dict(zip(names, row, strict=True)) for row in rows]
        check_integer("batch_size", batch_size)
        check_type("corpus", corpus, Iterable, "a list of documents")
        text_format = self.text_format
        texts = []
        for number, document in enumerate(corpus):
            check_type(
                "a document of the corpus", document, Mapping, "a mapping with title and text"
            )
            text = text_format.document(document)
            check_characters(f"document {number}, counted from 0,", text)
            texts.append(text)
        return self.encode_document(texts, batch_size=batch_size, **kwargs)

    def encode_document(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Encode texts of documents, those that are longer than the limit as a whole if asked to.

        The vectors of pieces are averaged first; then they are truncated, normalised and quantised
        as the host does it.

        Args:
            inputs: (N,) texts, or one.
            *args: Arguments of the host.
            **kwargs: Arguments of the host.

        Returns:
            (N, d) embeddings, or (d,) of one text. Pooled ones are of unit length where the encoder
            compares by cosine, unless they are truncated.

        Raises:
            InputError: Pieces are pooled, and the precision is unknown or ``output_value`` asks for
                something else than one vector.
        """
        if self.chunk_pooling == FIRST:
            return super().encode_document(inputs, *args, **kwargs)
        if isinstance(inputs, str):
            return self.encode_document([inputs], *args, **kwargs)[0]
        form, arguments = VectorForm.split(args, kwargs)
        texts = list(inputs)
        if not texts:
            return super().encode_document(texts, *args, **kwargs)
        is_cosine = self.similarity_fn_name == "cosine"
        prompt = arguments.get("prompt")
        prompt_name = arguments.get("prompt_name")
        if prompt is None and prompt_name is not None:
            prompt = self.prompts.get(prompt_name)
        pieces = self.pieces(texts, prompt)
        vectors = super().encode_document(
            pieces.texts,
            convert_to_tensor=True,
            normalize_embeddings=is_cosine,
            truncate_dim=_ANY_WIDTH,
            **arguments,
        )
        pooled = pieces.pool(vectors.float(), self.chunk_pooling)
        if is_cosine:
            pooled = F.normalize(pooled, dim=-1)
        return form.of(pooled, self.truncate_dim)

    def pieces(self, texts: Sequence[str], prompt: str | None = None) -> DocumentPieces:
        """Return the pieces in which texts of documents are read.

        Args:
            texts: (n,) texts without prompt.
            prompt: What is put before every piece. Default: the prompt of documents.
        """
        text_format = self.text_format
        length = text_format.document_length or _ANY_LENGTH
        before = text_format.document_prompt if prompt is None else prompt
        return DocumentPieces.of(texts, self.tokenizer, length, before)

    def truncated_share(
        self,
        texts: Sequence[str],
        task: str,
        length: int | None = None,
    ) -> float:
        """Return the share of texts that lose tokens when they are encoded.

        Args:
            texts: Texts without prompts.
            task: "query" or "document".
            length: Tokens that texts are cut to. Default: the model's own length for the task.
        """
        text_format = self.text_format
        if task == "query":
            limit = length or text_format.query_length
            prompt = text_format.query_prompt
        else:
            limit = length or text_format.document_length
            prompt = text_format.document_prompt
        reads_whole = task == "document" and self.chunk_pooling != FIRST
        if limit is None or not texts or reads_whole:
            return 0.0
        parts = [cut_text(text, limit) for text in texts]
        prompted = [prompt + text for text, _ in parts]
        tokens = self.tokenizer(prompted, truncation=False, verbose=False)["input_ids"]
        truncated = 0
        for ids, (_, words_lost) in zip(tokens, parts, strict=True):
            truncated += words_lost or len(ids) > limit
        return truncated / len(texts)

    def save(
        self,
        path: str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save the encoder to a folder, with its title separator."""
        super().save(path, *args, **kwargs)
        content = {_FORMAT_KEY: self.title_separator}
        if self.chunk_pooling != FIRST:
            content[_POOLING_KEY] = self.chunk_pooling
        (Path(path) / _FORMAT_FILE).write_text(f"{json.dumps(content)}\n")
        card = Path(path) / CARD_FILE
        model_id = self.model_card_data.model_id
        # The host replaces the name in the cards of its own classes alone.
        if model_id and card.is_file():
            text = card.read_text(encoding="utf-8")
            text = text.replace(f'"{PLACEHOLDER}"', f'"{model_id}"')
            card.write_text(text, encoding="utf-8")


class TwoSidedEncoder(COCODR):
    """An encoder with different vectors for queries and documents, all of whose numbers count.

    Attributes:
        kind: What the encoder is to the user, for messages.
    """

    kind = "this encoder"

    def __init__(self, model_name_or_path: str | Path | None = None, **kwargs: Any) -> None:
        """Load the encoder, see :class:`COCODR`."""
        similarity = kwargs.pop("similarity_fn_name", None)
        if getattr(similarity, "value", similarity) not in (None, "dot"):
            raise InputError(
                f"{self.kind} compares whole vectors by dot product, not by {similarity}; "
                "leave similarity_fn_name out"
            )
        if kwargs.get("truncate_dim") is not None:
            raise InputError(self._corrupted_by("truncate_dim"))
        super().__init__(model_name_or_path, **kwargs)

    def encode(
        self,
        inputs: Any,
        *args: Any,
        task: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: str | None = "float32",
        **kwargs: Any,
    ) -> Any:
        """Encode texts; ``encode_query`` and ``encode_document`` call it.

        Args:
            inputs: Texts.
            *args: Arguments of the host.
            task: "query" or "document".
            normalize_embeddings: Must be false.
            truncate_dim: Must be None.
            precision: Must be "float32".
            **kwargs: Arguments of the host.

        Raises:
            InputError: There is no task, or an argument would change the vectors.
        """
        check_task(task, self.kind)
        self._refuse_changes(normalize_embeddings, truncate_dim, precision)
        return super().encode(inputs, *args, task=task, **kwargs)

    def _refuse_changes(
        self,
        normalize_embeddings: bool,
        truncate_dim: int | None,
        precision: str | None,
    ) -> None:
        """Raise an InputError if an argument of the host would change the vectors."""
        if normalize_embeddings:
            raise InputError(self._corrupted_by("normalize_embeddings", _MINING))
        if truncate_dim is not None or self.truncate_dim is not None:
            raise InputError(self._corrupted_by("truncate_dim"))
        if precision not in (None, "float32"):
            raise InputError(self._corrupted_by(f"precision {precision}", _SMALLER))

    def _corrupted_by(self, change: str, alternative: str = "") -> str:
        return (
            f"{change} would corrupt the vectors of {self.kind}, whose parts belong to one score; "
            f"leave it out{alternative}"
        )


def check_task(task: object, kind: str) -> str:
    """Return the task of an encoder that has different vectors for queries and documents.

    Args:
        task: "query" or "document".
        kind: What the encoder is to the user, for the message.

    Raises:
        InputError: The task is neither.
    """
    if task not in ("query", "document"):
        raise InputError(
            f"{kind} has different vectors for queries and documents, and task {task} is neither; "
            "encode with encode_query or encode_document, train with args.router_mapping "
            "(columns to query, document)"
        )
    return str(task)


def set_lengths(
    transformer: Any,
    query_length: int | None,
    document_length: int | None,
) -> None:
    """Set the tokens that a transformer cuts queries and documents to.

    Args:
        transformer: The host's module.
        query_length: Tokens of a query; None leaves the length as it is.
        document_length: Tokens of a document; None leaves the length as it is.

    Raises:
        InputError: The transformer cannot read as many tokens.
    """
    lengths = {"query_length": query_length, "document_length": document_length}
    for attribute, length in lengths.items():
        if length is None:
            continue
        check_type(attribute, length, Integral, "an integer")
        limit = positions(transformer)
        if not limit:
            limit = getattr(transformer.config, "max_position_embeddings", None)
        if length < _LEAST_LENGTH or (limit is not None and length > limit):
            raise InputError(
                f"{attribute} is {length}, outside {_LEAST_LENGTH}..{limit}, which this encoder "
                "can read"
            )
        setattr(transformer, attribute, length)


def _saved_format(name: str, places: Keywords, key: str) -> str | None:
    """Return a setting of the text format in a model's files, None if it is not there."""
    path = find_file(name, _FORMAT_FILE, places)
    if path is None:
        return None
    value = json.loads(Path(path).read_text(encoding="utf-8")).get(key)
    return None if value is None else str(value)
