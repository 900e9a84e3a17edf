"""How languages are read, and which words of a text match a query; stems are PyStemmer's own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
import regex
import Stemmer
from bm25s.stopwords import STOPWORDS_EN, STOPWORDS_GERMAN
from bm25s.tokenization import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from beir_cocodr.data.analyzers import ANALYZERS, STEMMED, UNSTEMMED, Analyzer, Language, snippet
from beir_cocodr.data.text import word_ranges, words
from beir_cocodr.errors import InputError


def test_every_language_of_snowball_has_a_code_and_is_read():
    assert set(STEMMED.values()) == set(Stemmer.algorithms()) - {"porter", "dutch_porter"}
    for name in ANALYZERS:
        assert Analyzer(name)("Wörter и слова")
    assert pickle.loads(pickle.dumps(Analyzer("german"))).stop_words == frozenset(STOPWORDS_GERMAN)


UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")


def host_terms(text: str) -> list[str]:
    host = Tokenizer(stopwords="english", stemmer=Stemmer.Stemmer("english"))
    ids = host.tokenize([text], show_progress=False)[0]
    back = {id: token for token, id in host.get_vocab_dict().items()}
    return [back[id] for id in ids if back[id]]


@given(st.text())
def test_english_reads_as_bm25s_does(text):
    assert Analyzer("english")(text) == host_terms(text)
    assert Analyzer("english").stop_words == frozenset(STOPWORDS_EN)
    spaced = UNSPACED.sub(" ", text)
    assert Analyzer("english-pairs")(spaced) == host_terms(spaced)


@settings(deadline=None)  # the first example imports pyarrow
@given(st.lists(st.text() | st.text(alphabet="aB_1 é\u0130\u00a0\u2028\x1c数据,-'s", max_size=40)))
def test_many_texts_at_once_are_read_as_one_by_one(texts):
    for name in ("english", "english-pairs", "german", "words", "none"):
        analyzer = Analyzer(name)
        split = [
            [term for term in analyzer.read(found) if term is not None]
            for found in analyzer.split_all(texts).to_pylist()
        ]
        assert split == [analyzer(text) for text in texts]


@pytest.mark.parametrize("name", sorted({*ANALYZERS} - {"english", "none"}))
def test_an_analyzer_reads_pairs_where_words_are_not_spaced(name):
    terms = Analyzer(name)("wing机翼产生 ปีก\u2026ຍົກ។ស្លាប,တောင်")
    for pair in ("机翼", "翼产", "产生", "ปี", "ีก", "ຍົ", "ົກ", "ស្", "លា", "တေ", "င်"):
        assert pair in terms
    assert not any(len(term) > 2 for term in terms if UNSPACED.search(term))
    assert Analyzer(name)("猫") == ["猫"]


def test_a_language_stems_by_snowball_and_leaves_its_stop_words_out():
    stem = Stemmer.Stemmer("german").stemWord
    assert Analyzer("german")("Die Häuser der Städte") == [stem("häuser"), stem("städte")]
    assert Analyzer("words")("数据库 Häuser") == ["数据", "据库", "häuser"]


@pytest.mark.parametrize(
    ("name", "code", "analyzer", "words"),
    [
        ("de", "de", "german", "Snowball"),
        ("Polish", "pl", "polish", "no stop words"),
        ("zh", "zh", "words", "pairs"),
        ("korean", "ko", "korean", "no stemmer"),
        ("sw", "sw", "words", "not stemmed"),
    ],
)
def test_what_falls_back_is_described(name, code, analyzer, words):
    language = Language.parse(name)
    assert (language.code, language.analyzer) == (code, analyzer)
    assert words in language.describe()


def test_unknown_languages_and_analyzers_name_the_way_out():
    with pytest.raises(InputError, match="did you mean german"):
        Language.parse("germen")
    with pytest.raises(InputError, match="ISO 639"):
        Language.parse("klingon")
    with pytest.raises(InputError, match=r"klingon.*german"):
        Analyzer("klingon")
    assert not set(STEMMED) & set(UNSTEMMED)


@given(st.text(alphabet="ab 数据库,.ก"))
def test_word_ranges_are_where_words_stand(text):
    assert [text[start:end] for start, end in word_ranges(text)] == words(text)


def test_a_snippet_is_the_part_with_most_of_the_query():
    text = "filler " * 100 + "return a sorted copy\nof the array " + "filler " * 100 + "sorted"
    shown = snippet(text, "sort an array", Analyzer("english"), 80)
    assert [shown.text[start:end] for start, end in shown.matches] == ["sorted", "array"]
    assert shown.text.startswith("… filler")
    assert shown.text.endswith("filler …")
    assert len(shown.text) <= 84
    assert "[sorted] copy of the [array]" in shown.marked("[", "]")


def test_a_snippet_without_matches_is_the_beginning_and_has_no_control_characters():
    shown = snippet("\x1b[31mred\u202e text", "blue", Analyzer("english"))
    assert (shown.text, shown.matches) == ("[31mred text", ())
    assert snippet("", "blue", Analyzer("none")).text == ""


@given(st.text(), st.text(), st.sampled_from(["english", "words", "none"]), st.integers(1, 50))
def test_matches_of_any_text_are_words_of_the_query(text, query, name, length):
    analyzer = Analyzer(name)
    shown = snippet(text, query, analyzer, length)
    previous = 0
    for start, end in shown.matches:
        assert previous <= start < end <= len(shown.text)
        assert set(analyzer(shown.text[start:end])) & set(analyzer(query))
        previous = end


WATCHED_JAX = """
import sys
from pathlib import Path
Path(sys.argv[1], "imported").touch()
"""

SEARCH = """
import sys
from beir_cocodr import load_collection
from beir_cocodr.retrieval.bm25 import BM25
assert BM25(load_collection(sys.argv[2]).documents).search({"q": "wing"}, top_k=3).rows.shape
assert "bm25s" in sys.modules
"""


def test_bm25s_does_not_take_the_memory_of_gpus_through_jax(beir_folder, tmp_path):
    """bm25s imports JAX where it is installed, which then takes most of a GPU's memory."""
    package = tmp_path / "libraries" / "jax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(WATCHED_JAX)
    (package / "lax.py").write_text("def top_k(scores, k): return scores[:k], [0] * k")
    environment = os.environ | {"PYTHONPATH": str(package.parent)}

    def run(script: str) -> bool:
        (tmp_path / "imported").unlink(missing_ok=True)
        arguments = [sys.executable, "-c", script, str(tmp_path), str(beir_folder)]
        subprocess.run(arguments, check=True, env=environment)
        return (tmp_path / "imported").exists()

    assert run("import bm25s")
    assert not run(SEARCH)
    assert run(f"{SEARCH}import jax")
