"""Sensible output, or one clear line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import write_beir
from page_reader import Page

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import CompareOptions, compare
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.report.html.page import write_report


def copied(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "copied"))


def write_run(path: Path, ranked: dict[str, list[str]]) -> str:
    lines = [
        f"{query} Q0 {document} {rank} {-rank} tag\n"
        for query, documents in ranked.items()
        for rank, document in enumerate(documents, 1)
    ]
    path.write_text("".join(lines))
    return str(path)


def test_the_command(two_models, tmp_path, capsys):
    folder = copied(two_models, tmp_path)
    with pytest.raises(SystemExit) as status:
        main(["report", str(folder)])
    assert status.value.code == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == str(folder / "report.html")
    assert Page(folder / "report.html").find("p", class_="sentence") == [out[0]]
    with pytest.raises(SystemExit) as status:  # over our own
        main(["report", str(folder), "--queries", "3", "--json"])
    assert status.value.code == 0
    assert json.loads(capsys.readouterr().out)["queries_shown"] == 3
    assert len(Page(folder / "report.html").data["queries"]) == 3


def test_what_is_not_ours_is_left_alone(two_models, tmp_path, capsys):
    folder = copied(two_models, tmp_path)
    (folder / "report.html").write_text("<p>mine</p>")
    with pytest.raises(SystemExit) as status:
        main(["report", str(folder)])
    assert status.value.code == 2
    assert "is not a report of ours" in capsys.readouterr().err
    assert (folder / "report.html").read_text() == "<p>mine</p>"
    assert not list(folder.glob(".report*"))
    with pytest.raises(InputError, match="a folder"):
        write_report(folder, tmp_path)


def test_nothing_to_report(tmp_path):
    for name, content, message in (
        ("empty", None, "empty.*--output"),
        ("other", "notes.txt", "no results"),
        ("runs", "a.run", "runs .*no results.json"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        if content:
            (folder / content).write_text("q Q0 d 1 1.0 t\n")
        with pytest.raises(InputError, match=message):
            write_report(folder)
        assert not (folder / "report.html").exists()
    with pytest.raises(InputError, match="not a folder"):
        write_report(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("results.json", "{", "is not JSON"),
        ("results.json", "[]", "holds no JSON object"),
        ("results.json", '{"dataset": "x"}', "required"),
        ("comparison.json", "{}", "required"),
        ("adapt.json", "{}", "required"),
        ("training.json", "{", "is not JSON"),
        ("training.json", "{}", "stage"),
    ],
)
def test_broken_files(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        write_report(tmp_path)
    assert name in str(error.value)
    assert not (tmp_path / "report.html").exists()


def test_an_adaptation_without_what_it_found(adapted, tmp_path):
    content = json.loads((adapted / "adapt.json").read_text())
    (tmp_path / "adapt.json").write_text(json.dumps(content | {"results": None}))
    with pytest.raises(InputError, match=r"adapt.json .*neither results nor a comparison"):
        write_report(tmp_path)


def test_broken_cluster_weights_and_curves(adapted, tmp_path):
    folder = Path(shutil.copytree(adapted / "models" / "source", tmp_path / "m"))
    log = folder / "episodes" / "0" / "cluster_weights.jsonl"
    whole = log.read_text()
    log.write_text(whole + '{"step": 500, "weights": [1.0]}\n')
    with pytest.raises(InputError, match=r"cluster_weights.jsonl:41: .*clusters"):
        write_report(folder)
    log.write_text(whole)
    (folder / "curves.json").write_text("{}")
    with pytest.raises(InputError, match=r"curves.json .*not"):
        write_report(folder)


def test_scores_of_different_queries(two_models, tmp_path):
    folder = copied(two_models, tmp_path)
    file = next(folder.glob("bm25.per_query.tsv"))
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-2]) + "\n")
    with pytest.raises(InputError, match=r"different queries \(q\d+, q\d+\)"):
        write_report(folder)
    file.write_text("\n".join([*lines, "new\tmuch\t1"]) + "\n")
    with pytest.raises(InputError, match=r"bm25.per_query.tsv:22: .*'much'"):
        write_report(folder)


def test_a_broken_run(two_models, tmp_path):
    folder = copied(two_models, tmp_path)
    lines = (folder / "bm25.run").read_text().splitlines()
    (folder / "bm25.run").write_text("\n".join([lines[0], " ".join(lines[1].split()[:4])]) + "\n")
    with pytest.raises(InputError, match=r"bm25.run:2: .*TREC run"):
        write_report(folder)


def test_a_run_without_queries_that_were_scored(two_models, tmp_path, caplog):
    folder = copied(two_models, tmp_path)
    first = (folder / "bm25.run").read_text().splitlines()[0]
    (folder / "bm25.run").write_text(first + "\n")
    write_report(folder)
    assert "bm25.run is not complete" in caplog.text


def test_another_collection_than_was_judged(two_models, tmp_path):
    other = write_beir(tmp_path / "other", seed=5)
    with pytest.raises(InputError, match="not the recorded collection"):
        write_report(two_models, tmp_path / "r.html", dataset=str(other))
    with pytest.raises(InputError, match="nowhere"):
        write_report(two_models, tmp_path / "r.html", dataset="nowhere/to/be")
    with pytest.raises(InputError, match="nonsense"):
        write_report(two_models, tmp_path / "r.html", split="nonsense")
    assert not (tmp_path / "r.html").exists()
    folder = copied(two_models, tmp_path)
    results = json.loads((folder / "results.json").read_text()) | {"dataset": str(other)}
    (folder / "results.json").write_text(json.dumps(results))
    write_report(folder)
    assert "has changed since it was judged" in Page(folder / "report.html").section("queries")


def test_negative_queries(two_models, tmp_path):
    with pytest.raises(InputError, match=r"queries .*-1"):
        write_report(two_models, tmp_path / "r.html", queries=-1)


def test_without_runs_the_page_says_so(two_models, tmp_path, caplog):
    folder = copied(two_models, tmp_path)
    gone = [*folder.glob("*.run"), *folder.glob("*.per_query.tsv")]
    for file in gone:
        file.write_text("") if file.name == "bm25.run" else file.unlink()
    write_report(folder)
    assert all(file.name in caplog.text for file in gone)
    found = Page(folder / "report.html")
    assert "no rankings to show" in found.section("queries")
    assert found.find("p", class_="sentence")


def test_one_model(nasty_folder, tmp_path):
    evaluate(["bm25"], str(nasty_folder), output=tmp_path / "o")
    write_report(tmp_path / "o")
    found = Page(tmp_path / "o" / "report.html")
    assert found.faults == []
    assert found.find("h2", id="verdict-word") == ["Not judged"]
    assert "no second model" in found.find("p", class_="sentence")[0]


def test_one_query_and_all_ties(tmp_path):
    folder = write_beir(tmp_path / "data", 20, 4)
    qrels = (folder / "qrels" / "test.tsv").read_text().splitlines()
    query, document, _ = qrels[1].split("\t")
    (folder / "qrels" / "test.tsv").write_text("\n".join(qrels[:2]) + "\n")
    good = write_run(tmp_path / "good.run", {query: [document]})
    bad = write_run(tmp_path / "bad.run", {query: [f"{document}x", document]})
    same = write_run(tmp_path / "same.run", {query: [document]})
    compare([good, bad], str(folder), output=tmp_path / "one")
    write_report(tmp_path / "one")
    found = Page(tmp_path / "one" / "report.html")
    assert found.faults == []
    assert found.find("h2", id="verdict-word") == ["Cannot tell"]
    assert "one query, no test" in found.find("p", class_="sentence")[0]
    [shown] = found.data["queries"]
    assert [scores[0] for scores in shown["scores"]] == [1.0, pytest.approx(0.6309, abs=1e-4)]
    compare([good, same], str(folder), output=tmp_path / "ties")
    write_report(tmp_path / "ties")
    tied = Page(tmp_path / "ties" / "report.html")
    assert tied.find("h2", id="verdict-word") == ["Cannot tell"]
    assert "+0.000 nDCG@10" in tied.find("p", class_="sentence")[0]
    assert "0 / 1 / 0" in tied.section("models")
    assert "no query differs" in tied.section("pictures")


def test_run_files_have_their_scores_by_query(tmp_path):
    folder = write_beir(tmp_path / "data", 40, 12)
    qrels = [
        line.split("\t") for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]
    ]
    relevant = {query: document for query, document, grade in qrels if grade == "2"}
    a = {query: [document] for query, document in relevant.items()}
    b = a | {query: ["none", relevant[query]] for query in list(relevant)[:3]}
    runs = [write_run(tmp_path / "a.run", a), write_run(tmp_path / "b.run", b)]
    compare(runs, str(folder), output=tmp_path / "o", measures="RR@10")
    write_report(tmp_path / "o")
    shown = Page(tmp_path / "o" / "report.html").data["queries"]
    assert 'id="use"' not in (tmp_path / "o" / "report.html").read_text()  # a run cannot search
    worse = {query["id"] for query in shown if query["scores"][1][0] < query["scores"][0][0]}
    assert worse == set(list(relevant)[:3])
    assert all(query["scores"][0] == [1.0] for query in shown)


def test_a_corpus_without_queries(nasty_folder, tiny_cosine, tmp_path):
    folder = Path(shutil.copytree(nasty_folder, tmp_path / "lone"))
    shutil.rmtree(folder / "qrels")
    (folder / "queries.jsonl").unlink()
    compare(
        ["bm25", str(tiny_cosine)],
        str(folder),
        output=tmp_path / "o",
        options=CompareOptions(samples=12),
    )
    write_report(tmp_path / "o")
    found = Page(tmp_path / "o" / "report.html")
    assert found.faults == []
    assert "no rankings to show" in found.section("queries")
