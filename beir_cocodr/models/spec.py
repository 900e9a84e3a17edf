"""How a user names models, how encoders are loaded, and how a corpus is searched; nothing here
imports torch.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from beir_cocodr.data.analyzers import ANALYZER_HELP, ANALYZERS
from beir_cocodr.errors import SEED_MAX, InputError, Limits, check_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from beir_cocodr.data.text import TextFormat
    from beir_cocodr.records import Json

T = TypeVar("T")


def option(
    default: T,
    help: str | Callable[[], str] = "",
    flag: str | None = None,
    *,
    min: float = -math.inf,
    max: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    choices: Collection[object] | None = None,
) -> T:
    """A field of an options class, with the values that it may have.

    Args:
        help: of its flag on the command line; without it, it has none and is reached by ``--set``.
            A function gives a text that names what is in a table then.
        flag: the flag's name, where it is not the field's.
        min, max, above, below, choices: see :class:`~beir_cocodr.errors.Limits`. A class that gives
            a field of the class above another default keeps its limits.
    """
    described = {"help": help, "flag": flag} if help else {}
    return field(
        default=default, metadata=described | {"limits": Limits(min, max, above, below, choices)}
    )


def described(kind: type, name: str, key: str) -> Any:
    """What :func:`option` says of a field in the nearest class that does: its "limits", "help" or
    "flag"; else None.
    """
    above = [base.__dataclass_fields__.get(name) for base in kind.__mro__ if is_dataclass(base)]
    found: Mapping[str, Any] = next(
        (one.metadata for one in above if one is not None and key in one.metadata), {}
    )
    value = found.get(key)
    return value() if callable(value) else value


@cache
def _types(kind: type) -> dict[str, tuple[object, ...]]:
    """Name of every field that has limits to the types that it may have."""
    limited = {one.name for one in fields(kind) if described(kind, one.name, "limits") is not None}
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in limited}
    return {
        name: get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
        for name, hint in hints.items()
    }


def check_options(options: DataclassInstance) -> None:
    """Check type and limits of every field of :func:`option`; InputError: the first wrong one, and
    what is right.
    """
    for name, allowed in _types(type(options)).items():
        value, limits = getattr(options, name), described(type(options), name, "limits")
        flag = described(type(options), name, "flag")
        shown = f"{name} ({flag})" if flag else name
        if value is None and NoneType in allowed:
            continue
        literal = next((get_args(hint) for hint in allowed if get_origin(hint) is Literal), None)
        if literal is not None:
            limits = Limits(choices=literal)
        elif not any(_fits(value, hint) for hint in allowed):
            wanted = " or ".join(
                getattr(hint, "__name__", str(hint)) for hint in allowed if hint is not NoneType
            )
            raise InputError(f"{shown} is {value!r}; it has to be {wanted}")
        limits.check(shown, value)


@dataclass(frozen=True)
class Options:
    """Base of options whose fields are all of :func:`option`: they are checked when they are
    made.
    """

    def __post_init__(self) -> None:
        check_options(self)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type; a whole number is a number, and a truth value is neither."""
    kind = {int: Integral, float: Real}.get(hint, get_origin(hint) or hint)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


# Of what torch knows, the kinds of devices that encoders run on.
_DEVICES = re.compile(r"(cpu|cuda|mps|xpu)(:[0-9]{1,3})?")


def check_device_name(device: str | None) -> None:
    """Check that there may be such a device, without torch; whether it is here, ``check_device``
    says with it.
    """
    if device is not None and not _DEVICES.fullmatch(device):
        raise InputError(f"unknown device {device!r}; there are such as cpu, cuda, cuda:1 and mps")


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
        if kinds <= {BM25, RETRIEVER, RUN, *RETRIEVERS}:
            return
    from beir_cocodr.distributed import devices

    check_device_name(device)
    if device not in devices():
        raise InputError(f"device {device!r} is not here; there are {', '.join(devices())}")


#: Names of encoders whose weights come in a package.
ALIASES = ("minilm",)
BM25 = "bm25"

#: Kinds of models that are objects: a retriever of the user's own, and the results of a run.
RETRIEVER = "retriever"
RUN = "run"
_LUCENE = "lucene-"


#: BM25's weight in the fusion, against 1 of the encoder: the best single one over nine collections.
BM25_WEIGHT = 0.5
_WEIGHT_MAX = 1_000


#: Kinds of models whose usual lead over a dense encoder the calibration of verdicts knows, beside
#: :data:`BM25`.
DENSE = "dense"
HYBRID = "hybrid"
FEEDBACK = "feedback"


@dataclass(frozen=True)
class Fusion:
    """A way to search with an encoder and BM25 together: a row of :data:`FUSIONS`.

    Args:
        build: The ``module:object`` of its class, which is called with a
            :class:`~beir_cocodr.retrieval.dense.Dense` and a
            :class:`~beir_cocodr.retrieval.ranking.Lexical` and returns a
            :class:`~beir_cocodr.retrieval.ranking.Ranker`.
        help: What it is, in a few words for ``--help`` and the documentation.
        weighted: True if it weights BM25; the class then takes ``bm25_weight`` too, and a name may
            set it, as in ``hybrid@0.3:M``.
        lucene: True if Lucene's BM25 can take part.
        calibration_kind: Its kind in the calibration of verdicts; without one, or with one that the
            calibration does not have, a verdict "cannot tell".
        citation: A BibTeX key of ``models/papers.bib``, a BibTeX entry, or "" for none.
    """

    build: str
    help: str
    weighted: bool = False
    lucene: bool = True
    calibration_kind: str | None = None
    citation: str = ""


_WEIGHT = re.compile(r"[0-9]+(\.[0-9]+)?")


def fusion_weight(name: str, setting: str, kind: str) -> float:
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
            "encoder by beir-cocodr fuse with the options that you want"
        )
    if not FUSIONS[kind].weighted:
        raise InputError(f"model {name!r}: {setting!r} is no setting of {kind}, which has none")
    if not _WEIGHT.fullmatch(setting) or float(setting) > _WEIGHT_MAX:
        raise InputError(
            f"model {name!r}: {setting!r} is no setting of {kind}; give BM25's weight from 0 to "
            f"{_WEIGHT_MAX:,}, as in {kind}@0.3:M"
        )
    return float(setting)


_FUSION = "beir_cocodr.retrieval.fusion"

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
        calibration_kind=HYBRID,
        citation="lavrenko2001relevance",
    ),
    "feedback": Fusion(
        build=f"{_FUSION}:Feedback",
        help="dense search with the query moved towards hybrid's best documents",
        weighted=True,
        calibration_kind=FEEDBACK,
    ),
    "vector": Fusion(
        build="beir_cocodr.retrieval.fuse:FittedVector",
        help="the hybrid encoder that fuse makes of M, fitted when it is first searched",
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
        return "CROSS-ENCODER@M" if self.first is None else "M"


_HOSTED = "beir_cocodr.retrieval.hosted"

#: What may come before the name of a model that is no encoder of one vector a text. Add a row of
#: your own from a script.
HOSTED: dict[str, Hosted] = {
    "rerank": Hosted(
        build=f"{_HOSTED}:Reranking",
        help="the 100 best documents of M, reranked by a cross-encoder",
        first=None,
        citation="nogueira2019passage",
    ),
    "splade": Hosted(
        build=f"{_HOSTED}:Sparse",
        help="a learned sparse encoder",
        citation="formal2021splade",
    ),
    "colbert": Hosted(
        build=f"{_HOSTED}:LateInteraction",
        help="exact MaxSim over the 1,000 best documents of BM25",
        first=BM25,
        citation="khattab2020colbert",
    ),
    "colbert@tokens": Hosted(
        build=f"{_HOSTED}:TokenSearch",
        help="MaxSim over the candidates of an index of all token vectors",
        citation="khattab2020colbert",
    ),
    "colbert@all": Hosted(
        build=f"{_HOSTED}:LateInteraction",
        help="MaxSim over all documents",
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


def model_forms() -> dict[str, str]:
    """Return the forms of model names that the tables have now, with what each means."""
    forms = {f"{kind}:M": fusion.help for kind, fusion in FUSIONS.items()}
    forms |= {f"{kind}:{hosted.form}": hosted.help for kind, hosted in HOSTED.items()}
    return forms | {name: row.help for name, row in RETRIEVERS.items()}


def calibration_kind(spec: ModelSpec) -> str | None:
    """Return a model's kind in the calibration of verdicts, by its row; None if it has none.

    A loaded encoder's own class may say more: a hybrid encoder is of the kind "hybrid".
    """
    if spec.kind in (BM25, DENSE):
        return spec.kind
    row = FUSIONS.get(spec.kind) or HOSTED.get(spec.kind) or RETRIEVERS.get(spec.kind)
    if row is None:
        return getattr(spec.loaded, "calibration_kind", None)
    return row.calibration_kind


def calibrated_kinds() -> list[str]:
    """Return the kinds that rows of the tables are of, beside a dense encoder."""
    rows = [*FUSIONS.values(), *HOSTED.values(), *RETRIEVERS.values()]
    kinds = [BM25, *(row.calibration_kind for row in rows)]
    return [kind for kind in dict.fromkeys(kinds) if kind not in (None, DENSE)]


@dataclass(frozen=True)
class ModelSpec:
    """A parsed model name: ``bm25``, a fusion such as ``hybrid:M`` (:data:`FUSIONS`),
    ``rerank:CROSS-ENCODER@M`` and the like (:data:`HOSTED`), or M, what an encoder is loaded from:
    an alias, a folder or a hub name; or a name of :data:`RETRIEVERS`. ``lucene-`` before the first
    two: Lucene's.

    Args:
        name: as it was given.
        kind: "bm25", a name of :data:`FUSIONS`, :data:`HOSTED` or :data:`RETRIEVERS`, or "dense".
        encoder: M; the name itself where there is no encoder, and of a reranked model that model's.
        first: name of the model whose best documents are scored, if any.
        host: what sentence-transformers loads, of :data:`HOSTED`.
        lucene: whether BM25 is Lucene's.
        bm25_weight: BM25's weight in a fusion; None leaves it to :class:`SearchOptions`.
        loaded: an object in place of what the name would load: the encoder M, a
            :class:`~beir_cocodr.retrieval.resolve.Retriever`, or the results of a run.
    """

    name: str
    kind: str
    encoder: str
    lucene: bool = False
    bm25_weight: float | None = None
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
        check_name("model name", name)
        bare = name.removeprefix(_LUCENE)
        if bare == BM25:
            return cls(name, BM25, BM25, bare != name)
        before, _, encoder = bare.partition(":")
        kind, at, text = before.partition("@")
        if kind in FUSIONS:
            weight = fusion_weight(name, text, kind) if at else None
            return cls(name, kind, encoder, bare != name, weight)
        if before in HOSTED and bare == name:
            if (first := HOSTED[before].first) is not None:
                return cls(name, before, encoder, first=first, host=encoder)
            host, _, first = encoder.partition("@")
            return cls(
                name, before, cls.parse(first).encoder if first else "", first=first, host=host
            )
        return cls(name, name if name in RETRIEVERS else "dense", name)

    @classmethod
    def of(cls, kind: str, encoder: object, label: str | None = None) -> ModelSpec:
        """Return the spec of a fusion of a loaded encoder, of the default settings.

        Args:
            kind: a name of :data:`FUSIONS`, such as "hybrid".
            encoder: a loaded ``SentenceTransformer``.
            label: name of the encoder; by default its class.
        """
        name = label or type(encoder).__name__
        parsed = cls.parse(f"{kind}:{name}")
        if parsed.kind not in FUSIONS:
            raise InputError(f"unknown fusion {kind!r}; there are {', '.join(FUSIONS)}")
        return replace(parsed, loaded=encoder)

    @property
    def prefix(self) -> str:
        """What stands before the encoder, such as ``lucene-hybrid:``; of BM25, ``lucene-`` or
        nothing. Of a cross-encoder's path, the last part.
        """
        if self.first and self.host != self.encoder:
            last = self.host.rstrip("/").rpartition("/")[2]
            return f"{self.kind}:{last}@{ModelSpec.parse(self.first).prefix}"
        return self.name.removesuffix(self.encoder)

    def check(self) -> None:
        """Check that a fusion has an encoder, and a BM25 that it can use.

        Raises:
            InputError: If it has not, or the name lacks a part.
        """
        if self.loaded is not None:
            return
        if self.kind in FUSIONS and self.encoder.removeprefix(_LUCENE) in ("", BM25):
            raise InputError(f"{self.name!r} needs a dense encoder, as in {self.kind}:minilm")
        if self.first:
            ModelSpec.parse(self.first).check()
        if self.kind in HOSTED and not (self.host and self.encoder):
            raise InputError(
                f"{self.name!r} names too little; the form is {self.kind}:{HOSTED[self.kind].form}"
            )
        if self.lucene and self.kind in FUSIONS and not FUSIONS[self.kind].lucene:
            raise InputError(
                f"{self.name!r}: {self.kind} needs our own BM25; name {self.kind}:{self.encoder}"
            )


def suggestion(name: str) -> str:
    """The end of a message about a model that cannot be found: the name that is nearest to it, if
    one is near.
    """
    encoder = name.partition(":")[2]
    kinds = [f"{kind}:{encoder}" for kind in (*FUSIONS, *HOSTED) if encoder]
    known = [*ALIASES, BM25, _LUCENE + BM25, *RETRIEVERS, *kinds]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close and close[0] != name else ""


@dataclass(frozen=True)
class EncoderOptions:
    """How a dense encoder is loaded; each field is described beside its default, None leaves what
    the model says itself. The separator is BM25's, too; the device does not change what is
    computed.
    """

    query_length: int | None = option(
        None, "Cut queries to this many tokens. Default: the model's own length.", min=3
    )
    document_length: int | None = option(
        None, "Cut documents to this many tokens. Default: the model's own length.", min=3
    )
    query_prompt: str | None = option(None, "Before every query; default: the model's own.")
    document_prompt: str | None = option(None, "Before every document; default: the model's own.")
    title_separator: str | None = option(
        None, "Join title and text by this separator. Default: the model's own."
    )
    device: str | None = option(None, "Run the encoder on this device, such as cpu or cuda:0.")

    def __post_init__(self) -> None:
        check_options(self)
        check_device_name(self.device)

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
class SearchOptions(Options):
    """How models search a corpus; each field is described beside its default.

    Args:
        encoder: how dense encoders are loaded.
        analyzer: of BM25, see :class:`~beir_cocodr.data.analyzers.Analyzer`.
        progress: show progress bars on stderr.
        stores: folders that ``encode`` wrote; an encoder that wrote one of them reads it and
        encodes nothing.
    """

    encoder: EncoderOptions = EncoderOptions()
    analyzer: str = option("english", ANALYZER_HELP, "--bm25-analyzer", choices=ANALYZERS)
    bm25_weight: float = option(
        BM25_WEIGHT,
        "Weight of BM25 in fusions such as hybrid:M, where M has weight 1; 0 leaves BM25 out.",
        min=0,
        max=_WEIGHT_MAX,
    )
    batch_size: int = option(
        64,
        "Encode this many queries at once; batches of documents go by their tokens.",
        "--encode-batch-size",
        min=1,
    )
    progress: bool = False
    stores: tuple[str | Path, ...] = option(
        (),
        "Read this store, which encode wrote for this corpus: its model encodes no document; "
        "repeat.",
        flag="--store",
    )
    verify: bool = option(
        True, "Compare each file of a store with its checksum when it is first read."
    )
    bf16: bool = option(
        False, f"Run {', '.join(HOSTED)} in bfloat16 (autocast), faster where the device has it."
    )

    def describe(self) -> Json:
        """What results depend on: all but device, batch size, progress and where embeddings come
        from.
        """
        described = {
            "encoder": self.encoder.describe(),
            "analyzer": self.analyzer,
            "bm25_weight": self.bm25_weight,
        }
        return described | ({"bf16": True} if self.bf16 else {})


#: How BM25's part of a hybrid encoder is made dense.
LEXICAL = ("auto", "svd", "hash", "svd+hash")


@dataclass(frozen=True)
class FuseOptions(Options):
    """How a dense encoder and BM25 become a hybrid encoder; each field is described beside its
    default.

    Args:
        weight_by_length: see :data:`~beir_cocodr.models.hybrid_encoder.BY_LENGTH`.
        lexical: auto takes what of :data:`LEXICAL` agrees best with the exact fusion, on crops and
            given queries.
        sample: documents of the projection, the covariances and the agreement; frequencies and
            length are the corpus's.
        max_terms: the projection has as many rows.
        probes: crops, and given queries, that the agreement is taken over.
    """

    bm25_weight: float = option(
        BM25_WEIGHT,
        "Weight of BM25, where the dense part has weight 1; 0 leaves BM25 out.",
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
        None, "Size of an fp16 vector. Default: the dense part and 1,024 numbers.", min=4
    )
    lexical: str = option(
        "auto",
        "Make BM25 dense by svd, hash or svd+hash. Default: the one that agrees best with BM25.",
        choices=LEXICAL,
    )
    analyzer: str = option("english", ANALYZER_HELP, "--bm25-analyzer", choices=ANALYZERS)
    sample: int = option(
        50_000, "Fit BM25's dense part on this many documents; terms are counted in all.", min=2
    )
    max_terms: int = option(
        131_072,
        "Keep this many terms; rarer ones are left out, and their number is printed.",
        min=1,
    )
    probes: int = option(200, min=1)
    seed: int = option(42, "Seed of the crops and of the truncated SVD.", min=0, max=SEED_MAX)
