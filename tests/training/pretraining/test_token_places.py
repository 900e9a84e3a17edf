"""The places of tokens are those of the tokenizer, and no document is tokenised twice."""

from __future__ import annotations

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining import token_places
from beir_cocodr.training.pretraining.document_views import DocumentViews, token_counts
from beir_cocodr.training.pretraining.token_places import TokenPlaces
from beir_cocodr.training.pretraining.views import BARE_TOKENS


@pytest.fixture(autouse=True)
def small_files(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(token_places, "_PART", 20)


def test_every_document_has_the_places_of_its_tokenizer(beir_folder, tiny_mlm):
    documents = load_collection(str(beir_folder), labels="none").documents
    model = load_encoder(str(tiny_mlm))
    places = TokenPlaces(documents, model)
    places.complete(token_counts(documents, model)[:, 0])
    for row, document in enumerate(documents.take(np.arange(len(documents)))):
        text = model.text_format.document(document)
        tokens = model.tokenizer(text, return_offsets_mapping=True, **BARE_TOKENS)
        assert [tuple(place) for place in places.of(row).tolist()] == tokens["offset_mapping"]
    assert len(list(places.folder.glob("*.npy"))) == -(-len(documents) // 20) > 1


def test_drawing_views_tokenises_no_document_again(beir_folder, tiny_mlm, monkeypatch):
    collection = load_collection(str(beir_folder), labels="none")
    model = load_encoder(str(tiny_mlm))
    options = PretrainOptions(seed=3, span_tokens=5, max_length=16)
    views = DocumentViews([collection], model, options)
    first = views.texts_of(views.rows[:9].tolist())

    other = load_encoder(str(tiny_mlm))

    tokenize = type(model.tokenizer).__call__

    def only_prompts(self: object, text: str = "", *rest: object, **settings: object) -> object:
        assert not text, "a document was tokenised again"
        return tokenize(self, text, *rest, **settings)

    monkeypatch.setattr(type(model.tokenizer), "__call__", only_prompts)
    again = DocumentViews([collection], other, options)
    assert again.texts_of(again.rows[:9].tolist()) == first
    assert all(left and right for left, right in first)


def test_a_file_that_a_kill_left_out_is_written_alone(beir_folder, tiny_mlm, monkeypatch):
    documents = load_collection(str(beir_folder), labels="none").documents
    model = load_encoder(str(tiny_mlm))
    counts = token_counts(documents, model)[:, 0]
    places = TokenPlaces(documents, model)
    places._file(20).unlink()
    written: list[int] = []
    write = TokenPlaces.write
    monkeypatch.setattr(
        TokenPlaces, "write", lambda self, start: written.append(start) or write(self, start)
    )
    places.complete(counts)
    assert written == [20]
