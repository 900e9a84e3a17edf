"""Options that all trainings share, and how settings find the class that they belong to.

An option that one loss, weighting, objective or teacher has alone is a field of that row's own
options class; :meth:`TrainingOptions.of` takes all of them by name. Nothing here imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, fields, is_dataclass, replace
from importlib.util import find_spec
from typing import Any, ClassVar, Self, TypeVar

from beir_cocodr.errors import MOST_PROCESSES, SEED_MAX, InputError
from beir_cocodr.io import Keywords
from beir_cocodr.models.option_fields import type_hints
from beir_cocodr.models.spec import EncoderOptions, Options, option
from beir_cocodr.records import Json
from beir_cocodr.training.rows import Row, Tables, own_fields, rows_with_option

log = logging.getLogger(__name__)
T = TypeVar("T", bound=Options)

#: Services that can log a training, each with the package that it needs.
REPORTS = {"wandb": "wandb", "tensorboard": "tensorboard", "trackio": "trackio"}

#: The precisions of a training; "auto" leaves the choice to the device.
PRECISIONS = ("auto", "float32", "bfloat16", "float16")

#: Former name of an option to its present one; the command line and presets take both.
FORMER_NAMES = {"idro_mode": "mode", "mining_depth": "depth", "mining_keep": "keep"}


@dataclass(frozen=True)
class Workload:
    """The amount of data that a training reads.

    Attributes:
        steps: optimiser steps.
        texts: texts of one example.
        searches: how often the corpus is searched on the way.
        lists: lists of documents that a teacher scores, at most.
        pairs: pairs of query and document in these lists.
        merged_on: held-out queries by which weights are merged at the end, at most.
    """

    steps: int
    texts: int
    searches: int
    lists: int = 0
    pairs: int = 0
    merged_on: int = 0


def report_services(names: str) -> list[str]:
    """Return the services that the option ``report_to`` names.

    Args:
        names: names separated by commas; "none" for no service.

    Raises:
        InputError: A service is unknown, or its package is not installed.
    """
    services = [name.strip() for name in names.split(",") if name.strip()]
    if services in ([], ["none"]):
        return []
    for name in services:
        if name not in REPORTS:
            known = ", ".join(REPORTS)
            raise InputError(
                f"report_to {names!r}: the service {name!r} is unknown; give none, or any of "
                f"{known} separated by commas"
            )
    for name in services:
        package = REPORTS[name]
        if find_spec(package) is None:
            raise InputError(
                f"report_to {name} needs a package that is not installed: pip install {package}"
            )
    return services


def planned_steps(
    max_steps: int,
    epochs: float,
    examples: int,
    batch_size: int,
) -> int:
    """Return the optimiser steps of a training.

    Args:
        max_steps: the steps, or -1 for those of ``epochs``.
        epochs: passes over the data.
        examples: examples of a pass.
        batch_size: examples of a step.
    """
    if max_steps > 0:
        return max_steps
    steps = round(epochs * examples / batch_size)
    return max(1, steps)


@dataclass(frozen=True)
class Budget(Options):
    """Options of the length, learning rate and precision of a training.

    Args:
        max_steps: optimiser steps; -1 trains for ``epochs``.
        epochs: passes over the data.
        batch_size: examples of a step.
        learning_rate: peak of a linear schedule.
        warmup: share of the steps in which the rate rises, or from 1 on their number.
        precision: the precision in which the model computes, by PyTorch's autocast; its weights,
            and losses over a batch, stay in float32. "auto" means bfloat16 on GPUs that have it,
            float16 on other GPUs, and float32 on a CPU. There, bfloat16 is faster only if the CPU
            has instructions for it (AMX, AVX512-BF16).
    """

    max_steps: int = option(
        -1, "Stop after this many optimiser steps. Default: train for whole epochs.", min=-1
    )
    epochs: float = option(1, "Train for this many passes over the data.", above=0)
    batch_size: int = option(32, "Train on this many examples per step.", min=1)
    learning_rate: float = option(2e-5, "Set the peak learning rate.", above=0)
    warmup: float = option(0.1, min=0)
    precision: str = option(
        "auto",
        "Compute in float32, bfloat16 or float16. Default: bfloat16 or float16 on a GPU, float32 "
        "on a CPU.",
        choices=PRECISIONS,
    )

    def __post_init__(self) -> None:
        """Check the options, also against each other."""
        super().__post_init__()
        if self.max_steps == 0:
            raise InputError(
                f"max_steps must be positive, or -1 for whole epochs, not {self.max_steps}"
            )
        if self.warmup >= 1 and self.warmup != int(self.warmup):
            raise InputError(
                f"warmup is {self.warmup}; give a share of the steps below 1, or a whole number of "
                "steps"
            )

    def steps_for(self, examples: int) -> int:
        """Return the optimiser steps over so many examples."""
        return planned_steps(self.max_steps, self.epochs, examples, self.batch_size)


@dataclass(frozen=True)
class TrainingOptions(Budget):
    """Options that all trainings share.

    Args:
        mini_batch_size: texts in memory at a time; larger batches use gradient caching.
        optimizer: "adamw", or "lamb", see :class:`~beir_cocodr.training.lamb.LAMB`.
        weight_decay: the optimiser's weight decay.
        max_grad_norm: norm that gradients are clipped to.
        seed: seed of data order, sampling and dropout.
        dropout: share of the states, and of the weights of attention, that are dropped in training.
            None means the encoder's own rates. With 0, a step is faster on a CPU, whose fused
            attention has no dropout.
        save_steps: steps between checkpoints. None means a tenth of the run, at most 500.
        report_to: services that log the training, separated by commas: wandb, tensorboard, trackio.
        loader_workers: processes that prepare the batches of each training process. None means
            none on a CPU, and on a GPU the free cores, at most 8. They change no result.
        encoder: how the encoder is loaded: lengths, prompts, separator and device.
    """

    #: Kind to its table. The field of the kind's name chooses a row, and the field
    #: ``KIND_options`` holds the row's own options.
    TABLES: ClassVar[Tables] = {}
    #: Kind to its table, where something else than a field chooses the row.
    FREE_TABLES: ClassVar[Tables] = {}
    #: Fields that a record holds elsewhere.
    UNRECORDED: ClassVar[tuple[str, ...]] = ()

    mini_batch_size: int = option(
        32,
        "Keep this many texts in memory at a time; the gradients of larger batches are cached.",
        min=1,
    )
    optimizer: str = option("adamw", choices=("adamw", "lamb"))
    weight_decay: float = option(0.01, min=0)
    max_grad_norm: float = option(1.0, min=0)
    seed: int = option(
        42, "Seed the data order, sampling and dropout with this number.", min=0, max=SEED_MAX
    )
    dropout: float | None = option(None, min=0, max=1)
    save_steps: int | None = option(None, min=1)
    loader_workers: int | None = option(
        None,
        "Prepare batches in this many processes. Default: up to 8 on a GPU, none on a CPU.",
        min=0,
        max=MOST_PROCESSES,
    )
    report_to: str = option(
        "none",
        "Also log the training to wandb, tensorboard or trackio; separate several by commas.",
    )
    encoder: EncoderOptions = EncoderOptions()

    def __post_init__(self) -> None:
        """Check the options, and fill in the chosen rows' own ones."""
        super().__post_init__()
        report_services(self.report_to)
        for kind, table in self.TABLES.items():
            self._fill_in_row(kind, table)

    def _fill_in_row(self, kind: str, table: Mapping[str, Row]) -> None:
        name = getattr(self, kind)
        field_name = f"{kind}_options"
        present = getattr(self, field_name)
        expected = table[name].options
        if present is None:
            if expected is not None:
                object.__setattr__(self, field_name, expected())
            return
        if type(present) is not expected:
            takes = "no options of its own" if expected is None else expected.__name__
            raise InputError(
                f"{field_name} is {type(present).__name__}, and the {kind} {name} takes {takes}"
            )

    @classmethod
    def of(cls, **settings: object) -> Self:
        """Return options from settings by name, each put where it belongs.

        A setting is a field of this class, or of the own options of a row that is chosen.

        Example:
            >>> from beir_cocodr import FinetuneOptions
            >>> FinetuneOptions.of(weighting="idro", rho=0.1).weighting_options.rho
            0.1
        """
        return options_of(cls, settings)

    def recorded(self) -> Json:
        """Return the options that results depend on, and that no other part of a record holds.

        A precision that the device chose is a field of the record itself, and rates of dropout that
        are the encoder's own are part of its configuration.
        """
        settings = asdict(self)
        for name in (*self.UNRECORDED, "loader_workers", "report_to", "encoder"):
            del settings[name]
        if self.precision == "auto":
            del settings["precision"]
        if self.dropout is None:
            del settings["dropout"]
        return settings

    def row(self, kind: str) -> Any:
        """Return the chosen row of a kind, such as "weighting"."""
        name = getattr(self, kind)
        return self.TABLES[kind][name]

    def rows(self) -> list[Row]:
        """Return the chosen rows of all kinds."""
        return [self.row(kind) for kind in self.TABLES]

    def workload(self, examples: int) -> Workload:
        """Return what a training over so many examples reads."""
        return Workload(self.steps_for(examples), texts=2, searches=0)

    def longest_text(self) -> int | None:
        """Return the most tokens of a text in training; None if the encoder's length counts."""
        return None

    def cached_mini_batch(self) -> int | None:
        """Return the texts that gradient caching embeds at a time; None if a batch fits."""
        from beir_cocodr.distributed import world_size

        batch_of_process = self.batch_size // world_size()
        if batch_of_process <= self.mini_batch_size:
            return None
        return self.mini_batch_size

    def with_overrides(self, **overrides: object) -> Self:
        """Return a copy with those overrides that are not None, each put where it belongs.

        A row that is chosen anew has the defaults of its own options.
        """
        changed = {name: value for name, value in overrides.items() if value is not None}
        left = _present_names(changed)
        direct = _taken(left, type(self))
        for name, part in _nested_options(type(self)).items():
            mine = _taken(left, part)
            if mine:
                direct[name] = replace(getattr(self, name), **mine)
        for kind in self.TABLES:
            present = getattr(self, kind)
            if direct.get(kind, present) != present:
                direct.setdefault(f"{kind}_options", None)
        return _with_row_options(replace(self, **direct), left, frozenset())


def options_of(
    kind: type[T], settings: Mapping[str, Any], optional: frozenset[str] = frozenset()
) -> T:
    """Return options of a class from settings by name, each put where it belongs.

    Args:
        kind: the class; its nested options and those of the chosen rows count.
        settings: name to value.
        optional: settings that are left out if they belong to a row that is not chosen.

    Raises:
        InputError: A setting is unknown, has a wrong value, or belongs to a row that is not
            chosen; the message names those that have it.
    """
    left = _present_names(settings)
    direct = _taken(left, kind)
    for name, part in _nested_options(kind).items():
        mine = _taken(left, part)
        if mine and name not in direct:
            default: Any = kind.__dataclass_fields__[name].default
            direct[name] = replace(default, **mine)
    return _with_row_options(kind(**direct), left, optional)


def _present_names(settings: Mapping[str, object]) -> Keywords:
    return {FORMER_NAMES.get(name, name): value for name, value in settings.items()}


def _with_row_options(options: T, left: Keywords, optional: frozenset[str]) -> T:
    """Return options with the settings that belong to the own options of rows."""
    changes: Keywords = {}
    if isinstance(options, TrainingOptions):
        for name in options.TABLES:
            own_options = getattr(options, f"{name}_options")
            mine = {}
            if own_options is not None:
                mine = _taken(left, type(own_options))
            if mine:
                changes[f"{name}_options"] = replace(own_options, **mine)
        for name, table in options.FREE_TABLES.items():
            for row in table.values():
                mine = {}
                if row.options is not None:
                    mine = _taken(left, row.options)
                if row.options is not None and mine:
                    changes[f"{name}_options"] = row.options(**mine)
    _check_all_placed(options, left, optional)
    return replace(options, **changes)


def _taken(settings: Keywords, kind: type[Options]) -> Keywords:
    """Remove from settings those that are fields of a class, and return them."""
    names = [name for name in settings if name in kind.__dataclass_fields__]
    return {name: settings.pop(name) for name in names}


def _nested_options(kind: type[Options]) -> dict[str, type[Options]]:
    """Return the fields of a class that hold options of one class, with that class."""
    hints = type_hints(kind)
    names = [option_field.name for option_field in fields(kind)]
    return {name: hints[name] for name in names if is_dataclass(hints[name])}


def _check_all_placed(
    options: Options, left: Mapping[str, object], optional: frozenset[str]
) -> None:
    known = {option_field.name for _, option_field in setting_fields(type(options))}
    former = {new: old for old, new in FORMER_NAMES.items()}
    for name in left:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise InputError(f"there is no setting {name!r}; choose one of {listed}")
        if {name, former.get(name)} & optional:
            continue
        if not _ignored(options, name):
            raise InputError(_misplaced(options, name))


def _ignored(options: Options, name: str) -> bool:
    """Return true, after a warning, if a chosen row accepts a setting without using it."""
    assert isinstance(options, TrainingOptions)
    for kind in options.TABLES:
        ignores = options.row(kind).ignores
        if ignores is not None and name in ignores.__dataclass_fields__:
            log.warning("the %s %s does not use %s", kind, getattr(options, kind), name)
            return True
    return False


def _misplaced(options: Options, name: str) -> str:
    """Return the message about a setting of a row that is not chosen."""
    assert isinstance(options, TrainingOptions)
    for kind, table in options.TABLES.items():
        having = rows_with_option(table, name)
        if having:
            chosen = getattr(options, kind)
            return (
                f"the {kind} {chosen} has no option {name}, which belongs to {', '.join(having)}; "
                f"choose --{kind} {having[0]}, or leave {name} out"
            )
    raise AssertionError(name)


def setting_fields(kind: type[Options]) -> Iterator[tuple[type[Options], Field[Any]]]:
    """Yield every setting of an options class, with the class that has it.

    Settings are the fields of the class, of options in it, and of all rows' own options.
    """
    nested = _nested_options(kind)
    tables: Tables = {}
    if issubclass(kind, TrainingOptions):
        tables = {**kind.TABLES, **kind.FREE_TABLES}
    holders = {f"{name}_options" for name in tables}
    for option_field in fields(kind):
        if option_field.name in nested:
            yield from setting_fields(nested[option_field.name])
        elif option_field.name not in holders:
            yield kind, option_field
    yield from own_fields(tables)
