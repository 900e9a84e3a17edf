"""Whether training helped on the source queries that resemble a target, and on the target too.

Which clusters of source queries are nearest to the queries of a target.

Target queries beside the source queries that a model takes for most alike.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from beir_cocodr.analysis.gains import Gains, read_judged
from beir_cocodr.analysis.qpp import correlations
from beir_cocodr.analysis.source_losses import SourceTriplets, sample_triplets, source_losses
from beir_cocodr.data.clusters import Clusters, cluster_queries
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.runs import file_names
from beir_cocodr.io import output_folder, write_text
from beir_cocodr.models.loading import load_encoder
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.records import versions
from beir_cocodr.report.pictures import Panel, will_draw, write_labelled_scatter


def cluster_similarities(
    source: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], target: npt.NDArray[np.float32], k: int
) -> npt.NDArray[np.float64]:
    """The mean dot product of a cluster's queries with a target's, over all pairs, for every cluster.

    Args:
        source: (Q, d) query embeddings.
        labels: (Q,) their clusters, in 0..k-1.
        target: (T, d) query embeddings, T at least 1.
        k: clusters.

    Returns:
        (k,) float64, −inf for a cluster without queries.

    Source: COCO-DR, section 5.5 ("based on average dot product").
    """
    # The mean over all pairs is the product of the two means.
    with_target = source.astype(np.float64) @ target.astype(np.float64).mean(axis=0)  # (Q,)
    sizes = np.bincount(labels, minlength=k)
    sums = np.bincount(labels, weights=with_target, minlength=k)
    means: npt.NDArray[np.float64] = np.divide(sums, sizes, out=np.full(k, -np.inf), where=sizes > 0)
    return means


def nearest_queries(
    shown: Sequence[str],
    target: Mapping[str, str],
    target_embeddings: npt.NDArray[np.float32],
    source: Mapping[str, str],
    source_embeddings: npt.NDArray[np.float32],
    count: int = 1,
) -> list[dict[str, Any]]:
    """For each of some target queries, the source queries of the largest dot product.

    Args:
        shown: ids of target queries.
        target, source: id -> text, in the order of the embeddings.
        target_embeddings, source_embeddings: (T, d) and (Q, d).
        count: source queries for each; ties go to the earlier one.

    Returns:
        One record a target query: its id and text, and under "nearest" id, text, ``row`` among the source
        queries and similarity of each source query.

    Source: COCO-DR, Table 4.
    """
    rows = {query: row for row, query in enumerate(target)}
    ids, texts = list(source), list(source.values())
    found = []
    for query in shown:
        scores = source_embeddings @ target_embeddings[rows[query]]  # (Q,)
        best = np.argsort(-scores, kind="stable")[:count].tolist()
        nearest = [
            {"query_id": ids[i], "query": texts[i], "row": i, "similarity": float(scores[i])} for i in best
        ]
        found.append({"query_id": query, "query": target[query], "nearest": nearest})
    return found


log = logging.getLogger(__name__)

Array = npt.NDArray[np.float32]

_SHOWN = 3


@dataclass(frozen=True)
class SourceClusterOptions:
    """What is sampled and shown.

    Args:
        clusters: K of K-means (paper: 50).
        sample: the most source queries.
        negatives: BM25 negatives a source query.
        cases: target queries that are shown with their nearest source queries, where none are chosen.
        nearest: source queries shown for each.
        seed: of the sample, the negatives and K-means.
    """

    clusters: int = 50
    sample: int = 1000
    negatives: int = 4
    cases: int = 5
    nearest: int = 1
    seed: int = 42

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "seed" and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")


def source_clusters(
    source: str,
    targets: Sequence[str],
    before: str,
    after: str,
    options: SourceClusterOptions | None = None,
    output: Path | None = None,
    results: Sequence[Path] = (),
    measure: str = "nDCG@10",
    queries: Sequence[str] = (),
    source_split: str = "train",
    split: str = "test",
    picture: bool | None = None,
    search: SearchOptions = SearchOptions(),
) -> dict[str, Any]:
    """Cluster source queries, find the cluster nearest to each target, and compare losses with gains.

    A sample of the source's labelled queries is clustered by the embeddings of ``after``. The nearest cluster
    of a target has the largest mean dot product of its queries with the target's. Losses are those of
    fine-tuning, with BM25 negatives, the same for both models.

    Args:
        source, source_split: labelled, what the models were trained on.
        targets, split: collections with queries: those of the split, or all where there is no such split.
        before, after: two encoders with one similarity, such as without and with iDRO.
        options: see :class:`SourceClusterOptions`.
        output: folder for source_clusters.json and, with ``results``, source_clusters.png.
        results: results.json files of `evaluate` with both models, over targets (for the gains of Figure 5c
            and Table 4) and over the source (for those of source queries in Table 4).
        measure: of the results.
        queries: ids of target queries to show with their nearest source queries, as in Table 4. By default
            those of the largest gains and losses where there are results, else some evenly spaced.
        picture: draw Figure 5c; by default where there are results, an output and matplotlib.
        search: how models are loaded and encode.

    Returns:
        The content of source_clusters.json.

    Raises:
        InputError: what has to be corrected in collections, models, results or ids.

    Source: COCO-DR, section 5.5, Figure 5c and Table 4.
    """
    options = options or SourceClusterOptions()
    names = list(targets)
    _check(names, before, after)
    judged = read_judged(results, [source, *names], measure) if results else None
    gains = Gains(judged, before, after)
    drawn = will_draw(picture, output is not None and judged is not None, "give --results and --output")
    if output is not None:
        output_folder(output)

    texts = {name: _queries(name, split) for name in names}
    _check_queries(texts, queries)
    study = _Study(source, source_split, texts, options, search)
    for model in (before, after):
        study.look(model)
    report = study.report(gains, list(queries))
    report |= {"measure": measure if judged else None, "source": source, "source_split": source_split}
    report |= {"before": before, "after": after, "split": split, "options": asdict(options)}
    report |= {"picture": "source_clusters.png" if drawn else None, "versions": versions()}
    if output is not None:
        if drawn:
            write_labelled_scatter(output / "source_clusters.png", [_panel(report)], f"{after} − {before}")
        text = json.dumps(report, indent=2, ensure_ascii=False)
        write_text(output / "source_clusters.json", text + "\n")
    return report


class _Study:
    """Losses under both models, and the embeddings of the second."""

    def __init__(
        self,
        source: str,
        source_split: str,
        texts: dict[str, dict[str, str]],
        options: SourceClusterOptions,
        search: SearchOptions,
    ) -> None:
        self.source, self.texts, self.options, self.search = source, texts, options, search
        self.collection = load_collection(source, source_split)
        self.triplets: SourceTriplets | None = None
        self.losses: list[npt.NDArray[np.float64]] = []
        self.similarities: list[str] = []
        self.embeddings: Array | None = None
        self.targets: dict[str, Array] = {}

    def look(self, name: str) -> None:
        """Measure one model: the first one's text format makes the negatives, the last embeddings stay."""
        model = load_encoder(name, self.search.encoder)
        self.similarities.append(str(model.similarity_fn_name))
        if len(set(self.similarities)) > 1:
            raise InputError(
                "one model compares by cosine, the other by dot product: no loss is on both scales"
            )
        if self.triplets is None:
            options = self.options
            self.triplets = sample_triplets(
                self.collection, model.text_format, options.sample, options.negatives, options.seed
            )
        log.info("losses of %d source queries under %s", len(self.triplets.queries), name)
        found = source_losses(
            model, self.collection.documents, self.triplets, self.search.batch_size, self.search.progress
        )
        self.losses.append(found.losses)
        self.embeddings = found.embeddings
        if len(self.losses) == 2:
            self.targets = {target: self._encode(model, queries) for target, queries in self.texts.items()}

    def _encode(self, model: Any, queries: dict[str, str]) -> Array:
        vectors: Array = model.encode_queries(
            list(queries.values()),
            batch_size=self.search.batch_size,
            show_progress_bar=self.search.progress,
            normalize_embeddings=model.similarity_fn_name == "cosine",
        )
        return vectors

    def report(self, gains: Gains, chosen: list[str]) -> dict[str, Any]:
        assert self.triplets is not None
        assert self.embeddings is not None
        ids = list(self.triplets.queries)
        clusters = cluster_queries(self.embeddings, self.options.clusters, self.options.seed, ids=ids)
        told = [self._cluster(clusters, k) for k in range(len(clusters.sizes)) if clusters.sizes[k]]
        by_number = {cluster["cluster"]: cluster for cluster in told}
        targets = {}
        for name, vectors in self.targets.items():
            similarity = cluster_similarities(self.embeddings, clusters.labels, vectors, len(clusters.sizes))
            nearest = int(similarity.argmax())
            parts = ("cluster", "queries", "loss_before", "loss_after", "reduction")
            targets[name] = {
                **{part: by_number[nearest][part] for part in parts},
                "similarity": float(similarity[nearest]),
                "gain": gains.of(name),
                "cases": self._cases(name, vectors, gains, chosen),
            }
        return {
            "sampled": len(ids),
            "targets": targets,
            "clusters": told,
            "folded_clusters": clusters.folded_clusters,
            "nearest_improved": sum(record["reduction"] > 0 for record in targets.values()),
            "reduction_against_gain": _correlated(targets) if gains.judged else None,
        }

    def _cluster(self, clusters: Clusters, k: int) -> dict[str, Any]:
        assert self.triplets is not None
        assert self.embeddings is not None
        members = np.flatnonzero(clusters.labels == k)
        before, after = (float(losses[members].mean()) for losses in self.losses)
        distances = ((self.embeddings[members] - clusters.centroids[k]) ** 2).sum(axis=1)
        texts = list(self.triplets.queries.values())
        central = members[np.argsort(distances, kind="stable")[:_SHOWN]]
        return {
            "cluster": k,
            "queries": len(members),
            "loss_before": before,
            "loss_after": after,
            "reduction": before - after,
            "central_queries": [texts[i] for i in central.tolist()],
        }

    def _cases(self, target: str, vectors: Array, gains: Gains, chosen: list[str]) -> list[dict[str, Any]]:
        assert self.triplets is not None
        assert self.embeddings is not None
        texts, of_target, of_source = self.texts[target], gains.by_query(target), gains.by_query(self.source)
        shown = [query for query in chosen if query in texts]
        if not chosen and of_target:
            shown = sorted(of_target, key=lambda query: -abs(of_target[query]))[: self.options.cases]
        elif not chosen:
            places = np.linspace(0, len(texts) - 1, min(self.options.cases, len(texts)))
            shown = [list(texts)[int(place)] for place in places]
        cases = nearest_queries(
            shown, texts, vectors, self.triplets.queries, self.embeddings, self.options.nearest
        )
        for case in cases:
            case["gain"] = of_target.get(case["query_id"])
            for near in case["nearest"]:
                row = near.pop("row")
                near["loss_reduction"] = float(self.losses[0][row] - self.losses[1][row])
                near["gain"] = of_source.get(near["query_id"])
        return cases


def _correlated(targets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    gains = {name: record["gain"] for name, record in targets.items() if record["gain"] is not None}
    reductions = {name: record["reduction"] for name, record in targets.items()}
    [row] = correlations({"reduction of the nearest cluster's loss": reductions}, gains)
    return {"of": row.pop("predictor"), "targets": row.pop("queries"), **row}


def _panel(report: dict[str, Any]) -> Panel:
    reduction = {name: record["reduction"] for name, record in report["targets"].items()}
    gain = {name: record["gain"] for name, record in report["targets"].items()}
    row = report["reduction_against_gain"]
    told = "" if row["pearson"] is None else f"r = {row['pearson']:+.3f}, τ = {row['kendall']:+.3f}"
    names = file_names(report["targets"])  # paths are too long
    y_label = f"gain in {report['measure']}"
    return Panel(reduction, gain, "reduction of the nearest cluster's loss", y_label, told, names)


def _check(targets: list[str], before: str, after: str) -> None:
    if not targets:
        raise InputError("no target; name at least one with --target")
    twice = [target for target in targets if targets.count(target) > 1]
    if twice:
        raise InputError(f"target {twice[0]!r} is named twice")
    if before == after:
        raise InputError(f"before and after are the same model, {before!r}")


def _queries(dataset: str, split: str) -> dict[str, str]:
    collection = load_collection(dataset, split, labels="optional")
    if collection.split is None:
        log.info("%s has no split %s: all its %d queries count", dataset, split, len(collection.queries))
    return collection.queries


def _check_queries(texts: dict[str, dict[str, str]], chosen: Sequence[str]) -> None:
    for name, queries in texts.items():
        if not queries:
            raise InputError(f"{name} has no queries, so no source queries are near to it")
    for query in chosen:
        if not any(query in queries for queries in texts.values()):
            raise InputError(f"query {query!r} is in none of the targets")
