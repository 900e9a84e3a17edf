"""Two real processes make the gradient that one process makes of the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from beir_cocodr.data.text import IGNORED
from beir_cocodr.losses.coco import COCOLoss, infonce
from beir_cocodr.losses.tsdae import TSDAELoss
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.heads.condenser import build_head
from beir_cocodr.training.trainer import BROADCAST_BUFFERS

RANKS, ROWS = 2, 8
CASES = {
    f"{kind}{' cached' * cached}": (kind, 3 if cached else None)
    for kind in ("coco", "coco with negatives", "condenser", "infonce", "tsdae")
    for cached in (False, True)
}


def build(kind: str, folder: str, mini_batch_size: int | None):
    torch.manual_seed(0)
    model = COCODR(folder)
    if kind == "infonce":
        loss = infonce(model, mini_batch_size=mini_batch_size)
    elif kind == "tsdae":
        loss = TSDAELoss(model, mini_batch_size)
    else:
        head, _ = build_head(model, folder)
        model.append(head)
        model.transformers_model.config.output_hidden_states = True
        weight = 0.0 if kind == "condenser" else 1.0
        loss = COCOLoss(model, 0.5, mini_batch_size, contrastive_weight=weight)
    loss.eval()  # dropout off
    return model, loss


def batch(kind: str, folder: str, rows: slice) -> list[dict[str, torch.Tensor]]:
    """Some rows of the global batch; the second half has far longer texts, so more masked
    tokens.
    """
    from test_coco import columns

    model = COCODR(folder)
    number = {"condenser": 1, "coco with negatives": 4}.get(kind, 2)
    made = columns(model, kind in ("coco", "coco with negatives", "condenser"), ROWS, number)
    for column in made:
        if "mlm_labels" in column:
            column["mlm_labels"][: ROWS // 2, 10:] = IGNORED
        if kind == "tsdae":
            column["input_ids"][: ROWS // 2, 8:] = 0
            column["attention_mask"][: ROWS // 2, 8:] = 0
    return [{k: v[rows] if torch.is_tensor(v) else v for k, v in column.items()} for column in made]


def gradients(loss: torch.nn.Module, features: list[dict[str, torch.Tensor]]):
    value = loss(features, None)
    value.backward()
    names = ((name.replace("model.module.", "model."), p) for name, p in loss.named_parameters())
    return value.item(), {name: p.grad.clone() for name, p in names if p.grad is not None}


def work(rank: int, folder: str, output: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{output}/meet", rank=rank, world_size=RANKS
    )
    found = {}
    for name, (kind, mini_batch_size) in CASES.items():
        model, loss = build(kind, folder, mini_batch_size)
        wrapped = DistributedDataParallel(
            model, find_unused_parameters=True, broadcast_buffers=BROADCAST_BUFFERS
        )
        for holder in (loss, getattr(loss, "loss", None)):
            if hasattr(holder, "model"):
                holder.model = wrapped  # what the host's trainer does
        part = ROWS // RANKS
        found[name] = gradients(loss, batch(kind, folder, slice(rank * part, (rank + 1) * part)))
    torch.save(found, f"{output}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tiny_mlm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.start_processes(
        work, (str(tiny_mlm), str(folder)), nprocs=RANKS, start_method="forkserver"
    )
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_make_the_gradient_of_one(ranks, tiny_mlm, case):
    kind, mini_batch_size = CASES[case]
    _, loss = build(kind, str(tiny_mlm), mini_batch_size)
    value, whole = gradients(loss, batch(kind, str(tiny_mlm), slice(None)))
    assert sum(found[case][0] for found in ranks) / RANKS == pytest.approx(value, abs=1e-5)
    for found in ranks:
        ours = found[case][1]
        assert max(float(g.abs().max()) for g in whole.values()) > 1e-3
        for name, gradient in whole.items():
            within = 1e-5 * max(1.0, float(gradient.norm()))  # a scale of 20 makes both larger
            torch.testing.assert_close(
                ours[name], gradient, atol=within, rtol=1e-5, msg=f"{case}: {name}"
            )


def test_the_slices_hold_different_numbers_of_masked_tokens(tiny_mlm):
    """Else a wrong normalisation over ranks would pass."""
    masked = [
        sum(int((c["mlm_labels"] != IGNORED).sum()) for c in batch("coco", str(tiny_mlm), rows))
        for rows in (slice(0, 4), slice(4, 8))
    ]
    assert masked[1] > 1.2 * masked[0]
