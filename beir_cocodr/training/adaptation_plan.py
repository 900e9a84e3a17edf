"""The plan of an adaptation: its trainings in their order, and what each of them needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from beir_cocodr.data.collection import Collection
from beir_cocodr.evaluation.chains import Chain
from beir_cocodr.generation.generation_record import (
    GENERATION_FILE,
    GenerationRecord,
    read_generation,
)
from beir_cocodr.provenance import read_record
from beir_cocodr.training.adaptation_cost import PlannedTraining, WantedQueries
from beir_cocodr.training.distillation.merging import CROPS
from beir_cocodr.training.options import DistillOptions
from beir_cocodr.training.presets import (
    ADAPT_STAGES,
    BEST_RANKING,
    GPL_TEACHER,
    AdaptStage,
    StageOptions,
)

if TYPE_CHECKING:
    from beir_cocodr.training.adapt import AdaptOptions

#: The folder of generated queries in an output.
QUERIES_FOLDER = "queries"


@dataclass(frozen=True)
class AdaptationPlan:
    """The plan of an adaptation: its trainings and their data.

    Attributes:
        target: the corpus that is adapted to.
        source: the labelled collection.
        settings: stage to its options, in the right order.
        options: the options of the adaptation.
        output: the output folder.
        queries_folder: the folder of generated queries, once it is there.
    """

    target: Collection
    source: Collection | None
    settings: Mapping[str, StageOptions]
    options: AdaptOptions
    output: Path
    queries_folder: Path | None = None

    @property
    def stages(self) -> list[str]:
        """Return the names of the stages in their right order."""
        return list(self.settings)

    @property
    def needs_queries(self) -> bool:
        """Return true if a stage needs generated queries."""
        return any(ADAPT_STAGES[stage].needs_queries for stage in self.settings)

    def chains(self) -> list[list[str]]:
        """Return the stages of every trained model.

        These are each stage alone, the source first, then all of them one after the other; with
        ``fuse`` also the base and each of these, fused.
        """
        trained = [stage for stage in self.settings if ADAPT_STAGES[stage].trains]
        joining = [stage for stage in self.settings if not ADAPT_STAGES[stage].trains]
        alone = sorted(trained, key=lambda stage: not ADAPT_STAGES[stage].needs_source)
        chains = [[stage] for stage in alone]
        for length in range(2, len(trained) + 1):
            chains.append(trained[:length])
        joined = []
        for stage in joining:
            joined.append([stage])
            joined += [[*chain, stage] for chain in chains]
        return chains + joined

    def chain(self, stages: Sequence[str]) -> Chain:
        """Return the chain of some stages."""
        return Chain(tuple(ADAPT_STAGES[stage].title for stage in stages))

    def folder(self, stages: Sequence[str]) -> Path:
        """Return the folder of the model that some stages train."""
        name = "+".join(ADAPT_STAGES[stage].folder for stage in stages)
        return self.output / "models" / name

    def trainings(self) -> list[PlannedTraining]:
        """Return all trainings, for the guess of their cost."""
        trainings = []
        for stages in self.chains():
            row = ADAPT_STAGES[stages[-1]]
            finished = read_record(self.folder(stages)) is not None
            label = self.chain(stages).label
            options = self.settings[stages[-1]]
            if row.needs_kinds and isinstance(options, DistillOptions):
                options = replace(options, merge_on=options.merge_on or CROPS)  # it always merges
            training = PlannedTraining(
                label=label,
                options=options,
                examples=self._examples(row),
                finished=finished,
                teacher=self._teacher(row),
            )
            trainings.append(training)
        return trainings

    def wanted_queries(self) -> WantedQueries | None:
        """Return the queries that are still to be generated, None if there are none."""
        if not self.needs_queries or self._generated() is not None:
            return None
        options = self.options
        return WantedQueries(
            count=self._passages() * options.generation.per_passage,
            generator=options.generator,
            retriever=options.generation.filter_retriever,
        )

    def _examples(self, row: AdaptStage) -> int:
        """Return the examples of a stage, as far as they are known."""
        if row.needs_source:
            assert self.source is not None
            return sum(map(len, self.source.qrels.values()))
        if not row.needs_queries:
            return len(self.target.documents)
        generated = self._generated()
        if generated is not None:
            return int(generated.counts["queries"])
        return self._passages() * self.options.generation.per_passage

    def _teacher(self, row: AdaptStage) -> str | None:
        """Return the teacher of a stage, None if it has none."""
        if row.options is not DistillOptions:
            return None
        return self.options.teacher or (BEST_RANKING if row.needs_kinds else GPL_TEACHER)

    def _generated(self) -> GenerationRecord | None:
        """Return the record of generated queries, None while they are not complete."""
        folder = Path(self.options.generated or self.output / QUERIES_FOLDER)
        if not (folder / GENERATION_FILE).is_file():
            return None
        return read_generation(folder)

    def _passages(self) -> int:
        """Return the passages that queries are generated for, as if each document were one."""
        documents = len(self.target.documents)
        return min(documents, self.options.generation.max_passages or documents)

    def unused_seed(self) -> int:
        """Return a seed that neither the stages nor the generation of queries used."""
        seeds = [int(options.seed) for options in self.settings.values()]
        if self.queries_folder is not None:
            settings = read_generation(self.queries_folder).settings
            seeds.append(int(str(settings.get("seed", 0))))
        return 1 + max(seeds)
