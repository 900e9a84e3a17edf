from __future__ import annotations

import gzip

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import read_trec_run, write_run


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
