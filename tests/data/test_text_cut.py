"""Texts of many megabytes are cut before they are tokenised."""

from __future__ import annotations

import logging
import time

import numpy as np

from beir_cocodr.data.text import cut_text
from beir_cocodr.models.loading import load_encoder


def test_only_a_text_that_is_far_too_long_is_cut():
    text = "wing flow " * 1_000
    assert cut_text(text, 8) == (text, False)
    assert cut_text(text * 2, 8) == (text, False)  # enough words are left
    assert cut_text(" " * 20_000 + "wing", 8) == (" " * 10_000, True)
    assert cut_text("翼" * 20_000, 128) == ("翼" * 10_000, False)
    assert len(cut_text(text * 10, 512)[0]) == 64 * 512


def test_a_text_of_megabytes_has_the_vector_of_its_beginning_and_takes_no_minutes(tiny_bert, caplog):
    model = load_encoder(tiny_bert)
    text = "wing flow shock " * 500_000  # 8 MB: tokenised whole, it takes half a minute
    begin = time.perf_counter()
    with caplog.at_level(logging.WARNING):
        long, short = model.encode_query([text, text[:5_000]])
        assert model.truncated_share([text, "wing"], "query") == 0.5
    assert time.perf_counter() - begin < 10
    np.testing.assert_allclose(long, short, atol=1e-6)
    assert (model.texts_cut, caplog.text) == (0, "")  # nothing is lost
    with caplog.at_level(logging.WARNING):
        model.encode_query([" " * 1_000_000 + "wing", " " * 2_000_000 + "flow"])
        model.encode_query([" " * 3_000_000])
    assert model.texts_cut == 3
    assert caplog.text.count("is cut to 10000 characters") == 1
