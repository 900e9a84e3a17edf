"""Held-out crops, generated queries and agreement: what they are, apart from any verdict."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from conftest import sentences

from beir_cocodr.data.collection import load_collection
from beir_cocodr.data.text import words
from beir_cocodr.evaluation.label_free.agreement import reciprocal_rank_fusion
from beir_cocodr.evaluation.label_free.estimators import CROPS, ESTIMATORS
from beir_cocodr.evaluation.label_free.gatherer import Gatherer
from beir_cocodr.evaluation.label_free.held_out_corpus import HeldOutResources
from beir_cocodr.evaluation.label_free.held_out_queries import (
    CROP_WORDS,
    USUAL_LENGTHS,
    HeldOutQueries,
    hold_out_crops,
)
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    PseudoQueries,
    lexical_queries,
    verbatim_share,
)
from beir_cocodr.evaluation.label_free.verdict import decide, load_calibration
from beir_cocodr.models.cocodr import COCODR
from beir_cocodr.models.spec import FUSIONS
from beir_cocodr.retrieval.ranking import overlap
from beir_cocodr.retrieval.resources import Resources


def corpus(folder, texts):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"_id": f"d{i}", "title": "", "text": text}) for i, text in enumerate(texts)
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return load_collection(folder, labels="none").documents


@pytest.fixture(scope="module")
def documents(beir_folder):
    return load_collection(beir_folder).documents


def test_a_crop_and_the_rest_are_the_document_and_nothing_else_changes(documents, tmp_path):
    crops, rest = hold_out_crops(documents, tmp_path, size=20)
    held_out = dict(zip(crops.rows.tolist(), crops.texts, strict=True))
    assert len(held_out) == len(crops.texts) == 20
    pairs = zip(documents.items(), rest.items(), strict=True)
    for row, ((id_, before), (same_id, after)) in enumerate(pairs):
        assert (id_, before["title"]) == (same_id, after["title"])
        if row not in held_out:
            assert before == after
            continue
        crop = held_out[row]
        assert crop in before["text"]
        assert 1 <= len(crop.split()) <= CROP_WORDS
        assert Counter(f"{crop} {after['text']}".split()) == Counter(before["text"].split())


def test_crops_depend_on_the_seed_alone(documents, tmp_path):
    made = []
    for number, seed in enumerate((1, 1, 2)):
        (tmp_path / str(number)).mkdir()
        made.append(hold_out_crops(documents, tmp_path / str(number), size=10, seed=seed)[0].texts)
    assert made[0] == made[1] != made[2]


def test_documents_without_query_are_counted_and_scripts_without_spaces_are_cut(tmp_path):
    short = ["wing drag"] * 3 + [""]
    chinese = ["机翼的升力和阻力在超音速流动中由激波层决定。边界层的湍流加热平板和圆柱体的喷嘴。"]
    found = corpus(tmp_path / "c", short + chinese)
    crops, _ = hold_out_crops(found, tmp_path, size=5)
    assert crops.counts == {"documents_looked_at": 5, "documents_without_query": 4}
    assert crops.rows.tolist() == [4]
    assert crops.texts[0] in chinese[0]
    none, _ = hold_out_crops(corpus(tmp_path / "d", short), tmp_path, size=5)
    assert (none.texts, none.verbatim) == ([], None)


@pytest.mark.parametrize("real", [True, False])
def test_every_text_is_encoded_once_for_all_uses_of_an_encoder(
    beir_folder, tiny_cosine, tmp_path, monkeypatch, real
):
    collection, encoded = load_collection(beir_folder), Counter()
    for name in ("encode_corpus", "encode_queries"):
        method = getattr(COCODR, name)

        def spy(model, texts, method=method, **given):
            encoded.update(json.dumps(text) for text in texts)
            return method(model, texts, **given)

        monkeypatch.setattr(COCODR, name, spy)
    # The fit of vector:M encodes probes of its own.
    fusions = [f"{kind}:" for kind in FUSIONS if kind != "vector"]
    uses = [kind + str(tiny_cosine) for kind in ("", *fusions)]
    queries = collection.queries if real else {}
    (tmp_path / "all").mkdir()
    gatherer = Gatherer(Resources(collection.documents, tmp_path / "all"), uses, samples=9)
    found = gatherer.gather(queries)
    assert set(encoded.values()) == {1}
    further = [text for one in found.further.values() for text in one.queries.texts]
    texts = {
        *found.queries.values(),
        *found.crop_queries.texts,
        *found.generated_queries.texts,
        *further,
    }
    cut = {row for one in found.further.values() for row in one.queries.rows.tolist()}
    changed = 9 + len(cut)
    assert encoded.total() == len(collection.documents) + changed + len(texts)
    # What is searched in one batch is found as if each were searched for alone.
    retrievers = Resources(collection.documents, tmp_path)
    for use in ("bm25", *uses):
        asked = retrievers.ranker(use).search(found.queries, 100)
        np.testing.assert_array_equal(found.lists[use], asked.rows)
        np.testing.assert_allclose(found.rankings[use].scores, asked.scores, atol=1e-5)
        assert found.rankings[use].queries == list(found.queries)
        alone = retrievers.ranker(use).search(found.generated_queries.queries, 10)
        np.testing.assert_allclose(found.generated[use], found.generated_queries.score(alone.rows))
    # What is asked once more costs the queries that are new.
    before, more = encoded.total(), {"new": "nozzle of a wing", **queries}
    again = gatherer.gather(more)
    assert encoded.total() == before + 1
    assert again.generated.keys() == found.generated.keys()
    for use in uses:
        np.testing.assert_array_equal(again.generated[use], found.generated[use])
        np.testing.assert_array_equal(again.crops[use], found.crops[use])
        np.testing.assert_array_equal(
            again.all_rankings[use].rows, retrievers.ranker(use).search(more, 100).rows
        )
        # One query of a person is no evidence.
        expected = again.all_rankings[use].rows if real else found.lists[use]
        np.testing.assert_array_equal(again.lists[use], expected)


def test_held_out_retrievers_rank_as_ones_made_from_the_changed_corpus(
    documents, tiny_cosine, tmp_path
):
    crops, rest = hold_out_crops(documents, tmp_path, size=15)
    for name in ("whole", "held", "fresh"):
        (tmp_path / name).mkdir()
    whole = Resources(documents, tmp_path / "whole")
    held_out = HeldOutResources(whole, rest, crops.rows, tmp_path / "held")
    fresh = Resources(rest, tmp_path / "fresh")
    for name in (str(tiny_cosine), "bm25", f"hybrid:{tiny_cosine}", f"feedback:{tiny_cosine}"):
        ours = held_out.ranker(name).search(crops.queries, 5)
        theirs = fresh.ranker(name).search(crops.queries, 5)
        assert np.allclose(ours.scores, theirs.scores, atol=1e-5)
        assert (ours.rows == theirs.rows).mean() > 0.98  # ties may fall either way in the last bits
    dense, original = held_out.ranker(str(tiny_cosine)), whole.ranker(str(tiny_cosine))
    changed = (dense.embeddings.load() - original.embeddings.load()).abs().numpy().max(
        axis=1
    ) > 1e-6
    # A crop behind the encoder's 48 tokens changes nothing.
    assert set() < set(np.flatnonzero(changed)) <= set(crops.rows.tolist())


def test_matched_crops_are_as_long_as_real_queries(documents):
    held_out = HeldOutQueries(documents, size=20)
    held_out.draw_matched_crops("matched", [5])
    queries = held_out.queries()["matched"]
    assert len(queries.texts) == 20
    assert {len(text.split()) for text in queries.texts} == {5}
    for row, text in zip(queries.rows.tolist(), queries.texts, strict=True):
        before = documents.take([row])[0]["text"]
        rest = held_out.changed[row]["text"]
        assert text in before
        assert Counter(f"{text} {rest}".split()) == Counter(before.split())
    usual = HeldOutQueries(documents, size=40)
    usual.draw_matched_crops("matched")
    lengths = {len(text.split()) for text in usual.queries()["matched"].texts}
    assert lengths <= set(USUAL_LENGTHS)
    assert len(lengths) > 4


def test_titles_leave_their_documents_wholly(tmp_path):
    (tmp_path / "corpus").mkdir()
    body = "words " * 30
    written = [
        ("The Lift of Wings", f"the lift  of wings. {body} On the Lift of Wings: more."),
        ("Same title", body),
        ("same  Title", body),
        ("", f"# A heading of its own\n\n{body}"),
        ("", body),
        ("One", body),
        ("A short text", "has nothing left"),
    ]
    lines = [
        json.dumps({"_id": f"d{row}", "title": title, "text": text})
        for row, (title, text) in enumerate(written)
    ]
    (tmp_path / "corpus" / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    documents = load_collection(tmp_path / "corpus", labels="none").documents
    held_out = HeldOutQueries(documents, size=9)
    held_out.draw_titles("titles")
    queries = held_out.queries()["titles"]
    found = dict(zip(queries.rows.tolist(), queries.texts, strict=True))
    assert found == {0: "The Lift of Wings", 3: "A heading of its own"}
    rest = held_out.write_corpus(tmp_path).take([0, 3])
    assert all(document["title"] == "" for document in rest)
    assert "lift" not in rest[0]["text"].lower()
    assert "more" in rest[0]["text"]
    assert "heading" not in rest[1]["text"]
    assert queries.counts == {"documents_looked_at": 7, "documents_without_query": 5}


def test_a_document_loses_two_texts_only_in_a_small_corpus(documents, tmp_path):
    held_out = HeldOutQueries(documents, size=len(documents) // 2)
    held_out.draw_crops("crops")
    held_out.draw_matched_crops("matched")
    drawn = held_out.queries()
    assert not {*drawn["crops"].rows} & {*drawn["matched"].rows}
    held_out.draw_titles("titles")
    assert {*held_out.queries()["titles"].rows} <= set(range(len(documents)))
    # What is searched lacks everything that was cut out.
    rest = held_out.write_corpus(tmp_path)
    for kind in ("crops", "matched"):
        rows = drawn[kind].rows
        for text, document in zip(drawn[kind].texts, rest.take(rows), strict=True):
            assert text not in document["text"]


def test_an_estimator_without_a_calibration_changes_nothing(documents, tiny_cosine, tmp_path):
    """Further kinds are shown; a calibration that does not know them counts none of them."""
    gatherer = Gatherer(Resources(documents, tmp_path), [str(tiny_cosine), "bm25"], samples=20)
    evidence = gatherer.gather({})
    assert evidence.further.keys() == {"matched crops", "titles"}
    without = replace(evidence, further={})
    calibration = load_calibration()
    alone = calibration.models["corpus alone"]
    older = replace(alone, slopes={CROPS: 0.9}, noise=[[0.01]])
    calibration = replace(calibration, models=calibration.models | {"corpus alone": older})
    seen = decide(evidence, str(tiny_cosine), "bm25", calibration)
    unseen = decide(without, str(tiny_cosine), "bm25", calibration)
    assert (seen.estimate, seen.interval) == (unseen.estimate, unseen.interval)
    assert seen.prior_share < 1
    for estimate in seen.estimates:
        assert estimate.applies == (estimate.estimator == CROPS)
        if estimate.estimator != CROPS:
            assert estimate.remark
    remarks = {estimate.estimator: estimate.remark for estimate in seen.estimates}
    for kind in ("generated queries", *evidence.further):
        assert remarks[kind] == "the calibration does not count it"
    names = [estimate.estimator for estimate in seen.estimates]
    # There is no language model, and nobody asked queries.
    absent = {"written questions", "query likelihood", "specificity"}
    assert names == [name for name in ESTIMATORS if name not in absent]
    assert evidence.describe()["titles"].queries == len(evidence.further["titles"].queries.texts)
    assert evidence.describe()["agreement"].held_words["bm25"] > 0.5


def test_score_is_ndcg_of_one_relevant_document():
    made = PseudoQueries(["a", "b", "c", "d"], np.array([7, 7, 7, 7]), None, {})
    found = np.array(
        [[7, *range(10, 20)], [1, 7, *range(10, 19)], [1, 2, *[-1] * 9], [*range(10, 20), 7]]
    )
    assert made.score(found).tolist() == pytest.approx([1, 1 / np.log2(3), 0, 0])


def test_lexical_queries_come_from_their_documents_and_leak(documents, tmp_path):
    made = lexical_queries(documents, tmp_path, size=30)
    assert len(set(made.rows.tolist())) == len(made.texts) == 30
    for text, document in zip(made.texts, documents.take(made.rows), strict=True):
        assert set(words(text)) <= set(words(f"{document['title']} {document['text']}"))
    assert made.verbatim == 1


def test_sentences_that_are_queries_end_as_in_the_language_of_the_folder(tmp_path):
    """In German, the point after a number makes it an ordinal."""
    pytest.importorskip("py3langid")
    folder = tmp_path / "de"
    folder.mkdir()
    for number, town in enumerate(["Aachen", "Bremen", "Celle", "Dessau", "Erfurt", "Fulda"] * 5):
        text = (
            f"Die Kündigung des Mieters Nummer {number} aus {town} wird am 3. Mai wirksam werden."
        )
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    corpus = load_collection(str(folder), labels="none").documents
    made = lexical_queries(corpus, tmp_path, size=30)
    sentences = [text for text in made.texts if "wird" in text and "Kündigung" in text]
    assert sentences
    assert all(text.endswith("wirksam werden.") for text in sentences)


def test_verbatim_share_by_hand():
    assert verbatim_share(["a b", "c d d"], ["b x", "c d"]) == pytest.approx((1 / 2 + 1) / 2)
    assert verbatim_share([], []) is None


def test_overlap_by_hand():
    found = np.array([[1, 2, 3], [1, 2, 3], [1, -1, -1], [4, 5, 6]])
    reference = np.array([[3, 2, 9], [7, 8, 9], [1, -1, -1], [-1, -1, -1]])
    assert overlap(found, reference, depth=3).tolist() == pytest.approx([2 / 3, 0, 1, 0])
    assert overlap(found, reference, depth=1).tolist() == pytest.approx([0, 0, 1, 0])


def test_fusion_is_by_reciprocal_ranks():
    rng = np.random.default_rng(0)
    lists = [np.stack([rng.permutation(30)[:12] for _ in range(4)]) for _ in range(3)]
    lists[0][:, 9:] = -1
    fused = reciprocal_rank_fusion(lists, depth=5)
    for i in range(4):
        scores: Counter[int] = Counter()
        for rows in lists:
            for rank, row in enumerate(rows[i].tolist(), 1):
                if row >= 0:
                    scores[row] += 1 / (60 + rank)
        expected = sorted(scores, key=lambda row: (-round(scores[row], 12), row))[:5]
        assert fused[i].tolist() == expected
    assert (reciprocal_rank_fusion(lists[::-1], depth=5) == fused).all()


def test_sentences_are_cut_at_their_ends(tmp_path):
    rng = np.random.default_rng(1)
    found = corpus(tmp_path / "c", [sentences(rng, 0, 4) for _ in range(12)])
    crops, _ = hold_out_crops(found, tmp_path, size=12)
    assert all(crop.endswith(".") for crop in crops.texts)
