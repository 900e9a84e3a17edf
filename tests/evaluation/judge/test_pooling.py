"""Pools of documents, and grades that are kept however a run ends."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from http_servers import Reply, serving

from beir_cocodr.data.collection import load_collection
from beir_cocodr.endpoints import Endpoint
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.judge.grade_cache import GradeCache
from beir_cocodr.evaluation.judge.graders import EndpointGrader
from beir_cocodr.evaluation.judge.pooling import grade_pool, pool_documents
from beir_cocodr.http_requests import HttpOptions, ServerError

TEXTS = {
    "good": "a fine document about wings",
    "other": "nothing of the kind",
    "empty": "",
    "long": "w " * 4_000,
}
QUERIES = {"q1": "wings", "q2": "lift"}
POOL = {"q1": list(TEXTS), "q2": ["good", "other", "unknown"]}


@pytest.fixture
def documents():
    corpus = {id: {"title": "", "text": text} for id, text in TEXTS.items()}
    return load_collection(corpus, labels="optional").documents


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))


def judge_of(server):
    options = HttpOptions(retries=0, concurrency=1)
    return EndpointGrader(Endpoint.parse(f"{server.url}#tiny", options))


def grading(text_of):
    def answer(asked):
        text = text_of(asked.content["messages"][0]["content"])
        return text if isinstance(text, Reply) else {"choices": [{"message": {"content": text}}]}

    return answer


def test_a_pool_has_the_ten_best_of_each_model_once():
    first = {"q": [(f"d{row}", 1.0) for row in range(12)]}
    second = {"q": [("d11", 2.0), ("d3", 1.0)], "p": [("x", 1.0)]}
    pool = pool_documents({"a": first, "b": second}, ["q", "p", "r"])
    assert pool == {"q": [*(f"d{row}" for row in range(10)), "d11"], "p": ["x"], "r": []}


def test_grades_costs_and_what_has_no_grade_are_counted(documents, caplog):
    caplog.set_level(logging.INFO)

    def text_of(prompt):
        if "fine" in prompt:
            return "Grade: 3" if "wings\n</query>" in prompt else "I'm sorry, I cannot."
        return "Hard to say." if "kind" in prompt else "Grade: 1"

    with serving(grading(text_of)) as server:
        graded = grade_pool(judge_of(server), POOL, QUERIES, documents)
    assert graded.grades == {"q1": {"good": 3, "empty": 0, "long": 1}, "q2": {"unknown": 0}}
    assert (graded.pairs, graded.kept, graded.empty, graded.cut) == (7, 0, 2, 1)
    assert (graded.refused, graded.unreadable) == (1, 2)
    assert graded.tokens > 0
    assert len(server.asked) == 5
    assert "5 pairs of a query and a document to grade, about" in caplog.text


def test_no_pair_is_graded_twice_whatever_its_ids(documents):
    with serving(grading(lambda prompt: "Grade: 2")) as server:
        judge = judge_of(server)
        first = grade_pool(judge, POOL, QUERIES, documents)
        again = grade_pool(judge, {"other id": ["good"]}, {"other id": "wings"}, documents)
        second = grade_pool(judge, POOL, QUERIES, documents)
        assert len(server.asked) == 5
    assert again.grades == {"other id": {"good": 2}}
    assert second.grades == first.grades
    assert (second.kept, second.seconds, second.tokens) == (5, 0, 0)


def test_a_server_that_dies_midway_loses_nothing(documents):
    answered = []

    def text_of(prompt):
        if len(answered) == 2:
            return Reply(500, b"out of memory")
        answered.append(prompt)
        return "Grade: 1"

    with serving(grading(text_of)) as server:
        judge = judge_of(server)
        with pytest.raises(ServerError, match=r"500 \(out of memory\)"):
            grade_pool(judge, POOL, QUERIES, documents)
        before = len(server.asked)
        answered.clear()
        with pytest.raises(ServerError):
            grade_pool(judge, POOL, QUERIES, documents)
        answered.clear()
        graded = grade_pool(judge, POOL, QUERIES, documents)
    assert before in (3, 4)  # a request may be under way when the one before it fails
    assert graded.kept == 4
    assert 0 <= len(server.asked) - (3 + 3 + 1) <= 2  # five pairs, and two failures


@pytest.mark.parametrize("failing", [3, 20])
def test_what_was_answered_is_not_asked_again_after_a_slow_failure(failing):
    texts = {f"d{number}": f"document {number}" for number in range(50)}
    corpus = {id: {"title": "", "text": text} for id, text in texts.items()}
    documents = load_collection(corpus, labels="optional").documents
    lock = threading.Lock()
    answered: list[str] = []
    requests: list[str] = []

    def text_of(prompt):
        with lock:
            requests.append(prompt)
            fails = len(requests) == failing
        if fails:
            time.sleep(0.5)
            return Reply(400, b"too long")
        with lock:
            answered.append(prompt)
        return "Grade: 1"

    with serving(grading(text_of)) as server:
        judge = EndpointGrader(Endpoint.parse(f"{server.url}#tiny", HttpOptions(retries=0)))
        with pytest.raises(ServerError, match=r"400 \(too long\)"):
            grade_pool(judge, {"q1": list(texts)}, QUERIES, documents)
        before = len(answered)
        graded = grade_pool(judge, {"q1": list(texts)}, QUERIES, documents)
    assert graded.kept == before >= failing - 1
    assert len(answered) == len(set(answered)) == len(texts)


def test_a_line_that_a_kill_left_unfinished_is_graded_again(documents):
    with serving(grading(lambda prompt: "Grade: 2")) as server:
        judge = judge_of(server)
        grade_pool(judge, POOL, QUERIES, documents)
        file = GradeCache(judge.identity).file
        content = file.read_bytes()
        file.write_bytes(content[:-20])
        graded = grade_pool(judge, POOL, QUERIES, documents)
        assert len(server.asked) == 6
    assert graded.kept == 4
    assert len(file.read_bytes().splitlines()) == 5


def test_judges_keep_their_grades_apart(documents):
    with serving(grading(lambda prompt: "Grade: 2")) as server:
        for model in ("one", "two"):
            endpoint = Endpoint.parse(f"{server.url}#{model}")
            grade_pool(EndpointGrader(endpoint), POOL, QUERIES, documents)
        assert len(server.asked) == 10


def test_a_judge_without_any_grade_is_refused(documents):
    with (
        serving(grading(lambda prompt: "It is a document.")) as server,
        pytest.raises(InputError, match="no grade in 5 answers; the first is 'It is a"),
    ):
        grade_pool(judge_of(server), POOL, QUERIES, documents)
