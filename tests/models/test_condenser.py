from __future__ import annotations

import pytest
import torch

from beir_cocodr.errors import InputError
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.condenser import HEAD_FOLDER, CondenserHead, build_head


def test_head_layers_compute_what_berts_own_layers_compute(tiny_bert):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig.from_pretrained(tiny_bert)
    config._attn_implementation = "eager"
    theirs = BertLayer(config).eval()
    head = CondenserHead(32, 4, 64, config.vocab_size, skip_from=2).eval()
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


def test_skips_from_half_the_layers_and_sees_the_last_cls(tiny_mlm):
    """Only the last layer's [CLS] and the skipped layer's tokens may reach the head's loss."""
    model = COCODR(str(tiny_mlm))
    head, _ = build_head(model, str(tiny_mlm), late_mlm=False)
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


def test_without_labels_the_head_changes_nothing(tiny_bert):
    model = COCODR(str(tiny_bert))
    before = model.encode_document(["a wing in supersonic flow"])
    head, origin = build_head(model, str(tiny_bert))
    assert origin == "new layers, tied to the embeddings"
    model.append(head)
    assert (model.encode_document(["a wing in supersonic flow"]) == before).all()


def test_the_output_layer_is_the_input_embedding(tiny_mlm):
    model = COCODR(str(tiny_mlm))
    head, _ = build_head(model, str(tiny_mlm))
    embedding = model.transformers_model.get_input_embeddings().weight
    assert all(parameter is not embedding for parameter in head.parameters())
    assert head._embedding[0].weight is embedding


def test_a_saved_head_is_found_again(tiny_mlm, tmp_path):
    model = COCODR(str(tiny_mlm))
    head, _ = build_head(model, str(tiny_mlm), n_head_layers=1, skip_from=3)
    (tmp_path / HEAD_FOLDER).mkdir()
    head.save(str(tmp_path / HEAD_FOLDER))
    with pytest.raises(InputError, match="n_head_layers 1"):
        build_head(model, str(tmp_path))
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
        else {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
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
    assert any(torch.equal(head.dense.weight, weight) for weight in language_model.state_dict().values())
    assert head.skip_from == 1
