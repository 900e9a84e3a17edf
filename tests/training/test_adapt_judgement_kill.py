"""An adaptation that is killed while its models are judged encodes nothing twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import exit_code
from sentence_transformers import SentenceTransformer

from beir_cocodr import load_collection
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.vectors import corpus_encoder
from beir_cocodr.retrieval.vectors.vector_cache import KnownVectors
from beir_cocodr.training.adapt import AdaptOptions, adapt
from beir_cocodr.training.options import PretrainOptions

pytestmark = pytest.mark.usefixtures("few_resamples")

OPTIONS = AdaptOptions(
    stages="coco",
    stage_options={
        "coco": PretrainOptions(max_steps=2, batch_size=2, span_tokens=8, learning_rate=1e-2)
    },
    search=SearchOptions(),
)


def adapt_and_die(corpus: Path, model: str, output: Path, batches: int) -> None:
    """Adapt, and kill the process after so many batches of documents were kept."""
    corpus_encoder.CPU_BUDGET = 256
    kept = []
    keep = KnownVectors.keep

    def keep_or_die(self, batch, vectors):
        if len(kept) == batches:
            os.kill(os.getpid(), signal.SIGKILL)
        kept.append(len(batch))
        return keep(self, batch, vectors)

    KnownVectors.keep = keep_or_die
    adapt(model, corpus, output=output, options=OPTIONS)
    os.kill(os.getpid(), signal.SIGKILL)  # everything is encoded, and the record was written


@pytest.mark.parametrize("batches", [3, 10_000])
def test_a_resumed_judgement_encodes_only_what_is_missing(
    beir_folder, tiny_mlm, tmp_path, monkeypatch, batches
):
    monkeypatch.setattr(corpus_encoder, "CPU_BUDGET", 256)
    output = tmp_path / "adapted"
    died = exit_code(adapt_and_die, beir_folder, str(tiny_mlm), output, batches)
    assert died == -signal.SIGKILL
    encoded: list[str] = []
    encode = SentenceTransformer.encode

    def counted(self, inputs, *rest, **settings):
        if settings.get("task") == "document" and inputs != ["a"]:  # a check of loaded models
            encoded.extend(inputs)
        return encode(self, inputs, *rest, **settings)

    monkeypatch.setattr(SentenceTransformer, "encode", counted)
    adapt(str(tiny_mlm), beir_folder, output=output, options=OPTIONS, resume=True)
    documents = len(load_collection(beir_folder).documents)
    if batches == 3:
        # A probe measures 4 and 32 documents, as the base is still to be encoded.
        in_batches = 2 * documents - (len(encoded) - 36)
        assert in_batches == sum(_first_batches(beir_folder, tiny_mlm, 3))
    else:
        assert encoded == []


def _first_batches(corpus: Path, model: Path, count: int) -> list[int]:
    """Return the sizes of the first batches of documents."""
    from beir_cocodr import load_encoder

    documents = load_collection(corpus).documents
    encoder = corpus_encoder.CorpusEncoder(load_encoder(model), documents, 256)
    lengths, _ = encoder._tokenise(corpus_encoder.np.arange(len(documents)))
    return [len(batch) for batch in corpus_encoder.token_batches(lengths, 256)][:count]
