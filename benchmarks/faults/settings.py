"""Hostile settings of models: names that would be called, and numbers that no model has."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from faults.commands import SCENARIOS
from faults.damage import find_values
from faults.inputs import LIMIT, Attempt, Campaign, Outcome, find_lost_work, judge
from faults.parts import Broken, write_evil_module
from faults.world import lay_out, read_results, scenario_reference

#: Scenarios that load a model, and its part.
_LOADING = {
    "evaluate-dense": "model",
    "evaluate-hybrid": "bert",
    "evaluate-mrl": "mrl",
    "distill-cross": "cross",
    "generate-t5": "t5",
    "pretrain": "bert",
    "fuse": "model",
}

#: Names of code; none may be called only because a setting contains it.
_NAMES = [
    "os.system",
    "subprocess.run",
    "builtins.exec",
    "importlib.import_module",
    "torch.distributed.run.main",
    "torch.hub.load",
    "torch.load",
    "torch.nn.Module",
    "torch.nn.Identity",
    "torch.nn.modules.activation.Nonsense",
    "sentence_transformers.SentenceTransformer",
    "evil.Evil",
    "evil--evil.Evil",
    "../evil.Evil",
]

#: Settings that hosts resolve to code or files, or that decide about sizes.
_KEYS = [
    "activation_fn",
    "sbert_ce_default_activation_function",
    "hidden_act",
    "classifier_activation",
    "auto_map",
    "custom_pipelines",
    "trust_remote_code",
    "num_labels",
    "id2label",
    "torch_dtype",
    "dtype",
    "attn_implementation",
    "_attn_implementation",
    "quantization_config",
    "model_args",
    "tokenizer_class",
    "processor_class",
    "architectures",
    "is_decoder",
    "add_cross_attention",
    "rope_scaling",
    "rope_parameters",
    "pruned_heads",
    "chunk_size_feed_forward",
    "num_hidden_layers",
    "hidden_size",
    "type_vocab_size",
    "pad_token_id",
    "max_seq_length",
    "word_embedding_dimension",
    "pooling_mode",
    "similarity_fn_name",
    "prompts",
    "modules",
    "backend",
]

_NUMBERS: list[Any] = [
    *(0, -1, 1, 3, 7, 10**6, 10**9, 10**12, 2**31, 2**63, 2**64, -(10**12)),
    *(1.5, 0.0, -0.5, 1e308, 1e-308, float("nan"), float("inf"), True, "7", None, [], [7], {}),
]


def break_settings(part: Path, rng: random.Random) -> Broken:
    """Change a setting of a model, or add one."""
    files = sorted(part.rglob("*config*.json")) + sorted(part.glob("modules.json"))
    path = rng.choice(files)
    content = json.loads(path.read_text())
    is_name = rng.random() < 0.4
    value: Any = rng.choice(_NAMES if is_name else _NUMBERS)
    keys = [keys for keys in find_values(content) if len(keys) < 4]
    if isinstance(content, dict) and (rng.random() < 0.5 or not keys):
        *above, last = (rng.choice(_KEYS),)
        if rng.random() < 0.2:
            value = {"AutoModel": value, "AutoConfig": value}
    else:
        *above, last = rng.choice(keys)
    inner = content
    for key in above:
        inner = inner[key]
    inner[last] = value
    path.unlink()
    path.write_text(json.dumps(content))
    write_evil_module(path.parent)
    write_evil_module(part.parent.parent)
    file = path.relative_to(part.parent).as_posix()
    return Broken(file, f"{last} is {json.dumps(value)[:60]}", False)


def run_model(case: str, campaign: Campaign) -> Outcome:
    """Give a model a hostile setting: it is refused or changes nothing, and no code of it runs."""
    rng = campaign.generator(case)
    name = rng.choice(list(_LOADING))
    scenario = SCENARIOS[name]
    reference = scenario_reference(name, campaign.folder, campaign.warm)
    work = campaign.work
    part = _LOADING[name]
    lay_out(work, campaign.folder / "world", [part])
    broken = break_settings(work / "in" / part, rng)
    arguments = scenario.line.split()
    environment = {"BEIR_COCODR_CACHE": str(work.parent / "cache")}
    ended = campaign.warm.run(arguments, work, LIMIT, environment)
    results = read_results(work, scenario.outputs, ended.stdout)
    attempt = Attempt(broken, by_option=False, arguments=arguments)
    judged = judge(ended, attempt, reference, results)
    if ended.status is not None:
        judged = find_lost_work(work, ()) or judged
    return attempt.outcome(case, name, judged, ended)
