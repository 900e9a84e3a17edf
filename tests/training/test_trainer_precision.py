"""What training computes in: chosen by the device, or asked for."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from beir_cocodr import COCODR, load_collection
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.training.adaptation_cost import PlannedTraining, estimate
from beir_cocodr.training.distillation.distill import distill
from beir_cocodr.training.finetuning.finetune import finetune
from beir_cocodr.training.options import DistillOptions, FinetuneOptions, PretrainOptions
from beir_cocodr.training.output_folder import training_precision
from beir_cocodr.training.pretraining.pretrain import pretrain

BUDGET = {"max_steps": 2, "batch_size": 8, "mini_batch_size": 4, "learning_rate": 1e-4, "warmup": 0}
CLUSTERS = {"clusters": 3, "min_cluster_size": 1}
TRAININGS = {
    "coco": (pretrain, PretrainOptions.of(**BUDGET, span_tokens=12)),
    "infonce": (finetune, FinetuneOptions.of(**BUDGET)),
    "idro": (finetune, FinetuneOptions.of(**BUDGET, weighting="idro", **CLUSTERS)),
    "cvar": (finetune, FinetuneOptions.of(**BUDGET, weighting="cvar", **CLUSTERS)),
    "mrl": (distill, DistillOptions.of(**BUDGET, student="mrl", candidates=10)),
}


class Computed(set):
    """What linear layers gave since the last look: (whether in training mode, type)."""

    def look(self, module, inputs, output):
        if isinstance(module, nn.Linear):
            self.add((module.training, output.dtype))

    def types(self, training: bool) -> set[torch.dtype]:
        found = {kind for in_training, kind in self if in_training == training}
        self.clear()
        return found


@pytest.fixture
def computed():
    computed = Computed()
    hook = register_module_forward_hook(computed.look)
    yield computed
    hook.remove()


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_model_computes_in_bfloat16_and_keeps_its_weights_in_float32(
    kind, computed, two_layer_mlm, beir_folder, tmp_path
):
    train, options = TRAININGS[kind]
    losses = {}
    for precision in ("float32", "bfloat16"):
        record = train(
            str(two_layer_mlm),
            str(beir_folder),
            output=tmp_path / precision,
            options=options.with_overrides(precision=precision),
            **{"teacher": "bm25"} if train is distill else {},
        )
        assert record.precision == precision
        assert computed.types(training=True) == {getattr(torch, precision)}
        weights = load_file(tmp_path / precision / "model.safetensors")
        assert {weight.dtype for weight in weights.values()} == {torch.float32}
        losses[precision] = record.training_loss
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.1)


@pytest.mark.parametrize(
    ("device", "has_bfloat16", "chosen", "refused"),
    [
        ("cpu", False, "float32", ["float16"]),
        ("cuda", True, "bfloat16", []),
        ("cuda", False, "float16", ["bfloat16"]),
    ],
)
def test_the_device_chooses_unless_asked(device, has_bfloat16, chosen, refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bfloat16)
    assert training_precision(torch.device(device)) == chosen
    for asked in ("float32", "bfloat16", "float16"):
        if asked in refused:
            with pytest.raises(InputError, match=f"precision {asked} .*{device}: choose .*float32"):
                training_precision(torch.device(device), asked)
        else:
            assert training_precision(torch.device(device), asked) == asked


@pytest.mark.parametrize("command", [["finetune"], ["adapt", "--stages", "coco"]])
def test_half_precision_without_a_gpu_is_refused_before_anything_is_written(
    command, tiny_mlm, beir_folder, tmp_path, capsys
):
    output = tmp_path / "m"
    arguments = ["--model", str(tiny_mlm), "--dataset", str(beir_folder), "--output", str(output)]
    with pytest.raises(SystemExit) as ended:
        main([*command, *arguments, "--precision", "float16", "--device", "cpu"])
    assert ended.value.code == 2
    assert "choose bfloat16 or float32" in capsys.readouterr().err
    assert not output.exists() or not any(output.iterdir())


def test_a_finished_model_is_kept_wherever_the_device_chose_but_not_against_a_wish(
    tiny_mlm, beir_folder, tmp_path
):
    def train(precision: str, resume: bool = True):
        options = FinetuneOptions.of(**BUDGET, precision=precision)
        return finetune(
            str(tiny_mlm), str(beir_folder), output=tmp_path, options=options, resume=resume
        )

    trained = train("bfloat16", resume=False)
    assert train("bfloat16") == trained
    with pytest.raises(InputError, match=r"other .*precision"):
        train("float32")


def test_the_cost_of_a_training_is_probed_in_what_it_computes_in(
    computed, beir_folder, two_layer_bert
):
    documents = load_collection(str(beir_folder)).documents
    model = COCODR(str(two_layer_bert))
    planned = [
        PlannedTraining(precision, PretrainOptions.of(**BUDGET, precision=precision), 20)
        for precision in ("auto", "bfloat16")
    ]
    cost = estimate(planned, model, documents)
    assert cost is not None
    assert cost.seconds.keys() >= {"auto", "bfloat16"}
    assert computed.types(training=False) == {torch.float32, torch.bfloat16}
