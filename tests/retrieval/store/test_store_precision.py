"""The largest loss of each precision, by its own arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from beir_cocodr.retrieval.store.shard import OutOfRange, bytes_per_vector, pack, unpack

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
# Half of the distance between neighbours, relative to the number: 11 and 8 binary places.
RELATIVE = {"fp16": 2.0**-11, "bf16": 2.0**-8}
# And where float16 has no more places: half of its smallest number.
SMALLEST = 2.0**-25

vectors = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=12),
    elements=st.floats(-60_000, 60_000, width=32),
)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("prior", [False, True])
@settings(deadline=None)
@given(vectors=vectors)
def test_no_number_moves_further_than_its_precision_allows(precision, prior, vectors):
    found = unpack(pack(vectors.copy(), precision, prior)).numpy()
    assert found.dtype == np.float32
    assert found.shape == vectors.shape
    if prior or precision == "fp32":
        np.testing.assert_array_equal(found[:, 0], vectors[:, 0])
    if precision == "fp32":
        np.testing.assert_array_equal(found, vectors)
        return
    rest, wide = found[:, prior:].astype(np.float64), vectors[:, prior:].astype(np.float64)
    if precision == "int8":
        # Half a step, and what float32 itself loses in dividing and multiplying.
        largest = np.abs(wide).max(axis=1, keepdims=True)
        allowed = np.broadcast_to(largest / 254 * (1 + 1e-4) + 1e-38, wide.shape)
    else:
        allowed = np.abs(wide) * RELATIVE[precision] + SMALLEST
    assert (np.abs(rest - wide) <= allowed).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("prior", [False, True])
def test_the_arrays_take_the_bytes_that_are_estimated(precision, prior):
    arrays_ = pack(np.ones((7, 33), np.float32), precision, prior)
    assert sum(array.nbytes for array in arrays_.values()) == 7 * bytes_per_vector(
        33, precision, prior
    )


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_numbers_beyond_half_precision_are_refused_by_row(precision):
    vectors = np.ones((4, 3), np.float32)
    vectors[1, 0] = 70_000
    vectors[3, 2] = -70_000
    with pytest.raises(OutOfRange) as caught:
        pack(vectors, precision)
    assert caught.value.rows == [1, 3]
    # As a prior the first number stays float32, and only the other row is at fault.
    with pytest.raises(OutOfRange) as caught:
        pack(vectors, precision, prior=True)
    assert caught.value.rows == [3]


def test_bf16_holds_bfloat16_values_in_float16():
    import torch

    vectors = np.random.default_rng(0).standard_normal((50, 20)).astype(np.float32)
    stored = pack(vectors, "bf16")["vectors"]
    assert stored.dtype == np.float16
    np.testing.assert_array_equal(
        stored.astype(np.float32), torch.from_numpy(vectors).bfloat16().float()
    )


def test_zero_vectors_stay_zero_in_int8():
    vectors = np.zeros((2, 4), np.float32)
    vectors[1, 2] = 3
    found = unpack(pack(vectors, "int8"))
    assert found[0].tolist() == [0, 0, 0, 0]
    assert found[1, 2] == pytest.approx(3, rel=1e-6)
