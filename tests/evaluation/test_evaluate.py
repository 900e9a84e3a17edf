from __future__ import annotations

import json

import pytest

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.evaluate import EvaluateOptions, evaluate
from beir_cocodr.evaluation.results import EvaluationRecord
from beir_cocodr.evaluation.runs import identical_ids
from beir_cocodr.models.spec import SearchOptions


@pytest.fixture(scope="module")
def report(beir_folder, tiny_bert, tmp_path_factory):
    output = tmp_path_factory.mktemp("output")
    models = {"dense": str(tiny_bert), "bm25": "bm25", "both": f"hybrid:{tiny_bert}"}
    return evaluate(models, str(beir_folder), output=output, measures="nDCG@10 R@20 AP"), output


def test_results_say_what_the_numbers_depend_on(report, beir_folder):
    found, output = report
    assert json.loads((output / "results.json").read_text()) == json.loads(
        json.dumps(found.to_json())
    )
    assert (found.documents, found.queries, found.identical_ids) == (48, 16, "keep")
    dense = found.models["dense"]
    assert dense.retrieval["similarity"] == "dot"
    assert dense.retrieval["text_format"]["query_length"] == 64
    assert 0 <= dense.retrieval["truncated_documents"] <= 1
    assert found.models["bm25"].retrieval["analyzer"] == "english"
    assert dense.versions["torch"]
    assert len(found.comparisons) == 3 * 3
    assert not list(output.glob(".unfinished-*"))
    assert EvaluationRecord.read(output / "results.json") == found


def test_runs_are_valid_and_per_query_scores_average_to_the_measures(report, beir_folder):
    found, output = report
    queries = load_collection(beir_folder).queries
    for record in found.models.values():
        ranks: dict[str, int] = {}
        last: dict[str, float] = {}
        for line in (output / record.run).read_text().splitlines():
            query, q0, document, rank, score, tag = line.split(" ")
            assert (q0, int(rank)) == ("Q0", ranks.get(query, 0) + 1)
            assert float(score) <= last.get(query, float("inf"))
            assert query in queries
            assert document.startswith("d")
            ranks[query], last[query] = int(rank), float(score)
            assert tag == record.run.removesuffix(".run")
        header, *rows = (output / record.per_query).read_text().splitlines()
        names = header.split("\t")[1:]
        assert names == list(record.measures)
        for column, name in enumerate(names, 1):
            values = [float(row.split("\t")[column]) for row in rows]
            assert sum(values) / len(values) == pytest.approx(record.measures[name], abs=1e-9)


def check_with_other_tools(found, output, collection):
    """The run files scored by pytrec_eval agree to 1e-6, by BEIR, which rounds to five places, to
    1e-5.
    """
    import ir_measures
    import pytrec_eval
    from beir.retrieval.evaluation import EvaluateRetrieval

    for record in found.models.values():
        run: dict[str, dict[str, float]] = {}
        for scored in ir_measures.read_trec_run(str(output / record.run)):
            run.setdefault(scored.query_id, {})[scored.doc_id] = scored.score
        evaluator = pytrec_eval.RelevanceEvaluator(collection.qrels, {"ndcg_cut.10"})
        scores = [scores["ndcg_cut_10"] for scores in evaluator.evaluate(run).values()]
        ours = record.measures["nDCG@10"]
        assert sum(scores) / len(collection.qrels) == pytest.approx(ours, abs=1e-6)
        if not record.queries_without_results:
            ndcg, *_ = EvaluateRetrieval.evaluate(
                collection.qrels, run, [10], ignore_identical_ids=False
            )
            assert ndcg["NDCG@10"] == pytest.approx(ours, abs=1e-5)


def test_run_files_score_the_same_with_other_tools(report, beir_folder):
    check_with_other_tools(*report, load_collection(beir_folder))


@pytest.mark.parametrize(
    ("dataset", "policy", "expected"),
    [
        ("arguana", "auto", "drop"),
        ("irds:beir/quora/test", "auto", "drop"),
        ("/data/arguana/", "auto", "drop"),
        ("scifact", "auto", "keep"),
        ("/data/my-arguana-notes", "auto", "keep"),
        ("arguana", "keep", "keep"),
        ("scifact", "drop", "drop"),
    ],
)
def test_policy_for_identical_ids(dataset, policy, expected):
    assert identical_ids(dataset, policy) == expected


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_identical_ids_are_kept_or_dropped_and_the_depth_stays(policy, tmp_path):
    folder = tmp_path / "c"
    (folder / "qrels").mkdir(parents=True)
    lines = [f'{{"_id": "{i}", "text": "wing drag {"flow " * i}"}}\n' for i in range(1, 6)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": "wing"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\t2\t1\n")
    found = evaluate(
        ["bm25"],
        str(folder),
        output=tmp_path / "o",
        options=EvaluateOptions(identical_ids=policy, top_k=3),
    )
    documents = [line.split()[2] for line in (tmp_path / "o" / "bm25.run").read_text().splitlines()]
    assert len(documents) == 3
    assert ("1" in documents) is (policy == "keep")
    assert found.models["bm25"].identical_ids == policy
    assert found.models["bm25"].intervals["nDCG@10"] is None  # one query


def test_unknown_policy_and_no_model(beir_folder, tmp_path):
    with pytest.raises(InputError, match="policy"):
        identical_ids("scifact", "maybe")
    with pytest.raises(InputError, match="no model"):
        evaluate([], str(beir_folder), output=tmp_path)


@pytest.mark.parametrize(
    ("name", "ndcg", "recall"),
    [
        ("cranfield", 0.3433, 0.7223),
        ("cisi", 0.3679, 0.4193),
        ("npl", 0.4449, 0.6230),
        ("time", 0.6237, 0.8847),
    ],
)
def test_reference_points_of_real_collections(real_collections, tmp_path, name, ndcg, recall):
    folder = real_collections / name
    found = evaluate("bm25", str(folder), output=tmp_path / "judged")
    measures = found.models["bm25"].measures
    assert measures["nDCG@10"] == pytest.approx(ndcg, abs=0.003)
    assert measures["R@100"] == pytest.approx(recall, abs=0.003)
    check_with_other_tools(found, tmp_path / "judged", load_collection(folder))


@pytest.fixture
def start_of_npl(real_collections):
    """Return the first 120 documents of NPL, and the 17 queries with a relevant one among them."""
    whole = load_collection(real_collections / "npl")
    documents = dict(list(whole.documents.items())[:120])
    qrels = {}
    for query, grades in whole.qrels.items():
        grades_here = {
            document: grade for document, grade in grades.items() if document in documents
        }
        if grades_here:
            qrels[query] = grades_here
    queries = {query: whole.queries[query] for query in qrels}
    return documents, queries, qrels


def test_reference_points_of_a_real_encoder(start_of_npl, minilm, tmp_path):
    """The figures come from sentence-transformers, bm25s (Lucene's variant, k1 0.9, b 0.4), the
    formulas in numpy over all documents, and pytrec_eval.
    """

    def figures(search, *models):
        output = tmp_path / f"weight-{search.bm25_weight}"
        found = evaluate(list(models), start_of_npl, output=output, search=search)
        check_with_other_tools(found, output, load_collection(start_of_npl))
        return [found.models[model].measures["nDCG@10"] for model in models]

    models = ("bm25", minilm, f"hybrid:{minilm}", f"feedback:{minilm}")
    expected = [0.7181, 0.8070, 0.7671, 0.8286]
    assert figures(SearchOptions(bm25_weight=1.0), *models) == pytest.approx(expected, abs=0.003)
    # The vectors of the first evaluation are kept.
    [half] = figures(SearchOptions(), f"hybrid:{minilm}")
    assert half == pytest.approx(0.7928, abs=0.003)


def test_a_file_of_judgements_judges_in_place_of_labels(
    report, beir_folder, tiny_bert, tmp_path, capsys
):
    """The same labels from a file give the same figures; nDCG@10 by the judged queries alone is the
    measure's.
    """
    labelled, _ = report
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("corpus.jsonl", "queries.jsonl"):
        (corpus / name).write_bytes((beir_folder / name).read_bytes())
    qrels = tmp_path / "some.tsv"
    qrels.write_bytes((beir_folder / "qrels" / "test.tsv").read_bytes())
    arguments = ["evaluate", "--dataset", str(corpus), "--model", str(tiny_bert), "--model", "bm25"]
    with pytest.raises(SystemExit) as status:
        main([*arguments, "--judgements", str(qrels), "--output", str(tmp_path / "o")])
    assert not status.value.code
    found = EvaluationRecord.read(tmp_path / "o" / "results.json")
    few = found.few_labels
    for label, model in (("dense", str(tiny_bert)), ("bm25", "bm25")):
        assert found.models[model].measures["nDCG@10"] == labelled.models[label].measures["nDCG@10"]
        assert few.values[model] == pytest.approx(labelled.models[label].measures["nDCG@10"])
    assert (few.queries, few.drawn) == (16, False)
    low, high = few.pairs[str(tiny_bert)]["bm25"].interval
    assert low < few.values["bm25"] - few.values[str(tiny_bert)] < high
    assert "from 16 judged queries alone" in " ".join(capsys.readouterr().out.split())
    qrels.write_text("q0 0 d1\n")
    with pytest.raises(SystemExit) as status:
        main([*arguments, "--judgements", str(qrels), "--output", str(tmp_path / "p")])
    assert status.value.code == 2
    assert f"{qrels}:1: grade 'd1'" in capsys.readouterr().err
