"""COCO: continuous contrastive pre-training on target corpora, without labels."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from transformers import set_seed

from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.masking import WholeWordMasker
from beir_cocodr.data.spans import draw_pair, has_two_spans, split_spans
from beir_cocodr.errors import InputError
from beir_cocodr.losses.coco import COCOLoss
from beir_cocodr.models.condenser import HEAD_FOLDER, CondenserHead, build_head
from beir_cocodr.models.loading import load_encoder, model_source
from beir_cocodr.training.callbacks import EpochClock
from beir_cocodr.training.pretrain_options import PretrainOptions
from beir_cocodr.training.record import seen
from beir_cocodr.training.run import Stage, claim_output, run_stage, training_plan

log = logging.getLogger(__name__)
SPANS = ("span_1", "span_2")


def pretrain(
    corpora: Sequence[str],
    base: str,
    output: Path,
    options: PretrainOptions | None = None,
    resume: bool = False,
    **encoder: Any,
) -> dict[str, Any]:
    """Adapt ``base`` to one or more corpora by COCO and save the encoder to ``output``.

    Args:
        corpora: datasets as the command line names them; only their documents are read.
        base: what ``COCODR`` loads, or ``minilm``.
        output: folder for the model; interrupted runs leave their checkpoints there.
        options: see :class:`PretrainOptions`.
        resume: go on from the last checkpoint; a finished output is left as it is.
        **encoder: overrides for loading ``base`` (lengths, prompts, separator, device), None meaning none.

    Returns:
        The content of training.json.

    Raises:
        InputError: no document has two spans, or ``output`` is taken.

    Source: COCO-DR, section 4.1.
    """
    options = options or PretrainOptions()
    collections = [load_collection(name, labels="none") for name in corpora]
    set_seed(options.seed)  # a checkpoint may lack layers, which are then drawn at random
    model = load_encoder(base, **encoder)
    plan = training_plan(
        "coco", base, model, encoder, options, [seen(found, queries=False) for found in collections]
    )
    if (record := claim_output(output, resume, plan)) is not None:
        return record
    spans = SpanPairs(collections, model, options)
    head_origin = _attach_head(model, base, options) if options.mlm_weight else None
    with _encoder_dropout(model, options.encoder_dropout):
        cached = options.batch_size > options.mini_batch_size
        stage = Stage(
            plan=plan,
            model=model,
            loss=COCOLoss(
                model, options.scale, options.mini_batch_size if cached else None, options.mlm_weight
            ),
            dataset=spans.dataset(),
            collator=spans.collator(),
            column_tasks=dict.fromkeys(SPANS, "document"),
            callbacks=[spans.clock],
            finish=lambda folder: _detach_head(model, folder),
            extra={"documents_with_two_spans": len(spans.rows), "language_model_head": head_origin},
        )
        return run_stage(stage, options, output, resume)


@dataclass
class SpanPairs:
    """Two spans of each document, drawn anew each epoch, reproducibly by (seed, epoch, row).

    Rows number the documents of all corpora one after another; those with fewer than two spans give no
    pair and are left out, counted.
    """

    collections: Sequence[Collection]
    model: Any
    options: PretrainOptions
    clock: EpochClock = field(default_factory=EpochClock)

    def __post_init__(self) -> None:
        self.bounds = np.cumsum([0] + [len(collection.documents) for collection in self.collections])
        found, start = [], 0
        for collection in self.collections:
            for chunk in collection.documents.chunks(10_000):
                texts = [self.model.text_format.document(document) for document in chunk]
                keep = has_two_spans(texts, self.model.tokenizer, self.options.span_tokens)
                found.append(start + np.flatnonzero(keep))
                start += len(chunk)
        self.rows = np.concatenate(found)
        names = ", ".join(collection.name for collection in self.collections)
        if not len(self.rows):
            raise InputError(
                f"no document of {names} has more than {self.options.span_tokens} tokens, so two spans to "
                "contrast; lower span_tokens, or join short texts into longer documents"
            )
        log.info(
            "%s: %d of %d documents have two spans, the others are left out", names, len(self.rows), start
        )

    def dataset(self) -> Dataset:
        return Dataset.from_dict({"row": self.rows}).with_transform(self._draw)

    def collator(self) -> MaskingCollator:
        options = self.options
        masker = (
            WholeWordMasker(self.model.tokenizer, options.mask_probability) if options.mlm_weight else None
        )
        prompt = self.model.text_format.document_prompt
        return MaskingCollator(
            preprocess_fn=self.model.preprocess,
            prompts=dict.fromkeys(SPANS, prompt) if prompt else {},
            max_length=options.max_length,
            masker=masker,
            clock=self.clock,
            seed=options.seed,
        )

    def _draw(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        rows = np.asarray(batch["row"])
        pairs = [self._pair(int(row)) for row in rows]
        return {SPANS[0]: [a for a, _ in pairs], SPANS[1]: [b for _, b in pairs], "label": rows.tolist()}

    def _pair(self, row: int) -> tuple[str, str]:
        corpus = int(np.searchsorted(self.bounds, row, side="right")) - 1
        document = self.collections[corpus].documents.take([row - self.bounds[corpus]])[0]
        text = self.model.text_format.document(document)
        tokens = self.model.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        rng = np.random.default_rng((self.options.seed, self.clock.epoch, row))
        spans = split_spans(
            text, tokens["offset_mapping"], self.options.span_tokens, self.options.flush_probability, rng
        )
        return draw_pair(spans, rng)


@dataclass
class MaskingCollator(SentenceTransformerDataCollator):
    """Tokenises span columns and masks them, so that both passes of gradient caching see the same masks."""

    masker: WholeWordMasker | None = None
    clock: EpochClock = field(default_factory=EpochClock)
    seed: int = 0

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__(features)
        if self.masker is None:
            return batch
        rows = batch["label"].tolist()
        for number, column in enumerate(SPANS):
            ids = batch[f"{column}_input_ids"].numpy()
            masked = [
                self.masker(ids[i], np.random.default_rng((self.seed, self.clock.epoch, row, number)))
                for i, row in enumerate(rows)
            ]
            batch[f"{column}_input_ids"] = torch.from_numpy(np.stack([ids for ids, _ in masked]))
            batch[f"{column}_mlm_labels"] = torch.from_numpy(np.stack([labels for _, labels in masked]))
        return batch


def _attach_head(model: Any, base: str, options: PretrainOptions) -> str:
    head, origin = build_head(
        model, model_source(base), options.n_head_layers, options.skip_from, options.late_mlm
    )
    model.append(head)
    model.transformers_model.config.output_hidden_states = True
    return origin


def _detach_head(model: Any, folder: Path) -> None:
    """Take the head off, so that stock modules remain, and keep it beside the model for going on."""
    if not isinstance(model[-1], CondenserHead):
        return
    (folder / HEAD_FOLDER).mkdir(parents=True, exist_ok=True)
    model[-1].save(str(folder / HEAD_FOLDER))
    del model[-1]
    model.transformers_model.config.output_hidden_states = False


@contextmanager
def _encoder_dropout(model: Any, keep: bool) -> Iterator[None]:
    """Hold the backbone in evaluation mode at every forward pass, while the head trains with dropout."""
    if keep:
        yield
        return

    def hold(module: Any, inputs: Any) -> None:
        model.transformers_model.eval()

    # The hook stands at the first module because that one calls the backbone's forward method directly.
    hook = model[0].register_forward_pre_hook(hold)
    try:
        yield
    finally:
        hook.remove()
