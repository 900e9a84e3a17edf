from __future__ import annotations

import json
from dataclasses import replace

import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.provenance import (
    RECORD_FILE,
    TrainingRecord,
    collection_provenance,
    contamination_statement,
    read_record,
    write_record,
)

TEXTS = {"d1": "wing drag", "d2": "heat flow", "d3": "library index", "d4": ""}
QUERIES = {"q1": "what is drag", "q2": "what is heat", "q3": "what is a library"}


def folder(path, documents, queries, split="test"):
    (path / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines = [json.dumps({"_id": id_, "text": text}) for id_, text in texts.items()]
        (path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    rows = [f"{query}\t{document}\t1" for query, document in zip(queries, documents, strict=False)]
    (path / "qrels" / f"{split}.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n"
    )
    return path


@pytest.fixture
def evaluated(tmp_path):
    return load_collection(folder(tmp_path / "evaluated", TEXTS, QUERIES))


def model(path, shown, stage="finetune", parent=None, base="some/base"):
    path.mkdir()
    write_record(path, TrainingRecord(stage, base, seen=tuple(shown), parent=parent))
    return str(path)


def statement(name, collection):
    return contamination_statement([name], collection)[name]


def test_the_very_collection_is_known_by_its_hashes(evaluated, tmp_path):
    shown = [collection_provenance(evaluated, queries=True)]
    shown[0] = replace(shown[0], dataset="moved/away")  # hashes are enough
    found = statement(model(tmp_path / "m", shown), evaluated)
    assert (found.documents_seen, found.queries_seen) == (4, 3)
    assert (found.labels_seen, found.complete) == (True, True)
    assert found.query_ids == ["q1", "q2", "q3"]
    assert "very labels" in " ".join(found.sentences)


def test_pretraining_on_the_corpus_sees_documents_and_no_query(evaluated, tmp_path):
    found = statement(
        model(tmp_path / "m", [collection_provenance(evaluated, queries=False)], "coco"), evaluated
    )
    assert (found.documents_seen, found.queries_seen, found.labels_seen) == (4, 0, False)
    assert found.collections[0].stages == ["coco"]


def test_another_collection_is_compared_by_text_whatever_its_ids(evaluated, tmp_path):
    documents = {"x1": "heat flow", "x2": "other", "x3": "more", "x4": ""}
    queries = {"y1": "what is a library", "d1": "unrelated", "q1": "not the same text"}
    other = folder(tmp_path / "other", documents, queries, "train")
    shown = [collection_provenance(load_collection(other, "train"), queries=True)]
    found = statement(model(tmp_path / "m", shown), evaluated)
    assert (found.documents_seen, found.document_ids) == (
        1,
        ["d2"],
    )  # two empty documents are not alike
    assert (found.queries_seen, found.query_ids) == (1, ["q3"])
    assert (found.labels_seen, found.complete) == (False, True)


def test_what_cannot_be_looked_at_is_unknown_and_said_to_be(evaluated, tmp_path):
    other = folder(tmp_path / "other", {"x": "heat flow"}, {"y": "what is drag"}, "train")
    shown = [collection_provenance(load_collection(other, "train"), queries=True)]
    (other / "corpus.jsonl").write_text('{"_id": "x", "text": "changed since"}\n')
    changed = statement(model(tmp_path / "m", shown), evaluated)
    gone = statement(model(tmp_path / "n", [replace(shown[0], dataset="not-here")]), evaluated)
    for found in (changed, gone):
        assert (found.documents_seen, found.queries_seen, found.complete) == (0, 0, False)
        assert found.collections[0].documents_shared is None
        assert "at least 0 of the 4" in " ".join(found.sentences)
        assert "unknown" in " ".join(found.sentences)


def test_ancestors_are_merged_and_texts_counted_once(evaluated, tmp_path):
    corpus, labelled = (
        collection_provenance(evaluated, queries=False),
        collection_provenance(evaluated, queries=True),
    )
    first = TrainingRecord("coco", "minilm", seen=(corpus,))
    second = TrainingRecord("finetune", "a", seen=(labelled,), parent=first)
    name = model(tmp_path / "m", [labelled, corpus], "distill", second, "b")
    found = statement(f"hybrid:{name}", evaluated)
    assert (found.stages, found.root) == (["coco", "finetune", "distill"], "minilm")
    assert [shown.stages for shown in found.collections] == [
        ["coco", "distill"],
        ["finetune", "distill"],
    ]
    assert (found.documents_seen, found.queries_seen) == (4, 3)
    assert "minilm; what minilm has seen is unknown" in found.sentences[0]


def test_models_without_a_record(evaluated, tiny_bert):
    found = contamination_statement(["bm25", str(tiny_bert)], evaluated)
    assert found["bm25"].sentences == ["BM25 is not trained."]
    assert "has seen is unknown" in found[str(tiny_bert)].sentences[0]


def test_generated_queries_are_compared_too(evaluated, tmp_path):
    from beir_cocodr.generation.generate import generate_queries
    from beir_cocodr.training.pretraining.pretrain import context_provenance

    corpus = folder(tmp_path / "other", {"x": "what is drag. heat flow on a plate"}, {"y": "none"})
    generate_queries(corpus, "lexical", tmp_path / "generated")
    collection = load_collection(corpus, labels="none")
    shown = context_provenance([str(tmp_path / "generated")], [collection])
    texts = [
        json.loads(line)["text"]
        for line in (tmp_path / "generated" / "queries.jsonl").read_text().splitlines()
    ]
    queries = {"q1": texts[0], "q2": "asked by nobody"}
    judged = load_collection(folder(tmp_path / "judged", TEXTS, queries))
    found = statement(model(tmp_path / "m", shown, "qc"), judged)
    assert (found.query_ids, found.complete) == (["q1"], True)


def test_a_record_of_real_training_is_read(beir_folder, tiny_bert, tmp_path):
    from beir_cocodr.training.options import PretrainOptions
    from beir_cocodr.training.pretraining.pretrain import pretrain

    pretrain(
        str(tiny_bert),
        [str(beir_folder)],
        output=tmp_path / "m",
        options=PretrainOptions(max_steps=1, batch_size=4),
    )
    collection = load_collection(beir_folder)
    found = statement(str(tmp_path / "m"), collection)
    assert (found.stages, found.root) == (["coco"], str(tiny_bert))
    assert (found.documents_seen, found.queries_seen) == (48, 0)


def test_a_broken_record_is_named(evaluated, tmp_path):
    (tmp_path / RECORD_FILE).write_text("{")
    with pytest.raises(InputError, match=RECORD_FILE):
        contamination_statement([str(tmp_path)], evaluated)


def test_a_record_is_the_same_after_its_file_and_counts_stand_among_its_keys(evaluated, tmp_path):
    given = collection_provenance(evaluated, queries=True)
    parent = TrainingRecord("coco", "minilm", seen=(given,), details={"documents_with_text": 3})
    record = TrainingRecord(
        "finetune",
        "a",
        steps=4,
        options={"seed": 7},
        details={"pairs": 24, "mining": None},
        parent=parent,
    )
    record = write_record(tmp_path, record)
    content = json.loads((tmp_path / RECORD_FILE).read_text())
    assert (content["pairs"], content["mining"], content["parent"]["documents_with_text"]) == (
        24,
        None,
        3,
    )
    assert content["parent"]["seen"][0]["queries_sha256"] == given.queries_sha256
    assert "teacher" not in content
    assert read_record(tmp_path) == record
    assert [found.stage for found in record.lineage()] == ["coco", "finetune"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"schema": 9, "stage": "x"}, "schema 9"),
        ({}, "stage"),
        ({"stage": "x", "steps": "many"}, "steps"),
    ],
)
def test_a_record_of_another_version_is_one_clear_error(content, message, tmp_path):
    (tmp_path / RECORD_FILE).write_text(json.dumps(content))
    with pytest.raises(InputError, match=rf"{RECORD_FILE}.*{message}"):
        read_record(tmp_path)


def test_the_table_of_a_training_has_a_row_for_each_training_of_its_lineage(evaluated):
    corpus = collection_provenance(evaluated, queries=False)
    parent = TrainingRecord("coco", "minilm", seen=(corpus,), steps=8)
    labelled = replace(corpus, dataset="scifact")
    record = TrainingRecord(
        "finetune", "runs/coco", seen=(labelled, corpus), steps=5, training_loss=0.25, parent=parent
    )
    table = record.to_frame()
    assert table.stage.tolist() == ["coco", "finetune"]
    assert table.base.tolist() == ["minilm", "runs/coco"]
    assert table.collections.tolist() == [corpus.dataset, f"scifact, {corpus.dataset}"]
    assert table.steps.tolist() == [8, 5]
    assert table.training_loss.tolist()[1] == 0.25
    html = record._repr_html_()
    assert "<table" in html
    assert "scifact" in html
