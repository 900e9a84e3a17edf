"""The language of a corpus: that of half of its text, said and overridden."""

import json
import logging
from pathlib import Path

import pytest

from beir_cocodr import Searcher, SearchOptions, load_collection
from beir_cocodr.data import languages
from beir_cocodr.data.languages import (
    corpus_analyzer,
    detect_language,
    language_shares,
    main_language,
    warn_of_unspaced_text,
)

pytest.importorskip("py3langid")

#: The same sentence in several languages.
WINGS = {
    "en": "The wing of an aircraft makes lift in the flow of air, and the engine makes thrust.",
    "de": "Der Flügel eines Flugzeugs erzeugt Auftrieb in der Strömung, der Motor den Schub.",
    "fr": "L'aile d'un avion crée de la portance dans l'écoulement, et le moteur la poussée.",
    "ru": "Крыло самолёта создаёт подъёмную силу в потоке воздуха, а двигатель тягу.",
    "zh": "飞机的机翼在气流中产生升力，发动机产生推力。",
    "ja": "飛行機の翼は空気の流れの中で揚力を生み、エンジンは推力を生みます。",
    "th": "ปีกของเครื่องบินสร้างแรงยกในการไหลของอากาศ",
}


@pytest.mark.parametrize("code", WINGS)
def test_the_language_of_a_text(code):
    assert detect_language(WINGS[code]) == code


def test_what_is_no_text_has_no_language():
    for text in ("", "ok", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12", "\ud800" * 30):
        assert detect_language(text) is None


def test_half_of_the_text_decides():
    assert main_language({"en": 500, "de": 500}) in ("de", "en")
    assert main_language({"en": 400, "de": 300, "fr": 300}) == "mul"
    assert main_language({"de": 150}) == "en"  # too little to tell
    assert main_language({}) == "en"
    assert language_shares({"de": 1, "en": 3}) == {"en": 0.75, "de": 0.25}


def test_an_analyzer_that_was_asked_for_stays():
    assert corpus_analyzer("english", "de") == "german"
    assert corpus_analyzer("none", "de") == "none"
    assert corpus_analyzer("english", None) == "english"
    assert corpus_analyzer("english", "en") == "english-pairs"
    assert corpus_analyzer("english", "mul") == "words"


@pytest.fixture
def german(tmp_path) -> Path:
    folder = tmp_path / "berichte"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(f"Bericht {number}. {WINGS['de']}")
    (folder / "wings.txt").write_text(WINGS["en"])
    return folder


def test_a_folder_is_read_by_its_language_unless_another_is_named(german, caplog):
    with caplog.at_level(logging.INFO):
        searcher = Searcher(german, "bm25")
    assert "German" in caplog.text
    assert "--language" in caplog.text
    assert searcher.analyzer.name == "german"
    facts = searcher.documents.facts
    assert (facts.language, list(facts.languages)) == ("de", ["de", "en"])
    # "Flügeln" and "Flügel" have one stem in German, and two in English.
    assert len(searcher.search("Flügeln", top_k=10)) == 6
    assert not Searcher(f"{german}?language=en", "bm25").search("Flügeln")


def test_collections_of_other_kinds_have_no_detected_language(beir_folder):
    assert load_collection(beir_folder).documents.facts.language is None
    assert Searcher(beir_folder, "bm25").analyzer.name == "english"


@pytest.mark.parametrize(
    ("code", "analyzer", "is_warned"),
    [
        ("zh", "english", True),
        ("th", "none", True),
        ("zh", "english-pairs", False),
        ("ru", "english", False),
        ("en", "english", False),
    ],
)
def test_text_in_which_bm25_finds_no_words_is_warned_of(code, analyzer, is_warned, caplog):
    languages._warn_of_unspaced_text.cache_clear()
    for _ in range(2):
        warn_of_unspaced_text([WINGS[code], WINGS["en"][:20]], analyzer)
    assert caplog.text.count("--bm25-analyzer english-pairs") == is_warned


def test_a_search_in_chinese_names_the_analyzer_that_finds_words(tmp_path, caplog):
    languages._warn_of_unspaced_text.cache_clear()
    rows = [{"_id": str(n), "title": "", "text": f"{WINGS['zh']}{n}"} for n in range(3)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    Searcher(str(corpus), "bm25").search("机翼")
    assert "--bm25-analyzer english-pairs" in caplog.text
    options = SearchOptions(analyzer="english-pairs")
    assert Searcher(str(corpus), "bm25", options=options).search("机翼")
