"""Commands that find the disk full: one line that names the folder and what is safe, and exit status 2."""

from __future__ import annotations

import pytest
from conftest import limited_files

from beir_cocodr.cli.__main__ import main

TRAINING = ["--max-steps", "2", "--batch-size", "4"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, beir_folder, tiny_cosine):
    """What commands start from: a store and a run."""
    root = tmp_path_factory.mktemp("outputs")
    given = ["--dataset", str(beir_folder), "--model", str(tiny_cosine), "--device", "cpu"]
    for arguments in (
        ["encode", *given, "--output", str(root / "store")],
        ["evaluate", *given, "--output", str(root / "run")],
    ):
        with pytest.raises(SystemExit) as status:
            main(arguments)
        assert not status.value.code
    return root


CASES = {
    "evaluate": (["evaluate", "DATA", "--model", "bm25"], 0, "nothing was written"),
    "compare": (["compare", "DATA", "bm25", "MODEL"], 0, "nothing was written"),
    "qpp": (["qpp", "DATA", "--model", "bm25"], 0, "nothing was written"),
    "encode, its ids": (["encode", "DATA", "--model", "MODEL"], 600, "nothing was encoded"),
    "encode": (["encode", "DATA", "--model", "MODEL", "--shard-size", "16"], 2_100, "0 of 3 shards are complete"),
    "search": (["search", "DATA", "--store", "STORE"], 0, "nothing was written"),
    "search by an index": (["search", "DATA", "--store", "STORE", "--index", "flat"], 100, "index-flat"),
    "generate-queries": (["generate-queries", "DATA", "--generator", "lexical"], 9_000, "0 of 1 shards are complete"),
    "pretrain": (["pretrain", "DATA", "--model", "MLM", *TRAINING], 20_000, "no checkpoint is complete"),
    "finetune": (["finetune", "DATA", "--model", "MODEL", *TRAINING], 20_000, "no checkpoint is complete"),
    "distill": (["distill", "DATA", "--model", "MODEL", "--teacher", "bm25", *TRAINING], 20_000, "checkpoint"),
    "representation": (["representation", "DATA", "--model", "MODEL"], 0, "nothing was written"),
    "shift": (["shift", "--source", "FOLDER", "--target", "FOLDER"], 0, "nothing was written"),
    "overlap": (["overlap", "--train", "FOLDER", "--test", "FOLDER", "--encoder", "MODEL"], 0, "CACHE"),
    "report": (["report", "RUN"], 100, "nothing was written"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_is_one_line_and_status_2(case, capsys, tmp_path, beir_folder, tiny_cosine, tiny_mlm, outputs):
    arguments, size, safe = CASES[case]
    if "--index" in arguments:
        pytest.importorskip("faiss")
    places = {"MODEL": tiny_cosine, "MLM": tiny_mlm, "STORE": outputs / "store", "RUN": outputs / "run"}
    filled = [str(places.get(word, word)) for word in arguments]
    filled = [str(beir_folder) if word == "FOLDER" else word for word in filled]
    at = filled.index("DATA") if "DATA" in filled else None
    if at is not None:
        filled[at : at + 1] = ["--dataset", str(beir_folder)]
    output = tmp_path / "out" / "page.html" if case == "report" else tmp_path / "out"
    if "search" in case:
        output = output / "my.run"
    with pytest.raises(SystemExit) as status, limited_files(size):
        main([*filled, "--output", str(output)])
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert status.value.code == 2
    assert safe in line
    assert str(tmp_path) in line or str(outputs) in line or "cache" in line
    assert "run the command again" in line or "BEIR_COCODR_CACHE" in line
