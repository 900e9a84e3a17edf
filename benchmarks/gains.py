"""Claim: fusion and feedback in one index lift a dense encoder on most corpora, without labels.

All methods search labelled collections over vectors that ``collect.py`` has stored in ``--work``,
where large collections are cut, and in ``--whole``, where they have all documents and queries.
Nothing is encoded. Labels judge and nothing else. The weight by estimate comes from searches of the
cut collections, by a calibration to which the family of the judged one contributed nothing. The
estimate from the corpus alone, by which ``hybrid@estimate`` chooses, is reported beside it, and
chooses the weight with the other encoders. Figures
of each collection are kept in ``--cells``, so that a rerun measures only what is missing. Processor
time is that of one thread, and excludes encoding the query.

The script writes ``benchmarks/results/gains.json`` and the tables of ``docs/adaptation.md``:

    OMP_NUM_THREADS=1 python benchmarks/gains.py --work DIR --cells DIR [--whole DIR]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from collecting.encoders import DOCUMENT, QUERY, VectorFolder
from collecting.parents import Limits, Parent, folder_name, read_parents
from collecting.query_sets import QUERIES, query_sets
from collecting.searched import load_searched
from collecting.systems import StoredEncoder, Vectors, dense_ranker, fitting_ranker
from fitting.judged_collections import CORPUS_ALONE, GIVEN_QUERIES, JudgedCollection
from fitting.labelled_pairs import LabelledPairs
from fitting.left_out import leave_families_out
from fitting.moment_fit import CAUTION
from gains_tables import (
    DENSE,
    FEEDBACK,
    GROUPS,
    HYBRID,
    LIGHT,
    MARKS,
    PAGE,
    RM3_LABEL,
    VECTOR,
    markdown,
    summarize,
)
from harness.measure import timed
from harness.script import (
    add_work,
    option_parser,
    origin,
    read_json,
    results_file,
    write_results,
)

from beir_cocodr.data.analyzers import Language
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.io import write_text
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.hybrid_encoder import HybridEncoder, HybridHead, terms_by_row
from beir_cocodr.models.spec import FuseOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import RM3, Hybrid
from beir_cocodr.retrieval.hybrid.hybrid_feedback import HybridFeedback
from beir_cocodr.retrieval.hybrid.hybrid_fit import (
    LEXICAL_NUMBERS,
    DenseBM25,
    Fit,
    count_terms,
)
from beir_cocodr.retrieval.ranking import Ranker
from beir_cocodr.retrieval.store.shard import bytes_per_vector

Floats = npt.NDArray[np.float32]

TOP_K = 100
#: Encoders whose weight is chosen by an estimate from queries and corpus, and all encoders.
ESTIMATED = ("minilm", "glove")
ENCODERS = (*ESTIMATED, "mpnet", "e5")
#: Encoders to which the packaged calibration is fitted.
PACKAGED = ("minilm", "mpnet")
#: Queries whose search is timed.
TIMED_QUERIES = 32

[_NDCG] = parse_measures("nDCG@10")


class KnownVectors:
    """An encoder that knows the vectors of a collection, and encodes nothing.

    Attributes:
        name: Its name in the study.
        similarity: "cosine", as all encoders here compare.
    """

    similarity = "cosine"

    def __init__(self, name: str) -> None:
        """Take the name."""
        self.name = name

    def encode(self, texts: Sequence[str], role: str) -> dict[str, Floats]:
        """Refuse to encode."""
        raise SystemExit(f"{self.name}: the vector of {texts[0]!r} is not stored; run collect.py")


@dataclass(frozen=True)
class Subject:
    """A collection and an encoder that has encoded it.

    Attributes:
        parent: The collection.
        encoder: The encoder's name.
        work: The folder of its vectors.
    """

    parent: Parent
    encoder: str
    work: Path

    @property
    def vectors(self) -> VectorFolder:
        """Return the stored vectors."""
        folder = self.work / "vectors" / folder_name(self.parent.name) / self.encoder
        return VectorFolder(folder, KnownVectors(self.encoder))


class Study:
    """All methods with one encoder on one collection."""

    def __init__(self, subject: Subject, modules: Any) -> None:
        """Read the vectors.

        Args:
            subject: The collection and the encoder.
            modules: A loaded encoder, whose modules a hybrid encoder needs to be one.
        """
        self.modules = modules
        parent = subject.parent
        self.collection = parent.load()
        self.documents = self.collection.documents
        queries = query_sets(parent, Limits())[QUERIES]
        self.queries = queries.queries
        vectors = subject.vectors
        texts = [modules.text_format.document(one) for one in self.documents.values()]
        stored = Vectors(
            similarity="cosine",
            documents=vectors.vectors("documents", texts, DOCUMENT)[""],
            queries=vectors.vectors(f"{QUERIES}-asked", queries.texts, QUERY)[""],
        )
        self.stored = stored
        self.analyzer = Language.parse(parent.facts.language).analyzer
        self.dense = dense_ranker(self.documents, stored, queries.texts)
        self.bm25 = BM25(self.documents, analyzer=self.analyzer)
        self.scores: dict[str, npt.NDArray[np.float64]] = {}
        self.milliseconds: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        """Measure all methods."""
        self.measure(DENSE, self.dense)
        self.measure("bm25", self.bm25)
        self.measure(HYBRID, Hybrid(self.dense, self.bm25, 0.5))
        self.measure(LIGHT.format(HYBRID), Hybrid(self.dense, self.bm25, 0.2))
        self.measure(RM3_LABEL, RM3(self.dense, self.bm25))
        started = time.process_time()
        head = self.fit()
        seconds = round(time.process_time() - started, 1)
        vector = self.hybrid_search(head)
        feedback = HybridFeedback(vector)
        self.measure(VECTOR, vector)
        self.measure(FEEDBACK, feedback)
        head.bm25_weight = 0.2
        vector = self.hybrid_search(head)
        self.measure(LIGHT.format(VECTOR), vector)
        self.measure(LIGHT.format(FEEDBACK), HybridFeedback(vector))
        width = self.stored.documents.shape[1]
        return {
            "documents": len(self.documents),
            "queries": len(self.queries),
            "seconds_to_fit": seconds,
            "bytes_per_document": {
                "dense": bytes_per_vector(width, "fp16"),
                "one vector": bytes_per_vector(vector.embeddings.dimensions, "fp16"),
            },
            "query_ms": self.milliseconds,
            "per_query": {label: values.round(4).tolist() for label, values in self.scores.items()},
        }

    def fit(self) -> HybridHead:
        """Fit the lexical part by truncated SVD, which ``fuse`` chose on every collection."""
        options = FuseOptions(analyzer=self.analyzer)
        encoder: Any = StoredEncoder("cosine", list(self.queries.values()), self.stored.queries)
        encoder.text_format = self.modules.text_format
        width = self.stored.documents.shape[1]
        encoder.get_embedding_dimension = lambda: width
        counts = count_terms(self.documents, encoder.text_format, options)
        fit = Fit(encoder, self.documents, counts, options, self.dense.embeddings)
        size = min(LEXICAL_NUMBERS, *fit.weights.shape)
        return fit.head(DenseBM25(size, 0))

    def hybrid_search(self, head: HybridHead) -> Any:
        """Return dense search with a hybrid encoder whose dense vectors are the stored ones."""
        model = HybridEncoder.of(self.modules, head)
        texts = [model.text_format.document(one) for one in self.documents.values()]
        lexical = head.document_part(texts)
        documents = torch.cat([torch.from_numpy(self.stored.documents), lexical], dim=1)
        known = dict(zip(self.queries.values(), self.stored.queries, strict=True))

        def encode_query_parts(texts: Sequence[str], batch_size: int = 64) -> torch.Tensor:
            dense = torch.from_numpy(np.stack([known[text] for text in texts]))
            features = {"sentence_embedding": dense, **terms_by_row(head.features(texts))}
            parts: torch.Tensor = head(features, "query", parts=True)["sentence_embedding"]
            return parts

        model.encode_query_parts = encode_query_parts  # type: ignore[method-assign]
        model.query_vectors = lambda texts, batch_size=64: model.join(  # type: ignore[method-assign]
            encode_query_parts(texts)
        )
        return fitting_ranker(self.documents, model, documents.numpy())

    def measure(self, label: str, ranker: Ranker) -> None:
        """Time the search of a few queries, search all, and judge."""
        ranker.prepare()
        ids = list(self.queries)[:TIMED_QUERIES]
        few = {query: self.queries[query] for query in ids}
        ranker.search(few, TOP_K)  # a warm-up
        _, timing = timed(lambda: ranker.search(few, TOP_K))
        self.milliseconds[label] = round(1000 * timing.processor / len(few), 2)
        results = ranker.search(self.queries, TOP_K).results(self.documents, False, 10)
        qrels = {query: self.collection.qrels[query] for query in self.queries}
        self.scores[label] = score_queries([_NDCG], qrels, results)[str(_NDCG)]


def measure_cell(subject: Subject, modules: Any, cells: Path) -> Any:
    """Return the figures of one encoder on one collection, from the folder if it has them."""
    parent = subject.parent
    path = cells / f"{subject.encoder}.{folder_name(parent.name)}.json"
    kept = read_json(path) if path.is_file() else {}
    if kept.get("source_sha256") != parent.source_sha256 or not kept:
        kept = Study(subject, modules).run()
        kept |= {"family": parent.facts.family, "total": parent.total}
        kept["source_sha256"] = parent.source_sha256
        cells.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(kept))
        means = {label: round(float(np.mean(v)), 3) for label, v in kept["per_query"].items()}
        print(subject.encoder, parent.name, means, flush=True)
    return kept


def estimated_gains(
    work: Path,
    cells: Path,
    regime: str,
    encoders: Sequence[str],
    fitted: Sequence[str],
) -> dict[str, dict[str, float]]:
    """Return encoder to collection to the estimated lead of the fusion over the encoder.

    The estimate needs no labels of the collection, and nothing of its family.

    Args:
        work: The folder of searched collections.
        cells: The folder in which estimates are kept, until other collections are searched.
        regime: What is given, such as "given queries".
        encoders: The encoders.
        fitted: The encoders to which the calibration is fitted.
    """
    path = cells / f"estimates-{regime.replace(' ', '-')}.json"
    collections = {parent.name: parent.source_sha256 for parent in read_parents(work)}
    if kept_estimates(path, collections) is None:
        searched = load_searched(work, (*encoders, "bm25"))
        judged = [JudgedCollection.of(one) for one in searched]
        pairs = [one.fitted(regime) for one in judged]
        seen = [_of_encoders(one, {"", *fitted}, regime) for one in judged]
        predictions = leave_families_out(seen, pairs, caution=CAUTION[regime])
        estimates: dict[str, dict[str, float]] = {encoder: {} for encoder in encoders}
        for one, predicted in zip(judged, predictions, strict=True):
            for models, difference in zip(
                predicted.pairs.models, predicted.differences, strict=True
            ):
                for encoder in encoders:
                    if models == (encoder, f"hybrid@0.5:{encoder}"):
                        estimates[encoder][one.name] = round(float(difference.mean), 4)
        kept = {"collections": collections, "estimates": estimates}
        cells.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(kept))
    return kept_estimates(path, collections) or {}


def kept_estimates(
    path: Path,
    collections: Mapping[str, str | None],
) -> dict[str, dict[str, float]] | None:
    """Return the estimates in a file, None if they do not come from these collections.

    Args:
        path: The file.
        collections: Name of a collection to the checksum of its source.
    """
    if not path.is_file():
        return None
    kept = read_json(path)
    if kept.get("collections") != collections:
        return None
    estimates: dict[str, dict[str, float]] = kept["estimates"]
    return estimates


def _of_encoders(
    judged: JudgedCollection,
    encoders: set[str],
    regime: str,
) -> LabelledPairs:
    """Return the pairs of the fit whose models use no other encoders."""
    pairs = judged.fitted(regime)
    systems = judged.searched.systems
    is_chosen = [{systems[a].encoder, systems[b].encoder} <= encoders for a, b in pairs.models]
    return pairs.take(np.array(is_chosen, bool))


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "gains")
    add_work(parser)
    parser.add_argument(
        "--cells",
        type=Path,
        required=True,
        metavar="DIR",
        help="Keep the figures of each collection in this folder.",
    )
    parser.add_argument(
        "--whole",
        type=Path,
        metavar="DIR",
        help="Measure MiniLM on the whole collections in this folder, which is laid out as --work "
        "is, and not on their parts.",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    modules = load_encoder("minilm")
    cells: dict[str, dict[str, Any]] = {encoder: {} for encoder in ENCODERS}
    measured = {name for names in GROUPS.values() for name in names}
    for parent in read_parents(options.work):
        for encoder in ENCODERS if parent.name in measured else ():
            subject = Subject(parent, encoder, options.work)
            if subject.vectors.folder.is_dir():
                cells[encoder][parent.name] = measure_cell(subject, modules, options.cells)
    for parent in read_parents(options.whole) if options.whole else ():
        subject = Subject(parent, "minilm", options.whole)
        cells["minilm"][parent.name] = measure_cell(subject, modules, options.cells / "whole")
    if not cells["minilm"]:
        raise SystemExit(f"{options.work} has no collection of the study; run collect.py")
    given = (options.work, options.cells, GIVEN_QUERIES)
    estimates = estimated_gains(*given, encoders=ESTIMATED, fitted=ESTIMATED)
    alone = (options.work, options.cells, CORPUS_ALONE)
    by_corpus = estimated_gains(*alone, encoders=ENCODERS, fitted=PACKAGED)
    for encoder in by_corpus.keys() - estimates.keys():
        of_encoder = by_corpus[encoder]
        estimates[encoder] = {name: of_encoder[name] for name in cells[encoder]}
    results = origin(threads=torch.get_num_threads()) | summarize(cells, estimates)
    results[CORPUS_ALONE] = by_corpus
    write_results(options.results, results)
    for name, marks in MARKS.items():
        if options.results == results_file("gains"):
            marks.write(PAGE, markdown(name, results))
        print(markdown(name, results))


if __name__ == "__main__":
    main()
