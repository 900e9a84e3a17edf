"""BEIR folders as datasets of ir_datasets, under the checks that ir_datasets has for its own."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ir_datasets
import ir_measures
import pytest
from beir_cocodr.plugins.irds import register_folder
from ir_datasets.datasets.beir import BeirTitleDoc
from ir_datasets.formats import GenericQuery, TrecQrel

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate

numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "irds"))


@pytest.fixture
def name() -> str:
    return f"folder-test-{next(numbers)}/part"


def records(folder: Path, file: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / file).read_text().splitlines()]


def judgements(folder: Path, split: str) -> list[list[str]]:
    return [
        line.split("\t")
        for line in (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]
    ]


def test_ids_and_what_they_have(beir_folder, name):
    assert register_folder(beir_folder, name) == [name, f"{name}/test", f"{name}/train"]
    whole, train = ir_datasets.load(name), ir_datasets.load(f"{name}/train")
    assert (whole.has_docs(), whole.has_queries(), whole.has_qrels()) == (True, True, False)
    assert (train.has_docs(), train.has_queries(), train.has_qrels()) == (True, True, True)
    assert not any((train.has_scoreddocs(), train.has_docpairs(), train.has_qlogs()))
    assert (train.dataset_id(), whole.dataset_id()) == (f"{name}/train", name)
    assert repr(train) == f"Dataset(id='{name}/train', provides=['docs', 'queries', 'qrels'])"
    assert ir_datasets.docs_parent_id(f"{name}/train") == name
    assert train.documentation()["pretty_name"] == name


def test_documents(beir_folder, name):
    register_folder(beir_folder, name)
    expected = [
        BeirTitleDoc(record["_id"], record["text"], record["title"])
        for record in records(beir_folder, "corpus.jsonl")
    ]
    dataset = ir_datasets.load(f"{name}/test")
    for _ in range(2):
        assert list(dataset.docs_iter()) == expected
        assert list(dataset.docs) == expected
    assert dataset.docs_count() == len(dataset.docs) == len(expected)
    assert dataset.docs_cls() is dataset.docs.type is BeirTitleDoc
    assert all(type(doc) is BeirTitleDoc for doc in dataset.docs)
    store = dataset.docs_store()
    for doc in expected:
        assert store.get(doc.doc_id) == dataset.docs.lookup(doc.doc_id) == doc
    assert store.get("d4", "title") == expected[4].title != ""
    assert list(store.get_many_iter(["d5", "gone", "d2"])) == [expected[5], expected[2]]
    assert store.get_many({"d5", "gone"}) == {"d5": expected[5]}
    assert store.count() == len(expected)
    assert list(store) == expected
    with pytest.raises(KeyError):
        store.get("gone")
    with pytest.raises(ValueError, match="doc_id"):
        dataset.docs_store(field="title")


def test_slices_are_those_of_a_list(beir_folder, name):
    register_folder(beir_folder, name)
    dataset = ir_datasets.load(name)
    expected = list(dataset.docs_iter())
    count = len(expected)
    for start, stop, step in itertools.product(
        (None, 0, 3, count - 1, -4), (None, 1, 7, -3, count, count + 5), (None, 1, 3)
    ):
        part = slice(start, stop, step)
        assert list(dataset.docs_iter()[part]) == expected[part], part
    for index in (0, 9, count - 1, -1, -count):
        assert dataset.docs_iter()[index] == dataset.docs[index] == expected[index]
    assert list(dataset.docs_iter()[5:30][2:9][::2]) == expected[5:30][2:9][::2]
    assert dataset.docs_iter()[5:30][4] == expected[9]
    half = dataset.docs_iter()[:1.0]
    assert list(half) == expected
    assert list(dataset.docs_iter()[0.5:1.0]) == expected[count // 2 :]
    read = dataset.docs_iter()
    assert [next(read), next(read)] == expected[:2]
    assert list(read) == expected[2:]
    for index in (count, -count - 1):
        with pytest.raises(IndexError):
            dataset.docs_iter()[index]
    with pytest.raises(TypeError):
        dataset.docs_iter()["d1"]


def test_queries_and_judgements(beir_folder, name):
    register_folder(beir_folder, name)
    every = [
        GenericQuery(record["_id"], record["text"])
        for record in records(beir_folder, "queries.jsonl")
    ]
    whole = ir_datasets.load(name)
    assert list(whole.queries_iter()) == list(whole.queries_iter()) == every
    assert whole.queries_count() == len(every)
    for split in ("train", "test"):
        dataset = ir_datasets.load(f"{name}/{split}")
        qrels = [
            TrecQrel(query, doc, int(grade), "0")
            for query, doc, grade in judgements(beir_folder, split)
        ]
        assert list(dataset.qrels_iter()) == list(dataset.qrels) == qrels
        assert dataset.qrels_count() == len(dataset.qrels) == len(qrels)
        assert dataset.qrels_cls() is dataset.qrels.type is TrecQrel
        assert (
            dataset.qrels_dict()
            == dataset.qrels.asdict()
            == load_collection(beir_folder, split).qrels
        )
        judged = {qrel.query_id for qrel in qrels}
        expected = [query for query in every if query.query_id in judged]
        assert list(dataset.queries_iter()) == list(dataset.queries) == expected
        assert dataset.queries_count() == len(dataset.queries) == len(expected) < len(every)
        assert dataset.queries_cls() is GenericQuery
        assert dataset.queries_dict() == {query.query_id: query for query in expected}
        assert dataset.queries.lookup(expected[2].query_id) == expected[2]
        metadata = dataset.metadata()
        assert metadata["queries"] == {"count": len(expected)}
        assert metadata["qrels"]["count"] == len(qrels)
        grades = metadata["qrels"]["fields"]["relevance"]["counts_by_value"]
        assert grades == {
            grade: sum(row[2] == grade for row in judgements(beir_folder, split))
            for grade in sorted(grades)
        }


def test_threads_read_at_once(beir_folder, name):
    register_folder(beir_folder, name)
    dataset = ir_datasets.load(f"{name}/train")
    expected = {record["_id"]: record["text"] for record in records(beir_folder, "corpus.jsonl")}

    def read(number: int) -> bool:
        ids = list(expected)[number % 7 :: 3]
        store = dataset.docs.lookup(ids)
        passes = [{doc.doc_id: doc.text for doc in dataset.docs_iter()} for _ in range(3)]
        right = {id: doc.text for id, doc in store.items()} == {id: expected[id] for id in ids}
        return (
            right
            and all(found == expected for found in passes)
            and len(list(dataset.queries_iter())) == 16
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(40)))


def test_compressed_files_and_a_lone_corpus(beir_folder, name, tmp_path):
    packed = tmp_path / "packed"
    (packed / "qrels").mkdir(parents=True)
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (packed / f"{file}.gz").write_bytes(gzip.compress((beir_folder / file).read_bytes()))
    assert register_folder(packed, name) == [name, f"{name}/test"]
    dataset = ir_datasets.load(f"{name}/test")
    assert dataset.qrels_dict() == load_collection(beir_folder, "test").qrels
    assert dataset.docs_count() == 48
    lone = tmp_path / "lone"
    lone.mkdir()
    shutil.copy(beir_folder / "corpus.jsonl", lone)
    assert register_folder(lone, f"{name}-lone") == [f"{name}-lone"]
    assert not ir_datasets.load(f"{name}-lone").has_queries()


def test_they_are_read_as_any_other_id(beir_folder, name):
    register_folder(beir_folder, name)
    for split in ("train", "test"):
        ours, there = load_collection(f"irds:{name}", split), load_collection(beir_folder, split)
        assert (ours.queries, ours.qrels) == (there.queries, there.qrels)
        assert ours.documents.content_hash == there.documents.content_hash


def test_its_queries_and_judgements_give_our_figures(
    beir_folder, name, tmp_path, assert_same_figure
):
    register_folder(beir_folder, name)
    there = ir_datasets.load(f"{name}/test")
    judged = {query.query_id for query in there.queries_iter()}
    evaluate(["bm25"], str(beir_folder), output=tmp_path / "o", measures="nDCG@10")
    run = [
        row
        for row in ir_measures.read_trec_run(str(tmp_path / "o" / "bm25.run"))
        if row.query_id in judged
    ]
    found = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], there.qrels_iter(), run)[
        ir_measures.nDCG @ 10
    ]
    ours = (
        evaluate(["bm25"], f"irds:{name}/test", output=tmp_path / "irds", measures="nDCG@10")
        .models["bm25"]
        .measures
    )
    assert_same_figure("ir_datasets", "load(ID).qrels_iter()", "nDCG@10", found, ours["nDCG@10"])


def test_a_corpus_that_changes_is_read_again(beir_folder, name, tmp_path):
    folder = tmp_path / "changing"
    shutil.copytree(beir_folder, folder)
    register_folder(folder, name)
    before = load_collection(f"irds:{name}", "test").documents.content_hash
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "title": "", "text": "one more"}\n')
    register_folder(folder, f"{name}-again")
    after = load_collection(f"irds:{name}-again", "test").documents
    assert after.content_hash != before
    assert "new" in after


def test_again_does_no_harm_and_a_taken_id_is_refused(beir_folder, name, tmp_path):
    assert register_folder(beir_folder, name) == register_folder(str(beir_folder), name)
    other = tmp_path / "other"
    shutil.copytree(beir_folder, other)
    with pytest.raises(InputError, match=f"'{name}' .*already.*another"):
        register_folder(other, name)
    with pytest.raises(InputError, match=r"'vaswani' already.*another"):
        register_folder(beir_folder, "vaswani")


def test_bad_input(beir_folder, name, tmp_path):
    with pytest.raises(InputError, match=r"corpus\.jsonl: no"):
        register_folder(tmp_path / "nowhere", name)
    for wrong in ("", "a b", "/a", "a//b"):
        with pytest.raises(InputError, match="cannot be an id"):
            register_folder(beir_folder, wrong)
    without = tmp_path / "without"
    shutil.copytree(beir_folder, without)
    (without / "queries.jsonl").unlink()
    with pytest.raises(InputError, match=r"queries\.jsonl: no .*judgements"):
        register_folder(without, name)
    broken = tmp_path / "broken"
    shutil.copytree(beir_folder, broken)
    with (broken / "queries.jsonl").open("a") as file:
        file.write("{\n")
    register_folder(broken, name)
    with pytest.raises(InputError, match=r"queries\.jsonl:33: .*JSON"):
        list(ir_datasets.load(name).queries_iter())
