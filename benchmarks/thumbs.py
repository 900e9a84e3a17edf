"""Claim: judged queries teach document vectors, and only where that helps.

The queries of collections with labels are drawn as judged, 10, 25 or 50 of them, several times.
They move the vectors of their relevant documents. How far is chosen by cross-validation, and the
vectors move only if held-out queries among the judged ones gain with some confidence. All queries
that are left measure nDCG@10 before and after, by the vectors alone and fused with BM25. The same
is measured for vectors that always move. No text is encoded: the cut collections and their vectors
are those that ``benchmarks/collect.py`` left in ``--work``.

The script prints its table, and writes ``benchmarks/results/thumbs.json``:

    OMP_NUM_THREADS=1 python benchmarks/thumbs.py --work DIR
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from collecting.encoders import DOCUMENT, QUERY, VectorFolder
from collecting.parents import Limits, Parent, folder_name, read_parents
from collecting.query_sets import QUERIES, query_sets
from harness.measure import timed
from harness.page import markdown_table
from harness.script import add_integers, add_work, option_parser, origin, write_results

from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.analyzers import ANALYZERS
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.evaluation.judged_vectors import (
    JudgedCandidates,
    Learning,
    LearnOptions,
    learn_bound,
    paired_interval,
)
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid.fusion import z_normalize
from beir_cocodr.retrieval.vectors.nudge import nudged, pulls_of

MODEL = "minilm"
#: Numbers of judged queries, and the fewest queries that are left to measure.
JUDGED = (10, 25, 50)
LEFT = 15
#: BM25's analyzer of text in scripts without spaces.
PAIRS = "english-pairs"
#: BM25's weight in the fusion.
WEIGHT = 0.5
#: Rules by which what was learned is kept: with what confidence held-out queries must gain.
ALWAYS = "always"
CONFIDENCES = {"50%": 0.5, "80%": 0.8, "95%": 0.95}
RULES = (ALWAYS, *CONFIDENCES)
#: The rule of the package.
RULE = "80%"
#: Families that are left out: labels made of the documents themselves, and regression checks.
NOT_MEASURED = ("apidocs", "xquad")


@dataclass(frozen=True)
class StoredEncoder:
    """An encoder whose vectors are all stored."""

    name: str
    similarity: str = "cosine"

    def encode(self, texts: Sequence[str], role: str) -> dict[str, Floats]:
        """Refuse: no text is encoded here.

        Raises:
            LookupError: Vectors are missing.
        """
        raise LookupError(f"{len(texts)} texts have no vectors; run benchmarks/collect.py first")


@dataclass(frozen=True)
class Labelled:
    """A labelled collection with its vectors.

    Attributes:
        candidates: Queries with a relevant document, their grades, and all documents.
        lexical: (Q, N) BM25's scores, z-normalised.
    """

    candidates: JudgedCandidates
    lexical: Floats

    def measure(self, left: Ints, vectors: Floats) -> dict[str, Doubles]:
        """Return the (n,) nDCG@10 of queries by vectors alone, and fused with BM25."""
        queries = self.candidates.queries[left]
        dense = queries @ vectors.T
        fused = z_normalize(dense) + WEIGHT * self.lexical[left]
        return {"dense": self._ndcg(left, dense), "hybrid": self._ndcg(left, fused)}

    def _ndcg(self, left: Ints, scores: Floats) -> Doubles:
        rows = zip(left.tolist(), scores, strict=True)
        return np.array([self.candidates.ndcg(number, of_query) for number, of_query in rows])


def read(parent: Parent, work: Any) -> Labelled:
    """Read a collection's queries, labels and vectors."""
    collection = parent.load()
    documents = collection.documents
    queries = query_sets(parent, Limits())[QUERIES]
    stored = VectorFolder(work / "vectors" / folder_name(parent.name) / MODEL, StoredEncoder(MODEL))
    texts = [TextFormat().document(document) for document in documents.values()]
    vectors = stored.vectors("documents", texts, DOCUMENT)[""]
    asked = stored.vectors(f"{QUERIES}-asked", queries.texts, QUERY)[""]
    grades = []
    kept = []
    for place, name in enumerate(queries.ids):
        of_query = collection.qrels.get(name, {})
        rows = documents.rows(list(of_query)).tolist()
        by_row = dict(zip(rows, of_query.values(), strict=True))
        if any(grade > 0 for grade in by_row.values()):
            grades.append(by_row)
            kept.append(place)
    candidates = JudgedCandidates(
        queries=asked[kept],
        grades=grades,
        vectors=vectors,
        ties=documents.tie_ranks(),
        unit=True,
    )
    return Labelled(
        candidates,
        _lexical(documents, [queries.texts[place] for place in kept], parent.facts.language),
    )


def _lexical(documents: Documents, texts: Sequence[str], analyzer: str) -> Floats:
    """Return BM25's (Q, N) z-normalised scores."""
    bm25 = BM25(documents, TextFormat(), analyzer if analyzer in ANALYZERS else PAIRS)
    return np.asarray(z_normalize(np.stack([bm25.scores(text) for text in texts])), np.float32)


def draw(labelled: Labelled, count: int, seed: int) -> dict[str, Any]:
    """Draw judged queries, learn from them, and measure on the others."""
    everything = labelled.candidates
    order = np.random.default_rng([seed, count]).permutation(len(everything.queries))
    judged = order[:count]
    left = order[count:]
    learner = JudgedCandidates(
        queries=everything.queries[judged],
        grades=[everything.grades[number] for number in judged],
        vectors=everything.vectors,
        ties=everything.ties,
        unit=True,
    )
    learning, timing = timed(lambda: learn_bound(learner, LearnOptions(seed=seed)))
    before = labelled.measure(left, everything.vectors)
    after = labelled.measure(left, _moved(learner, learning))
    rules = _rules(learning)
    row: dict[str, Any] = {
        "kept": rules,
        "bound": learning.bound,
        "expected": learning.gain,
        "moved": len(pulls_of(learner.queries, learner.grades).rows),
        "seconds": round(timing.processor, 2),
    }
    for use in before:
        difference = float((after[use] - before[use]).mean())
        row[use] = {"before": round(float(before[use].mean()), 4)}
        for rule, keeps in rules.items():
            row[use][rule] = round(difference if keeps else 0.0, 4)
    return row


def _rules(learning: Learning) -> dict[str, bool]:
    """Return whether each rule keeps what was learned."""
    kept = {ALWAYS: True}
    for rule, confidence in CONFIDENCES.items():
        kept[rule] = learning.confidence > confidence and learning.bound > 0
    return kept


def _moved(learner: JudgedCandidates, learning: Learning) -> Floats:
    pulls = pulls_of(learner.queries, learner.grades)
    vectors = learner.vectors.copy()
    before = vectors[pulls.rows]
    vectors[pulls.rows] = nudged(before, pulls.sums, learning.bound, unit=True)
    return vectors


def summarize(draws: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means over the draws of a collection, with the range of nine draws in ten."""
    summary: dict[str, Any] = {
        "kept": {
            rule: round(float(np.mean([row["kept"][rule] for row in draws])), 3) for rule in RULES
        },
        "bound": round(float(np.mean([row["bound"] for row in draws])), 3),
        "seconds": round(float(np.mean([row["seconds"] for row in draws])), 2),
    }
    for use in ("dense", "hybrid"):
        before = float(np.mean([row[use]["before"] for row in draws]))
        summary[use] = {"before": round(before, 4)}
        for rule in RULES:
            gains = np.array([row[use][rule] for row in draws])
            low, high = np.quantile(gains, [0.05, 0.95])
            summary[use][rule] = {
                "mean": round(float(gains.mean()), 4),
                "range": [round(float(low), 4), round(float(high), 4)],
            }
    return summary


def over_collections(collections: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean gains over the collections that have all numbers of judged queries."""
    complete = [one for one in collections.values() if len(one["judged"]) == len(JUDGED)]
    if len(complete) < 2:
        raise SystemExit(
            f"intervals need two collections with {max(JUDGED) + LEFT} queries; collect more"
        )
    means: dict[str, Any] = {"collections": len(complete)}
    for count in map(str, JUDGED):
        means[count] = {}
        for use in ("dense", "hybrid"):
            for rule in RULES:
                gains = np.array([one["judged"][count][use][rule]["mean"] for one in complete])
                low, high = paired_interval(gains)
                means[count][f"{use}, {rule}"] = {
                    "mean": round(float(gains.mean()), 4),
                    "interval": [round(low, 4), round(high, 4)],
                    "worst": round(float(gains.min()), 4),
                }
    return means


def describe(collections: Mapping[str, Any], means: Mapping[str, Any]) -> str:
    """Return the table that the script prints."""
    rows = []
    for name, one in collections.items():
        for count, row in one["judged"].items():
            dense = row["dense"]
            low, high = dense[RULE]["range"]
            rows.append(
                [
                    name,
                    count,
                    f"{dense['before']:.3f}",
                    f"{dense[RULE]['mean']:+.3f} ({low:+.3f} to {high:+.3f})",
                    f"{dense[ALWAYS]['mean']:+.3f}",
                    f"{row['hybrid'][RULE]['mean']:+.3f}",
                    f"{row['kept'][RULE]:.0%}",
                ]
            )
    for count in map(str, JUDGED):
        row = means[count]
        low, high = row[f"dense, {RULE}"]["interval"]
        rows.append(
            [
                f"mean of {means['collections']}",
                count,
                "",
                f"{row[f'dense, {RULE}']['mean']:+.3f} ({low:+.3f} to {high:+.3f})",
                f"{row[f'dense, {ALWAYS}']['mean']:+.3f}",
                f"{row[f'hybrid, {RULE}']['mean']:+.3f}",
                "",
            ]
        )
    head = ["collection", "judged", "before", "learned", "always moved", "in the fusion", "kept"]
    return markdown_table(head, rows)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = option_parser(__doc__, "thumbs")
    add_work(parser)
    integers = {
        "--draws": (10, "Draws of judged queries."),
        "--seed": (42, "The seed of the draws."),
    }
    add_integers(parser, integers)
    return parser.parse_args()


def main() -> None:
    """Measure all collections."""
    options = parse_options()
    started = time.process_time()
    collections: dict[str, Any] = {}
    for parent in read_parents(options.work):
        if parent.facts.family in NOT_MEASURED or parent.name.startswith(NOT_MEASURED):
            continue
        try:
            labelled = read(parent, options.work)
        except LookupError as error:
            print(f"{parent.name}: {error}")
            continue
        queries = len(labelled.candidates.queries)
        judged = {}
        for count in JUDGED:
            if queries - count < LEFT:
                continue
            draws = [draw(labelled, count, options.seed + one) for one in range(options.draws)]
            judged[str(count)] = summarize(draws) | {"queries_left": queries - count}
        if judged:
            collections[parent.name] = {
                "documents": len(labelled.candidates.vectors),
                "queries": queries,
                "judged": judged,
            }
            gains = {count: row["dense"][RULE]["mean"] for count, row in judged.items()}
            print(parent.name, gains, flush=True)
    means = over_collections(collections)
    results = origin() | {
        "settings": {"model": MODEL, "draws": options.draws, "seed": options.seed},
        "processor_seconds": round(time.process_time() - started, 1),
        "collections": collections,
        "means": means,
    }
    write_results(options.results, results)
    print(describe(collections, means))


if __name__ == "__main__":
    main()
