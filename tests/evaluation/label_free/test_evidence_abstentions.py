"""Systems that cannot answer every query: black boxes, which have no crops, and runs."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import CompareOptions, compare
from beir_cocodr.evaluation.judge.material import (
    Searched,
    complete_judgements,
    material_of_queries,
)
from beir_cocodr.evaluation.label_free.estimates import estimate_pair
from beir_cocodr.evaluation.label_free.estimators import CROPS, GENERATED, WITH_BM25, WITH_FUSION
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.runs import run_results, write_run
from beir_cocodr.models.spec import FUSIONS, HOSTED, ModelSpec, calibration_kind
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.resolve import resolve_models
from beir_cocodr.retrieval.resources import Resources

WITHOUT_LABELS = CompareOptions(labels=False, samples=20)


class Engine:
    """BM25 behind a method ``search``, which counts what it is asked."""

    def __init__(self, documents):
        self.documents = documents
        self.bm25 = BM25(documents)
        self.asked = []

    def search(self, queries, top_k):
        self.asked += queries.values()
        results = self.bm25.search(queries, top_k).results(self.documents)
        return {query: dict(hits) for query, hits in results.items()}


@pytest.fixture
def collection(distinct):
    return load_collection(distinct)


@pytest.fixture
def engine(collection):
    return Engine(collection.documents)


def gathered(collection, models, folder, queries=None):
    resources = Resources(collection.documents, folder)
    resources.name_specs(resolve_models(models))
    gatherer = Gatherer(resources, list(models), samples=20)
    return gatherer.gather(collection.queries if queries is None else queries)


def by_estimator(estimates):
    return {estimate.estimator: estimate for estimate in estimates}


def test_a_black_box_is_asked_everything_except_crops(collection, engine, clean, tmp_path):
    evidence = gathered(collection, {"engine": engine, "encoder": clean}, tmp_path)
    assert "engine" not in evidence.crops
    assert set(engine.asked) == {*evidence.queries.values(), *evidence.generated_queries.texts}
    # It is BM25, and so everything else is what BM25's would be.
    np.testing.assert_array_equal(evidence.lists["engine"], evidence.lists["bm25"])
    np.testing.assert_array_equal(evidence.generated["engine"], evidence.generated["bm25"])
    estimates = by_estimator(estimate_pair(evidence, "engine", "encoder"))
    asked = by_estimator(estimate_pair(evidence, "bm25", "encoder"))
    crops = estimates[CROPS]
    assert (crops.applies, crops.queries, crops.difference) == (False, 0, None)
    assert crops.remark == "engine cannot be queried with held-out crops"
    assert estimates[GENERATED].difference == asked[GENERATED].difference
    assert estimates[GENERATED].applies
    assert estimates[WITH_FUSION].queries == 40


def test_it_is_not_held_against_a_black_box_that_it_has_no_crops(collection, engine, clean):
    record = compare(
        {"engine": engine, "encoder": clean}, collection_triple(collection), options=WITHOUT_LABELS
    )
    [pair] = record.pairs
    assert CROPS not in pair.features
    assert record.retrieval["engine"] == {"model": "Engine", "queries_without_results": 0}


class Lookup:
    """Holds relevant documents by query id, and notes the ids that it is asked."""

    def __init__(self, qrels):
        self.qrels = qrels
        self.ids = []

    def search(self, queries, top_k):
        self.ids += queries
        return {query: dict(self.qrels.get(query, {})) for query in queries}


def test_an_engine_is_asked_by_the_ids_of_the_collection(collection, tmp_path):
    """It returns the relevant documents alone, so its nDCG@10 is 1 by definition."""
    ids = list(collection.queries)[:12]
    lines = [
        f"{query}\t0\t{document}\t1\n" for query in ids for document in collection.qrels[query]
    ]
    (tmp_path / "judged.tsv").write_text("".join(lines))
    oracle = Lookup(collection.qrels)
    record = compare(
        {"bm25": "bm25", "oracle": oracle},
        collection_triple(collection),
        options=CompareOptions(samples=20, judgements=tmp_path / "judged.tsv"),
    )
    assert record.few_labels.values["oracle"] == pytest.approx(1)
    assert record.retrieval["oracle"] == {"model": "Lookup", "queries_without_results": 0}
    assert set(collection.queries) < set(oracle.ids)
    assert len(oracle.ids) == len(set(oracle.ids))


def test_an_engine_that_answers_no_query_is_named_and_counted(collection, tmp_path, caplog):
    others = Lookup({f"other-{id}": grades for id, grades in collection.qrels.items()})
    with caplog.at_level(logging.WARNING):
        evidence = gathered(collection, {"bm25": "bm25", "other": others}, tmp_path)
    assert "other has no results for any of the 40 queries" in caplog.text
    assert f"such as {next(iter(collection.queries))!r}" in caplog.text
    assert evidence.retrieval["other"]["queries_without_results"] == 40
    assert "queries_without_results" not in evidence.retrieval["bm25"]


def test_ids_of_generated_queries_are_none_of_the_collection(collection, tmp_path):
    """The collection has the very ids that the generated queries would get."""
    first, second = Lookup({}), Lookup({})
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    gathered(collection, {"engine": first}, tmp_path / "first")
    made = [id for id in first.ids if id not in collection.queries]
    texts = dict(zip(made, collection.queries.values(), strict=False))
    gathered(collection, {"engine": second}, tmp_path / "second", texts)
    assert len(made) == 20
    assert len(second.ids) == len(set(second.ids)) == 40


def collection_triple(collection):
    documents = {id: document["text"] for id, document in collection.documents.items()}
    return documents, collection.queries, collection.qrels


@pytest.fixture
def half(collection, engine, tmp_path):
    """A run of BM25 that answers every second query, with one document that does not exist."""
    ids = list(collection.queries)[::2]
    run = engine.search({id: collection.queries[id] for id in ids}, 100)
    results = {id: list(hits.items()) for id, hits in run.items()}
    results[ids[0]].append(("nowhere", 0.001))
    path = tmp_path / "half.run"
    write_run(path, results, "half")
    return path


def test_a_run_is_judged_on_the_queries_that_it_answers(collection, half, clean, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        evidence = gathered(collection, {f"run:{half}": f"run:{half}", "encoder": clean}, tmp_path)
    name = f"run:{half}"
    assert name not in evidence.crops
    assert name not in evidence.generated
    estimates = by_estimator(estimate_pair(evidence, name, "encoder"))
    assert estimates[CROPS].remark == f"{name} cannot be queried with held-out crops"
    assert estimates[GENERATED].remark == f"{name} cannot be queried with generated queries"
    # Half of 40 queries; on those the run is what the engine answers.
    fusion = estimates[WITH_FUSION]
    assert fusion.queries == 20
    answered = {id: collection.queries[id] for id in list(collection.queries)[::2]}
    (tmp_path / "again").mkdir()
    models = {"engine": Engine(collection.documents), "encoder": clean}
    on_those = gathered(collection, models, tmp_path / "again", answered)
    same = by_estimator(estimate_pair(on_those, "engine", "encoder"))[WITH_FUSION]
    assert (fusion.a, fusion.b) == (same.a, same.b)
    assert evidence.retrieval[name]["queries_without_results"] == 20
    assert evidence.retrieval[name]["documents_not_in_the_corpus"] == 1
    assert "does not answer 20 of 40 queries" in caplog.text
    assert "'nowhere'" in caplog.text


def test_a_run_that_answers_all_is_no_different_from_its_model(collection, engine, tmp_path):
    run = engine.search(collection.queries, 100)
    record = compare(
        {"copy": run, "bm25": "bm25"}, collection_triple(collection), options=WITHOUT_LABELS
    )
    [pair] = record.pairs
    assert (pair.verdict, pair.distance, pair.interval) == ("no difference", 0, (0, 0))


def test_agreement_with_bm25_does_not_count_where_nobody_knows_the_kind(
    collection, engine, tmp_path
):
    models = {"engine": engine, "other": Engine(collection.documents)}
    evidence = gathered(collection, models, tmp_path)
    agreement = by_estimator(estimate_pair(evidence, "engine", "other"))[WITH_BM25]
    assert not agreement.applies
    assert "not known" in agreement.remark


def test_a_run_needs_queries_that_it_answers(collection, half, tmp_path):
    documents, queries, qrels = collection_triple(collection)
    with pytest.raises(InputError, match="has no queries that it could answer"):
        compare([f"run:{half}", "bm25"], documents, options=WITHOUT_LABELS)
    others = {f"other-{id}": text for id, text in queries.items()}
    judged = {f"other-{id}": grades for id, grades in qrels.items()}
    with pytest.raises(InputError, match="answers none of the 40 queries"):
        compare([f"run:{half}", "bm25"], (documents, others, judged), options=WITHOUT_LABELS)


def test_judged_queries_that_a_run_lacks_are_said(collection, half, clean, tmp_path, caplog):
    ids = list(collection.queries)[:12]
    pairs = [(id, document) for id in ids for document in collection.qrels[id]]
    table = tmp_path / "judged.tsv"
    rows = "".join(f"{query}\t0\t{document}\t1\n" for query, document in pairs)
    table.write_text(rows)
    models = {"old": f"run:{half}", "encoder": clean}
    record = compare(
        models,
        collection_triple(collection),
        options=CompareOptions(samples=20, judgements=table),
    )
    assert record.few_labels.queries == 12
    assert "no results for 6 of 12 judged queries, such as 'q1'" in caplog.text


class Late(Engine):
    """The same without its three best documents."""

    def search(self, queries, top_k):
        results = super().search(queries, top_k + 3)
        return {query: dict(list(hits.items())[3:]) for query, hits in results.items()}


def test_a_few_judged_queries_leave_a_chance_that_its_interval_allows(collection, tmp_path):
    """Nothing is decided about an engine without labels, nor by fewer than ten judged queries."""
    table = tmp_path / "judged.tsv"
    rows = [
        f"{query}\t0\t{document}\t1\n"
        for query in list(collection.queries)[:5]
        for document in collection.qrels[query]
    ]
    table.write_text("".join(rows))
    options = CompareOptions(samples=20, judgements=table)
    models = {"engine": Late(collection.documents), "bm25": "bm25"}
    record = compare(models, collection_triple(collection), options=options)
    [pair] = record.pairs
    assert record.few_labels.queries == 5
    assert pair.verdict == "cannot tell"
    low, high = pair.interval
    assert low <= 0 <= high
    assert high - low < 2
    assert 0.05 - 1e-9 <= pair.probability <= 0.95 + 1e-9


def test_a_judge_grades_only_what_all_runs_answer(collection, half):
    spec = resolve_models({"old": f"run:{half}", "bm25": "bm25"})
    answered = set(run_results(spec["old"]))
    everything = {query: [("d", 1.0)] for query in collection.queries}
    results = {"old": {query: everything[query] for query in answered}, "bm25": everything}
    ids = list(collection.queries)
    labels = complete_judgements({query: {"d": 1} for query in ids[:6]}, "six")
    material = material_of_queries(Searched(spec, collection, results, None), labels, 100)
    assert set(material.queries) == answered
    assert set(material.labelled.queries) == answered & set(ids[:6])


def test_a_run_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match=r"run:nowhere\.run.*no file 'nowhere\.run'"):
        resolve_models(["bm25", "run:nowhere.run"])
    with pytest.raises(InputError, match=r"no file 'nowhere\.run'"):
        resolve_models("nowhere.run")
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(InputError, match=r"folder of results.*MODEL\.run"):
        resolve_models(tmp_path)


def test_the_label_bm25_is_that_of_bm25(collection, engine, clean):
    with pytest.raises(InputError, match="label bm25"):
        compare(
            {"bm25": engine, "encoder": clean},
            collection_triple(collection),
            options=WITHOUT_LABELS,
        )


def test_a_run_with_a_prefix_is_the_run_with_labels(distinct, half, tmp_path):
    from beir_cocodr import evaluate

    outputs = [tmp_path / "bare", tmp_path / "prefixed"]
    bare = evaluate(str(half), str(distinct), output=outputs[0]).models[str(half)]
    prefixed = evaluate(f"run:{half}", str(distinct), output=outputs[1]).models[f"run:{half}"]
    assert prefixed.measures == bare.measures
    assert prefixed.run == bare.run == str(half)
    # Another run in the same file is another run.
    half.write_text(half.read_text().replace("half", "other"))
    with pytest.raises(InputError, match="begun with other settings"):
        evaluate(f"run:{half}", str(distinct), output=outputs[1])


def test_a_reranked_black_box_is_a_black_box():
    parse = ModelSpec.parse
    assert not parse("rerank:cross@bm25").is_black_box
    assert parse("rerank:cross@http://localhost/?q={query}").is_black_box
    assert parse("run:some.run").is_black_box
    assert parse("run:some.run").encoder == "some.run"


@pytest.mark.parametrize(
    "name", [*(f"{kind}:m" for kind in FUSIONS), *(f"{kind}:c@bm25" for kind in HOSTED)]
)
def test_every_kind_of_ours_has_a_name_for_calibrations(name):
    assert calibration_kind(ModelSpec.parse(name))


@pytest.mark.parametrize("name", ["run:some.run", "http://localhost/?q={query}"])
def test_nobody_knows_the_kind_of_a_black_box(name):
    assert calibration_kind(ModelSpec.parse(name)) is None


@pytest.mark.parametrize("judged", [3, 12])
def test_estimate_and_chance_of_an_engine_agree_once_queries_are_judged(
    judged, collection, engine, clean, tmp_path
):
    """Its documents are called irrelevant and the encoder's relevant."""
    queries = dict(list(collection.queries.items())[:judged])
    lines = ["query-id\tcorpus-id\tscore"]
    searched = resolve_and_search(collection, clean, queries, tmp_path)
    for query, best in searched.items():
        lines += [f"{query}\t{document}\t1" for document in best]
    (tmp_path / "qrels.tsv").write_text("\n".join(lines) + "\n")
    options = CompareOptions(labels=False, samples=20, judgements=tmp_path / "qrels.tsv")
    models = {"engine": engine, "encoder": clean}
    [pair] = compare(models, collection_triple(collection), options=options).pairs
    assert (pair.estimate > 0) == (pair.probability > 0.5)
    if judged >= 10:
        assert pair.estimate > 0
        assert pair.prior_share == 0
    else:
        assert pair.verdict == "cannot tell"


def resolve_and_search(collection, model, queries, folder):
    """Return the three documents that an encoder ranks first for each query."""
    resources = Resources(collection.documents, folder / "searched")
    resources.name_specs(resolve_models([model]))
    ranker = resources.ranker(model)
    ranker.prepare()
    results = ranker.search(queries, 3).results(collection.documents)
    return {query: [id for id, _ in hits] for query, hits in results.items()}
