"""The lexical generator against its definition: every query's words, tf-idf by brute force,
repeatability.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from conftest import exit_code

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.passages import Passage, sentence_ranges
from beir_cocodr.data.text import TextFormat, words
from beir_cocodr.generation.lexical import (
    LexicalGenerator,
    count_document_frequencies,
    inverse_document_frequencies,
)
from beir_cocodr.generation.settings import GenerationOptions


@pytest.fixture(scope="module")
def documents(beir_folder):
    return load_collection(beir_folder, labels="none").documents


@pytest.fixture(scope="module")
def texts(documents):
    return [TextFormat().document(document) for document in documents.values()]


def passages_of(documents, texts):
    titles = [document["title"] for document in documents.values()]
    return [
        Passage(row, 0, 0, len(text), text, title)
        for row, (text, title) in enumerate(zip(texts, titles, strict=True))
    ]


@pytest.fixture(scope="module")
def made(documents, texts, tmp_path_factory):
    generator = LexicalGenerator(documents, GenerationOptions(per_passage=8))
    generator.prepare(tmp_path_factory.mktemp("lexical"))
    passages = passages_of(documents, texts)
    return passages, generator.generate(passages, 0)


def test_document_frequencies_are_those_of_counting(documents, texts):
    expected = Counter(word for text in texts for word in set(words(text)))
    counted = count_document_frequencies(documents, TextFormat())
    n = len(texts)
    idf = inverse_document_frequencies(counted, n, list(expected))
    np.testing.assert_allclose(idf, [math.log(1 + n / df) for df in expected.values()], rtol=1e-12)
    assert counted.nbytes == 1 << 24


def test_queries_are_titles_sentences_or_terms_of_their_passage(made):
    passages, generated = made
    kinds = Counter()
    for passage, queries in zip(passages, generated.queries, strict=True):
        whole = words(passage.text)
        assert queries
        for query in queries:
            found = words(query.text)
            if query.text == passage.title:
                kinds["titles"] += 1
            elif query.text.endswith(" ."):  # as every sentence of this collection ends
                assert query.text in passage.text
                kinds["sentences"] += 1
            else:
                assert 2 <= len(found) == len(set(found)) <= 5
                places = [whole.index(word) for word in found]
                assert places == sorted(places)
                kinds["terms"] += 1
        assert len({tuple(words(query.text)) for query in queries}) == len(queries) <= 8
    assert {f"generated_{kind}": count for kind, count in kinds.items()} == generated.counts
    assert min(kinds.values()) > 10


def test_terms_are_the_best_ten_by_tf_idf(made, texts):
    df = Counter(word for text in texts for word in set(words(text)))
    passages, generated = made
    for passage, queries in zip(passages, generated.queries, strict=True):
        tf = Counter(words(passage.text))
        weight = {
            word: (1 + math.log(n)) * math.log(1 + len(texts) / df[word]) for word, n in tf.items()
        }
        tenth = sorted(weight.values())[-10:][0]
        for query in queries:
            if query.text != passage.title and not query.text.endswith(" ."):
                assert all(weight[word] >= tenth - 1e-12 for word in words(query.text))


def test_the_first_sentence_given_is_the_most_salient(made, texts):
    df = Counter(word for text in texts for word in set(words(text)))
    passages, generated = made
    for passage, queries in zip(passages, generated.queries, strict=True):
        body = passage.text.removeprefix(passage.title).strip()
        tf = Counter(words(passage.text))

        def salience(sentence, tf=tf):
            distinct = set(words(sentence))
            idf = {word: math.log(1 + len(texts) / df[word]) for word in distinct}
            total = sum((1 + math.log(tf[word])) * idf[word] for word in distinct)
            return total / math.sqrt(len(distinct))

        given = [query.text for query in queries if query.text.endswith(" .")]
        sentences = [body[start:end] for start, end in sentence_ranges(body)]
        best = sorted(map(salience, sentences), reverse=True)[: len(given)]
        np.testing.assert_allclose([salience(text) for text in given], best, rtol=1e-9)


def one(text: str, title: str = "", **options) -> list[str]:
    generator = LexicalGenerator(range(10), GenerationOptions(**options))
    generator._frequencies = np.ones(1 << 22, np.uint32)
    [queries] = generator.generate([Passage(0, 0, 0, len(text), text, title)], 0).queries
    return [query.text for query in queries]


def test_a_passage_is_no_query_of_itself():
    assert one("apple") == []
    assert one("Apple!", title="Apple!") == []
    assert one("...") == []
    assert set(one("apple tart recipe.", per_passage=50)) == {
        "apple tart",
        "apple recipe",
        "tart recipe",
    }


def test_languages_without_spaces():
    queries = one("東京は日本の首都である。京都は古い都である。", per_passage=12)
    assert "東京は日本の首都である。" in queries
    assert any(" " in query for query in queries)


def test_long_queries_are_cut_and_say_so():
    generator = LexicalGenerator(range(10), GenerationOptions(per_passage=50, max_length=4))
    generator._frequencies = np.ones(1 << 22, np.uint32)
    text = "one two three four five six seven. Eight."
    [queries] = generator.generate([Passage(0, 0, 0, len(text), text, "")], 0).queries
    assert ("one two three four", True) in [tuple(query) for query in queries]
    assert all(len(words(query.text)) <= 4 for query in queries)


_RUN = """
import sys
from beir_cocodr.cli.__main__ import main
try:
    main(sys.argv[1:])
except SystemExit as status:
    assert not status.code
print("torch" in sys.modules)
"""


def test_neither_the_process_nor_torch_is_in_it(beir_folder, tmp_path):
    """Python's order of sets changes from process to process; and no model must cost no seconds."""
    arguments = ["generate-queries", "--dataset", str(beir_folder), "--output"]
    here, other = tmp_path / "here", tmp_path / "other"
    assert exit_code(main, [*arguments, str(here)]) == 0
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments, str(other)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": seed},
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert (here / "queries.jsonl").read_bytes() == (other / "queries.jsonl").read_bytes()
