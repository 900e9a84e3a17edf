from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import sentences
from sentence_transformers.sentence_transformer import losses

from beir_cocodr.errors import InputError
from beir_cocodr.losses.tsdae import TSDAELoss
from beir_cocodr.models.cocodr import COCODR


def batch(model: COCODR, rows: int = 6) -> list[dict[str, torch.Tensor]]:
    rng = np.random.default_rng(0)
    texts = [sentences(rng, i % 4, 1 + i % 3, 6) for i in range(rows)]
    return [
        model.preprocess([" ".join(text.split()[::2]) for text in texts]),
        model.preprocess(texts),
    ]


@pytest.mark.parametrize("mini_batch_size", [None, 1, 4])
def test_in_parts_is_the_hosts_loss_on_the_whole(tiny_mlm, mini_batch_size):
    found = []
    for build in (losses.DenoisingAutoEncoderLoss, lambda model: TSDAELoss(model, mini_batch_size)):
        torch.manual_seed(3)
        model = COCODR(str(tiny_mlm))
        loss = build(model).eval()
        value = loss(batch(model), None)
        value.backward()
        found.append(
            (value, {name: p.grad for name, p in loss.named_parameters() if p.grad is not None})
        )
    (host, expected), (ours, gradients) = found
    torch.testing.assert_close(ours, host, atol=1e-6, rtol=1e-6)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-5, msg=name)


def test_decodes_with_dropout(tiny_mlm):
    model = COCODR(str(tiny_mlm)).eval()
    loss = TSDAELoss(model)
    first, second = (loss(batch(model), None).item() for _ in range(2))
    assert first != second


def test_keeps_what_the_encoder_does_not_share(two_layer_mlm):
    model = COCODR(str(two_layer_mlm))
    loss = TSDAELoss(model)
    state = loss.state_dict()
    assert {name.split(".")[0] for name in state if "crossattention" not in name} == {"cls"}
    assert (
        sum("crossattention" in name for name in state) == 20
    )  # 2 layers of 5 modules of 2 tensors
    # Every other parameter of the decoder is one of the encoder's, so that both together are all
    # there is.
    encoder = {id(p) for p in model.parameters()}
    shared = [p for name, p in loss.decoder.named_parameters() if name not in state]
    assert shared
    assert all(id(p) in encoder for p in shared)
    torch.manual_seed(9)
    again = TSDAELoss(COCODR(str(two_layer_mlm)))
    name = next(name for name in state if name.endswith("query.weight"))
    assert not torch.equal(again.state_dict()[name], state[name])
    again.load_state_dict(state, strict=False)
    assert all(torch.equal(weight, state[name]) for name, weight in again.state_dict().items())
    with pytest.raises(InputError, match="another decoder"):
        again.load_state_dict({})
