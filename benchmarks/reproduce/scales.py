"""Two scales: the papers' own, and one of minutes on two cores that shows the path.

A scale says which collection, which weights and how many GPUs a placeholder means.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from beir_cocodr.io import draft_folder
from beir_cocodr.resampling.manifest import short_size
from reproduce.make import tiny, tiny_colbert, tiny_distilbert
from reproduce.shared import BY_HAND, DL19, DL20, IRDS, MODELS
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

    def setting(self, name: str, value: float) -> float:
        """Return the value that a setting of the papers has at this scale."""
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
        "size": lambda size: short_size(int(scale.setting("size", int(size)))),
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

    def setting(self, name: str, value: float) -> float:
        return value

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

#: Options of commands, with their values here. At the rate of the others, distilled models find
#: hardly any relevant document.
_OPTIONS = {
    "pretrain": _FEW_STEPS,
    "finetune": _FEW_STEPS,
    "distill": _FEW_STEPS | {"--learning-rate": "1e-3"},
    "resample evaluate": {
        "--max-steps": "3",
        "--batch-size": "8",
        "--learning-rate": "2e-2",
    },
    "generate-queries": {
        "--passage-tokens": "128",
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
    "distill": ("warmup=0", "refresh_steps=2", "candidates=10", "held_out=0"),
    "resample evaluate": ("warmup=0", "mlm_steps=2", "rerank=5", "list_size=4", "negatives=1"),
}

#: Options that are left out here, with their values.
_LEFT_OUT = ("--processes", "--backend", "--epochs", "--teacher-batch-size", "--max-passages")

#: Sizes of ReSTrain's sets to those here: one, two and three neighbours of each test query.
_SIZES = {14_000: 25, 45_000: 50, 200_000: 75}

#: The clusters of queries in a training that does not say how many.
_CLUSTERS = 50


@dataclass(frozen=True)
class HereScale:
    """Parts of small real collections, tiny encoders with random weights, and a few steps.

    Each task has a part of its own. The collections are those in the folder that the variable
    COCODR_COLLECTIONS names, a task's own where it is there, and else packaged documentation.

    Attributes:
        work: The folder for collections and encoders.
        documents: Documents of a collection beside the relevant ones.
        queries: Test queries.
        train_queries: Training queries of MS MARCO, so many that the sizes of ReSTrain differ.
    """

    work: Path
    documents: int = 90
    queries: int = 24
    train_queries: int = 192
    name: str = "here"

    def data(self, name: str) -> str:
        if name in (DL19, DL20):
            return str(self._of_deep_learning(name))
        # The forums of CQADupStack share one part, and so do the training and dev set of MS MARCO.
        task = "msmarco" if name.startswith("msmarco") else task_of(name)
        folder = self.work / "data" / task
        if not folder.is_dir():
            queries = {"test": self.queries}
            if task == "msmarco":
                queries |= dict.fromkeys((DL19, DL20), 2 * self.queries // 3)
                queries["train"] = self.train_queries
            cut_collection(
                source_here(task, sum(queries.values())),
                folder,
                self.documents,
                queries,
            )
        return str(folder)

    def _of_deep_learning(self, name: str) -> Path:
        """Return the folder of a TREC DL, which has its own queries for the corpus of MS MARCO."""
        folder = self.work / "data" / name
        if not folder.is_dir():
            whole = Path(self.data("msmarco"))
            with draft_folder(folder) as draft:
                (draft / "qrels").mkdir()
                for file in ("corpus.jsonl", "queries.jsonl"):
                    shutil.copyfile(whole / file, draft / file)
                shutil.copyfile(whole / "qrels" / f"{name}.tsv", draft / "qrels" / "test.tsv")
        return folder

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
            elif name == "distilbert":
                tiny_distilbert(draft, texts, seed)
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
            return ["make", "tiny", *words[2:]] if words[1] == "random-bert" else words
        options = dict(_OPTIONS.get(kind, {}))
        changed = _without(words, {*_LEFT_OUT, *options})
        for setting in ("size", "per_passage"):
            changed = self._with_setting(changed, setting)
        for option, value in options.items():
            changed += [option, value]
        if kind == "resample evaluate" and "dense-hard" in " ".join(words):
            changed += ["--set", "hard_negatives=bm25"]
        for setting in _SETTINGS.get(kind, ()):
            changed += ["--set", setting]
        if kind == "finetune" and "idro" in words:
            changed += ["--set", "gradient_layers=null"]
        if kind == "finetune":
            changed = self._clustered(changed)
        return changed

    def setting(self, name: str, value: float) -> float:
        if name == "clusters":
            return max(2, value // 10)
        if name == "per_passage":
            return 1 + value // 5
        if name == "size":
            return _SIZES.get(int(value), value)
        return value

    def _with_setting(self, words: list[str], name: str) -> list[str]:
        """Replace the values of a setting's option by those here."""
        option = f"--{name.replace('_', '-')}"
        changed = list(words)
        for position, word in enumerate(words):
            if word == option:
                changed[position + 1] = f"{self.setting(name, int(words[position + 1])):g}"
        return changed

    def _clustered(self, words: list[str]) -> list[str]:
        """Divide few queries into few clusters, more where a table asks for more."""
        kept = [word for word in words if not word.startswith("clusters=")]
        asked = [word.removeprefix("clusters=") for word in words if word not in kept]
        count = f"clusters={self.setting('clusters', int(asked[0] if asked else _CLUSTERS))}"
        if asked:
            return [word if word in kept else count for word in words]
        return [*kept, "--set", count]


#: Domains of packaged documentation, which take the place of collections in rotation.
_DOMAINS = ("numpy", "scipy", "sklearn", "pandas", "stdlib")

#: The collections whose words the tiny encoders know.
_VOCABULARY = ("msmarco", "scifact", "nfcorpus")


def source_here(task: str, queries: int = 0) -> str:
    """Return the small collection that a task's part is taken from.

    Args:
        task: The task.
        queries: The queries of the part; a collection with fewer is taken only if all have fewer.
    """
    number = zlib.crc32(task.encode())
    root = os.environ.get("COCODR_COLLECTIONS")
    if root is None:
        return f"apidocs/{_DOMAINS[number % len(_DOMAINS)]}"
    folders = sorted(path.parent for path in Path(root).glob("*/corpus.jsonl"))
    if not folders:
        raise SystemExit(f"COCODR_COLLECTIONS={root} has no collections (NAME/corpus.jsonl)")
    own_folder = Path(root) / task
    if own_folder in folders:
        return str(own_folder)
    large = [folder for folder in folders if _lines(folder / "queries.jsonl") >= queries]
    chosen = large or folders
    return str(chosen[number % len(chosen)])


def _lines(file: Path) -> int:
    """Return the number of lines of a file."""
    with file.open("rb") as opened:
        return sum(1 for _ in opened)


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
        queries: A split to the number of its queries, which no other split has. Those of the split
            train are training queries of the collection, if it has any.
    """
    from beir_cocodr.data.collection import load_collection

    chooser = random.Random(folder.name)
    test = load_collection(dataset, "test")
    qrels: dict[str, list[tuple[str, str, int]]] = {}
    texts: dict[str, str] = {}
    for split, count in queries.items():
        collection = (_training_split(dataset) if split == "train" else None) or test
        left = sorted(set(collection.qrels) - set(texts))
        qrels[split] = []
        for query in chooser.sample(left, min(count, len(left))):
            texts[query] = collection.queries[query]
            for document, grade in collection.qrels[query].items():
                qrels[split].append((query, document, grade))
    corpus = test.documents
    kept = set(chooser.sample(sorted(corpus), min(documents, len(corpus))))
    kept |= {document for rows in qrels.values() for _, document, _ in rows}
    of_part = {name: text for name, text in corpus.items() if name in kept}
    _write_part(folder, of_part, texts, qrels)


def _write_part(
    folder: Path,
    documents: dict[str, dict[str, str]],
    queries: dict[str, str],
    qrels: dict[str, list[tuple[str, str, int]]],
) -> None:
    """Write a BEIR folder.

    Args:
        folder: The folder.
        documents: Id to title and text.
        queries: Id to text.
        qrels: Split to query, document and grade.
    """
    from beir_cocodr.io import write_jsonl, write_qrels

    folder.parent.mkdir(
        parents=True,
        exist_ok=True,
    )
    with draft_folder(folder) as draft:
        (draft / "qrels").mkdir()
        write_jsonl(draft / "corpus.jsonl", ({"_id": id, **text} for id, text in documents.items()))
        write_jsonl(draft / "queries.jsonl", [{"_id": id, "text": queries[id]} for id in queries])
        for split, rows in qrels.items():
            write_qrels(draft / "qrels" / f"{split}.tsv", rows)
