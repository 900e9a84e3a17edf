"""Two scales: the papers' own, and one of minutes on two cores that shows the path.

A scale says which collection, which weights and how many GPUs a placeholder means.
"""

from __future__ import annotations

import json
import math
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reproduce.make import tiny, tiny_colbert
from reproduce.shared import BY_HAND, IRDS, MODELS
from reproduce.specification import PLACEHOLDER, task_of

#: Commands whose processes share each batch.
TRAININGS = ("pretrain", "finetune", "distill", "resample evaluate")

#: Commands that torchrun starts once for each GPU.
DISTRIBUTED = (*TRAININGS, "generate-queries")


def kind_of(words: list[str]) -> str:
    """Return the command, with its subcommand."""
    return " ".join(words[:2]) if words[0] == "resample" else words[0]


def is_distributed(words: list[str]) -> bool:
    """Say whether torchrun runs a command."""
    return kind_of(words) in DISTRIBUTED


def is_training(words: list[str]) -> bool:
    """Say whether the processes of a command share each batch."""
    return kind_of(words) in TRAININGS


class Scale(Protocol):
    """The values of placeholders, and the changes of commands, at a scale."""

    name: str

    def data(self, name: str) -> str:
        """Return a collection's name or folder."""
        ...

    def model(self, name: str) -> str:
        """Return a model's name or folder."""
        ...

    def words(self, words: list[str]) -> list[str]:
        """Return a command with the options of this scale."""
        ...

    def missing(self, name: str) -> str:
        """Say why a collection is missing; "" if it is not."""
        ...

    def missing_model(self, name: str) -> str:
        """Say why published weights are missing; "" if they are not."""
        ...


def resolve(
    text: str,
    scale: Scale,
    folder: Callable[[str], Path],
    out: Path | None = None,
) -> str:
    """Fill all placeholders of a text.

    Args:
        text: The text.
        scale: The scale.
        folder: Returns the folder of a step.
        out: The folder of this step; None leaves ``{out}`` as it is.
    """
    kinds = {
        "step": lambda name: str(folder(name)),
        "data": scale.data,
        "model": scale.model,
    }
    filled = PLACEHOLDER.sub(lambda match: kinds[match[1]](match[2]), text)
    filled = filled.replace("{gpus}", str(getattr(scale, "gpus", 1)))
    return filled if out is None else filled.replace("{out}", str(out))


@dataclass(frozen=True)
class PaperScale:
    """Collections of a folder of BEIR folders or of ir_datasets, weights of the hub, and all GPUs.

    Attributes:
        folder: BEIR folders, named as BEIR names them.
        gpus: The processes of a training, and of encoding.
        download: Whether ir_datasets and the hub may download what their caches lack.
    """

    folder: Path | None = None
    gpus: int = 8
    download: bool = False
    name: str = "paper"

    def data(self, name: str) -> str:
        if self.folder is not None and (self.folder / name).is_dir():
            return str(self.folder / name)
        if task_of(name) in BY_HAND:
            return str((self.folder or Path("DATA")) / name)
        return f"irds:{IRDS.get(name, f'beir/{name}')}"

    def model(self, name: str) -> str:
        return MODELS.get(name, name)

    def words(self, words: list[str]) -> list[str]:
        return words

    def missing(self, name: str) -> str:
        source = self.data(name)
        if not source.startswith("irds:"):
            origin = BY_HAND.get(task_of(name))
            is_there = Path(source).is_dir()
            if is_there:
                return ""
            task = task_of(name)
            return (
                f"{name} is missing: make {source} of {origin}, or leave it out (--without {task})"
            )
        if self.download or is_cached(source.removeprefix("irds:")):
            return ""
        return (
            f"{name} is missing: there is no folder, and it is not in the cache of ir_datasets; "
            "download it with --download"
        )

    def missing_model(self, name: str) -> str:
        model = self.model(name)
        if self.download or is_model_cached(model):
            return ""
        return (
            f"the weights {model} are missing: they are not in the cache of the hub; download them "
            "with --download"
        )


def is_model_cached(name: str) -> bool:
    """Say whether published weights are a folder, or in the cache of the hub."""
    from huggingface_hub import constants, try_to_load_from_cache

    if Path(name).is_dir():
        return True
    cached = try_to_load_from_cache(name, "config.json", cache_dir=constants.HF_HUB_CACHE)
    return isinstance(cached, str)


def is_cached(identifier: str) -> bool:
    """Say whether ir_datasets can serve a collection without a network."""
    home = Path(os.environ.get("IR_DATASETS_HOME", Path.home() / ".ir_datasets"))
    top, _, name = identifier.partition("/")
    if top != "beir":
        files = ("collection.tsv", "collectionandqueries.tar.gz", "docs.pklz4")
        return any((home / top / file).exists() for file in files)
    unpacked = ("docs.pklz4", "queries.json", "test.qrels")
    if all((home / identifier / file).exists() for file in unpacked):
        return True
    folder = "cqadupstack" if name.startswith("cqadupstack/") else name
    return (home / top / folder / "source.zip").is_file()


#: Options of a training, with their values here. The rate is so large that a few steps tell the
#: models of a table apart.
_FEW_STEPS = {
    "--max-steps": "3",
    "--batch-size": "8",
    "--mini-batch-size": "8",
    "--learning-rate": "2e-2",
}

#: Options of commands, with their values here.
_OPTIONS = {
    "pretrain": _FEW_STEPS,
    "finetune": _FEW_STEPS,
    "distill": _FEW_STEPS,
    "resample evaluate": {
        "--max-steps": "3",
        "--batch-size": "8",
        "--learning-rate": "2e-2",
    },
    "generate-queries": {
        "--passage-tokens": "32",
        "--per-passage": "2",
        "--batch-size": "8",
    },
    "representation": {
        "--sample": "32",
        "--batch-size": "8",
    },
    "source-clusters": {
        "--clusters": "2",
        "--sample": "20",
        "--cases": "1",
    },
}

#: Settings of commands here.
_SETTINGS = {
    "pretrain": ("warmup=0",),
    "finetune": (
        "warmup=0",
        "negatives=1",
        "kmeans_restarts=1",
    ),
    "distill": ("warmup=0", "refresh_steps=2", "candidates=10"),
    "resample evaluate": ("warmup=0", "mlm_steps=2", "rerank=5", "list_size=4", "negatives=1"),
}

#: Options that are left out here, with their values.
_LEFT_OUT = ("--processes", "--backend", "--epochs", "--teacher-batch-size", "--max-passages")

#: Sizes of ReSTrain's sets here.
_SIZES = ("4", "8", "12")


@dataclass(frozen=True)
class HereScale:
    """Parts of small real collections, tiny encoders with random weights, and a few steps.

    Each task has a part of its own. The collections are those in the folder that the variable
    COCODR_COLLECTIONS names, a task's own where it is there, and else packaged documentation.

    Attributes:
        work: The folder for collections and encoders.
        documents: Documents of a collection beside the relevant ones.
        queries: Test queries.
        train_queries: Training queries.
    """

    work: Path
    documents: int = 60
    queries: int = 24
    train_queries: int = 32
    name: str = "here"

    def data(self, name: str) -> str:
        # The tests of TREC DL search the corpus of MS MARCO, as in the papers, and the forums of
        # CQADupStack share one part.
        task = task_of(name)
        if name.startswith(("trec-dl", "msmarco")):
            task = "msmarco"
        folder = self.work / "data" / task
        if not folder.is_dir():
            queries = {
                "train": self.train_queries,
                "test": self.queries,
            }
            cut_collection(
                source_here(task),
                folder,
                self.documents,
                queries,
            )
        return str(folder)

    def model(self, name: str) -> str:
        if name in ("beir-generator", "doc2query"):
            return "lexical"
        folder = self.work / "models" / name.replace("/", "--")
        if not folder.is_dir():
            texts = []
            for data in _VOCABULARY:
                corpus = Path(self.data(data)) / "corpus.jsonl"
                texts += [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
            draft = folder.with_name(folder.name + ".draft")
            seed = zlib.crc32(name.encode())
            if name == "colbertv2":
                tiny_colbert(draft, texts, seed)
            else:
                tiny(
                    draft,
                    texts,
                    seed,
                    cross=name in ("reranker", "teacher"),
                )
            draft.rename(folder)
        return str(folder)

    def missing(self, name: str) -> str:
        return ""

    def missing_model(self, name: str) -> str:
        return ""

    def words(self, words: list[str]) -> list[str]:
        kind = kind_of(words)
        if kind == "make":
            return words if words[1] == "token-storage" else ["make", "tiny", *words[2:]]
        options = dict(_OPTIONS.get(kind, {}))
        changed = _without(words, {*_LEFT_OUT, *options})
        if kind == "resample restrain":
            changed = _without(changed, {"--size"})
            for size in _SIZES[: words.count("--size")]:
                changed += ["--size", size]
        for option, value in options.items():
            changed += [option, value]
        if kind == "resample evaluate" and "dense-hard" in " ".join(words):
            changed += ["--set", "hard_negatives=bm25"]
        for setting in _SETTINGS.get(kind, ()):
            changed += ["--set", setting]
        if kind == "finetune" and "idro" in words:
            changed += ["--set", "gradient_layers=null"]
        if kind == "finetune":
            changed = _few_clusters(changed)
        return changed


#: Domains of packaged documentation, which take the place of collections in rotation.
_DOMAINS = ("numpy", "scipy", "sklearn", "pandas", "stdlib")

#: The collections whose words the tiny encoders know.
_VOCABULARY = ("msmarco", "scifact", "nfcorpus")


def source_here(task: str) -> str:
    """Return the small collection that a task's part is taken from."""
    number = zlib.crc32(task.encode())
    root = os.environ.get("COCODR_COLLECTIONS")
    if root is None:
        return f"apidocs/{_DOMAINS[number % len(_DOMAINS)]}"
    folders = sorted(path.parent for path in Path(root).glob("*/corpus.jsonl"))
    if not folders:
        raise SystemExit(f"COCODR_COLLECTIONS={root} has no collections (NAME/corpus.jsonl)")
    own_folder = Path(root) / task
    return str(own_folder if own_folder in folders else folders[number % len(folders)])


def _few_clusters(words: list[str]) -> list[str]:
    """Divide few queries into few clusters, more where a table asks for more."""
    chosen = [word for word in words if word.startswith("clusters=")]
    count = 2
    if chosen:
        asked = int(chosen[0].removeprefix("clusters="))
        count += round(math.log2(asked / 25))
    kept = [word if word not in chosen else f"clusters={count}" for word in words]
    return kept if chosen else [*kept, "--set", f"clusters={count}"]


def _without(words: list[str], options: set[str]) -> list[str]:
    """Leave out some options, and all but the first of equal options with equal values."""
    kept: list[str] = []
    seen: set[tuple[str, ...]] = set()
    position = 0
    while position < len(words):
        pair = tuple(words[position : position + 2])
        has_value = len(pair) == 2 and pair[0].startswith("--") and not pair[1].startswith("--")
        if has_value:
            if pair[0] not in options and pair not in seen:
                kept += pair
                seen.add(pair)
            position += 2
        else:
            if pair[0] not in options:
                kept.append(pair[0])
            position += 1
    return kept


def _training_split(dataset: str) -> Any:
    """Return a collection with its training queries; None if it has none."""
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.errors import InputError

    try:
        return load_collection(dataset, "train")
    except InputError:
        return None


def cut_collection(
    dataset: str,
    folder: Path,
    documents: int,
    queries: dict[str, int],
) -> None:
    """Write a BEIR folder of some documents of a collection.

    Args:
        dataset: The collection.
        folder: The folder.
        documents: The number of documents that are drawn beside the judged ones.
        queries: The number of queries of the splits train and test.
    """
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.io import draft_folder, write_jsonl, write_qrels

    chooser = random.Random(folder.name)
    qrels = {}
    texts = []
    judged = set()
    test = load_collection(dataset, "test")
    splits = {"train": _training_split(dataset) or test, "test": test}
    used: set[str] = set()
    for split, collection in splits.items():
        left = sorted(set(collection.qrels) - used)
        rows = []
        for query in chooser.sample(left, min(queries[split], len(left))):
            used.add(query)
            texts.append(
                {
                    "_id": query,
                    "text": collection.queries[query],
                }
            )
            for document, grade in collection.qrels[query].items():
                rows.append((query, document, grade))
                judged.add(document)
        qrels[split] = rows
    corpus = test.documents
    kept = judged | set(chooser.sample(sorted(corpus), min(documents, len(corpus))))
    folder.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    with draft_folder(folder) as draft:
        (draft / "qrels").mkdir()
        lines = (
            {
                "_id": name,
                **text,
            }
            for name, text in corpus.items()
            if name in kept
        )
        write_jsonl(draft / "corpus.jsonl", lines)
        write_jsonl(draft / "queries.jsonl", texts)
        for split, rows in qrels.items():
            write_qrels(draft / "qrels" / f"{split}.tsv", rows)
