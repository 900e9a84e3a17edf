"""Searches over HTTP, asked at a real server on this machine that ranks by BM25."""

from __future__ import annotations

import json
import logging
import math
import os
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from beir_cocodr import Searcher, compare, evaluate
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.compare import CompareOptions
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.http_search import HttpSearch
from beir_cocodr.retrieval.http_settings import PRESETS, HttpSettings, steps_of, values_at
from tests.http_servers import Asked, Reply, serving


class LuceneEngine:
    """An engine that answers as OpenSearch does, by BM25."""

    def __init__(self, documents):
        self.documents = documents
        self.bm25 = BM25(documents)

    def hits(self, query, top_k):
        results = self.bm25.search({"query": query}, top_k).results(self.documents)
        return results["query"]

    def __call__(self, asked: Asked):
        assert asked.path == "/docs/_search"
        query = asked.content["query"]["multi_match"]["query"]
        hits = [
            {"_id": id, "_score": score} for id, score in self.hits(query, asked.content["size"])
        ]
        return {"took": 1, "hits": {"total": {"value": len(hits)}, "hits": hits}}


@pytest.fixture(scope="module")
def collection(distinct):
    return load_collection(distinct)


@pytest.fixture(scope="module")
def engine(collection):
    return LuceneEngine(collection.documents)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))


#: Paths into an answer that has a list of ids beside a list of scores.
COLUMNS = {"ids": "i[]", "scores": "s[]"}


def settings_file(folder, **settings):
    path = folder / "settings.json"
    path.write_text(json.dumps(settings))
    return f"http:{path}"


def at_once(folder, server, **settings):
    """Name the engine at a server, with settings that do not wait."""
    given = {"url": f"{server.url}/search?q={{query}}", "retries": 0, "timeout": 5, **settings}
    return settings_file(folder, **given)


def test_an_engine_ranks_as_the_search_behind_it(collection, engine):
    queries = collection.queries
    with serving(engine) as server:
        ranking = HttpSearch(f"{server.url}/docs#opensearch", collection.documents).search(
            queries, 100
        )
    expected = engine.bm25.search(queries, 100)
    np.testing.assert_array_equal(ranking.rows, expected.rows)
    np.testing.assert_allclose(ranking.scores, expected.scores)
    assert {asked.method for asked in server.asked} == {"POST"}
    assert len(server.asked) == len(queries)


def test_it_is_evaluated_compared_and_searched_as_any_other(distinct, engine, tmp_path):
    with serving(engine) as server:
        name = f"{server.url}/docs#opensearch"
        record = evaluate([name, "bm25"], str(distinct), output=tmp_path / "judged")
        assert record.models[name].measures == record.models["bm25"].measures
        assert len(list((tmp_path / "judged").glob("*.run"))) == 2
        hits = Searcher(str(distinct), name).search("wing drag", top_k=3)
        assert [hit.id for hit in hits] == [id for id, _ in engine.hits("wing drag", 3)]
        comparison = compare(
            [name, "bm25"], str(distinct), options=CompareOptions(labels=False, samples=20)
        )
    [pair] = comparison.pairs
    assert (pair.verdict, pair.distance) == ("no difference", 0)
    assert comparison.retrieval[name]["ids"] == "hits.hits[]._id"
    [crops] = [one for one in pair.estimates if one.estimator == "held-out crops"]
    assert crops.remark == f"{name} cannot be queried with held-out crops"


def test_a_fusion_of_an_engine_is_reranked(distinct, engine, tiny_cross):
    with serving(engine) as server:
        first = f"{server.url}/docs#opensearch"
        names = [f"rerank:{tiny_cross}@{first}", f"rerank:{tiny_cross}@bm25"]
        record = evaluate(names, str(distinct))
    reranked, expected = (record.models[name].measures for name in names)
    assert reranked == pytest.approx(expected)


def test_the_command_line_takes_it(distinct, engine, capsys):
    with serving(engine) as server:
        name = f"{server.url}/docs#opensearch"
        with pytest.raises(SystemExit, match="0"):
            main(["search", "--dataset", str(distinct), "wing drag", "--model", name])
    assert engine.hits("wing drag", 1)[0][0] in capsys.readouterr().out


def test_the_simplest_engine_has_the_query_in_its_url(collection, engine):
    def answer(asked):
        query = parse_qs(urlsplit(asked.path).query)
        hits = engine.hits(query["q"][0], int(query["k"][0]))
        return [{"id": id} for id, _ in hits]

    text = "wing & drag? 100% #1 Flügel"
    with serving(answer) as server:
        name = f"{server.url}/search?q={{query}}&k={{top_k}}"
        ranking = HttpSearch(name, collection.documents).search({"q": text}, 5)
    assert ranking.results(collection.documents)["q"] == [
        (id, pytest.approx(-float(rank))) for rank, (id, _) in enumerate(engine.hits(text, 5))
    ]
    assert server.asked[0].method == "GET"


def test_templates_are_filled_once_and_keep_their_types():
    settings = HttpSettings(
        url="http://localhost/{query}",
        body={"text": "{query}", "n": "{top_k}", "in": 'bm25("{query_json}", {top_k})', "v": [1]},
    )
    request = settings.request('say "{top_k}"', 7)
    assert request.url == "http://localhost/say%20%22%7Btop_k%7D%22"
    assert request.body == {
        "text": 'say "{top_k}"',
        "n": 7,
        "in": 'bm25("say \\"{top_k}\\"", 7)',
        "v": [1],
    }


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("hits[].id", [1, 2]),
        ("$.hits[*].id", [1, 2]),
        ("nested[][].id", [3, 4]),
        ("nested[0][].id", None),
        ("nested.0[].id", [3]),
        ("nowhere[].id", []),
    ],
)
def test_paths(path, values):
    answer = {"hits": [{"id": 1}, {"id": 2}, {}], "nested": [[{"id": 3}], [{"id": 4}]]}
    if values is None:
        assert list(values_at(answer, steps_of(path))) == []
    else:
        assert list(values_at(answer, steps_of(path))) == values


def test_a_key_comes_from_the_environment_and_goes_nowhere_else(
    distinct, engine, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("ENGINE_KEY", "hidden-key")
    with serving(engine) as server:
        name = settings_file(
            tmp_path,
            preset="opensearch",
            url=f"{server.url}/docs",
            headers={"Authorization": "ApiKey ${ENGINE_KEY}"},
        )
        with caplog.at_level(logging.DEBUG):
            evaluate(name, str(distinct), output=tmp_path / "judged")
    assert {asked.headers["Authorization"] for asked in server.asked} == {"ApiKey hidden-key"}
    assert "hidden-key" not in caplog.text
    for folder, _, files in os.walk(tmp_path):
        for file in files:
            assert b"hidden-key" not in Path(folder, file).read_bytes()
    monkeypatch.delenv("ENGINE_KEY")
    with pytest.raises(InputError, match="ENGINE_KEY is not set"):
        HttpSearch(name, load_collection(distinct).documents).search({"q": "other"}, 1)


def test_answers_are_kept_for_some_time_and_that_is_said(collection, engine, tmp_path, caplog):
    queries = dict(list(collection.queries.items())[:5])
    with serving(engine) as server:
        name = settings_file(tmp_path, preset="opensearch", url=f"{server.url}/docs")
        first = HttpSearch(name, collection.documents).search(queries, 10)
        with caplog.at_level(logging.INFO):
            again = HttpSearch(name, collection.documents).search({**queries, "new": "nozzle"}, 10)
        assert len(server.asked) == 6
        assert "5 of 6 answers" in caplog.text
        np.testing.assert_array_equal(first.rows, again.rows[:5])
        # Another number of documents is another question, and old answers are asked again.
        HttpSearch(name, collection.documents).search(queries, 11)
        assert len(server.asked) == 11
        for path in (tmp_path / "cache" / "answers").iterdir():
            os.utime(path, (0, 0))
        HttpSearch(name, collection.documents).search(queries, 10)
        assert len(server.asked) == 16
        never = settings_file(
            tmp_path, preset="opensearch", url=f"{server.url}/docs", keep_minutes=0
        )
        HttpSearch(never, collection.documents).search(queries, 10)
        assert len(server.asked) == 21


def test_what_the_corpus_lacks_is_counted_and_left_out(collection, tmp_path, caplog):
    known = collection.documents.ids([3, 5])
    answer = [{"id": known[0]}, {"id": "gone"}, {"id": known[1]}, {"id": known[0]}]
    with serving(lambda asked: answer) as server:
        search = HttpSearch(at_once(tmp_path, server), collection.documents)
        ranking = search.search({"a": "wing", "b": "drag"}, 10)
    assert [id for id, _ in ranking.results(collection.documents)["a"]] == known
    assert "1 of the 3 documents that it returned are not in the corpus, such as 'gone'" in (
        caplog.text
    )
    assert "several times" in caplog.text
    described = search.describe()
    assert described["documents_not_in_the_corpus"] == 1
    assert described["repeated_documents"] == 2
    assert described["queries_without_results"] == 0


def test_results_without_an_id_are_counted(collection, tmp_path, caplog):
    known = collection.documents.ids([3, 5])
    answer = [{"id": known[0]}, {"group": 1}, {"id": known[1]}]
    with serving(lambda asked: answer) as server:
        search = HttpSearch(at_once(tmp_path, server), collection.documents)
        ranking = search.search({"a": "wing", "b": "drag"}, 10)
    assert [id for id, _ in ranking.results(collection.documents)["b"]] == known
    assert "returned 2 results without [].id" in caplog.text
    assert search.describe()["results_without_id"] == 2
    # One query without results does not make an answer without ids readable.
    with serving(lambda asked: [] if "wing" in asked.path else [{"docid": known[0]}]) as server:
        search = HttpSearch(at_once(tmp_path, server), collection.documents)
        with pytest.raises(InputError, match="correct the path of the ids"):
            search.search({"a": "wing", "b": "drag"}, 10)


@pytest.mark.parametrize("result", [{"score": 2.5}, {"id": None, "score": 2.5}, {"id": None}, None])
@pytest.mark.parametrize("scores", ["", "[].score"])
def test_a_result_without_an_id_is_left_out_with_its_score(collection, tmp_path, result, scores):
    first, second = collection.documents.ids([3, 5])
    answer = [{"id": first, "score": 3.5}, result, {"id": second, "score": 1.5}]
    # The only result of another query lacks its id as well.
    with serving(lambda asked: answer if "wing" in asked.path else [result]) as server:
        search = HttpSearch(at_once(tmp_path, server, scores=scores), collection.documents)
        results = search.search({"a": "wing", "b": "drag"}, 10).results(collection.documents)
    expected = [3.5, 1.5] if scores else [0, -1]
    assert results == {"a": list(zip([first, second], expected, strict=True)), "b": []}
    described = search.describe()
    assert described["results_without_id"] == 2
    assert described["queries_without_results"] == 1


@pytest.mark.parametrize(
    ("answer", "paths"),
    [
        ({"i": ["A", None, "B"], "s": [3.5, 2.5, 1.5]}, COLUMNS),
        (
            {
                "groups": [
                    {"hits": [{"id": "A", "s": 3.5}, {"s": 2.5}]},
                    {"hits": [{"id": "B", "s": 1.5}]},
                ]
            },
            {"ids": "groups[].hits[].id", "scores": "groups[].hits[].s"},
        ),
        (
            [
                {"payload": {"id": "A"}, "s": 3.5},
                {"payload": None, "s": 9},
                {"payload": {"id": "B"}, "s": 1.5},
            ],
            {"ids": "[].payload.id", "scores": "[].s"},
        ),
    ],
)
def test_each_id_has_its_own_score_in_answers_of_any_form(collection, tmp_path, answer, paths):
    first, second = collection.documents.ids([3, 5])
    text = json.dumps(answer).replace('"A"', json.dumps(first)).replace('"B"', json.dumps(second))
    with serving(lambda asked: Reply(content=text.encode())) as server:
        search = HttpSearch(at_once(tmp_path, server, **paths), collection.documents)
        answers = search.answers({"a": "wing"}, 10)
        assert search.search({"a": "wing"}, 10).results(collection.documents)["a"] == [
            (first, 3.5),
            (second, 1.5),
        ]
    assert answers == {"a": {first: 3.5, second: 1.5}}
    assert search.describe()["results_without_id"] == 1


def test_answers_that_were_refused_are_not_kept(collection, tmp_path):
    """Once the engine is mended, the same search succeeds."""
    [known] = collection.documents.ids([3])
    for wrong in ([{"docid": known}], {"error": "no index"}):
        answers = [[{"id": known}], wrong]
        with serving(lambda asked, answers=answers: answers.pop()) as server:
            search = HttpSearch(at_once(tmp_path, server), collection.documents)
            with pytest.raises(InputError, match="correct the path of the ids"):
                search.search({"a": "wing"}, 10)
            assert search.answers({"a": "wing"}, 10) == {"a": {known: 0}}


#: Answers in the documented forms of engines that failed, or searched only a part of their index.
INCOMPLETE = {
    "opensearch": (
        {"timed_out": True, "hits": {"hits": [{"_id": "d1", "_score": 1.5}]}},
        "timed_out true",
    ),
    "elasticsearch": (
        {
            "timed_out": False,
            "_shards": {"total": 2, "successful": 1, "skipped": 0, "failed": 1},
            "hits": {"hits": []},
        },
        "_shards.failed 1",
    ),
    "vespa": (
        {"root": {"id": "toplevel", "errors": [{"code": 12, "summary": "Timed out"}]}},
        "root.errors .*Timed out",
    ),
    "weaviate": (
        {"data": {"Get": {"docs": None}}, "errors": [{"message": "no such property"}]},
        "errors .*no such property",
    ),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_an_answer_of_an_engine_that_failed_is_no_empty_answer(collection, tmp_path, name):
    """It would score 0, as if the engine had found nothing."""
    answer, message = INCOMPLETE[name]
    with serving(lambda asked: answer) as server:
        settings = {"preset": name, "url": f"{server.url}/docs", "retries": 0}
        search = HttpSearch(settings_file(tmp_path, **settings), collection.documents)
        with pytest.raises(InputError, match=message) as caught:
            search.search({"a": "wing"}, 10)
        assert "\n" not in str(caught.value)
        if name == "opensearch":  # the user may know better
            search = HttpSearch(
                settings_file(tmp_path, **settings, failures=[]), collection.documents
            )
            [known] = collection.documents.ids([0])
            answer["hits"]["hits"][0]["_id"] = known
            assert search.answers({"a": "wing"}, 10) == {"a": {known: 1.5}}


def test_a_query_that_failed_is_sent_again(collection, tmp_path):
    [known] = collection.documents.ids([0])
    whole = {"timed_out": False, "hits": {"hits": [{"_id": known, "_score": 1.5}]}}
    answers = [INCOMPLETE["opensearch"][0], INCOMPLETE["elasticsearch"][0], whole]
    asked = iter(answers)
    with serving(lambda request: next(asked)) as server:
        settings = {"preset": "opensearch", "url": f"{server.url}/docs", "retries": 2}
        search = HttpSearch(settings_file(tmp_path, **settings), collection.documents)
        assert search.answers({"a": "wing"}, 10) == {"a": {known: 1.5}}
    assert next(asked, None) is None  # all three were given


def test_vespa_has_no_list_where_it_finds_nothing(collection, tmp_path):
    nothing = {"root": {"id": "toplevel", "relevance": 1.0, "fields": {"totalCount": 0}}}
    with serving(lambda asked: nothing) as server:
        search = HttpSearch(f"{server.url}/docs#vespa", collection.documents)
        assert search.answers({"a": "wing"}, 10) == {"a": {}}
    with serving(lambda asked: {"message": "no such handler"}) as server:
        search = HttpSearch(f"{server.url}/docs#vespa", collection.documents)
        with pytest.raises(InputError, match="correct the path of the ids"):
            search.answers({"a": "wing"}, 10)


def test_an_engine_that_asks_for_a_key_gets_it_by_its_headers(collection, tmp_path):
    with serving(lambda asked: Reply(401, b'{"error": "no key"}')) as server:
        search = HttpSearch(at_once(tmp_path, server), collection.documents)
        with pytest.raises(InputError, match=r'401 \(no key\); give the key .* under "headers"'):
            search.search({"a": "wing"}, 10)


@pytest.mark.parametrize(("length", "is_warned"), [(3, True), (20, False)])
def test_pages_that_are_shorter_than_what_is_asked_for_are_noticed(
    collection, tmp_path, caplog, length, is_warned
):
    ids = collection.documents.ids(list(range(length)))
    queries = {str(number): f"wing {number}" for number in range(12)}
    page = [{"id": id} for id in ids]
    with serving(lambda asked: [] if "wing%200" in asked.path else page) as server:
        search = HttpSearch(at_once(tmp_path, server), collection.documents)
        search.search(queries, 20)
    said = "returned exactly 3 results for every query that has any, although 20 were asked for"
    assert (said in caplog.text) == is_warned


def test_an_engine_may_have_no_results_for_a_query(collection, tmp_path):
    with serving(lambda asked: [] if "nothing" in asked.path else [{"id": "d1"}]) as server:
        search = HttpSearch(at_once(tmp_path, server), collection.documents)
        ranking = search.search({"a": "nothing", "b": "wing"}, 10)
    assert [len(hits) for hits in ranking.results(collection.documents).values()] == [0, 1]


@pytest.mark.parametrize(
    ("answer", "settings", "message"),
    [
        ({"hits": []}, {}, r"no answer to 1 queries has \[\]\.id; correct the path"),
        ({"hits": {"hits": []}}, {"ids": "hits[].id"}, r"no answer to 1 queries has hits\[\]\.id"),
        ([{"id": "other"}], {}, "1 of the 1 documents .* are not in the corpus"),
        ([{"id": {"a": 1}}], {}, r"\[\]\.id contains \{'a': 1\}, which is not an id"),
        (
            [{"id": "d1"}, {"id": None}, {"id": [2]}],
            {},
            r"\[\]\.id contains \[2\], which is not an id",
        ),
        ([{"id": None}, {}], {}, r"none of 2 results for 1 queries has \[\]\.id; correct the path"),
        ([{"id": "d1"}], {"scores": "[].score"}, r"1 ids and 0 scores at \[\]\.score"),
        ([{"id": "d1", "score": None}], {"scores": "[].score"}, r"1 ids and 0 scores at \[\]"),
        ({"i": ["d1", None, "d2"], "s": [3, 1]}, COLUMNS, r"3 ids and 2 scores at s\[\]"),
        (
            [{"id": "d1", "score": 2}, {"id": "d2", "score": "high"}],
            {"scores": "[].score"},
            r"\[\]\.score contains 'high', which is not a finite number",
        ),
        ([{"id": "d1", "score": math.nan}], {"scores": "[].score"}, "contains nan, which is not"),
        ([{"id": "d1", "score": [1]}], {"scores": "[].score"}, r"contains \[1\], which is not"),
        (Reply(content=b"<html>"), {}, "not JSON"),
        (Reply(500, b'{"error": {"reason": "shard failed"}}'), {}, r"500 \(shard failed\)"),
        (Reply(404), {}, "404"),
    ],
)
def test_an_answer_that_cannot_be_used_is_one_line(collection, tmp_path, answer, settings, message):
    with serving(lambda asked: answer) as server:
        search = HttpSearch(at_once(tmp_path, server, **settings), collection.documents)
        with pytest.raises(InputError, match=message) as caught:
            search.search({"q": "wing"}, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://localhost/"}, "neither url nor body has {query}"),
        ({"url": "localhost?q={query}"}, "is not a URL"),
        ({}, "is not a URL"),
        ({"url": "http://localhost/{query}", "path": "a"}, "unknown setting path; choose among"),
        ({"url": "http://localhost/{query}", "timeout": "1"}, "timeout is '1'"),
        ({"url": "http://localhost/{query}", "retries": -1}, "retries must be at least 0"),
        ({"url": "http://localhost/{query}", "method": "PUT"}, "unknown method 'PUT'"),
        ({"url": "http://localhost/{query}", "headers": {"A": 1}}, "headers"),
        ({"url": "http://localhost/", "body": {"v": "{vector}"}}, "needs an encoder"),
        ({"url": "http://localhost/{query}", "failures": "errors"}, "failures is not a list"),
        ({"preset": "solr", "url": "http://localhost/docs"}, "unknown preset 'solr'"),
        ({"preset": "qdrant"}, "has no url"),
        ({"preset": "vespa", "url": "http://localhost"}, "names no collection"),
        (["url"], "a list of str; give a JSON object"),
    ],
)
def test_settings_are_checked(tmp_path, settings, message):
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message) as caught:
        HttpSettings.load(f"http:{path}")
    assert "settings.json" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json cannot be read"):
        HttpSettings.load("http:nowhere.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match=r"broken\.json cannot be read"):
        HttpSettings.load(f"http:{tmp_path / 'broken.json'}")
    with pytest.raises(InputError, match=r"has no \{query\}.*#opensearch"):
        HttpSettings.load("http://localhost:9200/docs")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_the_collection_and_asks_the_query(name):
    content = {"preset": name, "url": "http://localhost:1/base/docs", "encoder": "minilm"}
    settings = HttpSettings._of_json(content, "here")
    request = settings.request("say so", 7, [0.5])
    asked = json.dumps([request.url, request.body])
    assert "docs" in asked
    assert "{" not in request.url
    assert "say so" in asked or "[0.5]" in asked
    assert not re.search(r"\{[a-z_]+\}", asked)
    assert request.url.startswith("http://localhost:1/base/")


def test_the_vector_of_the_query_is_that_of_the_encoder(collection, tiny_cosine, tmp_path):
    """An engine of vectors ranks as the encoder does, whose vectors it holds."""
    from beir_cocodr import load_encoder

    encoder = load_encoder(str(tiny_cosine))
    ids = collection.documents.ids(range(len(collection.documents)))
    held = np.asarray(encoder.encode_corpus(list(collection.documents.values())))

    def answer(asked):
        assert asked.path == "/collections/docs/points/query"
        scores = held @ np.array(asked.content["query"])
        best = np.argsort(-scores)[: asked.content["limit"]]
        points = [
            {"id": int(row), "score": float(scores[row]), "payload": {"id": ids[row]}}
            for row in best
        ]
        return {"result": {"points": points}}

    with serving(answer) as server:
        name = settings_file(
            tmp_path, preset="qdrant", url=f"{server.url}/docs", encoder=str(tiny_cosine)
        )
        record = evaluate([name, str(tiny_cosine)], collection)
    engine, local = record.models.values()
    assert engine.measures == pytest.approx(local.measures)
