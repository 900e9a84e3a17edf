"""The content of ``generation.json``: what queries were generated from, how, and how many."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from beir_cocodr.errors import InputError
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.records import Json, Record

#: The record in a folder of generated queries; a folder that has it is complete.
GENERATION_FILE = "generation.json"


@dataclass(frozen=True)
class GeneratedFrom:
    """The corpus that queries were generated from."""

    corpus_sha256: str
    name: str = ""
    documents: int | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationPlan(Record):
    """The settings that make two generations the same.

    Attributes:
        dataset: The corpus.
        settings: Options that decide which queries are generated.
        generator: What :meth:`~beir_cocodr.generation.generators.Generator.describe` returned.
        tokenizer_sha256: Hash of what counts the tokens of passages.
        selection: Options that decide which of the queries are kept. Unfinished work can be resumed
            with others.
    """

    dataset: GeneratedFrom
    settings: Json
    generator: Json = field(default_factory=dict)
    tokenizer_sha256: str | None = None
    selection: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the settings like options, and the name and kind of the generator."""
        for name in ("name", "kind"):
            if not isinstance(self.generator.get(name, ""), str):
                raise ValueError(f"generator.{name} is {self.generator[name]!r}, which is not text")
        recorded: dict[str, Any] = self.settings | self.selection
        known = {known.name for known in fields(GenerationOptions)} & recorded.keys()
        try:
            GenerationOptions(**{name: recorded[name] for name in known})
        except InputError as error:
            raise ValueError(str(error)) from error

    def identity(self, *, with_selection: bool) -> Json:
        """Return what makes two generations the same; unfinished ones may differ in selection.

        Names and paths are left out, as they may change while their content stays: hashes are
        there for them.
        """
        generator = dict(self.generator)
        generator.pop("name", None)
        settings = dict(self.settings)
        settings.pop("tokenizer", None)
        return {
            "dataset": {
                "corpus_sha256": self.dataset.corpus_sha256,
                "documents": self.dataset.documents,
            },
            "generator": generator,
            "tokenizer_sha256": self.tokenizer_sha256,
            "settings": settings,
            "selection": self.selection if with_selection else None,
        }


@dataclass(frozen=True)
class GenerationRecord(GenerationPlan):
    """The content of generation.json: a plan, and what came of it.

    Attributes:
        counts: Passages, queries, and what was left out, by kind. A kind of query that was asked
            for counts the kept ones; names such as ``generated_titles``
            count what was generated.
        seconds: ``generating`` and ``selecting``.
        versions: Versions of the packages that the queries may depend on.
        citations: BibTeX keys or entries of the generator.
    """

    counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    citations: list[str] = field(default_factory=list)


def read_generation(folder: Path) -> GenerationRecord:
    """Read the record of a folder that ``generate-queries`` finished.

    Raises:
        InputError: The folder has no record, or the record is damaged.
    """
    path = folder / GENERATION_FILE
    if not path.is_file():
        raise InputError(
            f"{folder} has no {GENERATION_FILE}; make the folder with beir-cocodr generate-queries"
        )
    return GenerationRecord.read(path)
