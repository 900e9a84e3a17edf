"""What an adaptation will cost in time, disk and memory, before it starts: a guess from a short
probe.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from beir_cocodr.arrays import spaced_rows
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.progress import describe_seconds
from beir_cocodr.provenance import read_record
from beir_cocodr.retrieval.dense import IN_MEMORY
from beir_cocodr.retrieval.store.encoding_cost import resident_bytes, size
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, TrainingOptions
from beir_cocodr.training.presets import ADAPT_STAGES
from beir_cocodr.training.trainer import planned_steps

if TYPE_CHECKING:
    from beir_cocodr.training.adapt import AdaptationPlan

#: Documents of the probe, and those that are encoded before it to warm up.
PROBE, _WARM_UP = 32, 4

# A step reads its texts forward, and backward at about twice the cost; AdamW holds weights,
# gradients and two moments.
_TRAINING, _COPIES = 3, 4

#: The step of an adaptation in which its models are compared.
JUDGEMENT = "judgement"


@dataclass(frozen=True)
class Cost:
    """A guess: step to seconds; bytes of models, checkpoints and embeddings on disk; bytes of main
    memory or the GPU's; documents of the probe that were encoded a second.
    """

    seconds: dict[str, float]
    disk_bytes: int
    memory_bytes: int
    rate: float

    def __str__(self) -> str:
        steps = ", ".join(
            f"{name} {describe_seconds(value)}" for name, value in self.seconds.items()
        )
        return (
            f"this will take about {describe_seconds(sum(self.seconds.values()))} ({steps}), "
            f"{size(self.disk_bytes)} of disk and {size(self.memory_bytes)} of memory: a guess, as a probe read "
            f"{self.rate:,.0f} documents a second"
        )


def estimate(plan: AdaptationPlan, model: COCODR, documents: Documents, per_passage: int) -> Cost:
    """Guess what is left of an adaptation of the base ``model`` to the target ``documents``:
    training what its folder lacks, and judging all. Of a passage ``per_passage`` queries are
    generated.
    """
    rate = probe(model, documents)
    corpus, seconds = len(documents) / rate, {}
    for chain in plan.chains():
        if read_record(plan.folder(chain)) is None:
            examples, stage = len(documents), ADAPT_STAGES[chain[-1]]
            if stage.name == "source":
                source = load_collection(str(plan.data.source), plan.data.source_split)
                examples = sum(map(len, source.qrels.values()))
            elif stage.needs_queries:
                examples *= per_passage
            seconds[plan.label(chain)] = stage_seconds(
                plan.settings[chain[-1]], examples, rate, corpus
            )
    encoders = 1 + sum(chain[-1] != "fuse" for chain in plan.chains())
    weights = sum(weight.nbytes for weight in model.parameters())
    vectors = 4 * len(documents) * int(model.get_embedding_dimension() or 0)
    held = min(encoders * vectors, IN_MEMORY) if vectors <= IN_MEMORY else 0
    disk = (len(seconds) + 2 * _COPIES) * weights + (0 if held else encoders * vectors)
    memory = resident_bytes(model) + _COPIES * weights + held
    return Cost(seconds | {JUDGEMENT: encoders * corpus}, disk, memory, rate)


def probe(model: COCODR, documents: Documents) -> float:
    """Documents that are encoded a second, by some of them, evenly spaced."""
    texts = [
        model.text_format.document(found)
        for found in documents.take(spaced_rows(len(documents), PROBE))
    ]
    model.encode_document(texts[:_WARM_UP], show_progress_bar=False)
    started = time.perf_counter()
    model.encode_document(texts, show_progress_bar=False)
    return len(texts) / max(time.perf_counter() - started, 1e-6)


def stage_seconds(
    options: TrainingOptions | FuseOptions, examples: int, rate: float, corpus: float
) -> float:
    """Of one stage: its texts forward and backward at ``rate`` texts a second, and the corpus,
    which takes ``corpus`` seconds, as often as it is searched on the way.
    """
    if isinstance(options, FuseOptions):  # the dense vectors are there
        return min(options.sample / rate, corpus)
    steps = planned_steps(options.max_steps, options.epochs, examples, options.batch_size)
    texts, searches = 2, 0
    if isinstance(options, DistillOptions):
        texts, searches = 1 + options.list_size, -(-steps // options.refresh_steps)
    elif isinstance(options, FinetuneOptions):
        searches = options.episodes + options.stages - 1
        steps, texts = steps * (1 + searches), 2 + options.negatives
    return _TRAINING * steps * options.batch_size * texts / rate + searches * corpus
