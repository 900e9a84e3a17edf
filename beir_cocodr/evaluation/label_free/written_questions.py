"""Questions about documents that a language model writes, to judge models by."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

import numpy as np

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.languages import DEFAULT
from beir_cocodr.data.passages import Passage, PassageReader
from beir_cocodr.data.text import TextFormat, word_counter, words
from beir_cocodr.evaluation.label_free.pseudo_queries import (
    LOOKS,
    Drawing,
    IsKnown,
    PseudoQueries,
)
from beir_cocodr.generation.generators import (
    Generator,
    WritingGenerator,
    build_generator,
    generator_kind,
)
from beir_cocodr.generation.query_selection import clean_queries
from beir_cocodr.generation.question_text import clean_question, is_question
from beir_cocodr.generation.settings import GenerationOptions
from beir_cocodr.generation.text_cache import TextCache
from beir_cocodr.records import Json

log = logging.getLogger(__name__)

# Words of a passage that is shown, and the fewest.
_PASSAGE_WORDS = 144
_FEWEST_WORDS = 12

# Tokens of a question, and questions that are written before they are kept.
_MOST_TOKENS = 40
_BATCH = 16

# A question depends on its passage, and not on what is written before it.
_ANY_SHARD = 0

# Tokens of a word, and of the prompt without its passage, for a statement of costs.
_TOKENS_A_WORD = 1.4
_PROMPT_TOKENS = 330


@dataclass(frozen=True)
class QuestionOptions:
    """Options of questions that a language model writes.

    Attributes:
        generator: ``hf:MODEL``, a hub name or a folder, or ``URL#MODEL``.
        count: The most questions; with 0 the model writes none, and only reads.
        device: Device of a local model. Default: a GPU if there is one.
    """

    generator: str
    count: int = 100
    device: str | None = None


def write_questions(
    documents: Documents,
    options: QuestionOptions,
    seed: int,
    is_known: IsKnown,
    *,
    bf16: bool = False,
) -> PseudoQueries:
    """Let a language model write a question about each of some random documents.

    Questions that were written about the same passages before are taken from the cache. The log
    says how many are to be written, and about how many tokens that takes, before the first one.

    Args:
        documents: The corpus.
        options: The model, and how many questions.
        seed: Seed of the drawing and of the model.
        is_known: Returns true for a question that a model was trained on.
        bf16: Run a local model in bfloat16 on a CPU, too.

    Returns:
        The questions. Those that are empty, repeated, or speak of "the passage" are left out and
        counted.

    Raises:
        InputError: The model cannot be loaded, or the server does not answer.

    References:
        Dai et al., Promptagator, 2022 (few examples, and a filter by what is found); Saad-Falcon
        et al., ARES, 2024 (questions that a model wrote, to compare systems).
    """
    generation = GenerationOptions(
        per_passage=1,
        passage_tokens=_PASSAGE_WORDS,
        few_shot=True,
        max_length=_MOST_TOKENS,
        bf16=bf16,
        seed=seed,
    )
    generator = build_generator(options.generator, documents, generation, options.device)
    identity: Json = {"generator": generator.describe(), "options": generation.generation()}
    cache = TextCache("questions", identity)
    passages = _draw_passages(documents, options.count, seed)
    _describe_costs(passages, _kept_by(generator, options.generator, cache), options.generator)
    drawing = Drawing()
    repeated: set[str] = set()
    texts = []
    for passage, written in _questions(passages, generator, cache):
        drawing.looked_at += 1
        question = clean_question(written)
        if is_known(question):
            drawing.known += 1
        elif is_question(question) and question.lower() not in repeated:
            repeated.add(question.lower())
            drawing.add(passage.row, question)
            texts.append(passage.row)
    found_in = [TextFormat().document(document) for document in documents.take(texts)]
    return drawing.queries(found_in, "documents_without_question")


def _draw_passages(
    documents: Documents,
    count: int,
    seed: int,
) -> list[Passage]:
    """Draw one passage of each of some random documents that have enough words."""
    rng = np.random.default_rng((seed, 3))
    reader = PassageReader(
        documents,
        TextFormat(),
        word_counter().count,
        _PASSAGE_WORDS,
        documents.facts.language or DEFAULT,
    )
    drawn: list[Passage] = []
    order = rng.permutation(len(documents))[: LOOKS * count]
    for start in range(0, len(order), count):
        passages, _ = reader.read(order[start : start + count].tolist())
        for _, group in itertools.groupby(passages, lambda passage: passage.row):
            long_enough = [one for one in group if len(words(one.text)) >= _FEWEST_WORDS]
            if long_enough and len(drawn) < count:
                drawn.append(long_enough[int(rng.integers(len(long_enough)))])
        if len(drawn) == count:
            break
    return drawn


def _kept_by(generator: Generator, name: str, cache: TextCache) -> Callable[[Passage], bool]:
    """Return a function that says if the question about a passage was written before.

    The cache has the questions of batches that were complete, and the generator of a server each of
    its answers.
    """
    writer = cast(WritingGenerator, generator) if generator_kind(name).writes else None

    def is_kept(passage: Passage) -> bool:
        if cache.get(passage.text) is not None:
            return True
        return writer is not None and not writer.prompts_of(passage)

    return is_kept


def _describe_costs(
    passages: Sequence[Passage],
    is_kept: Callable[[Passage], bool],
    name: str,
) -> None:
    """Say how many questions are to be written, and about how many tokens that takes."""
    missing = [passage for passage in passages if not is_kept(passage)]
    read = sum(_PROMPT_TOKENS + _TOKENS_A_WORD * len(words(passage.text)) for passage in missing)
    log.info(
        "%s writes %d questions (about %s tokens to read, at most %s to write); %d are in the "
        "cache",
        name,
        len(missing),
        f"{round(read, -2):,.0f}",
        f"{_MOST_TOKENS * len(missing):,}",
        len(passages) - len(missing),
    )


def _questions(
    passages: Sequence[Passage],
    generator: Generator,
    cache: TextCache,
) -> Iterator[tuple[Passage, str]]:
    """Yield the passages with their questions, which are written some at a time and kept.

    One without text is not kept: a server may answer the next time.
    """
    waiting = iter(passages)
    while batch := list(islice(waiting, _BATCH)):
        missing = [passage for passage in batch if cache.get(passage.text) is None]
        if missing:
            generated = generator.generate(missing, _ANY_SHARD)
            cleaned, _ = clean_queries(generated.queries, _MOST_TOKENS)
            for passage, texts in zip(missing, cleaned, strict=True):
                if texts[0]:
                    cache.put(passage.text, texts[0])
        for passage in batch:
            yield passage, cache.get(passage.text) or ""
