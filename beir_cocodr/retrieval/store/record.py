"""The record of a store: what its vectors depend on, who made them, and how they are laid out."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Protocol, Self, cast

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.io import json_sha256
from beir_cocodr.models.spec import Options, option
from beir_cocodr.records import Json, Record

#: What the encoder computes in; queries are always encoded in its own type.
Backend = Literal["fp32", "bf16"]

#: What vectors are kept in. "fp32": as they are. "fp16": half the size, relative error up to 2⁻¹¹.
#: "bf16": bfloat16 values, relative error up to 2⁻⁸, in float16 files, as numpy and most tools know
#: no bfloat16. "int8": a quarter of the size, absolute error up to 1/254 of the vector's largest
#: number.
Precision = Literal["fp32", "fp16", "bf16", "int8"]

#: The record's file in the folder of a store.
STORE_FILE = "store.json"

#: Documents of a shard by default: one tile of search, 48 MiB of 768 float32 dimensions.
SHARD_SIZE = 16_384

#: The weight of the queries' mean by default. Of 0.1, 0.25, 0.5 and 1, it is the largest at which
#: benchmarks/sharpening.py saw no mean loss on collections whose documents are not very long.
SHARPEN_WEIGHT = 0.25

# Parts of the identity that tell encoders apart.
_ENCODER = (
    "weights",
    "tokenizer",
    "architecture",
)

# Parts of the identity that do not tell encoders apart, nor how they read texts.
_OF_THE_STORE = ("corpus", "precision", "backend", "shard_size")

# Parts that say how vectors were moved after they were encoded.
_SHARPENING = ("sharpened_by", "sharpen_weight")

# Parts that an identity leaves out where they have these values.
_LEFT_OUT: dict[str, object] = {"chunk_pooling": "first"}

# Digits of a hash that a message shows, of all that it has.
_SHOWN = 16
_HASH = 64

#: All that vectors depend on, flat: hashes, names and numbers by their names.
Identity = dict[str, str | int | float | None]


@dataclass(frozen=True)
class EncodedBy:
    """The model that wrote a store.

    Attributes:
        name: Its name as it was given.
        path: Its folder, if it was one.
    """

    name: str | None
    path: str | None = None


@dataclass(frozen=True)
class StoreRecord(Record):
    """The content of ``store.json``, which has ``key`` beside these fields.

    Attributes:
        identity: All that the vectors depend on: the hashes of weights, tokenizer, architecture and
            corpus, the text format with its lengths, similarity, precision, backend and shard size.
        model: Who made them.
        documents: The number of documents, N.
        dimensions: Width of the vectors when they are read, in float32.
        flattened: True for the flattened distributions of an MRL.
        generated: Folder of the generated queries by which vectors were sharpened; "" for none.
    """

    identity: Identity
    model: EncodedBy
    documents: int
    dimensions: int
    flattened: bool = False
    generated: str = ""

    @property
    def key(self) -> str:
        """Return a sha256 over the identity."""
        return json_sha256(self.identity, ensure_ascii=False)

    @property
    def shard_size(self) -> int:
        """Return the documents of a shard."""
        return int(self.identity["shard_size"] or 0)

    @property
    def precision(self) -> Precision:
        """Return what vectors are kept in."""
        return cast(Precision, self.identity["precision"])

    @property
    def backend(self) -> Backend:
        """Return what the encoder computed in."""
        return cast(Backend, self.identity["backend"])

    @property
    def chunk_pooling(self) -> str:
        """Return how long documents were read, see :mod:`beir_cocodr.models.chunk_pooling`."""
        return str(_value(self.identity, "chunk_pooling"))

    @property
    def prior(self) -> bool:
        """Return true if vectors are folded, with the first number of each apart in float32."""
        return self.flattened and self.precision != "fp32"

    @property
    def sharpening(self) -> Identity:
        """Return the parts of the identity that say how vectors were sharpened, none by default."""
        return {part: self.identity[part] for part in _SHARPENING if part in self.identity}

    def has_encoder_of(self, other: Self) -> bool:
        """Return true if one encoder with one text format made both stores."""

        def encoder(record: Self) -> Identity:
            identity = record.identity.items()
            left_out = (*_OF_THE_STORE, *_SHARPENING)
            return {part: value for part, value in identity if part not in left_out}

        return self.model == other.model and encoder(self) == encoder(other)

    def has_setting(self, name: str, value: object) -> bool:
        """Return true if an encoder's setting, such as "query_length", had a value.

        It is false for a setting that stores do not record, such as "pooling".
        """
        return self.identity.get(name, _LEFT_OUT.get(name)) == value

    def differs_in_modules(self, encoder: Mapping[str, str]) -> bool:
        """Return true if an encoder has the weights and the tokenizer, and other modules.

        So it is the same checkpoint, and pools its tokens in another way, for example.

        Args:
            encoder: Hashes of the encoder.
        """
        differing = {part for part in _ENCODER if self.identity[part] != encoder[part]}
        return differing == {"architecture"}

    def encoding_differences(self, identity: Mapping[str, object]) -> str:
        """Return how the documents of another identity are encoded otherwise, with both values.

        The corpus, what belongs to the store alone, and how queries are read do not count.

        Returns:
            The differences as a message names them, "" if there are none.
        """
        return _differences(_of_documents(self.identity), _of_documents(identity))

    def to_json(self) -> Json:
        """Return the record as JSON, with its key."""
        return {"schema": self.SCHEMA, "key": self.key, **asdict(self)}

    @classmethod
    def from_json(cls, content: object, where: str | Path) -> Self:
        """Read a record from JSON.

        Raises:
            InputError: It is damaged, or was changed.
        """
        key = None
        if isinstance(content, dict):
            content = dict(content)
            key = content.pop("key", None)
        try:
            record = super().from_json(content, where)
        except InputError as error:
            raise InputError(f"{error} by encode, here or in another folder") from error
        if record.key != key:
            raise InputError(
                f"{where} was changed: its key {key} is not that of its content, {record.key}; "
                "encode again into another folder"
            )
        return record

    def check_identity(self, identity: Mapping[str, object], folder: Path) -> None:
        """Raise an InputError if a store is not as wanted.

        The message has both keys and all that differs, or the option that is missing where nothing
        else differs.
        """
        if self.identity == identity:
            return
        wanted = json_sha256(identity, ensure_ascii=False)
        names = {**self.identity, **identity}
        changed = {name for name in names if self.identity.get(name) != identity.get(name)}
        if changed == {"chunk_pooling"}:
            raise InputError(
                f"{folder} was encoded with --chunk-pooling {self.chunk_pooling}, not "
                f"{_value(identity, 'chunk_pooling')}; give --chunk-pooling {self.chunk_pooling}, "
                "or choose another folder"
            )
        if changed == {"architecture"}:
            raise InputError(
                f"{folder} was encoded by the weights of {self.model.name!r} with other modules; "
                "give --pooling as it was encoded, or choose another folder"
            )
        if changed <= set(_SHARPENING):
            how = self._sharpened_how()
            raise InputError(f"{folder} was encoded {how}, or choose another folder")
        # An update keeps how documents were read.
        can_update = "corpus" in changed and changed <= {"corpus", "chunk_pooling"}
        can_update = can_update and not self.sharpening
        update = ", or update it to this corpus with --update" if can_update else ""
        contained = "embeddings of another dataset" if "corpus" in changed else "embeddings"
        raise InputError(
            f"{folder} contains {contained} with the key {self.key[:_SHOWN]}, but "
            f"{wanted[:_SHOWN]} is needed: {_differences(self.identity, identity)}; choose another "
            f"folder, or delete this one{update}"
        )

    def _sharpened_how(self) -> str:
        """Return how the store was sharpened, with the options that do it again."""
        if not self.sharpening:
            return "without --sharpen: leave it out"
        weight = self.identity["sharpen_weight"]
        return (
            f"with --sharpen {self.generated} --sharpen-weight {weight}: give both, and the same "
            "queries"
        )

    def check_encoder(
        self,
        encoder: Mapping[str, str],
        name: str,
        folder: Path,
    ) -> None:
        """Raise an InputError with both models if queries' encoder is not the documents'.

        Args:
            encoder: Hashes of the queries' encoder.
            name: Its name.
            folder: Folder of the store.
        """
        stored = {part: str(self.identity[part]) for part in _ENCODER}
        if stored == dict(encoder):
            return
        raise InputError(
            f"{folder} was encoded by {self.model.name!r}, and {name!r} is another model: "
            f"{_differences(stored, encoder)}; give --model the one that encoded it, or encode "
            "again"
        )


def _of_documents(identity: Mapping[str, object]) -> dict[str, object]:
    """Return the parts of an identity that say how an encoder reads and encodes documents."""
    return {
        part: value
        for part, value in identity.items()
        if part not in _OF_THE_STORE and "query" not in part
    }


def _value(identity: Mapping[str, object], name: str) -> object:
    """Return a part of an identity, which may have left it out."""
    return identity.get(name, _LEFT_OUT.get(name))


def _differences(stored: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """Return the parts in which two identities differ, with both values."""
    parts = []
    for name in {**stored, **wanted}:
        before = _value(stored, name)
        now = _value(wanted, name)
        if before != now:
            parts.append(f"{name} {_short(before)} there, {_short(now)} now")
    return ", ".join(parts)


def _short(value: object) -> str:
    if isinstance(value, str) and len(value) == _HASH:
        return value[:_SHOWN]
    return json.dumps(value, ensure_ascii=False)


class DocumentQueries(Protocol):
    """The queries that were generated for the documents of a corpus.

    A process that encodes receives a copy.
    """

    @property
    def folder(self) -> str:
        """Return the folder that they are read from."""
        ...

    @property
    def sha256(self) -> str:
        """Return the checksum of their file."""
        ...

    @property
    def documents(self) -> int:
        """Return how many documents have a query."""
        ...

    def check_corpus(self, documents: Documents) -> None:
        """Raise an InputError if there are none, or they were generated from another corpus."""
        ...

    def of(self, rows: Ints) -> list[list[str]]:
        """Return the queries of each of (n,) documents by their rows in the corpus."""
        ...


@dataclass(frozen=True)
class Sharpening:
    """How document vectors are sharpened, see :mod:`beir_cocodr.retrieval.vectors.sharpening`.

    Attributes:
        queries: The queries of each document.
        weight: The weight of their mean, above 0 and at most 1.
    """

    queries: DocumentQueries
    weight: float = SHARPEN_WEIGHT

    def __post_init__(self) -> None:
        """Check the weight."""
        is_number = isinstance(self.weight, int | float)
        if not (is_number and 0 < self.weight <= 1):
            raise InputError(
                f"the weight of sharpening is {self.weight!r}; choose one above 0 and at most 1"
            )

    def identity(self) -> dict[str, str | float]:
        """Return what the vectors of a store depend on beside the encoder and the corpus."""
        return {"sharpened_by": self.queries.sha256, "sharpen_weight": float(self.weight)}


@dataclass(frozen=True)
class EncodeOptions(Options):
    """Options of encoding and storing a corpus; each field is described beside its default.

    Attributes:
        shard_size: By default that of a store that exists already, else 16,384.
        precision: See :data:`Precision`.
        sharpening: How vectors are moved after they were encoded; by default they are not.
    """

    shard_size: int | None = option(
        None,
        "Write this many documents to each file; a killed run loses at most one file. Default: "
        "16384.",
        min=1,
    )
    precision: Precision = option(
        "fp32",
        "Store vectors as fp32, fp16, bf16 (in fp16 files) or int8.",
    )
    backend: Backend = option(
        "fp32",
        "Run the encoder in fp32 (as it was loaded) or bf16 (autocast).",
    )
    verify: bool = option(
        True,
        "Compare the files that the store already has with their checksums.",
    )
    token_budget: int | None = option(
        None,
        "Put at most this many tokens into a batch, including padding. Default: 4096 on a CPU, "
        "32768 otherwise.",
        min=1,
    )
    sharpening: Sharpening | None = None
