"""The comparison of the models on a page: its searches, its failures and its table of pairs."""

from __future__ import annotations

import pytest

from beir_cocodr.data.asked_queries import AskedQueries
from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.judgement_log import Asked, JudgementLog
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.label_free import gatherer
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.serve.session_comparison import SessionComparison


@pytest.fixture
def comparison(beir_folder, tmp_path) -> SessionComparison:
    """Return the comparison of a session in which queries are kept."""
    folder = tmp_path / "session"
    folder.mkdir()
    judged = JudgementLog(folder)
    asked = AskedQueries(folder)
    kept = tmp_path / "kept"
    return SessionComparison(str(beir_folder), SearchOptions(), 4, judged, asked, kept)


def test_a_verdict_needs_two_models_and_a_changed_corpus_needs_new_searches(
    comparison, tiny_cosine, tmp_path
):
    assert "two models" in comparison.update(["bm25"])
    assert comparison.verdict is None
    models = ["bm25", str(tiny_cosine)]
    assert comparison.update(models) == ""
    assert comparison.verdict.version == comparison.judged.version
    pairs = list(comparison.pairs())
    assert len(pairs) == len(comparison.drawn) > 0
    asked, document = pairs[0]
    comparison.judged.judge(asked, document, 1)
    assert len(list(comparison.pairs())) == len(pairs) - 1
    comparison.renew()
    assert not comparison.drawn
    comparison.remove_files()


def test_queries_of_the_collection_that_are_asked_again_change_nothing(comparison, tiny_cosine):
    """Its crops are drawn again for ten queries of people, and these are none."""
    models = ["bm25", str(tiny_cosine)]
    assert comparison.update(models) == ""
    gatherer = comparison._gatherer
    texts = list(load_collection(comparison.dataset, labels="optional").queries.values())
    for text in texts[:12]:
        comparison.asked.add(f" {text}")
    assert comparison.update(models) == ""
    assert comparison._gatherer is gatherer
    for number in range(10):
        comparison.asked.add(f"{texts[0]} {number}")
    assert comparison.update(models) == ""
    assert comparison._gatherer is not gatherer
    comparison.remove_files()


def test_a_query_that_was_typed_and_judged_is_not_proposed_again(comparison, tiny_cosine):
    assert comparison.update(["bm25", str(tiny_cosine)]) == ""
    asked, document = next(comparison.pairs())
    others = len({id for id, _ in comparison.drawn}) - 1
    comparison.judged.judge(Asked(asked.text), document, 1)
    left = {left.query_id for left, _ in comparison.pairs()}
    assert asked.query_id not in left
    assert len(left) == others > 0
    # Where pairs of the query were begun, they are asked for to the end.
    comparison.judged.judge(asked, document, 1)
    assert asked.query_id in {left.query_id for left, _ in comparison.pairs()}
    comparison.remove_files()


def test_many_queries_are_ten_and_then_twice_as_many(comparison, tiny_cosine):
    """Even where a session begins with seven of them, and where no comparison succeeds."""

    def ask_until(count):
        for number in range(len(comparison.asked.queries), count):
            comparison.asked.add(f"query {number}")

    ask_until(7)
    assert comparison.update(["bm25", str(tiny_cosine)]) == ""
    for count, is_many in ((9, False), (10, True)):
        ask_until(count)
        assert comparison.has_asked_many() is is_many
    comparison.renew()
    assert "two models" in comparison.update(["bm25"])
    for count, is_many in ((10, False), (19, False), (20, True)):
        ask_until(count)
        assert comparison.has_asked_many() is is_many
    comparison.remove_files()


def test_a_table_stays_unless_the_log_has_all_of_its_judgements(comparison, tiny_cosine, tmp_path):
    output = tmp_path / "verdict"
    models = ["bm25", str(tiny_cosine)]
    assert comparison.update(models) == ""
    comparison.write(models, output)
    table = output / LABELS_FILE
    header, first, *rest = table.read_text().splitlines()
    cells = first.split("\t")
    cells[2] = "1"
    table.write_text("\n".join([header, "\t".join(cells), *rest]) + "\n")
    with pytest.raises(InputError, match="would be overwritten"):
        comparison.write(models, output)
    comparison.judged.judge(Asked(cells[6], cells[0]), cells[1], 1)
    comparison.write(models, output)
    comparison.remove_files()


def test_why_there_is_no_verdict_is_named_each_time(comparison, tiny_cosine, monkeypatch):
    def fails(*arguments):
        raise InputError("training.json is damaged")

    monkeypatch.setattr(gatherer, "find_contamination", fails)
    for _ in range(2):
        assert "is damaged" in comparison.update(["bm25", str(tiny_cosine)])
    comparison.remove_files()
