"""Sensible output, or one clear line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import completed, write_beir
from faults.ordinary import become_ordinary
from page_reader import Page

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import CompareOptions, compare
from beir_cocodr.evaluation.evaluate import evaluate
from beir_cocodr.evaluation.results import check_description
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


def test_a_folder_without_queries_that_was_read_in_a_language_lacks_nothing(
    tiny_cosine, tmp_path, caplog
):
    """The collection is at hand, and no run was written because nothing was searched for."""
    corpus = tmp_path / "notes"
    corpus.mkdir()
    for number in range(12):
        text = f"Die Brücke {number} überspannt seit über hundert Jahren den breiten Fluss. "
        (corpus / f"{number}.txt").write_text(text * 3, encoding="utf-8")
    folder = tmp_path / "compared"
    compare(
        ["bm25", str(tiny_cosine)],
        f"{corpus}?language=de",
        output=folder,
        options=CompareOptions(samples=10),
    )
    caplog.clear()
    write_report(folder)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_what_is_not_ours_is_left_alone(two_models, tmp_path, capsys):
    folder = copied(two_models, tmp_path)
    (folder / "report.html").write_text("<p>mine</p>")
    with pytest.raises(SystemExit) as status:
        main(["report", str(folder)])
    assert status.value.code == 2
    assert "was not written by this command" in capsys.readouterr().err
    assert (folder / "report.html").read_text() == "<p>mine</p>"
    assert not list(folder.glob(".report*"))
    with pytest.raises(InputError, match="a folder"):
        write_report(folder, tmp_path)


def test_a_page_that_the_umask_closes_is_refused_and_leaves_nothing(two_models, tmp_path):
    page = tmp_path / "page.html"
    ended = completed(_report_without_permissions, str(two_models), str(page))
    assert ended.returncode == 2, ended.stderr
    assert f"error: {tmp_path}" in ended.stderr
    assert "Permission denied" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def _report_without_permissions(folder: str, page: str) -> None:
    become_ordinary()
    os.umask(0o777)
    main(["report", folder, "--output", page])


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
        ("results.json", "[]", "is not a JSON object"),
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


def test_an_adaptation_that_lost_its_record_or_has_not_ended_is_said(adapted, tmp_path, caplog):
    folder = copied(adapted, tmp_path)
    (folder / "plan.json").write_text("{}")
    write_report(folder)
    assert not caplog.records
    (folder / "adapt.json").unlink()
    write_report(folder)
    assert [record.getMessage() for record in caplog.records] == [
        f"{folder} has the plan.json of an adaptation but no adapt.json: the adaptation has not "
        "ended (the same command with --resume ends it), or the file was removed; the page "
        "recommends nothing"
    ]


def test_the_results_that_the_record_of_an_adaptation_repeats_may_be_missing(adapted, tmp_path):
    folder = copied(adapted, tmp_path)
    write_report(folder)
    page = (folder / "report.html").read_text()
    (folder / "results.json").unlink()
    write_report(folder, overwrite=True)
    assert (folder / "report.html").read_text() == page


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
    assert "1 query, no test" in found.find("p", class_="sentence")[0]
    [shown] = found.data["queries"]
    assert [scores[0] for scores in shown["scores"]] == [1.0, pytest.approx(0.6309, abs=1e-4)]
    compare([good, same], str(folder), output=tmp_path / "ties")
    write_report(tmp_path / "ties")
    tied = Page(tmp_path / "ties" / "report.html")
    assert tied.find("h2", id="verdict-word") == ["Cannot tell"]
    assert "have the same nDCG@10 on each query" in tied.find("p", class_="sentence")[0]
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


def test_a_text_format_has_texts_and_numbers(two_models, tmp_path):
    """The page shows what a retriever read its queries with."""
    folder = copied(two_models, tmp_path)
    record = json.loads((folder / "results.json").read_text())
    dense = next(model for model in record["models"].values() if model["retrieval"])
    dense["retrieval"]["text_format"]["title_separator"] = {"a": 1}
    (folder / "results.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"results.json.*text_format.title_separator is {'a': 1}"):
        write_report(folder)
    # The same of a part, as hybrids have them.
    with pytest.raises(ValueError, match=r"text_format.query_length is \[4\]"):
        check_description({"dense": {"text_format": {"query_length": [4]}}})


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"truncated_queries": ["x"]}, r"truncated_queries is \['x'\], which is not a number"),
        ({"dense": {"dimensions": True}}, "dimensions is True, which is not a number"),
        ({"bm25": {"model": -(10**18)}}, "model is -1000000000000000000, which is not text"),
    ],
)
def test_what_a_retriever_depends_on_has_the_types_that_retrievers_write(
    two_models, tmp_path, description, message
):
    folder = copied(two_models, tmp_path)
    record = json.loads((folder / "results.json").read_text())
    next(iter(record["models"].values()))["retrieval"] = description
    (folder / "results.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=f"results.json.*{message}"):
        write_report(folder)


def test_a_description_may_lack_parts_and_hold_any_request():
    check_description({"bm25": None, "model": {"name": "m"}, "body": {"weight": ["any"]}})


def test_figures_that_show_nothing_do_not_look_as_if_they_did(two_models, tmp_path):
    """The interval of one test lies above 0, and p after Holm's correction is 1."""
    folder = copied(two_models, tmp_path)
    record = json.loads((folder / "results.json").read_text())
    for test in record["comparisons"]:
        test |= {"difference": 0.005, "interval": [0.0, 0.01], "t_p_holm": 1.0}
        test |= {"verdict": "cannot tell", "wins": 3, "losses": 1, "ties": 16}
    (folder / "results.json").write_text(json.dumps(record))
    page = Page(Path(write_report(folder).path))
    [sentence] = page.find("p", class_="sentence")
    assert "do not show whether" in sentence
    assert sentence.endswith("+0.005 nDCG@10, p = 1 after Holm.")
    assert "+0.000 to +0.010" not in page.section("verdict")
    assert "+0.000 to +0.010" not in page.section("models")
    assert "not significant" in page.section("models")
    # An interval around 0 says how large a difference there may be.
    for test in record["comparisons"]:
        test["interval"] = [-0.002, 0.01]
    (folder / "results.json").write_text(json.dumps(record))
    page = Page(Path(write_report(folder).path))
    assert "95% interval −0.002 to +0.010" in page.find("p", class_="sentence")[0]
    assert "−0.002 to +0.010" in page.section("models")


def test_the_first_sentence_is_about_the_model_that_is_recommended(tmp_path):
    """The highest mean may rest on chance where a lower one is significant."""
    folder = write_beir(tmp_path / "data", 40, 12)
    rows = (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]
    relevant = {query: document for query, document, grade in map(str.split, rows) if grade == "2"}
    queries = list(relevant)
    first = {query: ["none", relevant[query]] for query in queries}
    steady = {
        query: [relevant[query]] if row % 4 else first[query] for row, query in enumerate(queries)
    }
    compare(
        [write_run(tmp_path / f"{name}.run", run) for name, run in (("a", first), ("b", steady))],
        str(folder),
        output=tmp_path / "out",
    )
    record = json.loads((tmp_path / "out" / "comparison.json").read_text())
    evaluation = record["evaluation"]
    lucky = str(tmp_path / "lucky.run")
    b = str(tmp_path / "b.run")
    a = str(tmp_path / "a.run")
    evaluation["models"][lucky] = {**evaluation["models"][b], "model": lucky, "run": lucky}
    measure = next(iter(evaluation["models"][b]["measures"]))
    evaluation["models"][lucky]["measures"] = {
        name: value + 0.01 for name, value in evaluation["models"][b]["measures"].items()
    }
    tests = [test for test in evaluation["comparisons"] if test["measure"] == measure]
    [test] = [test for test in tests if {test["a"], test["b"]} == {a, b}]
    assert test["verdict"] == "better"
    for each in list(evaluation["comparisons"]):
        chance = {**each, "a": a, "b": lucky, "t_p_holm": 0.4, "interval": [-0.1, 0.3]}
        evaluation["comparisons"].append(chance)
    record["models"].append(lucky)
    record["ranking"].insert(0, lucky)
    (tmp_path / "out" / "comparison.json").write_text(json.dumps(record))
    page = Page(Path(write_report(tmp_path / "out").path))
    [sentence] = page.find("p", class_="sentence")
    assert sentence.startswith("b.run is better than a.run")
    assert page.find("h2", id="verdict-word") == ["Better"]
    assert "lucky.run has the highest" in page.section("verdict")
    assert "is not significantly better than a.run" in page.section("verdict")


UNKNOWN = (
    lambda record: record["best"].update(model="other"),
    lambda record: record["ranking"].append("other"),
    lambda record: record["pairs"][0].update(b="other"),
    lambda record: record["labels_wanted"].update(a="other"),
    lambda record: record["best"]["indistinguishable"].append("other"),
)


@pytest.mark.parametrize("damage", UNKNOWN)
def test_a_comparison_that_names_an_unknown_model_is_refused(
    without_labels, tmp_path, damage, capsys
):
    folder = copied(without_labels, tmp_path)
    record = json.loads((folder / "comparison.json").read_text())
    damage(record)
    (folder / "comparison.json").write_text(json.dumps(record))
    with pytest.raises(SystemExit) as status:
        main(["report", str(folder)])
    assert status.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "comparison.json names the model 'other'" in last
    assert "run the command again" in last


def test_a_ranking_without_one_of_the_models_is_refused(without_labels, tmp_path):
    folder = copied(without_labels, tmp_path)
    record = json.loads((folder / "comparison.json").read_text())
    record["ranking"] = []
    (folder / "comparison.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"comparison\.json: the ranking lacks the model "):
        write_report(folder)


@pytest.mark.parametrize("field", ["model", "verdicts"])
def test_an_adaptation_that_recommends_an_unknown_model_is_refused(adapted, tmp_path, field):
    record = json.loads((adapted / "adapt.json").read_text())
    recommendation = record["recommendation"]
    verdict = next(iter(recommendation["verdicts"].values()))
    unknown = {"model": "other", "verdicts": {"other": verdict}}
    recommendation[field] = unknown[field]
    (tmp_path / "adapt.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"adapt\.json names the model 'other'"):
        write_report(tmp_path)


def test_an_evaluation_that_tests_an_unknown_model_is_refused(two_models, tmp_path):
    folder = copied(two_models, tmp_path)
    record = json.loads((folder / "results.json").read_text())
    record["comparisons"][0]["a"] = "other"
    (folder / "results.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"results\.json names the model 'other'"):
        write_report(folder)
