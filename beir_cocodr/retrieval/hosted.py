"""Retrievers of sentence-transformers' classes: cross-encoders, learned sparse encoders, late
interaction.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.util import load_file_path

from beir_cocodr import checksums
from beir_cocodr.arrays import Array, Floats, Ints, spaced_rows
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat, readable
from beir_cocodr.errors import UNFINISHED, InputError, explained
from beir_cocodr.io import draft_folder, json_sha256, parse_json, write_text
from beir_cocodr.models.cocodr import set_lengths
from beir_cocodr.models.integrity import LATE_INTERACTION, SPARSE, check_loaded, loading
from beir_cocodr.models.loading import fingerprint, load_cross_encoder
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import Bar, in_place
from beir_cocodr.records import Json
from beir_cocodr.retrieval.faiss.build import import_faiss
from beir_cocodr.retrieval.faiss.index import FaissIndex
from beir_cocodr.retrieval.faiss.transform import FaissOptions
from beir_cocodr.retrieval.ranking import Ranker, Ranking, best_rows, overlap
from beir_cocodr.retrieval.selection import merge_keys, ranks_of, scores_of, to_keys
from beir_cocodr.retrieval.topk import NonFiniteScores

#: What a folder of sentence-transformers says of the class that it is for.
CONFIG = "config_sentence_transformers.json"

#: Documents of the first stage that a cross-encoder reads, and that late interaction scores.
RERANKED, CANDIDATES = 100, 1_000

# Documents that are encoded at a time.
_CHUNK = 256

# Recall of an index of tokens: the file beside it, the most queries, and the depths.
_RECALL, _MEASURED, _DEPTHS = "recall.json", 10, (10, 100)
log = logging.getLogger(__name__)


class HostRetriever:
    """A model of sentence-transformers over a corpus.

    Args:
        name: folder or hub name.
        documents: the corpus.
        options: ``batch_size`` texts, or pairs of a query and a document, go through the model at a
            time, with ``bf16`` in bfloat16 (PyTorch's autocast). Lengths and prompts of ``encoder``
            are those of encoders; a cross-encoder has its own length.
        first: whose ``depth`` best documents are candidates.
        folder: where what is made of the corpus is kept, if it is too much for memory; default:
            none for long.

    Raises:
        InputError: the model cannot be loaded whole, or is of another kind, whose layers would be
        drawn at random.
    """

    depth = RERANKED

    def __init__(
        self,
        name: str,
        documents: Documents,
        options: SearchOptions = SearchOptions(),
        first: Ranker | None = None,
        depth: int | None = None,
        folder: Path | None = None,
    ) -> None:
        self.documents, self.options, self.first, self.depth = (
            documents,
            options,
            first,
            depth or self.depth,
        )
        if folder is None:
            self._own = TemporaryDirectory(prefix=UNFINISHED)  # removed with the retriever
        self.folder = folder or Path(self._own.name)
        self.model: Any = self.load(name)
        self.read = readable(self.model.tokenizer, self.model.prompts.values())

    def load(self, name: str) -> Any:
        raise NotImplementedError

    def prepare(self) -> None:
        if self.first is not None:
            self.first.prepare()

    @property
    def text_format(self) -> TextFormat:
        return self.options.encoder.text_format

    def texts(self, documents: Iterable[dict[str, str]]) -> list[str]:
        """What the model reads of documents."""
        return [self.read(self.text_format.document(document)) for document in documents]

    def precision(self) -> AbstractContextManager[Any]:
        """In which the model runs."""
        bf16 = torch.autocast(torch.device(self.model.device).type, torch.bfloat16)
        return bf16 if self.options.bf16 else nullcontext()

    def encode(self, encode: Any, texts: Sequence[object], **settings: Any) -> Any:
        """What one of the model's methods makes of texts or pairs of them."""
        shown = {
            "batch_size": self.options.batch_size,
            "show_progress_bar": self.options.progress and in_place(),
        }
        with self.precision():
            return encode(texts, **shown | settings)

    def described(self, **own: object) -> Json:
        first = (
            {}
            if self.first is None
            else {"first_stage": self.first.describe(), "reranked": self.depth}
        )
        bf16 = {"bf16": True} if self.options.bf16 else {}
        return {
            **own,
            **first,
            **bf16,
            "text_format": {"title_separator": self.text_format.title_separator},
        }

    def check_finite(self, scores: Floats, rows: Ints, queries: list[str]) -> None:
        """Raise :class:`NonFiniteScores` for (Q, n) scores of documents."""
        if not np.isfinite(scores).all():
            at, column = np.argwhere(~np.isfinite(scores))[0]
            raise NonFiniteScores(self.documents.ids(rows[[column]]), [queries[at]])


def load_host(kind: Any, name: str, options: SearchOptions) -> Any:
    """A sparse or multi-vector encoder, of weights that were trained as one."""
    task, bare = (
        (SPARSE, ("ForMaskedLM",))
        if kind is SparseEncoder
        else (LATE_INTERACTION, ("HF_ColBERT", "ForRetrieval"))
    )
    with loading(name, task):
        _check_kind(name, kind.__name__, bare)
        model = kind(name, device=options.encoder.device)
        check_loaded(model, model.tokenizer, name)
    given = {"query": options.encoder.query_prompt, "document": options.encoder.document_prompt}
    model.prompts = model.prompts | {
        task: prompt for task, prompt in given.items() if prompt is not None
    }
    set_lengths(model[0], options.encoder.query_length, options.encoder.document_length)
    return model


def _check_kind(name: str, kind: str, bare: tuple[str, ...]) -> None:
    """The hosts turn an encoder of another kind into theirs, by layers with random weights."""

    def settings(file: str) -> Json:
        path = load_file_path(name, file)
        return {} if path is None else dict(json.loads(Path(path).read_text(encoding="utf-8")))

    saved = settings(CONFIG).get("model_type")
    made: Any = settings("config.json").get("architectures") or []
    is_saved = load_file_path(name, "modules.json") is not None
    if (
        saved not in (kind, "ColBERT")
        if is_saved
        else not str(made[0] if made else "").endswith(bare)
    ):
        raise InputError(
            f"model {name!r} is no {kind}, but {saved or 'a bare transformer'}: it would be given layers with "
            "random weights; name a model that was trained as one"
        )


class Reranking(HostRetriever):
    """The ``depth`` best documents of a first stage, and no others, in the order of a
    cross-encoder's raw scores.
    """

    def load(self, name: str) -> CrossEncoder:
        model: CrossEncoder = load_cross_encoder(name, self.options.encoder.device)[0]
        return model

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        assert self.first is not None
        found = self.first.search(queries, self.depth)
        scored = []
        for (query, text), row in zip(queries.items(), found.rows, strict=True):
            rows = row[row >= 0]
            pairs = [
                (self.read(text), document) for document in self.texts(self.documents.take(rows))
            ]
            raw = (
                self.encode(
                    self.model.predict,
                    pairs,
                    activation_fn=torch.nn.Identity(),
                    show_progress_bar=False,
                )
                if pairs
                else []
            )
            scores = np.asarray(raw, np.float32)
            self.check_finite(scores[None], rows, [query])
            scored.append((rows, scores))
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), min(top_k, self.depth))

    def describe(self) -> Json:
        return self.described(model="cross-encoder", max_length=self.model.max_seq_length)


# Files of the vectors of tokens.
_VECTORS, _STARTS, _SETTINGS, _INDEX = "vectors.bin", "starts.npy", "settings.json", "index"

# Of fewer tokens all are compared. Of more, those in so many lists, around as many means as the
# root of their number, by a byte for four dimensions.
_COMPARED, _LISTS, _DIMENSIONS_A_BYTE = 50_000, 32, 4

# Tokens of documents that each token of a query finds.
_FOUND = 512


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
        with explained(
            f"{folder} holds no vectors of tokens",
            way_out,
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ):
            settings = parse_json((folder / _SETTINGS).read_text())
            #: Hash of the texts that they are of.
            self.corpus = str(settings["corpus"])
            #: (N + 1,) where the tokens of each document begin, and T.
            self.starts: Ints = np.load(folder / _STARTS)
            shape = int(self.starts[-1]), int(settings["dimensions"])
            #: (T, d)
            self.vectors: Array = np.memmap(folder / _VECTORS, settings["dtype"], "r", shape=shape)

    @classmethod
    def write(
        cls,
        folder: Path,
        documents: Iterable[Sequence[torch.Tensor]],
        corpus: str,
        half: bool = False,
    ) -> Self:
        """Write (n, d) vectors of documents, some at a time, in float16 if ``half``, in one step,
        in place of those of another ``corpus``; an InputError where there are none.
        """
        dtype, lengths, width = np.dtype("float16" if half else "float32"), [0], 0
        with draft_folder(folder, replace=True) as draft:
            with (draft / _VECTORS).open("wb") as file:
                for found in (vectors for part in documents for vectors in part):
                    file.write(found.float().cpu().numpy().astype(dtype).tobytes())
                    lengths.append(len(found))
                    width = found.shape[1]
            if not sum(lengths):
                raise InputError(
                    "no document has a token that is encoded; there is nothing to search"
                )
            np.save(draft / _STARTS, np.cumsum(lengths, dtype=np.int64))
            settings = {"dimensions": width, "dtype": dtype.name, "corpus": corpus}
            (draft / _SETTINGS).write_text(json.dumps(settings) + "\n")
            checksums.add_checksums(draft, [_VECTORS, _STARTS, _SETTINGS])
        made = cls(folder, verify=False)
        log.info(
            "%d tokens of %d documents: %.2f GB in %s",
            len(made.vectors),
            len(made),
            made.vectors.nbytes / 1e9,
            folder,
        )
        return made

    def __len__(self) -> int:
        return len(self.starts) - 1

    def take(self, rows: Ints) -> list[torch.Tensor]:
        """(n, d) float32 vectors of each of some documents."""
        spans = zip(self.starts[rows], self.starts[rows + 1], strict=True)
        return [
            torch.from_numpy(self.vectors[start:end].astype(np.float32)) for start, end in spans
        ]


class TokenIndex:
    """A FAISS index of the vectors of all tokens, built where they stand and kept there: which
    documents have the tokens that are nearest to a query's. Few tokens are compared exactly, many
    through inverted lists of codes.

    Source: ColBERT (Khattab and Zaharia, 2020), section 3.6, for candidates by tokens; XTR (Lee et
    al., 2023), section 3.2, for the score of a query's token that did not find a document: that of
    the last token it found.
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
            FaissIndex.build(tokens.vectors, FaissOptions(recall_queries=0, **settings)).save(
                folder
            )
        self.index = FaissIndex.load(folder, verify=verify)

    def candidates(self, query: torch.Tensor, depth: int) -> Ints:
        """Rows of at most ``depth`` documents for the (n, d) vectors of a query, likely ones first;
        all if they fit.
        """
        if depth >= len(self.tokens):
            return np.arange(len(self.tokens))
        if not len(query):
            return np.empty(0, np.int64)
        scores, found = self.index.search(query.float().cpu().numpy(), _FOUND)  # (n, k)
        there = found >= 0
        above = np.where(
            there, scores - scores.min(axis=1, where=there, initial=np.inf, keepdims=True), 0
        )
        rows, at = np.unique(
            np.searchsorted(self.tokens.starts, found, side="right") - 1, return_inverse=True
        )
        best = np.zeros((len(found), len(rows)))
        np.maximum.at(best, (np.arange(len(found))[:, None], at.reshape(found.shape)), above)
        known = rows >= 0
        rows, totals = rows[known], best.sum(axis=0)[known]
        likely: Ints = rows[best_rows(totals, rows, depth)]
        return likely


class LateInteraction(HostRetriever):
    """The host's exact MaxSim of every query with its ``depth`` best documents of a first stage,
    with those that an index of token vectors finds (``indexed``), or with all documents.

    A first stage's documents are encoded as they are scored. Otherwise the corpus is encoded once,
    the vectors of all tokens are kept in a folder (float32; with ``bf16`` float16), and an index
    beside them. What it finds of all documents' best is measured with some queries of the first
    search, and kept as well.
    """

    depth, indexed = CANDIDATES, False

    def load(self, name: str) -> MultiVectorEncoder:
        if self.indexed:
            import_faiss()  # before anything is encoded
        model: MultiVectorEncoder = load_host(MultiVectorEncoder, name, self.options)
        return model

    def prepare(self) -> None:
        super().prepare()
        if self.indexed:
            _ = self.index

    @cached_property
    def tokens(self) -> TokenVectors:
        """Of the corpus; read where this model encoded this corpus before."""
        settings = [
            module.get_config_dict() for module in self.model if hasattr(module, "get_config_dict")
        ]
        model = [
            fingerprint(self.model),
            settings,
            self.model.prompts,
            self.text_format.title_separator,
        ]
        place = self.folder / f"tokens-{json_sha256([model, self.options.bf16])[:16]}"
        corpus = self.documents.content_hash
        if (
            place.is_dir()
            and corpus
            and (found := TokenVectors(place, self.options.verify)).corpus == corpus
        ):
            return found
        starts = range(0, len(self.documents), _CHUNK)
        parts = Bar(starts, "Tokens", unit=" blocks", disable=not self.options.progress)
        encoded = (
            self._checked(np.arange(start, min(start + _CHUNK, len(self.documents))))
            for start in parts
        )
        return TokenVectors.write(place, encoded, corpus, self.options.bf16)

    def _checked(self, rows: Ints) -> list[torch.Tensor]:
        found = self.vectors(self.texts(self.documents.take(rows)))
        if wrong := [
            row for row, vectors in zip(rows, found, strict=True) if not vectors.isfinite().all()
        ]:
            raise NonFiniteScores(self.documents.ids(np.array(wrong)), [])
        return found

    @cached_property
    def index(self) -> TokenIndex:
        return TokenIndex(self.tokens, self.options.verify)

    def vectors(self, texts: list[str]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = self.encode(
            self.model.encode_document, texts, show_progress_bar=False
        )
        return found

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        encoded = self.encode(self.model.encode_query, list(map(self.read, queries.values())))
        if not self.indexed:
            return self._streamed(queries, encoded, top_k)
        if self.recall.get("queries", 0) < min(len(queries), _MEASURED):
            self._measure(list(queries), encoded)
        return self._found(list(queries), encoded, top_k)

    def _found(self, queries: list[str], encoded: Sequence[torch.Tensor], top_k: int) -> Ranking:
        """Of what the index finds."""
        scored = []
        for query, vectors in zip(queries, encoded, strict=True):
            rows = self.index.candidates(vectors, max(self.depth, top_k))
            scored.append((rows, self._scores([query], [vectors], rows, self.tokens.take(rows))[0]))
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), top_k)

    def _streamed(
        self, queries: dict[str, str], encoded: Sequence[torch.Tensor], top_k: int
    ) -> Ranking:
        """Of a first stage's documents, or of all."""
        chosen = (
            None if self.first is None else self.first.search(queries, self.depth).rows
        )  # (Q, depth)
        wanted = (
            np.arange(len(self.documents)) if chosen is None else np.unique(chosen[chosen >= 0])
        )
        ties, kept = self.documents.tie_ranks(), torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(wanted), _CHUNK):
            rows = wanted[start : start + _CHUNK]
            vectors = (
                self.tokens.take(rows)
                if chosen is None
                else self.vectors(self.texts(self.documents.take(rows)))
            )
            scores = self._scores(list(queries), encoded, rows, vectors)
            if chosen is not None:
                scores[~np.stack([np.isin(rows, row) for row in chosen])] = -np.inf
            ranks = torch.from_numpy(ties[rows]).expand(scores.shape)
            kept = merge_keys([kept, to_keys(torch.from_numpy(scores), ranks)], top_k)
        found, there = (
            np.argsort(ties)[ranks_of(kept).numpy()],
            np.isfinite(values := scores_of(kept).numpy()),
        )
        return Ranking(list(queries), np.where(there, values, 0), np.where(there, found, -1))

    def _scores(
        self,
        queries: list[str],
        encoded: Sequence[torch.Tensor],
        rows: Ints,
        vectors: Sequence[torch.Tensor],
    ) -> Floats:
        """(Q, n) float32 of documents."""
        with self.precision():
            found = self.model.similarity(
                encoded, vectors, device=self.model.device
            )  # kept vectors are on the CPU
        scores: Floats = found.float().cpu().numpy()
        self.check_finite(scores, rows, queries)
        return scores

    @property
    def recall(self) -> dict[str, float]:
        """Of the index, and over how many queries; empty until there was a search."""
        file = self.tokens.folder / _RECALL
        return dict(parse_json(file.read_text())) if file.is_file() else {}

    def _measure(self, queries: list[str], encoded: Sequence[torch.Tensor]) -> None:
        drawn = spaced_rows(len(queries), _MEASURED)
        some, vectors = {queries[i]: "" for i in drawn}, [encoded[i] for i in drawn]
        found = self._found(list(some), vectors, max(_DEPTHS)).rows
        exact = self._streamed(some, vectors, max(_DEPTHS)).rows
        recall = {f"recall@{k}": float(overlap(found, exact, k).mean()) for k in _DEPTHS} | {
            "queries": len(some)
        }
        write_text(self.tokens.folder / _RECALL, json.dumps(recall) + "\n")
        log.info("the index of tokens finds of exact MaxSim's best: %s", recall)

    def describe(self) -> Json:
        width = self.model.get_embedding_dimension()
        index = (
            {"candidates": "tokens", "searched": self.depth, "recall": self.recall}
            if self.indexed
            else {}
        )
        own = {"similarity": self.model.similarity_fn_name, "dimensions": width}
        return self.described(model="late interaction", **own, **index)


class TokenSearch(LateInteraction):
    """Late interaction whose candidates are found by an index of token vectors."""

    indexed = True


class Sparse(HostRetriever):
    """Dot products of sparse vectors; what shares no dimension with the query is not retrieved.

    The corpus is encoded once and held in memory as an inverted index, of which a query reads its
    dimensions' lists.

    Raises:
        InputError: the encoder compares by something else.
    """

    _postings: Any = None

    def load(self, name: str) -> SparseEncoder:
        model: SparseEncoder = load_host(SparseEncoder, name, self.options)
        if model.similarity_fn_name not in (None, "dot"):
            raise InputError(
                f'the sparse encoder compares by {model.similarity_fn_name}; save it with similarity_fn_name "dot"'
            )
        return model

    def prepare(self) -> None:
        if self._postings is None:
            chunks = map(self.texts, self.documents.chunks(4 * _CHUNK))
            parts = [self._vectors(self.model.encode_document, texts) for texts in chunks]
            self._postings = sparse.vstack(
                parts, format="csc"
            ).T  # (V, N) in CSR format: a row is a dimension's list

    def search(self, queries: dict[str, str], top_k: int) -> Ranking:
        self.prepare()
        encoded = self._vectors(self.model.encode_query, list(map(self.read, queries.values())))
        scored = []
        for row, query in enumerate(queries):
            found = encoded[row] @ self._postings  # (1, N)
            self.check_finite(found.data[None], found.indices, [query])
            matching = found.data > 0
            scored.append((found.indices[matching], found.data[matching]))
        return Ranking.of_best(queries, scored, self.documents.tie_ranks(), top_k)

    def describe(self) -> Json:
        self.prepare()
        active = float(self._postings.nnz / self._postings.shape[1])
        return self.described(
            model="sparse", similarity="dot", active_dimensions_of_a_document=active
        )

    def _vectors(self, encode: Any, texts: list[str]) -> Any:
        """(n,) texts to an (n, V) float32 matrix in CSR format."""
        found = self.encode(encode, texts, convert_to_sparse_tensor=True).cpu().coalesce()
        return sparse.csr_matrix(
            (found.values().float().numpy(), found.indices().numpy()), shape=tuple(found.shape)
        )
