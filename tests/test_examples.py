"""The scripts in examples/ run as they are, and their README says what they take."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import shlex
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from beir.datasets.data_loader import GenericDataLoader
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch
from conftest import completed, write_beir

from beir_cocodr import evaluate, load_collection
from beir_cocodr.evaluation.label_free.contamination import find_contamination
from beir_cocodr.models.spec import model_forms

EXAMPLES = Path(__file__).parents[1] / "examples"
README = (EXAMPLES / "README.md").read_text()
#: Those that import an extra at once.
NEEDS = {
    "mteb_evaluation.py": "mteb",
    "pyterrier_pipeline.py": "pyterrier",
    "langchain_retriever.py": "langchain_core",
    "llamaindex_retriever.py": "llama_index.core",
    "haystack_retriever.py": "haystack",
}
SCRIPTS = sorted(file.name for file in EXAMPLES.glob("*.py"))
BLOCKS = re.findall(r"```\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    shlex.split(line)
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if "examples/" in line
]


def _script(arguments: list[str]) -> None:
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    runpy.run_path(arguments[0], run_name="__main__")


def run(*arguments: object, **environment: str) -> str:
    """Run a script in a forked process that has everything imported, and return what it prints."""
    done = completed(_script, [*map(str, arguments)], environment={**os.environ, **environment})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def options_of(script: str, command: list[str]) -> set[str]:
    """Return the options of a script, or of its command that is named first.

    The script runs in a process of its own: the row that it adds must not reach other tests.
    """
    if script in NEEDS:
        pytest.importorskip(NEEDS[script])
    printed = run(EXAMPLES / script, *command, "--help")
    described = re.split("options:", printed, flags=re.IGNORECASE)
    return set(re.findall(r"--[a-z-]+", described[1]))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_readme_names_every_script_with_options_that_it_has(script):
    assert f"| `{script}` |" in README
    commands = [command for command in COMMANDS if f"examples/{script}" in command]
    assert commands
    first = commands[0][commands[0].index(f"examples/{script}") + 1]
    known = options_of(script, [] if first.startswith("-") else [first])
    for command in commands:
        given = command[command.index(f"examples/{script}") :]
        assert {word for word in given if word.startswith("--")} <= known


def test_evaluate_one_task(beir_folder, tiny_cosine, tmp_path):
    arguments = [
        "--dataset",
        beir_folder,
        "--model",
        tiny_cosine,
        "--k",
        1,
        10,
        "--store",
        tmp_path / "s",
    ]
    found = json.loads(run(EXAMPLES / "evaluate_one_task.py", *arguments, "--device", "cpu"))
    from beir_cocodr import COCODR

    corpus, queries, qrels = GenericDataLoader(str(beir_folder)).load(split="test")
    search = DenseRetrievalExactSearch(COCODR(tiny_cosine, device="cpu"), show_progress_bar=False)
    retriever = EvaluateRetrieval(search, [1, 10], "cos_sim")
    results = retriever.retrieve(corpus, queries)
    for part in retriever.evaluate(qrels, results, [1, 10]):
        assert part.items() <= found.items()
    assert list((tmp_path / "s").rglob("*.npy"))


def test_beir_rerank(beir_folder, tiny_cosine, tiny_cross):
    arguments = [
        "--dataset",
        beir_folder,
        "--model",
        tiny_cosine,
        "--cross-encoder",
        tiny_cross,
        "--top-k",
        20,
    ]
    found = json.loads(run(EXAMPLES / "beir_rerank.py", *arguments, "--device", "cpu"))
    assert list(found) == ["bm25", "HNSW", "bm25, reranked", f"bm25, reranked by {tiny_cross}"]
    assert all(0 < measures["NDCG@10"] <= 1 for measures in found.values())


@pytest.mark.parametrize("form", ["pairs", "triplets", "hard-negatives", "margin-mse"])
def test_beir_training(form, beir_folder, tiny_cosine, tmp_path):
    for split in ("train", "dev"):
        qrels = (beir_folder / "qrels" / "test.tsv").read_text().splitlines()
        (tmp_path / "data" / "qrels").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / "qrels" / f"{split}.tsv").write_text("\n".join(qrels[:20]) + "\n")
    for file in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / "data" / file).symlink_to(beir_folder / file)
    arguments = ["--data-path", tmp_path / "data", "--model", tiny_cosine, "--form", form]
    output = tmp_path / "trained"
    run(EXAMPLES / "beir_training.py", *arguments, "--batch-size", 4, "--output", output)
    trained = evaluate({"m": str(output)}, str(beir_folder), measures="nDCG@10")
    assert trained.models["m"].measures["nDCG@10"] > 0.1
    assert (output / "model.safetensors").read_bytes() != (
        Path(tiny_cosine) / "model.safetensors"
    ).read_bytes()
    if form == "pairs":
        assert list((output / "eval").glob("*.csv"))


def test_evaluate_all_tasks(tmp_path):
    for task in ("scifact", "nfcorpus"):
        write_beir(tmp_path / "data" / task, seed=len(task))
    tasks = ["--rows", "scifact", "nfcorpus", "arguana", "--data", tmp_path / "data", "--inside"]
    out = run(
        EXAMPLES / "evaluate_all_tasks.py", "--model", "bm25", *tasks, "--output", tmp_path / "out"
    )
    published = json.loads(
        (EXAMPLES.parent / "benchmarks" / "published" / "cocodr.json").read_text()
    )
    for task in ("scifact", "nfcorpus"):
        [row] = [line for line in out.splitlines() if line.startswith(f"| {task} |")]
        cells = [cell.strip() for cell in row.split("|")[3:-1]]
        scores = [
            score for name, score in published["table1"]["scores"][task].items() if name != "bm25"
        ]
        assert cells == ["–" if score is None else f"– ({score:.3f})" for score in scores]
    assert "arguana is missing" in out
    assert (tmp_path / "out" / "coco-dr-table1.json").is_file()


TRAINING = ["--max-steps", "2", "--batch-size", "4", "--device", "cpu"]


def test_finetune_msmarco(beir_folder, two_layer_bert, tmp_path):
    output = tmp_path / "model"
    arguments = ["--dataset", beir_folder, "--model", two_layer_bert, "--output", output, *TRAINING]
    record = json.loads(
        run(EXAMPLES / "finetune_msmarco.py", *arguments, "--weighting", "idro", "--clusters", 2)
    )
    assert (record["stage"], record["steps"], record["processes"]) == ("finetune", 2, 1)
    assert record == json.loads((output / "training.json").read_text())
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(output), device="cpu").encode_query(["wing flow"]).shape == (
        1,
        32,
    )


def test_two_processes_as_torchrun_starts_them(beir_folder, tiny_bert, tmp_path):
    """Under torchrun's environment variables; torchrun itself is run by the tests of the
    trainer.
    """
    arguments = [
        "--dataset",
        beir_folder,
        "--model",
        tiny_bert,
        "--output",
        tmp_path / "two",
        *TRAINING,
    ]
    command = [*map(str, [EXAMPLES / "finetune_msmarco.py", *arguments])]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(
            lambda rank: run(*command, **shared, RANK=rank, LOCAL_RANK=rank), "01"
        )
    record = json.loads(first)
    assert not second  # printed once
    assert (record["steps"], record["processes"]) == (2, 2)
    assert (tmp_path / "two" / "model.safetensors").is_file()


def test_adapt_corpus(beir_folder, tiny_bert, tmp_path):
    data = [
        "--dataset",
        beir_folder,
        "--source",
        beir_folder,
        "--model",
        tiny_bert,
        "--stages",
        "coco",
        "finetune",
    ]
    out = run(EXAMPLES / "adapt_corpus.py", *data, "--output", tmp_path / "o", *TRAINING)
    assert "Did training make the encoder better?" in out
    assert "Recommended: " in out
    assert (tmp_path / "o" / "models" / "coco+source" / "modules.json").is_file()


def _forget_commands() -> None:
    """Let commands be imported anew, as if none had been imported before."""
    for name in [name for name in sys.modules if name.startswith("beir_cocodr.cli")]:
        del sys.modules[name]


def _first_script(arguments: list[str]) -> None:
    """Run a script as if no command had been imported before it."""
    _forget_commands()
    _script(arguments)


def help_of(script: str, command: str) -> str:
    """Return the help of a command of a script that adds a row to the command line."""
    done = completed(_first_script, [str(EXAMPLES / script), command, "--help"])
    assert done.returncode == 0, done.stderr[-3000:]
    return " ".join(done.stdout.split())


def trained(folder: Path) -> tuple[dict, str]:
    """Return the record of a training, and the model card."""
    return json.loads((folder / "training.json").read_text()), (folder / "README.md").read_text()


def practised_spans_of(corpus: Path, model: Path) -> bool:
    """Return true if a lead on held-out crops of a corpus is no evidence for a model."""
    documents = load_collection(corpus, labels="none").documents
    return "m" in find_contamination({"m": str(model)}, documents.content_hash).spans


@pytest.mark.parametrize("power", [0, 1])
def test_custom_weighting(power, beir_folder, tiny_bert, tmp_path):
    script = EXAMPLES / "custom_weighting.py"
    arguments = ["--dataset", beir_folder, "--model", tiny_bert, "--output", tmp_path / "o"]
    weighting = ["--weighting", "power", "--clusters", 3, "--set", f"power={power}"]
    run(script, "finetune", *arguments, *weighting, *TRAINING)
    lines = (tmp_path / "o" / "cluster_weights.jsonl").read_text().splitlines()
    weights = json.loads(lines[-1])["weights"]
    assert len(weights) == 3
    assert (set(weights) == {1.0}) == (power == 0)
    record, card = trained(tmp_path / "o")
    assert (record["options"]["weighting"], record["steps"]) == ("power", 2)
    assert record["options"]["weighting_options"]["power"] == power
    assert "Clusters by a Power of Their Loss" in card
    assert "groupdro, cvar or power" in help_of("custom_weighting.py", "finetune")


def test_custom_loss(beir_folder, tiny_bert, tmp_path):
    script = EXAMPLES / "custom_loss.py"
    arguments = ["--dataset", beir_folder, "--model", tiny_bert, "--output", tmp_path / "o"]
    run(script, "finetune", *arguments, "--loss", "hinge", "--set", "margin=0.3", *TRAINING)
    record, card = trained(tmp_path / "o")
    assert (record["options"]["loss"], record["options"]["loss_options"]) == (
        "hinge",
        {"margin": 0.3},
    )
    assert record["training_loss"] > 0
    assert "A Margin between Positive and Negative" in card
    assert "triplet or infonce or hinge" in help_of("custom_loss.py", "finetune")
    idro = ["--loss", "hinge", "--weighting", "idro"]
    done = completed(_script, [*map(str, [script, "finetune", *arguments, *idro])])
    assert done.returncode == 2
    assert "idro cannot weight the loss hinge" in done.stderr


def test_custom_objective_is_no_evidence_by_crops_of_its_corpus(beir_folder, tiny_bert, tmp_path):
    script, output = EXAMPLES / "custom_objective.py", tmp_path / "o"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((beir_folder / "corpus.jsonl").read_bytes())
    arguments = ["--dataset", corpus, "--model", tiny_bert, "--output", output]
    own = ["--objective", "beginnings", "--set", "share=0.3", "--span-tokens", 12]
    run(script, "pretrain", *arguments, *own, *TRAINING)
    record, card = trained(output)
    assert (record["stage"], record["rehearsed"]) == ("beginnings", ["spans"])
    assert record["options"]["objective_options"]["share"] == 0.3
    assert "Beginnings Find Their Ends" in card
    assert "tsdae or beginnings" in help_of("custom_objective.py", "pretrain")
    assert practised_spans_of(corpus, output)
    assert not practised_spans_of(corpus, tiny_bert)


@pytest.mark.parametrize("loss", ["coco", "idro", "lambdarank"])
def test_sentence_transformers_losses(loss, beir_folder, two_layer_cosine, tmp_path):
    arguments = [
        "--dataset",
        beir_folder,
        "--model",
        two_layer_cosine,
        "--output",
        tmp_path,
        "--loss",
        loss,
        *TRAINING,
    ]
    assert (
        run(EXAMPLES / "sentence_transformers_losses.py", *arguments).splitlines()[-1] == "(1, 32)"
    )


def test_custom_teacher(beir_folder, tiny_bert, tiny_cosine, tmp_path):
    script, output = EXAMPLES / "custom_teacher.py", tmp_path / "o"
    teacher = ["--teacher", f"encoder:{tiny_cosine}", "--set", "temperature=0.5"]
    arguments = ["--dataset", beir_folder, "--model", tiny_bert, *teacher, "--output", output]
    run(script, "distill", *arguments, *TRAINING)
    record, card = trained(output)
    assert (record["teacher"], record["steps"]) == (f"encoder:{tiny_cosine}", 2)
    assert record["options"]["teacher_options"] == {"temperature": 0.5}
    assert record["lists"]["all_tied"] == 0
    assert "An Encoder Teaches an Encoder" in card
    assert (output / "model.safetensors").is_file()
    assert "encoder:M" in help_of("custom_teacher.py", "distill")
    other = ["--dataset", beir_folder, "--model", tiny_bert, "--teacher", "bm25"]
    done = completed(
        _script,
        [
            *map(str, [script, "distill", *other, "--output", tmp_path / "p"]),
            "--set",
            "temperature=0.5",
        ],
    )
    assert done.returncode == 2
    assert "bm25 has no option temperature, which belongs to encoder" in done.stderr


def test_custom_stage(beir_folder, tiny_bert, tmp_path):
    script, output = EXAMPLES / "custom_stage.py", tmp_path / "o"
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((beir_folder / "corpus.jsonl").read_bytes())
    arguments = ["--dataset", corpus, "--model", tiny_bert, "--output", output]
    run(script, "adapt", *arguments, "--stages", "titles", "--samples", 12, *TRAINING)
    record, card = trained(output / "models" / "titles")
    assert (record["stage"], record["rehearsed"]) == ("finetune", ["spans"])
    assert "Titles Find Their Texts" in card
    adapted = json.loads((output / "adapt.json").read_text())
    assert adapted["stages"] == ["titles"]
    assert adapted["chains"]["base + titles"]["stages"] == ["titles"]
    assert practised_spans_of(corpus, output / "models" / "titles")
    assert "fuse,titles" in help_of("custom_stage.py", "adapt")


def test_custom_fusion(beir_folder, tiny_cosine, tmp_path):
    arguments = ["--dataset", beir_folder, "--model", tiny_cosine, "--samples", 12]
    out = run(EXAMPLES / "custom_fusion.py", *arguments, "--output", tmp_path / "o")
    mine = f"largest:{tiny_cosine}"
    record = json.loads((tmp_path / "o" / "comparison.json").read_text())
    assert record["retrieval"][mine]["model"] == "the larger z-normalised score"
    [pair] = [pair for pair in record["pairs"] if pair["b"] == mine and pair["a"] != "bm25"]
    assert f"{mine} against {tiny_cosine}: {pair['verdict']}" in out
    assert pair["rule"] == "calibrated"
    assert pair["precedent"]["collections"] > 0
    assert "no model of the kind" not in pair["reason"]


def test_custom_estimator(beir_folder, tiny_cosine, tmp_path):
    arguments = ["--dataset", beir_folder, "--model", tiny_cosine, "--samples", 12]
    out = run(EXAMPLES / "custom_estimator.py", *arguments, "--output", tmp_path / "o")
    assert "  score gap: " in out
    [pair] = json.loads((tmp_path / "o" / "comparison.json").read_text())["pairs"]
    [estimate] = [one for one in pair["estimates"] if one["estimator"] == "score gap"]
    assert "of different kinds" in estimate["remark"]
    assert "score gap" not in pair["features"]


def _help_with_rows_of_ones_own(command: str) -> None:
    """Print the help of a command that is imported after the rows of two examples were added."""
    sys.path.insert(0, str(EXAMPLES))
    for script in ("custom_fusion", "custom_estimator"):
        importlib.import_module(script).register()
    assert "largest:M" in model_forms()
    _forget_commands()
    importlib.import_module("beir_cocodr.cli.__main__").main([command, "--help"])


@pytest.mark.parametrize(("command", "row"), [("evaluate", "largest:M"), ("compare", "score gap")])
def test_rows_of_ones_own_are_in_the_help(command, row):
    wide = {**os.environ, "COLUMNS": "400"}
    done = completed(_help_with_rows_of_ones_own, command, environment=wide)
    assert done.returncode == 0, done.stderr[-3000:]
    assert row in " ".join(done.stdout.split())


def test_custom_retriever(beir_folder, tmp_path):
    out = run(EXAMPLES / "custom_retriever.py", "--dataset", beir_folder, "--output", tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())["models"]
    assert [line.split()[0] for line in out.splitlines()] == list(found) == ["bm25", "ngrams"]
    assert found["ngrams"]["retrieval"]["model"] == "tf-idf of character n-grams"
    assert found["ngrams"]["measures"]["nDCG@10"] > 0.3
    assert (tmp_path / "ngrams.run").read_text() != (tmp_path / "bm25.run").read_text()


def test_mteb_evaluation(beir_folder, tiny_cosine, tmp_path):
    pytest.importorskip("mteb", reason="mteb is not installed: pip install 'beir-cocodr[mteb]'")
    models = ["--model", "bm25", "--model", tiny_cosine]
    out = run(
        EXAMPLES / "mteb_evaluation.py",
        "--dataset",
        beir_folder,
        *models,
        "--cache",
        tmp_path / "mteb",
    )
    names = {"bm25": "bm25", "cosine": str(tiny_cosine)}
    ours = evaluate(names, str(beir_folder), output=tmp_path / "ours").models
    printed = [line.split("|")[2].strip() for line in out.splitlines()[2:]]
    assert printed == [f"{ours[name].measures['nDCG@10']:.4f}" for name in names]


@pytest.mark.java
def test_pyserini_search(beir_folder, tiny_cosine, tmp_path):
    pytest.importorskip(
        "pyserini", reason="pyserini is not installed: pip install 'beir-cocodr[pyserini]'"
    )
    arguments = ["--dataset", beir_folder, "--model", tiny_cosine, "--output", tmp_path / "o"]
    out = run(EXAMPLES / "pyserini_search.py", *arguments, PYSERINI_CACHE=str(tmp_path / "cache"))
    ours = (
        evaluate([str(tiny_cosine)], str(beir_folder), output=tmp_path / "ours")
        .models[str(tiny_cosine)]
        .measures
    )
    assert f"nDCG@10 {ours['nDCG@10']:.4f}" in out


def test_irds_collection(beir_folder, tmp_path):
    words = ["--folder", beir_folder, "--id", "example/tiny", "--forget"]
    out = run(EXAMPLES / "irds_collection.py", *words, IR_DATASETS_HOME=str(tmp_path))
    assert "example/tiny/test 48 docs 16 queries 32 qrels" in out.splitlines()
    assert json.loads((tmp_path / "beir_cocodr.json").read_text())["folders"] == {}


def test_gpl_tevatron_data(beir_folder, tiny_cosine, tmp_path):
    arguments = [
        "--dataset",
        beir_folder,
        "--model",
        tiny_cosine,
        "--output",
        tmp_path,
        "--negatives",
        3,
    ]
    out = run(EXAMPLES / "gpl_tevatron_data.py", *arguments, "--max-steps", 1, "--batch-size", 2)
    assert "qgen-queries.jsonl" in out
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert record["options"]["hard_negatives"] == str(tmp_path / "gpl" / "hard-negatives.jsonl")


def test_pyterrier_pipeline(beir_folder, tiny_cosine, tmp_path):
    pytest.importorskip(
        "pyterrier", reason="pyterrier is not installed: pip install 'beir-cocodr[pyterrier]'"
    )
    out = run(EXAMPLES / "pyterrier_pipeline.py", "--dataset", beir_folder, "--model", tiny_cosine)
    ours = evaluate(["bm25", str(tiny_cosine)], str(beir_folder), output=tmp_path / "ours").models
    [header, *_] = table = [line.split() for line in out.splitlines()]
    [bm25] = [row for row in table if row[0] == "BM25"]
    assert float(bm25[header.index("ndcg_cut_10")]) == pytest.approx(
        ours["bm25"].measures["nDCG@10"], abs=1e-6
    )
    assert len(table) == 5


BEIR_SCRIPT = """
import json, logging, sys

from beir import LoggingHandler
from beir.datasets.data_loader import GenericDataLoader
from beir.retrieval import models
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch as DRES

logging.basicConfig(level=logging.INFO, handlers=[LoggingHandler()])
corpus, queries, qrels = GenericDataLoader(data_folder=sys.argv[1]).load(split="test")
model = DRES(models.SentenceBERT("msmarco-distilbert-base-tas-b"), batch_size=16)
retriever = EvaluateRetrieval(model, score_function="cos_sim")
results = retriever.retrieve(corpus, queries)
ndcg, _map, recall, precision = retriever.evaluate(qrels, results, retriever.k_values)
mrr = retriever.evaluate_custom(qrels, results, retriever.k_values, metric="mrr")
print(json.dumps([ndcg, _map, recall, precision, mrr]))
"""


def test_a_beir_script_runs_with_the_two_lines_of_the_readme_changed(
    beir_folder, tiny_cosine, tmp_path
):
    [diff] = re.findall(r"```diff\n(.*?)```", README, flags=re.DOTALL)
    before, after = ([line[1:] for line in diff.splitlines() if line[0] == mark] for mark in "-+")
    assert len(before) == len(after) == 2
    changed = BEIR_SCRIPT
    for old, new in zip(before, after, strict=True):
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    printed = []
    for name, script in (("before", BEIR_SCRIPT), ("after", changed)):
        file = tmp_path / f"{name}.py"
        # One model for both, so that nothing but the two lines differs.
        file.write_text(
            re.sub(r'"(msmarco-distil|OpenMatch/)[^"]*"', repr(str(tiny_cosine)), script)
        )
        # BEIR logs to stdout.
        printed.append(json.loads(run(file, beir_folder).splitlines()[-1]))
    assert printed[0] == printed[1]
    assert 0 < printed[0][0]["NDCG@10"] < 1
