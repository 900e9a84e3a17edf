"""A folder of generated queries, and the parts of a training on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from conftest import sentences

from beir_cocodr import COCODR
from beir_cocodr.data.collection import load_collection
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.pretraining.context_views import ContextViews

STEPS = {
    "max_steps": 6,
    "batch_size": 16,
    "mini_batch_size": 6,
    "learning_rate": 1e-3,
    "save_steps": 2,
}
DOCUMENTS, QUERIES = 24, 4
KINDS = {
    "qc": {"objective": "qc"},
    "autoregressive": {"objective": "cotmae"},
    "masked": {"objective": "cotmae", "decoder": "masked"},
}


def settings(kind: str, **changes) -> PretrainOptions:
    return PretrainOptions.of(
        **KINDS.get(kind, {"objective": kind})
        | {"span_tokens": 12, "max_length": 40}
        | STEPS
        | changes
    )


def passages_of(text: str) -> list[tuple[int, int]]:
    """Character ranges of two sentences each."""
    ends = [i + 1 for i, character in enumerate(text) if character == "."]
    starts = [0, *(end + 1 for end in ends)]
    return [(starts[i], ends[min(i + 1, len(ends) - 1)]) for i in range(0, len(ends), 2)]


def write_context(
    folder: Path, documents: int = DOCUMENTS, queries: int = QUERIES, seed: int = 0
) -> Path:
    """Write a folder as generate-queries does.

    Document i has 1 + (i modulo 3) passages. A query is the number of its document, the number of
    its passage, and a few words of the passage.
    """
    rng = np.random.default_rng(seed)
    (folder / "qrels").mkdir(parents=True)
    texts = [sentences(rng, i % 4, 2 * (i % 3 + 1), 6) for i in range(documents)]
    with (folder / "corpus.jsonl").open("w") as file:
        for i, text in enumerate(texts):
            file.write(json.dumps({"_id": f"d{i}", "title": "", "text": text}) + "\n")
    made = []
    for i, text in enumerate(texts):
        for number, (start, end) in enumerate(passages_of(text)):
            for _ in range(queries):
                words = " ".join(rng.choice(text[start:end].split(), 4))
                place = {"document": f"d{i}", "number": number, "start": start, "end": end}
                made.append(
                    {"_id": f"g{len(made)}", "text": f"{words} {i} {number}", "metadata": place}
                )
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in made))
    lines = [f"{query['_id']}\t{query['metadata']['document']}\t1" for query in made]
    (folder / "qrels" / "train.tsv").write_text(
        "\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n"
    )
    record = {
        "settings": {"title_separator": " "},
        "dataset": {"corpus_sha256": load_collection(folder, labels="none").documents.content_hash},
        "counts": {"queries": len(made)},
    }
    (folder / "generation.json").write_text(json.dumps(record))
    return folder


def views(folder: str | list[str], model: Path, options: PretrainOptions) -> ContextViews:
    return ContextViews(
        [folder] if isinstance(folder, str) else folder, COCODR(str(model)), options
    )
