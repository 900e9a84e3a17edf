"""The data that pre-training on passages and queries sees in an epoch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from contexts import DOCUMENTS, KINDS, QUERIES, passages_of, settings, views, write_context

from beir_cocodr import COCODR
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import IGNORED
from beir_cocodr.errors import InputError
from beir_cocodr.training.batches import WholeEpochs
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining.document_views import DocumentViews
from beir_cocodr.training.pretraining.views import content_tokens


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> str:
    return str(write_context(tmp_path_factory.mktemp("context") / "queries"))


def test_every_passage_meets_its_own_queries(context, tiny_mlm):
    found = views(context, tiny_mlm, settings("qc"))
    assert len(found) == sum(i % 3 + 1 for i in range(DOCUMENTS)) == 48
    texts = {
        d: document["text"]
        for d, document in load_collection(context, labels="none").documents.items()
    }
    seen = [set() for _ in range(len(found))]
    for epoch in range(25):
        found.clock.epoch = epoch
        for row in range(len(found)):
            passage, query = found.texts(row)
            *words, document, number = query.split()
            assert found.names([row]) == [f"d{document} passage {number}"]
            start, end = passages_of(texts[f"d{document}"])[int(number)]
            assert passage == texts[f"d{document}"][start:end]
            assert set(words) <= set(passage.split())
            seen[row].add(query)
    # With 25 draws of 4 queries a passage misses one of them with a chance of 0.3%.
    assert sum(len(queries) == QUERIES for queries in seen) > 44
    assert found.counts() == {
        "passages": 48,
        "documents": DOCUMENTS,
        "queries": 48 * QUERIES,
        "truncated": {"passage": 0.0, "context": 0.0},
    }


def test_the_draw_depends_on_seed_epoch_and_row_alone(context, tiny_mlm):
    for mix in (0.0, 0.5):
        found = views(context, tiny_mlm, settings("qc", mix=mix))
        rows = found.dataset()
        batch, alone = rows[3:9], rows[5:6]
        assert list(batch) == ["passage", "context", "label"]
        assert all(batch[column][2] == alone[column][0] for column in found.columns)
        assert batch["label"] == list(range(3, 9))
        found.clock.epoch = 1
        assert rows[3:9] != batch
        found.clock.epoch = 0
        assert rows[3:9] == batch
        other = views(context, tiny_mlm, settings("qc", mix=mix, seed=7)).dataset()
        assert other[3:9] != batch


def test_passages_that_are_cut_are_counted_and_said(context, tiny_mlm, caplog):
    assert views(context, tiny_mlm, settings("qc")).counts()["truncated"]["passage"] == 0
    assert "are cut" not in caplog.text
    found = views(context, tiny_mlm, settings("qc", max_length=20))
    passages = [found.texts(row)[0] for row in range(48)]
    cut = np.mean([len(found.model.tokenizer(text)["input_ids"]) > 20 for text in passages])
    assert cut > 0.05
    assert found.counts()["truncated"]["passage"] == pytest.approx(cut)
    assert f"{100 * cut:.0f}% of the passages are cut at 20 tokens: raise max_length" in caplog.text


def test_at_most_so_many_queries_of_a_passage_are_used(context, tiny_mlm):
    found = views(context, tiny_mlm, settings("qc", per_passage=1))
    assert found.counts()["queries"] == 48
    first = [found.texts(row)[1] for row in range(48)]
    found.clock.epoch = 1
    assert [found.texts(row)[1] for row in range(48)] == first
    lines = [
        json.loads(line) for line in (Path(context) / "queries.jsonl").read_text().splitlines()
    ]
    assert first == [line["text"] for line in lines[::QUERIES]]


def test_mixed_contexts_are_other_passages_of_the_document(context, tiny_mlm):
    found = views(context, tiny_mlm, settings("qc", mix=0.5))
    texts = {
        d: document["text"]
        for d, document in load_collection(context, labels="none").documents.items()
    }
    kinds: Counter[str] = Counter()
    for epoch in range(20):
        found.clock.epoch = epoch
        for row in range(len(found)):
            passage, other = found.texts(row)
            id, number = found.names([row])[0].split(" passage ")
            text = texts[id]
            own = text[slice(*passages_of(text)[int(number)])]
            passages = [text[start:end] for start, end in passages_of(text)]
            if other.split()[-2:] == [id[1:], number]:
                kinds["query"] += 1
                assert passage == own
            elif len(passages) > 1:
                assert passage == own
                assert abs(passages.index(other) - int(number)) == 1
                kinds["passage"] += 1
            else:  # alone in its document
                assert passage != other
                assert passage in own
                assert other in own
                kinds["span"] += 1
    # 960 fair coins: the share lies within five deviations of one half.
    assert kinds["query"] == pytest.approx(480, abs=5 * 0.5 * 960**0.5)
    assert kinds["passage"] > 300
    assert kinds["span"] > 30
    counts = found.counts()
    assert (counts["passages_alone"], counts["passages_never_mixed"]) == (8, 0)
    whole = views(context, tiny_mlm, settings("qc", mix=1.0, span_tokens=38))
    assert whole.counts()["passages_never_mixed"] == 8
    assert sum(whole.texts(row)[1][-1].isdigit() for row in range(48)) == 8


def test_no_batch_has_two_passages_of_a_document_or_one_query_twice(context, tiny_mlm):
    assert views(context, tiny_mlm, settings("masked")).batch_keys is None
    found = views(context, tiny_mlm, settings("qc", mix=0.3))
    sampler = WholeEpochs(
        found.batch_keys, batch_size=16, drop_last=True, generator=torch.Generator(), seed=0
    )
    batches = 0
    for epoch in range(3):
        found.clock.epoch = epoch
        sampler.set_epoch(epoch)
        for batch in sampler:
            batches += 1
            documents = [found.names([row])[0].split()[0] for row in batch]
            texts = [text for row in batch for text in found.texts(row)]
            assert len(set(documents)) == len(batch) == 16
            assert len(set(texts)) == 32
    assert 6 <= batches <= 9  # the host ends an epoch where the rest does not fill a batch
    with pytest.raises(InputError, match=r"two passages .*24 documents"):
        views(context, tiny_mlm, settings("qc", batch_size=25))
    assert len(views(context, tiny_mlm, settings("masked", batch_size=25))) == 48


@pytest.mark.parametrize("kind", KINDS)
def test_masks_are_the_objectives_own(kind, context, tiny_mlm):
    options = settings(kind)
    found = views(context, tiny_mlm, options)
    rows = found.dataset()
    batch = found.collator()([rows[i] for i in range(48)])
    shares = {"qc": (0.15, 0.15), "autoregressive": (0.3, None), "masked": (0.3, 0.45)}[kind]
    for column, share in zip(("passage", "context"), shares, strict=True):
        assert batch[f"{column}_task"] == {"passage": "document", "context": "query"}[column]
        assert batch[f"{column}_input_ids"].shape[1] <= 40
        assert (f"{column}_mlm_labels" in batch) == (share is not None)
        if share is not None:
            labels = batch[f"{column}_mlm_labels"]
            # Numbers are unknown to the tokenizer, and unknown tokens are not masked.
            ids = found.model.tokenizer([rows[i][column] for i in range(48)])["input_ids"]
            ordinary = sum(
                id not in found.model.tokenizer.all_special_ids for one in ids for id in one
            )
            # At least one token of a text is masked, whole words only: more or less than the share.
            assert float((labels != IGNORED).sum() / ordinary) == pytest.approx(share, abs=0.07)
    first = batch["passage_input_ids"].clone()
    found.clock.epoch = 1
    assert not torch.equal(
        found.collator()([rows[i] for i in range(48)])["passage_input_ids"], first
    )


@pytest.mark.parametrize("prompt", ["", "wing flow: ", "library index catalogue journal "])
def test_a_text_and_the_prompt_before_it_share_the_limit(prompt, tiny_cosine):
    """The text is read to the last token that the limit leaves, and not beyond it."""
    model = COCODR(str(tiny_cosine), document_prompt=prompt)
    room = content_tokens(model, 16)
    ids = model.tokenizer(prompt + " ".join(["flow"] * room))["input_ids"]
    assert len(ids) == 16
    for tokens, share in ((room, 0.0), (room + 1, 1.0)):
        assert model.truncated_share([" ".join(["flow"] * tokens)], "document", 16) == share


def test_the_two_spans_of_a_pair_are_masked_apart(beir_folder, tiny_mlm):
    """A document that is paired with itself has another mask on each side."""
    options = PretrainOptions.of(
        span_tokens=38, max_length=40, single_spans=True, mask_probability=0.5, batch_size=4
    )
    collection = load_collection(
        {str(i): "wing flow library index of the sky" for i in range(4)}, labels="none"
    )
    views = DocumentViews([collection], COCODR(str(tiny_mlm)), options)
    rows = views.dataset()
    batch = views.collator()([rows[i] for i in range(4)])
    first, second = (batch[f"span_{i}_mlm_labels"] for i in (1, 2))
    assert [views.texts(row)[0] for row in range(4)] == [views.texts(row)[1] for row in range(4)]
    assert first.shape == second.shape
    assert not (first == second).all()
