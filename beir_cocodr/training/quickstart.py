"""The quickstart: an adaptation to a collection that every installation can make for itself.

It measures first how fast this machine encodes, and takes the corpus and the steps that fit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from beir_cocodr.data.collection import load_collection
from beir_cocodr.errors import InputError
from beir_cocodr.evaluation.results import AdaptationRecord
from beir_cocodr.io import Keywords
from beir_cocodr.models.checkpoints.loading import load_encoder
from beir_cocodr.models.spec import SearchOptions
from beir_cocodr.progress import describe_seconds
from beir_cocodr.training.adapt import PLAN_FILE, AdaptationSettings, AdaptOptions, adapt
from beir_cocodr.training.adaptation_cost import PlannedTraining, probe, training_seconds
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.output_folder import check_unused

#: Minutes that the quickstart should take.
MINUTES = 6.0

#: The model that is adapted.
MODEL = "minilm"

# Texts in memory at a time: gradients are cached, so that the peak stays below 2.5 GiB.
_IN_MEMORY = 8

# Models that encode the corpus: the base, and one for each training.
_ENCODERS = 4

# Seconds of everything that is neither encoding nor training.
_OTHER_SECONDS = 40.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QuickstartPlan:
    """The sizes of a quickstart.

    Attributes:
        corpus: the target.
        source: the labelled collection.
        steps: optimiser steps of each training.
        batch_size: examples of a step.
        queries: queries of the target that judge.
        fewest: the fewest steps with which the plan is worth its corpus.
    """

    corpus: str
    source: str
    steps: int
    batch_size: int
    queries: int
    fewest: int = 5

    def options(self, seed: int) -> AdaptOptions:
        """Return the options of the adaptation."""
        shared: Keywords = {
            "max_steps": self.steps,
            "batch_size": self.batch_size,
            "mini_batch_size": min(self.batch_size, _IN_MEMORY),
            "learning_rate": 2e-5,
            "seed": seed,
        }
        return AdaptOptions(
            stage_options={
                "coco": PretrainOptions(**shared),
                "finetune": FinetuneOptions(**shared, negatives=0),
            },
            queries=self.queries,
            search=SearchOptions(progress=True),
        )

    def seconds(self, rate: float) -> float:
        """Return the expected seconds on a machine that encodes so many documents a second."""
        documents = len(load_collection(self.corpus, labels="none").documents)
        settings = self.options(seed=0).chosen()
        trained = ("coco", "finetune", "finetune")
        training = sum(
            training_seconds(PlannedTraining(stage, settings[stage], documents), rate, 0.0)
            for stage in trained
        )
        return training + _ENCODERS * documents / rate + _OTHER_SECONDS


#: The quickstart in full, whose figures the results have, and on a machine that is slower.
PLANS = (
    QuickstartPlan(
        corpus="apidocs/scipy+sklearn",
        source="apidocs/stdlib+numpy+pandas+torch",
        steps=20,
        batch_size=32,
        queries=300,
        fewest=20,
    ),
    QuickstartPlan(
        corpus="apidocs/sklearn",
        source="apidocs/stdlib+numpy+pandas+torch",
        steps=20,
        batch_size=16,
        queries=300,
    ),
)

#: The quickstart with --fast.
FAST = QuickstartPlan(
    corpus="apidocs/sklearn",
    source="apidocs/pandas",
    steps=5,
    batch_size=16,
    queries=100,
)


def fitting_plan(
    rate: float, seconds: float, plans: Sequence[QuickstartPlan] = PLANS
) -> QuickstartPlan:
    """Return the first plan that fits into a time, with as many of its steps as fit.

    Args:
        rate: documents that this machine encodes a second.
        seconds: the time.
        plans: plans, the best one first; the last one is taken with its fewest steps where nothing
            fits.
    """
    for plan in plans:
        for steps in range(plan.steps, plan.fewest - 1, -1):
            fitted = replace(plan, steps=steps)
            if fitted.seconds(rate) <= seconds:
                return fitted
    return replace(plans[-1], steps=plans[-1].fewest)


def quickstart(
    output: Path,
    fast: bool = False,
    seed: int = 42,
    resume: bool = False,
    minutes: float = MINUTES,
) -> AdaptationRecord:
    """Adapt the packaged MiniLM to API documentation.

    Args:
        output: the output folder.
        fast: take the smallest plan, whatever the machine.
        seed: the seed of the trainings.
        resume: keep finished models, and go on with interrupted ones.
        minutes: the minutes that it should take.

    Raises:
        InputError: ``minutes`` is not a finite number, or the output cannot be used.
    """
    if not math.isfinite(minutes):
        raise InputError(f"--minutes is {minutes}; give a finite number of minutes")
    check_unused(output, resume)  # before the minutes that reading and measuring take
    plan = FAST if fast else _begun_plan(output) if resume else None
    if plan is None:
        plan = _measured_plan(minutes)
    return adapt(
        MODEL,
        plan.corpus,
        source=plan.source,
        output=output,
        options=plan.options(seed),
        resume=resume,
    )


def _measured_plan(minutes: float) -> QuickstartPlan:
    """Measure how fast this machine encodes, and choose a plan."""
    documents = load_collection(PLANS[-1].corpus, labels="none").documents
    rate = probe(load_encoder(MODEL), documents)
    plan = fitting_plan(rate, 60 * minutes)
    log.info(
        "this machine encodes %.1f texts a second, so the quickstart adapts to %s in %d steps of "
        "%d examples, which takes about %s; --minutes gives it more or less time",
        rate,
        plan.corpus,
        plan.steps,
        plan.batch_size,
        describe_seconds(plan.seconds(rate)),
    )
    return plan


def _begun_plan(output: Path) -> QuickstartPlan | None:
    """Return the plan of a quickstart that was interrupted, None if there is none."""
    try:
        settings = AdaptationSettings.read(output / PLAN_FILE).settings
    except InputError:
        return None
    finetune = dict(dict(settings["options"])["finetune"])  # type: ignore[call-overload]
    for plan in PLANS:
        if finetune["batch_size"] == plan.batch_size:
            return replace(plan, steps=int(finetune["max_steps"]))
    return None
