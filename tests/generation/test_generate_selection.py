"""Which generated queries stay, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions

SMALL = GenerationOptions(passage_tokens=30, shard_documents=5)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]


def test_of_equal_texts_the_first_stays(beir_folder, fixed, tmp_path):
    fixed(
        lambda passage: [
            "what is it?",
            f"passage {passage.row}",
            "what is it?",
            f"number {passage.number}",
        ]
    )
    plain = generate_queries(beir_folder, "fixed", tmp_path / "plain", SMALL)
    texts = [query["text"] for query in lines(tmp_path / "plain")]
    deduped = generate_queries(
        beir_folder,
        "fixed",
        tmp_path / "deduped",
        GenerationOptions(passage_tokens=30, shard_documents=5, dedupe=True),
    )
    kept = [(query["_id"], query["text"]) for query in lines(tmp_path / "deduped")]
    first = {}
    for query in lines(tmp_path / "plain"):
        first.setdefault(query["text"], query["_id"])
    assert kept == [(id, text) for text, id in first.items()]
    assert deduped.counts["duplicates"] == len(texts) - len(first)
    assert deduped.counts["passages_without_query"] > 0
    assert plain.counts["duplicates"] == 0


def test_the_filter_keeps_queries_that_find_their_document(fixed, tmp_path):
    (tmp_path / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"d{i}", "title": "", "text": f"alpha{i} beta{i} gamma{i} shared"})
            + "\n"
            for i in range(12)
        )
    )
    # The first finds its own document, the second the next one, the third nothing.
    fixed(lambda p: [f"alpha{p.row}", f"beta{(p.row + 1) % 12}", "nowhere to be found"])
    options = GenerationOptions(filter_retriever="bm25", shard_documents=5)
    record = generate_queries(tmp_path / "corpus.jsonl", "fixed", tmp_path / "o", options)
    assert [query["text"] for query in lines(tmp_path / "o")] == [f"alpha{i}" for i in range(12)]
    assert record.counts["inconsistent"] == 24
    assert record.counts["queries"] == 12
    fixed(
        lambda p: ["shared"]
    )  # all documents score alike, so that the last id by its bytes comes first
    three = GenerationOptions(filter_retriever="bm25", filter_top=3)
    generate_queries(tmp_path / "corpus.jsonl", "fixed", tmp_path / "p", three)
    assert {query["metadata"]["document"] for query in lines(tmp_path / "p")} == {"d9", "d8", "d7"}
    fixed(lambda p: ["nowhere"])
    with pytest.raises(InputError, match=r"no query .*first 1 .*bm25"):
        generate_queries(tmp_path / "corpus.jsonl", "fixed", tmp_path / "q", options)
    # What was generated is still there for another filter.
    plain = GenerationOptions(shard_documents=5)
    assert (
        generate_queries(tmp_path / "corpus.jsonl", "fixed", tmp_path / "q", plain).counts[
            "queries"
        ]
        == 12
    )


def test_a_dense_filter(beir_folder, tiny_cosine, tmp_path):
    options = GenerationOptions(
        passage_tokens=30, filter_retriever=f"hybrid:{tiny_cosine}", filter_top=3
    )
    record = generate_queries(beir_folder, "lexical", tmp_path, options)
    counts = record.counts
    assert record.selection["bm25_weight"] == 0.5
    other = GenerationOptions(
        passage_tokens=30, filter_retriever=f"hybrid:{tiny_cosine}", filter_top=3, bm25_weight=2.0
    )
    with pytest.raises(InputError, match="bm25_weight"):
        generate_queries(beir_folder, "lexical", tmp_path, other)
    assert counts["inconsistent"] > 0
    assert counts["queries"] == counts["generated"] - counts["inconsistent"] > 0
    assert not list(tmp_path.rglob("*.npy"))


def test_empty_and_enormous_queries_are_counted(beir_folder, fixed, tmp_path):
    kinds = ["", " \n\t\x00", "q" * 5000, "fine\x07 one\nhere "]
    fixed(lambda passage: [kinds[passage.row % 4]])
    record = generate_queries(
        beir_folder, "fixed", tmp_path, GenerationOptions(passage_tokens=200, max_length=10)
    )
    counts = record.counts
    assert (counts["generated"], counts["empty"], counts["cut"], counts["queries"]) == (
        48,
        24,
        12,
        24,
    )
    assert counts["passages_without_query"] == 24
    assert {query["text"] for query in lines(tmp_path)} == {"q" * 160, "fine one here"}


@pytest.mark.parametrize(
    ("corpus", "message"),
    [(["apple", "pear", "plum"], r"3 passages .*0 queries"), (["", "  "], "no document .*text")],
)
def test_a_corpus_that_gives_no_query_is_one_clear_error(tmp_path, corpus, message):
    file = tmp_path / "corpus.jsonl"
    file.write_text(
        "".join(json.dumps({"_id": str(i), "text": t}) + "\n" for i, t in enumerate(corpus))
    )
    with pytest.raises(InputError, match=message):
        generate_queries(file, "lexical", tmp_path / "o", SMALL)
    assert not list((tmp_path / "o").rglob("*"))


def test_a_row_from_outside_is_a_generator_and_its_citation_is_recorded(
    beir_folder, fixed, tmp_path
):
    fixed(lambda passage: [f"passage {passage.row} {passage.number}"])
    record = generate_queries(beir_folder, "fixed", tmp_path, SMALL)
    assert record.citations == ["me2026"]
    assert record.generator == {"name": "fixed", "kind": "fixed"}
    assert record.counts["queries"] == record.counts["passages"]


def test_a_generator_that_says_nothing_is_one_clear_error(beir_folder, fixed, tmp_path):
    fixed(lambda passage: ["", " "])
    with pytest.raises(InputError, match=r"passages .*none .*text"):
        generate_queries(beir_folder, "fixed", tmp_path / "o", SMALL)
    assert not list((tmp_path / "o").rglob("*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_passage": 0}, "per_passage"),
        ({"passage_tokens": 4}, "passage_tokens"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_passages": 0}, "max_passages"),
        ({"seed": -1}, "seed"),
        ({"filter_top": 0}, "filter_top"),
        ({"shard_documents": 0}, "shard_documents"),
    ],
)
def test_settings_out_of_range(changes, message):
    with pytest.raises(InputError, match=message):
        GenerationOptions(**changes)


def test_bad_input_leaves_nothing_behind(beir_folder, tiny_bert, tmp_path):
    def refused(message, generator="lexical", options=SMALL, **more):
        with pytest.raises(InputError, match=message):
            generate_queries(beir_folder, generator, tmp_path / "o", options, **more)
        assert not (tmp_path / "o").exists()

    refused("i/n", part=(3, 2))
    refused("decoder", generator=str(tiny_bert))
    refused("cannot be loaded.*'lexical'", generator="nowhere/to/be")
    refused("tokenizer .*load", options=GenerationOptions(tokenizer="nowhere/to/be"))
    refused("dense encoder", options=GenerationOptions(filter_retriever="hybrid:"))
    refused("prefix", options=GenerationOptions(prefix="x"))
