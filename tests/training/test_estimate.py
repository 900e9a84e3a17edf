"""What an adaptation is expected to cost."""

from __future__ import annotations

import pytest

from beir_cocodr import COCODR, FuseOptions, load_collection
from beir_cocodr.training import estimate as module
from beir_cocodr.training.estimate import JUDGEMENT, PROBE, estimate, probe
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions


@pytest.fixture
def model(tiny_bert):
    return COCODR(str(tiny_bert))


@pytest.fixture
def documents(beir_folder):
    return load_collection(str(beir_folder)).documents


def test_the_probe_counts_documents_over_the_clock(model, documents, monkeypatch):
    ticks = iter([100.0, 104.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(ticks))
    assert probe(model, documents) == PROBE / 4


def test_time_is_texts_over_the_rate(model, documents, monkeypatch):
    """In closed form: 3 x steps x batch x texts over the rate, and the corpus for every search."""
    monkeypatch.setattr(module, "probe", lambda model, documents: 10.0)
    corpus = len(documents) / 10.0
    stages = {
        "coco": PretrainOptions(max_steps=5, batch_size=4),
        "epoch": PretrainOptions(epochs=2, batch_size=4),
        "source": FinetuneOptions(max_steps=5, batch_size=4, negatives=3),
        "episodes": FinetuneOptions(max_steps=5, batch_size=4, negatives=1, episodes=2),
        "distill": DistillOptions(max_steps=5, batch_size=4, positives=1, m_bm25=1, m_hard=1, refresh_steps=2),
        "fuse": FuseOptions(sample=16),
    }
    cost = estimate(model, documents, stages, dict.fromkeys(stages, 40), encoded=6)
    assert cost.seconds == pytest.approx(
        {
            "coco": 3 * 5 * 4 * 2 / 10,
            "epoch": 3 * 20 * 4 * 2 / 10,
            "source": 3 * 5 * 4 * 5 / 10,
            "episodes": 3 * 15 * 4 * 3 / 10 + 2 * corpus,
            "distill": 3 * 5 * 4 * 4 / 10 + 3 * corpus,
            "fuse": 1.6,
            JUDGEMENT: 6 * corpus,
        }
    )
    weights = sum(weight.nbytes for weight in model.parameters())
    assert cost.disk_bytes == 14 * weights
    assert cost.memory_bytes > 4 * weights
    for there in ("guess", "about", "disk", "memory", "coco 12 seconds", "10 documents a second"):
        assert there in str(cost)
