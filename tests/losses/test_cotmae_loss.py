"""CoT-MAE's loss against one written from transformers' own layers, sequence by sequence."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import sentences
from torch import nn

from beir_cocodr.data.text import WholeWordMasker
from beir_cocodr.losses.cotmae import CoTMAELoss, accumulated, next_token_labels
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.heads.condenser import build_head
from beir_cocodr.models.heads.cotmae_decoder import DECODERS, build_decoder

ROWS = 7


def decoded(folder, kind):
    model = COCODR(str(folder))
    head, _ = build_head(model, str(folder), n_head_layers=0)
    torch.manual_seed(3)
    decoder, _ = build_decoder(model, head, str(folder), kind)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases and scales too, so that a swap shows
    model.append(head)
    model.append(decoder)
    model.transformers_model.config.output_hidden_states = True
    return model.eval()  # dropout off


def columns(model, kind):
    """Passages of different lengths, 30% masked, and contexts, 45% masked for the masked
    decoder.
    """
    rng = np.random.default_rng(0)
    passages = [sentences(rng, i % 4, 1 + i % 3) for i in range(ROWS)]
    contexts = [" ".join(text.split()[: 2 + i]) for i, text in enumerate(passages)]
    made = []
    shares = (0.3, 0.45 if kind == "masked" else None)
    for texts, task, share in zip((passages, contexts), ("document", "query"), shares, strict=True):
        features = model.preprocess(texts, task=task)
        if share is not None:
            masker = WholeWordMasker(model.tokenizer, share)
            pairs = [masker(ids.numpy(), rng) for ids in features["input_ids"]]
            features["input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in pairs]))
            features["mlm_labels"] = torch.from_numpy(np.stack([labels for _, labels in pairs]))
        made.append(features)
    return made


def bert_layers(decoder, config):
    """transformers' BertLayers with the weights of our decoder."""
    from transformers.models.bert.modeling_bert import BertLayer

    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    layers = []
    for ours in decoder.layers:
        theirs = BertLayer(config).eval()
        attention = theirs.attention
        parts = [attention.self.query, attention.self.key, attention.self.value]
        with torch.no_grad():
            for part, weight, bias in zip(
                parts,
                ours.self_attn.in_proj_weight.chunk(3),
                ours.self_attn.in_proj_bias.chunk(3),
                strict=True,
            ):
                part.weight.copy_(weight)
                part.bias.copy_(bias)
            for mine, other in (
                (ours.self_attn.out_proj, attention.output.dense),
                (ours.norm1, attention.output.LayerNorm),
                (ours.linear1, theirs.intermediate.dense),
                (ours.linear2, theirs.output.dense),
                (ours.norm2, theirs.output.LayerNorm),
            ):
                other.load_state_dict(mine.state_dict())
        layers.append(theirs)
    return layers


def gpt2_layers(decoder, config):
    """transformers' GPT2Blocks with the weights of our decoder, and its last norm, as in the
    released decoder.
    """
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    sizes = {
        "n_embd": config.hidden_size,
        "n_head": config.num_attention_heads,
        "n_inner": config.intermediate_size,
    }
    config = GPT2Config(
        **sizes, activation_function="gelu", layer_norm_epsilon=config.layer_norm_eps
    )
    config._attn_implementation = "eager"
    layers = []
    for number, ours in enumerate(decoder.layers):
        theirs = GPT2Block(config, layer_idx=number).eval()
        for norm, other in ((ours.norm1, theirs.ln_1), (ours.norm2, theirs.ln_2)):
            other.load_state_dict(norm.state_dict())
        linear = {  # GPT-2's weights are (in, out)
            theirs.attn.c_attn: (ours.self_attn.in_proj_weight, ours.self_attn.in_proj_bias),
            theirs.attn.c_proj: (ours.self_attn.out_proj.weight, ours.self_attn.out_proj.bias),
            theirs.mlp.c_fc: (ours.linear1.weight, ours.linear1.bias),
            theirs.mlp.c_proj: (ours.linear2.weight, ours.linear2.bias),
        }
        for other, (weight, bias) in linear.items():
            other.load_state_dict({"weight": weight.T, "bias": bias})
        layers.append(lambda states, mask, block=theirs: block(states, attention_mask=mask))
    return [*layers, lambda states, mask: F.layer_norm(states, *norm_of(decoder.norm))]


def norm_of(norm):
    return norm.normalized_shape, norm.weight.detach().clone(), norm.bias.detach().clone(), norm.eps


def reference(folder, model, kind, passages, contexts):
    """Encoder and decoder losses, (masked tokens of all passages) and (labels of all contexts)
    averaged.
    """
    from transformers import BertForMaskedLM

    theirs = BertForMaskedLM.from_pretrained(folder).eval()
    layers = (gpt2_layers if kind == "autoregressive" else bert_layers)(model[-1], theirs.config)
    encoder, decoder = [], []
    for i in range(ROWS):
        length = int(passages["attention_mask"][i].sum())
        ids, labels = passages["input_ids"][i, :length], passages["mlm_labels"][i, :length]
        states = theirs.bert(input_ids=ids[None]).last_hidden_state
        encoder.append(
            F.cross_entropy(theirs.cls(states)[0], labels, reduction="none")[labels != -100]
        )
        length = int(contexts["attention_mask"][i].sum())
        ids = contexts["input_ids"][i, :length]
        embedded = theirs.bert.embeddings(input_ids=ids[None])
        hidden = torch.cat([states[:, :1], embedded[:, 1:]], dim=1)
        mask = torch.zeros(length, length)
        if kind == "autoregressive":
            for row in range(length):
                for column in range(length):
                    if column > row or (column != 0 and column < row - 2):
                        mask[row, column] = torch.finfo(torch.float32).min
        for layer in layers:
            hidden = layer(hidden, mask[None, None])
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        logits = theirs.cls(hidden)[0]
        if kind == "autoregressive":
            decoder.append(F.cross_entropy(logits[:-1], ids[1:], reduction="none"))
        else:
            labels = contexts["mlm_labels"][i, :length]
            decoder.append(F.cross_entropy(logits, labels, reduction="none")[labels != -100])
    return torch.cat(encoder).mean(), torch.cat(decoder).mean(), theirs


@pytest.mark.parametrize("weight", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("kind", DECODERS)
def test_equals_the_reference_from_transformers_layers(kind, weight, tiny_mlm):
    model = decoded(tiny_mlm, kind)
    passages, contexts = columns(model, kind)
    encoder, decoder, theirs = reference(tiny_mlm, model, kind, passages, contexts)
    expected = weight * encoder + decoder
    loss = CoTMAELoss(model, mlm_weight=weight)([dict(passages), dict(contexts)])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-5)
    loss.backward()
    expected.backward()
    backbone = dict(theirs.bert.named_parameters())
    for name, parameter in model.transformers_model.named_parameters():
        if parameter.grad is None:
            assert "pooler" in name
        else:
            torch.testing.assert_close(
                parameter.grad, backbone[name].grad, atol=1e-4, rtol=1e-4, msg=name
            )


def gradients(loss, features):
    loss.model.zero_grad()
    value = loss(copy.deepcopy(features))
    (3 * value).backward()
    found = {
        name: p.grad.clone() for name, p in loss.model.named_parameters() if p.grad is not None
    }
    return value.item(), found


@pytest.mark.parametrize("size", [1, 3, 6])
@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("folder", ["tiny_mlm", "tiny_cosine"])
def test_accumulated_and_whole_gradients_agree(request, folder, kind, size):
    model = decoded(request.getfixturevalue(folder), kind)
    features = columns(model, kind)
    value, whole = gradients(CoTMAELoss(model), features)
    parts_value, parts = gradients(CoTMAELoss(model, mini_batch_size=size), features)
    assert parts_value == pytest.approx(value, abs=1e-5)
    assert parts.keys() == whole.keys()
    assert max(float((parts[name] - whole[name]).abs().max()) for name in whole) < 2e-5


def test_a_batch_of_parts_is_embedded_once(tiny_mlm):
    model = decoded(tiny_mlm, "autoregressive")
    sizes = []
    model[0].register_forward_hook(
        lambda module, inputs, output: sizes.append(len(output["input_ids"]))
    )
    CoTMAELoss(model, mini_batch_size=3)(columns(model, "autoregressive")).backward()
    assert sizes == [3, 3, 1]


def test_without_gradients_there_is_a_value_alone(tiny_mlm):
    model = decoded(tiny_mlm, "masked")
    features = columns(model, "masked")
    with torch.no_grad():
        value = CoTMAELoss(model, mini_batch_size=2)(copy.deepcopy(features))
    assert not value.requires_grad
    assert value.item() == pytest.approx(CoTMAELoss(model)(features).item(), abs=1e-5)


def test_next_tokens_are_labelled_up_to_the_last():
    ids = torch.tensor([[2, 7, 8, 3, 0], [2, 9, 3, 0, 0], [2, 5, 6, 7, 3]])
    labels = next_token_labels(ids, (ids != 0).long())
    assert labels.tolist() == [[7, 8, 3, -100, -100], [9, 3, -100, -100, -100], [5, 6, 7, 3, -100]]


def test_accumulation_is_the_gradient_of_the_sum():
    """Also where a parameter acts in one part only, or two parameters have one gradient, or
    none.
    """
    data = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    both = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    once, never = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
    parameters = [*both, once, never]

    def loss(rows: slice) -> torch.Tensor:
        value = (data[rows] * (both[0] + both[1])).pow(2).sum()
        return value * once if rows.start == 0 else value

    value = accumulated(loss, [slice(0, 2), slice(2, 4), slice(4, 6)], parameters)
    (0.5 * value).backward()
    found = [p.grad for p in parameters]
    total = 0.5 * sum(loss(slice(*rows)) for rows in ((0, 2), (2, 4), (4, 6)))
    expected = torch.autograd.grad(total, parameters, allow_unused=True)
    assert 0.5 * value.item() == pytest.approx(total.item())
    for mine, theirs in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(mine, theirs)
    assert found[3] is None
    assert expected[3] is None


def test_two_columns_are_needed(tiny_mlm):
    model = decoded(tiny_mlm, "masked")
    with pytest.raises(ValueError, match="two columns"):
        CoTMAELoss(model)(columns(model, "masked")[:1])
