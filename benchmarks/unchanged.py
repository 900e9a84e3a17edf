"""Claim: a change of the code's insides left runs, weights, clusters and texts as they were.

The script uses the command line alone, so that it measures the code before and after a change.
Record both, each with its own command, and compare:

    python benchmarks/unchanged.py record before --collections FOLDER --command OLD/beir-cocodr
    python benchmarks/unchanged.py record after --collections FOLDER
    python benchmarks/unchanged.py compare before after

``record`` evaluates on every BEIR folder with a split "test" in FOLDER. It also runs every training
command with its objectives, weightings, teachers and students for a few steps on a piece of
apidocs/numpy, with one thread and no GPU. OUT/unchanged.json is written after each case, and a case
that it has is not run again: take a new folder for other code. Models stay in OUT, about 100 MB
each.

``compare`` prints a table of all cases. It ends with status 1 if B lacks what A has, a BM25 run is
not equal to the byte, a score moved by more than 1e-5, two documents more than 2e-5 apart in A
changed places, or weights or texts are not equal. With ``--tolerate CASE``, for training that mines
its examples, weights may move by 1e-5 and texts may change. ``--cut CASE`` names a case that B has
no longer.
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
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from harness.measure import seconds
from harness.script import machine, read_json
from safetensors import safe_open

FILE = "unchanged.json"
#: The most that a score or a tolerated weight may move.
TOLERANCE = 1e-5
#: Two documents whose scores differ by no more than this may change places.
TIE = 2e-5
MODELS = ("bm25", "minilm", "hybrid:minilm", "feedback:minilm")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
}
#: Documents of the piece that is trained on, and the most characters of each.
DOCUMENTS = 120
CHARACTERS = 200
OBJECTIVES = ("coco", "cocondenser", "condenser", "mlm", "simcse", "ict", "tsdae")
WEIGHTINGS = ("erm", "idro", "groupdro", "cvar")
#: iDRO's settings that have a case each.
IDRO_SETTINGS = {
    "published": "idro_mode=published",
    "paper": "idro_mode=paper",
    "sketch": "gram=sketch",
    "k_calls": "gram=k_calls",
}
TEACHERS = {
    "bm25": "bm25",
    "hybrid": "hybrid",
    "file": "{piece}/scores.tsv",
}
STUDENTS = ("dot", "mrl")

_TRAIN = "--dataset {piece} --model minilm --seed 1 --max-steps 5 --set save_steps=100"
#: A command to the options that all its cases share. {piece} is the collection, {train} the folder
#: of all training cases.
SHARED = {
    "generate-queries": "--dataset {piece} --seed 1",
    "pretrain": f"{_TRAIN} --batch-size 6 --max-length 48 --span-tokens 20",
    "finetune": f"{_TRAIN} --batch-size 8 --clusters 4 --set log_clusters=1",
    "distill": f"{_TRAIN} --batch-size 4 --learning-rate 3e-5 --set warmup=0.1 --set held_out=0 "
    "--set m_bm25=2 --set m_hard=2",
    "adapt": "--base minilm --seed 1 --max-steps 5 --batch-size 4",
    "resample": "--seed 1",
}


def list_training() -> dict[str, str]:
    """Return the training cases, each to its command; some read what earlier cases wrote."""
    cases = {
        "queries": "generate-queries --per-passage 3",
        "queries-filtered": "generate-queries --per-passage 2 --dedupe --filter-retriever bm25",
    }
    for objective in OBJECTIVES:
        cases[f"pretrain-{objective}"] = f"pretrain --objective {objective}"
    on_queries = "--queries {train}/queries"
    cases |= {
        "pretrain-coco-cached": "pretrain --objective coco --mini-batch-size 3 --encoder-dropout",
        "pretrain-qc": f"pretrain --objective qc {on_queries}",
        "pretrain-qc-mix": f"pretrain --objective qc {on_queries} --mix 0.5 --per-passage 1",
        "pretrain-cotmae": f"pretrain --objective cotmae {on_queries} --decoder autoregressive",
        "pretrain-cotmae-masked": f"pretrain --objective cotmae {on_queries} --decoder masked",
    }
    for weighting in WEIGHTINGS:
        cases[f"finetune-{weighting}"] = f"finetune --weighting {weighting}"
    cases |= {
        "finetune-erm-cached": "finetune --mini-batch-size 4 --negatives 2",
        "finetune-erm-triplet": "finetune --loss triplet --set document_length=24",
        "finetune-idro-infonce": "finetune --weighting idro --loss infonce",
    }
    for name, setting in IDRO_SETTINGS.items():
        cases[f"finetune-idro-{name}"] = f"finetune --weighting idro --set {setting}"
    cases |= {
        "finetune-episodes": "finetune --weighting idro --episodes 2 --target {piece}",
        "finetune-stages": "finetune --stages 2",
        "finetune-stages-mined": "finetune --stages 2 --stage2-negatives mined "
        "--set relative_margin=0.05",
    }
    for name, teacher in TEACHERS.items():
        for student in STUDENTS:
            command = f"distill --teacher {teacher} --student {student}"
            cases[f"distill-{name}-{student}"] = command
    return cases | {
        "distill-kl": "distill --teacher hybrid --loss kl --set positives=1",
        "distill-margin-mse": "distill --teacher bm25 --loss margin_mse --set positives=1",
        "distill-rounds": "distill --teacher bm25 --set refresh_steps=2 --mini-batch-size 8",
        "adapt": "adapt --corpus {piece} --source {piece} --stages coco,finetune,distill",
        "adapt-unlabelled": "adapt --corpus {piece}/corpus.jsonl --stages qgen --samples 30",
        "sets": "resample restrain --train {piece} --test {piece} --encoder minilm --size 30",
        "architectures": "resample evaluate --folder {train}/sets --max-steps 2 --batch-size 4 "
        "--set mlm_steps=2 --set rerank=5 "
        "--architecture splade,late-interaction,cross-encoder",
    }


class Recording:
    """The run of one command in a folder.

    Args:
        output: The folder.
        command: The program.
    """

    def __init__(self, output: Path, command: Path) -> None:
        self.output = output
        self.command = str(command)
        self.file = output / FILE
        self.content: dict[str, Any] = {
            "command": self.command,
            "machine": machine(),
            "versions": {},
            "cases": {},
        }
        if self.file.is_file():
            self.content = read_json(self.file)

    def run_cases(self, cases: dict[str, list[str]]) -> int:
        """Run the cases that are not recorded yet, and return how many failed."""
        recorded = self.content["cases"]
        missing = {case: words for case, words in cases.items() if case not in recorded}
        failed = 0
        for case, words in missing.items():
            if not self.run_case(case, words):
                failed += 1
        return failed

    def run_case(self, case: str, words: list[str]) -> bool:
        """Run a case and record it, and say whether it ended well."""
        statuses = []
        command = [self.command, *words, f"--output={self.output / case}"]
        taken = round(seconds(lambda: statuses.append(self.run_command(case, command))), 1)
        if statuses[0] != 0:
            return False
        self.content["cases"][case] = {
            "folder": case,
            "arguments": words,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": taken,
            **self.read_folder(self.output / case),
        }
        self.file.write_text(json.dumps(self.content, indent=2) + "\n")
        print(f"{case}: {taken} s", flush=True)
        return True

    def run_command(self, case: str, command: list[str]) -> int:
        """Run a command into an empty folder with its messages in a log, and return its status."""
        log = self.output / "logs" / f"{case.replace('/', '-')}.log"
        log.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        shutil.rmtree(self.output / case, ignore_errors=True)
        cache = {"BEIR_COCODR_CACHE": str(self.output / "cache")}
        with log.open("w") as file:
            status = subprocess.run(
                command,
                env=os.environ | ENVIRONMENT | cache,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        if status:
            end = "\n    ".join(log.read_text().splitlines()[-8:])
            message = f"{case}: status {status} of {shlex.join(command)}\n    {end}"
            print(
                message,
                file=sys.stderr,
                flush=True,
            )
        return status

    def training_cases(self) -> dict[str, list[str]]:
        """Return the training cases, each to the words of its command."""
        folders = {
            "piece": self.write_piece(),
            "train": self.output / "train",
        }
        cases = {}
        for case, line in list_training().items():
            shared = SHARED[line.split()[0]]
            cases[f"train/{case}"] = shlex.split(f"{line} {shared}".format(**folders))
        return cases

    def write_piece(self) -> Path:
        """Write the first documents of apidocs/numpy, cut short, with queries and scores.

        The scores are a teacher's: the share of a query's words that a document has.
        """
        piece = self.output / "piece"
        validate = [self.command, "validate", "--dataset=apidocs/numpy"]
        if self.run_command("validate", validate) != 0:
            raise SystemExit("apidocs/numpy cannot be made; see the log above")
        [corpus] = (self.output / "cache").glob("**/numpy-*/corpus.jsonl")
        (piece / "qrels").mkdir(
            parents=True,
            exist_ok=True,
        )
        # A query is in the same line as its document.
        documents = _copy_first(corpus, piece / "corpus.jsonl")
        queries = _copy_first(corpus.with_name("queries.jsonl"), piece / "queries.jsonl")
        for split in ("train", "test"):
            judged = corpus.parent / "qrels" / f"{split}.tsv"
            header, *rows = judged.read_text().splitlines(keepends=True)
            kept = [row for row in rows if row.split("\t")[1] in documents]
            (piece / "qrels" / f"{split}.tsv").write_text("".join([header, *kept]))
        words = {document: set(text.lower().split()) for document, text in documents.items()}
        with (piece / "scores.tsv").open("w") as file:
            for query, text in queries.items():
                query_words = set(text.lower().split())
                for document, document_words in words.items():
                    share = len(query_words & document_words) / len(query_words)
                    file.write(f"{query}\t{document}\t{share}\n")
        return piece

    def read_folder(self, folder: Path) -> dict[str, Any]:
        """Return digests of the runs, texts and weights of a folder, and its measures."""
        files = {}
        measures = {}
        for path in sorted(folder.rglob("*")):
            if "checkpoints" in path.parts:
                continue
            name = path.relative_to(folder).as_posix()
            digest = _digest(path)
            if digest:
                files[name] = digest
            elif path.name == "results.json":
                for model, record in read_json(path)["models"].items():
                    measures[f"{name}: {model}"] = record["measures"]
                    self.content["versions"] |= record["versions"]
            elif path.name == "training.json":
                self.content["versions"] |= read_json(path).get("versions", {})
        return {
            "files": files,
            "measures": measures,
        }


def _copy_first(source: Path, target: Path) -> dict[str, str]:
    """Copy the first texts of a file, cut short, and return them by their ids."""
    texts = {}
    for line in source.read_text().splitlines()[:DOCUMENTS]:
        record = json.loads(line)
        texts[record["_id"]] = record["text"][:CHARACTERS]
    lines = [
        json.dumps(
            {
                "_id": name,
                "text": text,
            }
        )
        + "\n"
        for name, text in texts.items()
    ]
    target.write_text("".join(lines))
    return texts


def _digest(path: Path) -> str:
    """Return the digest of a run, a text or weights; "" for other files."""
    if path.suffix == ".safetensors":
        digest = hashlib.sha256()
        for name, tensor in _read_tensors(path).items():
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(tensor.tobytes())
        return digest.hexdigest()
    is_text = path.suffix in (".run", ".tsv", ".jsonl")
    if is_text and not path.name.endswith(".per_query.tsv"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def _read_tensors(path: Path) -> dict[str, Any]:
    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in sorted(file.keys())}


def evaluation_cases(collections: Path, *, fast: bool) -> dict[str, list[str]]:
    """Return the evaluations of all collections of a folder."""
    options = [f"--model={model}" for model in MODELS]
    if fast:
        options.append("--document-length=64")
    cases = {}
    for qrels in sorted(collections.resolve().glob("*/qrels/test.tsv")):
        folder = qrels.parent.parent
        cases[f"evaluate/{folder.name}"] = ["evaluate", f"--dataset={folder}", *options]
    return cases


@dataclass(frozen=True)
class Difference:
    """A row of the comparison.

    Attributes:
        is_fine: Whether it may be so.
        case: The case.
        text: What is equal or different.
    """

    is_fine: bool
    case: str
    text: str


class Comparison:
    """Two recordings, side by side."""

    def __init__(
        self,
        before: Path,
        after: Path,
        tolerated: list[str],
        cut: list[str],
    ) -> None:
        self.before = before
        self.after = after
        self.old = read_json(before / FILE)
        self.new = read_json(after / FILE)
        self.tolerated = {f"train/{case}" for case in tolerated}
        self.cut = {f"train/{case}" for case in cut}
        for case in self.tolerated | self.cut:
            if case not in self.old["cases"]:
                name = case.removeprefix("train/")
                raise SystemExit(
                    f"{before / FILE} has no training case {name!r}; correct the option"
                )

    def rows(self) -> Iterator[Difference]:
        """Yield the differences of all cases."""
        for name in ("machine", "versions"):
            if self.old[name] != self.new[name]:
                text = f"{self.old[name]} before, {self.new[name]} after"
                yield Difference(True, name, text)
        for case in self.old["cases"]:
            if case in self.cut and case not in self.new["cases"]:
                yield Difference(True, case, "cut")
                continue
            yield from self.compare_files(case)
            yield from self.compare_measures(case)

    def compare_files(self, case: str) -> Iterator[Difference]:
        """Yield the differences of the files of a case."""
        old = self.old["cases"][case]["files"]
        new = self.new["cases"].get(case, {"files": {}})["files"]
        equal: dict[str, list[str]] = {}
        different = []
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) == new.get(name):
                equal.setdefault(Path(name).suffix, []).append(name)
            else:
                different.append(name)
        for suffix, names in sorted(equal.items()):
            runs = f": {', '.join(names)}" if suffix == ".run" else ""
            yield Difference(True, case, f"{len(names)} {suffix} equal to the byte{runs}")
        for name in different:
            is_fine, text = _compare_paths(
                self.before / case / name,
                self.after / case / name,
                is_tolerated=case in self.tolerated,
            )
            yield Difference(is_fine, case, f"{name}: {text}")

    def compare_measures(self, case: str) -> Iterator[Difference]:
        """Yield the differences of the measures of a case."""
        new = self.new["cases"].get(case, {"measures": {}})["measures"]
        for model, values in self.old["cases"][case]["measures"].items():
            others = new.get(model, {})
            changes = [abs(value - others.get(name, np.inf)) for name, value in values.items()]
            largest = max(changes)
            if largest > 0 or case.startswith("evaluate/"):
                text = f"{model}: measures differ by up to {largest:.1e}"
                yield Difference(bool(largest < np.inf), case, text)


def _compare_paths(
    old: Path,
    new: Path,
    *,
    is_tolerated: bool,
) -> tuple[bool, str]:
    """Say whether two files that are not equal may be so, and how far they are apart."""
    if not old.exists() or not new.exists():
        return False, "only before" if old.exists() else "only after"
    if old.suffix == ".run":
        is_exact = old.stem == "bm25"
        return _compare_runs(_read_run(old), _read_run(new), is_exact=is_exact)
    if old.suffix != ".safetensors":
        return is_tolerated, "another text"
    return _compare_weights(_read_tensors(old), _read_tensors(new), is_tolerated=is_tolerated)


def _compare_weights(
    old: dict[str, Any],
    new: dict[str, Any],
    *,
    is_tolerated: bool,
) -> tuple[bool, str]:
    shapes = []
    for tensors in (old, new):
        shapes.append({name: (one.dtype, one.shape) for name, one in tensors.items()})
    if shapes[0] != shapes[1]:
        return False, "other names, types or shapes"
    largest = 0.0
    for name, tensor in old.items():
        change = np.abs(tensor.astype(float) - new[name]).max(initial=0)
        largest = np.maximum(largest, change)  # NaN stays NaN.
    is_fine = is_tolerated and bool(largest <= TOLERANCE)
    return is_fine, f"weights differ by up to {largest:.1e}"


#: Scores by query and document.
Run = dict[str, dict[str, float]]


def _read_run(path: Path) -> Run:
    run: Run = {}
    for line in path.read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        run.setdefault(query, {})[document] = float(score)
    return run


def _compare_runs(
    old: Run,
    new: Run,
    *,
    is_exact: bool,
) -> tuple[bool, str]:
    """Return the largest change of scores, and count pairs outside ties that changed places."""
    old_sizes = {query: len(scores) for query, scores in old.items()}
    new_sizes = {query: len(scores) for query, scores in new.items()}
    if old_sizes != new_sizes:
        return False, "other queries, or other numbers of documents"
    largest = 0.0
    swapped = 0
    in_one_only = 0
    for query, old_scores in old.items():
        new_scores = new[query]
        common = old_scores.keys() & new_scores.keys()
        in_one_only += len(old_scores) + len(new_scores) - 2 * len(common)
        for document in common:
            largest = max(largest, abs(old_scores[document] - new_scores[document]))
        swapped += _count_swapped(old_scores, new_scores)
    is_fine = not is_exact and largest <= TOLERANCE and swapped == 0
    places = f"{swapped} pairs outside ties changed places, {in_one_only} documents in one only"
    return is_fine, f"scores differ by up to {largest:.1e}, {places}"


def _count_swapped(old: dict[str, float], new: dict[str, float]) -> int:
    """Count the pairs that A tells apart and B ranks the other way round.

    A document that a ranking lacks is below all documents that it has.
    """
    documents = list(old | new)
    lowest = min(old.values())
    scores = np.array([old.get(document, lowest) for document in documents])
    rank_of = {document: rank for rank, document in enumerate(new)}
    ranks = np.array([rank_of.get(document, len(new)) for document in documents])
    is_above = scores[:, None] - scores > TIE
    is_below = ranks[:, None] > ranks
    return int((is_above & is_below).sum())


def record(options: argparse.Namespace) -> int:
    """Record all cases, and return how many failed."""
    recording = Recording(options.output.resolve(), options.command.absolute())
    cases: dict[str, list[str]] = {}
    if options.only != "evaluate":
        cases |= recording.training_cases()
    if options.only != "train":
        if options.collections is None:
            raise SystemExit("name the folder of collections with --collections, or --only train")
        cases |= evaluation_cases(options.collections, fast=options.fast)
    return recording.run_cases(cases)


def compare(options: argparse.Namespace) -> int:
    """Print a table of all cases, and return how many rows differ more than they may."""
    comparison = Comparison(
        options.a,
        options.b,
        options.tolerate,
        options.cut,
    )
    rows = list(comparison.rows())
    width = max((len(row.case) for row in rows), default=0)
    for row in rows:
        mark = "    " if row.is_fine else "FAIL"
        print(f"{mark} {row.case:{width}} {row.text}")
    beyond = [row for row in rows if not row.is_fine]
    print(f"{len(beyond)} rows differ more than they may" if beyond else "all as it was")
    return len(beyond)


def parse_options() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(
        dest="action",
        required=True,
    )
    recording = commands.add_parser("record", help="Run all cases that OUT does not have yet.")
    recording.add_argument(
        "output",
        type=Path,
        metavar="OUT",
    )
    recording.add_argument(
        "--collections",
        type=Path,
        help="A folder of BEIR folders.",
    )
    recording.add_argument(
        "--only",
        choices=("evaluate", "train"),
        help="Run only these cases.",
    )
    recording.add_argument(
        "--command",
        type=Path,
        default=Path(sys.executable).with_name("beir-cocodr"),
        help="The program to record. Default: the installed one.",
    )
    recording.add_argument(
        "--fast",
        action="store_true",
        help="Evaluate on documents cut to 64 tokens.",
    )
    comparing = commands.add_parser("compare", help="End with status 1 if results changed.")
    comparing.add_argument("a", type=Path)
    comparing.add_argument("b", type=Path)
    comparing.add_argument(
        "--tolerate",
        action="append",
        default=[],
        metavar="CASE",
        help="Let this training case, such as adapt, change slightly; repeat it.",
    )
    comparing.add_argument(
        "--cut",
        action="append",
        default=[],
        metavar="CASE",
        help="Let B lack this training case; repeat it.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    run = record if options.action == "record" else compare
    sys.exit(run(options) > 0)


if __name__ == "__main__":
    main()
