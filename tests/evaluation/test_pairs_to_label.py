"""The pairs that a comparison asks labels for, and the table that keeps what is judged."""

from __future__ import annotations

import pytest

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.judgements import AnnotationCandidate, load_judgements
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.annotation import LABELS_FILE
from beir_cocodr.evaluation.pairs_to_label import check_judgements_kept, choose_pairs, write_pairs
from beir_cocodr.evaluation.results import AnnotationCandidates

JUDGED = AnnotationCandidate("q1", "d1", 1, query="wing")
WANTED = AnnotationCandidate("q1", "d2", query="wing")


def ranked(*documents):
    return [(document, -float(rank)) for rank, document in enumerate(documents)]


def test_pairs_are_unjudged_with_labels_and_drawn_without(beir_folder):
    collection = load_collection(str(beir_folder))
    [(query, grades), *_] = collection.qrels.items()
    relevant = next(iter(grades))
    others = [id for id in collection.documents.ids() if id not in grades]
    results = {
        "a": {query: ranked(relevant, *others[:9])},
        "b": {query: ranked(*others[:9], relevant)},
    }
    with_labels = choose_pairs(("a", "b"), results, collection, 50, labels=True)
    pairs = {(pair.query_id, pair.document_id) for pair in with_labels.pairs}
    assert pairs
    assert (query, relevant) not in pairs
    drawn = choose_pairs(("a", "b"), results, collection, 4, labels=False)
    assert len(drawn.pairs) == 4
    assert all(pair.query_probability for pair in drawn.pairs)
    assert {pair.query for pair in drawn.pairs} == {collection.queries[query]}


def test_without_results_and_without_differences_the_remark_says_so(beir_folder):
    collection = load_collection(str(beir_folder))
    nothing = choose_pairs(("a", "b"), {}, collection, 5, labels=False)
    assert (nothing.pairs, "no queries" in nothing.remark) == ([], True)
    query = next(iter(collection.qrels))
    same = {query: ranked(*list(collection.documents.ids())[:10])}
    equal = choose_pairs(("a", "b"), {"a": same, "b": same}, collection, 5, labels=False)
    assert (equal.pairs, "same ranks" in equal.remark) == ([], True)


def test_a_table_is_written_over_only_when_its_judgements_were_read(tmp_path):
    wanted = AnnotationCandidates("a", "b", [WANTED], "")
    write_pairs(tmp_path, wanted, None)
    table = tmp_path / LABELS_FILE
    check_judgements_kept(table, None)  # nothing in it is judged
    write_pairs(tmp_path, AnnotationCandidates("a", "b", [JUDGED, WANTED], ""), None)
    with pytest.raises(InputError, match=r"contains judgements of 1 queries"):
        check_judgements_kept(table, None)
    check_judgements_kept(table, table)
    rows = load_judgements(table)
    other = tmp_path / "other"
    other.mkdir()
    write_pairs(other, wanted, rows)
    text = (other / LABELS_FILE).read_text().splitlines()
    assert [line.split("\t")[1] for line in text[1:]] == ["d1", "d2"]  # the judged one is kept
