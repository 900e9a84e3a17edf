"""What to do after a comparison: which model of an adaptation to use and why, and what to label
next.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import replace

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.judgements import AnnotationCandidate
from beir_cocodr.evaluation.results import EvaluationRecord, PairedTest, Recommendation
from beir_cocodr.io import text_sha256
from beir_cocodr.retrieval.ranking import Results

#: How the ablation's encoders are called in tables.
BASE = "base"
MODES = ("", ", feedback", ", fused", ", RM3")

#: The label of the stage that makes a hybrid encoder, in which BM25 is already.
FUSE = "fuse"


def modes_of(label: str) -> tuple[str, ...]:
    """How an encoder is used: a hybrid encoder is not fused again."""
    return MODES[:2] if label.endswith(f" + {FUSE}") else MODES


TRAINING, USE, COCO, STAGE = (
    "trained against the base, used in the same way",
    "everything against the base alone",
    "COCO before a stage against that stage alone",
    "one stage more against the same without it",
)

_COCO = " + COCO"
_COCO_VERDICTS = {
    "better": "COCO helped",
    "worse": "COCO hurt",
    "cannot tell": "COCO did not help measurably",
}


def ablation_families(encoders: list[str]) -> dict[str, list[tuple[str, str]]]:
    """The ablation's questions, each a family of (a, b) comparisons, by the encoders' labels: the
    base first, the others "base + A + B", for stages A and then B.
    """
    trained = encoders[1:]
    everything = ["bm25", *(label + mode for label in encoders for mode in modes_of(label))]
    families = {
        TRAINING: [(BASE + mode, label + mode) for label in trained for mode in modes_of(label)],
        USE: [(BASE, other) for other in everything if other != BASE],
    }
    without_coco = {
        label: label.replace(_COCO, "", 1) for label in trained if _COCO + " + " in label
    }
    without_last = {label: label.rsplit(" + ", 1)[0] for label in trained}
    for family, counterparts in ((COCO, without_coco), (STAGE, without_last)):
        pairs = [(other, label) for label, other in counterparts.items() if other in trained]
        if pairs:
            families[family] = [(a + mode, b + mode) for a, b in pairs for mode in modes_of(b)]
    return families


def recommend(results: EvaluationRecord) -> Recommendation:
    """Name one model and the reasons, from the results of an adaptation.

    Training has to pay, and so has everything else. A trained encoder may be chosen in a mode
    (alone, with feedback, fused) only if it is significantly better there than the base in the same
    mode: two-tailed paired t-test, p < 0.05 after Holm's correction over the comparisons that
    answer the same question. Of these and the untrained ones the best in the first measure is
    taken, if it is significantly better than the base alone, else the base.

    The results are those of :func:`~beir_cocodr.evaluation.evaluate.evaluate` over
    :func:`ablation_families`.
    """
    measure = results.measures[0]
    value = {label: found.measures[measure] for label, found in results.models.items()}
    tests = {(t.family, t.a, t.b): t for t in results.comparisons if t.measure == measure}
    encoders = [label for label in value if label.startswith(f"{BASE} + ") and ", " not in label]
    uses = [(BASE + mode, label + mode) for label in encoders for mode in modes_of(label)]
    allowed = ["bm25", *(BASE + mode for mode in MODES if mode)]
    allowed += [used for base, used in uses if tests[TRAINING, base, used].verdict == "better"]
    winners = [label for label in allowed if tests[USE, BASE, label].verdict == "better"]
    chosen = max(winners, key=value.__getitem__, default=BASE)
    verdicts = {label: tests[TRAINING, BASE, label].verdict for label in encoders}
    reasons = [
        f"{label} against {BASE}: {_describe_test(tests[TRAINING, BASE, label])}."
        for label in encoders
    ]
    for (family, without, label), test in tests.items():
        if ", " in label:
            continue
        if family == COCO:
            stages = without.removeprefix(f"{BASE} + ")
            meaning = _COCO_VERDICTS[test.verdict]
            reasons.append(
                f"COCO before {stages}, against {stages} alone: {_describe_test(test)}; {meaning}."
            )
        elif family == STAGE:
            reasons.append(f"{label} against {without}: {_describe_test(test)}.")
    reasons.append(_choice(chosen, value, measure))
    reasons.append(
        "The choice was made on these labels, so the chosen model's own figure is optimistic."
    )
    return Recommendation(chosen, measure, overall(list(verdicts.values())), verdicts, reasons)


def overall(verdicts: list[str]) -> str:
    """ "better" if some are, "worse" or "no difference" if all are, else "cannot tell"."""
    if "better" in verdicts:
        return "better"
    return verdicts[0] if len(set(verdicts)) == 1 else "cannot tell"


def _describe_test(test: PairedTest) -> str:
    p = "one query, no test" if test.t_p_holm is None else f"p = {test.t_p_holm:.3g} after Holm"
    span = "" if test.interval is None else " [{:+.4f}, {:+.4f}]".format(*test.interval)
    return f"{test.difference:+.4f}{span} {test.measure}, {p}, {test.verdict}"


def _choice(chosen: str, value: dict[str, float], measure: str) -> str:
    if chosen == BASE:
        return f"Nothing is significantly better than {BASE} alone ({value[BASE]:.4f} {measure}), so keep it."
    training = (
        "" if chosen.split(",")[0] in (BASE, "bm25") else ", and than the base used in the same way"
    )
    better = f"significantly better than {BASE} alone ({value[BASE]:.4f})"
    return f"Use {chosen}: {value[chosen]:.4f} {measure}, {better}{training}."


#: Ranks that the measure sees.
DEPTH = 10

#: Where candidates are written.
LABELS_FILE = "labels_wanted.tsv"

#: Pairs that are drawn of a query.
PER_QUERY = 10

# Added to the weight of every document before it is drawn: the ideal ranking depends on those of
# all lists, too.
_EVEN = 0.05


def annotation_candidates(
    first: Results,
    second: Results,
    judged: Mapping[str, Mapping[str, int]] | None = None,
    count: int = 50,
) -> list[AnnotationCandidate]:
    """The unjudged pairs that two rankings place most differently, the heaviest first, without
    texts.

    The weight of a pair is by how much the difference of the two models' DCG@10 changes if its
    document turns out to be relevant: |1 / log2(1 + rank_a) − 1 / log2(1 + rank_b)|, 0 beyond rank
    10. Among equal weights the queries come first on which the lists differ most, by the sum of
    their weights.

    Args:
        first, second: results of models a and b for the same queries.
        judged: qrels; pairs in them are left out.
        count: the most pairs.
    """
    rows: list[tuple[float, AnnotationCandidate]] = []
    for query in dict.fromkeys([*first, *second]):
        a, b = _ranks(first, query), _ranks(second, query)
        pairs = [
            AnnotationCandidate(
                query, d, None, abs(_discount(a.get(d)) - _discount(b.get(d))), a.get(d), b.get(d)
            )
            for d in {**a, **b}
            if d not in (judged or {}).get(query, {})
        ]
        total = sum(pair.weight for pair in pairs)
        rows += [(total, pair) for pair in pairs if pair.weight > 0]
    # Sums are rounded, as their last bits depend on the order of their terms.
    rows.sort(
        key=lambda row: (-row[1].weight, -round(row[0], 12), row[1].query_id, row[1].document_id)
    )
    return [pair for _, pair in rows[:count]]


def draw_candidates(
    results: Mapping[str, Results],
    a: str,
    b: str,
    judged: Container[str] = (),
    count: int = 50,
    seed: int = 42,
) -> list[AnnotationCandidate]:
    """Pairs to judge, drawn by chance with known probabilities from what the models find, more of
    it where they differ.

    A query is drawn half evenly, half in proportion to how much the models' lists differ for it
    (the range of each document's discount over the models, summed); of the documents that any model
    has among its ten best, ten are drawn, in proportion to that range. A query comes whole, and
    every query and document has its random number for good: what is drawn later goes on with the
    same sample. They come query by query, in the order in which they were drawn.

    Args:
        results: of all models, for the same queries.
        a, b: the models whose ranks are written beside.
        judged: queries that are judged already.
        count: the most pairs; none where all lists are the same.

    Source: Ohlsson, 1998 (sequential Poisson sampling of queries, with permanent random numbers);
    Madow, 1949 (systematic sampling of documents, in proportion to size and exact in its
    probabilities).
    """
    queries = list(dict.fromkeys(query for found in results.values() for query in found))
    pools = {query: _pool(results, query) for query in queries}
    sizes = {query: sum(high - low for low, high in pool.values()) for query, pool in pools.items()}
    if not (total := sum(sizes.values())):
        return []
    chances = {query: 0.5 / len(queries) + 0.5 * size / total for query, size in sizes.items()}
    order = sorted(
        (query for query in queries if query not in judged and pools[query]),
        key=lambda query: (_uniform(seed, query) / chances[query], query),
    )
    pairs: list[AnnotationCandidate] = []
    for query in order:
        drawn = _draw(pools[query], min(PER_QUERY, count), seed, query)
        if len(pairs) + len(drawn) > count:
            break
        ranks = _ranks(results[a], query), _ranks(results[b], query)
        for document, chance in drawn.items():
            first, second = (ranked.get(document) for ranked in ranks)
            weight, shares = (
                abs(_discount(first) - _discount(second)),
                (round(chances[query], 9), round(chance, 9)),
            )
            pairs.append(
                AnnotationCandidate(query, document, None, weight, first, second, "", "", *shares)
            )
    return pairs


def _pool(results: Mapping[str, Results], query: str) -> dict[str, tuple[float, float]]:
    """Documents among some model's ten best, each with the least and the greatest discount that a
    model gives it.
    """
    found: dict[str, list[float]] = {}
    for run in results.values():
        for document, rank in _ranks(run, query).items():
            found.setdefault(document, []).append(_discount(rank))
    return {d: (min(at) if len(at) == len(results) else 0.0, max(at)) for d, at in found.items()}


def _draw(
    pool: Mapping[str, tuple[float, float]], count: int, seed: int, query: str
) -> dict[str, float]:
    """``count`` documents of a pool, each with the probability that it is drawn."""
    left = {d: high - low + _EVEN for d, (low, high) in pool.items()}
    chances: dict[str, float] = {}
    while left:  # those that are drawn in any case leave fewer places to the others
        free = count - len(chances)
        scale = free / sum(left.values())
        sure = [d for d, size in left.items() if size * scale >= 1 or free >= len(left)]
        chances |= (
            dict.fromkeys(sure, 1.0) if sure else {d: size * scale for d, size in left.items()}
        )
        left = {d: size for d, size in left.items() if d not in chances}
    order = sorted(chances, key=lambda d: (_uniform(seed, query, d), d))
    ends = np.cumsum([chances[d] for d in order]) + _uniform(seed, query, "")
    ends = np.floor(np.concatenate([[_uniform(seed, query, "")], ends]) + 1e-9)
    drawn = {d: chances[d] for d, crossed in zip(order, np.diff(ends), strict=True) if crossed}
    return dict(sorted(drawn.items(), key=lambda item: -item[1]))


def _uniform(seed: int, *names: str) -> float:
    """A number between 0 and 1 that belongs to names for good."""
    return (int(text_sha256(str(seed), *names)[:13], 16) + 0.5) / 16**13


def with_texts(
    pairs: list[AnnotationCandidate], queries: Mapping[str, str], documents: Documents
) -> list[AnnotationCandidate]:
    """The pairs with the query and the beginning of the document, for whoever labels them."""
    rows = documents.rows([pair.document_id for pair in pairs])
    texts = {int(row): documents.take([int(row)])[0] for row in np.unique(rows) if row >= 0}
    beginnings = {
        row: f"{found['title']} {found['text']}".strip()[:300] for row, found in texts.items()
    }
    return [
        replace(pair, query=queries.get(pair.query_id, ""), document=beginnings.get(row, ""))
        for pair, row in zip(pairs, rows.tolist(), strict=True)
    ]


def _ranks(results: Results, query: str) -> dict[str, int]:
    """The ranks of a query's ten best documents."""
    return {document: rank for rank, (document, _) in enumerate(results.get(query, [])[:DEPTH], 1)}


def _discount(rank: int | None) -> float:
    return 0.0 if rank is None else 1 / math.log2(1 + rank)
