"""What a store's vectors depend on, who made them, how they are laid out; and the settings a store
is made with.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self, cast

from beir_cocodr.errors import InputError
from beir_cocodr.io import json_sha256
from beir_cocodr.models.spec import Options, option
from beir_cocodr.records import Json, Record
from beir_cocodr.same_run import check_same_run, differences

#: What the encoder computes in; queries are always encoded in its own type.
Backend = Literal["fp32", "bf16"]


#: "fp32": as they are. "fp16": half the size, relative error up to 2⁻¹¹. "bf16": bfloat16 values,
#: relative error up to 2⁻⁸, in float16 files, as numpy and most tools know no bfloat16. "int8": a
#: quarter of the size, absolute error up to 1/254 of the vector's largest number.
Precision = Literal["fp32", "fp16", "bf16", "int8"]


#: The record's file in the folder of a store.
STORE_FILE = "store.json"
_ENCODER = ("weights", "tokenizer", "architecture")

#: All that vectors depend on, flat: hashes, names and numbers by their names.
Identity = dict[str, str | int | None]


@dataclass(frozen=True)
class EncodedBy:
    """The model that wrote a store: its name as it was given, and its folder, where it was one."""

    name: str | None
    path: str | None = None


@dataclass(frozen=True)
class StoreRecord(Record):
    """The content of ``store.json``, in which ``key`` stands beside these fields.

    Args:
        identity: all that the vectors depend on: of documents the hashes of weights, tokenizer,
            architecture and corpus, the text format with its lengths, similarity, precision,
            backend and shard size.
        model: who made them.
        documents: N.
        dimensions: w, of the vectors as read, in float32.
        flattened: whether vectors are the flattened distributions of an MRL.
    """

    identity: Identity
    model: EncodedBy
    documents: int
    dimensions: int
    flattened: bool = False

    @property
    def key(self) -> str:
        """A sha256 over the identity."""
        return json_sha256(self.identity, ensure_ascii=False)

    @property
    def shard_size(self) -> int:
        return int(self.identity["shard_size"] or 0)

    @property
    def precision(self) -> Precision:
        return cast(Precision, self.identity["precision"])

    @property
    def backend(self) -> Backend:
        return cast(Backend, self.identity["backend"])

    @property
    def prior(self) -> bool:
        """Whether vectors are folded, and the first number of each is kept in float32 apart."""
        return self.flattened and self.precision != "fp32"

    def to_json(self) -> Json:
        return {"schema": self.SCHEMA, "key": self.key, **asdict(self)}

    @classmethod
    def from_json(cls, content: object, where: str | Path) -> Self:
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
                f"{where} was changed: its key {key} is not that of its content, {record.key}"
            )
        return record

    def check_identity(self, identity: Mapping[str, object], folder: Path) -> None:
        """Check that a store is the one that is wanted.

        Raises:
            InputError: it is another one; both keys and all that differs are named.
        """
        now = {"key": json_sha256(identity, ensure_ascii=False), **identity}
        way_out = "choose another folder, or delete this one"
        if differences(self.identity, identity) == ["corpus"]:
            way_out += ", or bring it to this corpus with --update"
        check_same_run(folder, {"key": self.key, **self.identity}, now, way_out)

    def check_encoder(self, encoder: Mapping[str, str], name: str, folder: Path) -> None:
        """Check that the model of the queries is that of the documents.

        Raises:
            InputError: it is another one; both models and what differs are named.
        """
        stored = {part: str(self.identity[part]) for part in _ENCODER}
        way_out = f"give --model {self.model.name!r}, which encoded it, not {name!r}"
        check_same_run(folder, stored, encoder, f"{way_out}, or encode again")


#: What a hybrid encoder's store says of its fit, beside :data:`STORE_FILE`.
REFIT_FILE = "refit.json"

#: Beyond these a refit is due: share of terms that are unknown, beyond that of the fit; change of a
#: deviation. With a quarter of documents of another kind, in three pairs of collections, one of
#: them was exceeded, and queries for these found 0.10 to 0.19 less of the fusion's best ten than
#: after a refit.
MOST_UNKNOWN, MOST_DRIFT = 0.01, 0.1


@dataclass(frozen=True)
class Refit(Record):
    """How far a corpus has moved from the one that a hybrid encoder was fused with.

    Args:
        documents: that were looked at, evenly spaced.
        unknown_share: of their terms, those that the model does not know.
        unknown_before: the same when it was fused; None where its training.json is gone.
        dense_drift, lexical_drift: how much the deviations of scores over the corpus differ from
            those that queries are divided by: the median of ``|s' / s - 1|``, documents being the
            queries.
    """

    documents: int
    unknown_share: float
    unknown_before: float | None
    dense_drift: float
    lexical_drift: float

    @property
    def due(self) -> bool:
        unknown = self.unknown_share - (self.unknown_before or 0.0)
        return unknown > MOST_UNKNOWN or max(self.dense_drift, self.lexical_drift) > MOST_DRIFT

    def describe(self) -> Json:
        return asdict(self) | {"due": self.due, "line": str(self)}

    def __str__(self) -> str:
        verdict, before = (
            "due: make the model again by fuse" if self.due else "not due",
            self.unknown_before or 0,
        )
        return (
            f"refit {verdict}: {self.unknown_share:.1%} of terms are unknown ({before:.1%} when it was fused, "
            f"{MOST_UNKNOWN:.0%} more is too much), deviations differ by {self.dense_drift:.0%} (dense) and "
            f"{self.lexical_drift:.0%} (BM25; {MOST_DRIFT:.0%} is too much)"
        )


#: Documents of a shard where nothing else is said: one tile of search, 48 MiB of 768 float32
#: dimensions.
SHARD_SIZE = 16_384


@dataclass(frozen=True)
class EncodeOptions(Options):
    """How a corpus is encoded and kept; each field is described beside its default.

    Args:
        shard_size: by default that of a store that is already there, else 16,384.
        precision: see :data:`Precision`.
    """

    shard_size: int | None = option(
        None,
        "Write this many documents to a file, at most all that a kill loses. Default: 16384.",
        min=1,
    )
    precision: Precision = option(
        "fp32", "Write vectors to disk as fp32, fp16, bf16 (in fp16) or int8."
    )
    backend: Backend = option(
        "fp32", "Run the encoder in fp32 (as it was loaded) or bf16 (autocast)."
    )
    verify: bool = option(True, "Compare the shards that exist already with their checksums.")
    token_budget: int | None = option(
        None,
        "Fill a batch with this many tokens, padding included. Default: 4096 on a CPU, else 32768.",
        min=1,
    )
