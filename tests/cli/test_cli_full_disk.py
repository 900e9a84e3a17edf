"""Commands that find the disk full: one line that names the folder and what is safe, and exit
status 2.
"""

from __future__ import annotations

import shutil

import pytest
from conftest import limited_files, write_beir

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.io import CHECKSUMS, is_incidental
from beir_cocodr.training.checkpoints import SEAL_FILE

TRAINING = ["--max-steps", "2", "--batch-size", "4"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, beir_folder, tiny_cosine):
    """Make the inputs of commands: a store, a run, resampled collections, and another encoder."""
    root = tmp_path_factory.mktemp("outputs")
    shutil.copytree(tiny_cosine, root / "other")
    given = ["--dataset", str(beir_folder), "--model", str(tiny_cosine), "--device", "cpu"]
    pair = [
        "--train",
        str(beir_folder),
        "--test",
        str(beir_folder),
        "--encoder",
        str(tiny_cosine),
        "--buckets",
        "2",
    ]
    for arguments in (
        ["encode", *given, "--output", str(root / "store")],
        ["evaluate", *given, "--output", str(root / "run")],
        ["resample", "resttest", *pair, "--output", str(root / "buckets")],
    ):
        with pytest.raises(SystemExit) as status:
            main(arguments)
        assert not status.value.code
    return root


SOURCE = ["--source", "FOLDER", "--target", "FOLDER", "--clusters", "2"]
ADAPTED = ["--corpus", "FOLDER", "--base", "MLM", "--stages", "coco", *TRAINING]
PAIR = ["--train", "FOLDER", "--test", "FOLDER", "--encoder", "MODEL", "--buckets", "2"]
REGIMES = ["--folder", "BUCKETS"]

CASES = {
    "evaluate": (["evaluate", "DATA", "--model", "bm25"], 0, "nothing was written"),
    "compare": (["compare", "DATA", "bm25", "MODEL"], 0, "nothing was written"),
    "qpp": (["qpp", "DATA", "--model", "bm25"], 0, "nothing was written"),
    "encode, its ids": (["encode", "DATA", "--model", "MODEL"], 600, "nothing was encoded"),
    "encode": (
        ["encode", "DATA", "--model", "MODEL", "--shard-size", "16"],
        2_100,
        "0 of 3 shards are complete",
    ),
    "search": (["search", "DATA", "--store", "STORE"], 0, "nothing was written"),
    "search by an index": (
        ["search", "DATA", "--store", "STORE", "--index", "flat"],
        100,
        "index-flat",
    ),
    "generate-queries": (
        ["generate-queries", "DATA", "--generator", "lexical"],
        9_000,
        "0 of 1 shards are complete",
    ),
    "pretrain": (
        ["pretrain", "DATA", "--model", "MLM", *TRAINING],
        20_000,
        "no checkpoint is complete",
    ),
    "finetune": (
        ["finetune", "DATA", "--model", "MODEL", *TRAINING],
        20_000,
        "no checkpoint is complete",
    ),
    "distill": (
        ["distill", "DATA", "--model", "MODEL", "--teacher", "bm25", *TRAINING],
        20_000,
        "checkpoint",
    ),
    "representation": (["representation", "DATA", "--model", "MODEL"], 0, "nothing was written"),
    "shift": (["shift", "--source", "FOLDER", "--target", "FOLDER"], 0, "nothing was written"),
    "overlap": (
        ["overlap", "--train", "FOLDER", "--test", "FOLDER", "--encoder", "MODEL"],
        0,
        "nothing was written",
    ),
    "report": (["report", "RUN"], 100, "nothing was written"),
    "source-clusters": (
        ["source-clusters", *SOURCE, "--before", "MODEL", "--after", "OTHER"],
        0,
        "nothing was written",
    ),
    "adapt": (["adapt", *ADAPTED], 0, "complete models: none"),
    "adapt, its models": (["adapt", *ADAPTED], 20_000, "complete models: none"),
    "resample resttest": (["resample", "resttest", *PAIR, "--seed", "7"], 0, "nothing was written"),
    "resample evaluate": (
        ["resample", "evaluate", *REGIMES, "--architecture", "bm25"],
        0,
        "0 models are evaluated",
    ),
    "resample evaluate, its models": (
        [
            "resample",
            "evaluate",
            *REGIMES,
            "--architecture",
            "dense",
            "--start",
            "MODEL",
            *TRAINING,
        ],
        20_000,
        "0 models are evaluated",
    ),
    "resample evaluate, its results": (
        ["resample", "evaluate", *REGIMES, "--architecture", "bm25"],
        2_000,
        "complete there: cells",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_is_one_line_and_status_2(
    case, capsys, tmp_path, beir_folder, tiny_cosine, tiny_mlm, outputs
):
    arguments, size, safe = CASES[case]
    if "--index" in arguments:
        pytest.importorskip("faiss")
    places = {
        "MODEL": tiny_cosine,
        "MLM": tiny_mlm,
        "STORE": outputs / "store",
        "RUN": outputs / "run",
    }
    places |= {"OTHER": outputs / "other", "BUCKETS": outputs / "buckets"}
    filled = [str(places.get(word, word)) for word in arguments]
    filled = [str(beir_folder) if word == "FOLDER" else word for word in filled]
    at = filled.index("DATA") if "DATA" in filled else None
    if at is not None:
        filled[at : at + 1] = ["--dataset", str(beir_folder)]
    output = tmp_path / "out" / "page.html" if case == "report" else tmp_path / "out"
    if "search" in case:
        output = output / "my.run"
    if case == "pretrain":  # fills the cache, as a full cache has a test of its own
        with pytest.raises(SystemExit):
            main([*filled, "--output", str(tmp_path / "first")])
        capsys.readouterr()
    with pytest.raises(SystemExit) as status, limited_files(size):
        main([*filled, "--output", str(output)])
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert status.value.code == 2
    assert safe in line
    assert str(tmp_path) in line or str(outputs) in line or "cache" in line
    assert "run the command again" in line or "BEIR_COCODR_CACHE" in line


def test_a_full_cache_names_what_is_complete_in_it(
    capsys, tmp_path, beir_folder, tiny_cosine, monkeypatch
):
    """Corpora and embeddings of queries are kept there."""
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    pair = [
        "--train",
        str(beir_folder),
        "--test",
        str(beir_folder),
        "--encoder",
        str(tiny_cosine),
        "--buckets",
        "2",
    ]
    other = write_beir(tmp_path / "other", documents=8, queries=2)
    for place, held in (("corpora", 0), ("corpora", 1), ("query_embeddings", 0)):
        with pytest.raises(SystemExit) as status, limited_files(100):
            main(["resample", "resttest", *pair, "--output", str(tmp_path / "out")])
        [line] = [
            line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")
        ]
        assert status.value.code == 2
        for words in (
            str(tmp_path / "cache" / place),
            f"complete ({held} entries)",
            "BEIR_COCODR_CACHE",
        ):
            assert words in line
        assert not (tmp_path / "out").exists()
        kept = [
            path
            for path in (tmp_path / "cache" / place).iterdir()
            if not is_incidental(path) and path.name != CHECKSUMS
        ]
        assert len(kept) == held
        load_collection(beir_folder if held else other)


def test_quickstart_on_a_full_disk(capsys, tmp_path, minilm, monkeypatch):
    """First of all the documentation is read, and kept in the cache; all that follows is adapt."""
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit) as status, limited_files(0):
        main(["quickstart", "--fast", "--output", str(tmp_path / "out")])
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert status.value.code == 2
    assert str(tmp_path / "cache" / "apidocs") in line
    assert "BEIR_COCODR_CACHE" in line
    assert not (tmp_path / "out").exists()


def test_quickstart_whose_models_do_not_fit(capsys, tmp_path, fast_minilm):
    """Inputs and plans fit on the disk; the first trained model does not, and leaves nothing."""
    with pytest.raises(SystemExit) as status, limited_files(20_000_000):
        main(["quickstart", "--fast", "--output", str(tmp_path / "out")])
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert status.value.code == 2
    for words in (str(tmp_path / "out"), "complete models: none", "run the command again"):
        assert words in line
    left = [
        file
        for file in tmp_path.rglob("*.safetensors")
        if not file.parent.name.startswith("checkpoint-")
    ]
    assert left == list(tmp_path.rglob(SEAL_FILE)) == []
