"""Pre-training on passages and their queries: contrastive (qc) and generative (cotmae)."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import exit_code
from contexts import KINDS, settings, views, write_context
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from test_pretrain_backbones import backbones, untrained  # noqa: F401 - fixtures

from beir_cocodr import COCODR
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.generation.generate import generate_queries
from beir_cocodr.models.heads.condenser import HEAD_FOLDER
from beir_cocodr.models.heads.cotmae_decoder import DECODER_FOLDER
from beir_cocodr.training import checkpoints
from beir_cocodr.training.options import PretrainOptions
from beir_cocodr.training.presets import stage_options
from beir_cocodr.training.pretraining.objectives import OBJECTIVES
from beir_cocodr.training.pretraining.pretrain import attach_head, build_loss, pretrain
from beir_cocodr.training.start import Start


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> str:
    return str(write_context(tmp_path_factory.mktemp("context") / "queries"))


def test_cached_and_uncached_contrastive_gradients_agree(context, tiny_mlm):
    options = settings("qc", mix=0.3)
    found = views(context, tiny_mlm, options)
    rows, model = found.dataset(), found.model
    attach_head(Start("mlm", str(tiny_mlm), model), options)
    model.eval()
    batch = found.collator()([rows[i] for i in range(16)])
    columns = [
        {
            key.removeprefix(f"{name}_"): value
            for key, value in batch.items()
            if key.startswith(f"{name}_")
        }
        for name in found.columns
    ]
    gradients = []
    for mini in (16, 6):
        loss = build_loss(model, options.with_overrides(mini_batch_size=mini))
        assert loss.cached == (mini == 6)
        model.zero_grad()
        loss([dict(column) for column in columns]).backward()
        gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        )
    whole, cached = gradients
    assert cached.keys() == whole.keys()
    assert max(float((cached[name] - whole[name]).abs().max()) for name in whole) < 1e-5


def test_rows_are_drawn_in_a_thread_while_others_are_collated(context, tiny_mlm):
    """A tokenizer keeps its padding from one call to the next, for all threads that share it."""
    found = views(context, tiny_mlm, settings("qc", mix=1.0))
    rows, collate = found.dataset(), found.collator()
    is_alone = np.bincount(found.document)[found.document] == 1
    alone = np.flatnonzero(is_alone).tolist()  # these are cut into spans, which needs a tokenizer
    stopped = threading.Event()

    def draw() -> None:
        while not stopped.is_set():
            found.texts_of(alone)

    batch = [rows[row] for row in range(16)]
    columns = [f"{column}_input_ids" for column in found.columns]
    expected = collate(batch)
    tokenizer = found.model.tokenizer.backend_tokenizer
    padding = tokenizer.padding
    assert padding is not None
    found.texts_of(alone)
    assert tokenizer.padding == padding

    # And at any moment of the collating:
    thread = threading.Thread(target=draw)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the threads meet at every place
    thread.start()
    try:
        for _ in range(40):
            collated = collate(batch)
            for column in columns:
                assert torch.equal(collated[column], expected[column])
    finally:
        stopped.set()
        thread.join()
        sys.setswitchinterval(interval)


@pytest.fixture(scope="module", params=KINDS)
def trained(request, context, tiny_mlm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "whole"
    options = settings(request.param, mix=0.25)
    return (
        request.param,
        folder,
        pretrain(str(tiny_mlm), [context], output=folder, options=options, queries=[context]),
    )


def test_resumed_equals_uninterrupted(trained, context, tiny_mlm, tmp_path, dies_at):
    kind, whole, record = trained
    options = settings(kind, mix=0.25)
    with dies_at(5):
        pretrain(
            str(tiny_mlm), [context], output=tmp_path / "m", options=options, queries=[context]
        )
    resumed = pretrain(
        str(tiny_mlm),
        [context],
        output=tmp_path / "m",
        options=options,
        resume=True,
        queries=[context],
    )
    assert (resumed.resumed_from, resumed.steps, record.steps) == ("checkpoint-4", 6, 6)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*.safetensors"))
    kept = [f"{HEAD_FOLDER}/model.safetensors"]
    kept += [f"{DECODER_FOLDER}/model.safetensors"] * (kind != "qc")
    assert [str(file) for file in files] == sorted([*kept, "model.safetensors"])
    for file in files:
        first, second = load_file(whole / file), load_file(tmp_path / "m" / file)
        assert first.keys() == second.keys()
        for name, weight in first.items():
            torch.testing.assert_close(second[name], weight, rtol=0, atol=0, msg=name)
    start = load_file(tiny_mlm / "model.safetensors")
    moved = load_file(whole / "model.safetensors")
    # What training needed alone (head, decoder) is not in the model.
    assert {f"bert.{name}" for name in moved if "pooler" not in name} <= start.keys()
    name = "encoder.layer.0.output.dense.weight"
    assert (start[f"bert.{name}"] - moved[name]).abs().max() > 1e-4
    assert not (whole / checkpoints.CHECKPOINTS).exists()


def test_the_record_names_the_queries(trained, context, tiny_mlm):
    kind, folder, record = trained
    training = record
    record = json.loads((folder / "training.json").read_text())
    assert training.to_json() == record
    assert record["stage"] == KINDS[kind]["objective"]
    corpus, queries = record["seen"]
    assert queries["dataset"] == context
    assert queries["corpus_sha256"] == corpus["corpus_sha256"]
    content = (Path(context) / "queries.jsonl").read_bytes()
    assert queries["queries_sha256"] == hashlib.sha256(content).hexdigest()
    assert queries["generation"]["counts"] == {"queries": 192}
    assert (record["passages"], record["documents"], record["queries"]) == (48, 24, 192)
    assert (record["passages_alone"], record["passages_never_mixed"]) == (8, 0)
    assert record["language_model_head"] == "the checkpoint's language-model layers"
    assert record.get("decoder") == (None if kind == "qc" else "new layers")
    finished = pretrain(
        str(tiny_mlm),
        [context],
        output=folder,
        options=settings(kind, mix=0.25),
        resume=True,
        queries=[context],
    )
    assert finished == training


def test_other_queries_are_another_plan(context, tiny_mlm, tmp_path):
    folder = write_context(tmp_path / "queries")
    options = settings("qc", max_steps=1)
    pretrain(
        str(tiny_mlm), [context], output=tmp_path / "m", options=options, queries=[str(folder)]
    )
    lines = (folder / "queries.jsonl").read_text().splitlines()
    (folder / "queries.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(InputError, match=r"other settings .seen"):
        pretrain(
            str(tiny_mlm),
            [context],
            output=tmp_path / "m",
            options=options,
            resume=True,
            queries=[str(folder)],
        )


def _encode_without_us(folder: Path, output: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "beir_cocodr"]:
        del sys.modules[name]
    sys.modules["beir_cocodr"] = None  # type: ignore[assignment]
    model = SentenceTransformer(str(folder), device="cpu")
    np.save(output, model.encode_document(["a wing", "a library"]))


def test_the_result_is_a_plain_encoder(trained, tmp_path):
    """Another process, in which this package cannot be imported, gets the same vectors."""
    _, folder, _ = trained
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["type"].split(".")[0] for module in modules] == ["sentence_transformers"] * 2
    assert exit_code(_encode_without_us, folder, tmp_path / "found.npy") == 0
    ours = COCODR(str(folder), device="cpu").encode_document(["a wing", "a library"])
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), ours, atol=1e-6)


def test_pre_trainings_go_on_from_each_other(context, beir_folder, tiny_mlm, tmp_path):
    def step(name: str, base: Path, **changes):
        kind = changes.pop("kind", "masked")
        options = settings(kind, max_steps=1, **changes)
        on_queries = OBJECTIVES[options.objective].on_queries
        documents, queries = (context, [context]) if on_queries else (str(beir_folder), [])
        return pretrain(
            str(base), [documents], output=tmp_path / name, options=options, queries=queries
        )

    assert step("first", tiny_mlm).details["decoder"] == "new layers"
    again = step("again", tmp_path / "first")
    assert again.details["decoder"] == "the decoder of the loaded pre-training"
    assert again.details["language_model_head"] == "the head of the loaded pre-training"
    coco = step("coco", tmp_path / "again", kind="coco")
    head = "the head of the loaded pre-training"
    assert coco.details["language_model_head"] == head
    assert step("last", tmp_path / "coco").details["language_model_head"] == head
    with pytest.raises(InputError, match=r"decoder masked.*autoregressive"):
        step("other", tmp_path / "again", decoder="autoregressive")


def test_the_decoder_learns(context, tiny_mlm):
    """After some steps it tells the contexts of other passages worse than those of their own."""
    options = settings("autoregressive", mask_probability=0.0)
    found = views(context, tiny_mlm, options)
    from beir_cocodr.training.pretraining.pretrain import attach_decoder

    model = found.model
    attach_head(Start("mlm", str(tiny_mlm), model), options)
    attach_decoder(Start("mlm", str(tiny_mlm), model), options)
    loss = build_loss(model, options.with_overrides(mini_batch_size=48))
    rows, collator = found.dataset(), found.collator()
    batch = collator([rows[i] for i in range(48)])
    columns = [
        {
            key.removeprefix(f"{name}_"): value
            for key, value in batch.items()
            if key.startswith(f"{name}_")
        }
        for name in found.columns
    ]
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    values = []
    model.eval()
    for _ in range(60):
        value = loss([dict(column) for column in columns])
        values.append(value.item())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    rolled = {k: v.roll(1, 0) if torch.is_tensor(v) else v for k, v in columns[1].items()}
    with torch.no_grad():
        own, others = (
            loss([dict(columns[0]), dict(second)]).item() for second in (columns[1], rolled)
        )
    assert values[-1] < 0.7 * values[0]
    assert others > own + 0.1


@pytest.mark.parametrize("objective", ["qc", "cotmae"])
def test_what_generate_queries_writes_is_trained_on(objective, beir_folder, tiny_mlm, tmp_path):
    made = generate_queries(beir_folder, "lexical", tmp_path / "queries")
    kind, queries = "qc" if objective == "qc" else "autoregressive", [str(tmp_path / "queries")]
    options = settings(kind, max_steps=2, per_passage=2, mix=0.5)
    record = pretrain(
        str(tiny_mlm), [str(beir_folder)], output=tmp_path / "m", options=options, queries=queries
    )
    assert record.steps == 2
    assert record.seen[1].corpus_sha256 == record.seen[0].corpus_sha256
    assert record.seen[1].generation["counts"] == made.counts
    assert record.details["documents"] == 48
    assert 48 <= record.details["queries"] <= 2 * record.details["passages"]


@pytest.mark.parametrize("objective", ["qc", "cotmae"])
@pytest.mark.parametrize("architecture", ["Bert", "Roberta", "DistilBert", "MPNet"])
def test_every_backbone_trains(
    architecture,
    objective,
    backbones,  # noqa: F811
    untrained,  # noqa: F811
    context,
    tmp_path,
):
    model, output = backbones[architecture], tmp_path / "o"
    kind = "masked" if objective == "cotmae" else "qc"
    record = pretrain(
        str(model), [context], output=output, options=settings(kind, max_steps=2), queries=[context]
    )
    assert record.steps == 2
    assert record.training_loss < 50
    assert record.details["language_model_head"] == "the checkpoint's language-model layers"
    after = COCODR(str(output)).encode_document(["wing flow"])
    assert np.isfinite(after).all()
    assert np.abs(after - untrained[architecture]).max() > 1e-4


def test_several_corpora_have_their_own_queries(context, tiny_mlm, tmp_path):
    other = str(write_context(tmp_path / "other", documents=9, seed=5))
    found = views([other, context], tiny_mlm, settings("qc", batch_size=4))
    assert len(found) == 18 + 48
    assert found.names([17, 18]) == [f"{other}: d8 passage 2", f"{context}: d0 passage 0"]
    assert found.counts()["documents"] == 33
    options = settings("qc", max_steps=1, batch_size=4)
    record = pretrain(
        str(tiny_mlm),
        [context, other],
        output=tmp_path / "m",
        options=options,
        queries=[other, context],
    )
    assert [given.dataset for given in record.seen] == [context, other, other, context]
    with pytest.raises(InputError, match=rf"no queries .*{other}"):
        pretrain(
            str(tiny_mlm),
            [context, other],
            output=tmp_path / "n",
            options=options,
            queries=[context],
        )


def test_bad_input_is_one_clear_line(context, beir_folder, tiny_mlm, tmp_path):
    def train(queries, kind="qc", dataset=context, **changes):
        output = tmp_path / "m"
        try:
            pretrain(
                str(tiny_mlm),
                [str(dataset)],
                output=output,
                options=settings(kind, **changes),
                queries=queries,
            )
        finally:
            assert not any(output.rglob("*.safetensors"))

    with pytest.raises(InputError, match=r"qc .*--queries"):
        train([])
    with pytest.raises(InputError, match=r"coco .*--queries"):
        train([context], objective="coco")
    with pytest.raises(InputError, match=r"generation\.json"):
        train([str(beir_folder)])
    with pytest.raises(InputError, match="another corpus"):
        train([context], dataset=beir_folder)
    with pytest.raises(InputError, match=r"max_length is 500, .*160"):
        train([context], max_length=500)
    lone = write_context(tmp_path / "lone")
    (lone / "queries.jsonl").unlink()
    with pytest.raises(InputError, match=r"queries.jsonl: .*generate"):
        train([str(lone)], dataset=lone)
    (lone / "queries.jsonl").write_text("")
    with pytest.raises(InputError, match=r"no passage .*query"):
        train([str(lone)], dataset=lone)
    with (lone / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "x", "text": "one more"}\n')
    with pytest.raises(InputError, match="another corpus"):
        train([str(lone)], dataset=lone)


def test_defaults_are_the_papers():
    qc, cotmae = PretrainOptions(objective="qc"), PretrainOptions(objective="cotmae")
    assert (qc.learning_rate, qc.batch_size, qc.language_model.mask_probability, qc.max_length) == (
        1e-4,
        2048,
        0.15,
        144,
    )
    assert qc.keeps_dropout
    assert (cotmae.learning_rate, cotmae.batch_size) == (4e-4, 16_384)
    own = cotmae.objective_options
    assert own.mask_probability == 0.3
    assert (cotmae.warmup, cotmae.weight_decay, own.mix, own.decoder_window) == (
        0.1,
        0.01,
        0.0,
        3,
    )
    assert (own.decoder, own.decoder_mask_probability) == ("autoregressive", 0.45)
    coco = PretrainOptions()
    assert (coco.learning_rate, coco.batch_size) == (1e-4, 2048)
    assert coco.language_model.mask_probability == 0.15
    assert coco.max_length == 128
    asked = stage_options(
        PretrainOptions, "pretrain", None, ["learning_rate=0.001"], objective="cotmae"
    )
    assert (asked.learning_rate, asked.batch_size) == (1e-3, 16_384)
    preset = stage_options(PretrainOptions, "pretrain", "cotmae", decoder="masked", per_passage=3)
    assert (preset.objective, preset.max_steps) == ("cotmae", 50_000)
    assert preset.objective_options.per_passage == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder": "gpt"}, "decoder .*'gpt'"),
        ({"mix": 1.5}, "mix .*at most 1"),
        ({"per_passage": 0}, "per_passage .*1"),
        ({"decoder_layers": 0}, "decoder_layers .*1"),
        ({"decoder_window": 0}, "decoder_window .*1"),
        ({"decoder_mask_probability": -0.1}, "decoder_mask_probability"),
        ({"kind": "qc", "batch_size": 1}, "batch_size .*2"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        settings(**{"kind": "autoregressive"} | changes)


def test_the_command_shows_its_settings(capsys):
    command = [
        "pretrain",
        "--objective",
        "cotmae",
        "--decoder",
        "masked",
        "--mix",
        "0.5",
        "--per-passage",
        "3",
    ]
    command += [
        "--queries",
        "q",
        "--dataset",
        "d",
        "--model",
        "m",
        "--output",
        "o",
        "--show-config",
    ]
    with pytest.raises(SystemExit) as end:
        main(command)
    assert not end.value.code
    shown = json.loads(capsys.readouterr().out)["pretrain"]
    own = shown["objective_options"]
    assert (own["decoder"], own["mix"], own["per_passage"]) == ("masked", 0.5, 3)
    assert (shown["learning_rate"], shown["batch_size"]) == (4e-4, 16_384)
