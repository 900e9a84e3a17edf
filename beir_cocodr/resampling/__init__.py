"""Interpolation and extrapolation: training and test queries resampled by similarity.

Here are the options.
"""

import re
from dataclasses import dataclass

from beir_cocodr.errors import SEED_MAX, InputError
from beir_cocodr.models.spec import Options, option

#: The form of an id of ir_datasets.
ID = re.compile(r"[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*")

#: The same form in words.
ID_PARTS = "use letters, digits, . _ + - and, between parts, /"


@dataclass(frozen=True)
class ResampleOptions(Options):
    """The splits that are resampled, the seed, and the name of the result."""

    train_split: str = option("train", "Use this split of the training queries.")
    test_split: str = option("test", "Use this split of the test queries.")
    seed: int = option(42, "Seed the choice of queries with this number.", min=0, max=SEED_MAX)
    base: str | None = option(
        None,
        "Use this name in the ids for ir_datasets. Default: the name of the training set.",
        "--base-id",
    )

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.base is not None and not ID.fullmatch(self.base):
            raise InputError(f"--base-id {self.base!r} cannot be an id of ir_datasets: {ID_PARTS}")


@dataclass(frozen=True)
class RestrainOptions(ResampleOptions):
    """Options of ReSTrain.

    For a size, k is the one whose union is nearest in size, and the smaller one of two.
    ``exclude_top`` is L, at least the largest k.
    """

    sizes: tuple[int, ...] = option(
        (),
        "Make a set of this many training queries, as nearly as k allows; repeat for several.",
        "--size",
    )
    ks: tuple[int, ...] = option(
        (),
        "Instead of a size, use this many nearest training queries of each test query; repeat "
        "for several.",
        "--k",
    )
    exclude_top: int | None = option(
        None,
        "Draw the queries for extrapolation outside this many nearest ones of every test query. "
        "Default: the largest k.",
    )
    method: str = option(
        "exact", "Find the nearest queries with exact search or with faiss.", "--search"
    )


@dataclass(frozen=True)
class ResttestOptions(ResampleOptions):
    """Options of ReSTTest; the paper has 5 buckets."""

    buckets: int = option(5, "Divide the queries into this many buckets; each is held out once.")
