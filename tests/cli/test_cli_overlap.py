"""`overlap` from datasets to JSON, tables, files and a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from beir_cocodr.cli.__main__ import main
from beir_cocodr.records import versions
from beir_cocodr.resampling.overlap import Overlap, RepeatedQueries, SideRecord, overlap

CORPUS = [{"_id": id, "text": f"passage {id}"} for id in "abcd"]
QUERIES = {
    "t1": "how do wings lift",
    "t2": "shock waves in a nozzle",
    "t3": "tariffs and trade",
    "q1": "How do wings lift",
    "q2": "the nozzle, shock wave",
    "q3": "library\tloans",
}


def write(folder: Path, corpus, queries, **splits) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps(document) + "\n" for document in corpus)
    )
    lines = (json.dumps({"_id": id, "text": text}) + "\n" for id, text in queries.items())
    (folder / "queries.jsonl").write_text("".join(lines))
    for split, judged in splits.items():
        rows = "".join(f"{q}\t{d}\t{g}\n" for q, found in judged.items() for d, g in found.items())
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


@pytest.fixture
def folder(tmp_path) -> str:
    train = {"t1": {"a": 1}, "t2": {"b": 1, "c": 0}, "t3": {"c": 1}}
    test = {"q1": {"a": 2, "c": 1}, "q2": {"b": 1}, "q3": {"d": 2}}
    return str(write(tmp_path / "d", CORPUS, QUERIES, train=train, test=test))


def test_the_whole_report(folder, tmp_path):
    report = overlap(folder, folder)
    labels = {
        (row.minimum, row.grade): (row.overlapping, row.share) for row in report.label_overlap
    }
    assert labels == {(1, 2): (1, 1 / 3), (1, 1): (2, 2 / 3), (2, 2): (0, 0), (2, 1): (1, 1 / 3)}
    assert report.exact_duplicates == RepeatedQueries(1, 1 / 3, {"q1": ["t1"]})
    assert report.near_duplicates == RepeatedQueries(1, 1 / 3, {"q2": ["t2"]})
    assert report.same_corpus is True
    assert report.train == SideRecord(folder, "train", 3)
    nearest = report.nearest
    assert (nearest.similarity, nearest.encoder) == ("words", None)
    pairs = {row.query: (row.training_query, row.similarity) for row in nearest.queries}
    assert pairs == {"q1": ("t1", 1.0), "q2": ("t2", 1.0), "q3": (None, 0.0)}
    assert (nearest.mean, nearest.median, nearest.least) == (
        pytest.approx(2 / 3, abs=1e-5),
        1.0,
        0.0,
    )
    histogram = nearest.histogram
    assert len(histogram.edges) == len(histogram.counts) + 1 == 21
    assert (histogram.counts[0], histogram.counts[-1], sum(histogram.counts)) == (1, 2, 3)
    assert report.versions == versions()


def test_the_files(folder, tmp_path, capsys):
    places = ("--output", str(tmp_path / "o"), "--no-picture", "--json")
    status, out, _ = run(capsys, "--train", folder, "--test", folder, *places)
    assert status == 0
    assert json.loads((tmp_path / "o" / "overlap.json").read_text()) == json.loads(out)
    assert Overlap.read(tmp_path / "o" / "overlap.json") == overlap(folder, folder)
    lines = (tmp_path / "o" / "nearest.tsv").read_text().splitlines()
    assert lines[0].split("\t") == [
        "query",
        "training_query",
        "similarity",
        "text",
        "training_text",
    ]
    assert lines[3].split("\t") == ["q3", "", "0.0", "library loans", ""]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        "nearest.tsv",
        "overlap.json",
        "run.json",
    ]


def test_nearest_by_an_encoder_is_by_cosine(folder, tiny_bert):
    from beir_cocodr.models.checkpoints.loading import load_encoder

    report = overlap(folder, folder, model=str(tiny_bert))
    vectors = load_encoder(str(tiny_bert)).encode_query(list(QUERIES.values())).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors[3:] @ vectors[:3].T
    for row, expected in zip(report.nearest.queries, cosines, strict=True):
        assert row.training_query == f"t{expected.argmax() + 1}"
        assert row.similarity == pytest.approx(expected.max(), abs=2e-5)
    assert report.nearest.encoder.dimensions == 32
    assert sum(report.nearest.histogram.counts) == 3


def test_the_picture_is_a_png(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    both = ("--train", folder, "--test", folder)
    status, out, _ = run(capsys, *both, "--output", str(tmp_path / "o"), "--json")
    assert (status, json.loads(out)["picture"]) == (0, "similarity.png")
    assert (tmp_path / "o" / "similarity.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    status, _, err = run(capsys, *both, "--picture")
    assert status == 2
    assert "give --output" in err


def test_different_corpora_are_said(folder, tmp_path, caplog):
    other = write(tmp_path / "e", CORPUS[:2], {"q1": "wings"}, test={"q1": {"a": 1}})
    report = overlap(folder, str(other))
    assert report.same_corpus is False
    assert "have different corpora" in caplog.text


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(["overlap", *arguments])
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


def test_json_and_tables_on_stdout(folder, capsys):
    status, out, _ = run(capsys, "--train", folder, "--test", folder, "--json")
    assert status == 0
    assert json.loads(out)["exact_duplicates"]["queries"] == 1
    status, out, _ = run(capsys, "--train", folder, "--test", folder)
    assert status == 0
    assert "more than one" in out
    assert "33%" in out
    assert "how do wings lift" in out


def test_bad_input_is_status_2_and_one_line(folder, capsys, tmp_path):
    cases = [
        ("--train", "nowhere/at/all", "--test", folder),
        ("--train", folder, "--test", folder, "--test-split", "dev"),
        ("--train", folder, "--test", folder, "--encoder", "no-such-model"),
        ("--train", folder),
    ]
    for arguments in cases:
        status, out, err = run(capsys, *arguments, "--output", str(tmp_path / "o"))
        assert (status, out) == (2, "")
        assert [line.startswith("error: ") for line in err.splitlines()].count(True) == 1
    assert not list((tmp_path / "o").glob("*"))


def test_words_do_not_need_torch(folder):
    program = (
        "import sys\nfrom beir_cocodr.cli.__main__ import main\n"
        f"try:\n    main(['overlap', '--train', {folder!r}, '--test', {folder!r}])\n"
        "except SystemExit as status:\n    assert status.code == 0, status.code\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
