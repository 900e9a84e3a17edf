"""The common base of the parts of ``gpu.py``: sizes, an encoder, collections, a results file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.measure import seconds
from harness.script import origin, read_json, write_results
from reproduce.make import shaped

from beir_cocodr.io import write_text
from beir_cocodr.models.spec import EncoderOptions

#: After so many seconds a part begins no further repetition.
SECONDS = 6 * 60


@dataclass(frozen=True)
class Sizes:
    """The sizes of all parts; those of a full run fit 80 GiB.

    Attributes:
        layers: Layers of the encoder.
        width: Dimensions of the encoder and of searched vectors.
        documents: Documents that are encoded.
        words: Words of such a document.
        vectors: Vectors that are searched.
        queries: Queries that search them.
        top_k: Vectors of a ranking.
        chunk: Vectors of a chunk.
        batch: Documents of a COCO step.
        mini_batch: Documents at once, with gradient caching.
        tokens: Tokens of a text.
        shape: The shape of iDRO's encoder.
        triplets: Triplets of an iDRO step.
        mined: Documents of a refresh.
        mined_words: Words of such a document.
        mined_queries: Queries of a refresh.
        repeats: Repetitions.
    """

    layers: int = 12
    width: int = 768
    documents: int = 100_000
    words: int = 110
    vectors: int = 10_000_000
    queries: int = 1_000
    top_k: int = 1_000
    chunk: int = 1_000_000
    batch: int = 2_048
    mini_batch: int = 256
    tokens: int = 128
    shape: str = "bert-base"
    triplets: int = 64
    mined: int = 1_000_000
    mined_words: int = 30
    mined_queries: int = 10_000
    repeats: int = 3


TINY = Sizes(
    layers=2,
    width=64,
    documents=64,
    words=12,
    vectors=2_000,
    queries=20,
    top_k=10,
    chunk=500,
    batch=4,
    mini_batch=2,
    tokens=16,
    shape="tiny",
    triplets=8,
    mined=200,
    mined_words=8,
    mined_queries=10,
    repeats=1,
)


class Report:
    """The results file, which is written after every figure.

    Figures that were measured with the same sizes on the same device are kept.
    """

    def __init__(
        self,
        path: Path,
        device: str,
        sizes: Sizes,
    ) -> None:
        self.path = path
        identity = {
            "device": device,
            "sizes": asdict(sizes),
        }
        before = read_json(path) if path.is_file() else {}
        is_same = all(before.get(name) == value for name, value in identity.items())
        self.content: dict[str, Any] = before if is_same else identity | {"parts": {}}
        current = origin()
        self.content |= {
            "machine": current["machine"],
            "versions": current["versions"],
        }
        if device.startswith("cuda"):
            memory = torch.cuda.get_device_properties(0).total_memory / 2**30
            self.content["gpu"] = torch.cuda.get_device_name()
            self.content["gpu_gib"] = round(memory, 1)

    def once(
        self,
        part: str,
        name: str,
        measure: Callable[[], Any],
    ) -> Any:
        """Return a figure, and measure it if it is missing."""
        figures = self.content["parts"].setdefault(part, {})
        if name not in figures:
            figures[name] = measure()
            self.content["date"] = origin()["date"]
            write_results(self.path, self.content)
            print(f"{part}, {name}: {json.dumps(figures[name])[:200]}", flush=True)
        return figures[name]


@dataclass(frozen=True)
class Bench:
    """The setting of every part.

    Attributes:
        device: Where it runs.
        sizes: Its sizes.
        work: The folder of its files.
        report: Its results.
    """

    device: str
    sizes: Sizes
    work: Path
    report: Report

    def seconds(self, call: Callable[[], Any], repeats: int | None = None) -> list[float]:
        """Return the seconds of some calls after a warm-up, of fewer where they are slow."""

        def call_and_wait() -> None:
            call()
            self.wait()

        self.wait()
        began = time.perf_counter()
        call_and_wait()
        times: list[float] = []
        for _ in range(self.sizes.repeats if repeats is None else repeats):
            if times and time.perf_counter() - began > SECONDS / 2:
                break
            times.append(seconds(call_and_wait))
        return times

    def wait(self) -> None:
        """Wait until the device is done."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def autocast(self) -> torch.autocast:
        """Return the context of computing in bfloat16."""
        return torch.autocast(self.device.partition(":")[0], dtype=torch.bfloat16)

    def encode(self, method: Callable[..., Any], texts: list[str], **options: Any) -> Any:
        """Encode texts as the host does, in bfloat16."""
        with ExitStack() as stack:
            stack.enter_context(self.autocast())
            stack.enter_context(torch.inference_mode())
            return method(
                texts,
                batch_size=256,
                show_progress_bar=False,
                **options,
            )

    @property
    def encoder_folder(self) -> Path:
        """Return the folder of the encoder."""
        return self.work / f"encoder-{self.sizes.layers}-{self.sizes.width}"

    def model(self) -> Any:
        """Load an encoder with random weights."""
        from beir_cocodr.models.checkpoints.loading import load_encoder

        folder = self.encoder_folder
        if not folder.is_dir():
            draft = folder.with_suffix(".draft")
            shaped(draft, self.sizes.layers, self.sizes.width)
            draft.rename(folder)
        options = EncoderOptions(self.sizes.tokens, self.sizes.tokens, device=self.device)
        return load_encoder(str(folder), options)

    def collection(
        self,
        name: str,
        documents: int,
        words: int,
        queries: int = 0,
    ) -> Path:
        """Write a BEIR folder of random words, in which a query is part of its document."""
        folder = self.work / f"{name}-{documents}"
        qrels = folder / "qrels" / "train.tsv"
        if qrels.is_file():
            return folder
        qrels.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        query_lines = []
        with (folder / "corpus.jsonl").open("w") as file:
            for number, text in enumerate(draw_texts(documents, words)):
                file.write(
                    json.dumps(
                        {
                            "_id": str(number),
                            "title": "",
                            "text": text,
                        }
                    )
                    + "\n"
                )
                if number < queries:
                    start = text[:40].rpartition(" ")[0]
                    query_lines.append(
                        json.dumps(
                            {
                                "_id": f"q{number}",
                                "text": start,
                            }
                        )
                        + "\n"
                    )
        write_text(folder / "queries.jsonl", "".join(query_lines))
        rows = "".join(f"q{number}\t{number}\t1\n" for number in range(queries))
        write_text(qrels, f"query-id\tcorpus-id\tscore\n{rows}")
        return folder


def draw_texts(count: int, words: int) -> Iterator[str]:
    """Yield texts of random words."""
    random = np.random.default_rng(0)
    for start in range(0, count, 10_000):
        rows = random.integers(0, 30_000, (min(10_000, count - start), words))
        for row in rows:
            yield " ".join(f"w{word}" for word in row)
