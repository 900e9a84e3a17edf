"""A causal language model scores pooled documents by the likelihood of the query."""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from beir_cocodr.arrays import Doubles, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.label_free.written_questions import QuestionOptions
from beir_cocodr.generation.generators import LOCAL_PREFIX
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.text_cache import TextCache
from beir_cocodr.io import parse_json, text_sha256
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from beir_cocodr.generation.language_model import CausalGenerator

log = logging.getLogger(__name__)

# The factor from a mean log-probability to the logarithm of relevance.
_SHARPNESS = 10.0

# The tokens of a document and of a query that are read, and the characters of a document that are
# tokenised for them.
_DOCUMENT_TOKENS = 160
_DOCUMENT_CHARACTERS = 1_500
_QUERY_TOKENS = 64

_CANNOT_READ = (
    "%s does not tell how likely queries are, so it scores no documents that are found for them; a "
    "causal model does, as hf:MODEL"
)

_BEFORE = "Passage: "
_BETWEEN = "\nQuestion about the passage:"
_BATCH = 8


def load_likelihood_reader(
    options: QuestionOptions, *, bf16: bool = False
) -> LikelihoodReader | None:
    """Load the language model that writes questions as a reader.

    Args:
        options: The model.
        bf16: Run it in bfloat16.

    Returns:
        The reader, or None for a server, which does not tell the likelihood of a text, and for a
        model that is not causal; the log says so.

    Raises:
        InputError: The model cannot be loaded.
    """
    name = options.generator
    if not name.startswith(LOCAL_PREFIX):
        log.info(_CANNOT_READ, name)
        return None
    from beir_cocodr.generation.language_model import CausalGenerator, load_generator

    generator = load_generator(name.removeprefix(LOCAL_PREFIX), GenerationOptions(), options.device)
    if not isinstance(generator, CausalGenerator):
        log.info(_CANNOT_READ, name)
        return None
    return LikelihoodReader(generator, bf16=bf16)


class LikelihoodReader:
    """Query likelihood: how probable a language model finds the query after the document.

    The score is the mean log-probability of the query's tokens. The model sees no examples and is
    not trained.

    References:
        Sachan et al., 2022: Improving Passage Retrieval with Zero-Shot Question Generation; Ponte
        and Croft, 1998 (the likelihood of a query).
    """

    def __init__(self, generator: CausalGenerator, *, bf16: bool = False) -> None:
        """Take a language model.

        Args:
            generator: A causal language model that also writes questions.
            bf16: Run it in bfloat16.
        """
        self.name = generator.name
        self.bf16 = bf16
        self.model = generator.model
        self.tokenizer = generator.tokenizer
        identity: Json = {
            "reader": generator.describe(),
            "bf16": bf16,
            "prompt": [_BEFORE, _BETWEEN],
            "tokens": [_DOCUMENT_TOKENS, _QUERY_TOKENS],
        }
        self._cache = TextCache("likelihoods", identity)

    def read(
        self,
        queries: Sequence[str],
        pools: Sequence[Ints],
        documents: Documents,
    ) -> list[Doubles]:
        """Return the scores of pooled documents, as a PoolReader.

        What was read before is taken from the cache, also after a run that was killed. The log says
        before the first document how many are read for how many queries.
        """
        text = TextFormat().document
        pooled = []
        for pool in pools:
            texts = [text(document)[:_DOCUMENT_CHARACTERS] for document in documents.take(pool)]
            pooled.append(texts)
        self._report(queries, pooled)
        scores = []
        for query, texts in zip(queries, pooled, strict=True):
            means = self._means_of(query, texts)
            scores.append(_SHARPNESS * np.array([means[name] for name in map(text_sha256, texts)]))
        return scores

    def _report(self, queries: Sequence[str], pooled: Sequence[Sequence[str]]) -> None:
        """Log what is left to read."""
        unread = []
        for query, texts in zip(queries, pooled, strict=True):
            known = self._known(query)
            unread.append(sum(name not in known for name in set(map(text_sha256, texts))))
        count = sum(unread)
        if count:
            log.info(
                "%s reads %d documents for %d queries (about %s tokens)",
                self.name,
                count,
                np.count_nonzero(unread),
                f"{round(count * _DOCUMENT_TOKENS, -2):,}",
            )

    def _known(self, query: str) -> dict[str, float]:
        """Return the hash of each document that was read for a query to its score.

        What cannot be read in a damaged file is read again.
        """
        try:
            kept = parse_json(self._cache.get(query) or "{}", finite=True)
        except ValueError:
            return {}
        if not isinstance(kept, dict):
            return {}
        return {name: score for name, score in kept.items() if isinstance(score, float)}

    def _means_of(self, query: str, texts: Sequence[str]) -> dict[str, float]:
        """Return the hash of each document to the mean log-probability of a query after it."""
        known = self._known(query)
        missing = {text_sha256(text): text for text in texts}
        missing = {name: text for name, text in missing.items() if name not in known}
        if missing:
            asked = self._ids(f" {query}")[:_QUERY_TOKENS]
            read = [self._ids(text)[:_DOCUMENT_TOKENS] for text in missing.values()]
            means = self._means(asked, read).tolist()
            # Another process may have read other documents meanwhile.
            known = self._known(query) | dict(zip(missing, means, strict=True))
            if all(map(math.isfinite, means)):
                self._cache.put(query, json.dumps(known))
        return known

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    @cached_property
    def _start(self) -> list[int]:
        """The token with which the model's texts start, if it has been trained with one."""
        first = self.tokenizer(_BEFORE, verbose=False)["input_ids"][0]
        return [first] if first == self.tokenizer.bos_token_id else []

    def _means(self, query: list[int], documents: Sequence[list[int]]) -> Doubles:
        """Return the (n,) mean log-probabilities of the tokens of a query after each document."""
        if not query:
            return np.zeros(len(documents))
        before = self._start + self._ids(_BEFORE)
        between = self._ids(_BETWEEN)
        prompts = [before + document + between for document in documents]
        order = sorted(range(len(prompts)), key=lambda number: len(prompts[number]))
        means: Doubles = np.zeros(len(prompts))
        for start in range(0, len(order), _BATCH):
            numbers = order[start : start + _BATCH]
            means[numbers] = self._batch([prompts[number] for number in numbers], query)
        return means

    @torch.inference_mode()
    def _batch(self, prompts: Sequence[list[int]], query: list[int]) -> Doubles:
        """Return the mean log-probabilities of a query after some prompts, padded on the left."""
        width = max(map(len, prompts)) + len(query)
        padding = int(self.tokenizer.pad_token_id)
        ids = torch.full((len(prompts), width), padding)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            tokens = prompt + query
            ids[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = torch.ones(len(tokens), dtype=torch.long)
        inputs = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        }
        accepted = inspect.signature(self.model.forward).parameters
        device = self.model.device
        moved = {name: value.to(device) for name, value in inputs.items() if name in accepted}
        # Where the model can, it computes only the logits that are needed.
        fewer = {"logits_to_keep": len(query) + 1} if "logits_to_keep" in accepted else {}
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            logits = self.model(**moved, **fewer).logits[:, -len(query) - 1 : -1]
        log_probabilities = logits.float().log_softmax(-1).cpu()
        targets = ids[:, -len(query) :, None]
        of_query = log_probabilities.gather(2, targets)[..., 0]
        values: Doubles = of_query.mean(dim=1).double().numpy()
        return values
