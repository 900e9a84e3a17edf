"""Resampled collections as datasets of ir_datasets, from ids of its own and from folders."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import ir_datasets
import pytest
from beir_cocodr.plugins.irds import register, register_folder, register_resampled
from conftest import write_beir
from ir_datasets.datasets.beir import BeirTitleDoc
from ir_datasets.formats import GenericQuery, JsonlDocs, TrecQrel, TrecQrels, TsvQueries
from ir_datasets.util import LocalDownload, MetadataComponent, MetadataProvider

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.resampling import RestrainOptions, ResttestOptions
from beir_cocodr.resampling.restrain import resample_restrain
from beir_cocodr.resampling.resttest import resample_resttest

numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "irds"))


@pytest.fixture
def folder(tmp_path) -> Path:
    """80 training and 8 test queries, in a folder whose name no other test has."""
    made = write_beir(tmp_path / f"tiny-{next(numbers)}", documents=200, queries=80)
    lines = (made / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (made / "qrels" / "test.tsv").write_text("".join(lines[:17]))
    return made


class Article(NamedTuple):
    """A document class that no BEIR folder has."""

    doc_id: str
    heading: str
    text: str


class Topic(NamedTuple):
    query_id: str
    text: str
    narrative: str

    def default_text(self) -> str:
        return self.text


class Documented:
    def documentation(self) -> dict[str, Any]:
        return {"pretty_name": "Parent", "desc": "the parent", "bibtex_ids": ["Parent1999"]}


@pytest.fixture
def shipped(folder, tmp_path) -> str:
    """An id as ir_datasets has them: handlers of its own, documentation, metadata, splits below
    it.
    """
    name = f"parent-{next(numbers)}"
    documents = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]

    def file(name: str, lines: list[str]) -> LocalDownload:
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
        return LocalDownload(tmp_path / name)

    rows = [
        json.dumps({"doc_id": found["_id"], "heading": found["title"], "text": found["text"]})
        for found in documents
    ]
    docs = JsonlDocs(file("docs.jsonl", rows), doc_cls=Article, namespace=name, lang="en")
    topics = TsvQueries(
        file("topics.tsv", [f"{found['_id']}\t{found['text']}\tabout it" for found in queries]),
        query_cls=Topic,
        lang="en",
    )
    datasets = {name: ir_datasets.Dataset(docs, topics, Documented())}
    for split in ("train", "test"):
        judged = (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]
        lines = ["{} 0 {} {}".format(*line.split("\t")) for line in judged]
        qrels = TrecQrels(file(f"{split}.qrels", lines), {2: "relevant", 1: "related", 0: "not"})
        datasets[f"{name}/{split}"] = ir_datasets.Dataset(docs, topics, qrels, Documented())
    for identifier, dataset in datasets.items():
        provider = MetadataProvider(lambda i=identifier: {i: {"docs": {"count": 200, "leaked": i}}})
        ir_datasets.registry.register(
            identifier,
            ir_datasets.Dataset(MetadataComponent(identifier, dataset, provider), dataset),
        )
    return name


def restrain(dataset: str | Path, encoder: Path, output: Path, **options: Any) -> dict[str, Any]:
    return resample_restrain(
        str(dataset),
        str(dataset),
        model=str(encoder),
        output=output,
        options=RestrainOptions(**options),
    )


def check(identifier: str, folder: Path, split: str, doc: type, query: type) -> None:
    """Check a dataset against a BEIR folder, as ir_datasets checks its own."""
    expected = load_collection(folder, split)
    dataset = ir_datasets.load(identifier)
    assert (dataset.has_docs(), dataset.has_queries(), dataset.has_qrels()) == (True, True, True)
    assert not any((dataset.has_scoreddocs(), dataset.has_docpairs(), dataset.has_qlogs()))
    assert (dataset.docs_cls(), dataset.queries_cls(), dataset.qrels_cls()) == (
        doc,
        query,
        TrecQrel,
    )
    for _ in range(2):
        docs, queries, qrels = (
            list(getattr(dataset, f"{part}_iter")()) for part in ("docs", "queries", "qrels")
        )
        assert [(found.doc_id, found.text) for found in docs] == [
            (id, found["text"]) for id, found in expected.documents.items()
        ]
        assert {found.query_id: found.text for found in queries} == expected.queries
        assert len(queries) == len(expected.queries)
        assert len(qrels) == sum(map(len, expected.qrels.values()))
        assert {type(found) for found in (*docs, *queries, *qrels)} == {doc, query, TrecQrel}
    assert dataset.qrels_dict() == expected.qrels
    assert dataset.queries_dict() == {found.query_id: found for found in queries}
    counts = dataset.docs_count(), dataset.queries_count(), dataset.qrels_count()
    assert counts == (len(docs), len(queries), len(qrels))
    assert (len(dataset.docs), len(dataset.queries), len(dataset.qrels)) == counts
    store = dataset.docs_store()
    for index in (0, 9, len(docs) - 1):
        assert store.get(docs[index].doc_id) == docs[index] == dataset.docs_iter()[index]
        assert list(dataset.docs_iter()[index : index + 2]) == docs[index : index + 2]
        assert (
            dataset.queries.lookup(queries[index % len(queries)].query_id)
            == queries[index % len(queries)]
        )
    with pytest.raises(KeyError):
        store.get("gone")
    with ThreadPoolExecutor(4) as threads:
        wanted = [found.doc_id for found in docs[::5]]
        read = threads.map(
            lambda _: (dataset.docs_store().get_many(wanted), list(dataset.queries_iter())),
            range(8),
        )
        assert all(found == ({d.doc_id: d for d in docs[::5]}, queries) for found in read)


def test_restrain_over_a_folder(folder, tiny_cosine, tmp_path):
    restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    base = f"cocodr/restrain/{folder.name}/size-16"
    ids = register_resampled(tmp_path / "o")
    assert ids == [
        f"{base}/{regime}{split}"
        for regime in ("interpolation", "extrapolation")
        for split in ("", "/train", "/test")
    ]
    for regime in ("interpolation", "extrapolation"):
        made = tmp_path / "o" / regime
        check(f"{base}/{regime}/train", made, "train", BeirTitleDoc, GenericQuery)
        check(f"{base}/{regime}/test", made, "test", BeirTitleDoc, GenericQuery)
        check(f"{base}/{regime}", made, "test", BeirTitleDoc, GenericQuery)
        documentation = ir_datasets.load(f"{base}/{regime}").documentation()
        assert regime in documentation["pretty_name"]
        assert "nearest of" in documentation["desc"]
        assert documentation["bibtex_ids"] == ["Zhan2022Interpolation"]
        assert "Jingtao Zhan" in documentation["bibtex"]


def test_resttest_over_an_id_keeps_its_classes_and_not_its_id(
    shipped, folder, tiny_cosine, tmp_path
):
    resample_resttest(
        f"irds:{shipped}",
        f"irds:{shipped}",
        model=str(tiny_cosine),
        output=tmp_path / "o",
        options=ResttestOptions(buckets=2),
    )
    ids = register_resampled(tmp_path / "o")
    base = f"cocodr/resttest/{shipped}/bucket-1-of-2"
    assert {f"{base}/train", f"{base}/extrapolation", f"{base}/interpolation/test"} < set(ids)
    for bucket, regime in itertools.product((1, 2), ("interpolation", "extrapolation")):
        identifier = f"cocodr/resttest/{shipped}/bucket-{bucket}-of-2/{regime}"
        made = tmp_path / "o" / f"bucket-{bucket}" / regime
        check(identifier, made, "test", Article, Topic)
        check(f"{identifier}/train", made, "train", Article, Topic)
    dataset, parent = ir_datasets.load(f"{base}/extrapolation"), ir_datasets.load(f"{shipped}/test")
    assert dataset.docs_handler() is parent.docs_handler()
    assert dataset.dataset_id() == f"{base}/extrapolation"
    assert shipped not in json.dumps(dataset.metadata())
    assert "leaked" in parent.metadata()["docs"]
    assert (dataset.queries_lang(), dataset.docs_lang(), dataset.docs_namespace()) == (
        "en",
        "en",
        shipped,
    )
    assert dataset.qrels_defs() == {2: "relevant", 1: "related", 0: "not"}
    assert {query.narrative for query in dataset.queries} == {"about it"}
    documentation = dataset.documentation()
    assert documentation["bibtex_ids"] == ["Parent1999", "Zhan2022Interpolation"]
    assert documentation["pretty_name"] != "Parent"
    # One corpus for all: an index of it serves every bucket.
    handlers = {id(ir_datasets.load(identifier).docs_handler()) for identifier in ids}
    assert len(handlers) == 1
    # The folders are there as well, over a corpus that was written once.
    assert (tmp_path / "o" / "bucket-2" / "extrapolation" / "corpus.jsonl").samefile(
        tmp_path / "o" / "corpus.jsonl"
    )


def test_sizes_in_ids(folder, tiny_cosine, tmp_path):
    from beir_cocodr.resampling.manifest import short_size

    assert [short_size(size) for size in (45_000, 1_000, 999, 45_100, 200_000)] == [
        "45k",
        "1k",
        "999",
        "45100",
        "200k",
    ]
    restrain(folder, tiny_cosine, tmp_path / "o", ks=(1, 2), base="mine/part")
    ids = register_resampled(tmp_path / "o")
    assert "cocodr/restrain/mine/part/k-2/interpolation/train" in ids


def test_register_finds_what_was_resampled_here_and_again_does_no_harm(
    folder, tiny_cosine, tmp_path
):
    restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    identifier = f"cocodr/restrain/{folder.name}/size-16/extrapolation/train"
    with pytest.raises(KeyError):
        ir_datasets.load(identifier)
    ids = register()
    assert identifier in ids
    assert register() == ids
    assert register_resampled(tmp_path / "o") == ids
    assert ir_datasets.load(identifier).queries_count() > 0
    shutil.rmtree(tmp_path / "o")
    assert register() == []


def test_the_newest_of_equal_ids_is_registered(folder, tiny_cosine, tmp_path, caplog):
    for seed in (1, 2):
        restrain(folder, tiny_cosine, tmp_path / f"seed-{seed}", sizes=(16,), seed=seed)
    with caplog.at_level("INFO"):
        register()
    assert "seed-1 is not registered" in caplog.text
    identifier = f"cocodr/restrain/{folder.name}/size-16/extrapolation/train"
    newest = load_collection(tmp_path / "seed-2" / "extrapolation", "train").qrels
    assert ir_datasets.load(identifier).qrels_dict() == newest
    with pytest.raises(InputError, match=r"already.*seed-2"):
        register_resampled(tmp_path / "seed-1")


def test_every_command_takes_the_ids(folder, tiny_cosine, tmp_path, capsys):
    restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    identifier = f"irds:cocodr/restrain/{folder.name}/size-16/extrapolation"
    queries = {}
    for split in ("train", "test"):
        ours = load_collection(identifier, split)
        there = load_collection(tmp_path / "o" / "extrapolation", split)
        queries[split] = there.queries
        assert (ours.queries, ours.qrels) == (there.queries, there.qrels)
        assert ours.documents.content_hash == there.documents.content_hash
    with pytest.raises(SystemExit) as status:
        main(["overlap", "--train", identifier, "--test", identifier, "--json"])
    assert status.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["train"]["queries"] == len(queries["train"])


def test_a_base_id_of_the_users(folder, tiny_cosine, tmp_path):
    restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    register_folder(folder, f"mine/{folder.name}")
    ids = register_resampled(tmp_path / "o", f"mine/{folder.name}")
    assert ids[0] == f"cocodr/restrain/mine/{folder.name}/size-16/interpolation"
    assert (
        ir_datasets.load(ids[0]).docs_handler()
        is ir_datasets.load(f"mine/{folder.name}").docs_handler()
    )
    check(f"{ids[0]}/train", tmp_path / "o" / "interpolation", "train", BeirTitleDoc, GenericQuery)


@pytest.fixture
def bad(folder, tiny_cosine, tmp_path, beir_folder) -> dict[str, Callable[[], Any]]:
    restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    register_folder(beir_folder, f"small-{folder.name}")
    return {
        "base id 'no/such/id'": lambda: register_resampled(tmp_path / "o", "no/such/id"),
        "48 documents.*200": lambda: register_resampled(tmp_path / "o", f"small-{folder.name}"),
        "manifest.json": lambda: register_resampled(tmp_path),
        "not know the id": lambda: load_collection("irds:cocodr/restrain/nobody/size-1k/x"),
    }


def test_bad_input_is_one_clear_line(bad):
    for message, call in bad.items():
        with pytest.raises(InputError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_corpus_that_is_not_the_one_that_was_resampled_is_refused(folder, tiny_cosine, tmp_path):
    restrain(folder, tiny_cosine, tmp_path / "o", sizes=(16,))
    with (folder / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "new", "title": "", "text": "one more"}\n')
    dataset = ir_datasets.load(register_resampled(tmp_path / "o")[0])
    assert dataset.queries_count() == 8
    with pytest.raises(InputError, match="other documents"):
        next(dataset.docs_iter())
