"""Whether training helped on the source queries that resemble a target, and on the target too."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from beir_cocodr.analysis import SourceClusterOptions
from beir_cocodr.analysis.gains import Gains
from beir_cocodr.analysis.qpp import Coefficients, correlations
from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.clusters import Clusters, cluster_queries
from beir_cocodr.data.collection import Collection, load_collection
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, check_names
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.losses.coco import COCOLoss, triplet_losses
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import SearchOptions, check_device
from beir_cocodr.progress import in_place
from beir_cocodr.records import Report, versions
from beir_cocodr.training.negatives import bm25_negatives

log = logging.getLogger(__name__)

#: Queries whose documents are encoded at a time.
_BLOCK = 256


def sample_triplets(
    collection: Collection, text_format: TextFormat, options: SourceClusterOptions
) -> tuple[dict[str, str], Ints]:
    """Draw Q queries that have a relevant document (else an InputError), one of these, and n
    negatives of BM25's best 30: the queries, id -> text in collection order, and (Q, 1 + n) corpus
    rows, the positive first.

    BM25 reads by the text format; of a query that has fewer negatives than asked for, some are
    drawn repeatedly.

    Source: COCO-DR, sections 4.2 and 5.1 (the first negatives of fine-tuning are BM25's).
    """
    rng = np.random.default_rng(options.seed)
    positives: dict[str, Ints] = {}
    for query, grades in collection.qrels.items():
        rows = collection.documents.rows(
            [document for document, grade in grades.items() if grade > 0]
        )
        if (rows >= 0).any():
            positives[query] = rows[rows >= 0]
    if not positives:
        raise InputError(
            f"{collection.name}: no query of split {collection.split} has a relevant document"
        )
    ids = list(positives)
    drawn = {
        ids[i] for i in rng.choice(len(ids), min(options.sample, len(ids)), replace=False).tolist()
    }
    queries = {query: text for query, text in collection.queries.items() if query in drawn}
    log.info(
        "%s: %d of %d queries with a relevant document", collection.name, len(queries), len(ids)
    )
    sampled = replace(
        collection, queries=queries, qrels={query: collection.qrels[query] for query in queries}
    )
    pools = bm25_negatives(sampled, text_format, seed=options.seed)
    count = options.negatives
    triplets = [
        [rng.choice(positives[query]), *rng.choice(pools[query], count, len(pools[query]) < count)]
        for query in queries
    ]
    return queries, np.array(triplets, np.int64)


def source_losses(
    model: Any,
    documents: Documents,
    queries: Mapping[str, str],
    triplets: Ints,
    search: SearchOptions = SearchOptions(),
) -> tuple[Doubles, Floats]:
    """(Q,) losses −log p(d⁺ | q, d⁻) of every query, averaged over its negatives one at a time, and
    the (Q, d) query embeddings, normalised where the model compares by cosine; an InputError for
    NaN or infinity.

    Args:
        model: an encoder; cosines are scaled by 20 as in training, dot products by 1.
        documents: the corpus. The documents of 256 queries are in memory at a time.
        queries, triplets: of :func:`sample_triplets`.

    Source: COCO-DR, Eq. 2 and 3.
    """
    compared = COCOLoss(model)  # how this model's scores are made in training
    texts = list(queries.values())
    bar = search.progress and in_place()
    options = {"batch_size": search.batch_size, "convert_to_tensor": True, "show_progress_bar": bar}
    vectors = model.encode_queries(texts, **options).detach().float().cpu()
    losses = []
    for start in range(0, len(texts), _BLOCK):
        rows = triplets[start : start + _BLOCK]  # (b, 1 + n)
        encoded = (
            model.encode_corpus(documents.take(rows.ravel()), **options).detach().float().cpu()
        )
        encoded = encoded.view(*rows.shape, -1)  # (b, 1 + n, d)
        losses.append(
            _losses(vectors[start : start + _BLOCK], encoded, compared.scale, compared.normalize)
        )
    found = torch.cat(losses).numpy()
    if not np.isfinite(found).all():
        wrong = list(queries)[int(np.flatnonzero(~np.isfinite(found))[0])]
        raise InputError(
            f"the loss of query {wrong!r} is not finite; encode in float32 if it was in half"
        )
    return found, (F.normalize(vectors, dim=1) if compared.normalize else vectors).numpy()


def _losses(queries: Tensor, documents: Tensor, scale: float, normalize: bool) -> Tensor:
    """(b, d) and (b, 1 + n, d) to (b,)."""
    size, negatives = len(queries), documents.shape[1] - 1
    one_each = torch.stack(
        [documents[:, :1].expand(-1, negatives, -1), documents[:, 1:]], dim=2
    )  # (b, n, 2, d)
    repeated = queries.double().repeat_interleave(negatives, dim=0)  # (b * n, d)
    losses = triplet_losses(repeated, one_each.flatten(0, 1).double(), scale, normalize)
    return losses.view(size, negatives).mean(dim=1)


def cluster_similarities(source: Floats, labels: Ints, target: Floats, k: int) -> Doubles:
    """(k,) mean dot products of a cluster's queries with a target's, over all pairs; −inf for an
    empty cluster.

    Args:
        source, target: (Q, d) and (T, d) query embeddings, T at least 1.
        labels: (Q,) clusters of the source's, in 0..k-1.

    Source: COCO-DR, section 5.5 ("based on average dot product").
    """
    # The mean over all pairs is the product of the two means.
    with_target = source.astype(np.float64) @ target.astype(np.float64).mean(axis=0)  # (Q,)
    sizes = np.bincount(labels, minlength=k)
    sums = np.bincount(labels, weights=with_target, minlength=k)
    means: Doubles = np.divide(sums, sizes, out=np.full(k, -np.inf), where=sizes > 0)
    return means


def nearest_queries(target: Floats, source: Floats, count: int = 1) -> list[tuple[int, float]]:
    """Row and product of the (Q, d) source queries nearest to a (d,) target query, ties to the
    earlier (Table 4).
    """
    scores = source @ target  # (Q,)
    return [
        (row, float(scores[row])) for row in np.argsort(-scores, kind="stable")[:count].tolist()
    ]


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster of source queries, the mean loss under both models, and how much it is lower
    after.
    """

    cluster: int
    queries: int
    loss_before: float
    loss_after: float
    reduction: float
    central_queries: list[str]


@dataclass(frozen=True)
class NearQuery:
    """A source query that is near to a target query."""

    query_id: str
    query: str
    similarity: float
    loss_reduction: float
    gain: float | None


@dataclass(frozen=True)
class Case:
    """A target query and the source queries nearest to it; gains are None where they are not
    known.
    """

    query_id: str
    query: str
    nearest: list[NearQuery]
    gain: float | None


@dataclass(frozen=True)
class TargetClusterRecord:
    """A target with the source cluster nearest to it: its number, size and losses, as in
    :class:`ClusterRecord`.
    """

    cluster: int
    queries: int
    loss_before: float
    loss_after: float
    reduction: float
    similarity: float
    gain: float | None
    cases: list[Case]


@dataclass(frozen=True)
class ClusterReductionAgainstGain(Coefficients):
    """Of the nearest cluster's loss reduction with the gain, over targets that have both."""

    of: str
    targets: int


@dataclass(frozen=True)
class SourceClusters(Report):
    """``source_clusters.json``.

    Attributes:
        sampled: source queries.
        nearest_improved: targets whose nearest cluster has a lower loss after than before.
        reduction_against_gain, measure: None without results.
    """

    sampled: int
    targets: dict[str, TargetClusterRecord]
    clusters: list[ClusterRecord]
    folded_clusters: int
    nearest_improved: int
    reduction_against_gain: ClusterReductionAgainstGain | None
    measure: str | None
    source: str
    source_split: str
    before: str
    after: str
    split: str
    options: SourceClusterOptions


def source_clusters(
    source: str,
    targets: Sequence[str],
    before: str,
    after: str,
    options: SourceClusterOptions | None = None,
    results: Sequence[Path] = (),
    measure: str = "nDCG@10",
    queries: Sequence[str] = (),
    source_split: str = "train",
    split: str = "test",
    search: SearchOptions = SearchOptions(),
) -> SourceClusters:
    """Cluster source queries, find the cluster nearest to each target, and compare losses with
    gains. An InputError names what has to be corrected in collections, models, results or ids.

    A sample of the source's labelled queries is clustered by the embeddings of ``after``. The
    nearest cluster of a target has the largest mean dot product of its queries with the target's.
    Losses are those of fine-tuning, with BM25 negatives, the same for both models.

    Args:
        source, source_split: labelled, what the models were trained on.
        targets, split: collections with queries: those of the split, or all where there is no such
            split.
        before, after: two encoders with one similarity, such as without and with iDRO.
        results: results.json files of `evaluate` with both models, over targets (for the gains of
            Figure 5c and Table 4) and over the source (for those of source queries in Table 4).
        queries: ids of target queries to show as in Table 4. By default those of the largest gains
            and losses where there are results, else some evenly spaced.

    Source: COCO-DR, section 5.5, Figure 5c and Table 4.
    """
    options = options or SourceClusterOptions()
    check_names("target", targets)
    if before == after:
        raise InputError(f"before and after are the same model, {before!r}")
    check_device(search.encoder.device)
    gains = Gains(results, [source, *targets], measure, before, after)
    texts = {name: _queries(name, split) for name in targets}
    if strange := [query for query in queries if not any(query in own for own in texts.values())]:
        raise InputError(f"query {strange[0]!r} is in none of the targets")
    collection = load_collection(source, source_split)
    first = load_encoder(before, search.encoder)
    sampled, triplets = sample_triplets(collection, first.text_format, options)
    log.info("losses of %d source queries under %s", len(sampled), before)
    losses_before, _ = source_losses(first, collection.documents, sampled, triplets, search)
    similarity = first.similarity_fn_name
    del first  # one model is in memory at a time
    second = load_encoder(after, search.encoder)
    if similarity != second.similarity_fn_name:
        raise InputError(
            "one model compares by cosine, the other by dot product: no loss is on both scales"
        )
    log.info("losses of %d source queries under %s", len(sampled), after)
    losses_after, embeddings = source_losses(
        second, collection.documents, sampled, triplets, search
    )
    clusters = cluster_queries(embeddings, options.clusters, options.seed, ids=list(sampled))
    study = _Study(source, sampled, losses_before, losses_after, embeddings, clusters)
    rows = {k: study.cluster(k) for k in range(len(clusters.sizes)) if clusters.sizes[k]}
    found = {}
    for name, own in texts.items():
        vectors: Floats = second.encode_queries(
            list(own.values()),
            batch_size=search.batch_size,
            show_progress_bar=search.progress and in_place(),
            normalize_embeddings=similarity == "cosine",
        )
        alike = cluster_similarities(embeddings, clusters.labels, vectors, len(clusters.sizes))
        nearest = asdict(rows[int(alike.argmax())])
        del nearest["central_queries"]
        shown = _shown(own, gains.by_query(name), queries, options.cases)
        cases = study.cases(name, own, vectors, shown, gains, options.nearest)
        found[name] = TargetClusterRecord(
            **nearest, similarity=float(alike.max()), gain=gains.of(name), cases=cases
        )
    reductions = {
        "reduction of the nearest cluster's loss": {
            name: one.reduction for name, one in found.items()
        }
    }
    against = correlations(
        reductions, {name: one.gain for name, one in found.items()}, ClusterReductionAgainstGain
    )
    return SourceClusters(
        sampled=len(sampled),
        targets=found,
        clusters=list(rows.values()),
        folded_clusters=clusters.folded_clusters,
        nearest_improved=sum(record.reduction > 0 for record in found.values()),
        reduction_against_gain=against[0] if results else None,
        measure=measure if results else None,
        source=source,
        source_split=source_split,
        before=before,
        after=after,
        split=split,
        options=options,
        versions=versions(),
    )


@dataclass(frozen=True)
class _Study:
    """Source queries with (Q,) losses under both models, (Q, d) embeddings of the second, and
    clusters.
    """

    source: str
    queries: dict[str, str]
    before: Doubles
    after: Doubles
    embeddings: Floats
    clusters: Clusters

    def cluster(self, k: int) -> ClusterRecord:
        members = np.flatnonzero(self.clusters.labels == k)
        before, after = float(self.before[members].mean()), float(self.after[members].mean())
        distances = ((self.embeddings[members] - self.clusters.centroids[k]) ** 2).sum(axis=1)
        texts = list(self.queries.values())
        shown = [texts[i] for i in members[np.argsort(distances, kind="stable")[:3]]]
        return ClusterRecord(k, len(members), before, after, before - after, shown)

    def cases(
        self,
        target: str,
        texts: dict[str, str],
        vectors: Floats,
        shown: Sequence[str],
        gains: Gains,
        count: int,
    ) -> list[Case]:
        rows = {query: row for row, query in enumerate(texts)}
        of_target, of_source = gains.by_query(target), gains.by_query(self.source)
        own, reductions = list(self.queries.items()), (self.before - self.after).tolist()
        cases = []
        for query in shown:
            nearest = [
                NearQuery(*own[row], similarity, reductions[row], of_source.get(own[row][0]))
                for row, similarity in nearest_queries(vectors[rows[query]], self.embeddings, count)
            ]
            cases.append(Case(query, texts[query], nearest, of_target.get(query)))
        return cases


def _shown(
    texts: Mapping[str, str], gains: Mapping[str, float], chosen: Sequence[str], count: int
) -> list[str]:
    """The target queries to show: those chosen, else of the largest changes, else some evenly
    spaced.
    """
    if chosen:
        return [query for query in chosen if query in texts]
    if gains:
        return sorted(gains, key=lambda query: -abs(gains[query]))[:count]
    return spaced(texts, count)


def _queries(dataset: str, split: str) -> dict[str, str]:
    collection = load_collection(dataset, split, labels="optional")
    if collection.split is None:
        log.info(
            "%s has no split %s: all its %d queries count", dataset, split, len(collection.queries)
        )
    if not collection.queries:
        raise InputError(f"{dataset} has no queries, so no source queries are near to it")
    return collection.queries
