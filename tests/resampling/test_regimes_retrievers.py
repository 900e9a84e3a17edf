"""Given models are of the kind that their name says, or refused."""

from __future__ import annotations

import time

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from beir_cocodr import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.resampling.regimes.rankers import load_ranker


@pytest.mark.parametrize("kind", ["splade", "late-interaction", "cross-encoder"])
@pytest.mark.parametrize("source", ["tiny_bert", "tiny_cosine"])
def test_a_model_of_another_kind_gets_no_random_layers(
    kind, source, beir_folder, request, tmp_path
):
    folder = request.getfixturevalue(source)
    documents = load_collection(beir_folder).documents
    with pytest.raises(InputError, match=r"random|classifier") as caught:
        load_ranker(f"{kind}:{folder}", documents, tmp_path, Recipe(start=str(folder)))
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_masked_language_model_is_a_sparse_encoder(tiny_mlm, beir_folder, tmp_path):
    documents = load_collection(beir_folder).documents
    result = load_ranker(f"splade:{tiny_mlm}", documents, tmp_path, Recipe(start=str(tiny_mlm)))
    ranking = result.search({"q": "wing [SEP] flow", "r": "wing [ SEP ] flow"}, 5)
    np.testing.assert_array_equal(ranking.rows[0], ranking.rows[1])
    start = time.process_time()
    long = "wing flow shock " * 500_000  # 8 MB: tokenised whole, it takes half a minute
    ranking = result.search({"q": long, "r": long[:5_000]}, 5)
    assert time.process_time() - start < 15
    np.testing.assert_array_equal(ranking.rows[0], ranking.rows[1])


def test_a_cross_encoder_reads_special_tokens_as_text(tiny_bert, beir_folder, tmp_path):
    AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=1).save_pretrained(
        tmp_path / "cross"
    )
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "cross")
    documents = load_collection(beir_folder).documents
    recipe = Recipe(start=str(tiny_bert), first_stage="bm25")
    result = load_ranker(f"cross-encoder:{tmp_path / 'cross'}", documents, tmp_path, recipe)
    ranking = result.search({"q": "wing [SEP] flow", "r": "wing [ SEP ] flow"}, 5)
    np.testing.assert_allclose(ranking.scores[0], ranking.scores[1])
