"""Texts of many megabytes are cut before they are tokenised."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import cut_text
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import FinetuneOptions


def test_only_a_text_that_is_far_too_long_is_cut():
    text = "wing flow " * 1_000
    assert cut_text(text, 8) == (text, False)
    assert cut_text(text * 2, 8) == (text, False)  # enough words are left
    assert cut_text(" " * 20_000 + "wing", 8) == (" " * 10_000, True)
    assert cut_text("翼" * 20_000, 128) == ("翼" * 10_000, False)
    assert len(cut_text(text * 10, 512)[0]) == 64 * 512


def test_a_text_of_megabytes_has_the_vector_of_its_beginning_and_takes_no_minutes(
    tiny_bert, caplog
):
    model = load_encoder(tiny_bert, EncoderOptions(pooling="cls"))
    text = "wing flow shock " * 500_000  # 8 MB: tokenised whole, it takes half a minute
    begin = time.process_time()
    with caplog.at_level(logging.WARNING):
        long, short = model.encode_query([text, text[:5_000]])
        assert model.truncated_share([text, "wing"], "query") == 0.5
    assert time.process_time() - begin < 10
    np.testing.assert_allclose(long, short, atol=1e-6)
    assert (model.texts_cut, caplog.text) == (0, "")  # nothing is lost
    with caplog.at_level(logging.WARNING):
        model.encode_query([" " * 1_000_000 + "wing", " " * 2_000_000 + "flow"])
        model.encode_query([" " * 3_000_000])
    assert model.texts_cut == 3
    assert caplog.text.count("is cut to 10000 characters") == 1


def write_with_spaces(folder: Path) -> Path:
    """Four documents and queries; two documents and a query have many spaces among their words."""
    (folder / "qrels").mkdir(parents=True)
    words = ["wing", "flow", "drag", "lift"]
    documents = [word + " " * 40_000 * (i < 2) + " heat plate" for i, word in enumerate(words)]
    for name, texts in (
        ("corpus", documents),
        ("queries", ["wing" + " " * 40_000 + "heat", *words[1:]]),
    ):
        lines = [json.dumps({"_id": f"{name[0]}{i}", "text": text}) for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for split in ("train", "test"):
        judged = "".join(f"q{i}\tc{i}\t1\n" for i in range(4))
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return folder


def test_records_count_the_texts_that_lost_words(tiny_bert, tmp_path):
    data = str(write_with_spaces(tmp_path / "data"))
    found = evaluate(
        {"plain": str(tiny_bert), "fused": f"hybrid:{tiny_bert}"}, data, output=tmp_path / "o"
    )
    assert found.models["plain"].retrieval["texts_cut"] == 3
    written = json.loads((tmp_path / "o" / "results.json").read_text())
    assert written["models"]["plain"]["retrieval"]["texts_cut"] == 3
    options = FinetuneOptions(max_steps=1, batch_size=4, negatives=0)
    finetune(str(tiny_bert), data, output=tmp_path / "m", options=options)
    assert json.loads((tmp_path / "m" / "training.json").read_text())["texts_cut"] == 3


@pytest.mark.parametrize("in_memory", [0, None])
def test_a_corpus_counts_each_text_once_wherever_its_vectors_go(tiny_bert, tmp_path, in_memory):
    documents = load_collection(str(write_with_spaces(tmp_path / "data"))).documents
    dense = Dense(load_encoder(tiny_bert), documents, tmp_path / "store")
    if in_memory is not None:
        dense.in_memory = in_memory
    assert dense.embeddings.texts_cut == 2
    assert (tmp_path / "store").is_dir() == (in_memory == 0)
