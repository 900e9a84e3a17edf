from __future__ import annotations

import gzip

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names, read_trec_run, run_tops, write_run


def test_it_reads_what_is_written_in_the_order_of_the_file(tmp_path):
    results = {"q2": [("b", 1.5), ("a", 1.5), ("c", -2.25e-7)], "q1": [("q1", 0.1)]}
    write_run(tmp_path / "x.run", results, "tag")
    found = read_trec_run(tmp_path / "x.run")
    assert [(query, list(row.items())) for query, row in found.items()] == list(results.items())
    (tmp_path / "x.run.gz").write_bytes(gzip.compress((tmp_path / "x.run").read_bytes()))
    assert read_trec_run(tmp_path / "x.run.gz") == found


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("q Q0 d2 2 0.5", r"x.run:2: 5 columns"),
        ("q Q0 d 2 2 0.5 tag", r"x.run:2: 7 columns"),
        ("q Q0 d2 2 nan tag", r"x.run:2: .*'nan'"),
        ("q Q0 d2 2 high tag", r"x.run:2: .*'high'"),
        ("q Q0 d1 2 0.5 tag", r"x.run:2: .*'d1' .*twice .*'q'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, second, said):
    (tmp_path / "x.run").write_text(f"q Q0 d1 1 1.0 tag\n{second}\n")
    with pytest.raises(InputError, match=said):
        read_trec_run(tmp_path / "x.run")


def test_nothing_to_read(tmp_path):
    with pytest.raises(InputError, match=r"no.*file"):
        read_trec_run(tmp_path / "x.run")
    (tmp_path / "x.run").write_text("\n")
    with pytest.raises(InputError, match="empty"):
        read_trec_run(tmp_path / "x.run")
    (tmp_path / "x.run").write_bytes(b"q Q0 d1 1 1.0 tag\nq Q0 \xff 1 1.0 tag\n")
    with pytest.raises(InputError, match=r"x.run:2: .*UTF-8"):
        read_trec_run(tmp_path / "x.run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"q1 Q0 d1 1 0.5\n", r"broken.run:1: 5 columns"),
        (b"q1 Q0 d1 1 0.5 x\nq1 Q0 d2 2 nan x\n", r"broken.run:2: .*'nan'"),
        (b"q1 Q0 d1\x00x 1 0.5 x\n", r"broken.run:1: NUL characters"),
        (b"q1 Q0 d1 1 0.5 x\nq1 Q0 d1 2 0.4 x\n", r"'d1' occurs twice for query 'q1'"),
        (b"q1 Q0 d\xff 1 0.5 x\n", r"broken.run:1: not UTF-8"),
    ],
)
def test_a_broken_run_is_one_line_with_its_place(content, message, tmp_path):
    path = tmp_path / "broken.run"
    path.write_bytes(content)
    for read in (
        read_trec_run,
        lambda path: run_tops(path, 10),
    ):  # of parity and comparison, and of the report
        with pytest.raises(InputError, match=message):
            read(path)


def test_a_name_of_files_is_not_too_long_for_them():
    [name] = file_names(["x" * 250]).values()
    assert len(name) == 60


def test_a_run_without_a_line_break_at_its_end_may_be_cut(tmp_path, caplog):
    run = tmp_path / "x.run"
    whole = "q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5 t\n"
    run.write_text(whole)
    assert read_trec_run(run) == {"q1": {"d1": 2.5, "d2": 1.5}}
    assert caplog.text == ""
    run.write_text(whole[:-1])
    assert read_trec_run(run) == {"q1": {"d1": 2.5, "d2": 1.5}}
    assert f"{run} does not end with a line break" in caplog.text
