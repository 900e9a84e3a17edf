"""Labelled collections, and samples of them, searched by methods that differ for known reasons.

All searches use vectors that are encoded once. A parent is encoded in one pass that gives the last
layer and two layers before it, and once more cut at 64 tokens. Every other method is derived from
these by numpy: noise, fewer dimensions, smoothing, weights of the fusion, truncated BM25, and
feedback. Samples are parts of a parent: short and long queries, topics of documents (k-means) with
the queries about them, or, with another seed, random samples. Term statistics are counted anew in
each part. ``verdict.py`` uses this module; it is no script.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import Stemmer
from bm25s.tokenization import Tokenizer
from sklearn.cluster import KMeans
from sklearn.utils.extmath import randomized_svd

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.label_free.evidence import Evidence
from beir_cocodr.evaluation.label_free.held_out_queries import hold_out_crops
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    PseudoQueries,
    lexical_queries,
)
from beir_cocodr.models.spec import ModelSpec, calibration_kind
from beir_cocodr.models.term_weights import (
    K1,
    B,
    inverse_document_frequencies,
    length_norms,
)

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

#: Judgements of queries, as rows of documents to grades.
Qrels = list[dict[int, int]]


@dataclass(frozen=True)
class Encoding:
    """One way to encode texts by MiniLM.

    Attributes:
        tokens: The most tokens of a text.
        layer: The layer whose states are averaged.
    """

    tokens: int
    layer: int


ENCODINGS = {
    "minilm": Encoding(256, 6),
    "tokens-64": Encoding(64, 6),
    "layers-5": Encoding(256, 5),
    "layers-4": Encoding(256, 4),
}
#: Kinds of texts; "changed" are the documents that lost a crop.
KINDS = ("docs", "changed", "queries", "crops", "generated")

#: Methods by their kind, which is before ":" in their names: the standard deviations of noise, and
#: encodings with weights of BM25.
NOISE = (0.4, 0.8)
HYBRIDS = (
    ("minilm", 1.0),
    ("minilm", 0.5),
    ("minilm", 0.2),
    ("tokens-64", 0.5),
    ("layers-4", 1.0),
    ("layers-4", 0.5),
    ("smoothed", 0.5),
)
FEEDBACKS = (("minilm", 1.0), ("minilm", 0.5), ("layers-4", 1.0))
COMPONENTS = (256, 64)

_DEPTH = 100
_FEWEST_QUERIES = 30
_FEWEST_DOCUMENTS = 150
_BATCH = 32
_DISCOUNTS = 1 / np.log2(2 + np.arange(10))


@dataclass(frozen=True)
class Parent:
    """A labelled collection, encoded.

    Attributes:
        name: Its name.
        corpus_sha256: The checksum of its documents.
        texts: Kind to texts.
        terms: Kind to term counts.
        rows: The documents of "crops" and of "generated" queries.
        verbatim: The mean share of a pseudo-query's words that are in its document.
        qrels: The judgements of each query.
        vectors: Encoding to kind to unit vectors.
    """

    name: str
    corpus_sha256: str
    texts: dict[str, list[str]]
    terms: dict[str, sp.csr_matrix]
    rows: dict[str, Rows]
    verbatim: dict[str, float | None]
    qrels: Qrels
    vectors: dict[str, dict[str, Floats]]


@dataclass(frozen=True)
class Part:
    """A collection taken out of a parent.

    Attributes:
        name: Its name.
        documents: (n,) rows of its documents in the parent.
        queries: (Q,) rows of its queries in the parent.
        crops: Rows of its crops.
        generated: Rows of its generated queries.
        qrels: The judgements of its queries, over its n documents.
    """

    name: str
    documents: Rows
    queries: Rows
    crops: Rows
    generated: Rows
    qrels: Qrels


def load_parent(
    name: str,
    dataset: str,
    folder: Path,
    samples: int,
    seed: int,
) -> Parent:
    """Read and encode a collection.

    Args:
        name: The parent's name.
        dataset: The collection's name or folder.
        folder: The folder of vectors, which are encoded unless it has them.
        samples: The number of crops and of generated queries.
        seed: Their seed.
    """
    collection = load_collection(dataset)
    row_of = {document: row for row, document in enumerate(collection.documents)}
    qrels = {}
    for query, grades in collection.qrels.items():
        relevant = {}
        for document, grade in grades.items():
            if grade > 0 and document in row_of:
                relevant[row_of[document]] = grade
        qrels[query] = relevant
    queries = [query for query in collection.queries if qrels.get(query)]
    with tempfile.TemporaryDirectory() as work:
        crop_folder = Path(work) / "crops"
        term_folder = Path(work) / "terms"
        crop_folder.mkdir()
        term_folder.mkdir()
        crops, rest = hold_out_crops(
            collection.documents,
            crop_folder,
            samples,
            seed,
        )
        generated = lexical_queries(
            collection.documents,
            term_folder,
            samples,
            seed,
        )
        document_text = TextFormat().document
        texts = {
            "docs": list(map(document_text, collection.documents.values())),
            "changed": list(map(document_text, rest.take(crops.rows))),
            "queries": [collection.queries[query] for query in queries],
            "crops": crops.texts,
            "generated": generated.texts,
        }
    return Parent(
        name=name,
        corpus_sha256=collection.documents.content_hash,
        texts=texts,
        terms=count_terms(texts),
        rows={
            "crops": crops.rows,
            "generated": generated.rows,
        },
        verbatim={
            "crops": crops.verbatim,
            "generated": generated.verbatim,
        },
        qrels=[qrels[query] for query in queries],
        vectors=load_vectors(name, texts, folder),
    )


def count_terms(texts: Mapping[str, Sequence[str]]) -> dict[str, sp.csr_matrix]:
    """Count terms as BM25 reads texts; queries have only terms of documents."""
    tokenizer = Tokenizer(
        stopwords="english",
        stemmer=Stemmer.Stemmer("english"),
    )
    ids = {}
    for kind in KINDS:
        is_document = kind in ("docs", "changed")
        ids[kind] = tokenizer.tokenize(
            texts[kind],
            update_vocab=is_document,
            show_progress=False,
        )
    vocabulary = tokenizer.get_vocab_dict()
    empty = vocabulary.get("", -1)
    counts = {}
    for kind, rows in ids.items():
        lines = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        terms = np.concatenate([np.asarray(row, np.int64) for row in rows])
        is_term = terms != empty
        ones = np.ones(int(is_term.sum()), np.float32)
        cells = (lines[is_term], terms[is_term])
        counts[kind] = sp.csr_matrix((ones, cells), (len(rows), len(vocabulary)))
    return counts


def load_vectors(
    name: str,
    texts: Mapping[str, Sequence[str]],
    folder: Path,
) -> dict[str, dict[str, Floats]]:
    """Return encoding to kind to vectors, from a folder if it has all."""
    stem = name.replace("/", "-")
    files = {}
    for encoding in ENCODINGS:
        for kind in KINDS:
            files[encoding, kind] = folder / f"{stem}.{encoding}.{kind}.npy"
    if not all(file.is_file() for file in files.values()):
        folder.mkdir(
            parents=True,
            exist_ok=True,
        )
        encoder = _Encoder()
        for kind in KINDS:
            for encoding, vectors in encoder.encode(texts[kind]).items():
                np.save(files[encoding, kind], vectors)
    loaded: dict[str, dict[str, Floats]] = {encoding: {} for encoding in ENCODINGS}
    for (encoding, kind), file in files.items():
        loaded[encoding][kind] = np.load(file).astype(np.float32)
    return loaded


class _Encoder:
    """MiniLM in bfloat16, which encodes texts in all :data:`ENCODINGS`."""

    def __init__(self) -> None:
        import torch

        from beir_cocodr.models.checkpoints.loading import load_encoder

        model: Any = load_encoder("minilm")
        self._tokenizer = model.tokenizer
        self._transformer = model[0].auto_model.eval().to(torch.bfloat16)

    def encode(self, texts: Sequence[str]) -> dict[str, Floats]:
        """Return encoding to (N, d) unit vectors."""
        vectors = {}
        for length in {encoding.tokens for encoding in ENCODINGS.values()}:
            layer_of = {
                name: encoding.layer
                for name, encoding in ENCODINGS.items()
                if encoding.tokens == length
            }
            tokens = self._tokenizer(
                list(texts),
                truncation=True,
                max_length=length,
                split_special_tokens=True,
            )
            layers = self._forward(tokens["input_ids"], set(layer_of.values()))
            for name, layer in layer_of.items():
                vectors[name] = layers[layer]
        return vectors

    def _forward(self, ids: list[list[int]], layers: set[int]) -> dict[int, Floats]:
        """Return layer to normalised means of its states."""
        import torch

        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        width = self._transformer.config.hidden_size
        vectors = {layer: np.zeros((len(ids), width), np.float32) for layer in layers}
        with torch.inference_mode():
            for start in range(0, len(order), _BATCH):
                rows = order[start : start + _BATCH]
                batch = self._tokenizer.pad(
                    {"input_ids": [ids[row] for row in rows]}, return_tensors="pt"
                )
                output = self._transformer(
                    **batch,
                    output_hidden_states=True,
                )
                mask = batch["attention_mask"][..., None]
                for layer in layers:
                    states = output.hidden_states[layer].float()
                    mean = (states * mask).sum(1) / mask.sum(1)
                    vectors[layer][rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return vectors


def resample(parent: Parent, seed: int) -> Iterator[Part]:
    """Take collections out of a parent.

    With seed 0 these are the parent itself, short and long queries, and two topics; with another
    seed they are samples and three topics. A query belongs to a part that has half of its relevant
    documents.
    """
    rng = np.random.default_rng(seed)
    everything = np.arange(len(parent.texts["docs"]))
    queries = np.arange(len(parent.qrels))
    clusters = KMeans(
        2 if seed == 0 else 3,
        n_init=3,
        random_state=seed,
    )
    topics = clusters.fit(parent.vectors["minilm"]["docs"]).labels_
    lengths = np.asarray(parent.terms["queries"].sum(axis=1)).ravel()
    short, long = np.array_split(np.argsort(lengths, kind="stable"), 2)
    if seed == 0:
        choices = {
            "all": (everything, queries),
            "short": (everything, np.sort(short)),
            "long": (everything, np.sort(long)),
        }
    else:
        size = int(0.7 * len(everything))
        sample = np.sort(rng.choice(everything, size, replace=False))
        count = max(_FEWEST_QUERIES, len(queries) // 2)
        half = np.sort(rng.permutation(queries)[:count])
        choices = {"sample": (sample, queries), "half": (everything, half)}
    for topic in range(topics.max() + 1):
        choices[f"topic {topic}"] = (np.flatnonzero(topics == topic), queries)
    for name, (documents, asked) in choices.items():
        part = _take_part(
            parent,
            name,
            documents,
            asked,
            rng if seed else None,
        )
        is_large = len(part.queries) >= _FEWEST_QUERIES and len(documents) >= _FEWEST_DOCUMENTS
        if is_large:
            yield part


def _take_part(
    parent: Parent,
    name: str,
    documents: Rows,
    queries: Rows,
    rng: np.random.Generator | None,
) -> Part:
    """Take some documents and the queries about them; with a generator, half the pseudo-queries."""
    row_of = {int(document): row for row, document in enumerate(documents)}
    kept = []
    qrels = []
    for query in queries.tolist():
        grades = parent.qrels[query]
        inside = {
            row_of[document]: grade for document, grade in grades.items() if document in row_of
        }
        if inside and 2 * len(inside) >= len(grades):
            kept.append(query)
            qrels.append(inside)
    pseudo = {}
    for kind, rows in parent.rows.items():
        inside_rows = [i for i, row in enumerate(rows.tolist()) if row in row_of]
        pseudo[kind] = np.array(inside_rows, np.int64)
    if rng is not None:
        for kind, rows in pseudo.items():
            count = max(60, len(rows) // 2)
            pseudo[kind] = np.sort(rng.permutation(rows)[:count])
    return Part(
        name,
        documents,
        np.array(kept),
        crops=pseudo["crops"],
        generated=pseudo["generated"],
        qrels=qrels,
    )


def bm25_weights(
    counts: sp.csr_matrix,
    k1: float = K1,
    b: float = B,
) -> sp.csr_matrix:
    """Return (n, T) BM25 weights of term counts, by Lucene's formula."""
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    idf = inverse_document_frequencies(frequency, len(lengths))
    cells = counts.tocoo()
    norms = length_norms(lengths[cells.row], lengths.mean(), k1, b)
    weights = idf[cells.col] * cells.data / (cells.data + norms)
    positions = (cells.row, cells.col)
    return sp.csr_matrix((weights.astype(np.float32), positions), counts.shape)


def kind_of(method: str) -> str | None:
    """Return the kind of a method in the calibration, by its name."""
    return calibration_kind(ModelSpec.parse(method))


def search(
    parent: Parent,
    part: Part,
    seed: int,
) -> tuple[Evidence, Evidence, dict[str, npt.NDArray[np.float64]]]:
    """Search a part by all methods.

    Returns:
        What is seen with the part's queries, what is seen without them, and method to nDCG@10 of
        every query by labels.
    """
    chosen = {
        "crops": part.crops,
        "generated": part.generated,
    }
    targets = {}
    for kind, rows in chosen.items():
        targets[kind] = np.searchsorted(part.documents, parent.rows[kind][rows])
    rng = np.random.default_rng(seed)
    lists = _Searches(
        parent,
        part,
        targets["crops"],
        rng,
    ).search_all()
    pseudo = {}
    scores = {}
    for kind, rows in chosen.items():
        texts = [parent.texts[kind][row] for row in rows]
        pseudo[kind] = PseudoQueries(
            texts,
            targets[kind],
            parent.verbatim[kind],
            {},
        )
        scores[kind] = {name: pseudo[kind].score(rows) for name, rows in lists[kind].items()}
    evidence = {}
    for kind, rows in (("queries", part.queries), ("generated", part.generated)):
        texts = [parent.texts[kind][row] for row in rows]
        evidence[kind] = Evidence(
            **scores,
            lists=lists[kind],
            rankings={},
            queries=dict(enumerate(texts)),
            real=kind == "queries",
            kinds={name: kind_of(name) for name in lists[kind]},
            crop_queries=pseudo["crops"],
            generated_queries=pseudo["generated"],
            retrieval={},
        )
    judged = {name: ndcg(rows, part.qrels) for name, rows in lists["queries"].items()}
    return evidence["queries"], evidence["generated"], judged


class _Searches:
    """All methods over a part.

    Crops are searched for in the corpus without them, and other queries in the corpus as it is.
    """

    def __init__(
        self,
        parent: Parent,
        part: Part,
        changed: Rows,
        rng: np.random.Generator,
    ) -> None:
        self.chosen = {
            "queries": part.queries,
            "crops": part.crops,
            "generated": part.generated,
        }
        self.changed = changed
        counts = parent.terms["docs"][part.documents]
        held_out = self._hold_out(counts, parent.terms["changed"][part.crops])
        self.weights = {}
        self.terms = {}
        for kind, rows in self.chosen.items():
            self.weights[kind] = bm25_weights(held_out if kind == "crops" else counts)
            self.terms[kind] = parent.terms[kind][rows]
        self.queries: dict[str, dict[str, Floats]] = {}
        self.documents: dict[str, dict[str, Floats]] = {}
        for name, vectors in parent.vectors.items():
            documents = vectors["docs"][part.documents]
            queries = {kind: vectors[kind][rows] for kind, rows in self.chosen.items()}
            self._add(
                name,
                queries,
                documents,
                vectors["changed"][part.crops],
            )
        for noise in NOISE:
            scale = noise / np.sqrt(documents.shape[1])
            self._derive(f"noise-{noise}", lambda x, scale=scale: _add_noise(x, scale, rng))
        self._derive("dimensions-96", lambda x: unit(x[:, :96]))
        self.queries["smoothed"] = self.queries["minilm"]
        self.documents["smoothed"] = {}
        for kind, vectors_of_kind in self.documents["minilm"].items():
            self.documents["smoothed"][kind] = smooth(vectors_of_kind)

    def _hold_out(self, counts: sp.csr_matrix, changed_counts: sp.csr_matrix) -> sp.csr_matrix:
        """Replace the counts of the documents that lost a crop."""
        documents = counts.shape[0]
        kept = np.ones(documents, np.float32)
        kept[self.changed] = 0
        count = len(self.changed)
        ones = np.ones(count, np.float32)
        cells = (self.changed, np.arange(count))
        moved = sp.csr_matrix((ones, cells), (documents, count)) @ changed_counts
        return (sp.diags(kept) @ counts + moved).tocsr()

    def _add(
        self,
        name: str,
        queries: dict[str, Floats],
        documents: Floats,
        changed: Floats,
    ) -> None:
        """Add an encoding; ``changed`` are the vectors of documents that lost a crop."""
        held_out = documents.copy()
        held_out[self.changed] = changed
        self.queries[name] = queries
        self.documents[name] = {
            kind: held_out if kind == "crops" else documents for kind in queries
        }

    def _derive(self, name: str, change: Callable[[Floats], Floats]) -> None:
        """Add an encoding that is derived from MiniLM's."""
        documents = self.documents["minilm"]
        queries = {kind: change(vectors) for kind, vectors in self.queries["minilm"].items()}
        as_it_is = change(documents["queries"])
        changed = change(documents["crops"][self.changed])
        self._add(
            name,
            queries,
            as_it_is,
            changed,
        )

    def search_all(self) -> dict[str, dict[str, Rows]]:
        """Return queries, crops and generated queries to method to (Q, 100) rows."""
        bases = self._components()
        return {kind: self._search(kind, bases) for kind in self.chosen}

    def _search(self, kind: str, bases: dict[int, Floats]) -> dict[str, Rows]:
        lexical = np.asarray((self.terms[kind] @ self.weights[kind].T).todense())
        bm25 = z_scores(lexical)
        lists = {"bm25": best(lexical, only_positive=True)}
        normal = {}
        for name, documents in self.documents.items():
            scores = self.queries[name][kind] @ documents[kind].T
            lists[name] = best(scores)
            normal[name] = z_scores(scores)
        for name, weight in HYBRIDS:
            lists[f"hybrid:{name}@{weight}"] = best(normal[name] + weight * bm25)
        for name, weight in FEEDBACKS:
            documents_of_kind = self.documents[name][kind]
            top = best(normal[name] + weight * bm25)[:, :3]
            centres = documents_of_kind[top].mean(axis=1)
            moved = unit(self.queries[name][kind] + 0.5 * centres) @ documents_of_kind.T
            lists[f"feedback:{name}@{weight}"] = best(moved)
            if (name, weight) == ("minilm", 0.5):
                lists["hybrid:feedback@0.5"] = best(z_scores(moved) + 0.5 * bm25)
        for size, basis in bases.items():
            truncated = (self.terms[kind] @ basis) @ (self.weights[kind] @ basis).T
            fused = normal["minilm"] + 0.5 * z_scores(truncated)
            lists[f"hybrid:components-{size}@0.5"] = best(fused)
        return lists

    def _components(self) -> dict[int, Floats]:
        """Return the main components of BM25's weights."""
        weights = self.weights["queries"]
        size = min(max(COMPONENTS), min(weights.shape) - 2)
        components = randomized_svd(
            weights,
            size,
            n_iter=2,
            random_state=0,
        )[2]
        basis = components.T.astype(np.float32)
        return {count: basis[:, :count] for count in COMPONENTS}


def _add_noise(
    vectors: Floats,
    scale: float,
    rng: np.random.Generator,
) -> Floats:
    noise = rng.standard_normal(vectors.shape).astype(np.float32)
    return unit(vectors + scale * noise)


def unit(vectors: Floats) -> Floats:
    """Return rows of length 1."""
    lengths = np.linalg.norm(
        vectors,
        axis=1,
        keepdims=True,
    )
    return vectors / np.maximum(lengths, 1e-9)  # type: ignore[no-any-return]


def z_scores(scores: Floats) -> Floats:
    """Scale (Q, n) scores to zero mean and unit deviation in each row; constants become 0."""
    centred = scores - scores.mean(
        axis=1,
        keepdims=True,
    )
    deviation = centred.std(
        axis=1,
        keepdims=True,
    )
    zeros = np.zeros_like(centred)
    return np.divide(
        centred,
        deviation,
        out=zeros,
        where=deviation > 0,
    )  # type: ignore[no-any-return]


def smooth(
    vectors: Floats,
    share: float = 0.3,
    neighbours: int = 5,
) -> Floats:
    """Move each vector towards the mean of its nearest neighbours."""
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    near = np.argpartition(-likeness, neighbours, axis=1)[:, :neighbours]
    means = vectors[near].mean(axis=1)
    return (1 - share) * vectors + share * means  # type: ignore[no-any-return]


def best(scores: Floats, *, only_positive: bool = False) -> Rows:
    """Return (Q, 100) rows, best first and ties by row; -1 where there are fewer.

    Args:
        scores: (Q, n) scores.
        only_positive: Leave out documents with a score of 0.
    """
    depth = min(_DEPTH, scores.shape[1])
    rows = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
    values = np.take_along_axis(scores, rows, axis=1)
    order = np.lexsort((rows, -values), axis=1)
    rows = np.take_along_axis(rows, order, axis=1)
    values = np.take_along_axis(values, order, axis=1)
    if only_positive:
        rows = np.where(values > 0, rows, -1)
    padded = np.full((len(scores), _DEPTH), -1, np.int64)
    padded[:, :depth] = rows
    return padded


def ndcg(rows: Rows, qrels: Qrels) -> npt.NDArray[np.float64]:
    """Return (Q,) nDCG@10 with linear gain."""
    scores = np.zeros(len(rows))
    for query, grades in enumerate(qrels):
        gains = np.array([grades.get(int(row), 0) for row in rows[query, :10]], float)
        ideal = np.sort(np.array(list(grades.values()), float))[::-1][:10]
        best_sum = ideal @ _DISCOUNTS[: len(ideal)]
        scores[query] = gains @ _DISCOUNTS / best_sum
    return scores
