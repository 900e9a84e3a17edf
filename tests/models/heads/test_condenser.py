from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.heads.condenser import HEAD_FOLDER, CondenserHead, build_head
from beir_cocodr.models.heads.transformer_layers import TransformerShape


def test_head_layers_compute_what_berts_own_layers_compute(deep_bert):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig.from_pretrained(deep_bert)
    config._attn_implementation = "eager"
    theirs = BertLayer(config).eval()
    head = CondenserHead(TransformerShape(32, 4, 64), config.vocab_size, skip_from=2).eval()
    ours = head.layers[0]
    attention = theirs.attention
    parts = [attention.self.query, attention.self.key, attention.self.value]
    with torch.no_grad():
        ours.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        ours.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        for mine, other in (
            (ours.self_attn.out_proj, attention.output.dense),
            (ours.norm1, attention.output.LayerNorm),
            (ours.linear1, theirs.intermediate.dense),
            (ours.linear2, theirs.output.dense),
            (ours.norm2, theirs.output.LayerNorm),
        ):
            mine.load_state_dict(other.state_dict())
        states = torch.randn(3, 6, 32)
        mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4])
        bias = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        expected = theirs(states, bias)
        found = ours(states, src_key_padding_mask=mask == 0)
    kept = mask.bool()
    torch.testing.assert_close(found[kept], expected[kept], atol=1e-5, rtol=1e-5)


def test_skips_from_half_the_layers_and_sees_the_last_cls(deep_mlm):
    """Only the last layer's [CLS] and the skipped layer's tokens may reach the head's loss."""
    model = COCODR(str(deep_mlm))
    head, _ = build_head(model, str(deep_mlm), late_mlm=False)
    assert head.skip_from == 2
    head.eval()
    hidden = [torch.randn(1, 5, 32, requires_grad=True) for _ in range(5)]
    labels = torch.tensor([[-100, 7, -100, 9, -100]])
    features = {
        "all_layer_embeddings": hidden,
        "attention_mask": torch.ones(1, 5, dtype=torch.long),
        "sentence_embedding": torch.zeros(1, 32),
        "mlm_labels": labels,
    }
    head(features)["sentence_embedding"][:, -1].sum().backward()
    assert hidden[4].grad[:, 0].abs().sum() > 0
    assert hidden[4].grad[:, 1:].abs().sum() == 0
    assert hidden[2].grad[:, 1:].abs().sum() > 0
    assert hidden[2].grad[:, 0].abs().sum() == 0
    assert all(hidden[i].grad is None for i in (0, 1, 3))


@pytest.mark.parametrize("late_mlm", [True, False])
def test_the_loss_is_the_cross_entropy_of_the_masked_tokens(deep_mlm, late_mlm):
    """Each sequence's sum over its masked tokens, once through the head and once from the last
    layer, by hand.
    """
    model = COCODR(str(deep_mlm))
    head, _ = build_head(model, str(deep_mlm), late_mlm=late_mlm)
    head = head.eval()
    hidden = [torch.randn(2, 5, 32) for _ in range(5)]
    labels = torch.tensor([[-100, 7, -100, 9, -100], [-100, -100, 11, -100, -100]])
    mask = torch.tensor([[1] * 5, [1] * 4 + [0]])
    features = {
        "all_layer_embeddings": hidden,
        "attention_mask": mask,
        "sentence_embedding": torch.zeros(2, 32),
        "mlm_labels": labels,
    }
    embedding = model.transformers_model.get_input_embeddings().weight

    def loss(states: torch.Tensor) -> torch.Tensor:
        normal = head.layer_norm(torch.nn.functional.gelu(head.dense(states)))
        shares = (normal @ embedding.T + head.bias).log_softmax(dim=-1)
        found = [
            [-shares[row, place, label] for place, label in enumerate(line) if label >= 0]
            for row, line in enumerate(labels.tolist())
        ]
        return torch.stack([torch.stack(line).sum() for line in found])

    with torch.no_grad():
        states = torch.cat([hidden[4][:, :1], hidden[2][:, 1:]], dim=1)
        for layer in head.layers:
            states = layer(states, src_key_padding_mask=mask == 0)
        expected = loss(states) + (loss(hidden[4]) if late_mlm else 0)
        found = head(features)["sentence_embedding"][:, -1]
    torch.testing.assert_close(found, expected)


def test_without_labels_the_head_changes_nothing(deep_bert):
    model = COCODR(str(deep_bert))
    before = model.encode_document(["a wing in supersonic flow"])
    head, origin = build_head(model, str(deep_bert))
    assert origin == "new layers, tied to the embeddings"
    model.append(head)
    assert (model.encode_document(["a wing in supersonic flow"]) == before).all()


def test_the_output_layer_is_the_input_embedding(deep_mlm):
    model = COCODR(str(deep_mlm))
    head, _ = build_head(model, str(deep_mlm))
    embedding = model.transformers_model.get_input_embeddings().weight
    assert all(parameter is not embedding for parameter in head.parameters())
    assert head._embedding[0].weight is embedding


def test_a_saved_head_is_found_again(deep_mlm, tmp_path):
    model = COCODR(str(deep_mlm))
    head, _ = build_head(model, str(deep_mlm), n_head_layers=1, skip_from=3)
    (tmp_path / HEAD_FOLDER).mkdir()
    head.save(str(tmp_path / HEAD_FOLDER))
    with pytest.raises(InputError, match="n_head_layers 1"):
        build_head(model, str(tmp_path))
    with pytest.raises(InputError, match="skip_from 3"):
        build_head(model, str(tmp_path), n_head_layers=1, skip_from=2)
    again, origin = build_head(model, str(tmp_path), n_head_layers=1)
    assert origin == "the head of the loaded pre-training"
    assert (again.n_head_layers, again.skip_from) == (1, 3)
    for name, weight in head.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("architecture", ["Roberta", "DistilBert", "MPNet"])
def test_language_model_layers_of_other_architectures_are_found(architecture, wordpiece, tmp_path):
    import transformers

    names = (
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
        if architecture == "DistilBert"
        else {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        }
    )
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=len(wordpiece), max_position_embeddings=80, **names
    )
    language_model = getattr(transformers, f"{architecture}ForMaskedLM")(config)
    language_model.save_pretrained(tmp_path)
    wordpiece.save_pretrained(tmp_path)
    model = COCODR(str(tmp_path))
    head, origin = build_head(model, str(tmp_path))
    assert origin == "the checkpoint's language-model layers"
    assert any(
        torch.equal(head.dense.weight, weight) for weight in language_model.state_dict().values()
    )
    assert head.skip_from == 1


def release(folder, config, layers: int = 2, **extra):
    """A head of BERT layers in the file in which Condenser was released."""
    from transformers.models.bert.modeling_bert import BertLayer

    config._attn_implementation = "eager"
    head = torch.nn.ModuleList(BertLayer(config) for _ in range(layers)).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # biases and scales too, so that a swap shows
    torch.save(
        {f"c_head.{k}": v for k, v in head.state_dict().items()} | extra, folder / "model.pt"
    )
    return head


@pytest.fixture
def published(deep_mlm, tmp_path):
    return Path(shutil.copytree(deep_mlm, tmp_path / "condenser"))


def test_a_published_condenser_head_is_loaded(published):
    from transformers import BertConfig

    # coCondenser's file holds a buffer beside its head.
    theirs = release(published, BertConfig.from_pretrained(published), co_target=torch.arange(8))
    model = COCODR(str(published))
    head, origin = build_head(model, str(published))
    assert origin == "the Condenser head in model.pt and the checkpoint's language-model layers"
    head.eval().double()
    theirs.double()
    states = 0.1 * torch.randn(3, 6, 32).double()
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 2 + [0] * 4])
    bias = (1.0 - mask[:, None, None, :].double()) * torch.finfo(torch.float64).min
    found = expected = states
    with torch.no_grad():
        for ours, layer in zip(head.layers, theirs, strict=True):
            found = ours(found, src_key_padding_mask=mask == 0)
            expected = layer(expected, bias)
    kept = mask.bool()
    assert (found[kept] - expected[kept]).abs().max() < 1e-6


def test_a_published_head_of_another_shape_is_refused(published):
    from transformers import BertConfig

    config = BertConfig.from_pretrained(published)
    model = COCODR(str(published))
    release(published, config, layers=3)
    with pytest.raises(InputError, match=r"condenser/model.pt .*3 .*2"):
        build_head(model, str(published))
    release(published, BertConfig(hidden_size=64, num_attention_heads=4, intermediate_size=64))
    with pytest.raises(InputError, match=r"condenser/model.pt .*another model"):
        build_head(model, str(published))
    weights = torch.load(published / "model.pt")
    del weights["c_head.1.output.dense.bias"]
    torch.save(weights, published / "model.pt")
    with pytest.raises(InputError, match=r"complete .*c_head.1.output.dense.bias"):
        build_head(model, str(published))


def test_nothing_but_tensors_is_read_from_a_published_head(published):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (published / "executed",))

    torch.save({"c_head.0.x": Evil()}, published / "model.pt")
    with pytest.raises(InputError, match="read as tensors"):
        build_head(COCODR(str(published)), str(published))
    assert not (published / "executed").exists()
    (published / "model.pt").write_bytes(b"no archive at all")
    with pytest.raises(InputError, match="read as tensors"):
        build_head(COCODR(str(published)), str(published))
    torch.save(
        {"weights": torch.zeros(2)}, published / "model.pt"
    )  # somebody else's file of this name
    assert (
        build_head(COCODR(str(published)), str(published))[1]
        == "the checkpoint's language-model layers"
    )


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads", "vocab_size"])
def test_the_saved_head_of_another_model_is_refused(deep_mlm, tmp_path, name):
    model = COCODR(str(deep_mlm))
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "dropout": 0.1,
        "layer_norm_eps": 1e-12,
        "vocab_size": model.transformers_model.config.vocab_size,
        "skip_from": 2,
    }
    (tmp_path / HEAD_FOLDER).mkdir()
    CondenserHead.of_settings(sizes | {name: sizes[name] * 2}).save(str(tmp_path / HEAD_FOLDER))
    with pytest.raises(InputError, match=rf"{HEAD_FOLDER} .*another model.*{name}"):
        build_head(model, str(tmp_path))
    (tmp_path / HEAD_FOLDER / "config.json").unlink()
    with pytest.raises(InputError, match=rf"{HEAD_FOLDER} .*complete"):
        build_head(model, str(tmp_path))


def test_the_output_layers_of_masked_language_modelling_alone_go_on(deep_mlm, tmp_path):
    model = COCODR(str(deep_mlm))
    head, _ = build_head(model, str(deep_mlm), n_head_layers=0)
    torch.nn.init.normal_(head.dense.weight)
    (tmp_path / HEAD_FOLDER).mkdir()
    head.save(str(tmp_path / HEAD_FOLDER))
    again, _ = build_head(model, str(tmp_path))
    assert len(again.layers) == 2
    assert torch.equal(again.dense.weight, head.dense.weight)


def test_a_layer_that_the_encoder_lacks_is_refused(deep_mlm):
    with pytest.raises(InputError, match="skip_from 9"):
        build_head(COCODR(str(deep_mlm)), str(deep_mlm), skip_from=9)
