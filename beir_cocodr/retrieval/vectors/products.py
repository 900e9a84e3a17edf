"""Products of queries and documents on a processor.

:class:`Products` computes all of them in float32. :class:`Screen` computes only those that may
reach a bound, which a product of 8-bit integers selects. A query is q = αa + r and a document is
d = m + βb + s, where a and b hold integers from -127 to 127, so that

    |q·d - q·m - αβ a·b| <= ‖αa‖ ‖s‖ + ‖r‖ ‖d - m‖        (Cauchy and Schwarz).

Where a processor multiplies bytes in vectors (VNNI), the product of integers takes a quarter of the
time of the product in float32.
"""

import math
import platform
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from beir_cocodr.arrays import Bools, Doubles, Floats, Ints

#: Documents multiplied at a time: oneDNN's results are then few enough to reuse their memory.
_PANEL = 4_096

# Outside these limits, the conversion of documents to integers costs more than it saves. For one
# dimension torch's product of integers is wrong.
_FEWEST_QUERIES = 256
_NARROWEST = 16
_MOST_WANTED = 256

#: The share of a panel's products that may be computed again in float32; beyond it the screen costs
#: more than it saves.
_MOST_LEFT = 0.04

#: The screen starts after this many times k documents: with fewer, the bounds are still too low.
FIRST_SCREENED = 75

#: Products of a query that may always be computed again, however few documents a panel has.
_FEW_LEFT = 64

#: The largest number of candidates that are selected from a tile of products in float32.
_MOST_HELD = 4 << 20

#: One in this many documents, those farthest from their integers, is always multiplied in float32.
_OUTLIERS = 512

#: Documents that choose the scale of all documents.
_SAMPLE = 1_024

#: Scales to choose from, as shares of the one that clips no number.
_SCALES = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4)

_LARGEST_INTEGER = 127
_EPSILON = float(np.finfo(np.float32).eps)
_TINY = 1e-30


@cache
def one_dnn_is_faster() -> bool:
    """Return true if oneDNN multiplies faster than what is behind ``torch.mm``.

    MKL takes twice as long as oneDNN on an AMD processor and half as long on an Intel processor.
    """
    if not _has_one_dnn() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    has_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return not (has_mkl and "GenuineIntel" in _processor())


@cache
def multiplies_bytes() -> bool:
    """Return true if there is a fast product of 8-bit integers that sums in 32 bits."""
    flags = _processor().split()
    if "avx512_vnni" not in flags and "avx_vnni" not in flags:
        return False
    if not _has_one_dnn() or not hasattr(torch, "_int_mm"):
        return False
    # If oneDNN is kept from using these instructions, it clips sums of two products to 16 bits.
    alternating = [127, -127] * 32
    largest = [127] * 64
    smallest = [-127] * 64
    extremes = [alternating, largest, smallest] * 6
    rows = torch.tensor(extremes, dtype=torch.int8, device="cpu")
    exact = rows.double() @ rows.double().T
    multiplied = torch._int_mm(rows, rows.T)
    return torch.equal(multiplied.double(), exact)


def _has_one_dnn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


@cache
def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        return information.read_text()
    return platform.processor()


class Products:
    """All products in float32, written to memory that the next call uses again.

    Args:
        device: the device of queries and documents.
    """

    def __init__(self, device: torch.device) -> None:
        """Reserve no memory before the first product."""
        self._scores = torch.empty(0, device=device)
        self._by_one_dnn = device.type == "cpu" and one_dnn_is_faster()

    def __call__(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Multiply (q, d) queries by (n, d) documents to (q, n) scores.

        The scores are overwritten by the next call.
        """
        size = len(queries) * len(documents)
        if self._scores.numel() < size:
            self._scores = documents.new_empty(size)
        scores = self._scores[:size].view(len(queries), len(documents))
        if not self._by_one_dnn:
            return torch.mm(queries, documents.T, out=scores)
        # This is what F.linear does with tensors in oneDNN's own layout. Called directly, it needs
        # no second copy of documents and scores.
        multiply = torch.ops.mkldnn._linear_pointwise
        for first in range(0, len(documents), _PANEL):
            panel = slice(first, first + _PANEL)
            scores[:, panel] = multiply(
                queries,
                documents[panel],
                None,
                "none",
                [],
                "",
            )
        return scores


@dataclass(frozen=True)
class TileCandidates:
    """Documents of a tile that may be among the best of q queries.

    Args:
        starts: (q + 1,); query i has the candidates from ``starts[i]`` to ``starts[i + 1]``.
        columns: (m,) documents of the tile, ascending for each query.
        scores: (m,) their products in float32.
    """

    starts: Ints
    columns: Ints
    scores: Floats


@dataclass(frozen=True)
class Panel:
    """Some documents with their integers.

    Args:
        documents: (n, d) float32.
        integers: (n, d) int8, b of the module's formula.
        outliers: documents that are always multiplied in float32.
        residual: the largest ‖s‖ of the other documents.
        distance: the largest ‖d - m‖ of the other documents.
    """

    documents: Tensor
    integers: Tensor
    outliers: Ints
    residual: float
    distance: float


class Screen:
    """Queries as integers, and the conversion of documents to integers.

    Args:
        queries: (Q, d) float32.
        documents: (n, d) float32, n > 0, similar to those to come: m is their mean, and they choose
            β.
    """

    @staticmethod
    def pays(queries: Tensor, top_k: int) -> bool:
        """Return true if the screen saves time.

        It does where many (Q, d) queries ask for few documents, on a processor that multiplies
        bytes fast.
        """
        query_count, width = queries.shape
        if query_count < _FEWEST_QUERIES or width < _NARROWEST or top_k > _MOST_WANTED:
            return False
        return multiplies_bytes()

    def __init__(self, queries: Tensor, documents: Tensor) -> None:
        """Choose the scales, and convert the queries to integers."""
        self._center = documents.mean(dim=0)
        step = math.ceil(len(documents) / _SAMPLE)
        sample = documents[::step]
        self._scale = _best_scale(sample - self._center)
        largest = queries.abs().amax(dim=1, keepdim=True)
        scales = (largest / _LARGEST_INTEGER).clamp_min(_TINY)
        integers = _to_integers(queries, scales)
        rounded = integers * scales
        center_scores = queries @ self._center
        self._queries = queries
        self._integers = integers.to(torch.int8)
        self._scales = scales[:, 0].double().numpy()
        self._center_scores = center_scores.double().numpy()
        self._rounded_lengths = _lengths(rounded)
        self._residuals = _lengths(queries - rounded)
        self._lengths = _lengths(queries)
        shares = self._residuals / np.maximum(self._rounded_lengths, _TINY)
        self._residual_share = float(shares.mean())
        # Memory that is used again, because new pages take as long as the product.
        self._products = _empty(0, torch.int32)
        self._mask = _empty(0, torch.bool)

    def panels(self, documents: Tensor) -> Iterator[Panel]:
        """Cut a tile of (n, d) float32 documents into panels."""
        for part in torch.split(documents, _PANEL):
            centred = part - self._center
            integers = _to_integers(centred, self._scale)
            distances = _lengths(centred)
            residuals = _lengths(centred.sub_(integers, alpha=self._scale))
            errors = residuals + self._residual_share * distances
            outlier_count = math.ceil(len(part) / _OUTLIERS)
            order = errors.argpartition(-outlier_count)
            others = order[:-outlier_count]
            yield Panel(
                documents=part,
                integers=integers.to(torch.int8),
                outliers=order[-outlier_count:],
                residual=residuals[others].max(initial=0),
                distance=distances[others].max(initial=0),
            )

    def candidates(
        self,
        part: slice,
        panels: list[Panel],
        bounds: Floats,
    ) -> TileCandidates | None:
        """Select the documents whose score reaches the bound of a query.

        Args:
            part: some of the queries, q of them.
            panels: a tile of documents.
            bounds: (q,) scores.

        Returns:
            The candidates, or None if too many products would have to be computed again.
        """
        rows: list[Ints] = []
        columns: list[Ints] = []
        scores: list[Floats] = []
        first = 0
        for panel in panels:
            size = len(panel.documents)
            least = self._least_products(part, panel, bounds)
            positions = self._near(self._integers[part], panel, least)
            most_of_query = max(_FEW_LEFT, _MOST_LEFT * size)
            if len(positions) > len(bounds) * most_of_query:
                return None
            row, column = np.divmod(positions, size)
            exact = _products(self._queries[part], panel.documents, row, column)
            reached = np.flatnonzero(exact >= bounds[row])
            rows.append(row[reached])
            columns.append(column[reached] + first)
            scores.append(exact[reached])
            first += size
        row = np.concatenate(rows)
        order = row.argsort(kind="stable")
        return TileCandidates(
            starts=_starts(row[order], len(bounds)),
            columns=np.concatenate(columns)[order],
            scores=np.concatenate(scores)[order],
        )

    def _near(
        self,
        queries: Tensor,
        panel: Panel,
        least: NDArray[np.int32],
    ) -> Ints:
        """Return positions in the ravelled (q, n) products that may reach the bounds.

        They are those of at least the (q,) ``least``, and those of all outliers.
        """
        query_count = len(queries)
        size = query_count * len(panel.integers)
        if self._products.numel() < size:
            self._products = _empty(size, torch.int32)
            self._mask = _empty(size + 7, torch.bool)
        products = self._products[:size].view(query_count, -1)
        mask = self._mask[:size].view(query_count, -1)
        torch._int_mm(queries, panel.integers.T, out=products)
        least_of_row = torch.from_numpy(least)[:, None]
        torch.ge(products, least_of_row, out=mask)
        mask[:, panel.outliers] = True
        return true_positions(self._mask.numpy(), size)

    def _least_products(
        self,
        part: slice,
        panel: Panel,
        bounds: Floats,
    ) -> NDArray[np.int32]:
        """Return the (q,) least a·b that a score at the bound can have."""
        error = self._rounded_lengths[part] * panel.residual
        error += self._residuals[part] * panel.distance
        error += self._rounding_error(part, panel)
        distances = bounds - self._center_scores[part] - error
        product_scales = self._scales[part] * self._scale
        least = np.floor(distances / product_scales)
        limits = np.iinfo(np.int32)
        clipped = least.clip(limits.min, limits.max)
        integers: NDArray[np.int32] = clipped.astype(np.int32)
        return integers

    def _rounding_error(self, part: slice, panel: Panel) -> Doubles:
        """Return (q,) bounds of what float32 rounds away.

        It rounds in the product that gave the bound, in the product with m, and in the differences.
        """
        center_length = float(torch.linalg.vector_norm(self._center, dtype=torch.float64))
        longest = panel.distance + center_length
        width = self._integers.shape[1]
        error: Doubles = 4 * _EPSILON * width * self._lengths[part] * longest
        return error


def _best_scale(sample: Tensor) -> float:
    """Return the scale that brings the (n, d) sample closest to its integers, outliers aside.

    A smaller scale clips large numbers and brings the others closer.
    """
    largest_number = float(sample.abs().max())
    largest_scale = max(largest_number / _LARGEST_INTEGER, _TINY)
    outlier_count = math.ceil(len(sample) / _OUTLIERS)
    errors: dict[float, float] = {}
    for share in _SCALES:
        scale = largest_scale * share
        rounded = _to_integers(sample, scale) * scale
        residuals = _lengths(sample - rounded)
        partitioned = np.partition(residuals, -outlier_count)
        errors[scale] = partitioned[-outlier_count]
    return min(errors, key=errors.__getitem__)


def _to_integers(rows: Tensor, scale: Tensor | float) -> Tensor:
    return (rows / scale).round_().clamp_(-_LARGEST_INTEGER, _LARGEST_INTEGER)


def _lengths(rows: Tensor) -> Doubles:
    # In float32 the squares of the smallest numbers would be 0.
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    lengths: Doubles = norms.numpy()
    return lengths


def candidates_by_scores(
    queries: Tensor,
    documents: Tensor,
    scores: Tensor,
    bounds: Floats,
) -> TileCandidates | None:
    """Select the documents whose score may reach the bound of a query, from all scores of a tile.

    The selected products are computed again as :class:`Screen` computes them, so that documents of
    equal embeddings have equal scores whichever way they came.

    Args:
        queries: (q, d) float32.
        documents: (n, d) float32.
        scores: (q, n) float32 products.
        bounds: (q,) scores.

    Returns:
        The candidates, or None if they are too many.
    """
    longest = _lengths(documents).max()
    lengths = torch.from_numpy(_lengths(queries) * longest)
    error = 2 * _EPSILON * queries.shape[1] * lengths
    least = torch.from_numpy(bounds) - error.float()
    size = scores.numel()
    mask = _empty(size + 7, torch.bool)
    reached = mask[:size].view_as(scores)
    torch.ge(scores, least[:, None], out=reached)
    if int(reached.count_nonzero()) > _MOST_HELD:
        return None
    row, column = np.divmod(
        true_positions(mask.numpy(), size),
        scores.shape[1],
    )
    return TileCandidates(
        starts=_starts(row, len(queries)),
        columns=column,
        scores=_products(queries, documents, row, column),
    )


def _empty(size: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device="cpu")


def _starts(row: Ints, queries: int) -> Ints:
    starts: Ints = np.searchsorted(row, np.arange(queries + 1))
    return starts


def _products(
    queries: Tensor,
    documents: Tensor,
    row: Ints,
    column: Ints,
) -> Floats:
    """Return the (m,) float32 products of some pairs, whose (m,) rows ascend."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        pairs = torch.sparse_csr_tensor(
            crow_indices=torch.from_numpy(_starts(row, len(queries))),
            col_indices=torch.from_numpy(column),
            values=torch.zeros(len(row), dtype=torch.float32, device="cpu"),
            size=(len(queries), len(documents)),
            check_invariants=False,
        )
        sampled = torch.sparse.sampled_addmm(pairs, queries, documents.T, beta=0.0)
        products: Floats = sampled.values().numpy()
    return products


def true_positions(mask: Bools, size: int) -> Ints:
    """Return where a mask is true among its first ``size`` elements, ascending.

    The mask has seven elements more, which are overwritten.
    """
    word_count = math.ceil(size / 8)
    mask = mask[: 8 * word_count]
    mask[size:] = False
    # Eight elements are one word, and most words are 0.
    words = mask.view(np.int64)
    set_words = np.flatnonzero(words != 0)
    inner = np.flatnonzero(words[set_words].view(bool))
    word, byte = np.divmod(inner, 8)
    return 8 * set_words[word] + byte
