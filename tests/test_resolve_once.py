"""Names become objects where they enter, and objects travel: real calls are counted."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field

import pytest

from beir_cocodr import AdaptOptions, FinetuneOptions, PretrainOptions, adapt, compare, evaluate
from beir_cocodr.data import collection as collections
from beir_cocodr.evaluation.compare import CompareOptions
from beir_cocodr.models.checkpoints import loading
from beir_cocodr.models.spec import ModelSpec


@dataclass
class Calls:
    """How often each name was resolved.

    Attributes:
        sources: names of datasets that a source was looked for.
        corpora: names of collections whose documents were opened.
        encoders: names of encoders that were loaded.
        specs: names of models that were parsed.
    """

    sources: Counter[str] = field(default_factory=Counter)
    corpora: Counter[str] = field(default_factory=Counter)
    encoders: Counter[str] = field(default_factory=Counter)
    specs: Counter[str] = field(default_factory=Counter)


@pytest.fixture
def calls(monkeypatch):
    """Count calls that go on to the real functions."""
    counted = Calls()
    resolve_source = collections.resolve_source
    converted_corpus = collections.converted_corpus
    load_by_name = loading._load_by_name
    parse = ModelSpec.parse.__func__

    def counting_source(dataset, split):
        counted.sources[str(dataset)] += 1
        return resolve_source(dataset, split)

    def counting_corpus(source):
        counted.corpora[source.name] += 1
        return converted_corpus(source)

    def counting_encoder(name, options):
        counted.encoders[name] += 1
        return load_by_name(name, options)

    def counting_parse(cls, name):
        if isinstance(name, str):
            counted.specs[name] += 1
        return parse(cls, name)

    monkeypatch.setattr(collections, "resolve_source", counting_source)
    monkeypatch.setattr(collections, "converted_corpus", counting_corpus)
    monkeypatch.setattr(loading, "_load_by_name", counting_encoder)
    monkeypatch.setattr(ModelSpec, "parse", classmethod(counting_parse))
    return counted


def test_one_evaluation_resolves_each_name_once(calls, beir_folder, tiny_cosine, tmp_path):
    dataset, encoder = str(beir_folder), str(tiny_cosine)
    models = ["bm25", encoder, f"hybrid:{encoder}", f"feedback:{encoder}"]
    evaluate(models, dataset, output=tmp_path)
    assert calls.sources == {dataset: 1}
    assert calls.corpora == {dataset: 1}
    assert calls.encoders == {encoder: 1}
    assert calls.specs == dict.fromkeys(models, 1)


@pytest.mark.parametrize("labels", [True, False])
def test_one_comparison_resolves_each_name_once(calls, beir_folder, tiny_cosine, tmp_path, labels):
    dataset, encoder = str(beir_folder), str(tiny_cosine)
    models = [encoder, f"hybrid:{encoder}", "bm25"]
    compare(models, dataset, output=tmp_path, options=CompareOptions(labels=labels, samples=10))
    assert calls.sources == {dataset: 1}
    assert calls.corpora == {dataset: 1}
    assert calls.encoders == {encoder: 1}
    assert calls.specs == dict.fromkeys(models, 1)


def test_a_comparison_reads_nothing_back_that_it_has_written(
    beir_folder, tiny_cosine, tmp_path, monkeypatch
):
    def refuse(*args, **kwargs):
        raise AssertionError("a run was read from disk")

    monkeypatch.setattr("beir_cocodr.evaluation.runs.read_trec_run", refuse)
    record = compare(["bm25", str(tiny_cosine)], beir_folder, output=tmp_path)
    assert (tmp_path / "bm25.run").is_file()
    assert record.labels


def test_one_adaptation_resolves_each_name_once(calls, beir_folder, tiny_mlm, tmp_path):
    dataset, base = str(beir_folder), str(tiny_mlm)
    stages = {
        "coco": PretrainOptions(max_steps=1, batch_size=2),
        "finetune": FinetuneOptions(max_steps=1, batch_size=2, negatives=0),
    }
    options = AdaptOptions(stages=list(stages), stage_options=stages, queries=2)
    source = tmp_path / "source"
    shutil.copytree(beir_folder, source)
    record = adapt(base, dataset, source=str(source), output=tmp_path / "adapted", options=options)
    trained = [path for name, path in record.models.items() if name != "base"]
    assert len(trained) == 3
    assert calls.sources == {dataset: 1, str(source): 1}
    assert calls.corpora == {dataset: 1, str(source): 1}
    assert calls.encoders == dict.fromkeys([base, *trained], 1)
    assert max(calls.specs.values()) == 1
