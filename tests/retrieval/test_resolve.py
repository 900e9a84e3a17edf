"""Names of models, resolved where they enter: the uses of an encoder."""

from __future__ import annotations

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.models.mrl import MRL
from beir_cocodr.models.spec import ways_to_use
from beir_cocodr.retrieval.resolve import MOST_FOR_VECTORS, uses_of


def test_a_plain_encoder_has_all_uses_on_a_corpus_of_moderate_size(tiny_cosine, caplog):
    name = str(tiny_cosine)
    assert list(uses_of(name, MOST_FOR_VECTORS)) == list(ways_to_use(name))
    with caplog.at_level("INFO"):
        uses = uses_of(name, MOST_FOR_VECTORS + 1)
    assert set(ways_to_use(name)) - set(uses) == {f"vector:{name}"}
    assert "takes long" in caplog.text


def test_an_encoder_that_cannot_be_fused_has_its_other_uses(tiny_bert, tmp_path, caplog):
    mrl = str(tmp_path / "mrl")
    MRL(str(tiny_bert), k=4).save_pretrained(mrl)
    with caplog.at_level("INFO"):
        uses = uses_of(mrl, documents=40)
    assert set(uses) == set(ways_to_use(mrl)) - {f"vector:{mrl}"}
    assert "only a plain encoder can be fused" in caplog.text


def test_an_encoder_behind_an_endpoint_has_all_uses_and_nobody_asks_the_hub_for_it():
    name = "endpoint:http://127.0.0.1:9/v1#tiny"
    assert list(uses_of(name, documents=40)) == list(ways_to_use(name))


def test_what_is_no_encoder_has_no_uses():
    with pytest.raises(InputError, match="bm25 is not an encoder"):
        uses_of("bm25", documents=40)
