"""Typed queries: what is found is what the retrievers find, and its parts add up to the score."""

from __future__ import annotations

import copy
import gc
import json
import pickle

import numpy as np
import pytest

from beir_cocodr import Searcher
from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.retrieval.resources import Resources

QUERY = "supersonic wing in a turbulent flow"


def test_hits_are_what_bm25_finds_and_name_the_words_that_match(beir_folder, tmp_path):
    searcher = Searcher(beir_folder, "bm25")
    hits = searcher.search(QUERY, top_k=5)
    documents = load_collection(beir_folder).documents
    ranking = Resources(documents, tmp_path).ranker("bm25").search({"q": QUERY}, 5)
    assert [(hit.id, hit.score) for hit in hits] == ranking.results(documents)["q"]
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    for hit in hits:
        assert (hit.title, hit.text) == (documents[hit.id]["title"], documents[hit.id]["text"])
        assert hit.words
        assert set(hit.words) <= {"supersonic", "wing", "turbulent", "flow"}
        assert {hit.snippet[start:end] for start, end in hit.matches} <= set(hit.words)
        assert (hit.dense, hit.lexical, hit.file, hit.place) == (None, hit.score, None, hit.id)
    assert json.loads(json.dumps(hits[0].to_json()))["id"] == hits[0].id


@pytest.mark.parametrize("kind", ["", "hybrid:", "rrf:", "rm3:", "feedback:"])
def test_the_parts_of_a_score_add_up_to_it(beir_folder, tiny_cosine, kind):
    hits = Searcher(beir_folder, f"{kind}{tiny_cosine}", SearchOptions(bm25_weight=0.7)).search(
        QUERY
    )
    parts = np.array([[hit.dense or 0, hit.lexical or 0] for hit in hits])
    np.testing.assert_allclose(parts.sum(axis=1), [hit.score for hit in hits], rtol=1e-4, atol=1e-5)
    assert (parts[:, 1].any(), len(hits)) == (kind in ("hybrid:", "rrf:", "rm3:"), 10)


@pytest.mark.parametrize("kind", ["bm25", "hybrid:"])
def test_a_search_within_some_documents_is_the_whole_ranking_without_the_others(
    beir_folder, tiny_cosine, monkeypatch, kind
):
    searcher = Searcher(beir_folder, "bm25" if kind == "bm25" else f"{kind}{tiny_cosine}")
    whole = searcher.search(QUERY, len(searcher.documents))
    wanted = {hit.id for hit in whole[3::5]}
    monkeypatch.setattr("beir_cocodr.retrieval.searcher._FIRST_DEPTH", 4)  # it is made deeper
    hits = searcher.search_within(QUERY, wanted.__contains__, top_k=3)
    kept = [hit for hit in whole if hit.id in wanted][:3]
    assert [hit.id for hit in hits] == [hit.id for hit in kept]
    np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in kept], rtol=1e-5)
    assert [hit.rank for hit in hits] == list(range(1, len(kept) + 1))
    assert len(kept) > 1
    assert searcher.search_within(QUERY, lambda id: False) == []
    assert len(searcher.search_within(QUERY, wanted.__contains__, top_k=48)) == len(wanted)


def test_the_parts_of_a_hybrid_encoder_are_those_of_its_vector(beir_folder, tiny_cosine, tmp_path):
    from beir_cocodr import fuse, load_encoder
    from beir_cocodr.models.spec import FuseOptions

    fuse(
        str(tiny_cosine),
        str(beir_folder),
        output=tmp_path / "fused",
        options=FuseOptions(lexical="svd", bytes_per_document=128),
    )
    searcher, model = (
        Searcher(beir_folder, str(tmp_path / "fused")),
        load_encoder(tmp_path / "fused"),
    )
    [query] = model.encode_query([QUERY])
    for hit in searcher.search(QUERY, 3):
        [document] = model.encode_corpus([{"title": hit.title, "text": hit.text}])
        assert hit.dense == pytest.approx(float(query[:32] @ document[:32]), rel=1e-3, abs=1e-3)
        assert hit.lexical == pytest.approx(float(query[32:] @ document[32:]), rel=1e-3, abs=1e-3)
    for hit in searcher.beside(f"feedback:{tmp_path / 'fused'}").search(QUERY, 3):
        assert hit.dense + hit.lexical == pytest.approx(hit.score, rel=1e-3)


def test_a_searcher_beside_another_shares_what_it_has_and_outlives_it(beir_folder, tiny_cosine):
    searcher = Searcher(beir_folder, str(tiny_cosine))
    expected = searcher.search(QUERY)
    other = searcher.beside(f"hybrid:{tiny_cosine}")
    assert other._ranker.dense is searcher._ranker
    del searcher
    gc.collect()
    assert other.search(QUERY)
    assert other.beside(str(tiny_cosine)).search(QUERY) == expected


def test_a_folder_of_files_is_searched_and_only_what_changed_is_encoded(
    tiny_cosine, tmp_path, monkeypatch
):
    from beir_cocodr.retrieval.vectors.corpus_encoder import CorpusEncoder

    encoded: list[str] = []
    original = CorpusEncoder._encode

    def counted(self, rows, *rest):
        encoded.extend(self.documents.ids(rows))
        return original(self, rows, *rest)

    monkeypatch.setattr(CorpusEncoder, "_encode", counted)
    folder = tmp_path / "my files"
    folder.mkdir()
    (folder / "wings.md").write_text(
        "# Wings\n\nSupersonic flow.\n\n## In a tunnel\n\nTurbulent flow over a wing.\n"
    )
    (folder / "books.txt").write_text("A library has an index.")
    hits = Searcher(folder, f"hybrid:{tiny_cosine}").search("wing in turbulent flow")
    hit = next(hit for hit in hits if hit.section)
    assert (hit.file, hit.place, hit.title, hit.section) == (
        "wings.md",
        "wings.md",
        "Wings",
        "In a tunnel",
    )
    assert hit.words == ("wings", "turbulent", "flow", "wing")
    assert len(set(encoded)) == 3
    encoded.clear()
    (folder / "books.txt").unlink()
    (folder / "news.txt").write_text("A treaty of the parliament.")
    searcher = Searcher(folder, str(tiny_cosine))
    assert {hit.file for hit in searcher.search("library")} == {"wings.md", "news.txt"}
    assert [id.partition("#")[0] for id in encoded] == ["news.txt"]
    assert searcher.full_text(hit.id) == "Supersonic flow.\n\nTurbulent flow over a wing."
    assert Searcher(folder / "news.txt").search("treaty")[0].file == "news.txt"


def test_of_a_table_the_record_is_the_document_and_not_the_file(tmp_path):
    long = [
        " ".join(f"Sentence {n} of part {part} says something." for n in range(40))
        for part in range(2)
    ]
    rows = [
        "id,text",
        "a,A first one.",
        "b,Another one.",
        f"c,{' '.join(long)}",
        ",Without a name.",
        "d#1,The last.",
    ]
    (tmp_path / "records.csv").write_text("\n".join(rows))
    (tmp_path / "note.md").write_text("A note about records.")
    searcher = Searcher(tmp_path)
    texts = {
        id: searcher.full_text(id)
        for id in searcher.documents.ids()
        if id.startswith("records.csv")
    }
    assert [texts[f"records.csv#{id}"] for id in ("a", "b", "d#1")] == [
        "A first one.",
        "Another one.",
        "The last.",
    ]
    cut = [text for id, text in texts.items() if id.startswith("records.csv#c#")]
    assert len(cut) > 1
    assert {" ".join(text.split()) for text in cut} == {" ".join(long)}
    assert "Without a name." in texts.values()


def test_corpora_of_one_name_in_two_places_are_kept_apart(tmp_path, monkeypatch):
    kept = set()
    for name in ("one", "two"):
        (tmp_path / name / "data").mkdir(parents=True)
        (tmp_path / name / "data" / "corpus.jsonl").write_text(
            f'{{"_id": "1", "text": "{name}"}}\n'
        )
        monkeypatch.chdir(tmp_path / name)
        kept |= {Searcher("data").kept, Searcher(tmp_path / name / "data").kept}
    assert len(kept) == 2


def test_bad_input(beir_folder):
    searcher = Searcher(beir_folder)
    assert searcher.search("zzz") == []
    for query, depth, word in (("", 1, "empty"), (" \n", 1, "empty"), ("wing", 0, "top_k")):
        with pytest.raises(InputError, match=word):
            searcher.search(query, depth)
    with pytest.raises(InputError, match="nowhere"):
        Searcher("nowhere/at/all")
    with pytest.raises(InputError, match="no document 'zzz'"):
        searcher.full_text("zzz")
    assert searcher.full_text("d3") == searcher.documents["d3"]["text"]


@pytest.mark.parametrize(
    ("name", "meant"), [("minlm", "minilm"), ("bm52", "bm25"), ("hybird:minilm", "hybrid:minilm")]
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(beir_folder, name, meant):
    with pytest.raises(InputError, match=f"did you mean {meant}"):
        Searcher(beir_folder, name)


@pytest.mark.parametrize(
    ("query", "top_k", "message"),
    [(None, 3, "query 'query' is None"), (7, 3, "an int"), ("wing", 1.5, "top_k is a float")],
)
def test_queries_and_depths_of_other_types_are_refused(beir_folder, query, top_k, message):
    with pytest.raises(InputError, match=message):
        Searcher(beir_folder, "bm25").search(query, top_k)


def test_an_unpaired_surrogate_in_a_query_is_named_with_its_position(beir_folder, tiny_cosine):
    for model in ("bm25", str(tiny_cosine)):
        searcher = Searcher(beir_folder, model)
        named = r"query 'query' .*'\\ud83d', at position 5"
        with pytest.raises(InputError, match=named):
            searcher.search("wing \ud83d")
        with pytest.raises(InputError, match=named):
            searcher.search_within("wing \ud83d", bool)
        with pytest.raises(InputError, match=r"query id 'q\\ud83d' .*at position 1"):
            searcher.search_all({"q\ud83d": "wing"})
        assert searcher.search("wing \U0001f600", 1)  # both halves


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))]
)
def test_a_copied_or_pickled_searcher_finds_the_same(duplicate, beir_folder, tiny_cosine):
    searcher = Searcher(beir_folder, f"hybrid:{tiny_cosine}")
    hits = searcher.search(QUERY, top_k=5)
    again = duplicate(searcher).search(QUERY, top_k=5)
    assert [(hit.id, hit.score) for hit in again] == [(hit.id, hit.score) for hit in hits]
