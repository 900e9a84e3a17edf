"""Pyserini's command lines over a store and a Lucene index, with our figures."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import ir_measures
import pytest
from beir_cocodr.plugins.lucene import find_java

from beir_cocodr import load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.retrieval.store.encode import encode
from beir_cocodr.retrieval.store.record import EncodeOptions

pytest.importorskip(
    "pyserini", reason="pyserini is not installed: pip install 'beir-cocodr[pyserini]'"
)
pytestmark = pytest.mark.java

FEEDBACK = "beir-cocodr:feedback:runs/fused"


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    try:
        find_java()
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def made(beir_folder, tiny_cosine, tmp_path_factory) -> Path:
    """A store, topics, and our own figures."""
    folder = tmp_path_factory.mktemp("made")
    encode(
        str(beir_folder),
        str(tiny_cosine),
        folder / "store",
        options=EncodeOptions(precision="fp32"),
    )
    lines = [f"{id}\t{text}\n" for id, text in load_collection(beir_folder).queries.items()]
    (folder / "topics.tsv").write_text("".join(lines))
    names = {"dense": str(tiny_cosine), "lucene": "lucene-bm25"}
    evaluate(names, str(beir_folder), output=folder / "ours", measures="nDCG@10 AP@100")
    return folder


def command(*words: object) -> None:
    with pytest.raises(SystemExit) as status:
        main(["pyserini", *map(str, words)])
    assert status.value.code == 0


def figures(run: Path, made: Path, model: str, beir_folder: Path) -> tuple[float, float]:
    """nDCG@10 of Pyserini's run, and ours; all measures are the same."""
    qrels = load_collection(beir_folder).qrels
    ours = json.loads((made / "ours" / "results.json").read_text())["models"][model]["measures"]
    measures = {name: ir_measures.parse_measure(name) for name in ours}
    found = ir_measures.calc_aggregate(
        measures.values(), qrels, ir_measures.read_trec_run(str(run))
    )
    assert {name: found[measure] for name, measure in measures.items()} == pytest.approx(
        ours, abs=1e-5
    )
    return found[measures["nDCG@10"]], ours["nDCG@10"]


@pytest.mark.parametrize("given", ["store", "encoder", "batches"])
def test_a_store_is_searched_with_its_own_or_a_named_encoder(
    given, made, beir_folder, tiny_cosine, tmp_path, capfd, assert_same_figure
):
    index = [f"--index={made / 'store'}"] if given == "encoder" else ["--index", made / "store"]
    more = {
        "encoder": ["--encoder", f"beir-cocodr:{tiny_cosine}"],
        "batches": ["--batch-size", 5, "--threads", 2],
    }
    run = tmp_path / "run.txt"
    front = [] if given == "batches" else ["--"]
    command(
        *front,
        "search.faiss",
        *index,
        "--topics",
        made / "topics.tsv",
        "--output",
        run,
        *more.get(given, []),
    )
    assert_same_figure(
        "Pyserini", f"search.faiss: {given}", "nDCG@10", *figures(run, made, "dense", beir_folder)
    )
    assert "Pyserini has ended" in capfd.readouterr().err


def test_lucene_indexes_and_searches(made, beir_folder, tmp_path, assert_same_figure):
    (tmp_path / "texts").mkdir()
    with (tmp_path / "texts" / "corpus.jsonl").open("w") as file:
        for id, document in load_collection(beir_folder).documents.items():
            contents = f"{document['title']} {document['text']}".strip()
            file.write(json.dumps({"id": id, "contents": contents}) + "\n")
    build = [
        "--collection",
        "JsonCollection",
        "--generator",
        "DefaultLuceneDocumentGenerator",
        "--threads",
        1,
    ]
    command("index.lucene", *build, "--input", tmp_path / "texts", "--index", tmp_path / "index")
    run = tmp_path / "run.txt"
    search = ["--topics", made / "topics.tsv", "--output", run, "--bm25", "--k1", 0.9, "--b", 0.4]
    command("search.lucene", "--index", tmp_path / "index", *search)
    assert_same_figure(
        "Pyserini", "search.lucene", "nDCG@10", *figures(run, made, "lucene", beir_folder)
    )


def write_collection(folder: Path, beir_folder: Path) -> Path:
    """Write the documents as Pyserini's ``encode`` reads them."""
    lines = []
    for id, document in load_collection(beir_folder).documents.items():
        lines.append(json.dumps({"id": id, "title": document["title"], "text": document["text"]}))
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "corpus.jsonl"


def test_a_corpus_is_encoded_by_an_encoder_of_ours(
    made, beir_folder, tiny_cosine, tmp_path, assert_same_figure
):
    corpus = write_collection(tmp_path, beir_folder)
    fields = ["--fields", "title", "text"]
    source = ["encode", "input", "--corpus", corpus, *fields, "--delimiter", "|", "output"]
    encoder = ["encoder", "--encoder", f"beir-cocodr:{tiny_cosine}", "--fields", "title", "text"]
    encoder += ["--device", "cpu"]
    command(*source, "--embeddings", tmp_path / "index", "--to-faiss", *encoder)
    run = tmp_path / "run.txt"
    search = ["--topics", made / "topics.tsv", "--output", run]
    search += ["--encoder", f"beir-cocodr:{tiny_cosine}"]
    command("search.faiss", "--index", tmp_path / "index", *search)
    assert_same_figure(
        "Pyserini",
        "encode, search.faiss",
        "nDCG@10",
        *figures(run, made, "dense", beir_folder),
    )
    command(*source, "--embeddings", tmp_path / "lines", *encoder)
    [first, *_] = (tmp_path / "lines" / "embeddings.jsonl").read_text().splitlines()
    assert sum(number**2 for number in json.loads(first)["vector"]) == pytest.approx(1, abs=1e-5)


def test_trec_eval_runs_with_the_java_that_runs_lucene(
    made, beir_folder, tmp_path, monkeypatch, capfd, assert_same_figure
):
    """A ``java`` on the PATH that does not run is passed by."""
    wrong = tmp_path / "bin" / "java"
    wrong.parent.mkdir()
    wrong.write_text("#!/bin/sh\nexit 1\n")
    wrong.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrong.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    lines = []
    for query, grades in load_collection(beir_folder).qrels.items():
        lines += [f"{query} 0 {document} {grade}\n" for document, grade in grades.items()]
    (tmp_path / "qrels.txt").write_text("".join(lines))
    run = made / "ours" / "dense.run"
    command("eval.trec_eval", "-c", "-m", "ndcg_cut.10", tmp_path / "qrels.txt", run)
    printed = re.findall(r"ndcg_cut_10\s+all\s+([0-9.]+)", capfd.readouterr().out)
    ours = json.loads((made / "ours" / "results.json").read_text())["models"]["dense"]["measures"]
    assert_same_figure("Pyserini", "eval.trec_eval", "nDCG@10", float(printed[-1]), ours["nDCG@10"])


def test_bad_input_is_one_line(made, tmp_path, capsys):
    search = [
        "search.faiss",
        "--index",
        made / "store",
        "--output",
        tmp_path / "run.txt",
        "--topics",
    ]
    (tmp_path / "no.json").write_text("{}")
    for words, reason in (
        (["search.nothing"], "no module 'search.nothing'"),
        (["../evil"], "no module"),
        (
            ["encode.query", "--topics", "t", "--output", "o", "--encoder", "beir-cocodr:minilm"],
            "write_encoded_queries",
        ),
        ([*search, "none"], "pyserini search.faiss: "),  # Pyserini 2 asks the network for names
        ([*search, made / "topics.tsv", "--encoder", f"beir-cocodr:{tmp_path}"], str(tmp_path)),
        (
            [*search, made / "topics.tsv", "--encoder", f"beir-cocodr:feedback:{tmp_path}"],
            f"feedback:{tmp_path} is a search and no encoder",
        ),
        (
            ["search.faiss", "--index", f"feedback:{made / 'store'}", *search[3:], "topics.tsv"],
            f"name {made / 'store'} alone",
        ),
        (
            [*"encode input --corpus c output --embeddings e encoder --encoder".split(), FEEDBACK],
            "feedback:runs/fused is a search and no encoder",
        ),
        (
            ["search.faiss", "--index", tmp_path / "no.json", *search[3:], made / "topics.tsv"],
            "no.json is a file",
        ),
    ):
        with pytest.raises(SystemExit) as status:
            main(["pyserini", *map(str, words)])
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert (status.value.code, error[:6]) == (2, "error:")
        assert reason in error
