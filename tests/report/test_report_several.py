"""Pages about several runs, about a gate and about sizes of passages."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from page_reader import Page

from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.gate_record import GateRecord
from beir_cocodr.evaluation.gate_rule import GateEvidence
from beir_cocodr.evaluation.passage_sizes import PassagesRecord, SizeFigures, SizePair
from beir_cocodr.report.html.page import write_report
from beir_cocodr.report.html.several import write_joint_report


def gate_record(**more):
    evidence = [
        GateEvidence("spans of documents", 180, 0.1, 0.5, 0.46, -0.04, 0.01, 3, 20),
        GateEvidence("queries of the collection", 90, 0.2),
    ]
    figures = {
        "dataset": "some/where/else/corpus",
        "split": "test",
        "documents": 1200,
        "old": "/a/path/before",
        "new": "/a/path/after",
        "margin": 0.01,
        "decision": "worse",
        "exit_status": 1,
        "estimate": -0.03,
        "interval": (-0.05, -0.01),
        "probability_worse": 0.97,
        "loses_documents": True,
        "evidence": evidence,
        "missing": {"old": 0, "new": 12},
        "unknown": {"old": 0.0, "new": 0.25},
        "labels": False,
    }
    return GateRecord(**{**figures, **more})


def passages_record():
    figures = [
        SizeFigures("bm25", 90, 300, {"held-out spans": 0.61, "generated queries": 0.7}, 0.4),
        SizeFigures("bm25", 180, 160, {"held-out spans": 0.63, "generated queries": 0.71}, None),
    ]
    return PassagesRecord(
        dataset="files",
        documents=12,
        questions={"held-out spans": 40, "generated queries": 30},
        figures=figures,
        pairs=[SizePair("bm25", 90, 180, 0.012, (-0.01, 0.03), 0.8)],
        best={"bm25": 180},
    )


def written(folder: Path, name: str, record) -> Path:
    folder.mkdir()
    (folder / name).write_text(json.dumps(record.to_json()))
    return folder


def test_a_gate_has_a_page(tmp_path):
    folder = written(tmp_path / "gate", "gate.json", gate_record())
    page = Page(Path(write_report(folder).path))
    assert page.faults == []
    assert page.find("h1") == ["corpus"]
    assert page.find("h2", id="verdict-word") == ["Worse"]
    [sentence] = page.find("p", class_="sentence")
    assert sentence == (
        "after is worse than before by more than 0.01 nDCG@10 on corpus: −0.030 is expected, 90% "
        "interval −0.050 to −0.010."
    )
    verdict = page.section("verdict")
    assert "97%" in verdict
    assert "after no longer finds documents" in verdict
    assert "after lacks 12 of the 1,200 documents" in verdict
    assert "25.0% of the results of after" in verdict
    for figure in ("180", "0.500", "0.460", "−0.040", "± 0.010", "3 / 20", "0.100", "90", "0.200"):
        assert figure in page.section("figures")


@pytest.mark.parametrize(
    ("decision", "word"), [("not worse", "Not worse"), ("cannot tell", "Cannot tell")]
)
def test_the_other_decisions_of_a_gate(tmp_path, decision, word):
    record = gate_record(decision=decision, old="minilm", new="minilm", loses_documents=False)
    folder = written(tmp_path / "gate", "gate.json", record)
    page = Page(Path(write_report(folder).path))
    assert page.find("h2", id="verdict-word") == [word]
    assert "old" in page.find("p", class_="sentence")[0]
    assert "no longer finds" not in page.section("verdict")


def test_sizes_of_passages_have_a_page(tmp_path):
    folder = written(tmp_path / "sizes", "passages.json", passages_record())
    page = Page(Path(write_report(folder).path))
    assert page.faults == []
    assert page.find("p", class_="sentence") == [
        "bm25: passages of 180 words are the better bet (80% against 90)."
    ]
    for figure in ("300", "0.610", "0.710", "0.400", "+0.012", "−0.010 to +0.030", "0.80"):
        assert figure in page.section("figures")


def test_sizes_of_passages_without_a_better_bet_have_a_page(tmp_path):
    pairs = [SizePair("bm25", 90, 180, 0.0, (-0.05, 0.05), 0.5)]
    record = replace(passages_record(), pairs=pairs, best={"bm25": None})
    page = Page(Path(write_report(written(tmp_path / "sizes", "passages.json", record)).path))
    assert page.faults == []
    assert page.find("h2", id="verdict-word") == ["Cannot tell"]
    [sentence] = page.find("p", class_="sentence")
    assert "passages of neither 90 nor 180 words are the better bet" in sentence
    assert "no size for bm25" in page.section("verdict")


@pytest.fixture(scope="module")
def runs(two_models, nine_models, without_labels, tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    folders = [
        Path(shutil.copytree(two_models, place / "two")),
        Path(shutil.copytree(nine_models, place / "nine")),
        Path(shutil.copytree(without_labels, place / "estimated")),
        written(place / "gate", "gate.json", gate_record()),
        written(place / "sizes", "passages.json", passages_record()),
    ]
    write_joint_report(folders, place / "all.html", overwrite=False)
    return folders, place / "all.html"


def figures_of(folder: Path) -> int:
    """Count the figures of a folder: a model in a measure, or a pair with the first model."""
    if (folder / "gate.json").is_file():
        return 1
    if (folder / "passages.json").is_file():
        return 4
    if not (folder / "results.json").is_file():
        return len(json.loads((folder / "comparison.json").read_text())["models"]) - 1
    models = json.loads((folder / "results.json").read_text())["models"].values()
    return sum(len(model["measures"]) for model in models)


def test_several_runs_are_on_one_page(runs):
    folders, file = runs
    page = Page(file)
    assert page.faults == []
    assert page.find("h1") == ["5 runs"]
    sentences = page.find("p", class_="sentence")
    assert sentences[0].startswith("5 runs on 3 collections, with ")
    assert sentences[1:] == [
        Page(Path(write_report(folder).path)).find("p", class_="sentence")[0] for folder in folders
    ]
    assert len(page.find("tr")) - 1 == sum(map(figures_of, folders))  # and the header
    for folder in folders[:1]:
        for model in json.loads((folder / "results.json").read_text())["models"].values():
            for mean in model["measures"].values():
                assert f"{mean:.3f}" in page.section("figures")


def test_what_cannot_be_one_page_is_named(runs, tmp_path, capsys):
    folders, file = runs
    with pytest.raises(InputError, match="named twice"):
        write_joint_report([folders[0], folders[0]], tmp_path / "a.html", overwrite=False)
    with pytest.raises(InputError, match="report of another run"):
        write_joint_report(folders[:2], file, overwrite=False)
    write_joint_report(folders, file, overwrite=False)  # the same runs
    names = [str(folder) for folder in folders[:2]]
    for words, message in (
        (names, "add --output"),
        ([*names, "--output", str(tmp_path / "b.html"), "--split", "test"], "--split"),
        ([*names, str(tmp_path / "none"), "--output", str(tmp_path / "b.html")], "none is not a"),
    ):
        with pytest.raises(SystemExit) as status:
            main(["report", *words])
        assert status.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "b.html").exists()
    with pytest.raises(SystemExit) as status:
        main(["report", *names, "--output", str(tmp_path / "b.html")])
    assert status.value.code == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "b.html")
