"""Names of models, and how encoders are loaded and a corpus is searched; torch is not imported."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beir_cocodr.data.analyzers import ANALYZER_HELP, ANALYZERS
from beir_cocodr.errors import SEED_MAX, InputError, check_name, check_type
from beir_cocodr.io import Keywords
from beir_cocodr.models.option_fields import Options as Options
from beir_cocodr.models.option_fields import check_options as check_options
from beir_cocodr.models.option_fields import described as described
from beir_cocodr.models.option_fields import option as option

if TYPE_CHECKING:
    from beir_cocodr.data.text import TextFormat
    from beir_cocodr.records import Json

# The devices of torch that encoders run on.
_DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:[0-9]{1,3})?")


def check_device_name(device: str | None) -> None:
    """Check that a device can have this name, without torch.

    Raises:
        InputError: If it cannot.
    """
    if device is not None and not _DEVICES.fullmatch(device):
        raise InputError(f"unknown device {device!r}; give one such as cpu, cuda, cuda:1 or mps")


def check_device(device: str | None, models: Iterable[str | ModelSpec] | None = None) -> None:
    """Check that torch sees a device; nothing is imported if no model needs one.

    Args:
        device: its name, None for the default.
        models: the models that will use it; None for an encoder.

    Raises:
        InputError: If torch does not see the device.
    """
    if device is None:
        return
    if models is not None:
        kinds = {ModelSpec.parse(model).kind for model in models}
        if kinds <= {BM25, RETRIEVER, RUN, HTTP, *RETRIEVERS}:
            return
    from beir_cocodr.distributed import devices

    check_device_name(device)
    if device not in devices():
        raise InputError(
            f"this machine has no device {device!r}; choose one of {', '.join(devices())}"
        )


#: Names of encoders whose weights come in a package.
ALIASES = ("minilm",)
BM25 = "bm25"

#: Kinds of models that are objects: a retriever of the user's own, and the results of a run.
RETRIEVER = "retriever"
RUN = "run"
_RUN_PREFIX = f"{RUN}:"

#: The kind of a search engine that is asked over HTTP, and how its name begins.
HTTP = "http"
_HTTP_PREFIXES = ("http:", "https:")

#: How the name of an encoder behind OpenAI's ``/v1/embeddings`` begins.
ENDPOINT_PREFIX = "endpoint:"
_LUCENE = "lucene-"


#: BM25's weight in the fusion, against 1 of the encoder: the best single one over nine collections.
BM25_WEIGHT = 0.5
_WEIGHT_MAX = 1_000


#: Kinds of models whose usual lead over a dense encoder the calibration of verdicts knows, beside
#: :data:`BM25`.
DENSE = "dense"
HYBRID = "hybrid"
FEEDBACK = "feedback"
RERANKED = "reranked"
SPARSE = "learned sparse"
LATE_INTERACTION = "late interaction"
RM3 = "rm3"


@dataclass(frozen=True)
class Fusion:
    """A way to search with an encoder and BM25 together: a row of :data:`FUSIONS`.

    Args:
        build: The ``module:object`` of its class, which is called with a
            :class:`~beir_cocodr.retrieval.vectors.dense.Dense` and a
            :class:`~beir_cocodr.retrieval.ranking.Lexical` and returns a
            :class:`~beir_cocodr.retrieval.ranking.Ranker`.
        help: What it is, in a few words for ``--help`` and the documentation.
        weighted: True if it weights BM25; the class then takes ``bm25_weight`` too, and a name may
            set it, as in ``hybrid@0.3:M``.
        lucene: True if Lucene's BM25 can take part.
        calibration_kind: Its kind in the calibration of verdicts. Without one, a verdict without
            labels "cannot tell"; with one that the calibration does not have, it is more cautious.
        citation: A BibTeX key of ``models/papers.bib``, a BibTeX entry, or "" for none.
    """

    build: str
    help: str
    weighted: bool = False
    lucene: bool = True
    calibration_kind: str | None = None
    citation: str = ""


_WEIGHT = re.compile(r"[0-9]+(\.[0-9]+)?")

#: The setting in ``hybrid@estimate:M``, where an estimate without labels chooses BM25's weight.
ESTIMATE = "estimate"


def fusion_weight(
    name: str,
    setting: str,
    kind: str,
) -> float:
    """Return BM25's weight from a name such as ``hybrid@0.3:M``, whose setting is ``0.3``.

    Args:
        name: The whole name, for the message.
        setting: The text between ``@`` and the colon.
        kind: The name of a row of :data:`FUSIONS`.

    Raises:
        InputError: The fusion has no such setting.
    """
    if kind == "vector":
        raise InputError(
            f"model {name!r}: settings of vector were removed; name vector:M, or make a hybrid "
            "encoder with beir-cocodr fuse and the options that you want"
        )
    if not FUSIONS[kind].weighted:
        raise InputError(
            f"model {name!r}: {kind} has no settings, such as {setting!r}; leave the setting out"
        )
    if not _WEIGHT.fullmatch(setting) or float(setting) > _WEIGHT_MAX:
        raise InputError(
            f"model {name!r}: {setting!r} is not a setting of {kind}; give BM25's weight from 0 "
            f"to {_WEIGHT_MAX:,}, as in {kind}@0.3:M"
            + (f", or {kind}@{ESTIMATE}:M" if kind == HYBRID else "")
        )
    return float(setting)


_FUSION = "beir_cocodr.retrieval.hybrid.fusion"

#: What may come before an encoder's name, as in ``hybrid:minilm``. Add a row of your own from a
#: script.
FUSIONS: dict[str, Fusion] = {
    "hybrid": Fusion(
        build=f"{_FUSION}:Hybrid",
        help="the weighted mean of the z-normalised scores of M and BM25",
        weighted=True,
        calibration_kind=HYBRID,
    ),
    "rrf": Fusion(
        build=f"{_FUSION}:ReciprocalRank",
        help="reciprocal rank fusion of M and BM25",
        calibration_kind=HYBRID,
        citation="cormack2009rrf",
    ),
    "rm3": Fusion(
        build=f"{_FUSION}:RM3",
        help="hybrid, with BM25's query expanded by terms of hybrid's best documents",
        weighted=True,
        lucene=False,
        calibration_kind=RM3,
        citation="lavrenko2001relevance",
    ),
    "feedback": Fusion(
        build=f"{_FUSION}:Feedback",
        help="dense search with the query moved towards hybrid's best documents",
        weighted=True,
        calibration_kind=FEEDBACK,
    ),
    "vector": Fusion(
        build="beir_cocodr.retrieval.hybrid.fuse:FittedVector",
        help="the hybrid encoder that fuse makes from M, fitted when it is first searched",
        weighted=True,
        lucene=False,
        calibration_kind=HYBRID,
        citation="deerwester1990lsi",
    ),
}


def ways_to_use(encoder: str) -> list[str]:
    """Return the names of the ways to search with an encoder without training, BM25 first."""
    fusions = [f"hybrid@{weight}:" for weight in (0.2, 0.3, 0.5, 1)]
    prefixes = ["", *fusions, "feedback@0.5:", "rm3@0.5:", "vector:"]
    return [BM25, *(prefix + encoder for prefix in prefixes)]


@dataclass(frozen=True)
class Hosted:
    """A kind of model that sentence-transformers has a class for: a row of :data:`HOSTED`.

    Args:
        build: The ``module:object`` of its class, which is called with the model's name, the
            corpus, :class:`SearchOptions`, and a ranker of the documents to score, or None for all.
        help: What it is, in a few words for ``--help`` and the documentation.
        first: Name of that ranker's model; "" for all documents, and None if the model's name ends
            in it.
        calibration_kind: See :class:`Fusion`.
        citation: See :class:`Fusion`.
    """

    build: str
    help: str
    first: str | None = ""
    calibration_kind: str | None = None
    citation: str = ""

    @property
    def form(self) -> str:
        """Return what follows the kind in a name."""
        if self.first is None:
            return "CROSS-ENCODER@M"
        return "M"


_HOSTED = "beir_cocodr.retrieval.hosted"
_LATE_INTERACTION = "beir_cocodr.retrieval.late_interaction"

#: What may come before the name of a model that is no encoder of one vector a text. Add a row of
#: your own from a script.
HOSTED: dict[str, Hosted] = {
    "rerank": Hosted(
        build=f"{_HOSTED}:Reranking",
        help="the 100 best documents of M, reranked by a cross-encoder",
        first=None,
        calibration_kind=RERANKED,
        citation="nogueira2019passage",
    ),
    "splade": Hosted(
        build=f"{_HOSTED}:Sparse",
        help="a learned sparse encoder",
        calibration_kind=SPARSE,
        citation="formal2021splade",
    ),
    "colbert": Hosted(
        build=f"{_LATE_INTERACTION}:LateInteraction",
        help="exact MaxSim over the 1,000 best documents of BM25",
        first=BM25,
        calibration_kind=LATE_INTERACTION,
        citation="khattab2020colbert",
    ),
    "colbert@tokens": Hosted(
        build=f"{_LATE_INTERACTION}:TokenSearch",
        help="MaxSim over the candidates of an index of all token vectors",
        calibration_kind=LATE_INTERACTION,
        citation="khattab2020colbert",
    ),
    "colbert@all": Hosted(
        build=f"{_LATE_INTERACTION}:LateInteraction",
        help="MaxSim over all documents",
        calibration_kind=LATE_INTERACTION,
        citation="khattab2020colbert",
    ),
}


@dataclass(frozen=True)
class Standalone:
    """A model of one name that needs no encoder: a row of :data:`RETRIEVERS`.

    Args:
        build: The ``module:object`` of its class, which is called with the corpus and
            :class:`SearchOptions` and returns a :class:`~beir_cocodr.retrieval.ranking.Ranker`.
        help: What it is, in a few words for ``--help``.
        calibration_kind: See :class:`Fusion`.
        citation: See :class:`Fusion`.
    """

    build: str
    help: str = ""
    calibration_kind: str | None = None
    citation: str = ""


#: Models of one name beside BM25. Add a row of your own from a script.
RETRIEVERS: dict[str, Standalone] = {}


#: Systems outside of this package, each with what it means: their names take these forms.
EXTERNAL: dict[str, str] = {
    "run:FILE": "a TREC run, which answers the queries that it contains",
    "http:URL|FILE": "a search engine that is queried over HTTP, as docs/engines.md describes",
    "endpoint:URL#MODEL": "an encoder behind OpenAI's /v1/embeddings",
}


def model_forms() -> dict[str, str]:
    """Return the forms of model names that the tables have now, with what each means."""
    forms = {f"{kind}:M": fusion.help for kind, fusion in FUSIONS.items()}
    forms |= {f"{kind}:{hosted.form}": hosted.help for kind, hosted in HOSTED.items()}
    forms |= {name: row.help for name, row in RETRIEVERS.items()}
    return forms | EXTERNAL


def calibration_kind(spec: ModelSpec) -> str | None:
    """Return a model's kind in the calibration of verdicts, by its row; None if it has none.

    A loaded encoder's own class may say more: a hybrid encoder is of the kind "hybrid".
    """
    if spec.kind in (BM25, DENSE):
        return spec.kind
    if spec.kind in FUSIONS:
        return FUSIONS[spec.kind].calibration_kind
    if spec.kind in HOSTED:
        return HOSTED[spec.kind].calibration_kind
    if spec.kind in RETRIEVERS:
        return RETRIEVERS[spec.kind].calibration_kind
    return getattr(spec.loaded, "calibration_kind", None)


@dataclass(frozen=True)
class ModelSpec:
    """A parsed model name, or a loaded object with a label.

    A name is ``bm25``, a name of :data:`RETRIEVERS`, an encoder M (an alias, a folder or a hub
    name), a fusion such as ``hybrid:M`` (:data:`FUSIONS`), one of :data:`HOSTED` such as
    ``rerank:CROSS-ENCODER@M``, or one of :data:`EXTERNAL` such as ``run:FILE``. The prefix
    ``lucene-`` takes Lucene's BM25, alone or in a fusion.

    Args:
        name: the name or label.
        kind: "bm25", "dense", "retriever", "run", "http", or a name of :data:`FUSIONS`,
            :data:`HOSTED` or :data:`RETRIEVERS`.
        encoder: M; the file of a run; the name itself where there is no encoder, and for a reranked
            model the encoder of that model.
        lucene: true if BM25 is Lucene's.
        bm25_weight: BM25's weight in a fusion; None leaves it to :class:`SearchOptions`.
        weight_by_estimate: true if an estimate without labels chooses BM25's weight, see
            :func:`~beir_cocodr.evaluation.fusion_weight.choose_weight`.
        first: name of the model whose best documents are scored, if any.
        host: name of the model that sentence-transformers loads, for a kind of :data:`HOSTED`.
        loaded: the object that replaces what the name would load: the encoder M, a
            :class:`~beir_cocodr.retrieval.resolve.Retriever`, or the results of a run.

    Example:
        >>> from beir_cocodr import ModelSpec
        >>> spec = ModelSpec.parse("hybrid@0.3:minilm")
        >>> spec.kind, spec.encoder, spec.bm25_weight
        ('hybrid', 'minilm', 0.3)
    """

    name: str
    kind: str
    encoder: str
    lucene: bool = False
    bm25_weight: float | None = None
    weight_by_estimate: bool = False
    first: str = ""
    host: str = ""
    loaded: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    @classmethod
    def parse(cls, name: str | ModelSpec) -> ModelSpec:
        """Return what a name says; a parsed one is returned as it is.

        Every text is a model name, unless it is too long for a file; loading shows whether the
        encoder exists.
        """
        if isinstance(name, ModelSpec):
            return name
        check_type("the model", name, str, "the name of a model")
        check_name("model name", name)
        if name.startswith(_RUN_PREFIX):
            return cls(name, RUN, name.removeprefix(_RUN_PREFIX))
        if name.startswith(_HTTP_PREFIXES):
            return cls(name, HTTP, name)
        bare = name.removeprefix(_LUCENE)
        if bare == BM25:
            return cls(name, BM25, BM25, bare != name)
        before, _, encoder = bare.partition(":")
        kind, at, text = before.partition("@")
        if kind in FUSIONS:
            by_estimate = kind == HYBRID and text == ESTIMATE
            weight = fusion_weight(name, text, kind) if at and not by_estimate else None
            return cls(name, kind, encoder, bare != name, weight, by_estimate)
        if before in HOSTED and bare == name:
            return cls._parse_hosted(name, before, encoder)
        return cls(name, name if name in RETRIEVERS else DENSE, name)

    @classmethod
    def _parse_hosted(
        cls,
        name: str,
        kind: str,
        rest: str,
    ) -> ModelSpec:
        """Return what a name of :data:`HOSTED` says; ``rest`` is the part after the colon."""
        first = HOSTED[kind].first
        if first is not None:
            return cls(name, kind, rest, first=first, host=rest)
        host, _, first = rest.partition("@")
        encoder = cls.parse(first).encoder if first else ""
        return cls(name, kind, encoder, first=first, host=host)

    @classmethod
    def of(
        cls,
        kind: str,
        encoder: object,
        label: str | None = None,
    ) -> ModelSpec:
        """Return the spec of a fusion with a loaded encoder.

        Args:
            kind: a name of :data:`FUSIONS`, such as "hybrid".
            encoder: a loaded ``SentenceTransformer``.
            label: name of the encoder; by default its class.

        Raises:
            InputError: If there is no such fusion.
        """
        name = label or type(encoder).__name__
        parsed = cls.parse(f"{kind}:{name}")
        if parsed.kind not in FUSIONS:
            raise InputError(f"unknown fusion {kind!r}; choose one of {', '.join(FUSIONS)}")
        return replace(parsed, loaded=encoder)

    @property
    def prefix(self) -> str:
        """Return the part before the encoder, such as ``lucene-hybrid:``.

        It is ``lucene-`` or nothing for BM25. A cross-encoder's path is cut to its last part.
        """
        if self.first and self.host != self.encoder:
            last = self.host.rstrip("/").rpartition("/")[2]
            return f"{self.kind}:{last}@{ModelSpec.parse(self.first).prefix}"
        return self.name.removesuffix(self.encoder)

    @property
    def is_black_box(self) -> bool:
        """Return true for a system that searches an index of its own, or does not search at all.

        It cannot be given a changed corpus.
        """
        if self.first and ModelSpec.parse(self.first).is_black_box:
            return True
        return self.kind in (RETRIEVER, RUN, HTTP)

    def check(self) -> None:
        """Check that the name is complete, and that a fusion can use its BM25.

        Raises:
            InputError: If it is not.
        """
        if self.loaded is not None:
            return
        if self.kind in FUSIONS and self.encoder.removeprefix(_LUCENE) in ("", BM25):
            raise InputError(f"{self.name!r} needs a dense encoder, as in {self.kind}:minilm")
        if self.first:
            ModelSpec.parse(self.first).check()
        if self.kind in HOSTED and not (self.host and self.encoder):
            raise InputError(
                f"{self.name!r} is incomplete; the form is {self.kind}:{HOSTED[self.kind].form}"
            )
        if self.lucene and self.kind in FUSIONS and not FUSIONS[self.kind].lucene:
            raise InputError(
                f"{self.name!r}: {self.kind} cannot use Lucene's BM25; "
                f"name {self.kind}:{self.encoder}"
            )


def check_names_encoder(name: str) -> None:
    """Raise an InputError if a name is that of a way to search, where an encoder is needed."""
    spec = ModelSpec.parse(name)
    if spec.kind == DENSE:
        return
    way_out = "give an encoder"
    if spec.kind in FUSIONS and spec.encoder:
        way_out = f"give {spec.encoder}"
    raise InputError(f"{name!r} is a way to search, and an encoder is needed here; {way_out}")


def suggestion(name: str) -> str:
    """Return the end of a message about an unknown model: the nearest name, if one is near."""
    encoder = name.partition(":")[2]
    kinds = [f"{kind}:{encoder}" for kind in (*FUSIONS, *HOSTED) if encoder]
    known = [*ALIASES, BM25, _LUCENE + BM25, *RETRIEVERS, *kinds]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if close and close[0] != name:
        return f"; did you mean {close[0]}?"
    return ""


@dataclass(frozen=True)
class EncoderOptions:
    """Options of loading a dense encoder; None keeps the model's setting.

    The separator is also BM25's. The device changes no result.
    """

    query_length: int | None = option(
        None, "Cut queries to this many tokens. Default: the model's own length.", min=3
    )
    document_length: int | None = option(
        None, "Cut documents to this many tokens. Default: the model's own length.", min=3
    )
    query_prompt: str | None = option(
        None, "Put this prompt before every query. Default: the model's own."
    )
    document_prompt: str | None = option(
        None, "Put this prompt before every document. Default: the model's own."
    )
    title_separator: str | None = option(
        None, "Join title and text with this separator. Default: the model's own."
    )
    pooling: str | None = option(
        None,
        "Pool the tokens of an encoder without modules.json by cls or mean. Default: as its "
        "authors do if the encoder is known, otherwise cls with a warning.",
        choices=("cls", "mean"),
    )
    chunk_pooling: str | None = option(
        None,
        "Make one vector of a document that is longer than the encoder reads from its beginning "
        "(first), from all of its pieces (mean), or from both (first+mean). Default: the model's "
        "own, which is first unless it was saved with another.",
        choices=("first", "mean", "first+mean"),
    )
    device: str | None = option(None, "Run the encoder on this device, such as cpu or cuda:0.")

    def __post_init__(self) -> None:
        """Check every field."""
        check_options(self)
        check_device_name(self.device)

    def overrides(self) -> Keywords:
        """Return the settings as arguments of :class:`~beir_cocodr.models.cocodr.COCODR`."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def describe(self) -> Json:
        """Return the settings for a record, without the device, which changes no result."""
        return replace(self, device=None).overrides()

    def over(self, other: EncoderOptions) -> EncoderOptions:
        """Return these options, with the other's where these are None."""
        return EncoderOptions(**other.overrides() | self.overrides())

    @property
    def text_format(self) -> TextFormat:
        """Return the text format by which BM25 reads documents."""
        from beir_cocodr.data.text import TextFormat

        if self.title_separator is None:
            return TextFormat()
        return TextFormat(self.title_separator)


@dataclass(frozen=True)
class SearchOptions(Options):
    """Options of a search of a corpus; further fields are described beside their defaults.

    Args:
        encoder: how dense encoders are loaded by name; loaded models keep their own settings.
        analyzer: the analyzer of BM25, see :class:`~beir_cocodr.data.analyzers.Analyzer`.
        progress: show progress bars on stderr; by default on a terminal and in a notebook.
        stores: folders that ``encode`` wrote; an encoder that wrote one of them reads it and
            encodes nothing.
    """

    encoder: EncoderOptions = EncoderOptions()
    analyzer: str = option("english", ANALYZER_HELP, "--bm25-analyzer", choices=ANALYZERS)
    bm25_weight: float = option(
        BM25_WEIGHT,
        "Give BM25 this weight in fusions such as hybrid:M, where M has weight 1; 0 leaves BM25 "
        "out.",
        min=0,
        max=_WEIGHT_MAX,
    )
    batch_size: int = option(
        64,
        "Encode this many queries at once; documents are batched by their number of tokens.",
        "--encode-batch-size",
        min=1,
    )
    progress: bool | None = None
    stores: tuple[str | Path, ...] = option(
        (),
        "Take a model's vectors of documents from this store, which encode wrote for this "
        "corpus; repeat for several models.",
        flag="--store",
    )
    verify: bool = option(
        True, "Compare each file of a store with its checksum when it is first read."
    )
    bf16: bool = option(
        False,
        f"Encode documents, and run the models {', '.join(HOSTED)} and language models, in "
        "bfloat16 (autocast), which is faster on devices that have it, and less exact.",
    )

    @property
    def shows_progress(self) -> bool:
        """Return true if progress bars are shown."""
        from beir_cocodr.progress import is_watched

        return is_watched() if self.progress is None else self.progress

    def describe(self) -> Json:
        """Return the options that results depend on."""
        content: Json = {
            "encoder": self.encoder.describe(),
            "analyzer": self.analyzer,
            "bm25_weight": self.bm25_weight,
        }
        if self.bf16:
            content["bf16"] = True
        return content


#: Ways to make BM25's part of a hybrid encoder dense.
LEXICAL = ("auto", "svd", "hash", "svd+hash")


@dataclass(frozen=True)
class FuseOptions(Options):
    """Options of fusing a dense encoder with BM25 to a hybrid encoder.

    Further fields are described beside their defaults.

    Args:
        weight_by_length: see :data:`~beir_cocodr.models.hybrid_encoder.BY_LENGTH`.
        lexical: "auto" takes the way of :data:`LEXICAL` that agrees best with the exact fusion, on
            crops and on the collection's queries.
        sample: documents that the projection, the covariances and the agreement are computed from;
            frequencies and lengths are those of the whole corpus.
        max_terms: terms, which are the rows of the projection.
        probes: crops, and queries, that the agreement is averaged over.
        weight_reason: why BM25 has its weight, if an estimate chose it; for the record.
    """

    bm25_weight: float = option(
        BM25_WEIGHT,
        "Give BM25 this weight, where the dense part has weight 1; 0 leaves BM25 out.",
        "--bm25-weight",
        min=0,
        max=1000,
    )
    weight_by_length: bool = option(
        False,
        "Weight BM25 by the query's length: 0.05 for each content term, at least 0.2 and at most "
        "0.6.",
        "--weight-by-length",
    )
    bytes_per_document: int | None = option(
        None,
        "Make vectors of at most this many bytes in fp16. Default: room for the dense part "
        "and 1,024 more numbers.",
        min=4,
    )
    lexical: str = option(
        "auto",
        "Make BM25 dense by svd, hash or svd+hash. Default: the one that agrees best with the "
        "exact fusion.",
        choices=LEXICAL,
    )
    analyzer: str = option("english", ANALYZER_HELP, "--bm25-analyzer", choices=ANALYZERS)
    sample: int = option(
        50_000,
        "Fit BM25's dense part on this many documents; terms are counted in all documents.",
        min=2,
    )
    max_terms: int = option(
        131_072,
        "Keep this many terms; the rarer ones are left out, and their number is printed.",
        min=1,
    )
    probes: int = option(200, min=1)
    weight_reason: str = ""
    seed: int = option(
        42, "Seed the crops and the truncated SVD with this number.", min=0, max=SEED_MAX
    )
