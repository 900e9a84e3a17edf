"""``compare --parity`` and ``compare A B`` on the command line."""

from __future__ import annotations

import json

import pytest
from test_parity import everything, write

from beir_cocodr.cli.__main__ import main


def command(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main(["compare", *arguments])
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


def test_command_line(tmp_path, capsys):
    file, folder = write(tmp_path, *everything())
    data = ["--parity", str(file), "--dataset", folder]
    status, out, _ = command(capsys, *data)
    assert status == 0
    for said in (
        "nDCG@10",
        "R_cap@100",
        "identical ids",
        "ties",
        "queries without results",
        "every difference",
    ):
        assert said in out
    status, out, _ = command(
        capsys, *data, "--measures", "RR@2", "--json", "--output", str(tmp_path / "o")
    )
    report = json.loads(out)
    assert [row["measure"] for row in report["measures"]] == ["RR@2"]
    assert json.loads((tmp_path / "o" / "parity.json").read_text()) == report


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--parity", "x.run", "bm25"], "but not both"),
        ([], "but not both"),
        (["--parity", "nowhere.run"], "nowhere.run: no such file"),
        (["--parity", "x.run", "--split", "dev"], "dev"),
        (["--parity", "x.run", "--measures", "bogus"], "bogus"),
        (["--parity", "other.run"], "none of the queries"),
        (["--parity", "x.run", "--passages", "90"], "--passages is not used with --parity"),
        (["--parity", "x.run", "--no-labels"], "--no-labels is not used with --parity"),
        (["--parity", "x.run", "--bm25-weight", "1"], "--bm25-weight is not used with --parity"),
        (["bm25", "--passages", "90", "--judge", "x"], "--judge is not used with --passages"),
    ],
)
def test_bad_input_is_status_2_and_one_line(tmp_path, capsys, monkeypatch, arguments, said):
    write(tmp_path, {"q": {"d1": 1}}, {"q": {"d1": 1.0}})
    (tmp_path / "other.run").write_text("elsewhere Q0 d1 1 1.0 tag\n")
    monkeypatch.chdir(tmp_path)
    status, out, err = command(capsys, "--dataset", str(tmp_path), *arguments)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert said in err.splitlines()[-1]


def test_two_runs_in_place_of_models(tmp_path, capsys):
    qrels = {f"q{i}": {"d1": 1} for i in range(6)}
    good, folder = write(tmp_path, qrels, {query: {"d1": 2.0, "d2": 1.0} for query in qrels})
    bad = tmp_path / "bad.run"
    bad.write_text(good.read_text().replace("2.0", "0.5"))
    arguments = [str(bad), str(good), "--dataset", folder, "--measures", "RR@10"]
    status, out, _ = command(capsys, *arguments, "--json", "--output", str(tmp_path / "o"))
    assert status == 0
    assert json.loads(out)["pairs"][0]["verdict"] == "better"
    status, out, _ = command(capsys, *arguments)
    assert status == 0
    assert "better" in out
