"""The corpus table against a plain dictionary, its tie order against Python's own sorting of
bytes.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents, IdIndex

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
corpora = st.dictionaries(texts.filter(bool), st.tuples(texts, texts), max_size=12)


def documents_of(corpus: dict[str, tuple[str, str]], batch: int) -> Documents:
    """The corpus as a table of several batches, as the cache makes it."""
    rows = [(id, title, text) for id, (title, text) in corpus.items()]
    schema = pa.schema([(name, pa.large_string()) for name in ("id", "title", "text")])
    batches = [
        pa.record_batch(
            [pa.array(column, pa.large_string()) for column in zip(*part, strict=True)],
            schema=schema,
        )
        for part in (rows[start : start + batch] for start in range(0, len(rows), batch))
    ]
    return Documents(pa.Table.from_batches(batches, schema), "0" * 64)


@given(corpora, st.integers(1, 5))
def test_is_the_mapping_it_was_made_from(corpus: dict[str, tuple[str, str]], batch: int) -> None:
    documents = documents_of(corpus, batch)
    expected = {id: {"title": title, "text": text} for id, (title, text) in corpus.items()}
    assert len(documents) == len(expected)
    assert list(documents) == list(expected) == documents.ids()
    assert list(documents.items()) == list(expected.items())
    assert list(documents.values()) == list(expected.values())
    assert {id: documents[id] for id in expected} == expected
    assert dict(documents) == expected


@given(corpora, st.integers(1, 5), st.lists(texts, max_size=8), st.randoms())
def test_rows_and_take_in_any_order(corpus, batch, strangers, random) -> None:
    documents = documents_of(corpus, batch)
    order = list(corpus)
    asked = random.choices(order, k=7) + strangers if order else strangers
    random.shuffle(asked)
    rows = documents.rows(iter(asked))
    assert rows.dtype == np.int64
    assert rows.tolist() == [order.index(id) if id in corpus else -1 for id in asked]
    known = rows[rows >= 0]
    assert documents.ids(known) == [id for id in asked if id in corpus]
    assert documents.take(known.tolist()) == [
        {"_id": id, "title": corpus[id][0], "text": corpus[id][1]} for id in asked if id in corpus
    ]
    assert [id in documents for id in asked] == [id in corpus for id in asked]


@given(corpora, st.integers(1, 5), st.integers(1, 6))
def test_chunks_are_the_corpus_cut_to_size(
    corpus: dict[str, tuple[str, str]], batch: int, size: int
) -> None:
    chunks = list(documents_of(corpus, batch).chunks(size))
    assert [len(chunk) for chunk in chunks[:-1]] == [size] * max(len(chunks) - 1, 0)
    assert [document for chunk in chunks for document in chunk] == [
        {"_id": id, "title": title, "text": text} for id, (title, text) in corpus.items()
    ]


@given(corpora, st.integers(1, 5))
def test_tie_ranks_sort_ids_descending_by_bytes(
    corpus: dict[str, tuple[str, str]], batch: int
) -> None:
    documents = documents_of(corpus, batch)
    by_rank = {int(rank): id for id, rank in zip(corpus, documents.tie_ranks(), strict=True)}
    descending = sorted(corpus, key=lambda id: id.encode(), reverse=True)
    assert [by_rank[rank] for rank in range(len(corpus))] == descending


@given(corpora, st.integers(1, 5), st.lists(texts, max_size=8))
def test_the_index_is_exact_when_hashes_collide(corpus, batch, strangers) -> None:
    order = list(corpus)
    index = IdIndex(documents_of(corpus, batch).table.column("id"), hash_of=len)
    asked = order + strangers
    expected = [order.index(id) if id in corpus else -1 for id in asked]
    assert index.rows(asked).tolist() == expected
    assert [index.row(id) for id in asked] == expected


def test_unknown_ids_and_rows_are_refused() -> None:
    documents = documents_of({"a": ("", "x"), "b": ("", "y")}, 1)
    with pytest.raises(KeyError, match="c"):
        documents["c"]
    assert documents.get("c") is None
    assert 7 not in documents
    for rows in ([-1], [0, 2]):
        with pytest.raises(IndexError, match="0 to 1"):
            documents.take(rows)
    with pytest.raises(ValueError, match="one document"):
        next(documents.chunks(0))


@pytest.fixture
def corpus_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "corpus.jsonl"
    lines = (
        json.dumps({"_id": f"d{n}", "title": f"t{n}", "text": "x" * 2000}) for n in range(1_000)
    )
    path.write_text("\n".join(lines))
    return path


def test_pickling_sends_the_path_and_not_the_corpus(corpus_file: Path) -> None:
    documents = load_collection(corpus_file, labels="none").documents
    sent = pickle.dumps(documents)
    assert len(sent) < 1000
    received = pickle.loads(sent)
    assert received.content_hash == documents.content_hash
    assert received.table.equals(documents.table)


def test_the_content_hash_knows_order_and_borders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    corpora = [
        [("a", "b", "c"), ("d", "e", "f")],
        [("d", "e", "f"), ("a", "b", "c")],
        [("a", "bc", ""), ("d", "e", "f")],
        [("a", "", "bc"), ("d", "e", "f")],
    ]
    hashes = []
    for number, corpus in enumerate([*corpora, corpora[0]]):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(
            "".join(
                json.dumps({"_id": id, "title": title, "text": text}) + "\n"
                for id, title, text in corpus
            )
        )
        hashes.append(load_collection(path, labels="none").documents.content_hash)
    assert len(set(hashes[:4])) == 4
    assert hashes[4] == hashes[0]


_MEASURE = """
import resource, sys
from beir_cocodr.data.collection import load_collection
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
documents = load_collection(sys.argv[1], labels="none").documents
print(len(documents), peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_a_corpus_is_converted_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "corpus.jsonl"
    with path.open("w") as file:
        for number in range(20_000):
            file.write(json.dumps({"_id": str(number), "text": f"{number} " + "y" * 4000}) + "\n")
    measured = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    count, grown = map(int, measured.stdout.split())
    assert count == 20_000
    assert grown < path.stat().st_size / 2
