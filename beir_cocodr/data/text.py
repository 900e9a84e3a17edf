"""Texts of queries and documents as encoders read them: joined, in words, in tokens, masked.

Words are recognised in any language, without a dictionary. Texts are counted in tokens of a
tokenizer, or in words where there is none. Masking for masked language modelling takes whole words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import regex

from beir_cocodr.errors import InputError, explained, kind_of
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TextFormat:
    """One text format for training, mining, encoding and evaluation.

    Attributes:
        title_separator: separates title and text (default: one space, as in BEIR).
        query_prompt: text before every query.
        document_prompt: text before every document.
        query_length: tokens that a query is cut to, with special tokens and prompt; None: the
            encoder's own maximum.
        document_length: the same for documents.
        chunk_pooling: how a longer document becomes one vector, see
            :mod:`~beir_cocodr.models.chunk_pooling`; "first" cuts it.

    Example:
        >>> from beir_cocodr.data.text import TextFormat
        >>> document = {"title": "sort", "text": "Return a sorted copy."}
        >>> TextFormat(title_separator=": ").document(document)
        'sort: Return a sorted copy.'

    References:
        COCO-DR, section 5 (title and text joined, 64 and 128 tokens).
    """

    title_separator: str = " "
    query_prompt: str = ""
    document_prompt: str = ""
    query_length: int | None = None
    document_length: int | None = None
    chunk_pooling: str = "first"

    def document(self, document: Mapping[str, str | None]) -> str:
        """Join title and text of a document, without the prompt.

        A part that is absent leaves no separator.

        Raises:
            InputError: The title or the text is not a string.
        """
        try:
            title = (document.get("title") or "").strip()
            text = (document.get("text") or "").strip()
        except AttributeError:
            raise InputError(_describe_wrong_part(document)) from None
        if title and text:
            return f"{title}{self.title_separator}{text}"
        return title or text

    def as_dict(self) -> Json:
        """Return the fields by name, without those that stores from before do not have."""
        content = asdict(self)
        if self.chunk_pooling == "first":
            del content["chunk_pooling"]
        return content


def _describe_wrong_part(document: Mapping[str, object]) -> str:
    """Say which part of a document is not a string."""
    for name in ("title", "text"):
        value = document.get(name)
        if value and not isinstance(value, str):
            return f"the {name} of a document of the corpus is {kind_of(value)}; give a text"
    return "the title or the text of a document of the corpus is not a string; give a text"


# Characters of a text that are tokenised for each token that is read, and at least of any text.
_CHARACTERS_A_TOKEN = 64
_FEWEST_CHARACTERS = 10_000

# Where the characters hold fewer words for each token than this, tokens may be lost.
_WORDS_A_TOKEN = 4


#: Characters of a document that spans are drawn from: tokenising all of a document of 50 MB takes
#: minutes each time.
MOST_CHARACTERS = 1_000_000


def cut_text(text: str, tokens: int = 8_192) -> tuple[str, bool]:
    """Cut a text before it is tokenised, where only so many tokens are read.

    Tokenising a text of 50 MB takes minutes. A text of up to 64 characters a token, and any of up
    to 10,000, stays as it is.

    Args:
        text: the text.
        tokens: the tokens that are read; no encoder reads more than the default.

    Returns:
        The beginning of the text, and whether tokens may be lost, as it has few words: a long run
        of spaces, for example.
    """
    most = max(_FEWEST_CHARACTERS, _CHARACTERS_A_TOKEN * tokens)
    if len(text) <= most:
        return text, False
    beginning = text[:most]
    return beginning, count_units(beginning) < _WORDS_A_TOKEN * tokens


# Scripts that put no space between words.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_RUN = regex.compile(
    rf"[{_UNSPACED}]+|[\p{{L}}\p{{M}}\p{{N}}_--[{_UNSPACED}]]+",
    regex.VERSION1,
)
_IS_UNSPACED = regex.compile(rf"[{_UNSPACED}]")
_UNSPACED_RUN = regex.compile(rf"[{_UNSPACED}]+")
_UNIT = regex.compile(
    rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}_--[{_UNSPACED}]]+|[^\s]",
    regex.VERSION1,
)

# What reasoning models write before they answer.
_THOUGHT = regex.compile(r"<think>.*?(?:</think>|\Z)", regex.DOTALL)
_END_OF_THOUGHT = "</think>"


def word_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Stream the ranges of the :func:`words` of a text: first character, and one after the last."""
    for run in _RUN.finditer(text):
        start, end = run.span()
        if _IS_UNSPACED.match(run.group()):
            yield from pair_ranges(start, end)
        else:
            yield start, end


def words(text: str) -> list[str]:
    """Return the words of a text, lowercased, in order, as often as they occur.

    A word is a run of letters, marks and digits. In scripts that put no space between words
    (Chinese, Japanese except katakana, Thai, Lao, Khmer, Burmese) it is every pair of neighbouring
    characters, as in Lucene's CJK analysis.
    """
    split: list[str] = []
    for run in _RUN.findall(text.lower()):
        if len(run) > 2 and _IS_UNSPACED.match(run):
            for first in range(len(run) - 1):
                split.append(run[first : first + 2])
        else:
            split.append(run)
    return split


def query_key(text: str) -> str:
    """Return what two spellings of a query have in common: its words in lower case."""
    return " ".join(_RUN.findall(text.casefold())) or text.strip()


def without_thoughts(text: str) -> str:
    """Return what a language model wrote, without the thoughts before its answer.

    A thought stands between ``<think>`` and ``</think>``. Nothing follows one that was cut off.
    Some models begin within a thought, and write its end alone.

    Example:
        >>> from beir_cocodr.data.text import without_thoughts
        >>> without_thoughts("<think>A search engine?</think>how to sort an array")
        'how to sort an array'
    """
    rest: str = _THOUGHT.sub("", text)
    return rest.rpartition(_END_OF_THOUGHT)[2]


def unspaced_runs(text: str) -> Iterator[tuple[int, int]]:
    """Stream the ranges of the runs of characters of scripts that put no space between words."""
    if not text.isascii():
        for run in _UNSPACED_RUN.finditer(text):
            yield run.span()


def pair_ranges(start: int, end: int) -> Iterator[tuple[int, int]]:
    """Stream the ranges of the pairs of neighbouring characters in a run; a short run is one."""
    if end - start <= 2:
        yield start, end
        return
    for first in range(start, end - 1):
        yield first, first + 2


def count_units(text: str) -> int:
    """Count words, characters of scripts without spaces, and punctuation marks of a text.

    The number is about that of the tokens of a subword tokenizer, and seldom larger, as long words
    count once.
    """
    return len(_UNIT.findall(text))


def load_tokenizer(name: str, **settings: str) -> Any:
    """Load a tokenizer that reads special tokens in texts as text, see :func:`read_literally`.

    Args:
        name: a hub name or a folder.
        **settings: arguments of the host, such as the name of a GGUF file.

    Raises:
        InputError: there is no such tokenizer, or it has no vocabulary.
    """
    from transformers import AutoTokenizer  # takes seconds, which counting words must not cost

    problem = f"the tokenizer of {name!r} cannot be loaded"
    # The host raises exceptions of any type.
    with explained(problem, "name another, or save it again", Exception):
        tokenizer = AutoTokenizer.from_pretrained(name, **settings)
    check_vocabulary(tokenizer, name)
    read_literally(tokenizer)
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a tokenizer knows more than special tokens.

    Without its files the host makes a tokenizer that knows no others.

    Raises:
        InputError: it does not.
    """
    if not hasattr(tokenizer, "all_special_ids"):
        return
    if len(tokenizer) - len(tokenizer.all_special_ids) < 2:
        raise InputError(
            f"{name!r} has no vocabulary for its tokenizer; "
            "save the tokenizer's files beside the model"
        )


def readable(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Iterable[str | None] = (),
    tokens: int = 8_192,
) -> Callable[[str], str]:
    """Return the function that every text passes before a host tokenises it.

    It is :func:`cut_text`, then :func:`read_literally`.
    """
    literally = read_literally(tokenizer, prompts)

    def prepare(text: str) -> str:
        beginning, _ = cut_text(text, tokens)
        return literally(beginning)

    return prepare


def read_literally(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Iterable[str | None] = (),
) -> Callable[[str], str]:
    """Make a tokenizer read special tokens that a text spells out, such as "[SEP]", as text.

    The tokenizer's own ``split_special_tokens`` does so for most, and is saved with it. Two kinds
    need more: tokenizers whose vocabulary has special tokens among its words (Unigram, as of T5 and
    XLM-R), and models whose prompts spell special tokens that are meant. For both, a space divides
    special tokens in texts: "< /s>".

    Args:
        tokenizer: the tokenizer, changed in place.
        prompts: the texts that are put before queries and documents.

    Returns:
        The function that every text passes before the prompt is put before it; most texts pass
        unchanged.
    """
    if not hasattr(tokenizer, "split_special_tokens"):
        if hasattr(tokenizer, "encode_special_tokens"):  # of the library below transformers
            tokenizer.encode_special_tokens = True
        return _unchanged
    special = []
    for token in tokenizer.added_tokens_decoder.values():
        if token.special and len(str(token)) > 1:
            special.append(str(token))
    written_prompts = [prompt for prompt in prompts if prompt]
    are_meant = any(token in prompt for prompt in written_prompts for token in special)
    tokenizer.split_special_tokens = not are_meant
    tokenizer.init_kwargs["split_special_tokens"] = not are_meant
    if not are_meant and special:
        special = _special_words(tokenizer, special)
    if not special:
        return _unchanged
    escaped = [regex.escape(token) for token in special]
    pattern = regex.compile("|".join(escaped))
    return partial(_divide, pattern)


def _special_words(tokenizer: PreTrainedTokenizerBase, special: list[str]) -> list[str]:
    """Return the special tokens that a tokenizer still reads as such inside a text."""
    texts = [f"a {token} a" for token in special]
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    special_ids = tokenizer.convert_tokens_to_ids(special)
    words = []
    for token, id, ids in zip(special, special_ids, encoded, strict=True):
        if id in ids and token != tokenizer.unk_token:
            words.append(token)
    return words


def _divide(special: regex.Pattern[str], text: str) -> str:
    def divide(match: regex.Match[str]) -> str:
        token = match[0]
        return f"{token[0]} {token[1:]}"

    divided: str = special.sub(divide, text)
    return divided


def _unchanged(text: str) -> str:
    return text


#: A function that gives the lengths of texts in tokens, with those that the tokenizer adds.
Count = Callable[[Sequence[str]], list[int]]

#: The name of the tokenizer that needs no model: words, as :func:`count_units` counts them.
WORDS = "words"


@dataclass(frozen=True)
class TokenCounter:
    """A way to count the tokens of texts.

    Attributes:
        count: the function.
        sha256: a hash of all that it depends on.
    """

    count: Count
    sha256: str


def word_counter() -> TokenCounter:
    """Return a counter of words, which needs no model."""
    return TokenCounter(
        lambda texts: [count_units(text) for text in texts],
        WORDS,
    )


def token_counter(tokenizer: PreTrainedTokenizerBase) -> TokenCounter:
    """Return a counter of the tokens of a ``transformers`` tokenizer, with special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        vocabulary = sorted(tokenizer.get_vocab().items())
        content = repr(vocabulary)
    else:
        content = backend.to_str()

    def count(texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        encoded = tokenizer(
            list(texts),
            verbose=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return [len(ids) for ids in encoded["input_ids"]]

    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass"))
    return TokenCounter(count, digest.hexdigest())


#: Positions with this label carry no loss (torch's own convention for cross entropy).
IGNORED = -100


class WholeWordMasker:
    """A masker of whole words in sequences of token ids, reproducible for a given generator.

    Of n ordinary tokens max(1, round(probability * n)) are chosen, word by word in random order. A
    word that would exceed this number is left out; where none fits, the shortest is taken. Of the
    chosen tokens 80% become the mask token, 10% a random ordinary token, and 10% stay.

    References:
        COCO-DR, section 4.1; Condenser.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        probability: float = 0.15,
    ) -> None:
        """Make a masker.

        Args:
            tokenizer: a fast tokenizer with a mask token.
            probability: share of masked tokens.

        Raises:
            InputError: the tokenizer has no mask token.
        """
        if tokenizer.mask_token_id is None:
            raise InputError(
                f"{type(tokenizer).__name__} has no mask token, so no language model can be "
                "trained; choose a model that has one"
            )
        self.probability = probability
        self.mask_id = int(tokenizer.mask_token_id)
        size = len(tokenizer)
        self.special = np.zeros(size, bool)
        self.special[list(tokenizer.all_special_ids)] = True
        self.continues = _continuations(tokenizer.convert_ids_to_tokens(range(size)))
        self.ordinary = np.flatnonzero(~self.special)

    def __call__(
        self,
        ids: np.ndarray,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mask a sequence.

        Args:
            ids: (L,) token ids.
            rng: draws the words.

        Returns:
            (L,) masked ids, and (L,) labels, -100 where a token is not masked.
        """
        positions = np.flatnonzero(~self.special[ids])
        labels = np.full(len(ids), IGNORED, dtype=ids.dtype)
        if not len(positions):
            return ids.copy(), labels
        chosen = self._choose(ids, positions, rng)
        labels[chosen] = ids[chosen]
        masked = ids.copy()
        fate = rng.random(len(chosen))
        is_masked = fate < 0.8
        is_replaced = ~is_masked & (fate < 0.9)
        masked[chosen[is_masked]] = self.mask_id
        replaced = chosen[is_replaced]
        masked[replaced] = rng.choice(self.ordinary, size=len(replaced))
        return masked, labels

    def _choose(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Choose words, and return the positions of their tokens."""
        budget = max(1, round(self.probability * len(positions)))
        # A word starts at a token that continues nothing, or after a special token. The first token
        # always starts a word.
        begins = ~self.continues[ids[positions]]
        begins[0] = True
        distances = np.diff(positions)
        begins[1:] |= distances > 1
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(positions))
        sizes = (ends - starts).tolist()
        words: list[int] = []
        taken = 0
        for word in rng.permutation(len(starts)).tolist():
            if taken + sizes[word] <= budget:
                words.append(word)
                taken += sizes[word]
            if taken == budget:
                break
        if not words:
            words = [sizes.index(min(sizes))]
        parts = []
        for word in words:
            start = starts[word]
            parts.append(positions[start : start + sizes[word]])
        return np.concatenate(parts)


def _continuations(tokens: list[str]) -> np.ndarray:
    """Return which items of a vocabulary continue a word, (V,) bool, by its own convention."""
    # Byte-level BPE and SentencePiece mark the beginning of a word.
    for mark in ("Ġ", "▁"):
        starts = np.array([token.startswith(mark) for token in tokens])
        if starts.sum() > len(tokens) // 10:
            return ~starts
    # WordPiece marks its continuation.
    return np.array([token.startswith("##") for token in tokens])
