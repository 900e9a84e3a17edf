"""Mined negatives against a few lines of numpy over all scores."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import write_beir

from beir_cocodr import COCODR
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.store import encode as shards
from beir_cocodr.retrieval.vectors import dense
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.hard_negatives import mined_negatives as mining
from beir_cocodr.training.hard_negatives.mined_negatives import MiningDraw, mine_negatives
from beir_cocodr.training.options import FinetuneOptions, MiningOptions, NegativeFilters

KEY = {"weights": "one", "options": [1, 2]}
DEPTH = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A collection with up to two relevant documents a query, grades of 0, repeated texts, and
    queries without a relevant document.
    """
    folder = write_beir(tmp_path_factory.mktemp("mining") / "data", documents=60, queries=20)
    corpus = folder / "corpus.jsonl"
    documents = [json.loads(line) for line in corpus.read_text().splitlines()]
    copies = [
        {"_id": f"x{i}", "title": d["title"] if i % 2 else "", "text": d["text"]}
        for i, d in enumerate(documents[::3])
    ]
    # The same text as one string: a title may hold what another document has in its text.
    for copy, d in zip(copies[::2], documents[::6], strict=True):
        copy["text"] = f"{d['title']} {d['text']}".strip()
    corpus.write_text("".join(json.dumps(d) + "\n" for d in documents + copies))
    with (folder / "qrels" / "train.tsv").open("a") as file:
        file.write("q20\td3\t0\nq21\tmissing\t2\nq0\tmissing\t1\n")
    return folder


@pytest.fixture(scope="module")
def collection(folder):
    return load_collection(folder, "train")


@pytest.fixture(scope="module", params=["tiny_bert", "tiny_cosine"])
def model(request):
    model = COCODR(str(request.getfixturevalue(request.param)), device="cpu")
    for name in ("encode_query", "encode_document"):
        setattr(model, name, steady(getattr(model, name)))
    return model


def steady(encode):
    """Encode text by text, so that copies score the same to the last bit and blocks change no
    bit.
    """
    known = {}

    def encode_each(texts, convert_to_tensor=False, **kwargs):
        for text in texts:
            if text not in known:
                known[text] = encode([text], convert_to_tensor=True)[0]
        vectors = torch.stack([known[text] for text in texts])
        return vectors if convert_to_tensor else vectors.numpy()

    return encode_each


class Reference:
    """All scores at once, and the candidates of each query by plain loops over dictionaries."""

    def __init__(self, collection, model):
        self.ids = list(collection.documents)
        documents = model.encode_corpus(list(collection.documents.values())).astype(np.float64)
        relevant = {
            q: {d for d, g in grades.items() if g > 0} for q, grades in collection.qrels.items()
        }
        self.relevant = {
            q: found & set(self.ids) for q, found in relevant.items() if found & set(self.ids)
        }
        texts = [collection.queries[q] for q in self.relevant]
        self.embeddings = model.encode_queries(texts).astype(np.float64)
        if model.similarity_fn_name == "cosine":
            documents /= np.linalg.norm(documents, axis=1, keepdims=True)
            self.embeddings /= np.linalg.norm(self.embeddings, axis=1, keepdims=True)
        self.scores = {
            q: dict(zip(self.ids, documents @ vector, strict=True))
            for q, vector in zip(self.relevant, self.embeddings, strict=True)
        }
        self.text = {
            id: f"{d['title'].strip()} {d['text'].strip()}".strip()
            for id, d in collection.documents.items()
        }

    def top(self, query, depth):
        """Ids, best first; copies tie, and the larger id comes first."""
        scores = self.scores[query]
        by_id = sorted(self.ids, reverse=True)
        return sorted(by_id, key=lambda id: round(-scores[id], 5))[:depth]

    def candidates(self, query, depth):
        return [id for id in self.top(query, depth) if id not in self.relevant[query]]


@pytest.fixture(scope="module")
def reference(collection, model):
    return Reference(collection, model)


def ids_of(mined, collection):
    return {query: collection.documents.ids(rows) for query, rows in mined.pools().items()}


def mine(collection, model, folder, depth=DEPTH, keep=DEPTH, episode=0, key=None, **settings):
    options = FinetuneOptions.of(mining_depth=depth, mining_keep=keep, **settings)
    return mine_negatives(
        collection, model, folder, options.mining, MiningDraw(options.seed, episode), key=key
    )


def test_all_candidates_in_order(collection, model, reference, tmp_path):
    mined = mine(collection, model, tmp_path)
    assert mined.queries == [q for q in collection.queries if q in reference.relevant]
    assert any(len(found) > 1 for found in reference.relevant.values())
    expected = {q: reference.candidates(q, DEPTH) for q in mined.queries}
    assert ids_of(mined, collection) == expected
    assert mined.rows.shape == (20, DEPTH)
    assert mined.rows.dtype == np.int64
    assert (mined.rows == -1).sum() == 20 * DEPTH - sum(map(len, expected.values()))
    np.testing.assert_allclose(mined.embeddings, reference.embeddings, rtol=1e-4, atol=1e-4)
    assert mined.counts == {
        "queries": 20,
        "queries_without_positive": 2,
        "candidates": 20 * DEPTH,
        "positives": 20 * DEPTH - sum(map(len, expected.values())),
        "removed": {},
        "removal_rates": {},
        "queries_without_negative": 0,
    }
    assert mined.counts["positives"] > 0
    files = [path for path in tmp_path.rglob("*") if "checksums" not in path.parts]
    assert sorted(path.name for path in files) == [
        *("mined", "mined.json", "query_embeddings.npy", "rows.npy")
    ]


def test_the_draw(collection, model, reference, tmp_path):
    drawn = {
        (seed, episode): mine(collection, model, tmp_path, keep=5, seed=seed, episode=episode)
        for seed, episode in ((1, 0), (1, 1), (2, 0))
    }
    for (seed, episode), mined in drawn.items():
        for place, (query, ids) in enumerate(ids_of(mined, collection).items()):
            candidates = reference.candidates(query, DEPTH)
            rng = np.random.default_rng((seed, episode, place))
            chosen = sorted(rng.choice(len(candidates), 5, replace=False))
            assert ids == [candidates[i] for i in chosen]
    again = mine(collection, model, tmp_path / "again", keep=5, seed=1)
    np.testing.assert_array_equal(again.rows, drawn[1, 0].rows)
    for other in ((1, 1), (2, 0)):
        assert (drawn[other].rows != again.rows).any(axis=1).mean() > 0.9


def test_every_candidate_is_drawn_equally_often(collection, model, reference, tmp_path):
    """The draws of all queries with ten candidates are counted by the place of the candidate."""
    candidates = {query: reference.candidates(query, 10) for query in reference.relevant}
    draws, counts = 0, np.zeros(10)
    for episode in range(6):
        mined = mine(collection, model, tmp_path, depth=10, keep=3, episode=episode)
        for query, ids in ids_of(mined, collection).items():
            if len(candidates[query]) == 10:
                counts[[candidates[query].index(id) for id in ids]] += 1
                draws += 1
    assert draws >= 48
    assert counts.sum() == 3 * draws
    # Binomial(draws, 3/10): four standard deviations around the mean.
    assert (abs(counts - 0.3 * draws) < 4 * np.sqrt(0.21 * draws)).all()


@pytest.mark.parametrize("query_block", [1, 3, 7])
def test_blocks_of_queries_change_nothing(collection, model, tmp_path, monkeypatch, query_block):
    whole = mine(collection, model, tmp_path / "whole", keep=6)
    monkeypatch.setattr(mining, "_QUERY_BLOCK", query_block)
    blocks = mine(collection, model, tmp_path / "blocks", keep=6)
    np.testing.assert_array_equal(blocks.rows, whole.rows)
    np.testing.assert_allclose(blocks.embeddings, whole.embeddings, rtol=1e-4, atol=1e-5)
    assert blocks.counts == whole.counts


def test_no_more_than_a_block_of_queries_is_held(collection, model, tmp_path, monkeypatch):
    sizes, rank = [], dense.rank
    monkeypatch.setattr(
        dense, "rank", lambda d, ids, *rest: sizes.append(len(ids)) or rank(d, ids, *rest)
    )
    monkeypatch.setattr(mining, "_QUERY_BLOCK", 8)
    mined = mine(collection, model, tmp_path)
    assert sizes == [8, 8, 4]
    assert isinstance(mined.rows, np.memmap)
    assert isinstance(mined.embeddings, np.memmap)


def test_the_corpus_is_encoded_once_and_each_query_once(collection, model, tmp_path, monkeypatch):
    seen = {"query": 0, "document": 0}
    for name in seen:
        original = getattr(model, f"encode_{name}")

        def count(texts, *args, name=name, original=original, **kwargs):
            seen[name] += len(texts)
            return original(texts, *args, **kwargs)

        monkeypatch.setattr(model, f"encode_{name}", count)
    monkeypatch.setattr(mining, "_QUERY_BLOCK", 6)
    mine(collection, model, tmp_path)
    assert seen == {"query": 20, "document": len(collection.documents)}


def margin(reference, query, share):
    best = max(reference.scores[query][id] for id in reference.relevant[query])
    return best - abs(best) * share


def test_relative_margin(collection, model, reference, tmp_path):
    mined = mine(collection, model, tmp_path, relative_margin=0.05)
    found, removed, others = ids_of(mined, collection), 0, 0
    for query in mined.queries:
        candidates, limit = reference.candidates(query, DEPTH), margin(reference, query, 0.05)
        expected = [id for id in candidates if reference.scores[query][id] <= limit]
        assert found.get(query, []) == expected
        removed, others = removed + len(candidates) - len(expected), others + len(candidates)
    assert 0 < removed < others
    assert mined.counts["removed"] == {"relative_margin": removed}
    assert mined.counts["removal_rates"] == {"relative_margin": pytest.approx(removed / others)}
    assert mined.counts["queries_without_negative"] == len(mined.queries) - len(found)


def test_max_score(collection, model, reference, tmp_path):
    scores = [
        [reference.scores[q][id] for id in reference.candidates(q, DEPTH)]
        for q in reference.relevant
    ]
    limit = float(np.median(np.concatenate(scores))) + 1e-4
    mined = mine(collection, model, tmp_path, max_score=limit)
    found = ids_of(mined, collection)
    for query in mined.queries:
        left = [
            id for id in reference.candidates(query, DEPTH) if reference.scores[query][id] <= limit
        ]
        assert found.get(query, []) == left
    assert (
        mined.counts["removed"]["max_score"]
        == sum(map(len, scores)) - sum(map(len, found.values()))
        > 0
    )


def without_repeats(reference, query, candidates):
    seen, left = {reference.text[id] for id in reference.relevant[query]}, []
    for id in candidates:
        if reference.text[id] not in seen:
            left.append(id)
            seen.add(reference.text[id])
    return left


def test_duplicates(collection, model, reference, tmp_path):
    mined = mine(collection, model, tmp_path, duplicates=True)
    found, like_positive = ids_of(mined, collection), 0
    for query in mined.queries:
        candidates = reference.candidates(query, DEPTH)
        relevant = {reference.text[id] for id in reference.relevant[query]}
        like_positive += sum(reference.text[id] in relevant for id in candidates)
        assert found[query] == without_repeats(reference, query, candidates)
    assert mined.counts["removed"]["duplicates"] > like_positive > 0


def test_filters_apply_to_what_earlier_ones_left(collection, model, reference, tmp_path):
    mined = mine(collection, model, tmp_path, relative_margin=0.02, max_score=1e6, duplicates=True)
    found, repeats = ids_of(mined, collection), 0
    for query in mined.queries:
        limit = margin(reference, query, 0.02)
        below = [
            id for id in reference.candidates(query, DEPTH) if reference.scores[query][id] <= limit
        ]
        left = without_repeats(reference, query, below)
        assert found.get(query, []) == left
        repeats += len(below) - len(left)
    assert list(mined.counts["removed"]) == ["relative_margin", "max_score", "duplicates"]
    assert mined.counts["removed"]["max_score"] == 0
    assert mined.counts["removed"]["duplicates"] == repeats


def filtered(collection, scores, positive, texts=(), **filters):
    """Places of the candidates of the first query that filters leave, and the counts, for scores
    and texts of ours: the candidates are the documents that are not relevant to it, in their order.
    """
    found = SimpleNamespace(
        embeddings=SimpleNamespace(rows=lambda rows: torch.tensor([[positive]]))
    )
    search = mining._Mining(collection, found, MiningOptions(**filters), MiningDraw())
    query, relevant = next(iter(search.positives.items()))
    rows = np.setdiff1d(np.arange(len(collection.documents)), relevant)[: len(scores)]
    search.texts = np.zeros(len(collection.documents), np.uint64)
    search.texts[rows[: len(texts)]] = texts
    left = search._negatives(query, np.array(scores, np.float32), rows, np.ones(1, np.float32))
    return np.searchsorted(rows, left).tolist(), search.counts


def test_one_positive_follows_the_host(collection):
    """mine_hard_negatives of sentence-transformers: score > p - |p| m is out, for negative p as
    well.
    """
    scores = [0.9, 0.5, 0.475, 0.4, -0.9, -1.0, -1.05, -1.1]
    for positive, left in ((0.5, [2, 3, 4, 5, 6, 7]), (-1.0, [6, 7])):
        kept, counts = filtered(collection, scores, positive, relative_margin=0.05 - 1e-6)
        assert kept == left
        assert counts["relative_margin"] == len(scores) - len(left)


def test_a_text_stands_again_when_its_better_scored_copy_is_removed(collection):
    kept, counts = filtered(
        collection, [3, 1, 0.5, 0], 9.0, [1, 1, 2, 2], max_score=2, duplicates=True
    )
    assert kept == [1, 2]
    assert counts["max_score"] == counts["duplicates"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"relative_margin": -0.1},
        {"relative_margin": 1.0},
        {"relative_margin": np.nan},
        {"max_score": np.inf},
        {"max_score": np.nan},
    ],
)
def test_impossible_filters(wrong):
    [name] = wrong
    with pytest.raises(InputError, match=f"{name}"):
        NegativeFilters(**wrong)


def test_all_filters_are_off_by_default():
    assert NegativeFilters().active == {}
    assert NegativeFilters(relative_margin=0.0, max_score=0.0, duplicates=True).active == {
        "relative_margin": 0.0,
        "max_score": 0.0,
        "duplicates": True,
    }


def test_depth_beyond_the_corpus(collection, model, reference, tmp_path):
    mined = mine(collection, model, tmp_path, depth=500, keep=300)
    size = len(collection.documents)
    for query, ids in ids_of(mined, collection).items():
        assert len(ids) == size - len(reference.relevant[query])
        assert not set(ids) & reference.relevant[query]
    assert (mined.rows[:, size:] == -1).all()


def test_nothing_left_is_said_with_the_way_out(collection, model, tmp_path):
    with pytest.raises(InputError) as error:
        mine(collection, model, tmp_path, max_score=-1e6, duplicates=True, key=KEY)
    message = str(error.value)
    assert "no query keeps a negative" in message
    assert (
        "loosen the filters (max_score -1000000.0, duplicates True) or raise the depth "
        "(mining_depth), which is 20" in message
    )
    assert "max_score removed" in message
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong", [{"mining_keep": 0}, {"mining_keep": 21, "mining_depth": 20}, {"mining_depth": 0}]
)
def test_options_out_of_range(wrong):
    with pytest.raises(InputError, match="must"):
        FinetuneOptions.of(**wrong)


def test_no_query_with_a_relevant_document(collection, model, tmp_path):
    empty = dataclasses.replace(collection, qrels={"q21": {"missing": 2}, "q20": {"d3": 0}})
    with pytest.raises(InputError, match=r"split train .*relevant"):
        mine(empty, model, tmp_path)


def test_one_log_line(collection, model, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger=mining.__name__):
        mined = mine(collection, model, tmp_path, relative_margin=0.05, episode=2)
    [record] = [r for r in caplog.records if r.name == mining.__name__]
    counts, message = mined.counts, record.getMessage()
    assert (
        "episode 2: 20 queries, 2 left out without a relevant document; 400 candidates" in message
    )
    assert f"{counts['positives']} relevant ones dropped, relative_margin removed " in message
    rate = counts["removal_rates"]["relative_margin"]
    assert f"removed {counts['removed']['relative_margin']} ({rate:.1%});" in message


@pytest.fixture
def saved(collection, model, tmp_path):
    return mine(collection, model, tmp_path, keep=4, key=KEY)


@pytest.fixture
def mute(model, monkeypatch):
    """A model that cannot encode."""

    def refuse(*args, **kwargs):
        raise AssertionError("encoded again")

    for name in ("encode_queries", "encode_corpus", "encode"):
        monkeypatch.setattr(model, name, refuse)


def test_a_finished_result_is_loaded(collection, model, saved, mute, tmp_path):
    # What mining does not depend on may be another.
    loaded = mine(
        collection,
        model,
        tmp_path,
        keep=4,
        key=dict(reversed(KEY.items())),
        learning_rate=1e-3,
        negatives=2,
    )
    assert loaded.queries == saved.queries
    assert loaded.counts == saved.counts
    np.testing.assert_array_equal(loaded.rows, saved.rows)
    np.testing.assert_array_equal(loaded.embeddings, saved.embeddings)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"key": {"weights": "two"}}, "different key: weights, key: options"),
        ({"episode": 1}, "different episode"),
        ({"keep": 5, "seed": 1}, "different keep, seed"),
        ({"depth": 9}, "different depth"),
        ({"duplicates": True}, "different filters: duplicates"),
    ],
)
def test_another_key_is_mined_anew_and_replaces(
    collection, model, saved, tmp_path, caplog, change, named
):
    settings = {"keep": 4, "key": KEY} | change
    with caplog.at_level(logging.INFO, logger=mining.__name__):
        anew = mine(collection, model, tmp_path, **settings)
    assert f"was mined with {named}; negatives are mined again" in caplog.text
    assert "read from" not in caplog.text
    with caplog.at_level(logging.INFO, logger=mining.__name__):
        loaded = mine(collection, model, tmp_path, **settings)
    assert "read from" in caplog.text
    np.testing.assert_array_equal(loaded.rows, anew.rows)


def test_without_a_key_nothing_is_loaded(collection, model, saved, mute, tmp_path):
    with pytest.raises(AssertionError, match="encoded again"):
        mine(collection, model, tmp_path, keep=4)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("file", ["mined.json", "rows.npy", "query_embeddings.npy"])
@pytest.mark.parametrize(
    "damage", [cut, lambda path: path.unlink(), lambda path: path.write_bytes(b"")]
)
def test_a_damaged_result_is_mined_anew(collection, model, saved, tmp_path, caplog, file, damage):
    rows = np.array(saved.rows)
    damage(tmp_path / "mined" / file)
    again = mine(collection, model, tmp_path, keep=4, key=KEY)
    assert "made again" in caplog.text
    np.testing.assert_array_equal(again.rows, rows)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("place", [(dense, "rank"), (mining.files, "write_text")])
def test_a_killed_run_leaves_nothing_that_is_trusted(
    collection, model, tmp_path, monkeypatch, place
):
    def die(*args, **kwargs):
        raise Killed

    whole = mine(collection, model, tmp_path / "whole", keep=4)
    # No cleaning up either, as after a power cut.
    with monkeypatch.context() as patch:
        patch.setattr(*place, die)
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            mine(collection, model, tmp_path / "killed", keep=4, key=KEY)
    [left] = (tmp_path / "killed").iterdir()
    assert left.name.startswith(".unfinished-")
    again = mine(collection, model, tmp_path / "killed", keep=4, key=KEY)
    np.testing.assert_array_equal(again.rows, whole.rows)
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["mined"]


def test_what_a_killed_run_encoded_is_not_encoded_again(collection, model, tmp_path, monkeypatch):
    monkeypatch.setattr(dense, "IN_MEMORY", 0)
    monkeypatch.setattr("beir_cocodr.retrieval.store.encode.SHARD_SIZE", 16)
    wanted = mine(collection, model, tmp_path / "whole", keep=5, key=KEY)
    encoded, encode = [], shards.encode_shard

    def dying(store, encoder, number, *args):
        encoded.append(number)
        if len(encoded) == 3:
            raise KeyboardInterrupt
        return encode(store, encoder, number, *args)

    monkeypatch.setattr(shards, "encode_shard", dying)
    with pytest.raises(KeyboardInterrupt):
        mine(collection, model, tmp_path / "o", keep=5, key=KEY)
    found = mine(collection, model, tmp_path / "o", keep=5, key=KEY)
    assert encoded == [0, 1, 2, 2, 3, 4]
    np.testing.assert_array_equal(found.rows, wanted.rows)
    np.testing.assert_array_equal(found.embeddings, wanted.embeddings)
    assert [path.name for path in (tmp_path / "o").iterdir()] == [mining.MINED]


def test_an_error_leaves_the_folder_as_it_was(collection, model, saved, tmp_path, monkeypatch):
    monkeypatch.setattr(dense, "rank", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        mine(collection, model, tmp_path, keep=4, key={"weights": "two"})
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["mined"]
    assert mine(collection, model, tmp_path, keep=4, key=KEY).queries == saved.queries


def test_non_finite_scores_name_the_query(collection, model, tmp_path, monkeypatch):
    original = model.encode_queries

    def broken(texts, **kwargs):
        vectors = original(texts, **kwargs).clone()
        vectors[[text == collection.queries["q7"] for text in texts]] = torch.nan
        return vectors

    monkeypatch.setattr(model, "encode_queries", broken)
    monkeypatch.setattr(mining, "_QUERY_BLOCK", 5)
    with pytest.raises(NonFiniteScores, match="query 'q7'"):
        mine(collection, model, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(collection, tiny_bert, tmp_path):
    """The same documents, but for those whose scores, of about 16, differ in the last bits."""
    model = COCODR(str(tiny_bert), device="cpu")
    on_cpu, on_gpu = (
        ids_of(
            mine(collection, COCODR(str(tiny_bert), device=device), tmp_path / device), collection
        )
        for device in ("cpu", "cuda")
    )
    ids = list(collection.documents)
    texts = list(collection.documents.values())
    documents = model.encode_corpus(texts, convert_to_tensor=True)
    assert on_cpu.keys() == on_gpu.keys()
    for query, negatives in on_cpu.items():
        [vector] = model.encode_queries([collection.queries[query]], convert_to_tensor=True)
        scores = dict(zip(ids, (documents @ vector).tolist(), strict=True))
        last = min(scores[id] for id in negatives)
        for id in set(negatives) ^ set(on_gpu[query]):
            assert scores[id] == pytest.approx(last, abs=5e-3)


def test_more_negatives_than_documents_are_no_work_for_hours(beir_folder, tiny_mlm, tmp_path):
    options = FinetuneOptions(max_steps=1, batch_size=2, negatives=1_000_000)
    with pytest.raises(InputError, match=r"negatives 1000000 .*documents of"):
        finetune(str(tiny_mlm), str(beir_folder), output=tmp_path / "m", options=options)
    assert not (tmp_path / "m").exists()
