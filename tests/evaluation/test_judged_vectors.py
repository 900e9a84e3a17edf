"""Document vectors that learn from judged queries: what is measured, kept, written and refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from beir_cocodr import Searcher, load_collection
from beir_cocodr.arrays import unit_rows
from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.judgements import JudgedQuery, Judgements
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.few_labels import FEWEST
from beir_cocodr.evaluation.judged_vectors import (
    BOUNDS,
    JudgedCandidates,
    LearnedVectors,
    LearnOptions,
    forget,
    gain_confidence,
    learn,
    learn_bound,
    paired_interval,
)
from beir_cocodr.evaluation.measures import parse_measures, score_queries
from beir_cocodr.retrieval.store.embeddings import MemoryEmbeddings
from beir_cocodr.retrieval.vectors.nudge import nudged, pulls_of


@pytest.fixture
def searcher(beir_folder, tiny_cosine):
    """A real search whose vectors are arranged: documents by topics, and queries about topics.

    Queries of a topic lie together, and the document that answers them lies somewhere else.
    """
    searcher = Searcher(str(beir_folder), str(tiny_cosine))
    dense = searcher.dense
    width = dense.embeddings.dimensions
    rng = np.random.default_rng(1)
    dense.embeddings = MemoryEmbeddings(
        torch.from_numpy(unit_rows(rng.normal(size=(len(searcher.documents), width))))
    )
    topics = unit_rows(rng.normal(size=(4, width)))
    for number in range(24):
        vector = unit_rows(topics[number % 4][None] + 0.25 * rng.normal(size=(1, width)) / 2)[0]
        dense.known_queries[f"query {number}"] = torch.from_numpy(vector)
    return searcher


def judged(searcher, document_of):
    """Return judgements of 24 queries; the document of each is relevant, another one is not."""
    ids = searcher.documents.ids(range(len(searcher.documents)))
    queries = {}
    for number in range(24):
        grades = {ids[document_of(number)]: 1, ids[47]: 0}
        queries[f"q{number}"] = JudgedQuery(grades=grades, text=f"query {number}")
    return Judgements("thumbs", queries)


def by_topic(number):
    return number % 4


def one_each(number):
    return number


def test_queries_that_share_answers_teach_each_other(searcher):
    learned = LearnedVectors.learn(searcher.dense, judged(searcher, by_topic))
    record = learned.record
    assert record.kept
    assert record.interval[0] > 0
    assert (record.queries, record.moved, record.left_out) == (24, 4, 0)
    assert record.bound in BOUNDS
    before = [hit.id for hit in searcher.search("query 0", 3)]
    learned.apply(searcher.dense)
    expected = searcher.documents.ids([0])[0]
    assert searcher.search("query 0", 3)[0].id == expected
    assert searcher.dense.embeddings.rows(np.arange(4)).numpy() == pytest.approx(learned.vectors)
    forget(searcher.dense)
    assert [hit.id for hit in searcher.search("query 0", 3)] == before


def test_queries_with_answers_of_their_own_move_nothing(searcher):
    """What a query moved is only worth something to other queries, and here there are none."""
    learned = LearnedVectors.learn(searcher.dense, judged(searcher, one_each))
    assert not learned.record.kept
    assert "moved nothing" in learned.record.describe()
    assert (learned.record.moved, learned.record.documents) == (0, [])
    before = searcher.dense.embeddings
    learned.apply(searcher.dense)
    assert searcher.dense.embeddings is before


def test_the_gain_is_that_of_whole_rankings_that_others_have_moved(searcher):
    """Leave one out by hand over the whole corpus, scored by ir-measures."""
    dense = searcher.dense
    # Three queries of each topic: inner folds still have two that teach each other.
    every = judged(searcher, by_topic)
    judgements = replace(every, queries=dict(list(every.queries.items())[:12]))
    options = LearnOptions(folds=12)
    record = LearnedVectors.learn(dense, judgements, options).record
    texts = [query.text for query in judgements.queries.values()]
    queries = dense.encode_queries(texts).numpy()
    vectors = dense.embeddings.load().numpy()
    ids = searcher.documents.ids(range(len(vectors)))
    grades = [
        {ids.index(document): grade for document, grade in query.grades.items()}
        for query in judgements.queries.values()
    ]
    [measure] = parse_measures("nDCG@10")

    def ndcg(number, fitted, bound):
        pulls = pulls_of(queries[fitted], [grades[other] for other in fitted])
        moved = vectors.copy()
        moved[pulls.rows] = nudged(vectors[pulls.rows], pulls.sums, bound, unit=True)
        scores = dict(zip(ids, (moved @ queries[number]).tolist(), strict=True))
        hits = sorted(scores.items(), key=lambda pair: -pair[1])
        qrels = {"q": {ids[row]: grade for row, grade in grades[number].items()}}
        return float(score_queries([measure], qrels, {"q": hits})["nDCG@10"][0])

    gains = []
    for number in range(12):
        others = [other for other in range(12) if other != number]
        means = []
        for bound in (0.0, *BOUNDS):
            inner = [ndcg(held, [one for one in others if one != held], bound) for held in others]
            means.append(np.mean(inner))
        chosen = (0.0, *BOUNDS)[int(np.argmax(np.round(means, 12)))]
        gains.append(ndcg(number, others, chosen) - ndcg(number, [], 0.0))
    assert record.gain == pytest.approx(np.mean(gains), abs=1e-5)
    low, high = stats.ttest_1samp(gains, 0).confidence_interval(0.9)
    assert record.interval == pytest.approx((low, high), abs=1e-5)


def test_a_query_is_never_moved_by_its_own_judgement(searcher):
    """Held-out figures do not change if all but one query answer nothing that it asks."""
    rng = np.random.default_rng(5)
    queries = unit_rows(rng.normal(size=(12, 8)))
    vectors = unit_rows(rng.normal(size=(40, 8)))
    candidates = JudgedCandidates(
        queries, [{number: 1} for number in range(12)], vectors, np.arange(40), True
    )
    [own] = candidates.after(np.arange(12), np.arange(12), [0.8])
    before, after = candidates.cross_validate(LearnOptions())
    assert own.mean() > before.mean() + 0.2
    assert after.mean() <= before.mean() + 1e-9


@pytest.mark.parametrize("spelling", ["vectors", "texts"])
def test_a_query_is_never_moved_by_its_own_judgement_in_another_spelling(spelling):
    """Every query is judged twice, and counts once."""
    rng = np.random.default_rng(5)
    queries = unit_rows(rng.normal(size=(12, 8)))
    vectors = unit_rows(rng.normal(size=(40, 8)))
    again = queries
    texts = []
    if spelling == "texts":  # an encoder that hardly knows them again
        again = unit_rows(queries + 0.2 * rng.normal(size=queries.shape))
        texts = [f"How do I {n}?" for n in range(12)] + [f"how do i {n}" for n in range(12)]
    grades = [{number: 1} for number in range(12)]
    candidates = JudgedCandidates(
        np.concatenate([queries, again]), grades * 2, vectors, np.arange(40), True, texts
    )
    assert candidates.groups.tolist() == list(range(12)) * 2
    before, after = candidates.cross_validate(LearnOptions())
    assert after.mean() <= before.mean() + 1e-9
    record = learn_bound(candidates)
    assert (record.queries, record.kept) == (12, False)
    few = JudgedCandidates(
        np.repeat(queries[:5], 2, axis=0),
        [{number // 2: 1} for number in range(10)],
        vectors,
        np.arange(40),
        True,
    )
    with pytest.raises(InputError, match=r"5 different judged queries.*judge 5 more"):
        learn_bound(few)


def test_the_bound_of_a_query_is_chosen_without_it():
    """In this data, three queries would gain by a bound that is chosen with them."""
    rng = np.random.default_rng(9)
    topics = unit_rows(rng.normal(size=(4, 8)))
    queries = unit_rows(np.repeat(topics, 3, axis=0) + 0.6 * rng.normal(size=(12, 8)))
    vectors = unit_rows(rng.normal(size=(40, 8)))
    grades = [{int(answer): 1} for answer in rng.integers(0, 7, 12)]
    candidates = JudgedCandidates(queries, grades, vectors, np.arange(40), True)
    _, after = candidates.cross_validate(LearnOptions(folds=12))
    everybody = np.arange(12)
    too_good = candidates.choose(everybody, 12)
    differing = 0
    for number in everybody:
        others = everybody[everybody != number]
        bounds = (candidates.choose(others, 12), too_good)
        [[expected], [leaked]] = candidates.after(others, np.array([number]), bounds)
        assert after[number] == pytest.approx(expected)
        differing += abs(leaked - expected) > 1e-6
    assert differing == 3


def test_vectors_without_a_norm_move_by_a_share_of_their_length():
    rng = np.random.default_rng(5)
    vectors = (rng.normal(size=(30, 8)) * 50).astype(np.float32)
    candidates = JudgedCandidates(
        vectors[:12], [{number: 1} for number in range(12)], vectors, np.arange(30), False
    )
    assert candidates.scale == pytest.approx(np.sqrt((vectors**2).sum(axis=1).mean()), rel=1e-6)
    assert learn_bound(candidates).queries == 12


def test_the_interval_is_students():
    values = np.random.default_rng(0).normal(0.1, 0.3, 17)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert paired_interval(values) == pytest.approx(tuple(expected))
    one_sided = stats.ttest_1samp(values, 0, alternative="greater").pvalue
    assert gain_confidence(values) == pytest.approx(1 - one_sided)
    assert gain_confidence(np.zeros(10)) == 0.5


def test_nothing_that_was_not_kept_is_written(searcher, tmp_path):
    LearnedVectors.learn(searcher.dense, judged(searcher, one_each)).save(tmp_path)
    written = json.loads((tmp_path / "learned.json").read_text())
    assert (written["kept"], written["moved"], written["documents"]) == (False, 0, [])
    assert len(LearnedVectors.load(tmp_path).vectors) == 0


@pytest.mark.parametrize(("missing", "said"), [(1, "1 other judged query has"), (3, "3 other")])
def test_every_query_without_a_relevant_document_is_counted(missing, said, searcher):
    """The first has none in the corpus, and the others have none at all."""
    judgements = judged(searcher, by_topic)
    queries = dict(judgements.queries)
    for number in range(missing):
        grades = {"d1": 0, "gone": 1} if number == 0 else {"d1": 0}
        queries[f"bad{number}"] = JudgedQuery(grades=grades, text=f"query {number}")
    texts = {id: query.text for id, query in queries.items()}
    judgements = replace(judgements, queries=queries).of(texts, searcher.documents)
    record = LearnedVectors.learn(searcher.dense, judgements).record
    assert (record.queries, record.left_out) == (24, missing)
    assert said in record.describe()
    assert record.describe().endswith("no relevant document in the corpus")
    everything = LearnedVectors.learn(searcher.dense, judged(searcher, by_topic)).record
    assert "no relevant document" not in everything.describe()


def test_too_few_queries_are_refused(searcher):
    judgements = judged(searcher, by_topic)
    few = {name: judgements.queries[name] for name in list(judgements.queries)[:9]}
    few["bad"] = JudgedQuery(grades={"d1": 0}, text="query 3")
    with pytest.raises(InputError, match=r"9 judged queries.*judge 1 more"):
        LearnedVectors.learn(searcher.dense, replace(judgements, queries=few))


def test_what_was_written_comes_back_and_fits_only_its_corpus(
    searcher, tmp_path, tiny_cosine, two_layer_cosine, beir_folder
):
    learned = LearnedVectors.learn(searcher.dense, judged(searcher, by_topic))
    learned.save(tmp_path)
    again = LearnedVectors.load(tmp_path)
    assert again.record.documents == learned.record.documents
    assert again.vectors.tolist() == learned.vectors.tolist()
    other = Searcher(str(beir_folder), str(two_layer_cosine))
    with pytest.raises(InputError, match="another encoder"):
        again.apply(other.dense)
    with pytest.raises(InputError, match="no document vectors"):
        again.apply(Searcher(str(beir_folder), "bm25").dense)
    file = tmp_path / "learned.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"learned\.safetensors is damaged"):
        LearnedVectors.load(tmp_path)
    with pytest.raises(InputError, match=r"no learned\.json"):
        LearnedVectors.load(tmp_path / "nothing")


@pytest.mark.parametrize("split", ["train", "test"])
def test_judgements_of_any_split_teach(split, beir_folder, tiny_cosine, tmp_path):
    judgements = beir_folder / "qrels" / f"{split}.tsv"
    assert learn(str(tiny_cosine), str(beir_folder), judgements, tmp_path).queries == 16


def test_what_another_run_learned_is_replaced_only_on_request(beir_folder, tiny_cosine, tmp_path):
    model = str(tiny_cosine)
    output = tmp_path / "learned"
    judgements = tmp_path / "judged.tsv"
    judgements.write_bytes((beir_folder / "qrels" / "test.tsv").read_bytes())
    first = learn(model, str(beir_folder), judgements, output)
    assert first.model == model
    assert learn(model, str(beir_folder), judgements, output) == first  # the same run again
    files = {file.name: file.read_bytes() for file in output.iterdir()}
    corpus = tmp_path / "corpus"
    shutil.copytree(beir_folder, corpus)
    with (corpus / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "new", "title": "", "text": "a wing"}) + "\n")
    with pytest.raises(InputError, match=r"begun with other settings .*corpus .*--overwrite"):
        learn(model, str(corpus), judgements, output)
    with judgements.open("a") as file:
        file.write("q1\td40\t1\n")
    with pytest.raises(InputError, match=r"begun with other settings \(judgements .*--overwrite"):
        learn(model, str(beir_folder), judgements, output)
    assert {file.name: file.read_bytes() for file in output.iterdir()} == files
    learn(model, str(beir_folder), judgements, output, LearnOptions(overwrite=True))
    assert (output / "learned.json").read_bytes() != files["learned.json"]
    (output / "run.json").unlink()
    with pytest.raises(InputError, match=r"does not say which run made them.*--overwrite"):
        learn(model, str(beir_folder), judgements, output)


def test_the_commands_learn_and_search(beir_folder, tiny_cosine, tmp_path, capsys):
    """Six copies of each query answer the same document, so that they teach each other."""
    collection = load_collection(str(beir_folder))
    ids = collection.documents.ids(range(4))
    log = tmp_path / "judgements.jsonl"
    lines = []
    for number in range(24):
        text = collection.documents[ids[(number + 1) % 4]]["text"]
        query = " ".join(text.split()[: 3 + number // 4])
        lines.append(
            {
                "time": "2026-01-01T00:00:00+00:00",
                "query": query,
                "document_id": ids[number % 4],
                "grade": 1,
            }
        )
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = str(tiny_cosine)
    base = ["--dataset", str(beir_folder)]
    learning = ["learn", model, *base, "--judgements", str(log), "--output", str(tmp_path / "l")]
    with pytest.raises(SystemExit, match="0"):
        main([*learning, "--json"])
    record = json.loads(capsys.readouterr().out)
    # To this encoder, some of the 24 ask the same.
    assert FEWEST <= record["queries"] <= 24
    assert record["model"] == model
    with log.open("a") as file:
        file.write(json.dumps({**lines[0], "document_id": ids[3]}) + "\n")
    with pytest.raises(SystemExit, match="2"):
        main(learning)
    assert "--overwrite" in capsys.readouterr().err
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit, match="0"):
        main([*learning, "--overwrite", "--json"])
    assert json.loads(capsys.readouterr().out) == record
    assert record["kept"] == (record["confidence"] >= 0.8)
    search = ["search", *base, "--model", model, "--learned", str(tmp_path / "l"), "--json"]
    with pytest.raises(SystemExit, match="0"):
        main([*search, lines[0]["query"]])
    [answer] = json.loads(capsys.readouterr().out)["queries"]
    assert record["kept"]
    assert answer["hits"][0]["id"] == ids[0]
    with pytest.raises(SystemExit, match="2"):
        main(["learn", "bm25", *learning[2:]])
    assert "no document vectors" in capsys.readouterr().err
