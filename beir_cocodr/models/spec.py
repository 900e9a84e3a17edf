"""How a user names models: their names, how encoders are loaded, and how a corpus is searched.

Nothing here imports torch or the models, so that names are checked and the command line's help is made in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from beir_cocodr.errors import InputError

if TYPE_CHECKING:
    from beir_cocodr.data.text import TextFormat
    from beir_cocodr.records import Json

T = TypeVar("T")


def option(default: T, help: str, flag: str | None = None, **limits: float) -> T:
    """A field of an options class that the command line has a flag for, named as the field unless ``flag`` says
    otherwise; ``limits`` are ``min`` and ``max``.
    """
    return field(default=default, metadata={"help": help, "flag": flag, **limits})


#: Names that stand for weights that come in a package.
ALIASES = ("minilm",)

BM25 = "bm25"

_LUCENE = "lucene-"


@dataclass(frozen=True)
class Fusion:
    """A way to use BM25 and an encoder together; ``build`` is a ``module:object`` that makes a retriever of the two."""

    build: str
    help: str


#: What may stand before an encoder's name, as in ``hybrid:minilm``.
FUSIONS = {
    "hybrid": Fusion("beir_cocodr.retrieval.fusion:Hybrid", "mean of the z-normalised scores"),
    "rrf": Fusion("beir_cocodr.retrieval.fusion:ReciprocalRank", "reciprocal rank fusion"),
    "feedback": Fusion("beir_cocodr.retrieval.fusion:Feedback", "dense search, the query moved towards hybrid's best"),
}

#: Retrievers of one name and no encoder, beside BM25: ``module:object``, called with the corpus and
#: :class:`SearchOptions`; gives a :class:`~beir_cocodr.retrieval.ranking.Retriever`. Add a row for your own.
RETRIEVERS: dict[str, str] = {}


@dataclass(frozen=True)
class ModelSpec:
    """A parsed model name: ``bm25``, ``hybrid:M``, ``rrf:M``, ``feedback:M``, or M, what an encoder is loaded
    from: an alias, a folder or a hub name; or a name of :data:`RETRIEVERS`. With ``lucene-`` before the first four,
    BM25 is Lucene's.

    Args:
        name: as it was given.
        kind: "bm25", a name of :data:`FUSIONS` or of :data:`RETRIEVERS`, or "dense".
        encoder: M; the name itself where there is no encoder.
        lucene: whether BM25 is Lucene's.
    """

    name: str
    kind: str
    encoder: str
    lucene: bool = False

    @classmethod
    def parse(cls, name: str) -> ModelSpec:
        """Every text is a model name; whether there is such an encoder shows when it is loaded."""
        bare = name.removeprefix(_LUCENE)
        if bare == BM25:
            return cls(name, BM25, BM25, bare != name)
        kind, _, encoder = bare.partition(":")
        if kind in FUSIONS:
            return cls(name, kind, encoder, bare != name)
        return cls(name, name if name in RETRIEVERS else "dense", name)

    @property
    def prefix(self) -> str:
        """What stands before the encoder, such as ``lucene-hybrid:``; of BM25, ``lucene-`` or nothing."""
        return self.name.removesuffix(self.encoder)

    def check(self) -> None:
        """Check that a fusion has an encoder; an InputError where it has none."""
        if self.kind in FUSIONS and self.encoder.removeprefix(_LUCENE) in ("", BM25):
            raise InputError(f"{self.name!r} needs a dense encoder, as in {self.kind}:minilm")


@dataclass(frozen=True)
class EncoderOptions:
    """How a dense encoder is loaded; None leaves what the model says itself.

    Args:
        query_length, document_length: tokens that queries and documents are cut to.
        query_prompt, document_prompt: put before every query and document.
        title_separator: stands between title and text; BM25 reads documents with it, too.
        device: such as "cpu" or "cuda:0"; does not change what is computed.
    """

    query_length: int | None = option(None, "Tokens a query is cut to; default: the model's own.")
    document_length: int | None = option(None, "Tokens a document is cut to; default: the model's own.")
    query_prompt: str | None = option(None, "Before every query; default: the model's own.")
    document_prompt: str | None = option(None, "Before every document; default: the model's own.")
    title_separator: str | None = option(None, "Between title and text; default: the model's own.")
    device: str | None = option(None, "Device of the encoder, such as cpu or cuda:0.")

    def overrides(self) -> dict[str, Any]:
        """What is set, by name: keyword arguments of :class:`~beir_cocodr.models.cocodr.COCODR`."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def describe(self) -> Json:
        """What is set, for records; the device changes no result."""
        return replace(self, device=None).overrides()

    def over(self, other: EncoderOptions) -> EncoderOptions:
        """These options, and the other's where these say nothing."""
        return EncoderOptions(**other.overrides() | self.overrides())

    @property
    def text_format(self) -> TextFormat:
        """How BM25 reads documents."""
        from beir_cocodr.data.text import TextFormat

        return TextFormat() if self.title_separator is None else TextFormat(self.title_separator)


@dataclass(frozen=True)
class SearchOptions:
    """How models search a corpus.

    Args:
        encoder: how dense encoders are loaded.
        analyzer: of BM25, see :class:`~beir_cocodr.retrieval.bm25.BM25`.
        batch_size: queries encoded at a time; documents are batched by their tokens.
        progress: show progress bars on stderr.
        stores: folders that ``encode`` wrote; an encoder that wrote one of them reads it and encodes nothing.
        verify: compare each file of a store with its checksum when it is first read.
    """

    encoder: EncoderOptions = EncoderOptions()
    analyzer: str = option("english", "english (stop words out, stemmed) or none (neither).", flag="--bm25-analyzer")
    batch_size: int = option(
        64, "Queries encoded at a time; documents are batched by their tokens.", flag="--encode-batch-size", min=1
    )
    progress: bool = False
    stores: tuple[str | Path, ...] = option(
        (), "Folder that encode wrote for this corpus: the model that wrote it encodes nothing. Repeat.", flag="--store"
    )
    verify: bool = option(True, "Compare each file of a store with its checksum when it is first read.")

    def describe(self) -> Json:
        """What results depend on: all but device, batch size, progress and where embeddings come from."""
        return {"encoder": self.encoder.describe(), "analyzer": self.analyzer}
