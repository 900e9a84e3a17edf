from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from beir_cocodr.errors import InputError
from beir_cocodr.resampling.regimes import Recipe
from beir_cocodr.training.finetuning.weightings import GroupDROOptions, IDROOptions
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
from beir_cocodr.training.presets import (
    ADAPT_STAGES,
    PRESETS,
    adapt_options,
    check_preset,
    stage_options,
)

KINDS = {"pretrain": PretrainOptions, "finetune": FinetuneOptions, "distill": DistillOptions}
KINDS |= {"resample evaluate": Recipe}
PUBLISHED = {
    name: json.loads(
        (Path(__file__).parents[2] / "benchmarks" / "published" / f"{name}.json").read_text()
    )
    for name in ("cocodr", "mrl", "query_as_context", "extrapolation")
}


@pytest.mark.parametrize(
    ("preset", "stage"), [(p, s) for p, stages in PRESETS.items() for s in stages if s in KINDS]
)
def test_presets_are_valid_and_in_force(preset, stage):
    settings = flat(asdict(stage_options(KINDS[stage], stage, preset)))
    assert settings.items() >= PRESETS[preset][stage].items()


def flat(settings: dict) -> dict:
    """The settings, with those of nested options beside the others."""
    values = {}
    for name, value in settings.items():
        values |= flat(value) if isinstance(value, dict) else {name: value}
    return values


@pytest.mark.parametrize("size", ["base", "large"])
def test_cocodr_as_printed(size, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    printed = PUBLISHED["cocodr"]["hyperparameters"]
    coco, found = printed["coco"], stage_options(PretrainOptions, "pretrain", f"cocodr-{size}")
    assert found.batch_size == 8 * coco["batch_size_per_gpu"]
    assert (found.epochs, found.max_steps, found.weight_decay) == (
        coco["epochs"],
        -1,
        coco["weight_decay"],
    )
    assert found.learning_rate == coco["peak_learning_rate"][size]
    assert found.max_length == coco["max_tokens_per_sequence"]
    idro, found = printed["idro"], stage_options(FinetuneOptions, "finetune", f"cocodr-{size}")
    assert found.batch_size == 8 * idro["batch_size_per_gpu"]
    own = found.weighting_options
    assert (found.learning_rate, own.clusters) == (idro["learning_rate"], idro["clusters_k"])
    # The text's beta is the code's alpha; its ANCE negatives are episodes after the BM25 warm-up,
    # of which it has 3.
    assert (found.weighting, own.alpha, own.mode, found.mining.episodes) == (
        "idro",
        idro["beta"],
        "published",
        3,
    )
    assert (own.kmeans_restarts, own.kmeans_iterations, own.kmeans_points) == (5, 500, 256)


def test_mrl_as_printed():
    printed, found = (
        PUBLISHED["mrl"]["hyperparameters"],
        stage_options(DistillOptions, "distill", "mrl"),
    )
    assert (found.batch_size, found.warmup) == (printed["batch_size"], printed["warmup_steps"])
    grid = printed["learning_rate_grid"]
    assert grid["from"] <= found.learning_rate <= grid["to"]
    documents = printed["distillation_documents"]
    assert documents["bm25_pool"] == documents["hard_pool"] == found.candidates
    assert found.refresh_steps == documents["hard_refresh_steps"]
    assert (found.student, found.loss) == ("mrl", "lambdarank")


def test_extrapolation_as_printed():
    printed, found = (
        PUBLISHED["extrapolation"]["protocol"],
        stage_options(Recipe, "resample evaluate", "extrapolation"),
    )
    assert (found.start, found.rerank) == (printed["finetune_init"], printed["reranker_depth"])
    assert (found.first_stage, found.candidates, found.max_steps) == ("bm25", "tokens", -1)
    assert (found.hard_negatives, found.teacher) == ("mined", "cross-encoder")
    assert printed["checkpoint"] == "evaluated every 2 epochs, best on the development set"
    assert (found.select_epochs, found.held_out > 0) == (2, True)
    assert found.learning_rate == 1e-5


@pytest.mark.parametrize(("preset", "name"), [("qc", "cocondenser"), ("cotmae", "cotmae")])
def test_query_as_context_as_printed(preset, name):
    printed = PUBLISHED["query_as_context"]["hyperparameters"]
    own, found = printed[name], stage_options(PretrainOptions, "pretrain", preset)
    assert (found.max_steps, found.learning_rate) == (own["steps"], own["learning_rate"])
    assert (
        found.batch_size
        == {"2k": 2_048, "16k": 16_384}[own.get("global_batch_size") or own["batch_size"]]
    )
    assert found.objective_options.mlm_weight == (2 if preset == "qc" else 1)
    tuning, found = printed["finetune"], stage_options(FinetuneOptions, "finetune", preset)
    assert (found.batch_size, found.learning_rate) == (
        tuning["global_batch_size"],
        tuning["learning_rate"],
    )
    assert (found.negatives, found.negative_depth) == (
        tuning["negatives_per_query"],
        tuning["negative_depth"],
    )
    assert (found.encoder.document_length, found.seed) == (tuning["passage_len"], tuning["seed"])


def test_a_preset_of_other_stages_is_refused():
    with pytest.raises(InputError, match=r"mrl.*pretrain.*cocodr-base"):
        stage_options(PretrainOptions, "pretrain", "mrl")
    assert adapt_options("qgen", "cocodr-base") == adapt_options(
        "qgen"
    )  # the preset is of other stages of the chain


def test_a_preset_reaches_the_stage_of_its_own_objective_alone():
    for stage in ("qc", "cotmae"):
        assert adapt_options(stage, stage) == stage_options(PretrainOptions, "pretrain", stage)
        assert adapt_options("coco", stage) == adapt_options("coco")
    assert adapt_options("coco", "base") == stage_options(PretrainOptions, "pretrain", "base")
    assert adapt_options("qc", "base") == adapt_options("qc")


@pytest.mark.parametrize(
    ("preset", "stages"),
    [("mrl", ["coco", "finetune"]), ("cocodr-base", ["gpl"]), ("qc", ["coco"]), ("nope", ["coco"])],
)
def test_a_preset_without_any_stage_of_a_chain_is_named(preset, stages):
    with pytest.raises(InputError, match=f"{preset}.*has no settings for {stages[0]}.* cpu"):
        check_preset(preset, stages)
    check_preset("cpu", [*ADAPT_STAGES])
    check_preset(None, stages)


def test_a_file_of_negatives_is_not_passed_over():
    with pytest.raises(InputError, match=r"hard_negatives needs .*negatives to 1"):
        FinetuneOptions(hard_negatives="mine.jsonl", negatives=0)


def test_the_paper_is_one_preset_away():
    pretraining = stage_options(PretrainOptions, "pretrain", "base")
    assert (pretraining.learning_rate, pretraining.epochs, pretraining.batch_size) == (
        1e-4,
        8,
        2048,
    )
    assert stage_options(PretrainOptions, "pretrain", "large").learning_rate == 1e-5
    finetuning = stage_options(FinetuneOptions, "finetune", "base")
    own = finetuning.weighting_options
    assert (own.clusters, own.alpha, own.rho, own.ema) == (
        50,
        0.25,
        0.05,
        0.1,
    )
    mining = finetuning.mining
    assert (mining.episodes, mining.depth, mining.keep) == (3, 200, 30)
    assert (finetuning.learning_rate, finetuning.batch_size, finetuning.loss) == (
        5e-6,
        64,
        "triplet",
    )


@pytest.mark.parametrize(
    "stage", [stage for stage in ADAPT_STAGES if stage != "fuse"]
)  # which trains nothing
def test_every_stage_of_adapt_is_small_in_the_small_preset(stage):
    small, whole = adapt_options(stage, "cpu"), adapt_options(stage)
    assert small.max_steps == 40
    assert small.batch_size <= 64
    if stage != "finetune":  # whose own loss the presets name
        objective = getattr(whole, "objective", None) or whole.loss
        assert (
            getattr(small, "objective", None) or small.loss
        ) == objective  # still the same method


def test_later_words_win():
    options = stage_options(
        FinetuneOptions,
        "finetune",
        "cpu",
        ["clusters=5", "rho=1", "idro_mode=paper", "tau=null"],
        seed=7,
        loss=None,
    )
    own = options.weighting_options
    assert (own.clusters, own.rho, own.mode, own.tau, options.seed) == (
        5,
        1.0,
        "paper",
        None,
        7,
    )
    again = stage_options(FinetuneOptions, "finetune", "cpu", ["clusters=5"], clusters=6)
    assert again.weighting_options.clusters == 6


@pytest.mark.parametrize(
    "assignment", ["spam=1", "clusters", "clusters=2.5", "duplicates=1", "rho=high", "seed=null"]
)
def test_a_wrong_setting_is_named(assignment):
    with pytest.raises(InputError, match=f"--set {assignment}"):
        stage_options(FinetuneOptions, "finetune", None, [assignment])


def test_the_loss_follows_the_weighting_unless_named():
    assert FinetuneOptions().loss == "infonce"
    assert FinetuneOptions(weighting="idro").loss == "triplet"
    assert FinetuneOptions.of(episodes=1).loss == "triplet"
    assert FinetuneOptions(weighting="idro", loss="infonce").loss == "infonce"


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (FinetuneOptions, {"weighting": "groupdro", "rho": 0.1}, "groupdro .*rho.* idro"),
        (FinetuneOptions, {"weighting": "idro", "eta": 0.1}, "idro .*eta.* groupdro"),
        (PretrainOptions, {"mix": 0.5}, "coco .*mix.* qc, cotmae"),
        (DistillOptions, {"loss": "kl", "reduction": "mean"}, "kl .*reduction.* lambdarank"),
        (DistillOptions, {"k": 4}, "dot .* k, .* mrl"),
    ],
)
def test_an_option_of_another_row_is_refused_by_the_names_of_those_that_have_it(
    kind, settings, expected
):
    with pytest.raises(InputError, match=expected):
        kind.of(**settings)
    assignments = [f"{name}={value}" for name, value in settings.items()]
    with pytest.raises(InputError, match=expected):
        stage_options(kind, "", None, assignments)


def test_clusters_are_accepted_by_plain_training_and_said_to_be_unused(caplog):
    options = FinetuneOptions.of(clusters=4)
    assert options.weighting_options is None
    assert "erm does not use clusters" in caplog.text
    with pytest.raises(InputError, match=r"erm .*rho.* idro"):
        FinetuneOptions.of(rho=0.1)


def test_options_of_another_weighting_are_refused_as_an_object_too():
    with pytest.raises(InputError, match=r"IDROOptions.* groupdro takes GroupDROOptions"):
        FinetuneOptions(weighting="groupdro", weighting_options=IDROOptions())
    with pytest.raises(InputError, match=r"IDROOptions.* erm takes no options"):
        FinetuneOptions(weighting_options=IDROOptions())


def test_a_preset_leaves_out_what_another_weighting_does_not_have():
    options = stage_options(FinetuneOptions, "finetune", "cocodr-base", weighting="groupdro")
    assert options.weighting_options == GroupDROOptions(
        kmeans_restarts=5, kmeans_iterations=500, kmeans_points=256
    )
    assert (
        stage_options(FinetuneOptions, "finetune", "cocodr-base", weighting="erm").weighting_options
        is None
    )


@pytest.mark.parametrize(
    ("loss", "batch_size", "expected"),
    [
        ("kl_margin", 8, 8),  # 8 queries with 12 documents each are more than 32 texts
        ("kl_margin", 2, None),
        ("kl_margin", 64, 32),
        ("margin_mse", 8, None),
        ("lambdarank", 8, None),
        ("lambdarank", 64, 32),
    ],
)
def test_lists_are_cached_where_their_texts_do_not_fit(loss, batch_size, expected):
    options = DistillOptions(loss=loss, batch_size=batch_size, mini_batch_size=32)
    assert options.list_size == 12
    assert options.cached_mini_batch() == expected
