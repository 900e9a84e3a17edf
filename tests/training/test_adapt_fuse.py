"""The stage fuse: the base and the end of every chain are fused with BM25, and BM25 counts once."""

from __future__ import annotations

import json

import pytest

from beir_cocodr import MRL, HybridEncoder, fuse, load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder
from beir_cocodr.training import adapt as adapting
from beir_cocodr.training.adapt import AdaptationPlan, AdaptOptions, adapt
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.presets import adapt_options, chosen_stages

pytestmark = pytest.mark.usefixtures("few_resamples")

COCO = PretrainOptions(max_steps=2, batch_size=4, learning_rate=1e-3, span_tokens=12)
FUSED = FuseOptions(bytes_per_document=2 * (32 + 24))


def test_fusing_comes_last_in_every_chain(tmp_path):
    stages = chosen_stages(["fuse", "finetune", "coco"])
    settings = {stage: adapt_options(stage) for stage in stages}
    target = load_collection({"d": "a text"}, labels="none")
    plan = AdaptationPlan(target, None, settings, AdaptOptions(), tmp_path)
    trained = [["finetune"], ["coco"], ["coco", "finetune"]]
    assert plan.chains() == [*trained, ["fuse"], *([*chain, "fuse"] for chain in trained)]


def test_options_of_training_are_not_its_own():
    assert adapt_options("fuse", None, max_steps=3, seed=7, bm25_weight=1.0) == FuseOptions(
        seed=7, bm25_weight=1.0
    )


def test_with_labels(beir_folder, tiny_mlm, tmp_path, monkeypatch):
    """Each plain encoder encodes the corpus once: what is fused of it, and judged fused, takes its
    vectors.
    """
    options = {"coco": COCO, "fuse": FUSED}
    encoded, forward = [], CorpusEncoder._forward

    def counted(self, rows):
        encoded.append(len(rows))
        return forward(self, rows)

    monkeypatch.setattr(CorpusEncoder, "_forward", counted)
    record = adapt(
        str(tiny_mlm),
        str(beir_folder),
        output=tmp_path / "o",
        options=AdaptOptions(stages=["coco", "fuse"], stage_options=options),
    )
    encoders = {"base": 4, "base + COCO": 4, "base + fuse": 2, "base + COCO + fuse": 2}
    uses = ("", ", feedback", ", fused", ", RM3")
    assert sum(encoded) == 2 * len(load_collection(beir_folder).documents)
    assert list(record.results.models) == [
        "bm25",
        *(a + mode for a, n in encoders.items() for mode in uses[:n]),
    ]
    assert isinstance(HybridEncoder(tmp_path / "o" / "models" / "coco+fuse"), HybridEncoder)
    saved = json.loads((tmp_path / "o" / "models" / "coco+fuse" / "training.json").read_text())
    assert (saved["stage"], saved["parent"]["stage"]) == ("fuse", "coco")
    again = adapt(
        str(tiny_mlm),
        str(beir_folder),
        output=tmp_path / "o",
        resume=True,
        options=AdaptOptions(stages=["coco", "fuse"], stage_options=options),
    )
    assert again.models == record.models


def test_without_labels(beir_folder, tiny_mlm, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((beir_folder / "corpus.jsonl").read_bytes())
    record = adapt(
        str(tiny_mlm),
        str(corpus),
        output=tmp_path / "o",
        options=AdaptOptions(stages=["fuse"], samples=12, stage_options={"fuse": FUSED}),
    )
    assert "base + fuse" in record.candidates
    assert "base + fuse, fused" not in record.candidates
    assert set(record.recommendation.verdicts) == {"base + fuse"}


@pytest.mark.parametrize(
    ("stages", "start", "message"),
    [
        (["coco"], "hybrid", "already includes BM25.* name the encoder that it was fused from"),
        (["fuse"], "hybrid", "already includes BM25"),
        (["coco", "fuse"], "mrl", "fuse takes a plain dense encoder"),
    ],
)
def test_a_base_that_cannot_be_fused_is_refused_before_any_training(
    stages, start, message, beir_folder, tiny_mlm, tmp_path, monkeypatch
):
    monkeypatch.setattr(adapting, "train_models", lambda *_: pytest.fail("it trains"))
    base = tmp_path / "base"
    if start == "hybrid":
        fuse(str(tiny_mlm), str(beir_folder), output=base, options=FUSED)
    else:
        MRL(str(tiny_mlm), k=4).save_pretrained(str(base))
    of_stages = {stage: {"coco": COCO, "fuse": FUSED}[stage] for stage in stages}
    options = AdaptOptions(stages=stages, stage_options=of_stages)
    with pytest.raises(InputError, match=message):
        adapt(str(base), str(beir_folder), output=tmp_path / "o", options=options)
    assert not list((tmp_path / "o").iterdir())
