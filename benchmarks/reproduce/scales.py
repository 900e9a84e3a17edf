"""What stands for collections, weights and numbers of GPUs: at the papers' scale, and on two cores
to see the path.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from reproduce.make import tiny, tiny_colbert
from reproduce.shared import BY_HAND, IRDS, MODELS
from reproduce.specification import PLACEHOLDER

#: Commands of which torchrun starts one process a GPU.
DISTRIBUTED = ("pretrain", "finetune", "distill", "resample evaluate")


class Scale(Protocol):
    """What a scale makes of placeholders and commands."""

    name: str

    def data(self, name: str) -> str: ...

    def model(self, name: str) -> str: ...

    def words(self, words: list[str]) -> list[str]:
        """A command as this scale has it."""
        ...

    def missing(self, name: str) -> str:
        """Why a collection is not to be had; "" where it is."""
        ...


def resolve(text: str, scale: Scale, folder: Callable[[str], Path], out: Path | None = None) -> str:
    """A text with all its placeholders filled; ``folder`` is that of a step."""
    kinds = {"step": lambda name: str(folder(name)), "data": scale.data, "model": scale.model}
    filled = PLACEHOLDER.sub(lambda match: kinds[match[1]](match[2]), text)
    filled = filled.replace("{gpus}", str(getattr(scale, "gpus", 1)))
    return filled if out is None else filled.replace("{out}", str(out))


@dataclass(frozen=True)
class PaperScale:
    """Collections of a folder in BEIR's form, else of ir_datasets; weights of the hub; all GPUs.

    Args:
        folder: of BEIR folders, named as BEIR names them.
        gpus: processes of a training, and of encoding.
        download: whether ir_datasets may get what is not in its cache.
    """

    folder: Path | None = None
    gpus: int = 8
    download: bool = False
    name: str = "paper"

    def data(self, name: str) -> str:
        if self.folder is not None and (self.folder / name).is_dir():
            return str(self.folder / name)
        if name.split("/")[0] in BY_HAND:
            return str((self.folder or Path("DATA")) / name)
        return f"irds:{self._id(name)}"

    def model(self, name: str) -> str:
        return MODELS.get(name, name)

    def words(self, words: list[str]) -> list[str]:
        return words

    def missing(self, name: str) -> str:
        found = self.data(name)
        if not found.startswith("irds:"):
            where = BY_HAND.get(name.split("/")[0])
            return (
                "" if Path(found).is_dir() else f"{name} is not to be had: make {found} of {where}"
            )
        if self.download or is_cached(found.removeprefix("irds:")):
            return ""
        return f"{name} is not to be had: no folder, and not in the cache of ir_datasets; --download gets it"

    @staticmethod
    def _id(name: str) -> str:
        return IRDS.get(name, f"beir/{name}")


def is_cached(identifier: str) -> bool:
    """Whether ir_datasets can serve a collection without a network."""
    home = Path(os.environ.get("IR_DATASETS_HOME", Path.home() / ".ir_datasets"))
    top, _, name = identifier.partition("/")
    if top != "beir":
        return any(
            (home / top / part).exists()
            for part in ("collection.tsv", "collectionandqueries.tar.gz", "docs.pklz4")
        )
    unpacked = [home / identifier / part for part in ("docs.pklz4", "queries.json", "test.qrels")]
    archive = (
        home / top / ("cqadupstack" if name.startswith("cqadupstack/") else name) / "source.zip"
    )
    return all(part.exists() for part in unpacked) or archive.is_file()


#: Option of a training to its value here.
_FEW = {"--max-steps": "2", "--batch-size": "8", "--mini-batch-size": "8"}

_SET = {
    "pretrain": ("warmup=0",),
    "finetune": (
        "warmup=0",
        "clusters=2",
        "gradient_layers=null",
        "negatives=1",
        "kmeans_restarts=1",
    ),
    "distill": ("warmup=0", "refresh_steps=2", "candidates=10"),
    "resample evaluate": ("warmup=0", "mlm_steps=2", "rerank=5", "list_size=4", "negatives=1"),
}

#: Options that make no sense here, with their values.
_LEFT_OUT = ("--processes", "--backend", "--epochs", "--teacher-batch-size", "--max-passages")


@dataclass(frozen=True)
class HereScale:
    """Parts of embedded documentation for collections, tiny random encoders for weights, a few
    steps for trainings.

    Args:
        work: folder for what is made.
        documents, queries, train_queries: of a collection; documents beside the relevant ones.
    """

    work: Path
    documents: int = 120
    queries: int = 12
    train_queries: int = 48
    name: str = "here"

    #: Domains of documentation that stand for collections in turn.
    DOMAINS = ("numpy", "scipy", "sklearn")

    def data(self, name: str) -> str:
        kind = (
            "msmarco" if name.startswith("trec-dl") else name.partition("-")[0]
        )  # one corpus, as there
        domain = self.DOMAINS[zlib.crc32(kind.encode()) % len(self.DOMAINS)]
        folder = self.work / "data" / domain
        if not folder.is_dir():
            cut(
                f"apidocs/{domain}",
                folder,
                self.documents,
                {"train": self.train_queries, "test": self.queries},
            )
        return str(folder)

    def model(self, name: str) -> str:
        if name in ("beir-generator", "doc2query"):
            return "lexical"
        folder = self.work / "models" / name.replace("/", "--")
        if not folder.is_dir():
            corpus = Path(self.data(name)) / "corpus.jsonl"
            texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
            draft = folder.with_name(folder.name + ".draft")
            make = (
                tiny_colbert
                if name == "colbertv2"
                else partial(tiny, cross=name in ("reranker", "teacher"))
            )
            make(draft, texts, zlib.crc32(name.encode()))
            draft.rename(folder)
        return str(folder)

    def missing(self, name: str) -> str:
        return ""

    def words(self, words: list[str]) -> list[str]:
        kind = " ".join(words[:2]) if words[0] == "resample" else words[0]
        options = dict(_FEW) if kind in (*DISTRIBUTED, "adapt") else {}
        if kind in ("adapt", "resample evaluate"):
            del options["--mini-batch-size"]
        options |= (
            {"--passage-tokens": "32", "--per-passage": "2", "--batch-size": "8"}
            if kind == "generate-queries"
            else {}
        )
        options |= {"--sample": "32", "--batch-size": "8"} if kind == "representation" else {}
        options |= (
            {"--clusters": "2", "--sample": "20", "--cases": "1"}
            if kind == "source-clusters"
            else {}
        )
        found = _without(words, {*_LEFT_OUT, *options})
        if kind == "make":
            return ["make", "tiny", *words[2:]]
        if kind == "resample restrain":
            sizes = ("4", "8", "12")[: words.count("--size")]
            found = _without(found, {"--size"}) + [
                word for size in sizes for word in ("--size", size)
            ]
        found += [word for pair in options.items() for word in pair]
        if kind == "resample evaluate" and "dense-hard" in " ".join(words):
            found += ["--set", "hard_negatives=bm25"]
        return found + [word for setting in _SET.get(kind, ()) for word in ("--set", setting)]


def _without(words: list[str], options: set[str]) -> list[str]:
    """Words without some options, and each option and value once."""
    found: list[str] = []
    seen: set[tuple[str, str]] = set()
    i = 0
    while i < len(words):
        pair = tuple(words[i : i + 2])
        has_value = len(pair) == 2 and pair[0].startswith("--") and not pair[1].startswith("--")
        if not has_value:
            found += [] if words[i] in options else [words[i]]
        elif pair[0] not in options and pair not in seen:
            found += pair
            seen.add((pair[0], pair[1]))
        i += 1 + has_value
    return found


def cut(dataset: str, folder: Path, documents: int, queries: dict[str, int]) -> None:
    """A BEIR folder of some documents of a collection, with their queries in the splits train and
    test.
    """
    from beir_cocodr.data.collection import load_collection
    from beir_cocodr.io import draft_folder, write_text

    splits = {split: load_collection(dataset, split) for split in ("train", "test")}
    chooser = random.Random(42)
    qrels = {
        split: {
            q: found.qrels[q]
            for q in chooser.sample(sorted(found.qrels), min(queries[split], len(found.qrels)))
        }
        for split, found in splits.items()
    }
    corpus = splits["test"].documents
    kept = {
        document for judged in qrels.values() for grades in judged.values() for document in grades
    }
    kept |= set(chooser.sample(sorted(corpus), min(documents, len(corpus))))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with draft_folder(folder) as draft:
        (draft / "qrels").mkdir()
        lines = [{"_id": name, **content} for name, content in corpus.items() if name in kept]
        write_text(draft / "corpus.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
        texts = [
            (query, splits[split].queries[query])
            for split, judged in qrels.items()
            for query in judged
        ]
        write_text(
            draft / "queries.jsonl",
            "".join(json.dumps({"_id": q, "text": t}) + "\n" for q, t in texts),
        )
        for split, judged in qrels.items():
            rows = [
                f"{q}\t{d}\t{grade}\n"
                for q, grades in judged.items()
                for d, grade in grades.items()
            ]
            write_text(
                draft / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore\n" + "".join(rows)
            )
