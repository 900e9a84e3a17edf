"""Retrievers for LangChain, LlamaIndex and Haystack, run by these frameworks themselves.

The frameworks are in no extra. ``python benchmarks/versions.py frameworks`` runs these tests in an
environment with the newest of each.
"""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from beir_cocodr import Searcher

EXAMPLES = Path(__file__).parents[1] / "examples"
QUERY = "wing flow in a nozzle"


def example(name: str, framework: str, package: str) -> SimpleNamespace:
    """Return what a script defines, or skip the test where its framework is not installed."""
    pytest.importorskip(
        framework, reason=f"{package} is not installed: python benchmarks/versions.py frameworks"
    )
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / name)))


@pytest.fixture(scope="module")
def searcher(beir_folder):
    return Searcher(beir_folder, "bm25")


def test_langchain_invokes_the_retriever_in_a_chain(searcher):
    script = example("langchain_retriever.py", "langchain_core", "langchain-core")
    from langchain_core.runnables import RunnableLambda

    hits = searcher.search(QUERY, top_k=4)
    retriever = script.SearcherRetriever(searcher=searcher, top_k=4)
    documents = retriever.invoke(QUERY)
    assert [(one.id, one.page_content) for one in documents] == [(hit.id, hit.text) for hit in hits]
    assert [one.metadata["score"] for one in documents] == [hit.score for hit in hits]
    chain = retriever | RunnableLambda(lambda documents: [one.id for one in documents])
    assert chain.invoke(QUERY) == [hit.id for hit in hits]
    assert [one.id for one in asyncio.run(retriever.ainvoke(QUERY))] == [hit.id for hit in hits]


def test_llamaindex_retrieves_for_a_query_engine(searcher):
    script = example("llamaindex_retriever.py", "llama_index.core", "llama-index-core")
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine

    hits = searcher.search(QUERY, top_k=4)
    retriever = script.SearcherRetriever(searcher, top_k=4)
    results = retriever.retrieve(QUERY)
    assert [(one.node.node_id, one.text, one.score) for one in results] == [
        (hit.id, hit.text, hit.score) for hit in hits
    ]
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    sources = engine.query(QUERY).source_nodes
    assert [one.node.node_id for one in sources] == [hit.id for hit in hits]


def test_haystack_runs_the_component_in_a_saved_pipeline(searcher, beir_folder):
    script = example("haystack_retriever.py", "haystack", "haystack-ai")
    from haystack import Pipeline

    pipeline = Pipeline()
    pipeline.add_component("retriever", script.SearcherRetriever(str(beir_folder)))
    answer = pipeline.run({"retriever": {"query": QUERY, "top_k": 4}})
    hits = searcher.search(QUERY, top_k=4)
    assert [(one.id, one.content, one.score) for one in answer["retriever"]["documents"]] == [
        (hit.id, hit.text, hit.score) for hit in hits
    ]
    assert str(beir_folder) in pipeline.dumps()
