"""Interpolation and extrapolation: training and test queries resampled by similarity; here, its
options.
"""

import re
from dataclasses import dataclass

from beir_cocodr.errors import SEED_MAX, InputError
from beir_cocodr.models.spec import Options, option

#: What an id of ir_datasets can be, and that in words.
ID, ID_PARTS = (
    re.compile(r"[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*"),
    "use letters, digits, . _ + - and, between parts, /",
)


@dataclass(frozen=True)
class ResampleOptions(Options):
    """Which splits are resampled, by which seed, and the name of the result; each is described
    beside its default.
    """

    train_split: str = option("train", "Use this split of the training queries.")
    test_split: str = option("test", "Use this split of the test queries.")
    seed: int = option(42, "Seed of the queries that are drawn.", min=0, max=SEED_MAX)
    base: str | None = option(
        None,
        "Put BASE in the ids for ir_datasets. Default: the name of the training set.",
        "--base-id",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base is not None and not ID.fullmatch(self.base):
            raise InputError(f"--base-id {self.base!r}: {ID_PARTS}")


@dataclass(frozen=True)
class RestrainOptions(ResampleOptions):
    """What ReSTrain chooses; each field is described beside its default. For a size the k is taken
    whose union is nearest in size, the smaller of two; ``exclude_top`` is L, at least the largest
    k.
    """

    sizes: tuple[int, ...] = option(
        (),
        "Make a set of this many training queries, as nearly as k allows; repeat for several.",
        "--size",
    )
    ks: tuple[int, ...] = option(
        (),
        "Instead of a size, take this many nearest training queries of each test query; repeat.",
        "--k",
    )
    exclude_top: int | None = option(
        None,
        "Draw extrapolation outside this many nearest queries of every test query. Default: the "
        "largest k.",
    )
    method: str = option(
        "exact", "Find the nearest queries by exact search or by faiss.", "--search"
    )


@dataclass(frozen=True)
class ResttestOptions(ResampleOptions):
    """What ReSTTest chooses: ``buckets``, the paper's 5."""

    buckets: int = option(5, "Divide the queries into this many buckets; each is held out once.")
