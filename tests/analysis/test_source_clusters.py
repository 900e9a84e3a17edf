"""Source clusters near to targets: losses by hand, and real tiny encoders."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import write_beir
from hypothesis import given
from hypothesis import strategies as st

from beir_cocodr import COCODR
from beir_cocodr.analysis import SourceClusterOptions
from beir_cocodr.analysis.source_clusters import (
    cluster_similarities,
    nearest_queries,
    sample_triplets,
    source_clusters,
    source_losses,
)
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import evaluate

SMALL = SourceClusterOptions(clusters=3, sample=14, negatives=2, cases=2)


@given(st.integers(0, 999), st.integers(1, 20), st.integers(1, 6), st.integers(1, 5))
def test_similarity_of_a_cluster_is_the_mean_over_all_pairs(seed, queries, targets, k):
    rng = np.random.default_rng(seed)
    source, target = (rng.normal(size=(n, 3)).astype(np.float32) for n in (queries, targets))
    labels = rng.integers(0, k, queries)
    result = cluster_similarities(source, labels, target, k)
    for cluster in range(k):
        pairs = [
            float(q.astype(np.float64) @ t)
            for q in source[labels == cluster]
            for t in target.astype(np.float64)
        ]
        assert result[cluster] == (pytest.approx(np.mean(pairs), abs=1e-9) if pairs else -math.inf)


def test_nearest_queries_by_hand():
    source = np.array([[1, 9], [3, 0], [1, 0]], np.float32)
    assert nearest_queries(np.array([1, 0], np.float32), source, 2) == [(1, 3.0), (0, 1.0)]


class Lookup:
    """An encoder with fixed embeddings: the text of a query or document is a row number."""

    def __init__(self, queries, documents, similarity):
        self.queries, self.documents = (
            torch.as_tensor(np.asarray(v, np.float32)) for v in (queries, documents)
        )
        self.similarity_fn_name = similarity

    def encode_queries(self, texts, **options):
        return self.queries[[int(text) for text in texts]]

    def encode_corpus(self, corpus, **options):
        return self.documents[[int(document["text"]) for document in corpus]]


class Numbers:
    """Documents whose text is their row."""

    def take(self, rows):
        return [{"_id": f"d{row}", "title": "", "text": str(row)} for row in rows.tolist()]


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_losses_are_those_of_single_triplets_averaged(similarity):
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(300, 4)), rng.normal(size=(20, 4))
    rows = rng.integers(0, 20, size=(300, 4))
    texts = {f"q{i}": str(i) for i in range(300)}
    losses, embeddings = source_losses(
        Lookup(queries, documents, similarity), Numbers(), texts, rows
    )
    q, d = (
        queries.astype(np.float32).astype(np.float64),
        documents.astype(np.float32).astype(np.float64),
    )
    if similarity == "cosine":
        q, d = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (q, d))
    for i in (0, 7, 255, 256, 299):
        scores = (20 if similarity == "cosine" else 1) * d[rows[i]] @ q[i]
        expected = np.mean([math.log1p(math.exp(negative - scores[0])) for negative in scores[1:]])
        assert losses[i] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(embeddings, q, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_finite_names_its_query():
    with pytest.raises(InputError, match=r"'q7'.*finite"):
        source_losses(
            Lookup([[np.nan, 1]], np.ones((2, 2)), "dot"),
            Numbers(),
            {"q7": "0"},
            np.array([[0, 1]]),
        )


def test_negatives_of_triplets_are_not_relevant(beir_folder):
    collection = load_collection(beir_folder, "train")

    def sampled(**options):
        return sample_triplets(collection, TextFormat(), SourceClusterOptions(**options))

    queries, triplets = sampled(sample=10, negatives=3, seed=1)
    assert len(queries) == 10
    assert triplets.shape == (10, 4)
    for query, rows in zip(queries, triplets, strict=True):
        relevant = {d for d, grade in collection.qrels[query].items() if grade > 0}
        positive, *negatives = collection.documents.ids(rows)
        assert positive in relevant
        assert not relevant & set(negatives)
    again = sampled(sample=10, negatives=3, seed=1)
    assert (again[0], again[1].tolist()) == (queries, triplets.tolist())
    assert sampled(sample=10, negatives=3, seed=2)[0] != queries
    assert list(sampled(sample=99)[0]) == list(collection.queries)


@pytest.fixture(scope="module")
def study(tmp_path_factory, tiny_bert):
    """A source, two targets, two encoders, and results of both on all three."""
    root = tmp_path_factory.mktemp("study")
    folders = [str(write_beir(root / name, seed=i)) for i, name in enumerate("sab")]
    after = shutil.copytree(tiny_bert, root / "after")
    model = COCODR(str(tiny_bert)).transformers_model
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.weight.mul_(0.5)
    model.save_pretrained(after)
    models = [str(tiny_bert), str(after)]
    results = []
    for folder in folders:
        split = "train" if folder == folders[0] else "test"
        evaluate(models, folder, output=root / f"r{len(results)}", split=split)
        results.append(root / f"r{len(results)}" / "results.json")
    return folders, models, results


@pytest.fixture(scope="module")
def report(study):
    (source, *targets), models, results = study
    return source_clusters(models, targets, source=source, results=results, options=SMALL)


def test_nearest_cluster_losses_and_gains_follow_from_the_parts(study, report):
    (source, *targets), models, results = study
    collection = load_collection(source, "train")
    triplets = sample_triplets(
        collection, COCODR(models[0]).text_format, SourceClusterOptions(sample=14, negatives=2)
    )
    losses = [source_losses(COCODR(model), collection.documents, *triplets)[0] for model in models]
    sizes = [cluster.queries for cluster in report.clusters]
    assert sum(sizes) == 14
    for k, side in enumerate(("loss_before", "loss_after")):
        mean = np.average([getattr(cluster, side) for cluster in report.clusters], weights=sizes)
        assert mean == pytest.approx(losses[k].mean(), rel=1e-9)
    by_number = {cluster.cluster: cluster for cluster in report.clusters}
    for target, file in zip(targets, results[1:], strict=True):
        record, judged = report.targets[target], json.loads(file.read_text())["models"]
        assert record.reduction == pytest.approx(record.loss_before - record.loss_after)
        assert record.loss_after == by_number[record.cluster].loss_after
        before, after = (judged[model]["measures"]["nDCG@10"] for model in models)
        assert record.gain == pytest.approx(after - before)
        assert len(record.cases) == 2
    improved = sum(record.reduction > 0 for record in report.targets.values())
    assert report.nearest_improved == improved


def test_cases_are_the_largest_changes_with_the_gains_of_both_queries(study, report):
    (_, *targets), models, results = study

    def changes(file):
        result = []
        for model in models:
            record = json.loads(file.read_text())["models"][model]
            lines = (file.parent / record["per_query"]).read_text().splitlines()
            column = lines[0].split("\t").index("nDCG@10")
            result.append(
                {line.split("\t")[0]: float(line.split("\t")[column]) for line in lines[1:]}
            )
        return {query: result[1][query] - value for query, value in result[0].items()}

    of_source, of_target = changes(results[0]), changes(results[1])
    cases = report.targets[targets[0]].cases
    largest = sorted((abs(change) for change in of_target.values()), reverse=True)[:2]
    assert [abs(case.gain) for case in cases] == pytest.approx(largest)
    for case in cases:
        assert case.gain == pytest.approx(of_target[case.query_id])
        [near] = case.nearest
        assert near.gain == pytest.approx(of_source[near.query_id])


def test_the_queries_of_the_source_are_nearest_to_themselves(study):
    (source, *_), models, _ = study
    wanted = list(load_collection(source, "train").queries)[:3]
    options = SourceClusterOptions(
        clusters=3, sample=99, negatives=1, split="train", queries=tuple(wanted)
    )
    result = source_clusters(models, source, source=source, options=options)
    cases = result.targets[source].cases
    assert [case.query_id for case in cases] == wanted
    model = COCODR(models[1])
    vectors = model.encode_queries(list(load_collection(source, "train").queries.values()))
    for case, row in zip(cases, (vectors[:3] @ vectors.T).max(axis=1), strict=True):
        assert case.nearest[0].similarity == pytest.approx(row, rel=1e-5)
        assert case.gain is None
    assert result.reduction_against_gain is None


def test_the_same_weights_before_and_after_reduce_nothing(study, tmp_path):
    (source, *targets), models, _ = study
    copy = shutil.copytree(models[0], tmp_path / "copy")
    result = source_clusters([models[0], copy], targets, source=source, options=SMALL)
    assert {cluster.reduction for cluster in result.clusters} == {0}
    assert result.nearest_improved == 0


def test_bad_input_is_refused_by_name(study, tiny_cosine, tmp_path):
    (source, *targets), models, results = study

    def refused(match: str, targets=targets, models=models, results=(), **options):
        with pytest.raises(InputError, match=match) as error:
            source_clusters(
                models,
                targets,
                source=source,
                results=results,
                options=replace(SMALL, **options),
            )
        assert "\n" not in str(error.value)

    refused("the target is an empty list", targets=[])
    refused("twice", targets=[targets[0]] * 2)
    refused("twice", models=[models[0]] * 2)
    refused(
        f"{models[0]} compares by dot, {tiny_cosine} by cosine",
        models=[models[0], str(tiny_cosine)],
    )
    refused("split 'x'", source_split="x")
    refused("'x' .*none", queries=("x",))
    refused("no queries", targets=[f"{targets[0]}/corpus.jsonl"])
    refused(f"{source}: 1000 clusters for .* lower --clusters", clusters=1000)
    refused("is in no results file", models=[models[0], "x"], results=results)
    with pytest.raises(InputError, match=r"negatives .*30"):
        SourceClusterOptions(negatives=1_000_000_000)
    with pytest.raises(InputError, match=r"clusters .*1"):
        SourceClusterOptions(clusters=0)


def test_the_command_prints_and_writes_the_report(capsys, study, tmp_path):
    (source, *targets), models, results = study
    arguments = ["source-clusters", "--source", source, "--before", models[0], "--after", models[1]]
    arguments += [part for target in targets for part in ("--target", target)]
    arguments += [
        "--clusters",
        "3",
        "--sample",
        "14",
        "--negatives",
        "2",
        "--output",
        str(tmp_path),
    ]
    arguments += [part for file in results for part in ("--results", str(file))]
    with pytest.raises(SystemExit) as status:
        main([*arguments, "--json"])
    assert not status.value.code
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "source_clusters.json").read_text())
    if result["picture"]:
        assert (tmp_path / "source_clusters.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit) as status:
        main([*arguments[: arguments.index("--results")], "--picture"])
    assert status.value.code == 2
    assert "give --results" in capsys.readouterr().err
    with pytest.raises(SystemExit) as status:
        main(arguments)
    assert not status.value.code
    told = " ".join(capsys.readouterr().out.split())
    for part in ("14 queries of", "in 3 clusters", "reduction of loss", "of 2 targets"):
        assert part in told
