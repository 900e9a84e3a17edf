"""The vectors of all tokens of a corpus, encoded once to disk, and an index of them that finds a query's documents."""

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from beir_cocodr import checksums
from beir_cocodr.arrays import Array, Ints
from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import draft_folder, parse_json
from beir_cocodr.retrieval.faiss.index import FaissIndex
from beir_cocodr.retrieval.faiss.transform import FaissOptions
from beir_cocodr.retrieval.ranking import best_rows

_VECTORS, _STARTS, _SETTINGS, _INDEX = "vectors.bin", "starts.npy", "settings.json", "index"

# Of fewer tokens all are compared. Of more, those in so many lists, around as many means as the root of their number,
# by a byte for four dimensions.
_COMPARED, _LISTS, _DIMENSIONS_A_BYTE = 50_000, 32, 4

# Tokens of documents that each token of a query finds.
_FOUND = 512
log = logging.getLogger(__name__)


class TokenVectors:
    """The vectors of the tokens of N documents, one document after the other, mapped from files.

    Args:
        folder: where :meth:`write` wrote them.
        verify: compare the files with their checksums.

    Raises:
        InputError: the files are not there, or damaged.
    """

    def __init__(self, folder: Path, verify: bool = True) -> None:
        self.folder = folder
        way_out = f"delete {folder}, and the next search encodes the documents again"
        for name in (_VECTORS, _STARTS, _SETTINGS) if verify else ():
            checksums.verify(folder / name, way_out)
        with explained(f"{folder} holds no vectors of tokens", way_out, OSError, ValueError, KeyError, TypeError):
            settings = parse_json((folder / _SETTINGS).read_text())
            #: Hash of the texts that they are of.
            self.corpus = str(settings["corpus"])
            #: (N + 1,) where the tokens of each document begin, and T.
            self.starts: Ints = np.load(folder / _STARTS)
            shape = int(self.starts[-1]), int(settings["dimensions"])
            #: (T, d)
            self.vectors: Array = np.memmap(folder / _VECTORS, settings["dtype"], "r", shape=shape)

    @classmethod
    def write(cls, folder: Path, documents: Iterable[Sequence[torch.Tensor]], corpus: str, half: bool = False) -> Self:
        """Write (n, d) vectors of documents, some at a time, in float16 if ``half``, in one step, in place of those of
        another ``corpus``; an InputError where there are none.
        """
        dtype, lengths, width = np.dtype("float16" if half else "float32"), [0], 0
        with draft_folder(folder, replace=True) as draft:
            with (draft / _VECTORS).open("wb") as file:
                for found in (vectors for part in documents for vectors in part):
                    file.write(found.float().cpu().numpy().astype(dtype).tobytes())
                    lengths.append(len(found))
                    width = found.shape[1]
            if not sum(lengths):
                raise InputError("no document has a token that is encoded; there is nothing to search")
            np.save(draft / _STARTS, np.cumsum(lengths, dtype=np.int64))
            settings = {"dimensions": width, "dtype": dtype.name, "corpus": corpus}
            (draft / _SETTINGS).write_text(json.dumps(settings) + "\n")
            checksums.add_checksums(draft, [_VECTORS, _STARTS, _SETTINGS])
        made = cls(folder, verify=False)
        log.info(
            "%d tokens of %d documents: %.2f GB in %s", len(made.vectors), len(made), made.vectors.nbytes / 1e9, folder
        )
        return made

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, rows: Ints) -> list[torch.Tensor]:
        """(n, d) float32 vectors of each of some documents."""
        spans = zip(self.starts[rows], self.starts[rows + 1], strict=True)
        return [torch.from_numpy(self.vectors[start:end].astype(np.float32)) for start, end in spans]


class TokenIndex:
    """A FAISS index of the vectors of all tokens, built where they stand and kept there: which documents have the
    tokens that are nearest to a query's. Few tokens are compared exactly, many through inverted lists of codes.

    Source: ColBERT (Khattab and Zaharia, 2020), section 3.6, for candidates by tokens; XTR (Lee et al., 2023), section
    3.2, for the score of a query's token that did not find a document: that of the last token it found.
    """

    def __init__(self, tokens: TokenVectors, verify: bool = True) -> None:
        count, width = tokens.vectors.shape
        self.tokens, folder = tokens, tokens.folder / _INDEX
        lists = round(count**0.5)
        settings: dict[str, Any] = {"kind": "flat"} if count < _COMPARED else {
            "kind": "ivfpq", "nlist": lists, "nprobe": min(_LISTS, lists), "pq_m": -(-width // _DIMENSIONS_A_BYTE),
            "over_fetch": 1, "train_size": max(100_000, 39 * lists),
        }  # fmt: skip
        if not folder.is_dir():
            FaissIndex.build(tokens.vectors, FaissOptions(recall_queries=0, **settings)).save(folder)
        self.index = FaissIndex.load(folder, verify=verify)

    def candidates(self, query: torch.Tensor, depth: int) -> Ints:
        """Rows of at most ``depth`` documents for the (n, d) vectors of a query, likely ones first; all if they fit."""
        if depth >= len(self.tokens):
            return np.arange(len(self.tokens))
        if not len(query):
            return np.empty(0, np.int64)
        scores, found = self.index.search(query.float().cpu().numpy(), _FOUND)  # (n, k)
        there = found >= 0
        above = np.where(there, scores - scores.min(axis=1, where=there, initial=np.inf, keepdims=True), 0)
        rows, at = np.unique(np.searchsorted(self.tokens.starts, found, side="right") - 1, return_inverse=True)
        best = np.zeros((len(found), len(rows)))
        np.maximum.at(best, (np.arange(len(found))[:, None], at.reshape(found.shape)), above)
        known = rows >= 0
        rows, totals = rows[known], best.sum(axis=0)[known]
        likely: Ints = rows[best_rows(totals, rows, depth)]
        return likely
