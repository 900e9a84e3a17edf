"""What the papers say, what their released code does, and what the presets here do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        command: The command whose options have it: pretrain, finetune or distill.
        paper: What the paper says; "" if nothing.
        released: What the released commands and code do.
        ours: What the presets do: a text, or what is printed of their options.
    """

    name: str
    command: str
    paper: str
    released: str
    ours: str | Printed


def _number(value: float) -> str:
    """Format a number as in the papers."""
    if value and abs(value) < 1e-3:
        digits, power = f"{value:.2e}".split("e-")
        return f"{float(digits):g}e-{int(power)}"
    return f"{value:,g}"


_OPTIMIZERS = {"adamw": "AdamW", "lamb": "LAMB"}


def _optimizer(options: Any) -> str:
    return _OPTIMIZERS[options.optimizer]


def _span_tokens(options: Any) -> str:
    long = "a longer sentence is divided"
    if options.whole_sentences:
        long = "a longer sentence is kept whole"
    return f"{options.span_tokens}, and {long}"


def _used_documents(options: Any) -> str:
    sentences = ""
    if options.whole_sentences:
        sentences = "at least two sentences, and "
    return f"{sentences}more than {options.span_tokens} tokens"


def _idro_numbers(options: Any) -> str:
    numbers = options.weighting_options
    return ", ".join(_number(getattr(numbers, name)) for name in ("alpha", "rho", "ema", "eps"))


def _idro_scope(options: Any) -> str:
    if options.weighting_options.scope == "rank":
        return "each process has weights of its own, moved by its own batch"
    return "one set of weights, moved by the whole batch"


def _kmeans(options: Any) -> str:
    kmeans = options.weighting_options
    return (
        f"{kmeans.kmeans_restarts} runs of {kmeans.kmeans_iterations} iterations, "
        f"{kmeans.kmeans_points} queries a centroid"
    )


def _warm_up(options: Any) -> str:
    own_options = options.episode_options
    budget = own_options.warm_up_budget()
    if not budget:
        return "as the episodes, with weights"
    weights = "without" if own_options.bm25_plain else "with"
    return (
        f"loss {weights} weights, {_number(budget['learning_rate'])}, {_optimizer(options)}, "
        f"{_number(budget['batch_size'])} triplets a GPU, {_number(budget['max_steps'])} steps, "
        f"{_number(budget['warmup'])} of them warm-up, this collection's BM25"
    )


def _peaks(options: Any) -> str:
    own_options = options.episode_options
    shares = []
    for episode in range(options.mining.episodes):
        shares.append(own_options.peak_share(episode * options.max_steps))
    return ", ".join(_number(share * options.learning_rate) for share in shares)


def _order(options: Any) -> str:
    if options.consecutive == 1:
        return "shuffled over all queries"
    return f"{options.consecutive} consecutive ones of a query and positive"


def _lengths(options: Any) -> str:
    return f"{options.encoder.query_length}, {options.encoder.document_length}"


def _cotmae_decoder(options: Any) -> str:
    own_options = options.objective_options
    if own_options.decoder == "masked":
        return "masked"
    return f"autoregressive, of the last {own_options.decoder_window} tokens"


COCO_DR = (
    Setting("epochs", "pretrain", "8", "8", lambda options: _number(options.epochs)),
    Setting(
        "peak rate",
        "pretrain",
        "1e-4 (large: 1e-5)",
        "1e-4 (large: 1e-5)",
        lambda options: _number(options.learning_rate),
    ),
    Setting(
        "weight decay", "pretrain", "0.01", "0.01", lambda options: _number(options.weight_decay)
    ),
    Setting(
        "documents a GPU",
        "pretrain",
        "200",
        "200 (large: 100)",
        lambda options: _number(options.batch_size),
    ),
    Setting("optimiser", "pretrain", "AdamW", "AdamW", _optimizer),
    Setting(
        "tokens of a span",
        "pretrain",
        "128 a sequence",
        "30, and a longer sentence is kept whole (75 tokens were seen)",
        _span_tokens,
    ),
    Setting(
        "documents that are used",
        "pretrain",
        "",
        "at least two sentences and, as drawn once, two spans",
        _used_documents,
    ),
    Setting("optimiser", "finetune", "AdamW", "LAMB, without weight decay", _optimizer),
    Setting(
        "clusters",
        "finetune",
        "50",
        "50",
        lambda options: _number(options.weighting_options.clusters),
    ),
    Setting("k-means", "finetune", "", "5 runs of 500 iterations, 256 queries a centroid", _kmeans),
    Setting(
        "weights of iDRO",
        "finetune",
        "Eq. 8: raw gradients; τ is not printed",
        "normalised gradients; absent clusters fall to the least weight",
        lambda options: f"the mode {options.weighting_options.mode}: as released",
    ),
    Setting(
        "iDRO: α, ρ, exponent of old weights, least weight",
        "finetune",
        "β = 0.25",
        "0.25, 0.05, 0.1, 0.01",
        _idro_numbers,
    ),
    Setting(
        "iDRO over several processes",
        "finetune",
        "",
        "each process has weights of its own, moved by its own batch",
        _idro_scope,
    ),
    Setting(
        "warm-up on BM25's negatives",
        "finetune",
        "",
        "loss without weights, 2e-4 (large: 5e-5; its script: 1e-4), LAMB, 256 triplets a GPU, "
        "three passes over `triples.train.small`, 1,000 steps of warm-up",
        _warm_up,
    ),
    Setting(
        "steps of an episode",
        "finetune",
        "",
        "45,000 (large: 30,000) of a schedule that ends at 60,000",
        lambda options: f"{_number(options.max_steps)}, where the schedule ends",
    ),
    Setting(
        "triplets a GPU",
        "finetune",
        "64",
        "64 (large: 32)",
        lambda options: _number(options.batch_size),
    ),
    Setting(
        "peak rates of the episodes",
        "finetune",
        "5e-6",
        "5e-6, times max(0.2, 1 − steps before / 300,000)",
        _peaks,
    ),
    Setting(
        "negatives",
        "finetune",
        "",
        "30 drawn from the best 200",
        lambda options: f"{options.mining.keep} drawn from the best {options.mining.depth}",
    ),
    Setting("order of triplets", "finetune", "", "six consecutive ones of a query", _order),
    Setting(
        "tokens of queries and documents", "finetune", "64, 128 (of BEIR)", "64, 256", _lengths
    ),
    Setting(
        "positives of a query",
        "finetune",
        "",
        "one is kept, so that others can become negatives",
        "all",
    ),
)

QUERY_AS_CONTEXT = (
    Setting(
        "weight of language-model losses",
        "pretrain",
        "",
        "2, by its gradient caching",
        lambda options: _number(options.language_model_weight),
    ),
    Setting("optimiser", "pretrain", "AdamW", "AdamW", _optimizer),
    Setting("batch", "pretrain", "2,048", "2,048", lambda options: _number(options.batch_size)),
    Setting("steps", "pretrain", "120,000", "120,000", lambda options: _number(options.max_steps)),
    Setting(
        "passages of MS MARCO",
        "finetune",
        "",
        "with the titles of RocketQA's version",
        "without titles, as ir_datasets has them",
    ),
    Setting(
        "negatives of retriever 1",
        "finetune",
        "BM25's",
        "128 of the official 1,000 best of BM25",
        lambda options: f"this collection's {options.negative_depth} best of BM25",
    ),
    Setting(
        "negatives of retriever 2",
        "finetune",
        "BM25's and mined ones",
        "mined ones alone",
        lambda options: {"both": "BM25's and mined ones", "mined": "mined ones alone"}[
            options.mining.stage2_negatives
        ],
    ),
    Setting(
        "passages of a query",
        "finetune",
        "16",
        "16",
        lambda options: _number(1 + options.negatives),
    ),
    Setting("tokens of queries and passages", "finetune", "32, 144", "32, 144", _lengths),
)

COTMAE = (
    Setting("optimiser", "pretrain", "AdamW", "", _optimizer),
    Setting("peak rate", "pretrain", "4e-4", "", lambda options: _number(options.learning_rate)),
    Setting(
        "share of the steps in which the rate rises",
        "pretrain",
        "0.1",
        "",
        lambda options: _number(options.warmup),
    ),
    Setting("batch", "pretrain", "16k", "", lambda options: _number(options.batch_size)),
    Setting("steps", "pretrain", "50,000", "", lambda options: _number(options.max_steps)),
    Setting(
        "masked tokens of a passage",
        "pretrain",
        "30%",
        "",
        lambda options: f"{options.language_model.mask_probability:.0%}",
    ),
    Setting(
        "decoder",
        "pretrain",
        "",
        "autoregressive, of the last 3 tokens",
        _cotmae_decoder,
    ),
)


#: β of a new head, where the options leave it open.
HEAD_BETA = 1.0

MRL = (
    Setting(
        "optimiser",
        "distill",
        "Adam",
        "",
        lambda options: f"{_optimizer(options)}, weight decay {_number(options.weight_decay)}",
    ),
    Setting(
        "peak rate",
        "distill",
        "one of 1e-6, 2e-6, ..., 1e-5",
        "",
        lambda options: _number(options.learning_rate),
    ),
    Setting(
        "steps in which the rate rises",
        "distill",
        "4,000",
        "",
        lambda options: _number(options.warmup),
    ),
    Setting("queries of a step", "distill", "512", "", lambda options: _number(options.batch_size)),
    Setting(
        "β",
        "distill",
        "one of 0.5, 1, 2.5, 5, 7.5, 10",
        "",
        lambda options: _number(options.student_options.beta or HEAD_BETA),
    ),
    Setting(
        "positives of a query",
        "distill",
        "all",
        "",
        lambda options: f"at most {options.positives}, drawn at random",
    ),
    Setting(
        "documents of BM25 and of the student in a list",
        "distill",
        "",
        "",
        lambda options: f"{options.m_bm25} and {options.m_hard}",
    ),
    Setting(
        "best documents that these are drawn from",
        "distill",
        "100",
        "",
        lambda options: _number(options.candidates),
    ),
    Setting(
        "steps between two searches of the student",
        "distill",
        "5,000",
        "",
        lambda options: _number(options.refresh_steps),
    ),
    Setting(
        "choice of the checkpoint",
        "distill",
        "MRR on MS MARCO's validation set, early stopping",
        "",
        lambda options: (
            f"MRR@10 of {options.held_out:.0%} of the queries, at most {options.most_held_out}; "
            f"stops after {options.patience} searches without a gain"
        ),
    ),
)


@dataclass(frozen=True)
class SettingsTable:
    """A table of settings in a page.

    Attributes:
        page: The paper whose page has it.
        settings: Its rows.
        presets: The presets of its last columns.
        trainings: A command to what the table calls its training.
        unlike: Presets; a row in which they do the same as those of the table is left out.
        weighting: Further words of a fine-tuning's command.
    """

    page: str
    settings: tuple[Setting, ...]
    presets: tuple[str, ...]
    trainings: Mapping[str, str]
    unlike: tuple[str, ...] = ()
    weighting: tuple[str, ...] = ()

    def printed(self, setting: Setting, preset: str) -> str:
        """Return what a preset does on one GPU."""
        if isinstance(setting.ours, str):
            return setting.ours
        words = [setting.command, "--preset", preset]
        if setting.command == "finetune":
            words += self.weighting
        return setting.ours(options_of(words, 1))

    def is_shown(self, setting: Setting) -> bool:
        """Say whether a row is of the table."""
        if not self.unlike:
            return True
        ours, others = (
            [self.printed(setting, preset) for preset in presets]
            for presets in (self.presets, self.unlike)
        )
        return ours != others

    @property
    def has_released(self) -> bool:
        """Return true if anything is said of released code."""
        return any(setting.released for setting in self.settings)


_IDRO = ("--weighting", "idro")
_COCO_TRAININGS = {"pretrain": "COCO", "finetune": "fine-tuning"}
_QUERY_TRAININGS = {"pretrain": "pre-training", "finetune": "fine-tuning"}
_BASE = ("cocodr-base", "cocodr-base-released")
_LARGE = ("cocodr-large", "cocodr-large-released")

#: The tables of settings by name.
TABLES = {
    "coco-dr": SettingsTable("coco-dr", COCO_DR, _BASE, _COCO_TRAININGS, weighting=_IDRO),
    "coco-dr-large": SettingsTable(
        "coco-dr",
        COCO_DR,
        _LARGE,
        _COCO_TRAININGS,
        unlike=_BASE,
        weighting=_IDRO,
    ),
    "query-as-context": SettingsTable(
        "query-as-context", QUERY_AS_CONTEXT, ("qc",), _QUERY_TRAININGS
    ),
    "cotmae": SettingsTable("query-as-context", COTMAE, ("cotmae",), _QUERY_TRAININGS),
    "mrl": SettingsTable("mrl", MRL, ("mrl",), {"distill": "distillation"}),
}


def settings_header(name: str) -> list[str]:
    """Return the header of a table."""
    table = TABLES[name]
    released = ["released code"] if table.has_released else []
    names = [f"`--preset {preset}`" for preset in table.presets]
    return ["training", "setting", "paper", *released, *names]


def settings_rows(name: str) -> list[list[str]]:
    """Return the rows of a table; ours are read from the presets on one GPU."""
    table = TABLES[name]
    rows = []
    for setting in table.settings:
        if not table.is_shown(setting):
            continue
        row = [table.trainings[setting.command], setting.name, setting.paper]
        if table.has_released:
            row.append(setting.released)
        row += [table.printed(setting, preset) for preset in table.presets]
        rows.append(row)
    return rows
