from __future__ import annotations

from dataclasses import asdict

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.training.options import FinetuneOptions, PretrainOptions
from beir_cocodr.training.presets import ADAPT_STAGES, PRESETS, adapt_options, stage_options

KINDS = {"pretrain": PretrainOptions, "finetune": FinetuneOptions}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("stage", KINDS)
def test_presets_are_valid_and_in_force(preset, stage):
    settings = asdict(stage_options(KINDS[stage], stage, preset))
    assert settings.items() >= PRESETS[preset][stage].items()


def test_the_paper_is_one_preset_away():
    pretraining = stage_options(PretrainOptions, "pretrain", "base")
    assert (pretraining.learning_rate, pretraining.epochs, pretraining.batch_size) == (1e-4, 8, 2048)
    assert stage_options(PretrainOptions, "pretrain", "large").learning_rate == 1e-5
    finetuning = stage_options(FinetuneOptions, "finetune", "base")
    assert (finetuning.clusters, finetuning.alpha, finetuning.rho, finetuning.ema) == (50, 0.25, 0.05, 0.1)
    assert (finetuning.episodes, finetuning.mining_depth, finetuning.mining_keep) == (3, 200, 30)
    assert (finetuning.learning_rate, finetuning.batch_size, finetuning.trained_loss) == (5e-6, 64, "triplet")


@pytest.mark.parametrize("stage", [stage for stage in ADAPT_STAGES if stage != "fuse"])  # which trains nothing
def test_every_stage_of_adapt_is_small_in_the_small_preset(stage):
    small, whole = adapt_options(stage, "cpu"), adapt_options(stage)
    assert small.max_steps == 40
    assert small.batch_size <= 64
    if stage != "finetune":  # whose own loss the presets name
        objective = getattr(whole, "objective", None) or whole.loss
        assert (getattr(small, "objective", None) or small.loss) == objective  # still the same method


def test_later_words_win():
    options = stage_options(
        FinetuneOptions, "finetune", "cpu", ["clusters=5", "rho=1", "idro_mode=paper", "tau=null"], seed=7, loss=None
    )
    assert (options.clusters, options.rho, options.idro_mode, options.tau, options.seed) == (5, 1.0, "paper", None, 7)
    assert stage_options(FinetuneOptions, "finetune", "cpu", ["clusters=5"], clusters=6).clusters == 6


@pytest.mark.parametrize("assignment", ["spam=1", "clusters", "clusters=2.5", "duplicates=1", "rho=high", "seed=null"])
def test_a_wrong_setting_is_named(assignment):
    with pytest.raises(InputError, match=f"--set {assignment}"):
        stage_options(FinetuneOptions, "finetune", None, [assignment])


def test_the_loss_follows_the_weighting_unless_named():
    assert FinetuneOptions().trained_loss == "infonce"
    assert FinetuneOptions(weighting="idro").trained_loss == "triplet"
    assert FinetuneOptions(episodes=1).trained_loss == "triplet"
    assert FinetuneOptions(weighting="idro", loss="infonce").trained_loss == "infonce"
