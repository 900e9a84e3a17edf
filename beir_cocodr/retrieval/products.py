"""Products of queries and documents on a processor: all of them in float32, or of those alone that
may reach a bound.

Which these are, a product of 8-bit integers tells. A query is q = αa + r and a document d = m + βb
+ s, with a and b of integers from -127 to 127, so that

    |q·d - q·m - αβ a·b| <= ‖αa‖ ‖s‖ + ‖r‖ ‖d - m‖        (Cauchy and Schwarz).

Where a processor multiplies bytes in vectors (VNNI), that takes a quarter of the time of the
product in float32.
"""

import platform
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Documents multiplied at a time: oneDNN's results are few enough that their memory is used again.
_PANEL = 4_096

# Below and above, putting documents into integers costs more than it saves; of one dimension
# torch's product is wrong.
_FEWEST_QUERIES, _NARROWEST, _MOST_WANTED = 256, 16, 256
# So does multiplying more than this share, which is likely until so many times k documents were
# seen.
_MOST_LEFT, FIRST_SCREENED = 0.04, 75
# Of a panel of few documents, more may be left; of a tile in float32, no more than this is held.
_FEW_LEFT, _MOST_HELD = 64, 4 << 20
# One in how many documents is multiplied in float32 anyway, being farthest from its integers.
_ODD = 512
# Documents that the scale is chosen by, and how much it cuts off.
_SAMPLE, _CLIPPED = 1_024, (1.0, 0.85, 0.7, 0.6, 0.5, 0.4)
_EPSILON, _TINY = float(np.finfo(np.float32).eps), 1e-30


@cache
def one_dnn_is_faster() -> bool:
    """MKL, behind torch.mm, takes twice as long as oneDNN on an AMD processor and half as long on
    one of Intel's.
    """
    mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    one_dnn = _one_dnn() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return one_dnn and not (mkl and "GenuineIntel" in _processor())


@cache
def multiplies_bytes() -> bool:
    """Whether there is a fast product of 8-bit integers that never leaves 32 bits."""
    fast = {"avx512_vnni", "avx_vnni"} & set(_processor().split())
    if not (fast and _one_dnn() and hasattr(torch, "_int_mm")):
        return False
    # Where oneDNN is kept from using these instructions, sums of two products are cut off at 16
    # bits.
    rows = torch.tensor(
        [[127, -127] * 32, [127] * 64, [-127] * 64] * 6, dtype=torch.int8, device="cpu"
    )
    return torch.equal(torch._int_mm(rows, rows.T).double(), rows.double() @ rows.double().T)


def _one_dnn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@cache
def _processor() -> str:
    information = Path("/proc/cpuinfo")
    return information.read_text() if information.is_file() else platform.processor()


class Products:
    """All products in float32, in memory that the next ones use again."""

    def __init__(self, device: torch.device) -> None:
        self._scores = torch.empty(0, device=device)
        self._one_dnn = device.type == "cpu" and one_dnn_is_faster()

    def __call__(self, queries: Tensor, documents: Tensor) -> Tensor:
        """(q, d) by (n, d) to (q, n)."""
        size = len(queries) * len(documents)
        if self._scores.numel() < size:
            self._scores = documents.new_empty(size)
        scores = self._scores[:size].view(len(queries), len(documents))
        if not self._one_dnn:
            return torch.mm(queries, documents.T, out=scores)
        for first in range(0, len(documents), _PANEL):
            panel = slice(first, first + _PANEL)
            # As F.linear of tensors in oneDNN's form, without a second copy of documents and
            # scores.
            scores[:, panel] = torch.ops.mkldnn._linear_pointwise(
                queries, documents[panel], None, "none", [], ""
            )
        return scores


class TileHits(NamedTuple):
    """Documents of a tile for q queries, of which query i has those from ``starts[i]`` to
    ``starts[i + 1]``.

    Args:
        starts: (q + 1,).
        columns: (m,) documents of the tile, ascending for each query.
        scores: (m,) float32.
    """

    starts: NDArray[np.int64]
    columns: NDArray[np.int64]
    scores: NDArray[np.float32]


class Panel(NamedTuple):
    """Documents, their b, the odd ones among them, and the largest ‖s‖ and ‖d - m‖ of the
    others.
    """

    documents: Tensor
    whole: Tensor
    odd: NDArray[np.int64]
    left: float
    far: float


class Screen:
    """Queries as integers, and how documents become such.

    Args:
        queries: (Q, d) float32.
        documents: (n, d) float32, n > 0, like those to come: m is their mean, and β is chosen by
        them.
    """

    @staticmethod
    def pays(queries: Tensor, top_k: int) -> bool:
        """Whether many (Q, d) queries ask for few documents, on a processor that is fast at
        this.
        """
        wide = len(queries) >= _FEWEST_QUERIES and queries.shape[1] >= _NARROWEST
        return wide and top_k <= _MOST_WANTED and multiplies_bytes()

    def __init__(self, queries: Tensor, documents: Tensor) -> None:
        self._center = documents.mean(dim=0)
        some = documents[:: -(-len(documents) // _SAMPLE)] - self._center
        most = max(float(some.abs().max()) / 127, _TINY)
        # With a smaller scale, large numbers are cut off and others are closer.
        left = {
            most * share: _lengths(some - _whole(some, most * share) * (most * share))
            for share in _CLIPPED
        }
        self._scale = min(
            left,
            key=lambda scale: np.partition(left[scale], -len(some) // _ODD)[-len(some) // _ODD],
        )
        scales = (queries.abs().amax(dim=1, keepdim=True) / 127).clamp_min(_TINY)
        whole = _whole(queries, scales)
        self._queries, self._whole = queries, whole.to(torch.int8)
        lengths = [
            torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
            for part in (whole * scales, queries - whole * scales, queries)
        ]
        of_queries = (scales[:, 0], queries @ self._center, *lengths)
        self._alpha, self._at_center, self._of_whole, self._of_rest, self._norms = (
            column.double().numpy() for column in of_queries
        )
        self._products, self._mask = _empty(0, torch.int32), _empty(0, torch.bool)
        self._share_left = float((self._of_rest / np.maximum(self._of_whole, _TINY)).mean())

    def panels(self, documents: Tensor) -> Iterator[Panel]:
        """A tile of (n, d) float32 documents, in parts."""
        for part in torch.split(documents, _PANEL):
            moved = part - self._center
            whole, far = _whole(moved, self._scale), _lengths(moved)
            left = _lengths(moved.sub_(whole, alpha=self._scale))
            order = (left + self._share_left * far).argpartition(-(odd := -(-len(part) // _ODD)))
            rest = order[:-odd]
            yield Panel(
                part,
                whole.to(torch.int8),
                order[-odd:],
                left[rest].max(initial=0),
                far[rest].max(initial=0),
            )

    def found(
        self, part: slice, panels: list[Panel], bounds: NDArray[np.float32]
    ) -> TileHits | None:
        """What scores at least the (q,) bounds of a part of the queries; None where too much may do
        so.
        """
        rows: list[NDArray[np.int64]] = []
        columns, scores, first = list(rows), [], 0
        for panel in panels:
            size = len(panel.whole)
            near = self._near(self._whole[part], panel, self._least(part, panel, bounds))
            if len(near) > len(bounds) * max(_FEW_LEFT, _MOST_LEFT * size):
                return None
            row, column = np.divmod(near, size)
            exact = _products(self._queries[part], panel.documents, row, column)
            reached = np.flatnonzero(exact >= bounds[row])
            rows.append(row[reached])
            columns.append(column[reached] + first)
            scores.append(exact[reached])
            first += size
        row = np.concatenate(rows)
        order = row.argsort(kind="stable")
        return TileHits(
            _starts(row[order], len(bounds)),
            np.concatenate(columns)[order],
            np.concatenate(scores)[order],
        )

    def _near(self, queries: Tensor, panel: Panel, least: NDArray[np.int32]) -> NDArray[np.int64]:
        """Places in the ravelled (q, n) products that reach the (q,) least, and those of the odd
        documents.
        """
        size = len(queries) * len(panel.whole)
        if (
            self._products.numel() < size
        ):  # memory that is used again, as new pages take as long as the product
            self._products, self._mask = _empty(size, torch.int32), _empty(size + 7, torch.bool)
        products, mask = (
            held[:size].view(len(queries), -1) for held in (self._products, self._mask)
        )
        torch._int_mm(queries, panel.whole.T, out=products)
        torch.ge(products, torch.from_numpy(least)[:, None], out=mask)
        mask[:, panel.odd] = True
        return places(self._mask.numpy(), size)

    def _least(self, part: slice, panel: Panel, bounds: NDArray[np.float32]) -> NDArray[np.int32]:
        """(q,) what a·b is at least where a score reaches the bound."""
        error = self._of_whole[part] * panel.left + self._of_rest[part] * panel.far
        # And what float32 may err by: in the product that the bound is of, the one with m, and the
        # differences.
        longest = panel.far + float(torch.linalg.vector_norm(self._center, dtype=torch.float64))
        error += 4 * _EPSILON * self._whole.shape[1] * self._norms[part] * longest
        least = (bounds - self._at_center[part] - error) / (self._alpha[part] * self._scale)
        limits = np.iinfo(np.int32)
        whole: NDArray[np.int32] = np.floor(least).clip(limits.min, limits.max).astype(np.int32)
        return whole


def _whole(rows: Tensor, scale: Tensor | float) -> Tensor:
    return (rows / scale).round_().clamp_(-127, 127)


def _lengths(rows: Tensor) -> NDArray[np.float64]:
    # Squares of the smallest numbers are 0 in float32.
    lengths: NDArray[np.float64] = torch.linalg.vector_norm(
        rows, dim=1, dtype=torch.float64
    ).numpy()
    return lengths


def found_again(
    queries: Tensor, documents: Tensor, scores: Tensor, bounds: NDArray[np.float32]
) -> TileHits | None:
    """The same of products in float32: both give equal scores to equal documents. None where too
    much may be it.
    """
    lengths = torch.from_numpy(_lengths(queries) * _lengths(documents).max())
    least = torch.from_numpy(bounds) - (2 * _EPSILON * queries.shape[1] * lengths).float()
    mask = _empty(scores.numel() + 7, torch.bool)
    reached = torch.ge(scores, least[:, None], out=mask[: scores.numel()].view_as(scores))
    if int(reached.count_nonzero()) > _MOST_HELD:
        return None
    row, column = np.divmod(places(mask.numpy(), scores.numel()), scores.shape[1])
    return TileHits(_starts(row, len(queries)), column, _products(queries, documents, row, column))


def _empty(size: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device="cpu")


def _starts(row: NDArray[np.int64], queries: int) -> NDArray[np.int64]:
    starts: NDArray[np.int64] = np.searchsorted(row, np.arange(queries + 1))
    return starts


def _products(
    queries: Tensor, documents: Tensor, row: NDArray[np.int64], column: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(m,) float32 products of some pairs, by ascending rows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        wanted = torch.sparse_csr_tensor(
            torch.from_numpy(_starts(row, len(queries))),
            torch.from_numpy(column),
            torch.zeros(len(row), dtype=torch.float32, device="cpu"),
            (len(queries), len(documents)),
            check_invariants=False,
        )
        found: NDArray[np.float32] = (
            torch.sparse.sampled_addmm(wanted, queries, documents.T, beta=0.0).values().numpy()
        )
    return found


def places(mask: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Where a mask is true among the first, ascending; seven elements more are there and are
    written over.
    """
    mask = mask[: -(-size // 8) * 8]
    mask[size:] = False
    words = mask.view(np.int64)  # most eights have none
    there = np.flatnonzero(words != 0)
    inner = np.flatnonzero(words[there].view(bool))
    return np.take(there, inner >> 3) * 8 + (inner & 7)
