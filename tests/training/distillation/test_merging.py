"""Merging a distilled encoder with its base: what is held out, what chooses, what is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from beir_cocodr import AdaptOptions, adapt, load_collection, load_encoder
from beir_cocodr.data.documents import open_corpus, write_arrow
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.label_free.contamination import find_contamination
from beir_cocodr.evaluation.label_free.held_out_queries import CORPUS_FILE
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.training.distillation import merging as merging_module
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.distillation.distill_rounds import Rounds
from beir_cocodr.training.distillation.merging import (
    Merging,
    copy_of,
    cut_crops,
    generated_kinds,
    kind_to_hold_out,
    merged,
    practised_spans,
    without_kind,
    write_without_texts,
)
from beir_cocodr.training.held_out import CheckpointSelection
from beir_cocodr.training.options import DistillOptions
from beir_cocodr.training.presets import adapt_options


@pytest.fixture(scope="module")
def queries(beir_folder, tmp_path_factory):
    """Claims, keywords and titles of the corpus."""
    folder = tmp_path_factory.mktemp("kinds") / "queries"
    options = GenerationOptions(query_kinds="claims,keywords,titles", per_passage=3)
    generate_queries(str(beir_folder), "lexical", folder, options)
    return folder


def test_weights_are_averaged_and_counters_are_not():
    base = {"a": torch.tensor([0.0, 2.0]), "n": torch.tensor([3])}
    tuned = {"a": torch.tensor([4.0, 0.0]), "n": torch.tensor([5])}
    half = merged(base, tuned, 0.25)
    assert half["a"].tolist() == [1.0, 1.5]
    assert half["n"].tolist() == [5]
    assert merged(base, tuned, 0)["a"].tolist() == [0.0, 2.0]
    assert merged(base, tuned, 1)["a"].tolist() == [4.0, 0.0]


def many(*kinds):
    """Return query id to kind, of eight queries of each kind in turn."""
    return {f"{number} {kind}": kind for number in range(8) for kind in kinds}


def test_one_kind_is_held_out_where_there_are_several(queries):
    kinds = generated_kinds(queries)
    assert set(kinds.values()) == {"claims", "keywords", "titles"}
    assert kind_to_hold_out(kinds) == "titles"
    assert kind_to_hold_out(many("claims", "questions")) == "questions"
    assert kind_to_hold_out(many("claims", "keywords")) == "claims"
    assert kind_to_hold_out(many("keywords", "questions")) == "questions"
    assert kind_to_hold_out(many("claims")) == kind_to_hold_out({}) == "crops"
    # Seven titles are too few to choose.
    few = dict(list(many("titles").items())[:7])
    assert kind_to_hold_out(many("claims", "keywords") | few) == "claims"
    assert kind_to_hold_out(many("keywords") | few) == "crops"
    assert generated_kinds(queries.parent) == {}
    collection = load_collection(str(queries), "train")
    others, held = without_kind(collection, "titles")
    assert {kinds[query] for query in held.queries} == {"titles"}
    assert {kinds[query] for query in others.queries} == {"claims", "keywords"}
    assert set(held.queries) | set(others.queries) == set(collection.queries)
    with pytest.raises(InputError, match="merge_on questions needs 8"):
        without_kind(collection, "questions")


def test_a_held_out_query_is_cut_out_of_its_document_alone(queries, tmp_path):
    collection = load_collection(str(queries), "train")
    _, held = without_kind(collection, "titles")
    write_without_texts(held, tmp_path / "new" / "corpus.arrow")
    changed = open_corpus(tmp_path / "new" / "corpus.arrow")
    asked = {
        document: held.queries[query] for query, grades in held.qrels.items() for document in grades
    }
    assert len(changed) == len(collection.documents)
    for name, document in collection.documents.items():
        after = changed[name]
        if name in asked:
            assert asked[name] not in after["title"] + after["text"]
        else:
            assert after == document


def test_a_query_is_cut_out_of_lines_that_it_does_not_have(queries, tmp_path):
    text = "The pump runs.\nIt stops  when\n the tank (of 5 l) is full. Then it waits."
    write_arrow(tmp_path / "lines.arrow", [(0, "d", "A pump", text)])
    collection = replace(
        load_collection(str(queries), "train"),
        documents=open_corpus(tmp_path / "lines.arrow"),
        queries={"q": "It stops when the tank (of 5 l) is full."},
        qrels={"q": {"d": 1}},
    )
    write_without_texts(collection, tmp_path / "cut.arrow")
    changed = open_corpus(tmp_path / "cut.arrow")["d"]
    assert changed["text"].split() == "The pump runs. Then it waits.".split()
    assert changed["title"] == "A pump"


def test_held_out_queries_share_neither_texts_nor_documents(queries, tmp_path):
    """A title of two documents asks for neither, and the spelling of a query does not matter."""
    collection = load_collection(str(queries), "train")
    documents = list(collection.documents)[:20]
    texts = {f"title-{row}": f"The title of document {row}" for row in range(12)}
    asked = {f"title-{row}": {documents[row]: 1} for row in range(12)}
    texts |= {"again-0": "the TITLE of document 0?", "other-1": "Another title"}
    asked |= {"again-0": {documents[0]: 1}, "other-1": {documents[1]: 1}}
    texts |= {"first": "Notes", "second": "notes", "claim": "The title of document 3."}
    asked |= {"first": {documents[15]: 1}, "second": {documents[16]: 1}}
    asked["claim"] = {documents[17]: 1}
    texts["free"] = "Something else"
    asked["free"] = {documents[18]: 1}
    kinds = {name: "claims" if name in ("claim", "free") else "titles" for name in texts}
    with mock.patch.object(merging_module, "generated_kinds", return_value=kinds):
        others, held = without_kind(replace(collection, queries=texts, qrels=asked), "titles")
    assert list(held.queries) == [f"title-{row}" for row in range(12)]
    assert list(others.queries) == ["free"]


def test_only_whole_words_are_cut_out(queries, tmp_path):
    text = "Tests of a Test in 10 tests; 测试Test功能 and the Test."
    write_arrow(tmp_path / "words.arrow", [(0, "d", "Test", text)])
    collection = replace(
        load_collection(str(queries), "train"),
        documents=open_corpus(tmp_path / "words.arrow"),
        queries={"q": "Test"},
        qrels={"q": {"d": 1}},
    )
    write_without_texts(collection, tmp_path / "cut.arrow")
    changed = open_corpus(tmp_path / "cut.arrow")["d"]
    assert changed["text"].split() == "Tests of a in 10 tests; 测试 功能 and the .".split()
    assert not changed["title"].strip()


def selection(model, gains):
    """Return what measures: a query's reciprocal rank grows with the weight by its gain."""

    def ranks(names):
        return [0.5 + gains[int(name)] * float(model.weight.detach()[0, 0]) for name in names]

    names = [str(number) for number in range(len(gains))]
    return SimpleNamespace(candidates=dict.fromkeys(names), reciprocal_ranks=ranks)


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [(0.1, 0.1, 1.0), (0.1, -0.1, 0.0), (-0.1, -0.1, 0.0), (0.0, 0.0, 0.0), (-0.1, 0.1, 0.0)],
)
def test_the_base_stays_unless_both_halves_gain(first, second, share):
    model = torch.nn.Linear(1, 1)
    model.load_state_dict({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
    noise = np.random.default_rng(0).uniform(0.9, 1.1, 40)
    gains = np.repeat([first, second], 20) * noise
    merging = Merging(selection(model, gains), model, copy_of(model.state_dict()), "titles")
    model.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    merging.merge()
    details = merging.record
    assert details["share"] == share
    assert float(model.weight.detach()) == share
    assert (details["queries"], details["kind"]) == (40, "titles")
    assert (details["confidence"] >= 0.8) == (second > 0)


def test_of_equal_shares_the_smallest_is_chosen():
    model = torch.nn.Linear(1, 1)
    model.load_state_dict({"weight": torch.zeros(1, 1), "bias": torch.zeros(1)})
    steps = SimpleNamespace(
        candidates=dict.fromkeys("abcdefgh"),
        reciprocal_ranks=lambda names: [
            0.1 * (place % 3) + 0.3 * float(model.weight[0, 0] >= 0.5)
            for place in range(len(names))
        ],
    )
    merging = Merging(steps, model, copy_of(model.state_dict()), "titles")
    model.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    merging.merge()
    assert merging.record["share"] == 0.5


def test_the_stage_trains_on_other_kinds_and_says_what_it_has_seen(
    beir_folder, tiny_mlm, tmp_path, monkeypatch
):
    trained_on = []
    original = Rounds._read

    def read(rounds, number):
        trained_on.append(set(rounds.task.train))
        return original(rounds, number)

    monkeypatch.setattr(Rounds, "_read", read)
    settings = adapt_options("distill", max_steps=2, batch_size=4, learning_rate=1e-3)
    assert settings.list_size == 16
    report = adapt(
        str(tiny_mlm),
        str(beir_folder),
        output=tmp_path / "o",
        options=AdaptOptions(stages="hybrid-distill", stage_options={"distill": settings}),
    )
    assert report.stages == ["distill"]
    folder = tmp_path / "o" / "models" / "distill"
    record = json.loads((folder / "training.json").read_text())
    assert record["teacher"] == "rm3"
    assert record["options"]["merge_on"] == "titles"
    kinds = generated_kinds(tmp_path / "o" / "queries")
    assert {kinds[query] for query in set.union(*trained_on)} == {"claims", "keywords"}
    merging = record["merging"]
    assert merging["kind"] == "titles"
    base = load_encoder(str(tiny_mlm)).state_dict()
    after = load_encoder(str(folder)).state_dict()
    moved = any(not torch.equal(base[name], after[name]) for name in base)
    assert moved == (merging["share"] > 0)
    # Claims are sentences of the corpus: it practised spans, beside generated queries.
    documents = load_collection(str(beir_folder)).documents
    seen = find_contamination({"m": str(folder)}, documents.content_hash)
    assert seen.spans == {"m"}
    assert seen.generated == {"m"}


def test_what_is_merged_is_the_checkpoint_that_held_out_queries_chose(
    queries, tiny_mlm, tmp_path, monkeypatch
):
    """The merged weights are those that are saved, and lie between the base and the best step."""
    seen = {}
    merge = Merging.merge

    def watch(merging):
        seen["tuned"] = copy_of(merging.model.state_dict())
        merge(merging)
        seen["merged"] = merged(merging.base, seen["tuned"], merging.record["share"])

    monkeypatch.setattr(Merging, "merge", watch)
    monkeypatch.setattr(merging_module, "gain_confidence", lambda differences: 1.0)
    restored = []
    restore = CheckpointSelection.restore

    def remember(selection):
        restore(selection)
        restored.append(copy_of(selection.model.state_dict()))

    monkeypatch.setattr(CheckpointSelection, "restore", remember)
    options = DistillOptions.of(
        merge_on="titles",
        select_epochs=0.1,
        held_out=0.2,
        max_steps=4,
        batch_size=4,
        learning_rate=1e-2,
        warmup=0,
    )
    distill(str(tiny_mlm), str(queries), teacher="bm25", output=tmp_path / "o", options=options)
    record = json.loads((tmp_path / "o" / "training.json").read_text())
    assert record["merging"]["share"] > 0
    [chosen] = restored
    saved = load_encoder(str(tmp_path / "o")).state_dict()
    for name, value in saved.items():
        assert torch.equal(seen["tuned"][name], chosen[name])
        torch.testing.assert_close(value, seen["merged"][name])


def adapted_on(kind, model, dataset, output):
    """Run the stage on generated queries of one kind."""
    generation = GenerationOptions(query_kinds=kind, per_passage=1)
    settings = adapt_options("distill", max_steps=1, batch_size=4, learning_rate=1e-3)
    adapt(
        str(model),
        str(dataset),
        output=output,
        options=AdaptOptions(
            stages="distill", stage_options={"distill": settings}, generation=generation
        ),
    )


def test_where_queries_are_of_one_kind_crops_choose_and_confirm(beir_folder, tiny_mlm, tmp_path):
    adapted_on("keywords", tiny_mlm, beir_folder, tmp_path / "o")
    folder = tmp_path / "o/models/distill"
    merging = json.loads((folder / "training.json").read_text())["merging"]
    assert merging["kind"] == "crops"
    assert merging["queries"] >= 8
    # Keywords are no spans: crops of the verdict count, generated queries do not.
    documents = load_collection(str(beir_folder)).documents
    seen = find_contamination({"m": str(folder)}, documents.content_hash)
    assert (seen.spans, seen.generated) == (frozenset(), {"m"})
    base = load_encoder(str(tiny_mlm)).state_dict()
    after = load_encoder(str(folder)).state_dict()
    moved = any(not torch.equal(base[name], after[name]) for name in base)
    assert moved == (merging["share"] > 0)


def test_crops_confirm_nothing_where_spans_were_trained_on(beir_folder, tiny_mlm, tmp_path):
    with pytest.raises(InputError, match="claims: these queries are spans of documents"):
        adapted_on("claims", tiny_mlm, beir_folder, tmp_path / "o")


def test_a_crop_is_cut_out_of_its_document_and_was_not_trained_on(queries, tmp_path):
    collection = load_collection(str(queries), "train")
    crops, qrels = cut_crops(collection, 10, 3, tmp_path / "new")
    documents = open_corpus(tmp_path / "new" / CORPUS_FILE)
    assert 8 <= len(crops) <= 10
    assert list(documents) == list(collection.documents)
    asked = {}
    for query, text in crops.items():
        [(name, grade)] = qrels[query].items()
        assert grade == 1
        assert text in collection.documents[name]["text"]
        assert len(documents[name]["text"]) < len(collection.documents[name]["text"])
        asked[name] = text
    assert len(asked) == len(crops)
    for name, document in collection.documents.items():
        if name not in asked:
            assert documents[name] == document
    # What was a query in training is none again.
    trained_on = replace(collection, queries=crops)
    again, _ = cut_crops(trained_on, 10, 3, tmp_path / "again")
    assert not set(again.values()) & set(crops.values())


def test_documents_too_short_for_crops_are_refused(queries, tmp_path):
    collection = load_collection(str(queries), "train")
    documents = write_and_open({str(number): "word" for number in range(20)}, tmp_path)
    short = replace(collection, documents=documents)
    with pytest.raises(InputError, match="needs 8 crops, and its documents gave 0"):
        cut_crops(short, 10, 3, tmp_path / "new")


@pytest.mark.parametrize("kinds", [None, "titles"])
def test_nothing_is_trained_before_queries_that_show_nothing_are_refused(
    kinds, beir_folder, tiny_mlm, tmp_path
):
    """Queries of no named kind are titles, sentences and words."""
    folder = tmp_path / "queries"
    generation = GenerationOptions(query_kinds=kinds, per_passage=1)
    generate_queries(str(beir_folder), "lexical", folder, generation)
    options = AdaptOptions(stages=("coco", "distill"), generated=folder)
    with pytest.raises(InputError, match="spans of documents are trained on"):
        adapt(str(tiny_mlm), str(beir_folder), output=tmp_path / "o", options=options)
    assert not (tmp_path / "o").exists()
    collection = load_collection(str(folder), "train")
    assert practised_spans(collection) == ("spans",)


def test_a_file_that_teaches_is_refused_before_anything_is_trained(beir_folder, tiny_mlm, tmp_path):
    (tmp_path / "scores.tsv").write_text("q\td\t1.0\n")
    options = AdaptOptions(stages=("coco", "distill"), teacher=str(tmp_path / "scores.tsv"))
    with pytest.raises(InputError, match="scores only the documents that it lists"):
        adapt(str(tiny_mlm), str(beir_folder), output=tmp_path / "o", options=options)
    assert not (tmp_path / "o").exists()


def write_and_open(texts, folder):
    """Return a corpus of some texts."""
    write_arrow(
        folder / "short.arrow",
        ((row, name, "", text) for row, (name, text) in enumerate(texts.items())),
    )
    return open_corpus(folder / "short.arrow")
