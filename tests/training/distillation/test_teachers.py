"""Teachers: what they score, what they refuse, and what is counted."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from beir_cocodr import load_collection, load_encoder
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import InputError
from beir_cocodr.retrieval.bm25 import BM25
from beir_cocodr.retrieval.hybrid import fusion
from beir_cocodr.retrieval.hybrid.fusion import RM3, FusedFeedback, Hybrid
from beir_cocodr.retrieval.store.embeddings import MemoryEmbeddings
from beir_cocodr.retrieval.vectors.dense import Dense
from beir_cocodr.training.distillation import teacher_scores
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.distillation.distill_lists import ListCounts, count_lists
from beir_cocodr.training.distillation.teacher_scores import EMPTY, TeacherScores
from beir_cocodr.training.distillation.teachers import (
    BM25Teacher,
    CrossEncoderTeacher,
    FileTeacher,
    HybridTeacher,
    score_lists,
)
from beir_cocodr.training.options import DistillOptions

OPTIONS = DistillOptions(max_steps=1, batch_size=4, candidates=10, m_bm25=2, m_hard=2, positives=2)


@pytest.fixture(scope="module")
def collection(beir_folder):
    return load_collection(beir_folder, "train")


@pytest.fixture(scope="module")
def bm25(collection):
    return BM25(collection.documents, TextFormat())


def save_cross_encoder(folder, tiny_bert, labels):
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_bert, num_labels=labels)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return str(folder)


def test_a_cross_encoder_gives_its_raw_logits(collection, tiny_bert, tmp_path):
    folder = save_cross_encoder(tmp_path / "one", tiny_bert, 1)
    rows, query = np.array([7, 0, 30, 12]), next(iter(collection.queries.values()))
    teacher = CrossEncoderTeacher(folder, collection.documents, TextFormat(), batch_size=2)
    found = teacher.score("q", query, rows)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = [TextFormat().document(document) for document in collection.documents.take(rows)]
    pairs = AutoTokenizer.from_pretrained(folder)(
        [query] * 4, texts, padding=True, truncation=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(**pairs).logits[:, 0].numpy()
    np.testing.assert_allclose(found, logits, atol=1e-5)
    assert found.dtype == np.float32
    assert np.ptp(found) > 1e-3


def test_a_cross_encoder_of_classes_is_refused(collection, tiny_bert, tmp_path):
    folder = save_cross_encoder(tmp_path / "three", tiny_bert, 3)
    with pytest.raises(InputError, match="3 numbers"):
        CrossEncoderTeacher(folder, collection.documents, TextFormat())
    with pytest.raises(InputError, match="cross-encoder"):
        CrossEncoderTeacher(str(tmp_path / "nowhere"), collection.documents, TextFormat())


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_mlm", "tiny_cosine"])
def test_an_encoder_is_no_cross_encoder(kind, collection, request):
    folder = str(request.getfixturevalue(kind))
    with pytest.raises(InputError, match=r"classifier .*missing: .*cross-encoder") as caught:
        CrossEncoderTeacher(folder, collection.documents, TextFormat())
    assert folder in str(caught.value)


def test_a_teacher_has_a_name_and_a_trained_classifier(collection, tiny_bert, tmp_path):
    for name in ("", " "):
        with pytest.raises(InputError, match="empty"):
            CrossEncoderTeacher(name, collection.documents, TextFormat())
    folder = save_cross_encoder(tmp_path / "one", tiny_bert, 1)
    weights = load_file(tmp_path / "one" / "model.safetensors")
    del weights["classifier.bias"]
    save_file(weights, tmp_path / "one" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"missing: classifier\.bias"):
        CrossEncoderTeacher(folder, collection.documents, TextFormat())


def test_special_tokens_in_pairs_are_text(collection, tiny_bert, tmp_path):
    teacher = CrossEncoderTeacher(
        save_cross_encoder(tmp_path / "one", tiny_bert, 1), collection.documents, TextFormat()
    )
    rows = np.array([7, 0, 30])
    found = teacher.score("q", "wing [SEP] flow", rows)
    np.testing.assert_allclose(found, teacher.score("q", "wing [ SEP ] flow", rows), atol=1e-6)


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_cosine"])
def test_an_encoder_of_the_hub_is_no_cross_encoder_either(
    kind, request, beir_folder, tiny_mlm, tmp_path, monkeypatch
):
    """Only its name is known until it is loaded, here from the hub's cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    place, commit = tmp_path / "hub" / "models--org--bi-encoder", "0" * 40
    shutil.copytree(request.getfixturevalue(kind), place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    assert load_encoder("org/bi-encoder").encode_query(["wing"]).shape == (1, 32)
    with pytest.raises(InputError, match=r"'org/bi-encoder'.*classifier.*missing: .*cross-encoder"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher="org/bi-encoder",
            output=tmp_path / "m",
            options=OPTIONS,
        )
    assert not list((tmp_path / "m").rglob("*.*"))


def test_texts_that_a_cross_encoder_cannot_read_whole_are_counted(
    collection, tiny_bert, tmp_path, caplog
):
    """Cut before they are tokenised, which takes minutes for such texts; what loses no word is not
    counted.
    """
    teacher = CrossEncoderTeacher(
        save_cross_encoder(tmp_path / "one", tiny_bert, 1), collection.documents, TextFormat()
    )
    rows = np.array([0, 1])
    teacher.score("q", "wing", rows)
    assert teacher.texts_cut == 0
    endless = "w" * 600_000  # a word without end
    found = teacher.score("q", endless, rows)
    assert teacher.texts_cut == 1
    assert "teacher reads only" in caplog.text
    np.testing.assert_allclose(found, teacher.score("q", endless + "w", rows))
    assert teacher.texts_cut == 2


def test_distillation_from_a_cross_encoder(beir_folder, tiny_mlm, tiny_bert, tmp_path):
    folder = save_cross_encoder(tmp_path / "one", tiny_bert, 1)
    record = distill(
        str(tiny_mlm), str(beir_folder), teacher=folder, output=tmp_path / "m", options=OPTIONS
    )
    assert record.teacher == folder
    assert record.details["teacher_texts_cut"] == 0
    assert record.details["lists"] == {"drawn": 4, "of_one_document": 0, "all_tied": 0}


def test_the_hybrid_teacher_scores_as_the_fusion_of_the_whole_corpus(
    collection, bm25, tiny_bert, tmp_path
):
    dense = Dense(load_encoder(str(tiny_bert)), collection.documents, tmp_path / "corpus")
    teacher, size = HybridTeacher(dense, bm25), len(collection.documents)
    ranking = Hybrid(dense, bm25).search(collection.queries, size)
    for i, (name, text) in enumerate(collection.queries.items()):
        found = teacher.score(name, text, ranking.rows[i])
        np.testing.assert_allclose(found, ranking.scores[i], atol=2e-5)


def test_the_teacher_rm3_scores_as_the_fusion_with_the_expanded_query(
    collection, bm25, tiny_bert, tmp_path
):
    dense = Dense(load_encoder(str(tiny_bert)), collection.documents, tmp_path / "corpus")
    teacher = HybridTeacher(dense, bm25, kind=RM3)
    ranking = RM3(dense, bm25).search(collection.queries, len(collection.documents))
    plain = Hybrid(dense, bm25).search(collection.queries, len(collection.documents))
    assert (ranking.rows != plain.rows).any()
    for i, (name, text) in enumerate(collection.queries.items()):
        scores = teacher.score(name, text, ranking.rows[i])
        np.testing.assert_allclose(scores, ranking.scores[i], atol=2e-5)


@pytest.mark.parametrize("weight", [0.5, 1.5])
def test_the_teacher_feedback_scores_as_the_fusion_of_the_moved_query(
    collection, bm25, tiny_bert, tmp_path, weight
):
    dense = Dense(load_encoder(str(tiny_bert)), collection.documents, tmp_path / "corpus")
    teacher = HybridTeacher(dense, bm25, weight, FusedFeedback)
    documents = dense.embeddings.load().double().numpy()
    for name, text in list(collection.queries.items())[:4]:
        lexical = bm25.scores(text).astype(np.float64)
        vector = dense.encode_queries([text]).double().numpy()[0]

        def fused(vector, lexical=lexical):
            parts = [(s - s.mean()) / s.std() for s in (documents @ vector, lexical)]
            return (parts[0] + weight * parts[1]) / (1 + weight)

        moved = vector + 0.5 * documents[np.argsort(-fused(vector))[:3]].mean(axis=0)
        expected = fused(moved / np.linalg.norm(moved))
        rows = np.arange(len(documents))
        np.testing.assert_allclose(teacher.score(name, text, rows), expected, atol=2e-4)
        best = teacher.fusion.search({name: text}, 5)
        np.testing.assert_allclose(best.scores[0], np.sort(expected)[::-1][:5], atol=2e-4)


class CountedEmbeddings(MemoryEmbeddings):
    """Embeddings that count how often all of them are read."""

    passes = 0

    def chunks(self):
        self.passes += 1
        return super().chunks()


@pytest.mark.parametrize("kind", [Hybrid, FusedFeedback, RM3])
def test_a_hybrid_teacher_reads_the_corpus_once_for_many_queries(
    kind, collection, bm25, tiny_bert, tmp_path, monkeypatch
):
    """The moments and each block of queries take a pass, and the scores are those of one query."""
    model = load_encoder(str(tiny_bert))
    vectors = Dense(model, collection.documents, tmp_path / "corpus").embeddings.load()
    embeddings = CountedEmbeddings(vectors)
    dense = Dense(model, collection.documents, tmp_path / "corpus", given=embeddings)
    teacher = HybridTeacher(dense, bm25, kind=kind)
    rng = np.random.default_rng(0)
    size = len(collection.documents)
    lists = [
        (name, text, rng.permutation(size)[: 5 + number])
        for number, (name, text) in enumerate(collection.queries.items())
    ]
    scores = score_lists(teacher, [*lists, lists[0]])  # a query may have several lists
    assert embeddings.passes == (1 if kind is Hybrid else 2)
    *alone, again = [teacher.score(*of_query) for of_query in [*lists, lists[0]]]
    for of_many, of_one in zip(scores, [*alone, again], strict=True):
        np.testing.assert_allclose(of_many, of_one, atol=2e-6)
        assert of_many.dtype == np.float32
    monkeypatch.setattr(fusion, "_QUERIES", 3)
    embeddings.passes = 0
    for of_blocks, of_one in zip(score_lists(teacher, lists), alone, strict=True):
        np.testing.assert_allclose(of_blocks, of_one, atol=2e-6)
    blocks = -(-len(lists) // 3)
    assert embeddings.passes == (0 if kind is Hybrid else blocks)


def test_rm3_counts_documents_again_that_it_no_longer_keeps(
    collection, bm25, tiny_bert, tmp_path, monkeypatch
):
    dense = Dense(load_encoder(str(tiny_bert)), collection.documents, tmp_path / "corpus")
    expected = RM3(dense, bm25).search(collection.queries, 5)
    monkeypatch.setattr(fusion, "_COUNTED_DOCUMENTS", 12)
    expanding = RM3(dense, bm25)
    assert np.array_equal(expanding.search(collection.queries, 5).rows, expected.rows)
    assert len(expanding._counts) <= 12


def test_bm25_and_files_score_rows_of_the_corpus(collection, bm25, tmp_path):
    query = next(iter(collection.queries))
    rows = np.array([3, 1, 20])
    expected = bm25.scores(collection.queries[query])[rows]
    assert np.array_equal(BM25Teacher(bm25).score(query, collection.queries[query], rows), expected)
    ids = collection.documents.ids(rows)
    scored = list(zip(ids, expected.tolist(), strict=True))
    (tmp_path / "run").write_text("".join(f"{query} Q0 {d} 1 {score!r} x\n" for d, score in scored))
    (tmp_path / "table").write_text("".join(f"{query}\t{d}\t{score!r}\n" for d, score in scored))
    for file in ("run", "table"):
        teacher = FileTeacher(tmp_path / file, collection.documents)
        assert np.allclose(teacher.score(query, "", rows), expected)
        with pytest.raises(InputError, match=r"no score .*query"):
            teacher.score(query, "", np.array([0]))


def test_documents_and_queries_that_the_dataset_does_not_have_are_counted(
    collection, tmp_path, caplog
):
    query = next(iter(collection.queries))
    document = next(iter(collection.documents))
    file = tmp_path / "scores"
    file.write_text(f"{query}\t{document}\t1\n")
    FileTeacher(file, collection.documents).warn_of_unknown(collection.queries)
    assert not caplog.messages
    file.write_text(f"{query}\tnan\t1\nother\tnan\t1\nother\t{document}\t1\n")
    FileTeacher(file, collection.documents).warn_of_unknown(collection.queries)
    assert caplog.messages == [
        f"{file}: the dataset does not have 1 of the {kind}, and their scores are ignored; the "
        f"first is {first!r}"
        for kind, first in (("documents", "nan"), ("queries", "other"))
    ]


@pytest.mark.parametrize(
    "line",
    [
        "q d",
        "q\td\tnan",
        "q\td\thigh",
        "q Q0 d 1 inf x",
        "caf\xe9\td\t1",
        "q\td\t1.5",
        "q\t\0\0\t1",
    ],
)
def test_a_broken_line_of_a_teacher_file_is_named(line, collection, tmp_path):
    (tmp_path / "broken").write_bytes(f"q\td\t1.5\n{line}\n".encode("latin-1"))
    with pytest.raises(InputError, match="broken:2"):
        FileTeacher(tmp_path / "broken", collection.documents)


class Nan:
    def score(self, query_id, query, rows):
        return np.where(rows == 5, np.nan, 1.0).astype(np.float32)


def test_a_score_that_is_no_number_is_named_and_not_kept(collection, tmp_path):
    queries = dict(list(collection.queries.items())[:2])
    scores = TeacherScores(Nan(), queries, collection.documents, tmp_path / "t")
    second, document = list(queries)[1], collection.documents.ids(np.array([5]))[0]
    with pytest.raises(InputError, match=f"{second!r} .*{document!r} .*nan"):
        scores.score(np.array([0, 1]), np.array([[1, 2], [5, 6]]))
    assert not list((tmp_path / "t").glob("*.npy"))
    found = scores.score(np.array([0]), np.array([[2, EMPTY]]))
    assert found.tolist() == [[1.0, -np.inf]]


def test_scores_are_asked_for_once_and_merged_once_a_round(collection, tmp_path, monkeypatch):
    """In files of seven pairs, of two rounds that share some; and read back."""
    asked = []

    class Sums:
        def score(self, query_id, query, rows):
            asked.extend((query_id, row) for row in rows.tolist())
            return (1000 * list(collection.queries).index(query_id) + rows).astype(np.float32)

    monkeypatch.setattr(teacher_scores, "_CHUNK", 7)
    rng = np.random.default_rng(0)
    rounds = [
        (rng.integers(0, 9, 12), np.sort(rng.permutation(48)[:36].reshape(12, 3))) for _ in range(2)
    ]
    given = Sums(), collection.queries, collection.documents, tmp_path / "t"
    scores = TeacherScores(*given)
    for numbers, lists in rounds:
        assert scores.score(numbers, lists).tolist() == (1000 * numbers[:, None] + lists).tolist()
    pairs = {
        (q, row)
        for n, rows in rounds
        for q, line in zip(n.tolist(), rows.tolist(), strict=True)
        for row in line
    }
    assert len(asked) == len(set(asked)) == len(pairs)
    again = TeacherScores(*given)
    assert (
        again.score(*rounds[0]).tolist() == (1000 * rounds[0][0][:, None] + rounds[0][1]).tolist()
    )
    assert len(asked) == len(set(asked))


def test_lists_hold_what_a_file_scores_and_no_more(
    beir_folder, tiny_mlm, collection, tmp_path, caplog
):
    """A pair without a score would end the training; queries that cannot be learned from are left
    out.
    """
    rng, lines = np.random.default_rng(0), []
    queries = [query for query, grades in collection.qrels.items() if any(grades.values())]
    for query in queries[:-3]:
        chosen = {*collection.qrels[query], *collection.documents.ids(rng.permutation(48)[:6])}
        lines += [f"{query}\t{document}\t{rng.random()}\n" for document in sorted(chosen)]
    (tmp_path / "some.tsv").write_text("".join(lines))
    options = OPTIONS.with_overrides(held_out=0)
    record = distill(
        str(tiny_mlm),
        str(beir_folder),
        teacher=str(tmp_path / "some.tsv"),
        output=tmp_path / "m",
        options=options,
    )
    assert record.details["training_queries"] == len(queries) - 3
    assert "3 of" in caplog.text


@pytest.mark.parametrize("changes", [{"m_easy": 1}, {"anchors": "fused"}])
def test_lists_of_what_a_file_does_not_score_are_refused(changes, beir_folder, tiny_mlm, tmp_path):
    file = tmp_path / "scores.tsv"
    file.write_text("q0\td0\t1.0\n")
    options = DistillOptions.of(max_steps=1, **changes)
    with pytest.raises(InputError, match="scores only the documents that it lists"):
        distill(
            str(tiny_mlm), str(beir_folder), teacher=file, output=tmp_path / "o", options=options
        )


def test_a_file_that_scores_nothing_relevant_is_named(beir_folder, tiny_mlm, tmp_path):
    (tmp_path / "none.tsv").write_text("unknown\td1\t0.5\n")
    with pytest.raises(InputError, match=r"none.tsv: .* have no scores of a relevant document"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher=str(tmp_path / "none.tsv"),
            output=tmp_path / "m",
            options=OPTIONS,
        )


def test_lists_without_an_order_are_counted_and_none_with_one_is_refused(caplog):
    empty = -np.inf
    scores = np.array([[1, 1, empty], [2, empty, empty], [1, 2, empty], [3, 3, 3]], np.float32)
    assert count_lists(scores) == ListCounts(drawn=4, of_one_document=1, all_tied=2)
    assert "1 have one document and in 2" in caplog.text
    with pytest.raises(InputError, match="no order"):
        count_lists(scores[[0, 1, 3]])


def test_a_teacher_that_ties_everything_is_refused(beir_folder, tiny_mlm, collection, tmp_path):
    lines = [
        f"{q}\t{d}\t1\n"
        for q in collection.queries
        for d in collection.documents.ids(np.arange(48))
    ]
    (tmp_path / "tied.tsv").write_text("".join(lines))
    with pytest.raises(InputError, match="no order"):
        distill(
            str(tiny_mlm),
            str(beir_folder),
            teacher=str(tmp_path / "tied.tsv"),
            output=tmp_path / "m",
            options=OPTIONS,
        )
