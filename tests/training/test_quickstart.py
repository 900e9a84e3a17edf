"""The quickstart takes the corpus and the steps that fit a machine, and goes on with them."""

from __future__ import annotations

import pytest

from beir_cocodr.data import apidocs
from beir_cocodr.errors import InputError
from beir_cocodr.training import quickstart as module
from beir_cocodr.training.adapt import PLAN_FILE, AdaptationSettings
from beir_cocodr.training.quickstart import FAST, PLANS, QuickstartPlan, fitting_plan, quickstart


@pytest.fixture
def plans(monkeypatch):
    """Return plans over corpora of 1,000 and of 100 documents."""
    sizes = {"large": 1_000, "small": 100}

    class Sized:
        def __init__(self, name, **settings):
            self.documents = range(sizes[name])

    monkeypatch.setattr(module, "load_collection", Sized)
    return (
        QuickstartPlan("large", "source", 10, 16, 50, fewest=10),
        QuickstartPlan("small", "source", 10, 16, 50, fewest=2),
    )


def test_time_is_that_of_four_encodings_and_three_trainings(plans):
    # Gradients of 16 examples are cached: each text is read in four passes.
    expected = 4 * 100 / 5.0 + 3 * 10 * 16 * 2 * 4 / 5.0 + 40
    assert plans[1].seconds(5.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rate", "corpus", "steps"), [(1e6, "large", 10), (15.0, "small", 10), (0.01, "small", 2)]
)
def test_a_slower_machine_takes_the_smaller_corpus_and_fewer_steps(plans, rate, corpus, steps):
    plan = fitting_plan(rate, 360.0, plans)
    assert (plan.corpus, plan.steps) == (corpus, steps)


def test_the_most_steps_that_fit_are_taken(plans):
    rate = 9.0
    plan = fitting_plan(rate, 360.0, plans)
    assert 2 < plan.steps < 10
    assert plan.seconds(rate) <= 360
    more = QuickstartPlan("small", "source", plan.steps + 1, 16, 50)
    assert more.seconds(rate) > 360


@pytest.fixture
def few_texts(monkeypatch):
    """Make the corpora of the plans of one folder of each package."""
    folders = {"scipy": "linalg", "sklearn": "utils"}
    root = apidocs._source_root
    monkeypatch.setattr(apidocs, "_source_root", lambda domain: root(domain) / folders[domain])
    monkeypatch.setattr(apidocs, "FORMAT_VERSION", "few")  # folders of their own in the cache


@pytest.mark.usefixtures("few_texts")
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_measures_once_and_says_so(tmp_path, monkeypatch, caplog, interrupted):
    """A run that is resumed goes on with the steps that it began with, on whatever machine."""
    begun = []
    monkeypatch.setattr(module, "adapt", lambda model, corpus, **rest: begun.append((corpus, rest)))
    monkeypatch.setattr(module, "load_encoder", lambda name: None)
    monkeypatch.setattr(module, "probe", lambda model, documents: 1e6)
    if interrupted:
        options = {"finetune": {"batch_size": PLANS[1].batch_size, "max_steps": 7}}
        AdaptationSettings({"options": options}).write(tmp_path / PLAN_FILE)
        monkeypatch.setattr(module, "probe", None)
    with caplog.at_level("INFO", "beir_cocodr"):
        quickstart(tmp_path, resume=interrupted)
    [(corpus, settings)] = begun
    plan = PLANS[1] if interrupted else PLANS[0]
    assert corpus == plan.corpus
    finetune = settings["options"].stage_options["finetune"]
    assert finetune.max_steps == (7 if interrupted else 20)
    assert finetune.mini_batch_size == 8
    assert ("this machine encodes" in caplog.text) == (not interrupted)


def test_fast_measures_nothing(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(module, "adapt", lambda model, corpus, **rest: begun.append(corpus))
    monkeypatch.setattr(module, "probe", None)
    quickstart(tmp_path, fast=True)
    assert begun == [FAST.corpus]


@pytest.mark.parametrize("minutes", [float("inf"), float("nan")])
def test_minutes_without_an_end_are_refused(tmp_path, minutes):
    with pytest.raises(InputError, match=r"minutes is (inf|nan); give"):
        quickstart(tmp_path / "new", minutes=minutes)
    assert not (tmp_path / "new").exists()
