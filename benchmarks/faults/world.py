"""The world of the campaign: tiny real models and collections, and what commands make of them.

A *part* is a folder of the world: ``in/NAME``. Before a part is broken it is copied, and the
command runs in a folder where ``in`` holds the copies beside links to the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.commands import INTERRUPTED, SCENARIOS, SETUP
from faults.runner import LIST_MODULES, Warm, remove

TOPICS = [
    (
        "wing flow shock layer pressure drag lift supersonic boundary turbulent heat plate "
        "cylinder nozzle"
    ).split(),
    (
        "library index catalogue journal retrieval citation reader archive thesaurus abstract "
        "loan shelf"
    ).split(),
    (
        "election treaty minister parliament strike tariff border army premier coalition speech "
        "ballot"
    ).split(),
]
COMMON = "the of a in on is with and for at by to it as was".split()
PUBLISHED = Path(__file__).parents[1] / "published" / "cocodr.json"


def make_world(folder: Path, warm: Warm) -> None:
    """Make all parts in ``folder/in`` by the commands themselves; end if one of them fails."""
    folder.mkdir(parents=True)
    ended = warm.fork(lambda: _make_basics(folder / "in"), folder).wait(300)
    check(ended.status == 0, "the models", ended.stderr)
    for line in SETUP:
        ended = warm.run_and_learn(line.split(), folder)
        check(ended.status == 0, line, ended.stderr)
    modules = (folder / "log" / "modules").read_text()
    line, file = INTERRUPTED
    running = warm.start(line.split(), folder)
    while not (folder / file).exists() and not running.ends_within(0.001):
        pass
    running.kill()
    running.wait(10)
    check((folder / file).exists(), line, "it ended before it was killed")
    (folder / "modules").write_text(modules)


def check(
    is_fine: bool,
    command: str,
    text: str,
) -> None:
    """End the campaign if a command fails in the unbroken world."""
    if not is_fine:
        raise SystemExit(f"the unbroken world fails: {command}\n{text[-3000:]}")


def _make_basics(folder: Path) -> None:
    """Write the collections and models that no command makes."""
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertModel,
        T5Config,
        T5ForConditionalGeneration,
    )

    write_collection(folder / "beir", 1)
    write_collection(folder / "source", 2)
    write_flat(folder)
    torch.manual_seed(0)
    tokenizer = _make_tokenizer()
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 96,
        "initializer_range": 0.3,
    }
    bert = folder / "bert"
    BertModel(BertConfig(**shape)).save_pretrained(bert)
    tokenizer.save_pretrained(bert)
    modules = [Transformer(str(bert), max_seq_length=48), Pooling(16, "mean"), Normalize()]
    model = SentenceTransformer(
        modules=modules,
        similarity_fn_name="cosine",
    )
    model.save_pretrained(str(folder / "model"))
    cross = folder / "bare-cross"
    BertForSequenceClassification(
        BertConfig(
            **shape,
            num_labels=1,
        )
    ).save_pretrained(cross)
    tokenizer.save_pretrained(cross)
    CrossEncoder(str(cross)).save_pretrained(str(folder / "cross"))
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
    T5ForConditionalGeneration(t5).save_pretrained(folder / "t5")
    tokenizer.save_pretrained(folder / "t5")


def _make_tokenizer() -> Any:
    from transformers import BertTokenizer

    letters = list("abcdefghijklmnopqrstuvwxyz")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *COMMON]
    for topic in TOPICS:
        tokens += topic
    tokens += letters
    tokens += [f"##{letter}" for letter in letters]
    unique = dict.fromkeys(tokens)
    return BertTokenizer(vocab={token: number for number, token in enumerate(unique)})


def write_collection(
    folder: Path,
    seed: int,
    documents: int = 24,
    queries: int = 8,
) -> None:
    """Write a BEIR folder with the splits train and test, whose queries are words of documents."""
    rng = random.Random(seed)
    (folder / "qrels").mkdir(parents=True)
    corpus = []
    for number in range(documents):
        topic = TOPICS[number % len(TOPICS)]
        words = [rng.choice(topic if rng.random() < 0.6 else COMMON) for _ in range(32)]
        sentences = [" ".join(words[first : first + 8]) for first in range(0, 32, 8)]
        title = " ".join(words[:2]) if number % 3 else ""
        text = " . ".join(sentences) + " ."
        corpus.append(
            {
                "_id": f"d{number}",
                "title": title,
                "text": text,
            }
        )
    relevant = rng.sample(range(documents), 2 * queries)
    query_rows = []
    for number, row in enumerate(relevant):
        words = [word for word in corpus[row]["text"].split() if word not in (*COMMON, ".")]
        query_rows.append(
            {
                "_id": f"q{number}",
                "text": " ".join(words[:3]),
            }
        )
    _write_lines(folder / "corpus.jsonl", corpus)
    _write_lines(folder / "queries.jsonl", query_rows)
    for split, first in (("train", 0), ("test", queries)):
        lines = ["query-id\tcorpus-id\tscore"]
        for number in range(first, first + queries):
            other = (relevant[number] + 3) % documents
            lines.append(f"q{number}\td{relevant[number]}\t2")
            lines.append(f"q{number}\td{other}\t{number % 2}")
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def _write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_flat(folder: Path) -> None:
    """Write a corpus file, judgements, a teacher's scores of all pairs, and published figures."""
    write_collection(folder / "other", 3)
    for name in ("flat", "judged", "scores", "figures"):
        (folder / name).mkdir()
    shutil.copy(PUBLISHED, folder / "figures")
    corpus = _read_lines(folder / "other" / "corpus.jsonl")
    rows = [f"{row['_id']}\t{row['title']}\t{row['text']}\n" for row in corpus]
    (folder / "flat" / "corpus.tsv").write_text("".join(rows))
    write_judged(folder / "beir", folder / "judged" / "judged.tsv")
    queries = _read_lines(folder / "beir" / "queries.jsonl")
    documents = _read_lines(folder / "beir" / "corpus.jsonl")
    scores = []
    for i, query in enumerate(queries):
        for j, document in enumerate(documents):
            score = (7 * i + 3 * j) % 11 / 10
            scores.append(f"{query['_id']}\t{document['_id']}\t{score}\n")
    (folder / "scores" / "scores.tsv").write_text("".join(scores))


def write_judged(collection: Path, file: Path) -> None:
    """Write the judgements of all splits to one file; a split alone has too few to learn from."""
    lines = ["query-id\tcorpus-id\tscore"]
    for split in ("train", "test"):
        lines += (collection / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]
    file.write_text("\n".join(lines) + "\n")


def lay_out(
    work: Path,
    world: Path,
    copied: list[str],
) -> None:
    """Empty ``work``, and give it ``in``: copies of the parts to break, and links to the others."""
    remove(work)
    (work / "in").mkdir(parents=True)
    for part in (world / "in").iterdir():
        target = work / "in" / part.name
        if part.name not in copied:
            target.symlink_to(part)
        elif part.is_dir():
            shutil.copytree(part, target, symlinks=True)
        else:
            shutil.copy2(part, target)
    (work / "out").mkdir()


# Two equal runs differ in these: times, and how far an interrupted run had come. The hash of a
# teacher is that of all its files, whether they matter or not: what it taught is in the weights.
_VOLATILE = re.compile(
    "second|date$|^time|_time$|versions|machine|resumed_from|training_loss|loss$|bytes|created|"
    "per_s|teacher_sha256"
)
_TIMES = re.compile(r"\d+(\.\d+)?( ?s\b| seconds| minutes)|20\d\d-\d\d-\d\d[T\d:.+Z-]*")
_SOURCE = re.compile(r'<meta name="source"[^>]*>')  # a hash of full paths, among others
_WORLD = re.compile(r'"[^"]*/(?=in/)')  # the folder of a model, as a store records it
_LEFT_OUT = {"README.md", "training_args.bin", ".lock", "checksums", "evil.py"}


def read_results(
    work: Path,
    outputs: list[str],
    stdout: str = "",
) -> dict[str, str]:
    """Return a digest of each file that a command wrote, without times.

    Where it wrote no file, its output counts.
    """
    digests = {}
    for name in outputs:
        for path in _files_of(work / name):
            digests[path.relative_to(work).as_posix()] = _digest(path, work)
    if not digests:
        text = _TIMES.sub("", stdout.replace(str(work), "@"))
        digests["stdout"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digests


def _files_of(output: Path) -> list[Path]:
    """List the files that count; a link counts as the file to which it leads."""
    paths = sorted(output.rglob("*")) if output.is_dir() else [output]
    files = []
    for path in paths:
        if not path.is_file() or path.suffix in (".png", ".log") or _LEFT_OUT & {*path.parts}:
            continue
        is_inner_link = path.is_symlink() and path.resolve().is_relative_to(output.resolve())
        if not is_inner_link:
            files.append(path)
    return files


def _digest(path: Path, work: Path) -> str:
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl", ".html"):
        text = content.decode(errors="replace").replace(str(work), "@")
        text = _WORLD.sub('"@/', text)
        content = _without_times(text, path.suffix).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _without_times(text: str, suffix: str) -> str:
    lines = [text] if suffix == ".json" else text.splitlines()
    try:
        stable = [json.dumps(_stable(json.loads(line)), sort_keys=True) for line in lines]
    except (ValueError, RecursionError):
        return _SOURCE.sub("", _TIMES.sub("", text))
    return "\n".join(stable)


def _stable(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _stable(value) for key, value in content.items() if not _VOLATILE.search(key)}
    if isinstance(content, list):
        return [_stable(value) for value in content]
    return content


def keep_reference(
    name: str,
    campaign: Path,
    warm: Warm,
    make: Callable[[Path], dict[str, Any]],
) -> dict[str, Any]:
    """Return what ``make`` measures in the unbroken world, once for all workers.

    The modules that were imported are kept with it, and imported.
    """
    file = campaign / "references" / f"{name}.json"
    if not file.is_file():
        work = campaign / f"reference-{os.getpid()}" / "w"
        content = make(work)
        content["modules"] = (work / "log" / "modules").read_text().split()
        remove(work.parent)
        file.parent.mkdir(exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(content))
        draft.replace(file)
    reference: dict[str, Any] = json.loads(file.read_text())
    warm.learn(reference["modules"])
    return reference


def scenario_reference(
    name: str,
    campaign: Path,
    warm: Warm,
) -> dict[str, Any]:
    """Return the results, the time and the settings of a scenario in the unbroken world."""
    scenario = SCENARIOS[name]

    def make(work: Path) -> dict[str, Any]:
        lay_out(work, campaign / "world", scenario.parts)
        line = scenario.line if scenario.is_checked else "doctor"
        environment = {LIST_MODULES: "1"}
        ended = warm.run(
            line.split(),
            work,
            300,
            environment,
        )
        check(ended.status == 0, f"{name}: {line}", ended.stderr)
        reference = {
            "results": read_results(work, scenario.outputs, ended.stdout),
            "seconds": ended.seconds,
            "stderr": ended.stderr,
            "settings": {},
        }
        if "--set" in line:
            config = warm.run(
                [*line.split(), "--show-config"],
                work,
                60,
                environment,
            )
            reference["settings"] = next(iter(json.loads(config.stdout).values()))
        return reference

    return keep_reference(
        name,
        campaign,
        warm,
        make,
    )
