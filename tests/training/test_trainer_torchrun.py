"""Two processes by torchrun and gloo give what one process gives with the same global batch."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from contexts import write_context
from safetensors.torch import load_file
from torchrun_commands import printed

from beir_cocodr.cli.__main__ import main
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.resampling import ResttestOptions
from beir_cocodr.resampling.manifest import read_manifest
from beir_cocodr.resampling.resttest import resample_resttest


@pytest.fixture(scope="module")
def without_dropout(tmp_path_factory, two_layer_mlm):
    """Dropout draws differ between processes; nothing else does."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("no-dropout")
    model = AutoModelForMaskedLM.from_pretrained(two_layer_mlm)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(two_layer_mlm, model_max_length=40)
    tokenizer.save_pretrained(folder)
    return folder


# Adam makes steps of what rounding leaves of a gradient near zero: in distillation of one weight in
# 1,000.
TOLERANCE = dict.fromkeys(("distill", "lambdarank", "fused", "merging", "crops"), 2e-4)
#: Of the tiny corpus, so that both processes have some: stores, their shards, BM25's blocks of
#: documents and queries.
SMALL_PARTS = {
    "beir_cocodr.retrieval.vectors.dense.IN_MEMORY": 0,
    "beir_cocodr.retrieval.store.encode.SHARD_SIZE": 16,
    "beir_cocodr.retrieval.bm25._BLOCK": 10,
    "beir_cocodr.training.hard_negatives.bm25_negatives._QUERIES": 3,
}
SHARED = ["--max-steps", "2", "--batch-size", "8", "--learning-rate", "1e-3", "--device", "cpu"]
SHORT = ["--max-length", "40", "--span-tokens", "12"]
ON_QUERIES = [*SHORT, "--mini-batch-size", "2", "--mix", "0.25"]
FEW_STEPS = ["--set", "refresh_steps=1", "--set", "warmup=0"]
COMMANDS = {
    "infonce": ["finetune"],
    "idro": ["finetune", "--weighting", "idro", "--clusters", "3", "--set", "log_clusters=1"],
    "episodes": ["finetune", "--weighting", "idro", "--clusters", "3", "--episodes", "1"],
    "coco": ["pretrain", *SHORT, "--mlm-weight", "0"],
    # Held-out queries would choose the start again, and the paper's warm-up is longer than this
    # training.
    "distill": (
        (
            "distill --teacher bm25 --loss margin_mse --set positives=1 --set held_out=0 --set"
            " warmup=0"
        ).split()
    ),
    # Each query's list has the other documents of both processes.
    "lambdarank": (
        (
            "distill --teacher bm25 --set held_out=0 --set warmup=0 --set mini_batch_size=2 --set"
            " positives=1 --set m_bm25=2 --set m_hard=1"
        ).split()
    ),
    # All measure held-out queries, and search for lists around what the fusion finds.
    "fused": [
        *"distill --teacher hybrid --set anchors=fused --set held_out=0.4".split(),
        *FEW_STEPS,
    ],
    # Held-out queries choose a checkpoint, and queries of another kind how it is merged.
    "merging": [
        *"distill --teacher bm25 --set merge_on=titles --set select_epochs=0.02".split(),
        *"--set held_out=0.3 --set positives=1 --set warmup=0".split(),
    ],
    # Crops of documents choose how the last weights are merged.
    "crops": "distill --teacher bm25 --set merge_on=crops --set held_out=0 --set warmup=0".split(),
    "cached": ["pretrain", *SHORT, "--mlm-weight", "0", "--mini-batch-size", "2"],
    "qc": ["pretrain", "--objective", "qc", *ON_QUERIES],
    "autoregressive": ["pretrain", "--objective", "cotmae", *ON_QUERIES],
}


#: Those with losses of their own in `resample evaluate`; the start has no head, so that SPLADE's is
#: trained as well.
ARCHITECTURES = ("splade", "late-interaction", "cross-encoder")
RECIPE = (
    "--batch-size 8 --max-steps 2 --learning-rate 1e-3 --device cpu --seed 1 --held-out 0.2 --set"
    " warmup=0 --set "
)
RECIPE += (
    "mlm_steps=2 --set negatives=2 --set select_epochs=0.2 --set rerank=20 --query-length 16"
    " --document-length 48"
)


def arguments(command, data, model, output):
    """Return the arguments of a command line.

    ``data`` is a folder of labels or, for training on queries, of generated queries.
    """
    named = ["--dataset", data, "--model", model, "--output", output]
    named += ["--queries", data] if command in ("qc", "autoregressive") else []
    return [*map(str, [*COMMANDS[command], *SHARED, *named])]


def torchrun(commands, folder, **environment):
    """Run two processes, and return what they print to stdout and to stderr."""
    folder.mkdir()
    (folder / "commands.json").write_text(json.dumps(commands))
    program = [
        sys.executable,
        Path(__file__).parents[1] / "torchrun_commands.py",
        folder / "commands.json",
        folder,
    ]
    given = {"capture_output": True, "text": True, "timeout": 500, "env": os.environ | environment}
    done = subprocess.run([*map(str, program)], **given)
    assert done.returncode == 0, done.stderr[-2000:]
    return printed(folder)


def documents_in(text):
    """The JSON documents in a text, one after another."""
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        content, end = decoder.raw_decode(text)
        found.append(content)
        text = text[end:]
    return found


@pytest.fixture(scope="module")
def regimes(tmp_path_factory, beir_folder, without_dropout):
    """The options of `resample evaluate` but its models: one bucket of ReSTTest, and a bare
    start.
    """
    from transformers import AutoModel, AutoTokenizer

    folder = tmp_path_factory.mktemp("regimes")
    resample_resttest(
        str(beir_folder),
        str(beir_folder),
        model=str(without_dropout),
        output=folder / "o",
        options=ResttestOptions(buckets=2),
    )
    manifest = read_manifest(folder / "o")
    one = replace(manifest, sets=[part for part in manifest.sets if part.bucket == 1])
    replace(one, content_sha256=one.hash_content()).write(folder / "o" / "manifest.json")
    AutoModel.from_pretrained(without_dropout).save_pretrained(folder / "bare")
    AutoTokenizer.from_pretrained(without_dropout).save_pretrained(folder / "bare")
    named = ["--folder", folder / "o", "--start", folder / "bare", *RECIPE.split(), "--json"]
    return ["resample", "evaluate", *map(str, named)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, beir_folder, without_dropout, regimes):
    """Every command in one process and in two; those of two in one torchrun, as a launch costs most
    of the time.
    """
    folder = tmp_path_factory.mktemp("ranks")
    data = dict.fromkeys(COMMANDS, beir_folder) | dict.fromkeys(
        ("qc", "autoregressive"), write_context(folder / "c")
    )
    data["merging"] = folder / "kinds"
    kinds = GenerationOptions(query_kinds="claims,keywords,titles")
    generate_queries(str(beir_folder), "lexical", data["merging"], kinds)

    def commands(processes):
        fuse = [
            "fuse",
            "--dataset",
            beir_folder,
            "--model",
            without_dropout,
            "--output",
            folder / processes / "fuse",
        ]
        trainings = [
            arguments(c, data[c], without_dropout, folder / processes / c) for c in COMMANDS
        ]
        # The last one, a dense model, is searched with by both processes together.
        others = ["--model", "words=bm25", "--model", f"base={without_dropout}"]
        output = ["--output", str(folder / processes / "regimes")]
        evaluate = [*regimes, "--architecture", ",".join(ARCHITECTURES), *others, *output]
        return [*trainings, [*map(str, fuse), "--device", "cpu", "--json"], evaluate]

    for command in commands("1"):
        with pytest.raises(SystemExit) as end, redirect_stdout(io.StringIO()):
            main(command)
        assert not end.value.code
    (folder / "taken").mkdir()
    (folder / "taken" / "thesis.tex").write_text("do not lose")
    taken = arguments("idro", beir_folder, without_dropout, folder / "taken")
    uneven = [
        *arguments("infonce", beir_folder, without_dropout, folder / "m"),
        "--batch-size",
        "7",
    ]
    cache = {"BEIR_COCODR_CACHE": str(folder / "cache")}
    # The second process searches with the second model, which is none.
    given = [
        "--model",
        "words=bm25",
        "--model",
        f"none={beir_folder}",
        "--output",
        str(folder / "none"),
    ]
    out, err = torchrun(
        [SMALL_PARTS, *commands("2"), taken, uneven, [*regimes, *given]], folder / "logs", **cache
    )
    stages = [
        content.get("stage", "regimes") for content in documents_in(out)
    ]  # each once, not by every process
    assert stages == [
        *["finetune"] * 3,
        "coco",
        *["distill"] * 5,
        *["coco", "qc", "cotmae", "fuse", "regimes"],
    ]
    (folder / "stderr").write_text(err)
    return folder


def test_a_log_has_whole_lines_an_end_for_each_command_and_no_bars_of_libraries(trained):
    errors = (trained / "stderr").read_text()
    assert "\r" not in errors
    assert "model shards" not in errors
    assert errors.count("\nNext: beir-cocodr ") == len(COMMANDS) + 2  # of the first process


@pytest.mark.parametrize("command", COMMANDS)
def test_two_processes_equal_one(command, trained, without_dropout):
    one, two = (load_file(trained / n / command / "model.safetensors") for n in ("1", "2"))
    start = load_file(without_dropout / "model.safetensors")
    for name, weight in one.items():
        if "key.bias" in name:
            continue  # attention does not depend on it: Adam makes steps of rounding errors
        atol = TOLERANCE.get(command, 2e-5)
        torch.testing.assert_close(
            two[name], weight, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
    moved = (
        one["encoder.layer.0.output.dense.weight"]
        - start["bert.encoder.layer.0.output.dense.weight"]
    )
    assert (
        command in ("fused", "merging", "crops") or moved.abs().max() > 1e-4
    )  # whose held-out queries may choose the start
    records = [
        json.loads((trained / n / command / "training.json").read_text()) for n in ("1", "2")
    ]
    if command != "episodes":  # whose records are those of its stages
        assert [record["processes"] for record in records] == [1, 2]
    if command == "fused":
        one_measured, two_measured = (record["held_out_mrr"] for record in records)
        assert one_measured == pytest.approx(two_measured)
        assert len(one_measured) == 3
        assert max(one_measured) > 0
    if command in ("merging", "crops"):
        one_merged, two_merged = (record["merging"] for record in records)
        assert one_merged == two_merged
        assert one_merged["queries"] >= 8
    if command == "merging":
        assert records[0]["selection"] == records[1]["selection"]
    if command == "idro":
        logs = [
            (trained / n / command / "cluster_weights.jsonl").read_text().splitlines()
            for n in ("1", "2")
        ]
        for first, second in zip(*(map(json.loads, lines) for lines in logs), strict=True):
            assert first["examples"] == second["examples"]
            assert first["weights"] == pytest.approx(second["weights"], abs=1e-5)


def test_two_processes_fuse_what_one_does(trained):
    """Each counts the terms of its half of the corpus."""
    one, two = (next((trained / n / "fuse").glob("*_HybridHead")) for n in ("1", "2"))
    assert (two / "terms.txt").read_text() == (one / "terms.txt").read_text() != ""
    numbers, others = (load_file(folder / "model.safetensors") for folder in (one, two))
    for name, expected in numbers.items():
        torch.testing.assert_close(others[name], expected, rtol=0, atol=1e-6)
    assert json.loads((trained / "2" / "fuse" / "training.json").read_text())["processes"] == 2


def test_negatives_are_searched_in_parts_once_for_all_trainings(trained):
    indexes = [
        path
        for path in (trained / "cache" / "bm25").iterdir()
        if not path.name.startswith("negatives-")
    ]
    # Of the corpus, of the one without held-out titles, and of the one without crops.
    assert len(indexes) == 3
    for index in indexes:
        assert (index / "vocabulary.json").is_file()  # what was counted for it is gone
    searched = list((trained / "cache" / "bm25").glob("negatives-*"))
    # Of the fine-tunings, with one depth, of the distillations with and without held-out queries,
    # of the cross-encoder, and of its held-out queries; and of the three parts of the queries of
    # the distillation that merges, and of the crops.
    assert len(searched) == 5 + 3 + 1
    assert (
        sum(len(list(folder.iterdir())) > 2 for folder in searched) >= 2
    )  # the last two are of few queries


def test_bad_input_is_one_error_for_all_processes(trained):
    errors = (trained / "stderr").read_text()
    assert errors.count("is not empty") == 1
    assert errors.count("exit status 2") == 3 * 2  # with the two below
    assert [file.name for file in (trained / "taken").iterdir()] == ["thesis.tex"]


def test_a_model_that_the_second_process_cannot_load_ends_both(trained, beir_folder):
    errors = (trained / "stderr").read_text()
    assert (
        len(
            [
                line
                for line in errors.splitlines()
                if line.startswith("error: ") and str(beir_folder) in line
            ]
        )
        == 1
    )
    assert [file.name for file in (trained / "none").glob("cells/*/*")] == ["words-1.json"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_two_processes_train_the_architectures_of_one(name, trained):
    one, two = (trained / n / "regimes" / "models" / "bucket-1" / f"{name}-1" for n in ("1", "2"))
    files = [file.relative_to(one) for file in one.rglob("*.safetensors")]
    assert files
    for file in files:
        first, second = load_file(one / file), load_file(two / file)
        for key, weight in first.items():
            if (
                key != "classifier.bias" and "key.bias" not in key
            ):  # no difference of scores depends on them
                torch.testing.assert_close(
                    second[key], weight, rtol=0, atol=2e-5, msg=lambda m, n=key: f"{n}: {m}"
                )
    records = [json.loads((folder / "training.json").read_text()) for folder in (one, two)]
    assert [record["processes"] for record in records] == [1, 2]
    assert records[0]["selection"] == records[1]["selection"]
    assert len(records[0]["selection"]["steps"]) > 1


def test_two_processes_find_what_one_does_in_both_regimes(trained):
    rows = [
        json.loads((trained / n / "regimes" / "regimes.json").read_text())["rows"]
        for n in ("1", "2")
    ]
    assert len(rows[0]) == len(ARCHITECTURES) + 2
    for one, two in zip(*rows, strict=True):
        for measure, scores in one["measures"].items():
            for regime in ("interpolation", "extrapolation"):
                assert two["measures"][measure][regime] == pytest.approx(scores[regime], abs=1e-6)


def test_the_cell_of_a_model_that_both_search_with_is_that_of_one(trained):
    one, two = (
        json.loads((trained / n / "regimes/cells/bucket-1/base-1.json").read_text())
        for n in ("1", "2")
    )
    assert one["retrieval"] == two["retrieval"]
    for regime, measures in one["scores"].items():
        for measure, scores in measures.items():
            assert two["scores"][regime][measure] == pytest.approx(scores, abs=1e-9)
            assert [*two["scores"][regime][measure]] == [*scores]


def test_a_batch_that_cannot_be_split_is_refused(trained):
    errors = (trained / "stderr").read_text()
    assert "split evenly over 2 processes" in errors
    assert not (trained / "m" / "training.json").exists()
