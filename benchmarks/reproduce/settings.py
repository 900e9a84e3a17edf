"""What COCO-DR's paper says, what its released code does, and what the presets here do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reproduce.commands import options_of

#: The options of a training, to what is printed of them.
Printed = Callable[[Any], str]


@dataclass(frozen=True)
class Setting:
    """A setting of a training.

    Attributes:
        name: Its name.
        command: The command whose options have it: pretrain or finetune.
        paper: What the paper says; "" if nothing.
        released: What the released commands and code do.
        ours: What the preset does: a text, or what is printed of its options.
    """

    name: str
    command: str
    paper: str
    released: str
    ours: str | Printed


def _number(value: float) -> str:
    """Format a number as in the papers."""
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:,g}"


SETTINGS = (
    Setting("epochs", "pretrain", "8", "8", lambda options: _number(options.epochs)),
    Setting(
        "peak rate, base (large)",
        "pretrain",
        "1e-4 (1e-5)",
        "1e-4 (1e-5)",
        lambda options: f"{_number(options.learning_rate)} (large: its own preset)",
    ),
    Setting(
        "weight decay", "pretrain", "0.01", "0.01", lambda options: _number(options.weight_decay)
    ),
    Setting(
        "documents a GPU", "pretrain", "200", "200", lambda options: _number(options.batch_size)
    ),
    Setting("optimiser", "pretrain", "AdamW", "LAMB", "AdamW"),
    Setting(
        "tokens of a span",
        "pretrain",
        "128 a sequence",
        "30, and a longer sentence is kept whole (75 tokens were seen)",
        lambda options: f"{options.span_tokens}, and a longer sentence is divided",
    ),
    Setting(
        "documents that are used",
        "pretrain",
        "",
        "at least two sentences and two spans",
        lambda options: f"more than {options.span_tokens} tokens",
    ),
    Setting(
        "clusters",
        "finetune",
        "50",
        "50",
        lambda options: _number(options.weighting_options.clusters),
    ),
    Setting(
        "iDRO: α, ρ, exponent of old weights, least weight",
        "finetune",
        "β = 0.25",
        "0.25, 0.05, 0.1, 0.01",
        lambda options: ", ".join(
            _number(getattr(options.weighting_options, name))
            for name in ("alpha", "rho", "ema", "eps")
        ),
    ),
    Setting(
        "iDRO over several processes",
        "finetune",
        "",
        "each process has weights of its own, moved by its own batch",
        "one set of weights, moved by the whole batch",
    ),
    Setting(
        "warm-up on BM25's negatives",
        "finetune",
        "",
        "loss without weights, rate 2e-4 (its script: 1e-4), LAMB, 256 triplets a GPU, 1,000 steps "
        "of warm-up, `triples.train.small`",
        "the first of the equal episodes, with weights",
    ),
    Setting(
        "steps of an episode",
        "finetune",
        "",
        "45,000",
        lambda options: _number(options.max_steps),
    ),
    Setting("triplets a GPU", "finetune", "64", "64", lambda options: _number(options.batch_size)),
    Setting(
        "peak rate of an episode",
        "finetune",
        "5e-6",
        "5e-6, times max(0.2, 1 − step / total) at its beginning",
        lambda options: f"{_number(options.learning_rate)} in each",
    ),
    Setting(
        "negatives",
        "finetune",
        "",
        "30 drawn from the best 200",
        lambda options: f"{options.mining.keep} drawn from the best {options.mining.depth}",
    ),
    Setting(
        "order of triplets",
        "finetune",
        "",
        "six consecutive ones of a query",
        "shuffled over all queries",
    ),
    Setting("lengths of queries and documents", "finetune", "64, 128", "256", "64, 128"),
    Setting(
        "positives of a query",
        "finetune",
        "",
        "one is kept, so that others can become negatives",
        "all",
    ),
)


def settings_rows() -> list[list[str]]:
    """Return the rows of the table; ours are read from the preset cocodr-base on one GPU."""
    options = {}
    for command in ("pretrain", "finetune"):
        options[command] = options_of([command, "--preset", "cocodr-base"], 1)
    rows = []
    for setting in SETTINGS:
        ours = setting.ours
        if not isinstance(ours, str):
            ours = ours(options[setting.command])
        part = "COCO" if setting.command == "pretrain" else "fine-tuning"
        rows.append([part, setting.name, setting.paper, setting.released, ours])
    return rows
