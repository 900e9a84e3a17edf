"""Queries by a server with OpenAI's protocol: a real one on this machine, over a tiny model."""

from __future__ import annotations

import threading

import pytest
from http_servers import Reply, serving

from beir_cocodr.data.passages import Passage
from beir_cocodr.endpoints import Endpoint
from beir_cocodr.errors import InputError
from beir_cocodr.generation.endpoint_generator import EndpointGenerator
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.generators import (
    ENDPOINT,
    GENERATORS,
    Query,
    build_generator,
    generator_kind,
)
from beir_cocodr.generation.language_model import load_generator
from beir_cocodr.generation.question_prompt import EXAMPLES, few_shot_messages, few_shot_prompt
from beir_cocodr.generation.settings import PLACEHOLDER, GenerationOptions
from beir_cocodr.http_requests import HttpOptions, ServerError

TEXTS = ["wing flow shock layer.", "treaty minister strike."]
PASSAGES = [Passage(row, 0, 0, len(text), text, "") for row, text in enumerate(TEXTS)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Give each test a cache of its own: another test's server may have had the same port."""
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))


def said(text):
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_a_server_is_shown_examples_and_answers_in_order():
    def answer(asked):
        passage = asked.content["messages"][-1]["content"].removeprefix("Passage: ")
        return said(f"  what is {passage} {asked.content['seed']}?\nBecause.")

    options = GenerationOptions(per_passage=2, max_length=9, top_p=0.5, seed=7)
    with serving(answer) as server:
        generator = build_generator(f"{server.url}#tiny", None, options, None)
        queries = generator.generate(PASSAGES, 0).queries
    texts = [[query.text for query in passage] for passage in queries]
    assert texts == [[f"what is {text} {seed}?" for seed in (7, 8)] for text in TEXTS]
    sent = server.asked[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.content["model"] == "tiny"
    assert (sent.content["max_tokens"], sent.content["top_p"]) == (9, 0.5)
    said_before = [message["content"] for message in sent.content["messages"]]
    assert all(query in said_before for _, query in EXAMPLES)
    assert [message["role"] for message in sent.content["messages"]] == [
        "system",
        *["user", "assistant"] * len(EXAMPLES),
        "user",
    ]


def test_a_prompt_replaces_the_examples():
    options = GenerationOptions(per_passage=1, prompt=f"Ask about {PLACEHOLDER}!")
    with serving(lambda asked: said("x")) as server:
        EndpointGenerator(Endpoint.parse(f"{server.url}#m"), options).generate(PASSAGES[:1], 0)
    assert server.asked[0].content["messages"] == [
        {"role": "user", "content": f"Ask about {TEXTS[0]}!"}
    ]


def test_a_server_that_refuses_is_named_in_one_line():
    once = HttpOptions(retries=0)
    refused = Reply(404, b'{"error": {"message": "no model m"}}')
    with serving(lambda asked: refused) as server:
        generator = EndpointGenerator(Endpoint.parse(f"{server.url}#m", once), GenerationOptions())
        with pytest.raises(ServerError, match=r"404.*no model m"):
            generator.generate(PASSAGES, 0)


def ended(text, reason, **more):
    message = {"role": "assistant", "content": text, **more}
    return {"choices": [{"message": message, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ended("<think>\nA user\n</think>\n\nheat of pumps\nso", "stop"), Query("heat of pumps")),
        (ended("A user asks\n</think>\nheat of pumps", "stop"), Query("heat of pumps")),
        (ended("<think>\nA user", "length"), Query("", cut=True)),
        (ended(None, "length", reasoning_content="A user"), Query("", cut=True)),
        (ended("heat of pu", "length"), Query("heat of pu", cut=True)),
        (ended("heat of pumps\nBec", "length"), Query("heat of pumps")),
        (ended(None, "stop", refusal="I will not."), Query("")),
        (ended("heat", "content_filter"), Query("")),
    ],
)
def test_a_query_follows_thoughts_and_may_be_cut(answer, expected, caplog):
    options = GenerationOptions(per_passage=2)
    with serving(lambda asked: answer) as server:
        generator = build_generator(f"{server.url}#m", None, options, None)
        for _ in range(2):
            assert generator.generate(PASSAGES[:1], 0).queries == [[expected, expected]]
    warned = [message for message in caplog.messages if "raise --max-length" in message]
    assert len(warned) == (expected == Query("", cut=True))


@pytest.mark.parametrize("kinds", [None, "questions,keywords"])
def test_what_a_server_answered_before_it_failed_is_not_asked_for_again(kinds):
    texts = [f"passage {number} about the heat of pumps" for number in range(12)]
    passages = [Passage(row, 0, 0, len(text), text, "") for row, text in enumerate(texts)]
    options = GenerationOptions(per_passage=2, query_kinds=kinds, seed=1)
    answered = []
    lock = threading.Lock()
    is_failing = True

    def answer(asked):
        query = (asked.content["messages"][-1]["content"], asked.content["seed"])
        with lock:
            if is_failing and len(answered) == 9:
                return Reply(500)
            answered.append(query)
        return said(f"heat of pumps {query[1]}")

    once = HttpOptions(retries=0)
    with serving(answer) as server:
        endpoint = Endpoint.parse(f"{server.url}#m", once)
        with pytest.raises(ServerError, match="500"):
            EndpointGenerator(endpoint, options).generate(passages, 0)
        is_failing = False
        generator = EndpointGenerator(endpoint, options)
        left = sum(len(generator.prompts_of(passage)) for passage in passages)
        assert left == 24 - 9
        queries = generator.generate(passages, 0).queries
        again = EndpointGenerator(endpoint, options).generate(passages[3:], 1).queries
    assert queries == [[Query(f"heat of pumps {seed}") for seed in (1, 2)]] * 12
    assert again == queries[3:]
    assert len(answered) == len(set(answered)) == 24


@pytest.mark.parametrize(("kinds", "useless"), [(None, ""), ("claims", "this passage")])
def test_an_answer_of_no_use_is_asked_for_again(kinds, useless):
    options = GenerationOptions(per_passage=1, query_kinds=kinds)
    answers = [useless, "heat of pumps"]
    with serving(lambda asked: said(answers.pop(0))) as server:
        generator = build_generator(f"{server.url}#m", None, options, None)
        for expected in (useless, "heat of pumps", "heat of pumps"):
            assert generator.generate(PASSAGES[:1], 0).queries == [[Query(expected)]]
    assert not answers


def test_an_answer_without_text_is_refused():
    with serving(lambda asked: ended(None, "stop")) as server:
        generator = build_generator(f"{server.url}#m", None, GenerationOptions(), None)
        with pytest.raises(ServerError, match="gave no text"):
            generator.generate(PASSAGES, 0)


def test_names_choose_the_kind():
    assert generator_kind("http://localhost:8000#m") is GENERATORS[ENDPOINT]
    assert generator_kind("https://host/v1#m") is GENERATORS[ENDPOINT]
    assert generator_kind("hf:some/model") is generator_kind("some/model")
    with pytest.raises(InputError, match="names no model"):
        build_generator("http://localhost:8000", None, GenerationOptions(), None)
    with pytest.raises(InputError, match="prefix"):
        build_generator("http://x#m", None, GenerationOptions(prefix="a"), None)


def test_the_prompt_has_one_place_for_the_passage_and_no_example_gives_its_words_away():
    assert few_shot_prompt().count(PLACEHOLDER) == 1
    assert few_shot_prompt().endswith("Query:")
    assert few_shot_messages("here")[-1]["content"] == "Passage: here"
    for passage, query in EXAMPLES:
        shared = {*query.lower().split()} & {*passage.lower().split()}
        assert len(shared) < len(query.split()) / 2


def test_queries_of_a_corpus_come_from_a_server_over_a_real_model(beir_folder, tiny_gpt2, tmp_path):
    """The server continues the conversation with a tiny GPT-2, one request at a time."""
    options = GenerationOptions(per_passage=1, max_length=8, prompt=f"{PLACEHOLDER}\n")
    local = load_generator(str(tiny_gpt2), options, "cpu")
    one_at_a_time = threading.Lock()

    def answer(asked):
        text = asked.content["messages"][0]["content"].strip()
        passage = Passage(0, 0, 0, len(text), text, "")
        with one_at_a_time:
            [[query]] = local.generate([passage], 0).queries
        return said(query.text or "nothing")

    settings = GenerationOptions(per_passage=1, max_length=8, prompt=f"{PLACEHOLDER}\n")
    with serving(answer) as server:
        record = generate_queries(
            str(beir_folder), f"{server.url}#gpt", tmp_path / "queries", settings
        )
    assert record.generator["kind"] == "endpoint"
    assert record.counts["queries"] > 0
    assert len(server.asked) == record.counts["passages"]
    assert "dai2022promptagator" in record.citations
