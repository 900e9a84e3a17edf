"""The commands encode and search; what they do is tested where it is done."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from beir_cocodr.cli import search as commands
from beir_cocodr.cli.__main__ import main


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(status.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("command", ["encode", "search"])
def test_help_costs_no_torch(command):
    code = (
        f"import sys\nfrom beir_cocodr.cli.__main__ import main\ntry:\n    main(['{command}',"
        " '--help'])\nexcept SystemExit as status:\n    assert not status.code\nassert 'torch' not"
        " in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Usage: beir-cocodr {command}" in done.stdout


def test_encode_and_search_from_the_command_line(capsys, caplog, beir_folder, tiny_bert, tmp_path):
    store, output = tmp_path / "store", tmp_path / "deep" / "my.run"
    arguments = ["encode", "--dataset", beir_folder, "--model", tiny_bert, "--output", store]
    settings = [
        "--shard-size",
        20,
        "--precision",
        "fp16",
        "--token-budget",
        500,
        "--document-length",
        50,
    ]
    with caplog.at_level(logging.INFO):
        status, out, _ = run(capsys, *arguments, *settings)
    assert status == 0
    assert "48 documents to encode: about" in caplog.text
    assert "48 documents of 32 dimensions in 3 shards" in out
    status, out, _ = run(capsys, *arguments, *settings, "--json")
    assert status == 0
    report = json.loads(out)
    assert (report["documents_encoded"], report["precision"], report["document_length"]) == (
        0,
        "fp16",
        50,
    )

    arguments = [
        "search",
        "--store",
        store,
        "--dataset",
        beir_folder,
        "--output",
        output,
        "--top-k",
        5,
    ]
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert "16 queries, 5 documents each of 48" in out
    lines = output.read_text().splitlines()
    assert len(lines) == 16 * 5
    assert [line.split()[3] for line in lines[:5]] == ["1", "2", "3", "4", "5"]
    status, _, err = run(capsys, *arguments, "--split", "train")
    assert (status, output.read_text().splitlines()) == (2, lines)
    assert "--overwrite" in err
    assert run(capsys, *arguments)[0] == 0  # the same again
    record = output.with_name("my.run.json")
    assert json.loads(record.read_text())["top_k"] == 5
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("do not lose this\n")
    others = [*arguments[:-3], thesis, "--overwrite"]
    assert run(capsys, *others)[0] == 2
    assert thesis.read_text() == "do not lose this\n"
    status, out, _ = run(capsys, *arguments, "--split", "train", "--json", "--overwrite")
    report = json.loads(out)
    assert (report["split"], report["queries"], report["store"]["model"]["name"]) == (
        "train",
        16,
        str(tiny_bert),
    )


def test_a_text_is_searched_for_without_store_or_output(capsys, beir_folder, tiny_cosine):
    given = ["search", "--dataset", beir_folder, "--model", "bm25"]
    status, out, _ = run(capsys, *given, "--top-k", 3, "supersonic", "wing")
    assert status == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == ["1", "2", "3"]
    assert "**wing**" in lines[1]
    status, out, _ = run(capsys, *given, "--top-k", 3, "supersonic wing", "--json")
    found = json.loads(out)
    assert [hit["id"] for hit in found["queries"][0]["hits"]] == [
        line.split()[2] for line in lines[::2]
    ]
    status, out, _ = run(capsys, *given, "qwertz")
    assert (status, "no document contains" in out) == (0, True)
    fused = ["search", "--dataset", beir_folder, "--model", f"hybrid:{tiny_cosine}", "wing"]
    status, out, _ = run(capsys, *fused)
    assert (status, len(out.splitlines())) == (0, 20)
    assert "BM25" in out


def test_queries_come_from_a_file_or_the_standard_input(capsys, monkeypatch, beir_folder, tmp_path):
    files = {
        "a.txt": "wing\n\nlibrary index\n",
        "a.tsv": "1\twing\n3\tlibrary index\n",
        "a.jsonl": '{"_id": "1", "text": "wing"}\n{"_id": "3", "text": "library index"}\n',
    }
    given, shown = ["search", "--dataset", beir_folder, "--model", "bm25", "--json"], set()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        status, out, _ = run(capsys, *given, "--queries", tmp_path / name)
        assert status == 0
        shown.add(out)
    [same] = shown
    assert [(found["id"], found["query"]) for found in json.loads(same)["queries"]] == [
        ("1", "wing"),
        ("3", "library index"),
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("wing\n\nlibrary index\n"))
    status, out, _ = run(capsys, *given)
    assert [found["hits"] for found in json.loads(out)["queries"]] == [
        found["hits"] for found in json.loads(same)["queries"]
    ]


@pytest.mark.parametrize("reading", [(), ("--chunk-pooling", "mean")])
def test_a_store_says_which_model_searches_it_and_nothing_is_encoded(
    reading, capsys, monkeypatch, beir_folder, tiny_bert, tmp_path
):
    store = tmp_path / "store"
    encoding = ("encode", "--dataset", beir_folder, "--model", tiny_bert, "--output", store)
    assert run(capsys, *encoding, *reading)[0] == 0
    from beir_cocodr.retrieval.vectors.dense import Dense

    monkeypatch.setattr(Dense, "encode_corpus", None)
    status, out, _ = run(
        capsys, "search", "--dataset", beir_folder, "--store", store, "--json", "wing"
    )
    assert status == 0
    assert json.loads(out)["model"] == str(tiny_bert)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--model", "bm25", " "], "empty"),
        (["--model", "bm25", "--top-k", "0", "wing"], "top_k"),
        (["--model", "bm25", "--split", "dev", "wing"], "--split"),
        (["--model", "bm25", "--index", "flat", "--overwrite", "wing"], "--index, --overwrite"),
        (["--model", "bm25", "--queries", "none.txt"], "none.txt"),
        (["--model", "bm25", "--queries", "none.txt", "wing"], "one of them"),
        (["--output", "r", "wing"], "--store"),
        (["--output", "r", "--store", "s", "--bm25-analyzer", "none"], "leave out --bm25-analyzer"),
        (
            ["--output", "r", "--store", "s", "--title-separator", "x"],
            "leave out --title-separator",
        ),
        (["--model", "minlm", "wing"], "did you mean minilm"),
        (["--model", "bm25", "--bm25-analyzer", "klingon", "wing"], "klingon"),
    ],
)
def test_bad_input_of_a_typed_query(capsys, monkeypatch, beir_folder, tmp_path, arguments, word):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "search", "--dataset", beir_folder, *arguments)
    assert (status, out) == (2, "")
    assert word in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tsv", "1 wing\n", "a.tsv:1"),
        ("a.tsv", "1\twing\n1\tflow\n", "a.tsv:2"),
        ("a.jsonl", '{"_id": "1"}\n', "a.jsonl:1"),
        ("a.txt", "\n", "no queries"),
    ],
)
def test_a_bad_file_of_queries_names_the_line(capsys, beir_folder, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    given = ["search", "--dataset", beir_folder, "--model", "bm25", "--queries", tmp_path / name]
    status, _, err = run(capsys, *given)
    assert (status, words in err.splitlines()[-1]) == (2, True)


def bad(data: Path, tmp_path: Path) -> dict[str, list[object]]:
    store = ["--output", tmp_path / "s"]
    encode = ["encode", "--dataset", data, "--model", "no-such-model", *store]
    search = ["search", "--store", tmp_path / "none", "--dataset", data, "--output", tmp_path / "r"]
    return {
        "no such model": encode,
        "no such dataset": ["encode", "--dataset", "nowhere/to/be", "--model", "x", *store],
        "no such precision": [*encode, "--precision", "fp12"],
        "no such backend": [*encode, "--backend", "fp12"],
        "no shard": [*encode, "--shard-size", "0"],
        "no budget": [*encode, "--token-budget", "-5"],
        "no process": [*encode, "--processes", "0"],
        "no thread": [*encode, "--threads", "0"],
        "no store": search,
        "no results": [*search, "--top-k", "0"],
        "no such index": [*search, "--index", "annoy"],
        "no such policy": [*search, "--identical-ids", "maybe"],
        "broken line": ["encode", "--dataset", tmp_path / "broken.jsonl", "--model", "x", *store],
    }


@pytest.mark.parametrize("case", bad(Path(), Path()))
def test_bad_input_is_status_2_and_one_line(capsys, beir_folder, tmp_path, case):
    (tmp_path / "broken.jsonl").write_text('{"_id": "1", "text": "a"}\n{"_id": "2", "text": \n')
    status, out, err = run(capsys, *bad(beir_folder, tmp_path)[case])
    assert (status, out) == (2, "")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert lines == err.splitlines()[-1:]
    assert "Traceback" not in err
    assert not (tmp_path / "s" / "store.json").exists()
    assert not (tmp_path / "r").exists()
    if case == "broken line":
        assert "broken.jsonl:2" in lines[0]


@pytest.mark.parametrize("command", ["encode", "search"])
def test_without_ray_it_is_said_how_to_get_it(capsys, monkeypatch, beir_folder, tmp_path, command):
    from beir_cocodr.plugins import ray as plugin

    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    place = ["--model", "x"] if command == "encode" else ["--store", tmp_path / "none"]
    given = ["--dataset", beir_folder, "--output", tmp_path / "o"]
    status, out, err = run(capsys, command, *place, *given, "--ray")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "error: a cluster needs Ray: pip install 'beir-cocodr[ray]'"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ([], None),
        (["--ray"], "auto"),
        (["--ray", "local"], "local"),
        (["--ray=host:1"], "host:1"),
        (["--ray", "--json"], "auto"),
        (["--json", "--ray", "host:1"], "host:1"),
    ],
)
def test_the_address_of_a_cluster_may_be_left_out(capsys, monkeypatch, tmp_path, words, address):
    """The word after --ray is its address, unless that word is an option."""
    from beir_cocodr.cli import search as cli_search
    from beir_cocodr.evaluation import store_run

    asked: list[str | None] = []

    def search(*arguments: object, **settings: object) -> SimpleNamespace:
        asked.append(arguments[4][0])
        return SimpleNamespace(to_json=dict)

    def cluster(*settings: object) -> tuple[object, ...]:
        return settings

    plugins = {"ray search": search, "ray cluster": cluster}
    monkeypatch.setattr(cli_search, "load_plugin", plugins.__getitem__)
    monkeypatch.setattr(
        store_run,
        "search",
        lambda *arguments, **settings: asked.append(None) or SimpleNamespace(to_json=dict),
    )
    given = ["search", "--store", "s", "--dataset", "d", "--output", tmp_path / "r"]
    status, _, _ = run(capsys, *given, *words, *([] if "--json" in words else ["--json"]))
    assert (status, asked) == (0, [address])


def test_the_words_answer_first_where_a_corpus_is_encoded_for_the_first_time(
    capsys, beir_folder, tiny_cosine, monkeypatch
):
    """The answer of the model is on stdout as ever, so that a pipe gets nothing else."""
    monkeypatch.setattr(commands, "_MANY_TEXTS", 10)
    arguments = ["search", "--dataset", beir_folder, "--model", tiny_cosine, "supersonic wing"]
    status, out, err = run(capsys, *arguments)
    assert status == 0
    words, _, _ = err.partition("The answer of")
    assert "bm25" in words
    assert " encodes the 48 texts" in words
    _, bm25, _ = run(capsys, *arguments[:3], "--model", "bm25", "supersonic wing")
    assert bm25.strip() in words
    again = run(capsys, *arguments)
    assert again[1] == out
    assert "The answer of" not in again[2]


def test_json_and_small_corpora_have_one_answer(capsys, beir_folder, tiny_cosine, monkeypatch):
    arguments = ["search", "--dataset", beir_folder, "--model", tiny_cosine, "supersonic wing"]
    assert "The answer of" not in run(capsys, *arguments)[2]
    monkeypatch.setattr(commands, "_MANY_TEXTS", 10)
    monkeypatch.setenv("BEIR_COCODR_VECTORS", "off")
    status, out, err = run(capsys, *arguments, "--json")
    assert status == 0
    assert json.loads(out)["model"] == str(tiny_cosine)
    assert "The answer of" not in err
