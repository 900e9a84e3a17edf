"""Gains of training on the source queries that resemble a target, beside those on the target."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from beir_cocodr.analysis import Files, SourceClusterOptions, as_paths
from beir_cocodr.analysis.gains import Gains, single_measure
from beir_cocodr.analysis.qpp import Coefficients, correlations
from beir_cocodr.arrays import Doubles, Floats, Ints
from beir_cocodr.data.clusters import Clusters, cluster_queries
from beir_cocodr.data.collection import (
    Collection,
    Dataset,
    Datasets,
    load_collection,
    load_collections,
)
from beir_cocodr.data.documents import Documents
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError, naming
from beir_cocodr.evaluation.evaluate import spaced
from beir_cocodr.evaluation.measures import MeasureNames
from beir_cocodr.io import Keywords
from beir_cocodr.losses.coco import COCOLoss, triplet_losses
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import ModelSpec, SearchOptions, check_device
from beir_cocodr.progress import in_place
from beir_cocodr.records import Report, versions
from beir_cocodr.retrieval.resolve import Models, resolve_models
from beir_cocodr.training.hard_negatives.bm25_negatives import bm25_negatives

log = logging.getLogger(__name__)

#: Queries whose documents are encoded at a time.
_BLOCK = 256

#: Queries of a cluster that are recorded: those nearest to its centroid.
_CENTRAL = 3


def sample_triplets(
    collection: Collection, text_format: TextFormat, options: SourceClusterOptions
) -> tuple[dict[str, str], Ints]:
    """Draw queries, a relevant document of each, and n negatives among BM25's best 30.

    For a query that has fewer negatives, some are drawn repeatedly.

    Args:
        collection: labelled.
        text_format: how BM25 reads documents.
        options: numbers of queries and negatives, and seed.

    Returns:
        The Q queries, id to text in collection order, and (Q, 1 + n) corpus rows, the relevant
        document first.

    Raises:
        InputError: No query has a relevant document.

    Source: COCO-DR, sections 4.2 and 5.1 (the first negatives of fine-tuning are BM25's).
    """
    rng = np.random.default_rng(options.seed)
    positives = _relevant_rows(collection)
    if not positives:
        raise InputError(
            f"{collection.name}: no query of split {collection.split} has a relevant document; "
            "choose another split"
        )
    ids = list(positives)
    size = min(options.sample, len(ids))
    rows = rng.choice(len(ids), size, replace=False)
    drawn = {ids[row] for row in rows.tolist()}
    queries = {query: text for query, text in collection.queries.items() if query in drawn}
    log.info(
        "%s: %d of %d queries with a relevant document",
        collection.name,
        len(queries),
        len(ids),
    )
    qrels = {query: collection.qrels[query] for query in queries}
    sampled = replace(collection, queries=queries, qrels=qrels)
    pools = bm25_negatives(sampled, text_format, seed=options.seed)
    triplets = []
    for query in queries:
        pool = pools[query]
        with_replacement = len(pool) < options.negatives
        positive = rng.choice(positives[query])
        negatives = rng.choice(pool, options.negatives, with_replacement)
        triplets.append([positive, *negatives])
    return queries, np.array(triplets, np.int64)


def _relevant_rows(collection: Collection) -> dict[str, Ints]:
    """Return query id to the rows of its relevant documents, for queries that have any."""
    relevant_rows = {}
    for query, grades in collection.qrels.items():
        relevant = [document for document, grade in grades.items() if grade > 0]
        rows = collection.documents.rows(relevant)
        if (rows >= 0).any():
            relevant_rows[query] = rows[rows >= 0]
    return relevant_rows


def source_losses(
    model: Any,
    documents: Documents,
    queries: Mapping[str, str],
    triplets: Ints,
    search: SearchOptions = SearchOptions(),
) -> tuple[Doubles, Floats]:
    """Compute the losses −log p(d⁺ | q, d⁻) of queries.

    Args:
        model: an encoder. Cosines are scaled by 20 as in training, dot products by 1.
        documents: the corpus; the documents of 256 queries are in memory at a time.
        queries: of :func:`sample_triplets`.
        triplets: of :func:`sample_triplets`.
        search: how the model encodes.

    Returns:
        The (Q,) losses, averaged over the negatives of a query one at a time; and the (Q, d) query
        embeddings, normalised if the model compares by cosine.

    Raises:
        InputError: A loss is NaN or infinite.

    Source: COCO-DR, Eq. 2 and 3.
    """
    scoring = COCOLoss(model)  # has the scale and similarity of training
    encode_options: Keywords = {
        "batch_size": search.batch_size,
        "convert_to_tensor": True,
        "show_progress_bar": search.shows_progress and in_place(),
    }
    vectors = _detached(model.encode_queries(list(queries.values()), **encode_options))
    parts = []
    for start in range(0, len(queries), _BLOCK):
        rows = triplets[start : start + _BLOCK]  # (b, 1 + n)
        block = documents.take(rows.ravel())
        encoded = _detached(model.encode_corpus(block, **encode_options))
        encoded = encoded.view(*rows.shape, -1)  # (b, 1 + n, d)
        block_queries = vectors[start : start + _BLOCK]
        parts.append(_losses(block_queries, encoded, scoring.scale, scoring.normalize))
    losses: Doubles = torch.cat(parts).numpy()
    wrong_rows = np.flatnonzero(~np.isfinite(losses))
    if len(wrong_rows):
        query = list(queries)[int(wrong_rows[0])]
        raise InputError(
            f"the loss of query {query!r} is not finite; encode in float32 if the model runs in "
            "half precision"
        )
    embeddings: Floats = (F.normalize(vectors, dim=1) if scoring.normalize else vectors).numpy()
    return losses, embeddings


def _detached(encoded: Tensor) -> Tensor:
    return encoded.detach().float().cpu()


def _losses(
    queries: Tensor,
    documents: Tensor,
    scale: float,
    normalize: bool,
) -> Tensor:
    """Return (b,) losses of (b, d) queries and (b, 1 + n, d) documents."""
    size = len(queries)
    negatives = documents.shape[1] - 1
    positive = documents[:, :1].expand(-1, negatives, -1)
    pairs = torch.stack([positive, documents[:, 1:]], dim=2)  # (b, n, 2, d)
    repeated = queries.double().repeat_interleave(negatives, dim=0)  # (b * n, d)
    losses = triplet_losses(repeated, pairs.flatten(0, 1).double(), scale, normalize)
    return losses.view(size, negatives).mean(dim=1)


def cluster_similarities(
    source: Floats,
    labels: Ints,
    target: Floats,
    k: int,
) -> Doubles:
    """Return the mean dot products of each cluster's queries with a target's, over all pairs.

    Args:
        source: (Q, d) query embeddings.
        labels: (Q,) clusters of the source's queries, in 0..k-1.
        target: (T, d) query embeddings, T at least 1.
        k: the number of clusters.

    Returns:
        (k,) means, −inf for an empty cluster.

    Source: COCO-DR, section 5.5 ("based on average dot product").
    """
    # The mean over all pairs is the product of the two means.
    target_mean = target.astype(np.float64).mean(axis=0)
    products = source.astype(np.float64) @ target_mean  # (Q,)
    sizes = np.bincount(labels, minlength=k)
    sums = np.bincount(labels, weights=products, minlength=k)
    means: Doubles = np.full(k, -np.inf)
    np.divide(sums, sizes, out=means, where=sizes > 0)
    return means


def nearest_queries(target: Floats, source: Floats, count: int = 1) -> list[tuple[int, float]]:
    """Return rows and dot products of the source queries nearest to a target query (Table 4).

    Args:
        target: (d,) embedding.
        source: (Q, d) embeddings; among ties the earlier row comes first.
        count: how many queries to return.
    """
    scores = source @ target  # (Q,)
    rows = np.argsort(-scores, kind="stable")[:count].tolist()
    return [(row, float(scores[row])) for row in rows]


@dataclass(frozen=True)
class ClusterRecord:
    """A cluster of source queries with its mean losses.

    Attributes:
        cluster: its number.
        queries: how many it has.
        loss_before, loss_after: under the two models.
        reduction: how much lower the loss is after.
        central_queries: texts of those nearest to the centroid.
    """

    cluster: int
    queries: int
    loss_before: float
    loss_after: float
    reduction: float
    central_queries: list[str]


@dataclass(frozen=True)
class NearQuery:
    """A source query that is near to a target query; the gain is None where it is not known."""

    query_id: str
    query: str
    similarity: float
    loss_reduction: float
    gain: float | None


@dataclass(frozen=True)
class Case:
    """A target query and the source queries nearest to it.

    The gain is None where it is not known.
    """

    query_id: str
    query: str
    nearest: list[NearQuery]
    gain: float | None


@dataclass(frozen=True)
class TargetClusterRecord:
    """A target with the source cluster nearest to it, as in :class:`ClusterRecord`."""

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
    """The correlation of the nearest cluster's loss reduction with the gain, over targets."""

    of: str
    targets: int


@dataclass(frozen=True)
class SourceClusters(Report):
    """``source_clusters.json``.

    Attributes:
        sampled: the number of source queries.
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
    before: str
    after: str
    options: SourceClusterOptions


def source_clusters(
    models: Models,
    datasets: Datasets,
    *,
    source: Dataset,
    results: Files = (),
    measure: MeasureNames = "nDCG@10",
    options: SourceClusterOptions = SourceClusterOptions(),
    search: SearchOptions = SearchOptions(),
) -> SourceClusters:
    """Compare losses on the source queries nearest to each target with gains on the target.

    A sample of the source's labelled queries is clustered by the embeddings of the second model.
    The nearest cluster of a target has the largest mean dot product of its queries with the
    target's. Losses are those of fine-tuning, with BM25 negatives, the same for both models.

    Args:
        models: two encoders with one similarity, before and after, such as without and with iDRO.
        datasets: the targets, one or several collections with queries: those of the split, or all
            if there is no such split.
        source: the labelled collection that the models were trained on.
        results: results.json files of ``evaluate`` with both models, over targets (for the gains of
            Figure 5c and Table 4) and over the source (for those of source queries in Table 4).
        measure: of the results.
        options: the sample, the splits and the cases.
        search: how models are loaded and encode.

    Raises:
        InputError: Collections, models, results or ids must be corrected.

    Source: COCO-DR, section 5.5, Figure 5c and Table 4.
    """
    specs = resolve_models(models)
    if len(specs) != 2:
        raise InputError(f"give two different models, before and after, not {len(specs)}")
    before, after = specs
    check_device(search.encoder.device)
    targets = load_collections(datasets, options.split, labels="optional", kind="target")
    for target in targets:
        _check_queries(target, options.split)
    collection = load_collection(source, options.source_split)
    names = [target.name for target in targets]
    files = as_paths(results)
    measure_name = single_measure(measure)
    gains = Gains(
        files,
        [collection.name, *names],
        measure_name,
        before,
        after,
    )
    _check_cases(options.queries, targets)

    study, model = _measured(
        specs,
        collection,
        gains,
        options,
        search,
    )
    records = {target.name: study.target(target, model, search) for target in targets}
    return SourceClusters(
        sampled=len(study.queries),
        targets=records,
        clusters=study.clusters_with_queries(),
        folded_clusters=study.clusters.folded_clusters,
        nearest_improved=sum(record.reduction > 0 for record in records.values()),
        reduction_against_gain=_reduction_against_gain(records) if files else None,
        measure=measure_name if files else None,
        source=collection.name,
        before=before,
        after=after,
        options=options,
        versions=versions(),
    )


@dataclass(frozen=True)
class _Study:
    """Source queries with their losses, embeddings and clusters.

    Attributes:
        source: name of the collection.
        queries: id to text of Q queries.
        before, after: (Q,) losses under both models.
        embeddings: (Q, d) of the second model.
        clusters: of the embeddings.
        gains: between the models.
        options: of the study.
    """

    source: str
    queries: dict[str, str]
    before: Doubles
    after: Doubles
    embeddings: Floats
    clusters: Clusters
    gains: Gains
    options: SourceClusterOptions

    def clusters_with_queries(self) -> list[ClusterRecord]:
        """Return the records of all clusters that are not empty."""
        sizes = self.clusters.sizes
        return [self._cluster(k) for k in range(len(sizes)) if sizes[k]]

    def _cluster(self, k: int) -> ClusterRecord:
        members = np.flatnonzero(self.clusters.labels == k)
        before = float(self.before[members].mean())
        after = float(self.after[members].mean())
        differences = self.embeddings[members] - self.clusters.centroids[k]
        distances = (differences**2).sum(axis=1)
        central = members[np.argsort(distances, kind="stable")[:_CENTRAL]]
        texts = list(self.queries.values())
        return ClusterRecord(
            cluster=k,
            queries=len(members),
            loss_before=before,
            loss_after=after,
            reduction=before - after,
            central_queries=[texts[i] for i in central],
        )

    def target(
        self,
        target: Collection,
        model: Any,
        search: SearchOptions,
    ) -> TargetClusterRecord:
        """Return a target with its nearest cluster and its cases.

        Args:
            target: the target, which has queries.
            model: the encoder of :attr:`embeddings`.
            search: how the model encodes.
        """
        vectors: Floats = model.encode_queries(
            list(target.queries.values()),
            batch_size=search.batch_size,
            show_progress_bar=search.shows_progress and in_place(),
            normalize_embeddings=model.similarity_fn_name == "cosine",
        )
        k = len(self.clusters.sizes)
        similarities = cluster_similarities(self.embeddings, self.clusters.labels, vectors, k)
        nearest = self._cluster(int(similarities.argmax()))
        return TargetClusterRecord(
            cluster=nearest.cluster,
            queries=nearest.queries,
            loss_before=nearest.loss_before,
            loss_after=nearest.loss_after,
            reduction=nearest.reduction,
            similarity=float(similarities.max()),
            gain=self.gains.of(target.name),
            cases=self._cases(target, vectors),
        )

    def _cases(self, target: Collection, vectors: Floats) -> list[Case]:
        rows = {query: row for row, query in enumerate(target.queries)}
        gains = self.gains.by_query(target.name)
        cases = []
        for query in _case_ids(target.queries, gains, self.options):
            cases.append(
                Case(
                    query_id=query,
                    query=target.queries[query],
                    nearest=self._near_queries(vectors[rows[query]]),
                    gain=gains.get(query),
                )
            )
        return cases

    def _near_queries(self, vector: Floats) -> list[NearQuery]:
        ids = list(self.queries)
        gains = self.gains.by_query(self.source)
        reductions = (self.before - self.after).tolist()
        near = []
        for row, similarity in nearest_queries(vector, self.embeddings, self.options.nearest):
            query = ids[row]
            near.append(
                NearQuery(
                    query_id=query,
                    query=self.queries[query],
                    similarity=similarity,
                    loss_reduction=reductions[row],
                    gain=gains.get(query),
                )
            )
        return near


def _measured(
    specs: Mapping[str, ModelSpec],
    collection: Collection,
    gains: Gains,
    options: SourceClusterOptions,
    search: SearchOptions,
) -> tuple[_Study, Any]:
    """Compute the losses of both models and the clusters of the second.

    Returns:
        The study, and the second model.
    """
    before, after = specs
    first = load_encoder(specs[before], search.encoder)
    queries, triplets = sample_triplets(collection, first.text_format, options)
    log.info("computing the losses of %d source queries under %s", len(queries), before)
    losses_before, _ = source_losses(
        first,
        collection.documents,
        queries,
        triplets,
        search,
    )
    similarity = first.similarity_fn_name
    del first  # a model that is loaded by name is in memory alone
    model = load_encoder(specs[after], search.encoder)
    if similarity != model.similarity_fn_name:
        raise InputError(
            f"{before} compares by {similarity}, {after} by {model.similarity_fn_name}, so their "
            "losses cannot be compared; give two models with the same similarity"
        )
    log.info("computing the losses of %d source queries under %s", len(queries), after)
    losses_after, embeddings = source_losses(
        model,
        collection.documents,
        queries,
        triplets,
        search,
    )
    with naming(collection.name):
        clusters = cluster_queries(embeddings, options.clusters, options.seed, ids=list(queries))
    study = _Study(
        source=collection.name,
        queries=queries,
        before=losses_before,
        after=losses_after,
        embeddings=embeddings,
        clusters=clusters,
        gains=gains,
        options=options,
    )
    return study, model


def _case_ids(
    queries: Mapping[str, str], gains: Mapping[str, float], options: SourceClusterOptions
) -> list[str]:
    """Return the target queries that are cases.

    They are those that were named, otherwise those whose gain changes most, otherwise some evenly
    spaced.
    """
    if options.queries:
        return [query for query in options.queries if query in queries]
    if gains:
        by_change = sorted(gains, key=lambda query: -abs(gains[query]))
        return by_change[: options.cases]
    return spaced(queries, options.cases)


def _check_queries(target: Collection, split: str) -> None:
    if not target.queries:
        raise InputError(
            f"{target.name} has no queries, so no source queries are near to it; leave it out"
        )
    if target.split is None:
        log.info(
            "%s has no split %s: all its %d queries count", target.name, split, len(target.queries)
        )


def _check_cases(queries: Sequence[str], targets: Sequence[Collection]) -> None:
    for query in queries:
        if not any(query in target.queries for target in targets):
            raise InputError(f"query {query!r} is in none of the targets; correct --query")


def _reduction_against_gain(
    records: Mapping[str, TargetClusterRecord],
) -> ClusterReductionAgainstGain:
    name = "reduction of the nearest cluster's loss"
    reductions = {target: record.reduction for target, record in records.items()}
    gains = {target: record.gain for target, record in records.items()}
    coefficients, points = correlations({name: reductions}, gains)[name]
    return ClusterReductionAgainstGain(**vars(coefficients), of=name, targets=points)
