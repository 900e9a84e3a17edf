"""Training data in the forms of GPL, Tevatron and sentence-transformers: read by their own loaders,
and read back.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from beir.datasets.data_loader import GenericDataLoader
from datasets import load_dataset

from beir_cocodr import FinetuneOptions, finetune, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.training.finetuning.exchange import ExportOptions, export
from beir_cocodr.training.hard_negatives.bm25_negatives import relevant_rows
from beir_cocodr.training.hard_negatives.negative_files import read_hard_negatives


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder, "train")


@pytest.fixture(scope="module")
def gpl(beir_folder, tiny_cosine, tmp_path_factory):
    output = tmp_path_factory.mktemp("gpl") / "o"
    record = export(
        str(beir_folder),
        output,
        ["bm25", str(tiny_cosine)],
        options=ExportOptions(form="gpl", negatives=6),
    )
    assert (record.queries, record.without_negatives, record.split) == (16, 0, "train")
    assert record.files == [
        "corpus.jsonl",
        "hard-negatives.jsonl",
        "qgen-qrels/train.tsv",
        "qgen-queries.jsonl",
    ]
    return output


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def positive(collection):
    return {q: {d: g for d, g in grades.items() if g > 0} for q, grades in collection.qrels.items()}


def test_gpls_folder_is_read_by_beir_and_by_us(
    gpl, collection, beir_folder, tiny_cosine, assert_same_figure
):
    corpus, queries, qrels = GenericDataLoader(str(gpl), prefix="qgen").load(split="train")
    assert (queries, qrels) == (collection.queries, positive(collection))
    for split in ("train", "qgen-train"):
        ours = load_collection(gpl, split)
        assert (dict(ours.documents), ours.queries, ours.qrels) == (corpus, queries, qrels)
    pairs = [sum(map(len, each.values())) for each in (qrels, ours.qrels)]
    assert_same_figure("GPL", 'GenericDataLoader(FOLDER, prefix="qgen")', "pairs", *pairs)
    found = lines(gpl / "hard-negatives.jsonl")
    assert [row["qid"] for row in found] == list(queries)
    for row in found:
        assert set(row["pos"]) == set(qrels[row["qid"]])
        assert list(row["neg"]) == ["bm25", str(tiny_cosine)]
        best = [
            d
            for d, _ in BM25(collection.documents)
            .search({"q": queries[row["qid"]]}, 20)
            .results(corpus_of(collection))["q"]
        ]
        assert (
            row["neg"]["bm25"] == [document for document in best if document not in row["pos"]][:6]
        )
        assert all(len(ids) == 6 and not set(ids) & set(row["pos"]) for ids in row["neg"].values())


def corpus_of(collection):
    return collection.documents


def test_generated_queries_beside_others_are_a_split_of_their_own(gpl, beir_folder, tmp_path):
    shutil.copytree(beir_folder, tmp_path / "both")
    shutil.copytree(gpl, tmp_path / "both", dirs_exist_ok=True)
    with (tmp_path / "both" / "qgen-queries.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "genQ1", "text": "wing"}) + "\n")
    with (tmp_path / "both" / "qgen-qrels" / "train.tsv").open("a") as file:
        file.write("genQ1\td0\t1\n")
    assert "genQ1" in load_collection(tmp_path / "both", "qgen-train").queries
    assert "genQ1" not in load_collection(tmp_path / "both", "train").queries
    with pytest.raises(InputError, match="qgen-train, test, train"):
        load_collection(tmp_path / "both", "qgen-dev")


def test_hard_negatives_are_read_back_and_trained_with(
    gpl, collection, tiny_cosine, tmp_path, monkeypatch
):
    pools = read_hard_negatives(gpl / "hard-negatives.jsonl", collection)
    positives = relevant_rows(collection)
    assert list(pools) == list(positives)
    for query, row in zip(pools, lines(gpl / "hard-negatives.jsonl"), strict=True):
        ids = collection.documents.ids(pools[query])
        both = [id for pair in zip(*row["neg"].values(), strict=True) for id in pair]
        assert ids == list(dict.fromkeys(both))
    monkeypatch.setattr(
        "beir_cocodr.training.finetuning.finetune.bm25_negatives",
        lambda *_: pytest.fail("BM25 was asked"),
    )
    file = str(gpl / "hard-negatives.jsonl")
    options = FinetuneOptions(max_steps=1, batch_size=4, hard_negatives=file)
    record = finetune(str(tiny_cosine), str(gpl), output=tmp_path / "o", options=options)
    assert record.options["hard_negatives"] == file


@pytest.mark.parametrize("form", ["run", "numbers", "pids", "jsonl", "lists", "parquet"])
def test_hard_negatives_of_other_tools(form, tmp_path):
    """The same negatives in each form; one positive, one unknown document and one query of no
    interest among them.
    """
    from datasets import Dataset

    corpus = {str(i): {"title": f"t{i}" if i % 2 else "", "text": f"text {i}"} for i in range(6)}
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, **d}) + "\n" for i, d in corpus.items())
    )
    queries = {"7": "seven", "8": "eight"}
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in queries.items())
    )
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n7\t0\t1\n8\t1\t1\n")
    found = {"7": ["3", "0", "2"], "8": ["4", "99", "3"], "9": ["1", "2", "3"]}
    texts = {
        i: f"{d['title']} {d['text']}".strip() if i != "3" else d["text"] for i, d in corpus.items()
    }
    columns = [{"query": queries.get(q, "?"), "positive": "x"} for q in found]
    for row, ids in zip(columns, found.values(), strict=True):
        values = [texts.get(i, "nowhere") for i in ids]
        row |= (
            {"negative": values}
            if form == "lists"
            else {f"negative_{n}": v for n, v in enumerate(values, 1)}
        )
    records = {
        "numbers": [
            {"qid": int(q), "pos": [], "neg": {"bm25": [int(i) for i in ids]}}
            for q, ids in found.items()
        ],
        "pids": [
            {"qid": q, "pos": [], "neg": {"a": [{"pid": i, "s": 1} for i in ids]}}
            for q, ids in found.items()
        ],
    }
    file = (
        tmp_path / f"n.{'parquet' if form == 'parquet' else 'trec' if form == 'run' else 'jsonl'}"
    )
    if form == "parquet":
        Dataset.from_list(columns).to_parquet(str(file))
    elif form == "run":
        file.write_text(
            "".join(
                f"{q} Q0 {d} {n} {9 - n} x\n" for q, ds in found.items() for n, d in enumerate(ds)
            )
        )
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in records.get(form, columns)))
    collection = load_collection(folder, "train")
    pools = read_hard_negatives(file, collection)
    assert {q: collection.documents.ids(rows) for q, rows in pools.items()} == {
        "7": ["3", "2"],
        "8": ["4", "3"],
    }


def test_columns_without_negatives_are_named(collection, tmp_path):
    (tmp_path / "n.jsonl").write_text('{"query": "q", "positive": "p"}\n')
    with pytest.raises(InputError, match=r"n.jsonl:1: not in columns .*query, positive"):
        read_hard_negatives(tmp_path / "n.jsonl", collection)


def test_rows_of_parquet_are_numbered_over_its_batches(collection, tmp_path):
    rows = 70_000  # more than pyarrow reads at a time
    pq.write_table(
        pa.table({"query": ["q"] * rows, "negative": [*["n"] * (rows - 1), None]}),
        tmp_path / "n.parquet",
    )
    with pytest.raises(InputError, match=r"n.parquet:70000: not in columns"):
        read_hard_negatives(tmp_path / "n.parquet", collection)


def test_tevatrons_lines_have_texts_and_are_read_back(
    collection, beir_folder, gpl, tmp_path, assert_same_figure
):
    record = export(
        str(beir_folder), tmp_path / "t", options=ExportOptions(form="tevatron", negatives=4)
    )
    assert record.files == ["corpus.jsonl", "queries.jsonl", "train.jsonl"]
    rows = load_dataset(
        "json",
        data_files=str(tmp_path / "t" / "train.jsonl"),
        split="train",
        cache_dir=str(tmp_path),
    )
    assert rows.column_names == ["query_id", "query", "positive_passages", "negative_passages"]
    assert {row["query_id"]: row["query"] for row in rows} == collection.queries
    for passage in (
        p for row in rows for p in (*row["positive_passages"], *row["negative_passages"])
    ):
        assert collection.documents[passage["docid"]] == {
            "title": passage["title"],
            "text": passage["text"],
        }
    corpus = {
        row["docid"]: {"title": row["title"], "text": row["text"]}
        for row in lines(tmp_path / "t" / "corpus.jsonl")
    }
    assert corpus == dict(collection.documents)
    # And back: Tevatron's file as GPL's folder, with the same positives and negatives.
    export(str(tmp_path / "t" / "train.jsonl"), tmp_path / "back")
    back = load_collection(tmp_path / "back", "train")
    assert back.queries == collection.queries
    assert {q: set(grades) for q, grades in back.qrels.items()} == {
        q: set(g) for q, g in positive(collection).items()
    }
    assert all(back.documents[id] == collection.documents[id] for id in back.documents)
    again = {
        row["qid"]: row["neg"]["tevatron"]
        for row in lines(tmp_path / "back" / "hard-negatives.jsonl")
    }
    assert again == {
        row["query_id"]: [p["docid"] for p in row["negative_passages"]] for row in rows
    }
    assert not (tmp_path / "back" / "corpus.jsonl").is_symlink()
    pairs = sum(len(row["positive_passages"]) for row in rows), sum(map(len, back.qrels.values()))
    assert_same_figure("Tevatron", 'load_dataset("json", data_files=FILE)', "pairs", *pairs)


def test_columns_are_those_of_sentence_transformers(collection, beir_folder, tiny_cosine, tmp_path):
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    record = export(
        str(beir_folder),
        tmp_path / "o",
        options=ExportOptions(form="sentence-transformers", negatives=2),
    )
    rows = load_dataset(
        "parquet",
        data_files=str(tmp_path / "o" / "train.parquet"),
        split="train",
        cache_dir=str(tmp_path),
    )
    assert rows.column_names == ["query", "positive", "negative_1", "negative_2"]
    assert len(rows) == sum(map(len, positive(collection).values()))
    texts = {f"{d['title']} {d['text']}".strip(): id for id, d in collection.documents.items()}
    relevant = {collection.queries[q]: set(ids) for q, ids in positive(collection).items()}
    assert all(texts[row["positive"]] in relevant[row["query"]] for row in rows)
    assert all(
        texts[row[f"negative_{n}"]] not in relevant[row["query"]] for row in rows for n in (1, 2)
    )
    assert record.without_negatives == 0
    model = SentenceTransformer(str(tiny_cosine), device="cpu")
    arguments = Arguments(
        str(tmp_path / "run"),
        max_steps=1,
        per_device_train_batch_size=4,
        report_to="none",
        use_cpu=True,
    )
    trainer = SentenceTransformerTrainer(
        model, arguments, rows, loss=MultipleNegativesRankingLoss(model)
    )
    assert np.isfinite(trainer.train().training_loss)


def test_the_command_prints_its_record(beir_folder, tmp_path, capsys):
    words = [
        "--dataset",
        beir_folder,
        "--form",
        "gpl",
        "--negatives",
        3,
        "--output",
        tmp_path / "o",
    ]
    with pytest.raises(SystemExit) as status:
        main(["export", *map(str, words)])
    assert not status.value.code
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "o" / "export.json").read_text())
    assert printed["retrievers"] == ["bm25"]


def test_bad_input_names_file_and_line(collection, beir_folder, tmp_path):
    with pytest.raises(InputError, match="form 'csv'"):
        export(str(beir_folder), tmp_path / "o", options=ExportOptions(form="csv"))
    with pytest.raises(InputError, match="negatives"):
        export(str(beir_folder), tmp_path / "o", options=ExportOptions(negatives=1000))
    assert not (tmp_path / "o").exists()
    passage = {"docid": "a", "title": "", "text": "x"}
    row = {"query_id": "q", "query": "x", "positive_passages": [passage], "negative_passages": []}
    file = tmp_path / "train.jsonl"
    for second, reason in (
        (row, ":2: query 'q' appears a second time"),
        (
            {**row, "query_id": "r", "negative_passages": [{**passage, "text": "y"}]},
            ":2: passage 'a' has a different text",
        ),
        ({"query_id": "r"}, ":2: not in Tevatron's form"),
    ):
        file.write_text(json.dumps(row) + "\n" + json.dumps(second) + "\n")
        with pytest.raises(InputError, match=reason):
            export(str(file), tmp_path / "o")
    file = tmp_path / "hard-negatives.jsonl"
    for content, reason in (
        ("[]", "broken JSON"),
        ('{"qid": "q1"}', ":1: not in GPL's form"),
        ('{"qid": "z", "neg": {}}', "no negative"),
    ):
        file.write_text(content + "\n")
        with pytest.raises(InputError, match=reason):
            read_hard_negatives(file, collection)
