"""Labelled collections in two encodings, and systems that were changed in known ways.

The encodings are MiniLM, over few documents, and static word vectors (MiniLM's token embeddings,
weighted by idf), over many. Every change is derived from vectors that are encoded once. ``gate.py``
uses this module; it is no script.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.documents import open_corpus, write_arrow
from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.label_free.held_out_queries import hold_out_crops
from beir_cocodr.evaluation.label_free.pseudo_queries import lexical_queries
from beir_cocodr.io import atomic_path, write_text

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

#: A prefix that MiniLM was not trained with.
PREFIX = "Represent this sentence for searching relevant passages: "
QUERIES = ("real", "crops", "gen")

MINILM = "minilm"
ENCODERS = ("static", MINILM)

_TOKENS = 256
_FEW_TOKENS = 32
_LAYERS = (6, 5, 4)
_BATCH = 32
_DEPTH = 10
_STALE = 0.08
_SHUFFLED = 0.05
_MISSING = 0.03
_SEEDS = 3
_PARITY = 0.99


@dataclass(frozen=True)
class Size:
    """How much of a collection is encoded.

    Attributes:
        documents: the most documents.
        queries: the most queries.
        samples: spans, and generated queries.
        bfloat16: MiniLM computes in bfloat16.
    """

    documents: int = 3_000
    queries: int = 300
    samples: int = 200
    bfloat16: bool = False


class Encoder:
    """MiniLM, or the static vectors of its tokens."""

    def __init__(self, name: str, bfloat16: bool) -> None:
        import torch

        from beir_cocodr.models.checkpoints.loading import load_encoder

        torch.set_num_threads(1)
        model: Any = load_encoder("minilm")
        self.name = name
        self.bfloat16 = bfloat16
        self.tokenizer = model.tokenizer
        self.bert = next(part for part in model.modules() if type(part).__name__ == "BertModel")
        self.bert.eval()
        self.table: Floats = self.bert.embeddings.word_embeddings.weight.detach().numpy()
        self.idf: Floats | None = None

    def encode(
        self, texts: Sequence[str], tokens: int, layers: Sequence[int] = (6,)
    ) -> dict[str, Floats]:
        """Return the pooling and the layer to (N, d) unit vectors.

        The static vectors of "layer" 5 and 4 weight tokens less by idf, and those of "cls" take the
        first two tokens alone.
        """
        if self.name == "static":
            return self._static(texts, tokens, layers)
        return self._contextual(texts, tokens, layers)

    def _contextual(
        self, texts: Sequence[str], tokens: int, layers: Sequence[int]
    ) -> dict[str, Floats]:
        import torch

        vectors: dict[str, Floats] = {}
        order = np.argsort([len(text) for text in texts], kind="stable")
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            batch = self.tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=tokens,
                return_tensors="pt",
            )
            in_bfloat16 = torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16)
            with torch.inference_mode(), in_bfloat16:
                outputs = self.bert(**batch, output_hidden_states=True).hidden_states
            states = [layer.float() for layer in outputs]
            mask = batch["attention_mask"][:, :, None].float()
            pooled = {f"mean{n}": (states[n] * mask).sum(1) / mask.sum(1) for n in layers}
            pooled["cls"] = states[_LAYERS[0]][:, 0]
            for name, values in pooled.items():
                if name not in vectors:
                    vectors[name] = np.zeros((len(texts), values.shape[1]), np.float32)
                vectors[name][rows] = unit(values.numpy())
        return vectors

    def _static(
        self, texts: Sequence[str], tokens: int, layers: Sequence[int]
    ) -> dict[str, Floats]:
        ids = self.tokenizer(
            list(texts), truncation=True, max_length=tokens, add_special_tokens=False
        )["input_ids"]
        counts = _token_counts(ids, len(self.table))
        if self.idf is None:
            frequencies = np.asarray((counts > 0).sum(0)).ravel()
            self.idf = np.log(1 + len(texts) / (1 + frequencies)).astype(np.float32)
        weighted = counts.copy()
        weighted.data = 1 + np.log(weighted.data)
        first = [self.table[row[:2]].mean(0) if row else self.table[0] for row in ids]
        vectors = {
            "mean6": unit(weighted.multiply(self.idf).tocsr() @ self.table),
            "cls": unit(np.stack(first)),
        }
        if len(layers) > 1:
            vectors["mean5"] = unit(weighted.multiply(np.sqrt(self.idf)).tocsr() @ self.table)
            vectors["mean4"] = unit(counts @ self.table)
        return vectors


def _token_counts(ids: Sequence[Sequence[int]], vocabulary: int) -> sp.csr_matrix:
    rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    columns = np.concatenate([np.array(row, int) for row in ids])
    ones = np.ones(len(columns), np.float32)
    return sp.csr_matrix((ones, (rows, columns)), (len(ids), vocabulary))


def unit(vectors: npt.ArrayLike) -> Floats:
    """Return vectors of length 1."""
    array = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    return (array / np.maximum(lengths, 1e-9)).astype(np.float32)


@dataclass(frozen=True)
class Encoded:
    """A part of a labelled collection in one encoding.

    Attributes:
        collection: its name.
        encoder: one of :data:`ENCODERS`.
        vectors: kind of text and pooling to unit vectors, with the rows of pseudo-queries.
        texts: the documents.
        queries: kind to queries.
        qrels: row to grade for each real query.
    """

    collection: str
    encoder: str
    vectors: Mapping[str, Any]
    texts: list[str]
    queries: dict[str, list[str]]
    qrels: list[dict[int, int]]


def encoded_file(collection: str, encoder: str, work: Path, size: Size) -> Path:
    """Return the file of the vectors of a collection."""
    numbers = f"{size.documents}-{size.queries}-{size.samples}"
    precision = "-bf16" if size.bfloat16 and encoder == MINILM else ""
    return work / f"{collection}.{encoder}-{numbers}{precision}.npz"


def load_encoded(collection: str, folder: Path, encoder: str, work: Path, size: Size) -> Encoded:
    """Return an encoded collection, encoded the first time.

    Args:
        collection: the name of a BEIR folder.
        folder: the folder that it is in.
        encoder: one of :data:`ENCODERS`.
        work: the folder that keeps vectors.
        size: how much of the collection is encoded.
    """
    arrays = encoded_file(collection, encoder, work, size)
    texts = arrays.with_suffix(".json")
    if not arrays.is_file():
        _encode(folder / collection, encoder, arrays, size)
    content = json.loads(texts.read_text())
    with np.load(arrays) as file:
        vectors = {name: file[name] for name in file.files}
    qrels = [{int(row): grade for row, grade in grades.items()} for grades in content["qrels"]]
    return Encoded(collection, encoder, vectors, content["texts"], content["sets"], qrels)


def _encode(dataset: Path, name: str, arrays: Path, size: Size) -> None:
    """Draw a part of a collection, and encode it with all that changes are made of."""
    rng = np.random.default_rng(0)
    collection = load_collection(str(dataset))
    rows = _draw_documents(collection, size, rng)
    documents = list(collection.documents.take(rows))
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        write_arrow(
            folder / "corpus.arrow",
            ((row, d["_id"], d["title"], d["text"]) for row, d in enumerate(documents)),
        )
        corpus = open_corpus(folder / "corpus.arrow")
        (folder / "spans").mkdir()
        (folder / "terms").mkdir()
        spans, _ = hold_out_crops(corpus, folder / "spans", size.samples, 42)
        generated = lexical_queries(corpus, folder / "terms", size.samples, 42)
    texts = [TextFormat().document(document) for document in documents]
    row_of = {document["_id"]: row for row, document in enumerate(documents)}
    asked = []
    qrels = []
    for query, grades in collection.qrels.items():
        relevant = {row_of[d]: g for d, g in grades.items() if d in row_of and g > 0}
        if relevant:
            asked.append(collection.queries[query])
            qrels.append(relevant)
    if len(asked) > size.queries:
        kept = np.sort(rng.choice(len(asked), size.queries, replace=False))
        asked = [asked[row] for row in kept]
        qrels = [qrels[row] for row in kept]
    sets = {"real": asked, "crops": spans.texts, "gen": generated.texts}
    vectors = _encode_all(Encoder(name, size.bfloat16), texts, sets, rng)
    vectors |= {"crop_rows": spans.rows, "gen_rows": generated.rows}
    arrays.parent.mkdir(parents=True, exist_ok=True)
    content = {"texts": texts, "sets": sets, "qrels": qrels}
    write_text(arrays.with_suffix(".json"), json.dumps(content))
    with atomic_path(arrays) as path, path.open("wb") as file:
        np.savez(file, **vectors)


def _draw_documents(collection: Any, size: Size, rng: np.random.Generator) -> Rows:
    """Draw documents, up to three quarters of them relevant ones."""
    ids = collection.documents.ids()
    most = size.documents
    if len(ids) <= most:
        return np.arange(len(ids))
    relevant = {d for grades in collection.qrels.values() for d, g in grades.items() if g > 0}
    is_relevant = np.array([id in relevant for id in ids])
    kept = np.flatnonzero(is_relevant)
    others = np.flatnonzero(~is_relevant)
    if len(kept) > most * 3 // 4:
        kept = rng.choice(kept, most * 3 // 4, replace=False)
    further = rng.choice(others, min(len(others), most - len(kept)), replace=False)
    return np.sort(np.concatenate([kept, further]))


def _encode_all(
    encoder: Encoder,
    texts: Sequence[str],
    sets: Mapping[str, Sequence[str]],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Encode documents whole, cut, and before a change, and queries with and without a prefix."""
    vectors: dict[str, Any] = {}

    def add(kind: str, encoded: Mapping[str, Floats]) -> None:
        vectors.update({f"{kind}/{pooling}": values for pooling, values in encoded.items()})

    add("docs", encoder.encode(texts, _TOKENS, _LAYERS))
    add("docs32", encoder.encode(texts, _FEW_TOKENS))
    stale = np.sort(rng.choice(len(texts), max(1, round(_STALE * len(texts))), replace=False))
    halves = []
    for row in stale:
        words = texts[row].split()
        halves.append(" ".join(words[: max(1, len(words) // 2)]))
    add("stale", encoder.encode(halves, _TOKENS))
    vectors["stale_rows"] = stale
    for kind, queries in sets.items():
        add(kind, encoder.encode(queries, _TOKENS, _LAYERS))
        add(f"{kind}prefix", encoder.encode([PREFIX + query for query in queries], _TOKENS))
    return vectors


#: Kind of queries to the (Q, 10) rows of a search.
Lists = dict[str, Rows]


@dataclass(frozen=True)
class Change:
    """A changed system.

    Attributes:
        kind: "fault" for the seeded ones, "harmless", or "other".
        name: its name, with the seed after a colon.
        lists: what it finds.
    """

    kind: str
    name: str
    lists: Lists


def search(queries: Floats, documents: Floats, present: npt.NDArray[np.bool_] | None) -> Rows:
    """Return the (Q, 10) best rows, -1 for none."""
    scores = queries @ documents.T
    if present is not None:
        scores[:, ~present] = -np.inf
    rows = _top(scores)
    is_result = np.isfinite(np.take_along_axis(scores, rows, 1))
    return np.where(is_result, rows, -1)


class Changes:
    """All changes of one encoded collection."""

    def __init__(self, encoded: Encoded) -> None:
        self.encoded = encoded
        self.vectors = encoded.vectors
        self.documents: Floats = self.vectors["docs/mean6"]
        self.queries = {kind: self.vectors[f"{kind}/mean6"] for kind in QUERIES}
        self.rng = np.random.default_rng(0)
        self.unchanged = self.lists()

    def lists(
        self,
        documents: Floats | None = None,
        queries: Mapping[str, Floats] | None = None,
        present: npt.NDArray[np.bool_] | None = None,
    ) -> Lists:
        """Search; whatever is not named is unchanged."""
        documents = self.documents if documents is None else documents
        queries = self.queries if queries is None else queries
        return {kind: search(vectors, documents, present) for kind, vectors in queries.items()}

    def all(self) -> Iterator[Change]:
        """Yield seeded faults, harmless changes, and others."""
        for name, lists in self.faults():
            yield Change("fault", name, lists)
        yield from self.harmless()
        for name, lists in self.others():
            yield Change("other", name, lists)

    def encoded_by(self, suffix: str, pooling: str) -> dict[str, Floats]:
        """Return the queries in another encoding."""
        return {kind: self.vectors[f"{kind}{suffix}/{pooling}"] for kind in QUERIES}

    def faults(self) -> Iterator[tuple[str, Lists]]:
        """Yield the seven kinds of seeded faults; those of chance with several seeds."""
        vectors = self.vectors
        count = len(self.documents)
        yield "wrong prefix", self.lists(queries=self.encoded_by("prefix", "mean6"))
        yield "32 tokens", self.lists(vectors["docs32/mean6"])
        yield "wrong pooling", self.lists(vectors["docs/cls"], self.encoded_by("", "cls"))
        yield "4-bit vectors", self.lists(unit(quantised(self.documents, 4)))
        for seed in range(_SEEDS):
            moved = self.rng.choice(count, max(2, round(_SHUFFLED * count)), replace=False)
            places = np.arange(count)
            places[moved] = np.roll(moved, 1)
            yield f"shuffled vectors:{seed}", self.lists(self.documents[places])
            yield f"missing documents:{seed}", self.lists(present=self._without(_MISSING))
            before = self.documents.copy()
            before[vectors["stale_rows"]] = vectors["stale/mean6"]
            yield f"stale index:{seed}", self.lists(before, present=self._without(_STALE))

    def _without(self, share: float) -> npt.NDArray[np.bool_]:
        count = len(self.documents)
        present = np.ones(count, bool)
        present[self.rng.choice(count, max(1, round(share * count)), replace=False)] = False
        return present

    def harmless(self) -> Iterator[Change]:
        """Yield harmless changes; an approximate index is one where its recall is at parity."""
        documents = self.documents
        rounded = documents.astype(np.float16).astype(np.float32)
        noise = 1e-7 * self.rng.standard_normal(documents.shape).astype(np.float32)
        yield Change("harmless", "fp16", self.lists(rounded))
        yield Change("harmless", "bf16", self.lists(bfloat16(documents)))
        both = {kind: bfloat16(vectors) for kind, vectors in self.queries.items()}
        yield Change("harmless", "bf16 encoder", self.lists(bfloat16(documents), both))
        yield Change("harmless", "int8", self.lists(quantised(documents, 8)))
        yield Change("harmless", "batch size", self.lists(documents + noise))
        order = self.rng.permutation(len(documents))
        reordered = self.lists(documents[order])
        lists = {kind: order[rows] for kind, rows in reordered.items()}
        yield Change("harmless", "reordered documents", lists)
        for seed in range(_SEEDS):
            for name, lists in (("hnsw", self._hnsw()), ("ivf", self._ivf(seed))):
                shared = []
                for rows, exact in zip(lists["real"], self.unchanged["real"], strict=True):
                    shared.append(len(set(rows.tolist()) & set(exact.tolist())) / _DEPTH)
                kind = "harmless" if np.mean(shared) >= _PARITY else "other"
                yield Change(kind, f"{name}:{seed}", lists)

    def _hnsw(self) -> Lists:
        import faiss

        order = self.rng.permutation(len(self.documents))
        width = self.documents.shape[1]
        index = faiss.IndexHNSWFlat(width, 16, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 80
        index.hnsw.efSearch = 64
        index.add(self.documents[order])
        lists = {}
        for kind, vectors in self.queries.items():
            rows = index.search(vectors, _DEPTH)[1]
            lists[kind] = np.where(rows >= 0, order[rows], -1)
        return lists

    def _ivf(self, seed: int) -> Lists:
        import faiss

        width = self.documents.shape[1]
        cells = max(4, int(len(self.documents) ** 0.5))
        quantizer = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(quantizer, width, cells, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = seed
        index.cp.min_points_per_centroid = 1
        index.train(self.documents)
        index.add(self.documents)
        index.nprobe = max(3, cells * 2 // 3)
        return {kind: index.search(vectors, _DEPTH)[1] for kind, vectors in self.queries.items()}

    def others(self) -> Iterator[tuple[str, Lists]]:
        """Yield further changes, to which the rule is fitted as well."""
        vectors = self.vectors
        for layer in (5, 4):
            pooling = f"mean{layer}"
            yield f"layer {layer}", self.lists(vectors[f"docs/{pooling}"], self._of(pooling))
        yield "3-bit vectors", self.lists(unit(quantised(self.documents, 3)))
        yield "wrong pooling of queries", self.lists(queries=self._of("cls"))
        scale = np.sqrt(self.documents.shape[1])
        for size in (0.3, 0.6, 1.0):
            noise = self.rng.standard_normal(self.documents.shape).astype(np.float32) / scale
            yield f"noise {size}", self.lists(unit(self.documents + size * noise))
        for width in (192, 64):
            queries = {kind: unit(values[:, :width]) for kind, values in self.queries.items()}
            yield f"{width} dimensions", self.lists(unit(self.documents[:, :width]), queries)
        yield from self._with_bm25()

    def _of(self, pooling: str) -> dict[str, Floats]:
        return self.encoded_by("", pooling)

    def _with_bm25(self) -> Iterator[tuple[str, Lists]]:
        lexical = self._bm25_scores()
        yield "bm25", {kind: _top(scores) for kind, scores in lexical.items()}
        for weight in (0.5, 0.2):
            fused = {}
            for kind, scores in lexical.items():
                dense = self.queries[kind] @ self.documents.T
                fused[kind] = _top(_normalised(dense) + weight * _normalised(scores))
            yield f"hybrid@{weight}", fused

    def _bm25_scores(self) -> dict[str, npt.NDArray[np.floating]]:
        from sklearn.feature_extraction.text import CountVectorizer

        vectorizer = CountVectorizer(stop_words="english")
        counts = vectorizer.fit_transform(self.encoded.texts).astype(np.float32).tocoo()
        frequencies = np.bincount(counts.col, minlength=counts.shape[1])
        total = counts.shape[0]
        idf = np.log(1 + (total - frequencies + 0.5) / (frequencies + 0.5))
        lengths = np.asarray(counts.sum(1)).ravel()
        norms = 0.9 * (0.6 + 0.4 * lengths / lengths.mean())
        weights = counts.data / (counts.data + norms[counts.row]) * idf[counts.col]
        matrix = sp.csr_matrix((weights, (counts.row, counts.col)), counts.shape)
        return {
            kind: (vectorizer.transform(queries).astype(np.float32) @ matrix.T).toarray()
            for kind, queries in self.encoded.queries.items()
        }


def _top(scores: npt.NDArray[np.floating]) -> Rows:
    """Return the (Q, 10) rows of the highest scores."""
    rows = np.sort(np.argpartition(-scores, _DEPTH, axis=1)[:, :_DEPTH], axis=1)
    order = np.argsort(-np.take_along_axis(scores, rows, 1), axis=1, kind="stable")
    return np.take_along_axis(rows, order, 1)


def _normalised(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    deviations = np.maximum(scores.std(1, keepdims=True), 1e-9)
    normalised: npt.NDArray[np.floating] = (scores - scores.mean(1, keepdims=True)) / deviations
    return normalised


def quantised(vectors: Floats, bits: int) -> Floats:
    """Return vectors whose numbers have so many bits each."""
    levels = 2 ** (bits - 1) - 1
    step = np.abs(vectors).max(axis=1, keepdims=True) / levels
    return (np.round(vectors / step) * step).astype(np.float32)


def bfloat16(vectors: Floats) -> Floats:
    """Return vectors rounded to bfloat16, ties to even."""
    bits = vectors.astype(np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return rounded.astype(np.uint32).view(np.float32)
