"""Endpoints: real servers on this machine, that answer, fail, are slow, or answer nonsense."""

import socket
import threading
import time

import pytest

from beir_cocodr.endpoints import (
    KEY_VARIABLE,
    ChatAnswer,
    Endpoint,
    as_answered,
    fetch_json,
    in_parallel,
)
from beir_cocodr.errors import InputError
from beir_cocodr.http_requests import HttpOptions, HttpRequest, ServerError, check_url
from tests.http_servers import Asked, Reply, serving

#: Attempts without waiting.
AT_ONCE = HttpOptions(timeout=5, retries=2, backoff=0)


def lengths(asked: Asked) -> object:
    """Embed each text as its length and 1, in reverse order."""
    rows = [
        {"index": i, "embedding": [len(text), 1]} for i, text in enumerate(asked.content["input"])
    ]
    return {"data": rows[::-1]}


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_embeddings_follow_the_index_and_not_the_order_of_the_answer():
    with serving(lengths) as server:
        vectors = Endpoint.parse(f"{server.url}#tiny", AT_ONCE).embed(["a", "four", "to"])
    assert vectors == [[1, 1], [4, 1], [2, 1]]
    [asked] = server.asked
    assert asked.path == "/v1/embeddings"
    assert asked.content == {"model": "tiny", "input": ["a", "four", "to"]}
    assert "Authorization" not in asked.headers


def test_a_conversation_gets_the_text_of_the_first_choice():
    answer = {"choices": [{"message": {"role": "assistant", "content": "2"}}]}
    with serving(lambda asked: answer) as server:
        endpoint = Endpoint.parse(f"{server.url}/v1#judge", AT_ONCE)
        said = endpoint.chat([{"role": "user", "content": "grade"}], temperature=0)
    assert said == ChatAnswer("2")
    assert server.asked[0].path == "/v1/chat/completions"
    assert server.asked[0].content["temperature"] == 0


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/embeddings"])
def test_a_url_may_end_with_what_the_protocol_adds(path):
    assert Endpoint.parse(f"http://localhost:1{path}#m").url == "http://localhost:1/v1"


def test_the_key_is_sent_and_nowhere_shown(monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "sk-hidden")
    refusal = Reply(401, b'{"error": {"message": "wrong key sk-hidden"}}')
    with serving(lambda asked: refusal) as server:
        endpoint = Endpoint.parse(f"{server.url}#m", AT_ONCE)
        with pytest.raises(ServerError, match=r"401 \(wrong key \*\*\*\).*key") as caught:
            endpoint.embed(["a"])
    assert server.asked[0].headers["Authorization"] == "Bearer sk-hidden"
    assert len(server.asked) == 1
    for shown in (str(caught.value), repr(endpoint), str(endpoint)):
        assert "sk-hidden" not in shown


def test_a_variable_that_was_named_must_be_set(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    endpoint = Endpoint.parse("http://localhost:1#m?key=MY_KEY")
    assert endpoint.model == "m"
    with pytest.raises(InputError, match="MY_KEY is not set"):
        endpoint.embed(["a"])
    monkeypatch.setenv("MY_KEY", "two\nlines")
    with pytest.raises(InputError, match="MY_KEY contains characters"):
        endpoint.embed(["a"])


def test_a_busy_server_is_asked_again_and_says_when():
    replies = [
        Reply(503),
        Reply(429, headers={"Retry-After": "0"}),
        Reply(content=b'{"data": [{"index": 0, "embedding": [1.0]}]}'),
    ]
    with serving(lambda asked: replies.pop(0)) as server:
        assert Endpoint.parse(f"{server.url}#m", AT_ONCE).embed(["a"]) == [[1.0]]
    assert len(server.asked) == 3


def test_waits_double():
    with serving(lambda asked: Reply(500)) as server:
        started = time.perf_counter()
        with pytest.raises(ServerError, match=r"status 500.*in 3 attempts.*log of the server"):
            fetch_json(HttpRequest("GET", server.url), HttpOptions(retries=2, backoff=0.1))
    assert 0.3 <= time.perf_counter() - started < 3


def test_a_wrong_request_is_not_repeated():
    with (
        serving(lambda asked: Reply(404, b'{"detail": "no model m"}')) as server,
        pytest.raises(ServerError, match=r"404 \(no model m\); correct the URL"),
    ):
        Endpoint.parse(f"{server.url}#m", AT_ONCE).embed(["a"])
    assert len(server.asked) == 1


def test_a_redirect_is_not_followed():
    """The key would go to another host."""
    target = Reply(302, headers={"Location": "http://127.0.0.1:1/"})
    with (
        serving(lambda asked: target) as server,
        pytest.raises(ServerError, match=r"302.*redirects"),
    ):
        fetch_json(HttpRequest("GET", server.url), AT_ONCE)


def test_a_server_that_is_down_is_named():
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(ServerError, match=f"{url}/embeddings cannot be reached .*start the server"):
        Endpoint.parse(f"{url}#m", AT_ONCE).embed(["a"])


def test_a_slow_server_is_not_waited_for():
    awake = threading.Event()
    try:
        with (
            serving(lambda asked: awake.wait(20)) as server,
            pytest.raises(ServerError, match=r"did not answer within 0\.2 seconds"),
        ):
            fetch_json(HttpRequest("GET", server.url), HttpOptions(timeout=0.2, retries=0))
    finally:
        awake.set()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"data": [{"index": 0, "embedding": [1.0]}]}', "1 embeddings for 2 texts"),
        (b'{"data": [{"index": 0}]}', "no embeddings"),
        (b'["data"]', "no embeddings"),
        (
            b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}',
            r"several dimensions \(1, 2\)",
        ),
    ],
)
def test_an_answer_of_another_form_is_one_line(content, message):
    with (
        serving(lambda asked: Reply(content=content)) as server,
        pytest.raises(ServerError, match=message) as caught,
    ):
        Endpoint.parse(f"{server.url}#m", AT_ONCE).embed(["a", "b"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"message": {"content": "a"}, "finish_reason": "stop"}, ChatAnswer("a")),
        (
            {"message": {"content": "a"}, "finish_reason": "length"},
            ChatAnswer("a", "", False, True),
        ),
        (
            {"message": {"content": None}, "finish_reason": "content_filter"},
            ChatAnswer(None, "", True),
        ),
        ({"message": {"refusal": "I will not."}}, ChatAnswer(None, "I will not.", True)),
    ],
)
def test_an_answer_says_how_it_ended(choice, expected):
    with serving(lambda asked: {"choices": [choice], "usage": {}}) as server:
        assert Endpoint.parse(f"{server.url}#m", AT_ONCE).chat([]) == expected


@pytest.mark.parametrize("content", [b'{"choices": []}', b'{"choices": [{"message": []}]}', b"1"])
def test_an_answer_without_a_message_is_refused(content):
    with (
        serving(lambda asked: Reply(content=content)) as server,
        pytest.raises(ServerError, match="gave no message"),
    ):
        Endpoint.parse(f"{server.url}#m", AT_ONCE).chat([])


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/", "http://", "http://host:x/"])
def test_a_url_needs_a_host(url):
    with pytest.raises(InputError, match="not a URL"):
        check_url(url)


def test_a_url_may_not_hold_a_password():
    with pytest.raises(InputError, match=r"host contains a user name") as caught:
        check_url("http://me:secret@host/")
    assert "secret" not in str(caught.value)


def test_an_endpoint_needs_a_model():
    with pytest.raises(InputError, match="URL#MODEL"):
        Endpoint.parse("http://localhost:8000/v1")


def test_several_requests_run_at_once_and_answers_keep_their_order():
    together = threading.Barrier(3, timeout=5)

    def wait(number: int) -> int:
        together.wait()
        time.sleep(0.01 * (3 - number % 3))
        return number

    assert list(in_parallel(wait, range(9), 3)) == list(range(9))


def test_the_first_failure_ends_the_requests():
    asked = []

    def fail(number: int) -> int:
        asked.append(number)
        raise ServerError("down")

    with pytest.raises(ServerError, match="down"):
        list(in_parallel(fail, range(1_000), 2))
    assert len(asked) < 10


@pytest.mark.parametrize("concurrency", [1, 3, 40])
def test_answers_come_with_the_numbers_of_their_items(concurrency):
    answers = list(as_answered(lambda text: text.upper(), "abcdefghij", concurrency))
    assert sorted(answers) == list(enumerate("ABCDEFGHIJ"))
    assert list(as_answered(str, [], concurrency)) == []


def test_a_slow_request_holds_no_answer_back():
    others_have_come = threading.Event()

    def wait(number: int) -> int:
        if number == 0:
            assert others_have_come.wait(5)
        return number

    come = []
    for number, _ in as_answered(wait, range(20), 2):
        come.append(number)
        if len(come) == 19:
            others_have_come.set()
    assert come[-1] == 0
    assert sorted(come) == list(range(20))


def test_what_was_answered_before_and_after_a_failure_is_yielded_before_it_is_raised():
    has_failed = threading.Event()
    answered = []

    def ask(number: int) -> int:
        if number == 3:
            has_failed.set()
            raise ServerError("down")
        if number == 0:
            assert has_failed.wait(5)
            time.sleep(0.1)
        answered.append(number)
        return number

    come = []

    def collect() -> None:
        for number, _ in as_answered(ask, range(1_000), 2):
            come.append(number)

    with pytest.raises(ServerError, match="down"):
        collect()
    assert sorted(come) == sorted(answered)
    assert {0, 1, 2} <= set(come)
    assert len(come) < 10


def test_no_request_is_sent_once_nobody_wants_its_answer():
    asked = []
    answers = as_answered(asked.append, range(1_000), 2)
    next(answers)
    answers.close()
    assert 1 <= len(asked) < 10
