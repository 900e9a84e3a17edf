"""The world that faults.py breaks: tiny real models and collections, what commands make of them,
and the commands.

A *part* is a folder of the world: ``in/NAME``. A command line names parts; before a part is broken
it is copied, and the command runs in a folder where ``in`` holds the copies beside links to the
rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults_runner import Warm, remove

TOPICS = [
    "wing flow shock layer pressure drag lift supersonic boundary turbulent heat plate cylinder nozzle".split(),
    "library index catalogue journal retrieval citation reader archive thesaurus abstract loan shelf".split(),
    "election treaty minister parliament strike tariff border army premier coalition speech ballot".split(),
]
COMMON = "the of a in on is with and for at by to it as was".split()

TRAIN = "--batch-size 4 --seed 1 --set save_steps=1"

#: Makes a part that is named at its end; in this order.
SETUP = [
    "encode --dataset in/beir --model in/model --shard-size 8 --output in/store",
    "encode --dataset in/beir --model in/model --output in/indexed",
    "search --store in/indexed --dataset in/beir --index flat --output in/flat.run",
    "search --store in/indexed --dataset in/beir --index hnsw --output in/hnsw.run",
    "search --store in/indexed --dataset in/beir --index sq8 --output in/sq8.run",
    "generate-queries --dataset in/beir --per-passage 1 --shard-documents 8 --output in/generated",
    "evaluate --dataset in/beir --model bm25 --model in/model --output in/evaluated",
    "compare bm25 in/model --dataset in/beir --no-labels --samples 8 --output in/compared",
    f"finetune --dataset in/beir --model in/model --max-steps 1 {TRAIN} --output in/finetuned",
    f"distill --dataset in/beir --model in/bert --teacher bm25 --student mrl --max-steps 1 {TRAIN} "
    "--set m_bm25=2 --set m_hard=2 --set held_out=0 --output in/mrl",
    "adapt --corpus in/beir --source in/source --base in/model --stages finetune --max-steps 1 --batch-size 4 "
    "--seed 1 --output in/adapted",
    "resample restrain --train in/source --test in/beir --encoder in/model --size 4 --output in/sets",
    "resample evaluate --folder in/sets --architecture bm25 --no-picture --output in/regimes",
]

#: Begun and killed when the file at the end is there.
INTERRUPTED = [
    (
        f"finetune --dataset in/beir --model in/model --max-steps 30 {TRAIN} --output in/interrupted",
        "in/interrupted/checkpoints/checkpoint-2/complete.json",
    )
]


@dataclass(frozen=True)
class Scenario:
    """A command line on parts, how often inputs are drawn for it, and whether it is light enough
    for real commands.

    Attributes:
        options: only its options are broken, not its parts; it never runs whole.
    """

    line: str
    weight: int = 4
    light: bool = False
    options: bool = False

    @property
    def command(self) -> str:
        words = self.line.split()
        return " ".join(words[: 1 + (words[0] == "resample")])

    @property
    def parts(self) -> list[str]:
        return sorted(set(re.findall(r"\bin/([\w-]+)", self.line)))

    @property
    def outputs(self) -> list[str]:
        """The folders that hold what it makes."""
        return sorted({"out", *re.findall(r"--output (in/[\w-]+)", self.line)})


_GENERATE = "generate-queries --dataset in/beir --per-passage 1 --shard-documents 8 --output"
_SHORT = f"--max-steps 1 {TRAIN} --output out"

#: Commands that answer a page until they are interrupted; tests/serve breaks and kills them.
PAGES = {"try", "serve"}
#: Commands that run a host's own, which refuse in the host's words.
HOSTS = {"irds", "pyserini"}

SCENARIOS: dict[str, Scenario] = {
    "validate": Scenario("validate --dataset in/beir", 8, True),
    "validate-file": Scenario("validate --dataset in/flat/corpus.tsv", 3, True),
    "evaluate-bm25": Scenario("evaluate --dataset in/beir --model bm25 --output out", 8, True),
    "evaluate-dense": Scenario("evaluate --dataset in/beir --model in/model --output out", 10),
    "evaluate-hybrid": Scenario(
        "evaluate --dataset in/beir --model hybrid:in/bert --output out", 6
    ),
    "evaluate-mrl": Scenario("evaluate --dataset in/beir --model in/mrl --output out", 6),
    "evaluate-store": Scenario(
        "evaluate --dataset in/beir --model in/model --store in/store --output out", 6
    ),
    "encode": Scenario("encode --dataset in/beir --model in/model --shard-size 8 --output out", 6),
    "encode-again": Scenario(
        "encode --dataset in/beir --model in/model --shard-size 8 --output in/store", 8
    ),
    "search": Scenario("search --store in/store --dataset in/beir --output out/x.run", 8),
    "search-flat": Scenario(
        "search --store in/indexed --dataset in/beir --index flat --output out/x.run", 5
    ),
    "search-hnsw": Scenario(
        "search --store in/indexed --dataset in/beir --index hnsw --output out/x.run", 5
    ),
    "search-sq8": Scenario(
        "search --store in/indexed --dataset in/beir --index sq8 --output out/x.run", 5
    ),
    "generate": Scenario(f"{_GENERATE} out", 6, True),
    "generate-again": Scenario(f"{_GENERATE} in/generated", 4, True),
    "generate-t5": Scenario(f"{_GENERATE} out --generator in/t5 --max-length 6", 4),
    "pretrain": Scenario(
        f"pretrain --dataset in/beir --model in/bert --span-tokens 12 --max-length 48 {_SHORT}", 4
    ),
    "pretrain-qc": Scenario(
        f"pretrain --objective qc --queries in/generated --dataset in/beir --model in/bert --max-length 48 {_SHORT}",
        3,
    ),
    "finetune": Scenario(f"finetune --dataset in/beir --model in/model --clusters 3 {_SHORT}", 4),
    "finetune-resume": Scenario(
        f"finetune --dataset in/beir --model in/model --max-steps 30 {TRAIN} --output in/interrupted --resume",
        4,
    ),
    "finetune-kept": Scenario(
        f"finetune --dataset in/beir --model in/model --max-steps 1 {TRAIN} --output in/finetuned --resume",
        3,
    ),
    "distill": Scenario(
        "distill --dataset in/beir --model in/model --teacher in/scores/scores.tsv --set m_bm25=2 --set m_hard=2 "
        f"--set held_out=0.2 {_SHORT}",
        3,
    ),
    "fuse": Scenario("fuse --dataset in/beir --model in/model --output out", 3),
    "distill-cross": Scenario(
        f"distill --dataset in/beir --model in/model --teacher in/cross --set m_bm25=2 --set m_hard=2 {_SHORT}",
        3,
    ),
    "adapt": Scenario(
        "adapt --corpus in/beir --source in/source --base in/model --stages finetune --max-steps 1 --batch-size 4 "
        "--seed 1 --output out",
        2,
    ),
    "adapt-queries": Scenario(
        "adapt --corpus in/flat/corpus.tsv --base in/model --stages qgen --queries in/fresh --samples 6 --max-steps 1 "
        "--batch-size 4 --seed 1 --output out",
        1,
    ),
    "adapt-resume": Scenario(
        "adapt --corpus in/beir --source in/source --base in/model --stages finetune --max-steps 1 --batch-size 4 "
        "--seed 1 --output in/adapted --resume",
        2,
    ),
    "restrain": Scenario(
        "resample restrain --train in/source --test in/beir --encoder in/model --size 4 --output out/new",
        4,
    ),
    "resttest": Scenario(
        "resample resttest --train in/source --test in/beir --encoder in/model --buckets 2 --output out/new",
        4,
    ),
    "regimes": Scenario(
        "resample evaluate --folder in/sets --architecture bm25 --no-picture --output out", 5
    ),
    "regimes-again": Scenario(
        "resample evaluate --folder in/sets --architecture bm25 --no-picture --output in/regimes", 3
    ),
    "export": Scenario("export --dataset in/beir --split test --negatives 3 --output out", 3, True),
    "overlap": Scenario(
        "overlap --train in/source --test in/beir --no-picture --output out", 5, True
    ),
    "overlap-encoder": Scenario(
        "overlap --train in/source --test in/beir --encoder in/model --no-picture --output out", 3
    ),
    "shift": Scenario(
        "shift --source in/source --target in/beir --results in/evaluated/results.json --no-picture --output out",
        6,
        True,
    ),
    "representation": Scenario(
        "representation --dataset in/beir --model in/model --no-picture --output out", 3
    ),
    "source-clusters": Scenario(
        "source-clusters --source in/source --target in/beir --before in/model --after in/finetuned --clusters 3 "
        "--no-picture --output out",
        3,
    ),
    "qpp": Scenario("qpp --dataset in/beir --model in/model --no-picture --output out", 3),
    "qpp-file": Scenario(
        "qpp --dataset in/beir --model bm25 --per-query in/evaluated/bm25.per_query.tsv --no-picture --output out",
        4,
        True,
    ),
    "parity": Scenario(
        "compare --parity in/evaluated/bm25.run --dataset in/beir --output out", 5, True
    ),
    "compare": Scenario("compare bm25 in/model --dataset in/beir --output out", 4),
    "compare-unlabelled": Scenario(
        "compare bm25 in/model --dataset in/beir --no-labels --samples 8 --output out", 3
    ),
    "compare-judged": Scenario(
        "compare bm25 in/model --dataset in/beir --judgements in/beir/qrels/test.tsv --samples 8 --output out",
        3,
    ),
    "report-evaluated": Scenario("report in/evaluated --output out/page.html", 6, True),
    "report-published": Scenario(
        "report in/evaluated --published in/figures/cocodr.json --output out/page.html", 4, True
    ),
    "report-compared": Scenario("report in/compared --output out/page.html", 4, True),
    "report-adapted": Scenario("report in/adapted --output out/page.html", 4, True),
    "report-finetuned": Scenario("report in/finetuned --output out/page.html", 4, True),
    "doctor": Scenario("doctor --hub-timeout 0.1", 2, True, options=True),
    "quickstart": Scenario("quickstart --fast --output out", 2, True, options=True),
}

#: Generated for another corpus file, for adapt without labels.
SETUP.append(
    "generate-queries --dataset in/flat/corpus.tsv --per-passage 1 --shard-documents 8 --output in/fresh"
)


def make_world(place: Path, warm: Warm) -> None:
    """Make all parts in ``place/in``, by the commands themselves; ``SystemExit`` where one of them
    fails.
    """
    place.mkdir(parents=True)
    ended = warm.fork(lambda: _make_basics(place / "in"), place).wait(300)
    check(ended.status == 0, "the models", ended.stderr)
    for line in SETUP:
        ended = warm.run(line.split(), place, 300, {"FAULTS_MODULES": "1"})
        check(ended.status == 0, line, ended.stderr)
        warm.learn((place / "log" / "modules").read_text().split())
    for line, file in INTERRUPTED:
        running = warm.start(line.split(), place)
        while not (place / file).exists() and not running.ends_within(0.001):
            pass
        running.kill()
        running.wait(10)
        check((place / file).exists(), line, "it ended before it was killed")
    (place / "modules").write_text((place / "log" / "modules").read_text())


def check(fine: bool, what: str, text: str) -> None:
    if not fine:
        raise SystemExit(f"the unbroken world fails: {what}\n{text[-3000:]}")


def _make_basics(place: Path) -> None:
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertModel,
        BertTokenizer,
        T5Config,
        T5ForConditionalGeneration,
    )

    for name, seed in (("beir", 1), ("source", 2)):
        write_collection(place / name, seed)
    write_flat(place)
    import torch

    torch.manual_seed(0)
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        ".",
        *COMMON,
        *(w for topic in TOPICS for w in topic),
    ]
    vocabulary += list("abcdefghijklmnopqrstuvwxyz") + [
        "##" + c for c in "abcdefghijklmnopqrstuvwxyz"
    ]
    tokenizer = BertTokenizer(vocab={token: i for i, token in enumerate(dict.fromkeys(vocabulary))})
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 96,
        "initializer_range": 0.3,
    }
    BertModel(BertConfig(**shape)).save_pretrained(place / "bert")
    tokenizer.save_pretrained(place / "bert")
    modules = [
        Transformer(str(place / "bert"), max_seq_length=48),
        Pooling(16, "mean"),
        Normalize(),
    ]
    SentenceTransformer(modules=modules, similarity_fn_name="cosine").save_pretrained(
        str(place / "model")
    )
    cross = place / "bare-cross"
    BertForSequenceClassification(BertConfig(**shape, num_labels=1)).save_pretrained(cross)
    tokenizer.save_pretrained(cross)
    CrossEncoder(str(cross)).save_pretrained(str(place / "cross"))
    t5 = T5Config(
        vocab_size=len(tokenizer),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=tokenizer.pad_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    T5ForConditionalGeneration(t5).save_pretrained(place / "t5")
    tokenizer.save_pretrained(place / "t5")


def write_collection(folder: Path, seed: int, documents: int = 24, queries: int = 8) -> None:
    """A BEIR folder with the splits train and test; a query is words of its document."""
    rng = random.Random(seed)
    (folder / "qrels").mkdir(parents=True)
    corpus, asked = [], []
    for i in range(documents):
        topic = TOPICS[i % len(TOPICS)]
        words = [rng.choice(topic if rng.random() < 0.6 else COMMON) for _ in range(32)]
        text = " . ".join(" ".join(words[n : n + 8]) for n in range(0, 32, 8)) + " ."
        corpus.append({"_id": f"d{i}", "title": " ".join(words[:2]) if i % 3 else "", "text": text})
    chosen = rng.sample(range(documents), 2 * queries)
    for i, row in enumerate(chosen):
        words = [word for word in corpus[row]["text"].split() if word not in COMMON and word != "."]
        asked.append({"_id": f"q{i}", "text": " ".join(words[:3])})
    for name, rows in (("corpus", corpus), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, first in (("train", 0), ("test", queries)):
        lines = ["query-id\tcorpus-id\tscore"]
        for i in range(first, first + queries):
            lines += [f"q{i}\td{chosen[i]}\t2", f"q{i}\td{(chosen[i] + 3) % documents}\t{i % 2}"]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def write_flat(place: Path) -> None:
    """A lone corpus file of another corpus, a table of a teacher's scores for all pairs, and
    published figures.
    """
    write_collection(place / "other", 3)
    for name in ("flat", "scores", "figures"):
        (place / name).mkdir()
    shutil.copy(Path(__file__).parent / "published" / "cocodr.json", place / "figures")
    rows = [
        json.loads(line) for line in (place / "other" / "corpus.jsonl").read_text().splitlines()
    ]
    (place / "flat" / "corpus.tsv").write_text(
        "".join(f"{r['_id']}\t{r['title']}\t{r['text']}\n" for r in rows)
    )
    read = {
        n: (place / "beir" / f"{n}.jsonl").read_text().splitlines() for n in ("queries", "corpus")
    }
    ids = {name: [json.loads(line)["_id"] for line in lines] for name, lines in read.items()}
    grid = [(i, q, j, d) for i, q in enumerate(ids["queries"]) for j, d in enumerate(ids["corpus"])]
    pairs = [f"{q}\t{d}\t{(7 * i + 3 * j) % 11 / 10}\n" for i, q, j, d in grid]
    (place / "scores" / "scores.tsv").write_text("".join(pairs))


def lay_out(work: Path, world: Path, copied: list[str]) -> None:
    """An empty ``work`` with ``in``: ``copied`` parts to break, and links to the others."""
    remove(work)
    (work / "in").mkdir(parents=True)
    for part in (world / "in").iterdir():
        if part.name not in copied:
            (work / "in" / part.name).symlink_to(part)
        elif part.is_dir():
            shutil.copytree(part, work / "in" / part.name, symlinks=True)
        else:
            shutil.copy2(part, work / "in" / part.name)
    (work / "out").mkdir()


# What differs between two equal runs: times, and how far a broken-off one had come.
_VOLATILE = re.compile(
    r"second|date$|^time|_time$|versions|machine|resumed_from|training_loss|loss$|bytes|created|per_s"
)
_TIMES = re.compile(r"\d+(\.\d+)?( ?s\b| seconds| minutes)|20\d\d-\d\d-\d\d[T\d:.+Z-]*")
_SOURCE = re.compile(r'<meta name="source"[^>]*>')  # a hash of full paths, among others
_WORLD = re.compile(r'"[^"]*/(?=in/)')  # where a model lies, as a store records it
_LEFT_OUT = {"README.md", "training_args.bin", ".lock", "checksums", "evil.py"}


def results(work: Path, outputs: list[str], stdout: str = "") -> dict[str, str]:
    """What a command made: a digest for each file, but for times; of ``stdout`` where there is no
    file.
    """
    found = {}
    for name in outputs:
        folder = work / name
        for path in (
            sorted(folder.rglob("*")) if folder.is_dir() else [folder] if folder.is_file() else []
        ):
            if not path.is_file():
                continue
            linked = path.is_symlink() and path.resolve().is_relative_to(
                folder.resolve()
            )  # counted as what it is
            if not linked and not _LEFT_OUT & {*path.parts} and path.suffix != ".png":
                found[path.relative_to(work).as_posix()] = _digest(path, work)
    if not found:
        text = _TIMES.sub("", stdout.replace(str(work), "@"))
        found["stdout"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return found


def _digest(path: Path, work: Path) -> str:
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl", ".html"):
        text = _WORLD.sub('"@/', content.decode(errors="replace").replace(str(work), "@"))
        try:
            lines = [text] if path.suffix == ".json" else text.splitlines()
            made = [json.dumps(_stable(json.loads(line)), sort_keys=True) for line in lines]
            text = "\n".join(made)
        except (ValueError, RecursionError):
            text = _SOURCE.sub("", _TIMES.sub("", text))
        content = text.encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _stable(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _stable(value) for key, value in content.items() if not _VOLATILE.search(key)}
    return [_stable(value) for value in content] if isinstance(content, list) else content


def reference(
    name: str, place: Path, warm: Warm, make: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """What ``make`` finds out about the unbroken world, once for all workers; with the modules that
    it needs.
    """
    file = place / "references" / f"{name}.json"
    if not file.is_file():
        work = place / f"reference-{os.getpid()}" / "w"
        found = make(work) | {"modules": (work / "log" / "modules").read_text().split()}
        remove(work.parent)
        file.parent.mkdir(exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found))
        temporary.replace(file)
    made: dict[str, Any] = json.loads(file.read_text())
    warm.learn(made["modules"])
    return made


def scenario_reference(name: str, place: Path, warm: Warm) -> dict[str, Any]:
    """What a scenario makes of the unbroken world, its time, and the settings that ``--set`` can
    give it.
    """
    scenario = SCENARIOS[name]

    def make(work: Path) -> dict[str, Any]:
        lay_out(work, place / "world", scenario.parts)
        line = "doctor" if scenario.options else scenario.line
        ended = warm.run(line.split(), work, 300, {"FAULTS_MODULES": "1"})
        check(ended.status == 0, f"{name}: {line}", ended.stderr)
        found = results(work, scenario.outputs, ended.stdout)
        made = {"results": found, "seconds": ended.seconds, "stderr": ended.stderr, "settings": {}}
        if "--set" in line:
            shown = warm.run([*line.split(), "--show-config"], work, 60, {"FAULTS_MODULES": "1"})
            made["settings"] = next(iter(json.loads(shown.stdout).values()))
        return made

    return reference(name, place, warm, make)
