"""The gate on real stores, whole and damaged in each way, and its exit statuses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import COMMON, TOPICS, completed

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.gate import GateOptions, _rehearsed, gate
from beir_cocodr.evaluation.gate_record import GateRecord
from beir_cocodr.evaluation.gate_rule import GENERATED, RATES_WITH_QUERIES, SPANS
from beir_cocodr.evaluation.label_free.contamination import Contamination
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import EncoderOptions, SearchOptions
from beir_cocodr.report.html.gate_section import gate_headline
from beir_cocodr.retrieval.resources import Resources
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions
from beir_cocodr.retrieval.store.store import EmbeddingStore
from beir_cocodr.retrieval.vectors.pool import Workers

DOCUMENTS = 120
# Enough queries of each kind for every fault below to be noticed.
SAMPLES = 60


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> Path:
    """120 documents that repeat four words of their own, and 60 labelled queries for these words.

    The words are those of the vocabulary of ``clean``, an encoder that works untrained.
    """
    folder = tmp_path_factory.mktemp("gate") / "corpus"
    (folder / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(3)
    vocabulary = [word for topic in TOPICS for word in topic]
    documents, queries, labels = [], [], ["query-id\tcorpus-id\tscore"]
    for number in range(DOCUMENTS):
        own = rng.choice(vocabulary, 4, replace=False)
        sentences = []
        for _ in range(4):
            words = [rng.choice(own if rng.random() < 0.6 else COMMON) for _ in range(12)]
            sentences.append(" ".join(words) + " .")
        document = {"_id": f"d{number}", "title": "", "text": " ".join(sentences)}
        documents.append(json.dumps(document))
        if number % 2 == 0:
            queries.append(json.dumps({"_id": f"q{number}", "text": " ".join(own)}))
            labels.append(f"q{number}\td{number}\t1")
    (folder / "corpus.jsonl").write_text("\n".join(documents) + "\n")
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n")
    (folder / "qrels" / "test.tsv").write_text("\n".join(labels) + "\n")
    return folder


def encoded(
    dataset: Path, model: Path, folder: Path, encoder: EncoderOptions = EncoderOptions()
) -> Path:
    options = EncodeOptions(shard_size=65)
    encode(str(dataset), str(model), folder, options, encoder=encoder, workers=Workers(threads=1))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory, collection, clean) -> Path:
    return encoded(collection, clean, tmp_path_factory.mktemp("stores") / "whole")


def changed(store: Path, folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """A copy of a store whose vectors were changed before they were written."""
    shutil.copytree(store, folder)
    opened = EmbeddingStore.open(folder)
    vectors = change(torch.cat(list(opened.chunks())).numpy())
    for number, shard in enumerate(opened.shards):
        opened.write(number, vectors[shard.start : shard.stop])
    return folder


def shuffled(vectors: np.ndarray) -> np.ndarray:
    """5% of the vectors belong to other documents."""
    rows = np.random.default_rng(0).choice(len(vectors), len(vectors) // 20, replace=False)
    vectors[rows] = vectors[np.roll(rows, 1)]
    return vectors


def rounded(vectors: np.ndarray, levels: int) -> np.ndarray:
    step = np.abs(vectors).max(axis=1, keepdims=True) / levels
    return (np.round(vectors / step) * step).astype(np.float32)


def pooled(model: Path, folder: Path) -> Path:
    """A copy of a model that takes the first token in place of the mean."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    wrong = SentenceTransformer(str(model))
    wrong[1] = Pooling(32, "cls")
    wrong.save_pretrained(str(folder))
    return folder


def part_of(collection: Path, folder: Path, keep: Callable[[int, dict], dict | None]) -> Path:
    """A copy of a collection of which documents are left out or changed."""
    shutil.copytree(collection, folder)
    lines = (collection / "corpus.jsonl").read_text().splitlines()
    kept = []
    for row, line in enumerate(lines):
        document = keep(row, json.loads(line))
        if document is not None:
            kept.append(json.dumps(document))
    (folder / "corpus.jsonl").write_text("\n".join(kept) + "\n")
    return folder


def status(old: object, new: object, collection: Path, *arguments: str) -> int:
    """The exit status of the command in a process of its own."""
    words = ["gate", str(old), str(new), "--dataset", str(collection), *arguments]
    return completed(main, words).returncode


def test_harmless_changes_end_with_0(collection, whole, tmp_path):
    half = changed(whole, tmp_path / "fp16", lambda v: v.astype(np.float16).astype(np.float32))
    eight = changed(whole, tmp_path / "int8", lambda vectors: rounded(vectors, 127))
    order = np.random.default_rng(1).permutation(DOCUMENTS)
    lines = (collection / "corpus.jsonl").read_text().splitlines()
    other = part_of(
        collection, tmp_path / "reordered", lambda row, _: json.loads(lines[order[row]])
    )
    record = EmbeddingStore.open(whole).record
    reordered = encoded(other, Path(str(record.model.path)), tmp_path / "in-another-order")
    for new in (whole, half, eight, reordered):
        same = gate(whole, new, str(collection), options=GateOptions(samples=SAMPLES))
        assert (same.decision, same.exit_status) == ("not worse", 0), same.paragraph
        assert same.missing == {"old": 0, "new": 0}
    assert status(whole, eight, collection) == 0


def test_a_store_damaged_in_each_way_ends_with_1(collection, whole, clean, tmp_path):
    def without(row: int, document: dict) -> dict | None:
        return document if row % 12 else None

    def older(row: int, document: dict) -> dict | None:
        if row % 12 == 0:
            return None
        if row % 5 == 0:
            document["text"] = " ".join(document["text"].split()[:8])
        return document

    lacking = part_of(collection, tmp_path / "lacking", without)
    stale = part_of(collection, tmp_path / "stale", older)
    short = EncoderOptions(document_length=12)
    prefix = EncoderOptions(query_prompt="Represent this sentence for searching passages: ")
    faults = {
        "shuffled": changed(whole, tmp_path / "shuffled", shuffled),
        "coarse": changed(whole, tmp_path / "coarse", lambda vectors: rounded(vectors, 1)),
        "missing": encoded(lacking, clean, tmp_path / "missing-store"),
        "stale": encoded(stale, clean, tmp_path / "stale-store"),
        "short": encoded(collection, clean, tmp_path / "short", short),
        "pooling": encoded(collection, pooled(clean, tmp_path / "model"), tmp_path / "cls"),
        "prefix": encoded(collection, clean, tmp_path / "prefix", prefix),
    }
    for name, store in faults.items():
        for labels in (True, False):
            options = GateOptions(labels=labels, samples=SAMPLES)
            record = gate(whole, store, str(collection), options=options)
            assert record.decision == "worse", (name, record.paragraph)
    assert gate(whole, faults["missing"], str(collection)).missing["new"] == DOCUMENTS // 12
    assert status(whole, faults["shuffled"], collection) == 1
    # What was repaired is not worse, and a large margin tolerates everything.
    assert gate(faults["shuffled"], whole, str(collection)).exit_status == 0
    assert status(whole, faults["shuffled"], collection, "--margin", "1") == 0


def test_stores_of_one_encoder_share_it_and_others_do_not(collection, whole, tmp_path, monkeypatch):
    half = changed(whole, tmp_path / "half", lambda v: v.astype(np.float16).astype(np.float32))
    model = Path(str(EmbeddingStore.open(whole).record.model.path))
    prefix = EncoderOptions(query_prompt="Represent this sentence for searching passages: ")
    other = encoded(collection, model, tmp_path / "prefix", prefix)
    asked = []
    encode_queries = COCODR.encode_queries

    def counted(self, queries, **settings):
        asked.append((id(self), len(queries)))
        return encode_queries(self, queries, **settings)

    monkeypatch.setattr(COCODR, "encode_queries", counted)
    options = GateOptions(samples=20)
    gate(whole, half, str(collection), options=options)
    once = len(asked)
    assert len({encoder for encoder, _ in asked}) == 1
    gate(whole, other, str(collection), options=options)
    assert len(asked) == 3 * once
    assert len({encoder for encoder, _ in asked[once:]}) == 2


def test_documents_that_the_collection_lacks_are_counted(collection, whole, tmp_path):
    fewer = part_of(collection, tmp_path / "fewer", lambda row, d: d if row % 4 else None)
    record = gate(whole, whole, str(fewer))
    assert 0.05 < record.unknown["old"] < 0.5
    assert "the collection does not have" in record.paragraph


def test_a_file_that_is_damaged_ends_with_2(collection, whole, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(whole, broken)
    shard = next(broken.glob("shard-*"))
    content = bytearray(shard.read_bytes())
    content[-5] ^= 255
    shard.write_bytes(content)
    done = completed(main, ["gate", str(whole), str(broken), "--dataset", str(collection)])
    assert done.returncode == 2
    assert shard.name in done.stderr.splitlines()[-1]


def test_two_unlike_runs_without_labels_end_with_3(collection, tmp_path):
    queries = [
        json.loads(line)["_id"] for line in (collection / "queries.jsonl").read_text().splitlines()
    ]
    ids = [
        json.loads(line)["_id"] for line in (collection / "corpus.jsonl").read_text().splitlines()
    ]
    for name, first in (("a.run", 0), ("b.run", 100)):
        lines = []
        for query in queries:
            for rank in range(10):
                lines.append(f"{query} Q0 {ids[first + rank]} {rank + 1} {10 - rank} tag\n")
        (tmp_path / name).write_text("".join(lines))
    both = (tmp_path / "a.run", tmp_path / "b.run", collection)
    assert status(*both, "--no-labels") == 3
    assert status(both[0], both[0], collection, "--no-labels") == 0


def write_run(file: Path, collection: Path, queries: Callable[[int], bool]) -> Path:
    """Write BM25's run of some queries, by their numbers."""
    loaded = load_collection(collection)
    chosen = {id: text for row, (id, text) in enumerate(loaded.queries.items()) if queries(row)}
    with Resources.temporary(loaded.documents, SearchOptions()) as resources:
        ranking = resources.ranker("bm25").search(chosen, 10)
    lines = []
    for query, hits in ranking.hits(loaded.documents.ids):
        for rank, (document, score) in enumerate(hits, start=1):
            lines.append(f"{query} Q0 {document} {rank} {score} bm25\n")
    file.write_text("".join(lines))
    return file


@pytest.mark.parametrize("labels", ["--labels", "--no-labels"])
def test_queries_that_a_new_run_lost_count(labels, collection, tmp_path):
    whole = write_run(tmp_path / "whole.run", collection, lambda row: True)
    half = write_run(tmp_path / "half.run", collection, lambda row: row % 2 == 0)
    lost = len(load_collection(collection).queries) // 2
    options = ["--dataset", str(collection), labels]
    done = completed(main, ["gate", str(whole), str(half), *options])
    assert done.returncode != 0
    assert f"half.run has no result for {lost} of the collection's queries" in done.stdout
    # What OLD never answered cannot be lost, and is said to be left out.
    done = completed(main, ["gate", str(half), str(whole), *options])
    assert done.returncode == 0
    assert f"{lost} queries of the collection are left out, because" in done.stdout
    other = tmp_path / "other.run"
    other.write_text("some-other-query Q0 d 1 1.0 tag\n")
    assert status(whole, other, collection, labels) == 2


def test_a_run_of_other_queries_is_named(collection, tmp_path):
    (tmp_path / "other.run").write_text("some-other-query Q0 d1 1 1.0 tag\n")
    write_run(tmp_path / "whole.run", collection, lambda row: True)
    write_run(tmp_path / "even.run", collection, lambda row: row % 2 == 0)
    write_run(tmp_path / "odd.run", collection, lambda row: row % 2 == 1)
    other, whole, even, odd = (
        f"run:{tmp_path / name}.run" for name in ("other", "whole", "even", "odd")
    )
    judged = tmp_path / "judged.tsv"
    lines = (collection / "qrels" / "test.tsv").read_text().splitlines()
    judged.write_text("\n".join(lines[:3]) + "\n")
    labelled = f"labelled queries of {collection}"
    plain = GateOptions()
    without = GateOptions(labels=False)
    by_file = GateOptions(judgements=judged)
    for old, new, options, message in (
        (other, whole, plain, f"OLD ({other}) answers none of the 60 {labelled}"),
        (other, other, plain, f"OLD ({other}) answers none of the 60 {labelled}"),
        ("bm25", other, plain, f"NEW ({other}) answers none of the 60 {labelled}"),
        (even, odd, plain, f"NEW ({odd}) answers none of the 30 {labelled}"),
        (other, whole, without, f"OLD ({other}) answers none of the 60 queries of {collection}"),
        ("bm25", other, by_file, f"NEW ({other}) answers none of the 2 judged queries of {judged}"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(message)} that it would be asked: "):
            gate(old, new, str(collection), options=options)


def test_a_collection_without_queries_is_told_from_a_run_of_other_queries(collection, tmp_path):
    whole = write_run(tmp_path / "whole.run", collection, lambda row: True)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(collection / "corpus.jsonl", alone)
    with pytest.raises(InputError, match=f"{alone} has none, and a run cannot answer generated"):
        gate(f"run:{whole}", "bm25", str(alone))
    short = {"d1": "", "d2": "!"}
    with pytest.raises(InputError, match="has none, and its documents are too short"):
        gate("bm25", "bm25", short)


def test_a_lead_on_what_one_side_was_trained_on_does_not_count():
    contamination = Contamination(spans=frozenset({"new"}), generated=frozenset({"old", "new"}))
    low, high = np.zeros(20), np.ones(20)
    assert "NEW was trained" in _rehearsed(SPANS, low, high, contamination)
    assert not _rehearsed(SPANS, high, low, contamination)  # behind in spite of it
    assert not _rehearsed(GENERATED, low, high, contamination)  # both were
    only_old = Contamination(generated=frozenset({"old"}))
    assert "OLD was trained" in _rehearsed(GENERATED, high, low, only_old)


def test_equal_names_are_told_apart(collection):
    done = completed(main, ["gate", "bm25", "bm25", "--dataset", str(collection)])
    assert done.returncode == 0
    assert done.stdout.startswith("NEW (bm25) is not worse than OLD (bm25)")
    assert "compare" not in done.stderr


@pytest.mark.parametrize("labels", [True, False])
def test_the_same_lists_pass_at_every_margin(labels, collection, whole, tmp_path):
    for margin in (0.0, 0.0015, 0.01):
        options = GateOptions(samples=20, margin=margin, labels=labels)
        for side in ("bm25", whole):
            record = gate(side, side, str(collection), options=options)
            assert (record.decision, record.exit_status) == ("not worse", 0)
            assert record.is_unchanged
            first = record.paragraph.partition(". On ")[0]
            assert f"by more than {margin:g} in nDCG@10 on {collection}: both give" in first
            assert "probability" not in first
            headline = gate_headline(record)
            assert headline.sentence.endswith("for every query that they were asked.")
            assert [name for name, _ in headline.facts] == ["Tolerated loss", "Exit status"]
    assert status("bm25", "bm25", collection, "--margin", "0", "--samples", "10") == 0
    eight = changed(whole, tmp_path / "int8", lambda vectors: rounded(vectors, 127))
    record = gate(whole, eight, str(collection), options=GateOptions(margin=0.0, labels=labels))
    assert not record.is_unchanged
    assert record.decision != "not worse"


def test_a_store_that_lacks_a_document_is_not_the_same(collection, clean, whole, tmp_path):
    """The further document is among the best of no query, so that all lists are the same."""
    more = tmp_path / "more"
    more.mkdir()
    further = json.dumps({"_id": "further", "title": "", "text": "zebra"})
    (more / "corpus.jsonl").write_text((collection / "corpus.jsonl").read_text() + further + "\n")
    old = encoded(more, clean, tmp_path / "old")
    options = GateOptions(samples=20, margin=0.0)
    record = gate(old, whole, str(more), options=options)
    assert record.missing == {"old": 0, "new": 1}
    assert all(figures.has_same_lists for figures in record.evidence)
    assert not record.is_unchanged
    assert record.decision == "cannot tell"
    assert gate(whole, old, str(more), options=options).decision == "not worse"


def test_lost_documents_are_named_where_they_decide(collection):
    record = gate("bm25", "bm25", str(collection), options=GateOptions(samples=20))
    lost = {"decision": "worse", "loses_documents": True}
    by_them = replace(record, **lost, probability_worse=0.36)
    assert by_them.is_decided_by_lost_documents
    first, second, *_ = by_them.paragraph.split(". ")
    assert first.endswith("loses significantly, and more than twice the margin")
    assert "by more than 0.01" not in first
    assert second.startswith("nDCG@10 alone would not show a loss of more than 0.01")
    by_both = replace(record, **lost, probability_worse=0.9)
    assert not by_both.is_decided_by_lost_documents
    assert "by more than 0.01 in nDCG@10" in by_both.paragraph
    assert "no longer finds documents" in by_both.paragraph
    sentences = [gate_headline(one).sentence for one in (by_them, by_both)]
    assert ["no longer finds" in sentence for sentence in sentences] == [True, False]


def test_lost_documents_that_nobody_asks_for_are_told(collection):
    record = gate("bm25", "bm25", str(collection), options=GateOptions(samples=20))
    assert record.rates == RATES_WITH_QUERIES
    assert "collections with up to 300 of their queries, to which it was" in record.paragraph
    assert "does not count" not in record.paragraph
    unasked = replace(record, is_unchanged=False, loses_unasked_documents=True)
    assert "more than twice the margin. This does not count: for the collection's own queries" in (
        unasked.paragraph
    )
    assert unasked.decision == "not worse"
    worse = replace(unasked, decision="worse", probability_worse=0.9)
    assert "does not count" not in worse.paragraph
    assert not any("does not count" in note for note in gate_headline(worse).notes)
    (note,) = [note for note in gate_headline(unasked).notes if "does not count" in note]
    assert note.startswith("new no longer finds some documents")


def test_two_runs_without_labels_are_told_that_they_are_not_called_worse(collection, tmp_path):
    run = write_run(tmp_path / "a.run", collection, lambda row: True)
    record = gate(run, run, str(collection), options=GateOptions(labels=False))
    assert record.rates is None
    assert "are not called worse, unless they only cut lists short: give" in record.paragraph
    assert "false alarm" not in record.paragraph
    assert any("are not called worse" in note for note in gate_headline(record).notes)
    labelled = gate(run, run, str(collection))
    assert labelled.rates is None
    assert "not called worse" not in labelled.paragraph


@pytest.mark.parametrize("labels", [True, False])
def test_a_run_that_is_cut_short_is_worse(labels, collection, tmp_path):
    whole = write_run(tmp_path / "whole.run", collection, lambda row: True)
    lines = whole.read_text().splitlines(keepends=True)
    cut = tmp_path / "cut.run"
    cut.write_text("".join(line for line in lines if int(line.split()[3]) <= 2))
    options = GateOptions(labels=labels)
    record = gate(whole, cut, str(collection), options=options)
    if not labels:
        assert record.decision == "worse"
    assert record.interval[0] < record.estimate < record.interval[1] <= 0
    # The other way it can only gain, which is not told from a change.
    assert gate(cut, whole, str(collection), options=options).estimate >= 0


def test_the_results_of_another_gate_are_not_replaced(collection, whole, tmp_path):
    output = tmp_path / "o"
    options = GateOptions(samples=10)
    gate("bm25", "bm25", str(collection), output=output, options=options)
    before = (output / "gate.json").read_bytes()
    with pytest.raises(InputError, match="--overwrite"):
        gate("bm25", whole, str(collection), output=output, options=options)
    with pytest.raises(InputError, match="--overwrite"):
        gate(whole, "bm25", str(collection), output=output, options=options)
    assert (output / "gate.json").read_bytes() == before


def test_one_paragraph_and_json(collection, whole, tmp_path, capsys):
    words = ["gate", str(whole), str(whole), "--dataset", str(collection)]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code
    out = capsys.readouterr().out
    assert len(out.strip().splitlines()) == 1
    assert "false alarm" in out
    with pytest.raises(SystemExit):
        main([*words, "--json", "--output", str(tmp_path / "o")])
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "o" / "gate.json").read_text())
    record = GateRecord.read(tmp_path / "o" / "gate.json")
    assert record.to_json() == content | {"interval": tuple(content["interval"])}
    assert set(content) >= {"decision", "exit_status", "margin", "estimate", "interval", "rates"}
    kinds = {figures.kind for figures in record.evidence}
    assert kinds == {"spans of documents", "generated queries", "labelled queries"}


def test_the_settings_of_one_side(collection, clean, whole):
    model = str(clean)
    options = GateOptions(samples=SAMPLES, new=EncoderOptions(document_length=12))
    assert gate(model, model, str(collection), options=options).decision == "worse"
    # A store and the model that wrote it are the same thing.
    assert gate(model, whole, str(collection)).decision == "not worse"
    with pytest.raises(InputError, match=r"NEW.*document_length"):
        gate(model, whole, str(collection), options=options)


def test_a_store_or_a_run_refuses_settings_of_both_sides_that_it_cannot_follow(
    collection, clean, whole, tmp_path
):
    """Otherwise one side alone follows them, and the gate calls one encoder worse than itself."""
    model, dataset = str(clean), str(collection)
    run = write_run(tmp_path / "bm25.run", collection, lambda row: True)
    settings = {
        "query_length": 5,
        "document_length": 12,
        "query_prompt": "query: ",
        "document_prompt": "text: ",
        "title_separator": ": ",
        "pooling": "mean",
        "chunk_pooling": "mean",
    }
    for name, value in settings.items():
        search = SearchOptions(encoder=EncoderOptions(**{name: value}))
        for old, new, role in ((whole, model, "OLD"), ("bm25", whole, "NEW"), (run, model, "OLD")):
            with pytest.raises(InputError, match=f"^{role} cannot be loaded with {name}: "):
                gate(old, new, dataset, search=search)
    words = ["gate", str(whole), model, "--dataset", dataset, "--query-length", "5"]
    done = completed(main, words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "OLD cannot be loaded with query_length: the store records how its documents were encoded; "
        "leave them out, or set them for NEW alone with --set-new"
    )
    assert status(whole, model, collection, "--set-new", "query_length=64") == 0
    # Where the device computes the vectors is no setting of them.
    assert status(run, run, collection, "--device", "cpu") == 0
    assert status(whole, model, collection, "--device", "cpu") == 0


def test_settings_with_which_a_store_was_encoded_may_be_given(collection, clean, tmp_path):
    encoder = EncoderOptions(query_length=20, document_length=30, chunk_pooling="first")
    store = encoded(collection, clean, tmp_path / "store", encoder)
    search = SearchOptions(encoder=replace(encoder, query_prompt="", title_separator=" "))
    options = GateOptions(samples=20)
    for old, new in ((store, str(clean)), (str(clean), store), (store, store)):
        record = gate(old, new, str(collection), options=options, search=search)
        assert record.decision == "not worse"
        assert all(figures.distance < 1e-9 for figures in record.evidence)
    other = replace(search, encoder=replace(encoder, document_length=31))
    with pytest.raises(InputError, match="OLD cannot be loaded with document_length: the store"):
        gate(store, str(clean), str(collection), search=other)


def test_an_index_in_a_store(collection, whole, tmp_path):
    pytest.importorskip("faiss")
    copy = tmp_path / "with-index"
    shutil.copytree(whole, copy)
    with pytest.raises(InputError, match="index-hnsw"):
        gate(whole, copy / "index-hnsw", str(collection))
    searched = ["search", "--store", str(copy), "--dataset", str(collection), "--index", "hnsw"]
    with pytest.raises(SystemExit):
        main([*searched, "--output", str(tmp_path / "x.run")])
    assert gate(whole, copy / "index-hnsw", str(collection)).decision == "not worse"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bm25", "bm25", "--set-new", "nonsense=1"], "--set-new nonsense=1"),
        (["bm25", "bm25", "--margin", "2"], "margin"),
        (["bm25", "bm25", "--labels", "--judgements", "x"], "not both"),
        (["bm25", "no-such-model"], "no-such-model"),
        (["bm25", "bm25", "--set-new", "query_prompt=x"], "BM25 has no encoder"),
    ],
)
def test_bad_input_ends_with_2(collection, capsys, arguments, expected):
    with pytest.raises(SystemExit) as ended:
        main(["gate", *arguments, "--dataset", str(collection)])
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err.splitlines()[-1]


def test_bm25_on_one_side_alone_is_no_matter_of_spans(collection, clean):
    model = str(clean)
    pair = (model, f"hybrid:{model}", str(collection))
    without = gate(*pair, options=GateOptions(samples=40, labels=False))
    assert all(figures.difference is None for figures in without.evidence)
    assert without.estimate == 0
    labelled = gate(*pair, options=GateOptions(samples=40))
    assert labelled.labels
    assert labelled.estimate != 0


def test_judgements_of_a_file(collection, whole, tmp_path):
    judged = tmp_path / "judged.tsv"
    lines = (collection / "qrels" / "test.tsv").read_text().splitlines()
    judged.write_text("\n".join(lines[:40]) + "\n")
    worse = changed(whole, tmp_path / "shuffled", shuffled)
    record = gate(whole, worse, str(collection), options=GateOptions(judgements=judged))
    assert record.decision == "worse"
    assert "judged queries" in {figures.kind for figures in record.evidence}
