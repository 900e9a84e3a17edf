"""Late interaction: exact MaxSim over the vectors of tokens, and an index that finds candidates."""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder

from beir_cocodr import checksums
from beir_cocodr.arrays import Array, Doubles, Floats, Ints, spaced_rows
from beir_cocodr.errors import InputError, explained
from beir_cocodr.io import draft_folder, json_sha256, parse_json, write_text
from beir_cocodr.models.checkpoints.loading import fingerprint
from beir_cocodr.progress import Bar
from beir_cocodr.records import Json
from beir_cocodr.retrieval.faiss.build import import_faiss
from beir_cocodr.retrieval.faiss.index import FaissIndex
from beir_cocodr.retrieval.faiss.transform import FaissOptions
from beir_cocodr.retrieval.hosted import CHUNK, HostRetriever, load_host
from beir_cocodr.retrieval.ranking import Ranking, best_rows, overlap
from beir_cocodr.retrieval.vectors.selection import merge_keys, ranks_of, scores_of, to_keys
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores

log = logging.getLogger(__name__)

#: Documents of the first stage that late interaction scores.
CANDIDATES = 1_000

# Files of the vectors of tokens, and the index beside them.
_VECTORS = "vectors.bin"
_STARTS = "starts.npy"
_SETTINGS = "settings.json"
_INDEX = "index"

# Fewer tokens than this are all compared with a query. Of more, those in some lists are compared by
# codes of one byte for some dimensions.
_COMPARED = 50_000
_LISTS = 32
_DIMENSIONS_PER_CODE = 4

# Training vectors of k-means for each list, and at least.
_POINTS_PER_LIST = 39
_LEAST_TRAINED = 100_000

# Tokens of documents that are found for each token of a query.
_TOKENS_FOUND = 512

# The recall of an index of tokens: its file, the most queries, and the depths.
_RECALL = "recall.json"
_MEASURED = 10
_DEPTHS = (10, 100)


class TokenVectors:
    """The vectors of the tokens of N documents, one document after the other, mapped from files.

    Args:
        folder: the folder that :meth:`write` wrote.
        verify: compare the files with their checksums.

    Attributes:
        corpus: hash of the texts.
        starts: (N + 1,) the first token of each document, and T, the number of tokens.
        vectors: (T, d) the vectors.

    Raises:
        InputError: If the files are missing or damaged.
    """

    def __init__(self, folder: Path, verify: bool = True) -> None:
        """Map the files."""
        self.folder = folder
        way_out = f"delete {folder}, and the next search encodes the documents again"
        if verify:
            for name in (_VECTORS, _STARTS, _SETTINGS):
                checksums.verify(folder / name, way_out)
        kinds = (OSError, ValueError, KeyError, TypeError)
        with explained(f"{folder} contains no vectors of tokens", way_out, *kinds):
            settings = parse_json((folder / _SETTINGS).read_text())
            self.corpus = str(settings["corpus"])
            self.starts: Ints = np.load(folder / _STARTS)
            tokens = int(self.starts[-1])
            dimensions = int(settings["dimensions"])
            self.vectors: Array = np.memmap(
                folder / _VECTORS,
                settings["dtype"],
                mode="r",
                shape=(tokens, dimensions),
            )

    @classmethod
    def write(
        cls,
        folder: Path,
        documents: Iterable[Sequence[torch.Tensor]],
        corpus: str,
        half: bool = False,
    ) -> Self:
        """Write the vectors of documents in one step, in place of those of another corpus.

        Args:
            folder: the folder.
            documents: lists of (n, d) vectors, one for each document.
            corpus: hash of the texts.
            half: write float16 instead of float32.

        Raises:
            InputError: If no document has a token.
        """
        dtype = np.dtype("float16" if half else "float32")
        lengths = [0]
        width = 0
        with draft_folder(folder, replace=True) as draft:
            with (draft / _VECTORS).open("wb") as file:
                for part in documents:
                    for vectors in part:
                        numbers = vectors.float().cpu().numpy()
                        file.write(numbers.astype(dtype).tobytes())
                        lengths.append(len(vectors))
                        width = vectors.shape[1]
            if not sum(lengths):
                raise InputError(
                    "no document has a token that the model encodes, so there is nothing to "
                    "search; check the texts of the corpus"
                )
            starts = np.cumsum(lengths, dtype=np.int64)
            np.save(draft / _STARTS, starts)
            settings = {
                "dimensions": width,
                "dtype": dtype.name,
                "corpus": corpus,
            }
            (draft / _SETTINGS).write_text(json.dumps(settings) + "\n")
            checksums.add_checksums(draft, [_VECTORS, _STARTS, _SETTINGS])
        tokens = cls(folder, verify=False)
        log.info(
            "%d tokens of %d documents: %.2f GB in %s",
            len(tokens.vectors),
            len(tokens),
            tokens.vectors.nbytes / 1e9,
            folder,
        )
        return tokens

    def __len__(self) -> int:
        """Return N, the number of documents."""
        return len(self.starts) - 1

    def take(self, rows: Ints) -> list[torch.Tensor]:
        """Return the (n, d) float32 vectors of each of some documents."""
        documents = []
        starts = self.starts[rows]
        ends = self.starts[rows + 1]
        for start, end in zip(starts, ends, strict=True):
            vectors = self.vectors[start:end].astype(np.float32)
            documents.append(torch.from_numpy(vectors))
        return documents


class TokenIndex:
    """A FAISS index of the vectors of all tokens, kept beside them.

    It finds the documents whose tokens are nearest to those of a query. Few tokens are compared
    exactly, many through inverted lists of codes.

    Args:
        tokens: the vectors.
        verify: compare the files of the index with their checksums.

    References:
        - Candidates by tokens: ColBERT (Khattab and Zaharia, 2020), section 3.6.
        - A token of the query that did not find a document gets the score of the last token that it
          found: XTR (Lee et al., 2023), section 3.2.
    """

    def __init__(self, tokens: TokenVectors, verify: bool = True) -> None:
        """Read the index, or build it the first time."""
        self.tokens = tokens
        folder = tokens.folder / _INDEX
        if not folder.is_dir():
            FaissIndex.build(tokens.vectors, _index_options(tokens)).save(folder)
        self.index = FaissIndex.load(folder, verify=verify)

    def candidates(self, query: torch.Tensor, depth: int) -> Ints:
        """Return the rows of likely documents, the best first.

        Args:
            query: (n, d) vectors of the tokens of a query.
            depth: the most documents. If all fit, all are returned.
        """
        if depth >= len(self.tokens):
            return np.arange(len(self.tokens))
        if not len(query):
            return np.empty(0, np.int64)
        vectors = query.float().cpu().numpy()
        scores, tokens = self.index.search(vectors, _TOKENS_FOUND)  # (n, k)
        rows, totals = self._document_scores(scores, tokens)
        likely: Ints = rows[best_rows(totals, rows, depth)]
        return likely

    def _document_scores(self, scores: Floats, tokens: Ints) -> tuple[Ints, Doubles]:
        """Return the documents of the tokens, and their scores above those that were not found."""
        is_token = tokens >= 0
        lowest = scores.min(
            axis=1,
            where=is_token,
            initial=np.inf,
            keepdims=True,
        )
        above = np.where(is_token, scores - lowest, 0)
        documents = np.searchsorted(self.tokens.starts, tokens, side="right") - 1
        rows, columns = np.unique(documents, return_inverse=True)
        best = np.zeros((len(tokens), len(rows)))
        query_tokens = np.arange(len(tokens))[:, None]
        places = (query_tokens, columns.reshape(tokens.shape))
        np.maximum.at(best, places, above)
        totals = best.sum(axis=0)
        known = rows >= 0
        return rows[known], totals[known]


def _index_options(tokens: TokenVectors) -> FaissOptions:
    """Return settings of an index with as many lists as the root of the number of tokens."""
    count, width = tokens.vectors.shape
    if count < _COMPARED:
        return FaissOptions(kind="flat", recall_queries=0)
    lists = round(count**0.5)
    return FaissOptions(
        kind="ivfpq",
        nlist=lists,
        nprobe=min(_LISTS, lists),
        pq_m=-(-width // _DIMENSIONS_PER_CODE),
        over_fetch=1,
        train_size=max(_LEAST_TRAINED, _POINTS_PER_LIST * lists),
        recall_queries=0,
    )


class LateInteraction(HostRetriever):
    """sentence-transformers' exact MaxSim of queries with documents.

    The documents are the ``depth`` best of a first stage, those that an index of token vectors
    finds (``indexed``), or all.

    Documents of a first stage are encoded when they are scored. Otherwise the corpus is encoded
    once, and the vectors of all tokens are kept in a folder (float32, or float16 with ``bf16``),
    with the index beside them. The share of the best of all documents that the index finds is
    measured with some queries of the first search, and kept as well.
    """

    depth = CANDIDATES
    indexed = False

    def load(self, name: str) -> MultiVectorEncoder:
        """Load the multi-vector encoder."""
        if self.indexed:
            import_faiss()  # fail before anything is encoded
        model: MultiVectorEncoder = load_host(MultiVectorEncoder, name, self.options)
        return model

    def prepare(self) -> None:
        """Prepare the first stage, or encode and index the corpus."""
        super().prepare()
        if self.indexed:
            _ = self.index

    @cached_property
    def tokens(self) -> TokenVectors:
        """Return the vectors of the corpus, read if this model encoded this corpus before."""
        identity = self._identity()
        folder = self.folder / f"tokens-{identity[:16]}"
        corpus = self.documents.content_hash
        if folder.is_dir() and corpus:
            tokens = TokenVectors(folder, self.options.verify)
            if tokens.corpus == corpus:
                return tokens
        return TokenVectors.write(
            folder,
            documents=self._encoded_corpus(),
            corpus=corpus,
            half=self.options.bf16,
        )

    def _identity(self) -> str:
        """Return a hash of what vectors depend on beside the texts."""
        modules = [
            module.get_config_dict() for module in self.model if hasattr(module, "get_config_dict")
        ]
        model = [
            fingerprint(self.model),
            modules,
            self.model.prompts,
            self.text_format.title_separator,
        ]
        return json_sha256([model, self.options.bf16])

    def _encoded_corpus(self) -> Iterator[list[torch.Tensor]]:
        count = len(self.documents)
        bar = Bar(
            range(0, count, CHUNK),
            "Tokens",
            unit=" blocks",
            disable=not self.options.shows_progress,
        )
        for start in bar:
            stop = min(start + CHUNK, count)
            yield self._checked(np.arange(start, stop))

    def _checked(self, rows: Ints) -> list[torch.Tensor]:
        """Return the vectors of documents, all of them finite."""
        texts = self.texts(self.documents.take(rows))
        documents = self.vectors(texts)
        wrong = []
        for row, vectors in zip(rows, documents, strict=True):
            if not vectors.isfinite().all():
                wrong.append(row)
        if wrong:
            raise NonFiniteScores(self.documents.ids(np.array(wrong)), [])
        return documents

    @cached_property
    def index(self) -> TokenIndex:
        """Return the index of the vectors of the corpus."""
        return TokenIndex(self.tokens, self.options.verify)

    def vectors(self, texts: list[str]) -> list[torch.Tensor]:
        """Encode documents as (n, d) vectors of their tokens."""
        documents: list[torch.Tensor] = self.encode(
            self.model.encode_document, texts, show_progress_bar=False
        )
        return documents

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        """Return the best documents for queries by id."""
        texts = [self.read(text) for text in queries.values()]
        encoded = self.encode(self.model.encode_query, texts)
        if not self.indexed:
            return self._search_all(queries, encoded, top_k)
        measured = self.recall.get("queries", 0)
        if measured < min(len(queries), _MEASURED):
            self._measure(list(queries), encoded)
        return self._search_index(list(queries), encoded, top_k)

    def _search_index(
        self, queries: list[str], encoded: Sequence[torch.Tensor], top_k: int
    ) -> Ranking:
        """Score the candidates that the index finds."""
        scored = []
        for query, vectors in zip(queries, encoded, strict=True):
            rows = self.index.candidates(vectors, max(self.depth, top_k))
            documents = self.tokens.take(rows)
            [scores] = self._scores([query], [vectors], rows, documents)
            scored.append((rows, scores))
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), top_k)

    def _search_all(
        self, queries: dict[str, str], encoded: Sequence[torch.Tensor], top_k: int
    ) -> Ranking:
        """Score the documents of the first stage, or all, some at a time."""
        candidates = None  # (Q, depth)
        wanted = np.arange(len(self.documents))
        if self.first is not None:
            candidates = self.first.search(queries, self.depth).rows
            wanted = np.unique(candidates[candidates >= 0])
        tie_ranks = self.documents.tie_ranks()
        best = torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(wanted), CHUNK):
            rows = wanted[start : start + CHUNK]
            if candidates is None:
                vectors = self.tokens.take(rows)
            else:
                texts = self.texts(self.documents.take(rows))
                vectors = self.vectors(texts)
            scores = self._scores(list(queries), encoded, rows, vectors)
            if candidates is not None:
                is_candidate = np.stack([np.isin(rows, row) for row in candidates])
                scores[~is_candidate] = -np.inf
            ranks = torch.from_numpy(tie_ranks[rows]).expand(scores.shape)
            best = merge_keys([best, to_keys(torch.from_numpy(scores), ranks)], top_k)
        values = scores_of(best).numpy()
        row_of_rank = np.argsort(tie_ranks)
        documents = row_of_rank[ranks_of(best).numpy()]
        is_ranked = np.isfinite(values)
        return Ranking(
            list(queries),
            scores=np.where(is_ranked, values, 0),
            rows=np.where(is_ranked, documents, -1),
        )

    def _scores(
        self,
        queries: list[str],
        encoded: Sequence[torch.Tensor],
        rows: Ints,
        vectors: Sequence[torch.Tensor],
    ) -> Floats:
        """Return (Q, n) float32 scores of documents."""
        with self.precision():
            # Stored vectors are on the CPU.
            similarity = self.model.similarity(encoded, vectors, device=self.model.device)
        scores: Floats = similarity.float().cpu().numpy()
        self.check_finite(scores, rows, queries)
        return scores

    @property
    def recall(self) -> dict[str, float]:
        """Return the recall of the index and its number of queries; empty before any search."""
        file = self.tokens.folder / _RECALL
        if file.is_file():
            return dict(parse_json(file.read_text()))
        return {}

    def _measure(self, queries: list[str], encoded: Sequence[torch.Tensor]) -> None:
        drawn = spaced_rows(len(queries), _MEASURED)
        sample = {queries[i]: "" for i in drawn}
        vectors = [encoded[i] for i in drawn]
        index_rows = self._search_index(list(sample), vectors, max(_DEPTHS)).rows
        exact_rows = self._search_all(sample, vectors, max(_DEPTHS)).rows
        recall: dict[str, float] = {}
        for k in _DEPTHS:
            shares = overlap(index_rows, exact_rows, k)
            recall[f"recall@{k}"] = float(shares.mean())
        recall["queries"] = len(sample)
        write_text(self.tokens.folder / _RECALL, json.dumps(recall) + "\n")
        log.info("the index of tokens, compared with exact MaxSim: %s", recall)

    def describe(self) -> Json:
        """Describe the ranker for records."""
        fields: Json = {
            "model": "late interaction",
            "similarity": self.model.similarity_fn_name,
            "dimensions": self.model.get_embedding_dimension(),
        }
        if self.indexed:
            fields["candidates"] = "tokens"
            fields["searched"] = self.depth
            fields["recall"] = self.recall
        return self.described(**fields)


class TokenSearch(LateInteraction):
    """Late interaction whose candidates an index of token vectors finds."""

    indexed = True
