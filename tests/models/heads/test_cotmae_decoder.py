from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers.sentence_transformer.modules import Dense

from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.heads.condenser import build_head
from beir_cocodr.models.heads.cotmae_decoder import (
    DECODER_FOLDER,
    DECODERS,
    autoregressive_mask,
    build_decoder,
)

# Written by hand: row i has an x where position i sees. Position 0 is the passage's embedding;
# positions 0 to 3 see all before them; from 4 on a position sees 0, itself and the two before it.
TABLE = """\
x.........
xx........
xxx.......
xxxx......
x.xxx.....
x..xxx....
x...xxx...
x....xxx..
x.....xxx.
x......xxx
""".split()


@pytest.mark.parametrize("length", range(1, 11))
def test_the_autoregressive_mask_is_the_specified_one(length):
    seen = autoregressive_mask(length)
    assert seen.dtype == torch.bool
    drawn = ["".join("x" if cell else "." for cell in row) for row in seen.tolist()]
    assert drawn == [row[:length] for row in TABLE[:length]]
    for i in range(length):
        full = range(i + 1)
        expected = set(full) if i <= 3 else {0, i - 2, i - 1, i}
        assert {j for j, cell in enumerate(seen[i].tolist()) if cell} == expected


@pytest.mark.parametrize("window", [1, 2, 5, 20])
def test_another_window_is_followed(window):
    for i, row in enumerate(autoregressive_mask(9, window).tolist()):
        assert [j for j, cell in enumerate(row) if cell] == [
            j for j in range(9) if j <= i and (j == 0 or i - j < window)
        ]


def decoded(tiny, **settings):
    """A model with head and decoder, dropout off."""
    model = COCODR(str(tiny))
    head, _ = build_head(model, str(tiny), n_head_layers=0)
    decoder, origin = build_decoder(model, head, str(tiny), **settings)
    model.append(head)
    model.append(decoder)
    model.transformers_model.config.output_hidden_states = True
    return model.eval(), decoder, origin


def features(model, passages, contexts):
    found = model.preprocess(passages, task="document")
    context = model.preprocess(contexts, task="query")
    labels = context["input_ids"].masked_fill(context["attention_mask"] == 0, -100)
    return found | {
        "mlm_labels": torch.full_like(found["input_ids"], -100),
        "decoder_ids": context["input_ids"],
        "decoder_mask": context["attention_mask"],
        "decoder_labels": labels,
    }


def test_without_a_context_nothing_changes(tiny_mlm):
    before = COCODR(str(tiny_mlm)).encode_document(["a wing in supersonic flow"])
    model, _, origin = decoded(tiny_mlm)
    assert origin == "new layers"
    assert (model.encode_document(["a wing in supersonic flow"]) == before).all()


@pytest.mark.parametrize("kind", DECODERS)
def test_padding_and_other_rows_do_not_matter(kind, tiny_mlm):
    model, _, _ = decoded(tiny_mlm, decoder=kind)
    passages = ["a wing in supersonic flow", "library index"]
    contexts = ["wing flow", "which journal is in the library index ?"]
    with torch.no_grad():
        both = model(features(model, passages, contexts))["sentence_embedding"][:, -1]
        alone = [
            model(features(model, [p], [c]))["sentence_embedding"][0, -1]
            for p, c in zip(passages, contexts, strict=True)
        ]
    torch.testing.assert_close(both, torch.stack(alone), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", DECODERS)
def test_the_encoder_is_reached_through_the_passages_embedding_alone(kind, tiny_mlm):
    model, decoder, _ = decoded(tiny_mlm, decoder=kind)
    batch = features(model, ["a wing in supersonic flow"], ["wing flow"])
    for module in list(model)[:2]:  # transformer and pooling
        batch = module(batch)
    batch["sentence_embedding"] = batch["sentence_embedding"].detach().requires_grad_()
    states = [state.detach().requires_grad_() for state in batch["all_layer_embeddings"]]
    batch["all_layer_embeddings"] = states
    embedding = batch["sentence_embedding"]
    decoder(batch)["sentence_embedding"][:, -1].sum().backward()
    assert embedding.grad.abs().sum() > 0
    assert all(state.grad is None for state in states)


def test_an_autoregressive_position_does_not_see_what_it_has_to_tell(tiny_mlm):
    model, _, _ = decoded(tiny_mlm)
    first = features(model, ["a wing"], ["wing flow shock drag lift plate"])
    other = features(model, ["a wing"], ["wing flow shock drag lift heat"])
    with torch.no_grad():
        for batch in (first, other):  # what the last differing token makes of the places before it
            batch["decoder_labels"] = first["decoder_labels"].clone()
            batch["decoder_labels"][:, 6:] = -100
        losses = [model(batch)["sentence_embedding"][0, -1].item() for batch in (first, other)]
    assert losses[0] == losses[1]


def test_a_normalised_embedding_stands_at_the_size_of_the_tokens(tiny_mlm, tiny_cosine):
    assert decoded(tiny_mlm)[1].scale == 1.0
    model, decoder, _ = decoded(tiny_cosine)
    assert decoder.scale == pytest.approx(32**0.5)
    batch = features(model, ["a wing"], ["wing flow"])
    with torch.no_grad():
        assert torch.isfinite(model(batch)["sentence_embedding"]).all()


def test_a_saved_decoder_is_found_again_and_another_is_refused(tiny_mlm, tmp_path):
    _, decoder, _ = decoded(tiny_mlm, decoder="masked")
    assert decoder.n_layers == len(decoder.layers) == 2
    base = shutil.copytree(tiny_mlm, tmp_path / "base")
    (base / DECODER_FOLDER).mkdir()
    decoder.save(str(base / DECODER_FOLDER))
    _, again, origin = decoded(base, decoder="masked")
    assert origin == "the decoder of the loaded pre-training"
    assert again.state_dict().keys() == decoder.state_dict().keys()
    for name, weight in decoder.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)
    # What belongs to the encoder and the head is saved with them.
    assert all(name.startswith("layers.") for name in again.state_dict())
    with pytest.raises(InputError, match=r"decoder masked.*autoregressive"):
        decoded(base)
    with pytest.raises(InputError, match=r"n_layers 2.*3"):
        decoded(base, decoder="masked", n_layers=3)
    (base / DECODER_FOLDER / "config.json").write_text("{")
    with pytest.raises(InputError, match="complete decoder"):
        decoded(base, decoder="masked")


def test_an_autoregressive_decoder_of_bert_layers_is_refused(tiny_mlm, tmp_path):
    """As it was before the released one was taken: it has no norm after its layers."""
    _, decoder, _ = decoded(tiny_mlm)
    base = shutil.copytree(tiny_mlm, tmp_path / "base")
    (base / DECODER_FOLDER).mkdir()
    decoder.save(str(base / DECODER_FOLDER))
    weights = {name: w for name, w in decoder.state_dict().items() if not name.startswith("norm.")}
    save_file(weights, base / DECODER_FOLDER / "model.safetensors")
    with pytest.raises(InputError, match="complete decoder"):
        decoded(base)


def test_what_is_added_to_the_residual_path_is_drawn_smaller(tiny_mlm):
    _, decoder, _ = decoded(tiny_mlm, n_layers=8)
    for layer in decoder.layers:
        assert layer.linear2.weight.std().item() == pytest.approx(0.02 / 4, rel=0.15)
        assert layer.linear1.weight.std().item() == pytest.approx(0.02, rel=0.15)


def test_an_encoder_that_cannot_be_decoded_is_refused(tiny_mlm, wordpiece, tmp_path):
    from transformers import AlbertConfig, AlbertModel

    model = COCODR(str(tiny_mlm))
    head, _ = build_head(model, str(tiny_mlm), n_head_layers=0)
    model.append(Dense(32, 8))
    with pytest.raises(InputError, match=r"32.*8"):
        build_decoder(model, head, None)
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "embedding_size": 16,
    }
    AlbertModel(AlbertConfig(vocab_size=len(wordpiece), **sizes)).save_pretrained(
        tmp_path / "albert"
    )
    wordpiece.save_pretrained(tmp_path / "albert")
    with pytest.raises(InputError, match=r"albert .*BERT.*qc"):
        build_decoder(COCODR(str(tmp_path / "albert")), head, None)
