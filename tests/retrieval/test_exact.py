"""ExactSearch where BEIR's search fails or says nothing; test_exact_beir.py has what both must
agree on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from sklearn.feature_extraction.text import HashingVectorizer

from beir_cocodr.data.documents import Documents
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.exact import ExactSearch
from beir_cocodr.retrieval.vectors.topk import NonFiniteScores

CORPUS = {
    "d1": {"title": "Boundary layer", "text": "heat transfer in a laminar boundary layer"},
    "d2": {"title": "", "text": "supersonic flow over a flat plate"},
    "d3": {"title": "Wings", "text": "lift of slender wings in supersonic flow"},
    "d4": {"title": "Wings", "text": "lift of slender wings in supersonic flow"},
    "d5": {"title": "", "text": "buckling of thin shells"},
}
QUERIES = {"q1": "supersonic wings", "q2": "heat transfer"}


class Words:
    """Hashed word counts: cheap real vectors of text."""

    similarity_fn_name = "cosine"

    def __init__(self) -> None:
        self.vectorizer = HashingVectorizer(n_features=512, norm=None, alternate_sign=False)
        self.chunk_sizes: list[int] = []

    def encode_queries(self, queries: list[str], batch_size: int, **kwargs: Any) -> torch.Tensor:
        return torch.from_numpy(self.vectorizer.transform(queries).toarray().astype(np.float32))

    def encode_corpus(
        self, corpus: list[dict[str, str]], batch_size: int, **kwargs: Any
    ) -> torch.Tensor:
        self.chunk_sizes.append(len(corpus))
        return self.encode_queries(
            [document["title"] + " " + document["text"] for document in corpus], 1
        )


class Table:
    """Vectors written down for each text."""

    def __init__(
        self, vectors: Mapping[str, list[float]], dtype: torch.dtype = torch.float32
    ) -> None:
        self.vectors, self.dtype = vectors, dtype

    def encode_queries(self, queries: list[str], **kwargs: Any) -> torch.Tensor:
        return torch.tensor([self.vectors[query] for query in queries], dtype=self.dtype)

    def encode_corpus(self, corpus: list[dict[str, str]], **kwargs: Any) -> torch.Tensor:
        return self.encode_queries([document["text"] for document in corpus])


def table_corpus(*texts: str) -> dict[str, dict[str, str]]:
    return {f"id-{text}": {"title": "", "text": text} for text in texts}


def arrow(corpus: Mapping[str, Mapping[str, str]]) -> Documents:
    columns = {
        "id": list(corpus),
        "title": [document["title"] for document in corpus.values()],
        "text": [document["text"] for document in corpus.values()],
    }
    return Documents(
        pa.table({k: pa.array(v, pa.large_string()) for k, v in columns.items()}), "none"
    )


def cosines(queries: Mapping[str, str], corpus: Mapping[str, Mapping[str, str]]) -> np.ndarray:
    """(Q, N) in float64."""
    model = Words()
    vectors = [
        model.encode_queries(list(queries.values()), 1).numpy().astype(np.float64),
        model.encode_corpus(list(corpus.values()), 1).numpy().astype(np.float64),
    ]
    left, right = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    return left @ right.T


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("form", [dict, arrow])
def test_dict_and_arrow_corpus_give_rank_order_with_ties_by_descending_id(
    form: Any, chunk: int
) -> None:
    model = Words()
    results = ExactSearch(model, corpus_chunk_size=chunk).search(
        form(CORPUS), QUERIES, 4, "cos_sim"
    )

    ids = np.array(list(CORPUS))
    for query, expected in zip(QUERIES, cosines(QUERIES, CORPUS), strict=True):
        by_id = np.argsort(ids)[::-1]
        order = by_id[np.argsort(-expected[by_id].round(9), kind="stable")][:4]
        assert list(results[query]) == ids[order].tolist()
        np.testing.assert_allclose(list(results[query].values()), expected[order], atol=1e-6)
    assert list(results["q1"])[:2] == [
        "d4",
        "d3",
    ]  # the same text: trec_eval puts the larger id first
    assert model.chunk_sizes == [min(chunk, 5 - start) for start in range(0, 5, chunk)]


def test_results_attribute_holds_what_search_returned() -> None:
    search = ExactSearch(Words())
    assert search.results == {}
    returned = search.search(CORPUS, QUERIES, 2, "cos_sim")
    assert search.results is returned
    assert all(type(score) is float for scores in returned.values() for score in scores.values())


@pytest.mark.parametrize("form", [dict, arrow])
def test_arrays_say_the_same_as_dictionaries(form: Any) -> None:
    search = ExactSearch(Words(), corpus_chunk_size=2)
    corpus = form(CORPUS)
    queries, scores, rows = search.search_arrays(corpus, QUERIES, 3)
    assert (scores.dtype, rows.dtype, scores.shape) == (np.float32, np.int64, (2, 3))
    ids = list(CORPUS)
    assert search.search(corpus, QUERIES, 3) == {
        query: {ids[row]: score for row, score in zip(r, s, strict=True)}
        for query, r, s in zip(queries, rows.tolist(), scores.tolist(), strict=True)
    }


class HitsOnly(Documents):
    """Refuses to list all of its ids."""

    def ids(self, rows: Any = None) -> list[str]:
        assert rows is not None
        return super().ids(rows)


def test_only_ids_of_hits_are_looked_up_where_they_are_fewer_than_the_documents() -> None:
    corpus = {f"x{n:03}": {"title": "", "text": f"word{n}"} for n in range(200)}
    hits_only = HitsOnly(arrow(corpus).table, "none")
    for form in (corpus, hits_only):
        results = ExactSearch(Words()).search(form, {"q": "word57", "r": "word120"}, 1)
        assert {query: list(found) for query, found in results.items()} == {
            "q": ["x057"],
            "r": ["x120"],
        }


def test_one_query_one_document() -> None:
    corpus = {"d2": CORPUS["d2"]}
    results = ExactSearch(Words()).search(corpus, {"q": CORPUS["d2"]["text"]}, 10, "cos_sim")
    assert results == {"q": {"d2": pytest.approx(1.0)}}


def test_title_none_and_text_none_count_as_empty() -> None:
    absent = {
        "d2": {"title": None, "text": CORPUS["d2"]["text"]},
        "d9": {"title": "Wings", "text": None},
    }
    results = ExactSearch(Words()).search(absent, QUERIES, 2, "cos_sim")
    empty = {"d2": CORPUS["d2"], "d9": {"title": "Wings", "text": ""}}
    assert results == ExactSearch(Words()).search(empty, QUERIES, 2, "cos_sim")
    assert absent["d2"]["title"] is None


@pytest.mark.parametrize("form", [dict, arrow])
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_identical_ids_are_dropped_for_others_or_kept(form: Any, chunk: int) -> None:
    corpus, queries = form(CORPUS), {"d3": "supersonic wings", "q": "supersonic wings"}
    search = ExactSearch(Words(), corpus_chunk_size=chunk)
    dropped = search.search(corpus, queries, 2, "cos_sim")
    assert list(dropped["q"]) == ["d4", "d3"]
    assert list(dropped["d3"]) == ["d4", "d2"]
    kept = search.search(corpus, queries, 2, "cos_sim", ignore_identical_ids=False)
    assert kept["d3"] == kept["q"] == dropped["q"]
    by_constructor = ExactSearch(Words(), ignore_identical_ids=False)
    assert by_constructor.search(corpus, queries, 2, "cos_sim") == kept
    assert (
        by_constructor.search(corpus, queries, 2, "cos_sim", ignore_identical_ids=True) == dropped
    )


def test_identical_ids_leave_fewer_where_the_corpus_is_small() -> None:
    queries = {"d3": "slender wings", "q": "slender wings"}
    search = ExactSearch(Words())
    results = search.search(CORPUS, queries, 5, "cos_sim")
    assert set(results["d3"]) == set(CORPUS) - {"d3"}
    assert set(results["q"]) == set(CORPUS)
    _, scores, rows = search.search_arrays(CORPUS, queries, 5)
    assert rows[0, -1] == -1
    assert scores[0, -1] == -np.inf
    assert ExactSearch(Words()).search({"d3": CORPUS["d3"]}, {"d3": "wings"}, 5, "cos_sim") == {
        "d3": {}
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("form", [dict, arrow])
def test_non_finite_documents_are_named_by_id(form: Any, value: float) -> None:
    model = Table(
        {"good": [1.0, 0.0], "bad": [value, 1.0], "fine": [0.5, 0.5], "query": [1.0, 1.0]}
    )
    corpus = form(table_corpus("good", "bad", "fine"))
    with pytest.raises(NonFiniteScores, match="document 'id-bad':") as caught:
        ExactSearch(model, corpus_chunk_size=1).search(corpus, {"q": "query"}, 1, "dot")
    assert caught.value.documents == ["id-bad"]


def test_non_finite_queries_are_named_by_id() -> None:
    model = Table({"good": [1.0], "broken": [float("nan")], "query": [1.0]})
    with pytest.raises(NonFiniteScores, match="query 'q2':"):
        ExactSearch(model).search(table_corpus("good"), {"q1": "query", "q2": "broken"}, 1, "dot")


def test_half_precision_models_are_scored_in_float32() -> None:
    """300 x 300 is infinite in float16; the sum below is lost in its last digit."""
    model = Table({"a": [300.0, 1.0], "b": [300.0, 0.0], "query": [300.0, 0.25]}, torch.float16)
    results = ExactSearch(model).search(table_corpus("b", "a"), {"q": "query"}, 2, "dot")
    assert list(results["q"].items()) == [("id-a", 90000.25), ("id-b", 90000.0)]


@pytest.mark.parametrize("kind", [list, np.array, "list of tensors", "one vector"])
def test_whatever_form_a_model_returns(kind: Any) -> None:
    vectors = {"a": [1.0, 0.0], "b": [0.0, 1.0], "query": [3.0, 4.0]}

    class Form(Table):
        def encode_queries(self, queries: list[str], **kwargs: Any) -> Any:
            rows = [self.vectors[query] for query in queries]
            if kind == "one vector":
                return torch.tensor(rows[0]) if len(rows) == 1 else torch.tensor(rows)
            return [torch.tensor(row) for row in rows] if kind == "list of tensors" else kind(rows)

    results = ExactSearch(Form(vectors)).search(table_corpus("a", "b"), {"q": "query"}, 2, "dot")
    assert list(results["q"].items()) == [("id-b", 4.0), ("id-a", 3.0)]


def test_the_models_own_similarity_is_the_default() -> None:
    vectors = {"long": [3.0, 3.0], "near": [1.0, 0.1], "query": [1.0, 0.0]}
    for similarity, best in (("dot", "id-long"), ("cosine", "id-near")):
        model = Table(vectors)
        model.similarity_fn_name = similarity  # type: ignore[attr-defined]
        results = ExactSearch(model).search(table_corpus("long", "near"), {"q": "query"}, 1)
        assert list(results["q"]) == [best]


@pytest.mark.parametrize(
    ("declared", "given", "own"), [("dot", "cos_sim", "dot"), ("cosine", "dot", "cos_sim")]
)
def test_a_similarity_other_than_the_declared_one_is_obeyed_with_a_warning(
    declared, given, own, caplog
) -> None:
    vectors = {"long": [3.0, 3.0], "near": [1.0, 0.1], "query": [1.0, 0.0]}
    model = Table(vectors)
    model.similarity_fn_name = declared  # type: ignore[attr-defined]
    results = ExactSearch(model).search(table_corpus("long", "near"), {"q": "query"}, 1, given)
    assert list(results["q"]) == ["id-near" if given == "cos_sim" else "id-long"]
    [warning] = [record.getMessage() for record in caplog.records]
    assert all(repr(name) in warning for name in (declared, given, own))


def test_a_similarity_other_than_the_declared_one_is_not_what_a_store_holds(tmp_path) -> None:
    model = Table({"a": [1.0]})
    model.similarity_fn_name = "dot"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"'cos_sim'.*store.*dot"):
        ExactSearch(model, store=tmp_path / "s").search(table_corpus("a"), {"q": "a"}, 1, "cos_sim")


def test_similarities_that_exact_search_has_not(caplog) -> None:
    model = Table({"a": [1.0]})
    with pytest.raises(InputError, match="no similarity"):
        ExactSearch(model).search(table_corpus("a"), {"q": "a"}, 1)
    with pytest.raises(ValueError, match="'manhattan'"):
        ExactSearch(model).search(table_corpus("a"), {"q": "a"}, 1, "manhattan")
    model.similarity_fn_name = "euclidean"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="'euclidean'"):
        ExactSearch(model).search(table_corpus("a"), {"q": "a"}, 1)
    assert ExactSearch(model).search(table_corpus("a"), {"q": "a"}, 1, "dot") == {
        "q": {"id-a": 1.0}
    }
    assert "'euclidean'" in caplog.text


@pytest.mark.parametrize("id", ["id", "_id"])
def test_datasets_are_searched_as_what_they_hold(id: str) -> None:
    corpus = {**CORPUS, "d9": {"title": None, "text": None}}
    rows = [{id: key, **document} for key, document in corpus.items()]
    dataset = Dataset.from_list(rows)
    queries = Dataset.from_list([{id: key, "text": text} for key, text in QUERIES.items()])
    search = ExactSearch(Words(), corpus_chunk_size=2)
    expected = search.search(corpus, QUERIES, 4, "cos_sim")
    assert search.search(dataset, queries, 4, "cos_sim") == expected
    chosen = search.search(dataset.select([4, 1, 0]), queries, 4, "cos_sim")
    assert list(chosen["q2"]) == list(
        search.search({k: CORPUS[k] for k in ("d5", "d2", "d1")}, QUERIES, 4)["q2"]
    )
    untitled = search.search(dataset.remove_columns("title"), queries, 9, "cos_sim")
    assert set(untitled["q1"]) == set(corpus)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a"}], "id"),
        ([{"id": "a"}], "text"),
        ([{"id": 7, "text": "a"}], "int64"),
        ([{"id": None, "text": "a"}, {"id": "b", "text": "a"}], "null"),
        ([{"id": "a", "text": "a"}, {"id": "a", "text": "b"}], "repeats ids"),
    ],
)
def test_datasets_that_are_no_corpus(rows: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExactSearch(Words()).search(Dataset.from_list(rows), QUERIES, 1)
    with pytest.raises(InputError, match="stream"):
        ExactSearch(Words()).search(
            Dataset.from_list([{"id": "a", "text": "a"}]).to_iterable_dataset(), QUERIES, 1
        )


@pytest.mark.parametrize("wrong", [3, np.array(["dot", "dot"]), ["dot"]])
def test_a_score_function_of_another_type_is_named(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"score_function is an? "):
        ExactSearch(Words()).search(CORPUS, QUERIES, 1, wrong)


@pytest.mark.parametrize(
    ("corpus", "queries", "top_k", "message"),
    [
        ({}, QUERIES, 3, "no documents"),
        (arrow({}), QUERIES, 3, "no documents"),
        (CORPUS, {}, 3, "no queries"),
        (CORPUS, QUERIES, 0, "top_k .*0"),
        ({7: CORPUS["d1"]}, QUERIES, 3, "id 7 .*string"),
        ({"d\ud800": CORPUS["d1"]}, QUERIES, 3, r"document id 'd\\ud800' .*at position 1"),
        (CORPUS, {"q\ud800": "wings"}, 3, r"query id 'q\\ud800' .*at position 1"),
        (CORPUS, {"q1": "wings \ud800"}, 3, r"query 'q1' .*at position 6"),
    ],
)
def test_bad_input_is_named(corpus: Any, queries: Any, top_k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExactSearch(Words()).search(corpus, queries, top_k, "cos_sim")


@pytest.mark.parametrize("sizes", [{"batch_size": 0}, {"corpus_chunk_size": 0}])
def test_sizes_below_one_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        ExactSearch(Words(), **sizes)


def test_a_model_that_loses_a_document_is_caught() -> None:
    class Lossy(Words):
        def encode_corpus(
            self, corpus: list[dict[str, str]], batch_size: int, **kwargs: Any
        ) -> torch.Tensor:
            return super().encode_corpus(corpus[1:], batch_size)

    with pytest.raises(InputError, match=r"\(4, 512\) .*5 documents"):
        ExactSearch(Lossy()).search(CORPUS, QUERIES, 3, "cos_sim")


def test_options_reach_the_model_and_unknown_ones_are_said_to_be_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[dict[str, Any]] = []

    class Recording(Words):
        def encode_queries(
            self, queries: list[str], batch_size: int, **kwargs: Any
        ) -> torch.Tensor:
            seen.append({"batch_size": batch_size, **kwargs})
            return super().encode_queries(queries, batch_size)

    with caplog.at_level(logging.WARNING):
        search = ExactSearch(
            Recording(), 7, show_progress_bar=False, convert_to_tensor=False, devices=2
        )
        search.search(CORPUS, QUERIES, 1, "cos_sim", return_sorted=True, pool=None)
    assert seen[0] == {"batch_size": 7, "show_progress_bar": False, "convert_to_tensor": False}
    assert [record.getMessage() for record in caplog.records] == [
        "ExactSearch ignores the arguments devices",
        "ExactSearch ignores the arguments pool",
    ]
