"""Search and verdict as tools of an agent: the client of the package mcp asks over real pipes."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import time
from pathlib import Path

import pytest
from conftest import process, write_beir
from lazy_hosts import lazy_or_skip

from beir_cocodr import Searcher
from beir_cocodr.cli.__main__ import main

mcp = lazy_or_skip("mcp", "mcp is not installed: pip install 'beir-cocodr[mcp]'")

QUERY = "wing flow in a nozzle"


async def conversation(parameters: mcp.StdioServerParameters, model: str) -> dict:
    """Ask every tool of a server, and return the answers by name."""
    answers: dict = {}
    async with mcp.Client(parameters) as client:

        async def call(tool: str, **arguments: object):
            return await client.call_tool(tool, arguments)

        answers["tools"] = (await client.list_tools()).tools
        answers["bm25"] = (await call("search", query=QUERY, model="bm25")).structured_content
        [best, *_] = answers["bm25"]["documents"]
        answers["document"] = (await call("read_document", id=best["id"])).structured_content
        answers["unknown document"] = await call("read_document", id="nothing")
        answers["too many"] = await call("search", query=QUERY, top_k=1_000)
        answers["unknown model"] = await call("search", query=QUERY, model="vespa")
        answers["empty"] = await call("search", query=" ", model="bm25")
        end = time.monotonic() + 120
        while time.monotonic() < end:
            answers["verdict"] = (await call("verdict")).structured_content
            if answers["verdict"]["verdict"] is not None:
                break
            await asyncio.sleep(0.5)
        answers["models"] = (await call("list_models")).structured_content
        answers["dense"] = (
            await call("search", query=QUERY, model=model, top_k=3)
        ).structured_content
        answers["default"] = (await call("search", query=QUERY)).structured_content
    return answers


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Few documents, so that the verdict is not waited for."""
    return write_beir(tmp_path_factory.mktemp("beir") / "tiny", documents=24, queries=8)


def serve(words: list[str], reads: Path, writes: Path) -> None:
    """Run the command in this process, with the named pipes as its input and output."""
    os.dup2(os.open(reads, os.O_RDONLY), 0)
    os.dup2(os.open(writes, os.O_WRONLY), 1)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    main(words)


@pytest.fixture(scope="module")
def answers(corpus, tiny_cosine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    words = ["serve", "--mcp", "--dataset", corpus, "--output", folder / "out"]
    words += ["--model", "bm25", "--model", tiny_cosine, "--device", "cpu"]
    asks, answers = folder / "asks", folder / "answers"
    os.mkfifo(asks)
    os.mkfifo(answers)
    environment = {**os.environ, "BEIR_COCODR_CACHE": str(folder / "cache")}
    server = process(serve, list(map(str, words)), asks, answers, environment=environment)
    # The client starts a program and talks to it: this one hands everything on to the server.
    relay = f"cat <{shlex.quote(str(answers))} & cat >{shlex.quote(str(asks))}; wait"
    parameters = mcp.StdioServerParameters(command="sh", args=["-c", relay])
    try:
        return asyncio.run(asyncio.wait_for(conversation(parameters, str(tiny_cosine)), 280))
    finally:
        server.join(20)
        server.kill()


def test_every_tool_says_what_it_takes(answers):
    tools = {tool.name: tool for tool in answers["tools"]}
    assert set(tools) == {"search", "read_document", "list_models", "verdict"}
    assert all(tool.description for tool in tools.values())
    search = tools["search"].input_schema
    assert set(search["properties"]) == {"query", "model", "top_k"}
    assert search["required"] == ["query"]


@pytest.mark.parametrize(("name", "top_k"), [("bm25", 5), ("dense", 3)])
def test_search_finds_what_a_searcher_finds(name, top_k, answers, corpus, tiny_cosine):
    model = {"bm25": "bm25", "dense": str(tiny_cosine)}[name]
    hits = Searcher(corpus, model).search(QUERY, top_k=top_k)
    documents = answers[name]["documents"]
    assert answers[name]["model"] == model
    assert [document["id"] for document in documents] == [hit.id for hit in hits]
    assert [document["snippet"] for document in documents] == [hit.snippet for hit in hits]


def test_a_document_is_read_whole(answers, corpus):
    document = answers["document"]
    assert document["text"] == Searcher(corpus).full_text(document["id"])


def test_the_verdict_is_that_of_the_page(answers, tiny_cosine):
    verdict = answers["verdict"]
    assert verdict["best"] in ("bm25", str(tiny_cosine))
    [pair] = verdict["pairs"]
    low, high = pair["interval"]
    assert low <= pair["gain_of_ndcg10"] <= high
    assert verdict["trust"]
    assert all(model["ready"] for model in answers["models"]["models"])
    assert answers["default"]["model"] == verdict["best"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unknown document", "has no document 'nothing'"),
        ("too many", "top_k is 1000; give a number from 1 to 10"),
        ("unknown model", "vespa is not one of the models bm25"),
        ("empty", "the query is empty"),
    ],
)
def test_a_wrong_call_is_answered_by_what_is_wrong(name, message, answers):
    answer = answers[name]
    assert answer.is_error
    assert message in answer.content[0].text


def test_a_port_is_refused(capsys, corpus, tmp_path):
    words = ["serve", "--mcp", "--dataset", corpus, "--model", "bm25", "--port", 8000]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, words), "--output", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "leave out --host and --port" in capsys.readouterr().err
