"""The kinds of query generators, in a table, and what a generator is.

A new kind is a class with the methods of :class:`Generator` and a row of :data:`GENERATORS`, from a
user's own script too. The table is importable without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from beir_cocodr import load_object
from beir_cocodr.errors import InputError
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from beir_cocodr.data.documents import Documents
    from beir_cocodr.data.passages import Passage
    from beir_cocodr.data.text import TokenCounter
    from beir_cocodr.generation.settings import GenerationOptions


class Query(NamedTuple):
    """A query as it was generated, perhaps empty, and true if a limit ended it."""

    text: str
    cut: bool = False


class Generated(NamedTuple):
    """What was generated for some passages.

    Attributes:
        queries: The queries of each passage.
        counts: Counts of what happened, by kind.
        first_refused: The first text that was written and is no query, "" if there is none.
    """

    queries: list[list[Query]]
    counts: dict[str, int]
    first_refused: str = ""


class Generator(Protocol):
    """A generator of queries for passages.

    Attributes:
        counter: Counts the tokens of passages, unless the options name another tokenizer.
    """

    counter: TokenCounter

    def describe(self) -> Json:
        """Return what the queries depend on beside passages and options.

        Such as the generator's name and kind, a hash of its weights, and its precision.
        """

    def prepare(self, folder: Path) -> None:
        """Compute what generating needs.

        Args:
            folder: Where to write what other processes can use.
        """

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """Return the queries of a shard's passages, the same in every call."""


class WritingGenerator(Generator, Protocol):
    """A generator whose queries a language model writes."""

    def prompts_of(self, passage: Passage) -> list[str]:
        """Return what the model reads for a passage, each prompt as often as it is read."""


@dataclass(frozen=True)
class GeneratorKind:
    """A kind of query generator.

    Args:
        build: ``module:object`` of a function from name, documents, options and device to a
            :class:`Generator`.
        help: What it does, for the command line.
        is_model: True if the name of the generator is that of a language model, which runs on a
            device.
        writes: True if a language model writes the queries, which costs time or money: it is a
            :class:`WritingGenerator`, whose costs are stated before, and its queries are kept by
            the content of their passages where ``query_kinds`` are asked for (those of a server
            always). So they should depend on the passage's text, and not on its row or on the
            passages beside it.
        options: Names of options that no other kind reads; another kind refuses them.
        citations: Keys of ``models/papers.bib``, or BibTeX entries.
    """

    build: str
    help: str
    is_model: bool = False
    writes: bool = False
    options: tuple[str, ...] = ()
    citations: tuple[str, ...] = ()


#: The generator that needs no model.
LEXICAL_GENERATOR = "lexical"

#: The row of all generators that are named by the hub name or the folder of a model.
LANGUAGE_MODEL = "language model"

#: The row of all generators that are named by a server and its model, as URL#MODEL.
ENDPOINT = "endpoint"

#: May come before the hub name or the folder of a language model.
LOCAL_PREFIX = "hf:"

#: The kinds of generators by the name that selects them.
GENERATORS: dict[str, GeneratorKind] = {
    LEXICAL_GENERATOR: GeneratorKind(
        build="beir_cocodr.generation.lexical:build",
        help="Titles, salient sentences and terms by tf-idf, without a model, in any language.",
    ),
    LANGUAGE_MODEL: GeneratorKind(
        build="beir_cocodr.generation.language_model:build",
        help="Samples of a seq2seq or causal language model, by its hub name, folder or GGUF file, "
        "with or without hf: before it.",
        is_model=True,
        writes=True,
        options=("prefix", "prompt", "few_shot"),
        citations=("ma2021qgen", "wu2023qc"),
    ),
    ENDPOINT: GeneratorKind(
        build="beir_cocodr.generation.endpoint_generator:build",
        help="Answers of a server with OpenAI's protocol, such as vLLM, Ollama or llama.cpp, by "
        "URL#MODEL.",
        writes=True,
        options=("prompt", "few_shot"),
        citations=("dai2022promptagator",),
    ),
}


def generator_kind(name: str) -> GeneratorKind:
    """Return the kind of the generator of some name."""
    if name.startswith(("http://", "https://")):
        return GENERATORS[ENDPOINT]
    return GENERATORS.get(name, GENERATORS[LANGUAGE_MODEL])


def build_generator(
    name: str,
    documents: Documents,
    options: GenerationOptions,
    device: str | None,
) -> Generator:
    """Build the generator of some name.

    Args:
        name: A name in :data:`GENERATORS`, or the hub name or folder of a language model.
        documents: The corpus.
        options: How queries are generated.
        device: Device of a model. Default: a GPU if there is one.

    Raises:
        InputError: The generator cannot be loaded, or does not read an option that is set.
    """
    kind = generator_kind(name)
    for other in GENERATORS.values():
        for option in other.options:
            if option not in kind.options and getattr(options, option) is not None:
                raise InputError(f"the generator {name} does not read {option}; leave it out")
    generator: Generator = load_object(kind.build)(name, documents, options, device)
    return generator
