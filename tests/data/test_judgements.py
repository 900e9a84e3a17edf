"""Judgements of one's own in three kinds of files."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.judgement_log import log_judgement, typed_id
from beir_cocodr.data.judgements import (
    COLUMNS,
    AnnotationCandidate,
    judgements_file,
    load_judgements,
    write_annotation_candidates,
)
from beir_cocodr.errors import InputError

QRELS = {"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 2}}


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\nq2\td1\t2\n",
        "q1 0 d1 1\nq1 0 d2 0\nq2 0 d1 2\n",
        "query_id\tdocument_id\tjudgement\r\nq1\td1\t1\r\nq1\td2\t0\r\nq2\td1\t2\r\nq3\td1\t\r\n",
    ],
)
def test_qrels_and_tables_say_the_same(tmp_path, text):
    (tmp_path / "f").write_bytes(text.encode())
    found = load_judgements(tmp_path / "f")
    assert found.qrels == QRELS
    assert not found.drawn


def test_a_log_says_the_same_and_takes_back(tmp_path):
    log = tmp_path / "log.jsonl"
    for query, document, grade in [
        ("q1", "d1", 0),
        ("q1", "d2", 0),
        ("q2", "d1", 2),
        ("q1", "d1", 1),
        ("q2", "d9", 1),
        ("q2", "d9", None),
        ("q3", "d1", 1),
        ("q3", "d1", None),
    ]:
        log_judgement(log, document, grade, "", query_id=query)
    assert load_judgements(log).qrels == QRELS
    first = json.loads(log.read_text().splitlines()[0])
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", first["time"])


def test_queries_that_were_typed_find_those_of_the_collection(tmp_path):
    for query in ("heat  of plates", "something else"):
        log_judgement(tmp_path / "log", "d1", 1, query)
    found = load_judgements(tmp_path / "log").of({"q7": "heat of plates"})
    assert found.qrels == {"q7": {"d1": 1}, typed_id("something else"): {"d1": 1}}
    assert found.queries[typed_id("something else")].text == "something else"


@pytest.mark.parametrize("typed_first", [True, False])
def test_a_query_that_was_drawn_stays_so_when_it_is_typed_too(tmp_path, typed_first):
    shares = {"query_probability": 0.25, "document_probability": 0.5}
    for typed in (typed_first, not typed_first):
        own = {} if typed else {"query_id": "q7", **shares}
        log_judgement(tmp_path / "log", "d1" if typed else "d2", 1, "heat of plates", **own)
    [found] = load_judgements(tmp_path / "log").of({"q7": "heat of plates"}).queries.values()
    assert (found.grades, found.probability) == ({"d1": 1, "d2": 1}, 0.25)
    assert found.probabilities == {"d1": 1.0, "d2": 0.5}


def test_processes_append_whole_lines(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: log_judgement(tmp_path / "log", f"d{i}", 1, "x" * 3000), range(60)))
    assert len(load_judgements(tmp_path / "log").qrels[typed_id("x" * 3000)]) == 60


def test_a_line_that_broke_off_is_named_and_breaks_no_other(tmp_path):
    log = tmp_path / "log"
    log.write_text('{"time": "2026')
    log_judgement(log, "d1", 1, "q")
    assert len(log.read_text().splitlines()) == 2
    with pytest.raises(InputError, match=re.escape(f"{log}:1: broken JSON")):
        load_judgements(log)


PAIR = AnnotationCandidate("q1", "d1", 1, 0.5, 1, None, "=a query", "a\ttext", 0.25, 0.5)


def test_a_table_is_read_back_as_it_was_written(tmp_path):
    table = tmp_path / "labels_wanted.tsv"
    blank = replace(PAIR, query_id="q2", judgement=None)
    write_annotation_candidates(table, [PAIR, replace(PAIR, document_id="d2", judgement=0), blank])
    assert table.read_text().splitlines()[0].split("\t") == list(COLUMNS)
    found = load_judgements(table)
    assert list(found.queries) == ["q1"]  # nobody began the other
    query = found.queries["q1"]
    assert (query.grades, query.probability) == ({"d1": 1, "d2": 0}, 0.25)
    assert query.probabilities == {"d1": 0.5, "d2": 0.5}
    assert found.drawn
    assert found.rows[0] == replace(PAIR, document="a text")


@pytest.mark.parametrize("kept", [True, False])
def test_a_drawn_table_without_its_probabilities_is_warned_of(kept, tmp_path, caplog):
    table = tmp_path / "labels_wanted.tsv"
    write_annotation_candidates(table, [PAIR])
    if not kept:
        rows = [line.split("\t") for line in table.read_text().splitlines()]
        left = [n for n, name in enumerate(rows[0]) if "probability" not in name]
        table.write_text("".join("\t".join(row[n] for n in left) + "\n" for row in rows))
    assert load_judgements(table).drawn is kept
    assert ("so its pairs count as all that was to be judged" in caplog.text) is not kept


beginnings = st.text(st.sampled_from("'=+-@ \t\"a"), max_size=4)
texts = st.builds(
    "".join, st.tuples(beginnings, st.text(st.characters(codec="utf-8", exclude_characters="\0")))
)


@settings(deadline=None)
@given(texts, texts)
@example("-dash query blood cells", "'@home")
@example("'", "''=1")
def test_the_texts_of_a_table_are_read_as_they_were_written(query, document):
    """But for white space; a spreadsheet sees no text that begins as a formula does."""
    with TemporaryDirectory() as folder:
        table = Path(folder) / "labels_wanted.tsv"
        write_annotation_candidates(table, [replace(PAIR, query=query, document=document)])
        header, cells = [line.split("\t") for line in table.read_text("utf-8").splitlines()]
        found = load_judgements(table)
    for name, text in (("query", query), ("document", document)):
        assert not cells[header.index(name)].startswith(("=", "+", "-", "@"))
        assert getattr(found.rows[0], name) == " ".join(text.split())
    assert found.queries["q1"].text == " ".join(query.split())


def test_a_query_that_is_judged_in_part_is_left_out_and_counted(tmp_path):
    table = tmp_path / "t"
    begun = [
        replace(PAIR, query_id="q2"),
        replace(PAIR, query_id="q2", document_id="d2", judgement=None),
    ]
    write_annotation_candidates(table, [PAIR, *begun, replace(PAIR, query_id="gone", query="")])
    found = load_judgements(table).of({"q1": "", "q2": ""})
    assert list(found.queries) == ["q1"]
    assert list(found.counts.values()) == [1, 1]
    with pytest.raises(InputError, match=r"no judged query can be used.* 1 .*blank"):
        load_judgements(table).of({"q2": ""})
    assert [pair.judgement for pair in found.rows] == [1, 1, None, 1]


def test_lines_that_contradict_each_other_are_counted(tmp_path):
    """Files of two people that were joined are no log, in which a later line revises another."""
    reason = "pairs that are judged differently in several lines (the last line counts)"
    path = tmp_path / "judged"
    path.write_text("q1 0 d1 1\nq1 0 d2 0\nq1 0 d1 0\nq1 0 d2 0\nq2 0 d1 2\n")
    judged = load_judgements(path).of({"q1": "", "q2": ""})
    assert judged.qrels == {"q1": {"d1": 0, "d2": 0}, "q2": {"d1": 2}}
    assert judged.counts == {reason: 1}
    write_annotation_candidates(path, [PAIR, replace(PAIR, judgement=0)])
    assert load_judgements(path).counts == {reason: 1}
    path.unlink()
    for grade in (1, 0):
        log_judgement(path, "d1", grade, "what is a wing?")
    assert load_judgements(path).counts == {}


def test_queries_whose_relevant_documents_are_not_in_the_corpus_are_no_tie(tmp_path):
    """Every model would score 0 on them, and many such ties make an interval around 0 narrow."""
    documents = load_collection(
        ({"d1": "a wing", "d2": "a plate"}, {}, {}), labels="none"
    ).documents
    path = tmp_path / "qrels"
    path.write_text("q1 0 d1 1\nq1 0 gone 1\nq2 0 gone 1\nq2 0 d1 0\nq3 0 d1 0\nq4 0 gone 0\n")
    judged = load_judgements(path).of(dict.fromkeys(["q1", "q2", "q3", "q4"], ""), documents)
    assert list(judged.queries) == ["q1", "q3"]
    assert judged.counts == {
        "judged queries left out, as the corpus has none of their relevant documents": 2,
        "judged documents that the corpus does not have (kept, as in trec_eval)": 1,
    }
    path.write_text("q1 0 gone 1\nq2 0 lost 1\n")
    with pytest.raises(InputError, match=r"qrels: no judged query can be used: 2 .*the corpus has"):
        load_judgements(path).of(dict.fromkeys(["q1", "q2"], ""), documents)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 0 d1 1\nq1 0 d2\n", ":2: 3 columns"),
        ("q1 0 d1 one\n", ":1: grade 'one'"),
        ("query_id\tdocument_id\nq1\td1\n", ":1: no column judgement"),
        ("query_id\tdocument_id\tjudgement\nq1\td1\n", ":2: 2 columns, and the header has 3"),
        ("query_id\tdocument_id\tjudgement\nq1\td1\t1.0\n", ":2: grade '1.0'"),
        ("query_id\tdocument_id\tjudgement\n\td1\t1\n", ":2: no id"),
        (
            "query_id\tdocument_id\tjudgement\tquery_probability\nq\td\t1\tx\n",
            ":2: query_probability is 'x'",
        ),
        (
            "query_id\tdocument_id\tjudgement\tdocument_probability\nq\td\t1\t0\n",
            ":2: document_probability is 0",
        ),
        (
            '{"time": "t", "query_id": "q", "document_id": "d", "grade": 1}\n{"time": \n',
            ":2: broken JSON",
        ),
        ('{"time": "t", "query_id": "q", "document_id": "d"}\n', ":1: grade: "),
        ('{"time": "t", "query_id": "q", "document_id": "d", "grade": "yes"}\n', ":1: grade"),
        (
            '{"time": "t", "document_id": "d", "grade": 1}\n',
            ":1: query_id and query are both missing",
        ),
        ('{"schema": 9, "time": "t"}\n', ":1: has schema 9"),
    ],
)
def test_damage_is_one_line_with_file_and_line(tmp_path, text, message):
    path = tmp_path / "f"
    path.write_text(text)
    with pytest.raises(InputError) as found:
        load_judgements(path).of({"q1": "", "q": ""})
    assert f"{path}{message}" in str(found.value)
    assert "\n" not in str(found.value)


def test_no_file_and_nothing_in_it(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_judgements(tmp_path / "f")
    with pytest.raises(InputError, match="no such file"):
        judgements_file("")
    (tmp_path / "f").write_text("")
    with pytest.raises(InputError, match="nothing is judged"):
        load_judgements(tmp_path / "f").of({"q": ""})
