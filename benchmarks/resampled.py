"""Labelled collections, and others resampled from them, searched by methods that differ for known
reasons, from vectors that are encoded once.

A parent is encoded in one pass that gives the last layer and two before it, and once more cut at 64
tokens; every other method (noise, fewer dimensions, smoothing, weights of the fusion, truncated
BM25, feedback) is derived from these by numpy. Resampled collections are parts of a parent: short
and long queries, topics of documents (k-means) with the queries about them, or, with another seed,
random samples. Term statistics are counted anew in each part.
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
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    PseudoQueries,
    hold_out_crops,
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

#: Encodings of a parent: tokens and layer.
ENCODINGS = {"minilm": (256, 6), "tokens-64": (64, 6), "layers-5": (256, 5), "layers-4": (256, 4)}
KINDS = ("docs", "changed", "queries", "crops", "generated")

_DEPTH, _FEWEST_QUERIES, _FEWEST_DOCUMENTS = 100, 30, 150
_DISCOUNTS = 1 / np.log2(2 + np.arange(10))


@dataclass(frozen=True)
class Parent:
    """A labelled collection, encoded.

    Attributes:
        texts, terms: kind to texts and to term counts; "changed" are the documents that lost a
            crop.
        rows: (S,) documents of "crops" and of "generated".
        verbatim: mean share of a pseudo-query's words in its document.
        qrels: of each query, row to grade.
        vectors: encoding to kind to unit vectors.
    """

    name: str
    corpus_sha256: str
    texts: dict[str, list[str]]
    terms: dict[str, sp.csr_matrix]
    rows: dict[str, Rows]
    verbatim: dict[str, float | None]
    qrels: list[dict[int, int]]
    vectors: dict[str, dict[str, Floats]]


def load_parent(name: str, collection: str, folder: Path, samples: int, seed: int) -> Parent:
    """Read and encode a collection, unless its vectors are in ``folder`` already."""
    found = load_collection(collection)
    row = {document: i for i, document in enumerate(found.documents)}
    judged = {
        q: {row[d]: g for d, g in grades.items() if g > 0 and d in row}
        for q, grades in found.qrels.items()
    }
    queries = [q for q in found.queries if judged.get(q)]
    with tempfile.TemporaryDirectory() as place:
        for part in ("crops", "terms"):
            (Path(place) / part).mkdir()
        crops, rest = hold_out_crops(found.documents, Path(place) / "crops", samples, seed)
        generated = lexical_queries(found.documents, Path(place) / "terms", samples, seed)
        document = TextFormat().document
        texts = {
            "docs": list(map(document, found.documents.values())),
            "changed": list(map(document, rest.take(crops.rows))),
            "queries": [found.queries[q] for q in queries],
            "crops": crops.texts,
            "generated": generated.texts,
        }
    return Parent(
        name,
        found.documents.content_hash,
        texts,
        _terms(texts),
        {"crops": crops.rows, "generated": generated.rows},
        {"crops": crops.verbatim, "generated": generated.verbatim},
        [judged[q] for q in queries],
        _vectors(name, texts, folder),
    )


def _terms(texts: Mapping[str, Sequence[str]]) -> dict[str, sp.csr_matrix]:
    """Term counts as BM25 reads texts; queries have only terms of documents."""
    tokenizer = Tokenizer(stopwords="english", stemmer=Stemmer.Stemmer("english"))
    ids = {
        kind: tokenizer.tokenize(
            texts[kind], update_vocab=kind in ("docs", "changed"), show_progress=False
        )
        for kind in KINDS
    }
    vocabulary = tokenizer.get_vocab_dict()
    found = {}
    for kind, rows in ids.items():
        lines = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        terms = np.concatenate([np.asarray(row, np.int64) for row in rows])
        kept = terms != vocabulary.get("", -1)
        ones = np.ones(int(kept.sum()), np.float32)
        found[kind] = sp.csr_matrix(
            (ones, (lines[kept], terms[kept])), (len(rows), len(vocabulary))
        )
    return found


def _vectors(
    name: str, texts: Mapping[str, Sequence[str]], folder: Path
) -> dict[str, dict[str, Floats]]:
    files = {
        (encoding, kind): folder / f"{name.replace('/', '-')}.{encoding}.{kind}.npy"
        for encoding in ENCODINGS
        for kind in KINDS
    }
    if not all(file.is_file() for file in files.values()):
        folder.mkdir(parents=True, exist_ok=True)
        encode = _encoder()
        for kind in KINDS:
            for encoding, vectors in encode(texts[kind]).items():
                np.save(files[encoding, kind], vectors)
    found: dict[str, dict[str, Floats]] = {encoding: {} for encoding in ENCODINGS}
    for (encoding, kind), file in files.items():
        found[encoding][kind] = np.load(file).astype(np.float32)
    return found


def _encoder() -> Callable[[Sequence[str]], dict[str, Floats]]:
    """MiniLM in bfloat16: all :data:`ENCODINGS` of texts."""
    import torch

    from beir_cocodr.models.loading import load_encoder

    model: Any = load_encoder("minilm")
    inner = model[0].auto_model.eval().to(torch.bfloat16)

    @torch.inference_mode()
    def forward(ids: list[list[int]], layers: set[int]) -> dict[int, Floats]:
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        found = {
            layer: np.zeros((len(ids), inner.config.hidden_size), np.float32) for layer in layers
        }
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            batch = model.tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
            states = inner(**batch, output_hidden_states=True).hidden_states
            mask = batch["attention_mask"][..., None]
            for layer in layers:
                mean = (states[layer].float() * mask).sum(1) / mask.sum(1)
                found[layer][rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return found

    def encode(texts: Sequence[str]) -> dict[str, Floats]:
        found = {}
        for length in {length for length, _ in ENCODINGS.values()}:
            wanted = {
                name: layer for name, (tokens, layer) in ENCODINGS.items() if tokens == length
            }
            tokens = model.tokenizer(
                list(texts), truncation=True, max_length=length, split_special_tokens=True
            )
            made = forward(tokens["input_ids"], set(wanted.values()))
            found |= {name: made[layer] for name, layer in wanted.items()}
        return found

    return encode


@dataclass(frozen=True)
class Part:
    """A collection taken out of a parent: (n,) documents, (Q,) queries, and the rows of
    pseudo-queries, with qrels over the n documents.
    """

    name: str
    documents: Rows
    queries: Rows
    crops: Rows
    generated: Rows
    qrels: list[dict[int, int]]


def resample(parent: Parent, seed: int) -> Iterator[Part]:
    """The parent itself, short and long queries and two topics with seed 0; samples and three
    topics with another.

    A query belongs to a part that has half of its relevant documents.
    """
    rng = np.random.default_rng(seed)
    everything, queries = np.arange(len(parent.texts["docs"])), np.arange(len(parent.qrels))
    topics = (
        KMeans(2 if seed == 0 else 3, n_init=3, random_state=seed)
        .fit(parent.vectors["minilm"]["docs"])
        .labels_
    )
    lengths = np.asarray(parent.terms["queries"].sum(axis=1)).ravel()
    short, long = np.array_split(np.argsort(lengths, kind="stable"), 2)
    parts = {
        "all": (everything, queries),
        "short": (everything, np.sort(short)),
        "long": (everything, np.sort(long)),
    }
    if seed:
        sample = np.sort(rng.choice(everything, int(0.7 * len(everything)), replace=False))
        half = np.sort(rng.permutation(queries)[: max(_FEWEST_QUERIES, len(queries) // 2)])
        parts = {"sample": (sample, queries), "half": (everything, half)}
    parts |= {f"topic {k}": (np.flatnonzero(topics == k), queries) for k in range(topics.max() + 1)}
    for name, (documents, asked) in parts.items():
        place = {int(document): i for i, document in enumerate(documents)}
        found = {
            int(q): {place[d]: grade for d, grade in parent.qrels[q].items() if d in place}
            for q in asked
        }
        kept = [
            q for q, grades in found.items() if grades and 2 * len(grades) >= len(parent.qrels[q])
        ]
        pseudo = {
            kind: np.array([i for i, row in enumerate(rows.tolist()) if row in place], np.int64)
            for kind, rows in parent.rows.items()
        }
        if seed:
            pseudo = {
                kind: np.sort(rng.permutation(rows)[: max(60, len(rows) // 2)])
                for kind, rows in pseudo.items()
            }
        if len(kept) >= _FEWEST_QUERIES and len(documents) >= _FEWEST_DOCUMENTS:
            yield Part(name, documents, np.array(kept), **pseudo, qrels=[found[q] for q in kept])


def bm25_weights(counts: sp.csr_matrix, k1: float = K1, b: float = B) -> sp.csr_matrix:
    """(n, T) BM25 weights of term counts, as Lucene has them."""
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    idf = inverse_document_frequencies(frequency, len(lengths))
    cells = counts.tocoo()
    norms = length_norms(lengths[cells.row], lengths.mean(), k1, b)
    return sp.csr_matrix(
        (
            (idf[cells.col] * cells.data / (cells.data + norms)).astype(np.float32),
            (cells.row, cells.col),
        ),
        counts.shape,
    )


def kind_of(name: str) -> str | None:
    """Return the kind in the calibration of a method, by its name."""
    return calibration_kind(ModelSpec.parse(name))


#: Names of the methods: what is before ":" is the kind of model that the rule sees.
NOISE = (0.4, 0.8)
HYBRIDS = (
    *(("minilm", w) for w in (1.0, 0.5, 0.2)),
    *(("tokens-64", 0.5), ("layers-4", 1.0), ("layers-4", 0.5), ("smoothed", 0.5)),
)
FEEDBACKS = (("minilm", 1.0), ("minilm", 0.5), ("layers-4", 1.0))
COMPONENTS = (256, 64)


def search(
    parent: Parent, part: Part, seed: int
) -> tuple[Evidence, Evidence, dict[str, npt.NDArray[np.float64]]]:
    """What is seen of all methods with the part's queries and without, and their nDCG@10 by
    labels.
    """
    crops, generated = parent.rows["crops"][part.crops], parent.rows["generated"][part.generated]
    targets = {
        "crops": np.searchsorted(part.documents, crops),
        "generated": np.searchsorted(part.documents, generated),
    }
    found = _Searches(parent, part, targets["crops"], np.random.default_rng(seed)).all()
    pseudo = {
        kind: PseudoQueries(
            [parent.texts[kind][i] for i in getattr(part, kind)],
            targets[kind],
            parent.verbatim[kind],
            {},
        )
        for kind in targets
    }
    scores = {
        kind: {m: pseudo[kind].score(rows) for m, rows in found[kind].items()} for kind in pseudo
    }
    evidence = [
        Evidence(
            **scores,
            lists=found[kind_of_queries],
            rankings={},
            queries=dict(
                enumerate(parent.texts[kind_of_queries][i] for i in getattr(part, kind_of_queries))
            ),
            real=kind_of_queries == "queries",
            crop_queries=pseudo["crops"],
            generated_queries=pseudo["generated"],
            retrieval={},
            kinds={name: kind_of(name) for name in found[kind_of_queries]},
        )
        for kind_of_queries in ("queries", "generated")
    ]
    return (
        evidence[0],
        evidence[1],
        {m: ndcg(rows, part.qrels) for m, rows in found["queries"].items()},
    )


class _Searches:
    """All methods over a part: for crops in the corpus without them, else in the corpus as it
    is.
    """

    def __init__(self, parent: Parent, part: Part, changed: Rows, rng: np.random.Generator) -> None:
        self.chosen = {"queries": part.queries, "crops": part.crops, "generated": part.generated}
        self.changed = changed
        counts = parent.terms["docs"][part.documents]
        kept = np.ones(len(part.documents), np.float32)
        kept[changed] = 0
        place = (np.ones(len(changed), np.float32), (changed, np.arange(len(changed))))
        moved = (
            sp.csr_matrix(place, (len(kept), len(changed))) @ parent.terms["changed"][part.crops]
        )
        held_out = (sp.diags(kept) @ counts + moved).tocsr()
        self.weights = {
            kind: bm25_weights(held_out if kind == "crops" else counts) for kind in self.chosen
        }
        self.terms = {kind: parent.terms[kind][rows] for kind, rows in self.chosen.items()}
        self.queries, self.documents = {}, {}
        for name, vectors in parent.vectors.items():
            docs = vectors["docs"][part.documents]
            queries = {kind: vectors[kind][rows] for kind, rows in self.chosen.items()}
            self._add(name, queries, docs, vectors["changed"][part.crops])
        for noise in NOISE:
            scale = noise / np.sqrt(docs.shape[1])
            self._derive(
                f"noise-{noise}",
                lambda x, s=scale: unit(x + s * rng.standard_normal(x.shape).astype(np.float32)),
            )
        self._derive("dimensions-96", lambda x: unit(x[:, :96]))
        self.queries["smoothed"] = self.queries["minilm"]
        self.documents["smoothed"] = {
            kind: smooth(docs) for kind, docs in self.documents["minilm"].items()
        }

    def _add(self, name: str, queries: dict[str, Floats], docs: Floats, changed: Floats) -> None:
        held_out = docs.copy()
        held_out[self.changed] = changed
        self.queries[name] = queries
        self.documents[name] = {kind: held_out if kind == "crops" else docs for kind in queries}

    def _derive(self, name: str, change: Callable[[Floats], Floats]) -> None:
        docs = self.documents["minilm"]
        queries = {kind: change(vectors) for kind, vectors in self.queries["minilm"].items()}
        self._add(name, queries, change(docs["queries"]), change(docs["crops"][self.changed]))

    def all(self) -> dict[str, dict[str, Rows]]:
        """Queries, crops and generated queries to method to (Q, 100) rows."""
        return {kind: self._lists(kind) for kind in self.chosen}

    def _lists(self, kind: str) -> dict[str, Rows]:
        lexical = np.asarray((self.terms[kind] @ self.weights[kind].T).todense())
        bm25 = z_scores(lexical)
        dense = {
            name: self.queries[name][kind] @ docs[kind].T for name, docs in self.documents.items()
        }
        found = {"bm25": best(lexical, positive=True)} | {
            name: best(scores) for name, scores in dense.items()
        }
        normal = {name: z_scores(scores) for name, scores in dense.items()}
        for name, weight in HYBRIDS:
            found[f"hybrid:{name}@{weight}"] = best(normal[name] + weight * bm25)
        for name, weight in FEEDBACKS:
            docs = self.documents[name][kind]
            top = best(normal[name] + weight * bm25)[:, :3]
            moved = unit(self.queries[name][kind] + 0.5 * docs[top].mean(axis=1)) @ docs.T
            found[f"feedback:{name}@{weight}"] = best(moved)
            if (name, weight) == ("minilm", 0.5):
                found["hybrid:feedback@0.5"] = best(z_scores(moved) + 0.5 * bm25)
        for size, basis in self._components().items():
            truncated = (self.terms[kind] @ basis) @ (self.weights[kind] @ basis).T
            found[f"hybrid:components-{size}@0.5"] = best(
                normal["minilm"] + 0.5 * z_scores(truncated)
            )
        return found

    def _components(self) -> dict[int, Floats]:
        if not hasattr(self, "_bases"):
            weights = self.weights["queries"]
            size = min(max(COMPONENTS), min(weights.shape) - 2)
            basis = randomized_svd(weights, size, n_iter=2, random_state=0)[2].T.astype(np.float32)
            self._bases = {count: basis[:, :count] for count in COMPONENTS}
        return self._bases


def unit(vectors: Floats) -> Floats:
    """Rows of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)  # type: ignore[no-any-return]


def z_scores(scores: Floats) -> Floats:
    """(Q, n) scores to zero mean and unit deviation in each row; constants to 0."""
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)  # type: ignore[no-any-return]


def smooth(vectors: Floats, share: float = 0.3, neighbours: int = 5) -> Floats:
    """Vectors moved towards the mean of their neighbours, by ALGORITHMS' section on the hybrid
    encoder.
    """
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    near = np.argpartition(-likeness, neighbours, axis=1)[:, :neighbours]
    return (1 - share) * vectors + share * vectors[near].mean(axis=1)  # type: ignore[no-any-return]


def best(scores: Floats, positive: bool = False) -> Rows:
    """(Q, 100) rows, best first, ties by row; -1 for none, and with ``positive`` for scores of
    0.
    """
    depth = min(_DEPTH, scores.shape[1])
    rows = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
    values = np.take_along_axis(scores, rows, axis=1)
    order = np.lexsort((rows, -values), axis=1)
    rows, values = (
        np.take_along_axis(rows, order, axis=1),
        np.take_along_axis(values, order, axis=1),
    )
    found = np.full((len(scores), _DEPTH), -1, np.int64)
    found[:, :depth] = np.where(values > 0, rows, -1) if positive else rows
    return found


def ndcg(rows: Rows, qrels: Sequence[Mapping[int, int]]) -> npt.NDArray[np.float64]:
    """(Q,) nDCG@10 with linear gain."""
    found = np.zeros(len(rows))
    for i, grades in enumerate(qrels):
        gains = np.array([grades.get(int(row), 0) for row in rows[i, :10]], float)
        ideal = np.sort(np.array(list(grades.values()), float))[::-1][:10]
        found[i] = gains @ _DISCOUNTS / (ideal @ _DISCOUNTS[: len(ideal)])
    return found
