"""Whole-word masking for masked language modelling."""

from __future__ import annotations

from typing import Any

import numpy as np

from beir_cocodr.errors import InputError

#: Positions with this label carry no loss (torch's own convention for cross entropy).
IGNORED = -100


class WholeWordMasker:
    """Masks whole words of token id sequences, reproducibly for a given generator.

    Of n ordinary tokens max(1, round(probability * n)) are chosen, word by word in random order, leaving
    out a word that would pass the budget (the shortest word is taken where none fits). Of the chosen
    tokens 80% become the mask token, 10% a random ordinary token, 10% stay.

    Args:
        tokenizer: a fast tokenizer with a mask token.
        probability: share of masked tokens (default 0.15).

    Source: COCO-DR, section 4.1; Condenser.
    """

    def __init__(self, tokenizer: Any, probability: float = 0.15) -> None:
        if tokenizer.mask_token_id is None:
            raise InputError(
                f"{type(tokenizer).__name__} has no mask token, so no language model can be trained"
            )
        self.probability = probability
        self.mask_id = int(tokenizer.mask_token_id)
        size = len(tokenizer)
        self.special = np.zeros(size, bool)
        self.special[list(tokenizer.all_special_ids)] = True
        self.continues = _continuations(tokenizer.convert_ids_to_tokens(range(size)))
        self.ordinary = np.flatnonzero(~self.special)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask one sequence: (L,) token ids to (L,) masked ids and (L,) labels, -100 where not masked."""
        positions = np.flatnonzero(~self.special[ids])
        labels = np.full(len(ids), IGNORED, dtype=ids.dtype)
        if not len(positions):
            return ids.copy(), labels
        budget = max(1, round(self.probability * len(positions)))
        # A word starts at a token that continues nothing, or where the run of ordinary tokens is broken.
        starts = ~self.continues[ids[positions]] | (np.diff(positions, prepend=-2) > 1)
        words = np.split(positions, np.flatnonzero(starts)[1:])  # the first token always starts one
        chosen: list[np.ndarray] = []
        taken = 0
        for index in rng.permutation(len(words)):
            if taken + len(words[index]) <= budget:
                chosen.append(words[index])
                taken += len(words[index])
            if taken == budget:
                break
        picked = np.concatenate(chosen) if chosen else min(words, key=len)
        labels[picked] = ids[picked]
        masked = ids.copy()
        fate = rng.random(len(picked))
        masked[picked[fate < 0.8]] = self.mask_id
        random = picked[(fate >= 0.8) & (fate < 0.9)]
        masked[random] = rng.choice(self.ordinary, size=len(random))
        return masked, labels


def _continuations(tokens: list[str]) -> np.ndarray:
    """(V,) bool: which vocabulary items continue a word, by the convention that the vocabulary follows."""
    for mark in ("Ġ", "▁"):  # byte-level BPE and SentencePiece mark the beginning of a word
        if sum(token.startswith(mark) for token in tokens) > len(tokens) // 10:
            return np.array([not token.startswith(mark) for token in tokens])
    return np.array([token.startswith("##") for token in tokens])  # WordPiece marks its continuation
