"""Passages against their definition, by three kinds of tokens, and grouping against brute force."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data.passages import fitting_prefix, split_passages
from beir_cocodr.data.text import token_counter, word_counter
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generate import named_counter

PIECES = [
    "wing ",
    "supersonic flow ",
    "A b. ",
    "Drag? ",
    "unbreakable" * 3,
    "今日は。",
    "\n\n",
    "é\u0301 ",
    "😀",
]
TEXT = st.lists(
    st.one_of(
        st.sampled_from(PIECES), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    ),
    max_size=40,
).map("".join)


@pytest.fixture(scope="module")
def counters(wordpiece):
    return {
        "words": word_counter().count,
        "wordpiece": token_counter(wordpiece).count,
        # Joined sentences are longer than their sum, by the white space between them.
        "characters": lambda texts: [len(text) for text in texts],
    }


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_nothing_is_lost_the_order_is_kept_and_the_bound_is_held(counters, data):
    count = counters[data.draw(st.sampled_from(sorted(counters)))]
    limit = data.draw(st.integers(8, 60))
    texts = data.draw(st.lists(TEXT, max_size=3))
    titles = [data.draw(st.integers(0, len(text))) for text in texts]
    for text, ranges in zip(texts, split_passages(texts, count, limit, titles=titles), strict=True):
        parts = [text[start:end] for start, end in ranges]
        assert [c for part in parts for c in part if not c.isspace()] == [
            c for c in text if not c.isspace()
        ]
        assert all(first[1] <= second[0] for first, second in pairwise(ranges))
        assert all(part and part == part.strip() for part in parts)
        assert all(
            n <= limit or len(part) == 1 for part, n in zip(parts, count(parts), strict=True)
        )


@settings(deadline=None)
@given(st.lists(st.integers(1, 11), min_size=1, max_size=30), st.integers(12, 40))
def test_sentences_are_grouped_greedily(lengths, limit):
    sentences = [" ".join(["Word", *["word"] * (n - 1)]) + "." for n in lengths]
    groups: list[list[int]] = [[]]
    for i, n in enumerate(lengths):
        if sum(lengths[j] + 1 for j in groups[-1]) + n + 1 > limit:  # a full stop is a token too
            groups.append([])
        groups[-1].append(i)
    text = " ".join(sentences)
    [ranges] = split_passages([text], word_counter().count, limit)
    expected = [" ".join(sentences[i] for i in group) for group in groups if group]
    assert [text[start:end] for start, end in ranges] == expected


def test_a_long_sentence_is_cut_between_words_and_its_rest_grouped():
    text = " ".join(f"w{i}" for i in range(25)) + ". Then more."
    [ranges] = split_passages([text], word_counter().count, 10)
    parts = [text[start:end].split() for start, end in ranges]
    assert [len(part) for part in parts] == [10, 10, 7]
    assert parts[-1] == ["w20", "w21", "w22", "w23", "w24.", "Then", "more."]


def test_a_title_is_a_sentence_of_its_own():
    text = "Boundary layers " + "They grow along a plate as it gets longer. " * 2
    count = word_counter().count
    [[first, *_]] = split_passages([text], count, 9, titles=[len("Boundary layers")])
    assert text[slice(*first)] == "Boundary layers"
    [[first, *_]] = split_passages([text], count, 9)
    assert text[slice(*first)] != "Boundary layers"


def test_a_text_that_fits_is_one_passage_and_a_blank_one_none():
    count = word_counter().count
    assert split_passages(["One. Two.", " \n\t", ""], count, 8) == [[(0, 9)], [], []]


def test_special_tokens_count(wordpiece):
    text = "wing flow shock layer drag lift"  # six words in the vocabulary
    count = token_counter(wordpiece).count
    assert count([text, ""]) == [8, 2]
    assert split_passages([text], count, 8) == [[(0, len(text))]]
    assert len(split_passages([text + " heat"], count, 8)[0]) == 2
    sentence = "Wing flow shock layer."  # five tokens: two of them and the special ones make twelve
    [ranges] = split_passages([" ".join([sentence] * 4)], count, 12)
    assert [end - start for start, end in ranges] == [2 * len(sentence) + 1] * 2


def test_fitting_prefix(counters):
    assert fitting_prefix(" one two three", counters["words"], 2) == "one two"
    assert fitting_prefix("unbreakable", counters["characters"], 4) == "unbr"
    assert fitting_prefix("  ", counters["words"], 2) == ""


def test_counters_by_name(tiny_bert, tmp_path):
    by_folder = named_counter(str(tiny_bert))
    assert by_folder.count(["wing flow"]) == [4]
    assert by_folder.count([]) == []
    assert named_counter("words").count(["wing flow.", "今日"]) == [3, 2]
    assert by_folder.sha256 == named_counter(str(tiny_bert)).sha256 != named_counter("words").sha256
    with pytest.raises(InputError, match=r"tokenizer .*load"):
        named_counter(str(tmp_path))
