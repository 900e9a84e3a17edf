"""Whether results stayed as they were: runs on labelled collections, and weights after a few
training steps.

It speaks to the command line alone, so that one script measures the code before and after a change
of its insides. Record both, each with its own command, and compare:

    python benchmarks/unchanged.py record before --collections FOLDER --command
    OLD/.venv/bin/beir-cocodr python benchmarks/unchanged.py record after --collections FOLDER
    python benchmarks/unchanged.py compare before after

``record`` evaluates on every BEIR folder with a split "test" in FOLDER, and runs every training
command with its objectives, weightings, teachers and students for a few steps on a piece of
apidocs/numpy: one thread, no GPU. OUT/unchanged.json is written after each case and what stands
there is kept, so that a run that was broken off goes on: take a new folder for other code. Models
stay in OUT, about 100 MB each.

``compare`` exits with 1 if B lacks what A has, a BM25 run is not equal to the byte, a score moved
by more than 1e-5, two documents more than 2e-5 apart in A changed places, or weights or written
texts are not equal. With ``--tolerate CASE``, for training that mines its examples, weights may
move by 1e-5 and texts change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from safetensors import safe_open

FILE, TOLERANCE, TIE = "unchanged.json", 1e-5, 2e-5
RANKERS = ("bm25", "minilm", "hybrid:minilm", "feedback:minilm")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
DOCUMENTS, CHARACTERS = 120, 200  # of the piece that is trained on
OBJECTIVES = ("coco", "cocondenser", "condenser", "mlm", "simcse", "ict", "tsdae")
WEIGHTINGS = ("erm", "idro", "groupdro", "cvar")
MODES, GRAMS = ("published", "paper"), ("sketch", "k_calls")

_TRAIN = "--dataset {piece} --model minilm --seed 1 --max-steps 5 --set save_steps=100"
#: Command to what all its cases share. {piece} is the collection, {train} the folder of all cases.
SHARED = {
    "generate-queries": "--dataset {piece} --seed 1",
    "pretrain": f"{_TRAIN} --batch-size 6 --max-length 48 --span-tokens 20",
    "finetune": f"{_TRAIN} --batch-size 8 --clusters 4 --set log_clusters=1",
    "distill": f"{_TRAIN} --batch-size 4 --learning-rate 3e-5 --set warmup=0.1 --set held_out=0 "
    "--set m_bm25=2 --set m_hard=2",
    "adapt": "--base minilm --seed 1 --max-steps 5 --batch-size 4",
    "resample": "--seed 1",
}
#: A case, its command and what is its own; later ones may read what earlier ones wrote.
TRAINING = [
    "queries: generate-queries --per-passage 3",
    "queries-filtered: generate-queries --per-passage 2 --dedupe --filter-retriever bm25",
    *(f"pretrain-{objective}: pretrain --objective {objective}" for objective in OBJECTIVES),
    "pretrain-coco-cached: pretrain --objective coco --mini-batch-size 3 --encoder-dropout",
    "pretrain-qc: pretrain --objective qc --queries {train}/queries",
    "pretrain-qc-mix: pretrain --objective qc --queries {train}/queries --mix 0.5 --per-passage 1",
    "pretrain-cotmae: pretrain --objective cotmae --queries {train}/queries --decoder autoregressive",
    "pretrain-cotmae-masked: pretrain --objective cotmae --queries {train}/queries --decoder masked",
    *(f"finetune-{weighting}: finetune --weighting {weighting}" for weighting in WEIGHTINGS),
    "finetune-erm-cached: finetune --mini-batch-size 4 --negatives 2",
    "finetune-erm-triplet: finetune --loss triplet --set document_length=24",
    "finetune-idro-infonce: finetune --weighting idro --loss infonce",
    *(f"finetune-idro-{mode}: finetune --weighting idro --set idro_mode={mode}" for mode in MODES),
    *(f"finetune-idro-{gram}: finetune --weighting idro --set gram={gram}" for gram in GRAMS),
    "finetune-episodes: finetune --weighting idro --episodes 2 --target {piece}",
    "finetune-stages: finetune --stages 2",
    "finetune-stages-mined: finetune --stages 2 --stage2-negatives mined --set relative_margin=0.05",
    *(
        f"distill-{name}-{student}: distill --teacher {teacher} --student {student}"
        for name, teacher in {
            "bm25": "bm25",
            "hybrid": "hybrid",
            "file": "{piece}/scores.tsv",
        }.items()
        for student in ("dot", "mrl")
    ),
    "distill-kl: distill --teacher hybrid --loss kl --set positives=1",
    "distill-margin-mse: distill --teacher bm25 --loss margin_mse --set positives=1",
    "distill-rounds: distill --teacher bm25 --set refresh_steps=2 --mini-batch-size 8",
    "adapt: adapt --corpus {piece} --source {piece} --stages coco,finetune,hybrid-distill",
    "adapt-unlabelled: adapt --corpus {piece}/corpus.jsonl --stages qgen --samples 30",
    "sets: resample restrain --train {piece} --test {piece} --encoder minilm --size 30",
    "architectures: resample evaluate --folder {train}/sets --max-steps 2 --batch-size 4 --set mlm_steps=2 "
    "--set rerank=5 --architecture splade,late-interaction,cross-encoder",
]


def record(out: Path, collections: Path | None, only: str | None, command: Path, fast: bool) -> int:
    """Run all cases that ``out`` does not hold yet; returns how many failed."""
    made: dict[str, Any] = {
        "command": str(command),
        "machine": machine(),
        "versions": {},
        "cases": {},
    }
    if (out / FILE).is_file():
        made = json.loads((out / FILE).read_text())
    cases: dict[str, list[str]] = {}
    if only != "evaluate":
        places = {"piece": _piece(out, command), "train": out / "train"}
        for line in TRAINING:
            case, told = line.split(": ", 1)
            told = f"{told} {SHARED[told.split()[0]]}".format(**places)
            cases[f"train/{case}"] = shlex.split(told)
    if only != "train":
        if collections is None:
            raise SystemExit("name the folder of the collections to evaluate on with --collections")
        models = [f"--model={model}" for model in RANKERS] + (
            ["--document-length=64"] if fast else []
        )
        for folder in sorted(
            path.parent.parent for path in collections.resolve().glob("*/qrels/test.tsv")
        ):
            cases[f"evaluate/{folder.name}"] = ["evaluate", f"--dataset={folder}", *models]
    wanted = {case: given for case, given in cases.items() if case not in made["cases"]}
    for case, given in wanted.items():
        started = time.perf_counter()
        if _run(out, case, [str(command), *given, f"--output={out / case}"]):
            seconds = round(time.perf_counter() - started, 1)
            found = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": seconds}
            made["cases"][case] = {
                "folder": case,
                "arguments": given,
                **found,
                **_found(out / case, made),
            }
            (out / FILE).write_text(json.dumps(made, indent=2) + "\n")
            print(f"{case}: {seconds} s", flush=True)
    return sum(case not in made["cases"] for case in wanted)


def _run(out: Path, case: str, command: list[str]) -> bool:
    """Run a command into an empty folder, its output in a log; says what went wrong."""
    log = out / "logs" / f"{case.replace('/', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / case, ignore_errors=True)
    environment = os.environ | ENVIRONMENT | {"BEIR_COCODR_CACHE": str(out / "cache")}
    with log.open("w") as file:
        status = subprocess.run(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT
        ).returncode
    if status:
        end = "\n    ".join(log.read_text().splitlines()[-8:])
        print(
            f"{case}: status {status} of {shlex.join(command)}\n    {end}",
            file=sys.stderr,
            flush=True,
        )
    return status == 0


def _piece(out: Path, command: Path) -> Path:
    """The first documents of apidocs/numpy, cut short, with their queries, and scores of a teacher:
    the share of a query's words that a document has.
    """
    piece = out / "piece"
    if not _run(out, "validate", [str(command), "validate", "--dataset=apidocs/numpy"]):
        raise SystemExit("apidocs/numpy cannot be made")
    (whole,) = (out / "cache").glob("**/corpus.jsonl")
    (piece / "qrels").mkdir(parents=True, exist_ok=True)
    texts = {}
    for name in ("corpus", "queries"):  # a query has its document's place
        lines = [
            json.loads(line) for line in whole.with_name(f"{name}.jsonl").read_text().splitlines()
        ]
        texts[name] = {line["_id"]: line["text"][:CHARACTERS] for line in lines[:DOCUMENTS]}
        kept = (json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in texts[name].items())
        (piece / f"{name}.jsonl").write_text("".join(kept))
    for split in ("train", "test"):
        head, *rows = (
            (whole.parent / "qrels" / f"{split}.tsv").read_text().splitlines(keepends=True)
        )
        rows = [row for row in rows if row.split("\t")[1] in texts["corpus"]]
        (piece / "qrels" / f"{split}.tsv").write_text("".join([head, *rows]))
    documents = {id_: set(text.lower().split()) for id_, text in texts["corpus"].items()}
    with (piece / "scores.tsv").open("w") as file:
        for query, text in texts["queries"].items():
            words = set(text.lower().split())
            for id_, found in documents.items():
                file.write(f"{query}\t{id_}\t{len(words & found) / len(words)}\n")
    return piece


def _found(folder: Path, made: dict[str, Any]) -> dict[str, Any]:
    """Digests of the runs, texts and weights of a folder, and its measures; ``made`` gets the
    versions.
    """
    files, measures = {}, {}
    for path in sorted(path for path in folder.rglob("*") if "checkpoints" not in path.parts):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            digest = hashlib.sha256()
            for key, tensor in _tensors(path).items():
                digest.update(f"{key} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
            files[name] = digest.hexdigest()
        elif path.suffix in (".run", ".tsv", ".jsonl") and not name.endswith(".per_query.tsv"):
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "results.json":
            for model, told in json.loads(path.read_text())["models"].items():
                measures[f"{name}: {model}"] = told["measures"]
                made["versions"] |= told["versions"]
        elif path.name == "training.json":
            made["versions"] |= json.loads(path.read_text()).get("versions", {})
    return {"files": files, "measures": measures}


def _tensors(path: Path) -> dict[str, Any]:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in sorted(file.keys())}


def compare(before: Path, after: Path, tolerated: list[str]) -> int:
    """Print a table of all cases; returns how many rows of it are beyond what may be."""
    a, b = (json.loads((out / FILE).read_text()) for out in (before, after))
    if unknown := [case for case in tolerated if f"train/{case}" not in a["cases"]]:
        raise SystemExit(f"--tolerate {unknown[0]}: there is no such case")
    told = [name for name in ("machine", "versions") if a[name] != b[name]]
    rows = [(True, name, f"{a[name]} before, {b[name]} after") for name in told]
    for case, old in a["cases"].items():
        new = b["cases"].get(case, {"files": {}, "measures": {}})
        names = sorted(old["files"].keys() | new["files"].keys())
        equal = [name for name in names if old["files"].get(name) == new["files"].get(name)]
        for ending in sorted({Path(name).suffix for name in equal}):
            same = [name for name in equal if name.endswith(ending)]
            names_of_runs = f": {', '.join(same)}" if ending == ".run" else ""
            rows.append((True, case, f"{len(same)} {ending} equal to the byte{names_of_runs}"))
        for name in sorted(set(names) - set(equal)):
            paths = before / case / name, after / case / name
            fine, text = _difference(*paths, loose=case.removeprefix("train/") in tolerated)
            rows.append((fine, case, f"{name}: {text}"))
        for model, values in old["measures"].items():
            others = new["measures"].get(model, {})
            largest = max(abs(value - others.get(name, np.inf)) for name, value in values.items())
            if largest or case.startswith("evaluate/"):
                rows.append(
                    (largest < np.inf, case, f"{model}: measures differ by up to {largest:.1e}")
                )
    width = max(len(case) for _, case, _ in rows)
    print(
        "\n".join(
            f"{'    ' if fine else 'FAIL'} {case:{width}} {text}" for fine, case, text in rows
        )
    )
    beyond = sum(not fine for fine, _, _ in rows)
    print(f"{beyond} rows are beyond what may differ" if beyond else "all as it was")
    return beyond


def _difference(a: Path, b: Path, loose: bool) -> tuple[bool, str]:
    """Whether two files that are not equal may be so, and how far they are apart."""
    if not a.exists() or not b.exists():
        return False, "only " + ("before" if a.exists() else "after")
    if a.suffix == ".run":
        return _run_difference(_read_run(a), _read_run(b), exact=a.stem == "bm25")
    if a.suffix != ".safetensors":
        return loose, "another text"
    old, new = _tensors(a), _tensors(b)
    kinds = [
        {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()}
        for found in (old, new)
    ]
    if kinds[0] != kinds[1]:
        return False, "other names, types or shapes"
    largest = np.max([np.abs(old[name].astype(float) - new[name]).max(initial=0) for name in old])
    return loose and bool(largest <= TOLERANCE), f"weights differ by up to {largest:.1e}"


def _read_run(path: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for query, _, document, _, score, _ in map(str.split, path.read_text().splitlines()):
        found.setdefault(query, {})[document] = float(score)
    return found


def _run_difference(
    old: dict[str, dict[str, float]], new: dict[str, dict[str, float]], exact: bool
) -> tuple[bool, str]:
    """The largest difference of scores, and how many pairs of documents that are no ties changed
    places.
    """
    if {query: len(found) for query, found in old.items()} != {
        q: len(found) for q, found in new.items()
    }:
        return False, "other queries, or other numbers of documents"
    largest, swapped, alone = 0.0, 0, 0
    for query, there in old.items():
        here = new[query]
        documents = list(there | here)
        both = there.keys() & here.keys()
        alone += len(documents) - len(both)
        largest = max([largest, *(abs(there[name] - here[name]) for name in both)])
        # What a list lacks ranks below all that it has.
        scores = np.array([there.get(name, min(there.values())) for name in documents])
        place = {name: number for number, name in enumerate(here)}
        ranks = np.array([place.get(name, len(here)) for name in documents])
        swapped += int(((scores[:, None] - scores > TIE) & (ranks[:, None] > ranks)).sum())
    fine = not exact and largest <= TOLERANCE and not swapped
    places = f"{swapped} pairs outside ties changed places, {alone} documents in one only"
    return fine, f"scores differ by up to {largest:.1e}, {places}"


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(dest="what", required=True)
    recording = commands.add_parser(
        "record", help="run everything that is not in OUT/unchanged.json yet"
    )
    recording.add_argument("out", type=Path)
    recording.add_argument("--collections", type=Path, help="folder of BEIR folders")
    recording.add_argument("--only", choices=("evaluate", "train"))
    recording.add_argument(
        "--command", type=Path, default=Path(sys.executable).with_name("beir-cocodr")
    )
    recording.add_argument(
        "--fast", action="store_true", help="evaluate on documents cut to 64 tokens"
    )
    comparing = commands.add_parser("compare", help="exit with 1 if results changed")
    comparing.add_argument("a", type=Path)
    comparing.add_argument("b", type=Path)
    comparing.add_argument(
        "--tolerate", action="append", default=[], metavar="CASE", help="such as adapt"
    )
    given = parser.parse_args()
    if given.what == "record":
        out, command = given.out.resolve(), given.command.absolute()
        sys.exit(record(out, given.collections, given.only, command, given.fast) > 0)
    sys.exit(compare(given.a, given.b, given.tolerate) > 0)


if __name__ == "__main__":
    main()
