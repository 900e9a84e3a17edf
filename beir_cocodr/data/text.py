"""From a query or a document to what an encoder reads: joining title and text, words, tokens and
masks.

Words are found in any language, without a dictionary. Texts are counted in tokens of a tokenizer,
or in words where there is none. Masking for masked language modelling takes whole words.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import regex

from beir_cocodr.errors import InputError, explained
from beir_cocodr.records import Json


@dataclass(frozen=True)
class TextFormat:
    """One text format for training, mining, encoding and evaluation.

    Args:
        title_separator: stands between title and text (default one space, as in BEIR).
        query_prompt: put before every query.
        document_prompt: put before every document.
        query_length: tokens a query is cut to, special tokens and prompt included; None: the
            encoder's own maximum.
        document_length: the same for documents.

    Source: COCO-DR, section 5 (title and text joined, 64 and 128 tokens).

    Example:
        >>> from beir_cocodr.data.text import TextFormat
        >>> TextFormat(title_separator=": ").document({"title": "sort", "text": "Return a sorted copy."})
        'sort: Return a sorted copy.'
    """

    title_separator: str = " "
    query_prompt: str = ""
    document_prompt: str = ""
    query_length: int | None = None
    document_length: int | None = None

    def document(self, document: Mapping[str, str | None]) -> str:
        """Title and text of one document as one string, without the prompt; an absent part leaves
        no separator.
        """
        title = (document.get("title") or "").strip()
        text = (document.get("text") or "").strip()
        return f"{title}{self.title_separator}{text}" if title and text else title or text

    def as_dict(self) -> Json:
        return asdict(self)


# Characters of a text that are tokenised for each token that is read of it, and of any text at
# least; and how many words, at the least, they hold for each token where nothing is lost.
_CHARACTERS, _FEWEST, _SURE = 64, 10_000, 4


#: Characters of a document that spans are drawn from; tokenising all of one of 50 MB takes minutes
#: each time.
MOST_CHARACTERS = 1_000_000


def cut_text(text: str, tokens: int = 8_192) -> tuple[str, bool]:
    """The beginning of a text of which only so many tokens are read, and whether tokens may be
    lost: the part that is left has few words, such as a run of spaces. Tokenising a text of 50 MB
    takes minutes.

    A text of up to 64 characters a token, and any of up to 10,000, stays as it is. No encoder reads
    more tokens.
    """
    most = max(_FEWEST, _CHARACTERS * tokens)
    if len(text) <= most:
        return text, False
    return text[:most], count_units(text[:most]) < _SURE * tokens


# Scripts that put no space between words.
_UNSPACED = r"\p{Han}\p{Hiragana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_RUN = regex.compile(rf"[{_UNSPACED}]+|[\p{{L}}\p{{M}}\p{{N}}_--[{_UNSPACED}]]+", regex.VERSION1)
_IS_UNSPACED = regex.compile(rf"[{_UNSPACED}]")
_UNIT = regex.compile(
    rf"[{_UNSPACED}]|[\p{{L}}\p{{M}}\p{{N}}_--[{_UNSPACED}]]+|[^\s]", regex.VERSION1
)


def word_ranges(text: str) -> Iterator[tuple[int, int]]:
    """Where the words of a text stand, as :func:`words` finds them: first character, and the one
    after the last.
    """
    for run in _RUN.finditer(text):
        start, end = run.span()
        if end - start > 2 and _IS_UNSPACED.match(run.group()):
            yield from ((i, i + 2) for i in range(start, end - 1))
        else:
            yield start, end


def words(text: str) -> list[str]:
    """The words of a text, lowercased, in order, as often as they stand there.

    A word is a run of letters, marks and digits. In scripts that put no space between words
    (Chinese, Japanese but for katakana, Thai, Lao, Khmer, Burmese) it is every pair of neighbouring
    characters, as in Lucene's CJK analysis.
    """
    found: list[str] = []
    for run in _RUN.findall(text.lower()):
        if len(run) > 2 and _IS_UNSPACED.match(run):
            found += [run[i : i + 2] for i in range(len(run) - 1)]
        else:
            found.append(run)
    return found


def count_units(text: str) -> int:
    """How many words, characters of scripts without spaces, and punctuation marks a text has.

    About what a subword tokenizer makes of it, without one: from below, as long words count once.
    """
    return len(_UNIT.findall(text))


def load_tokenizer(name: str) -> Any:
    """A tokenizer by hub name or folder that reads as :func:`read_literally`; InputError: none, or
    no vocabulary.
    """
    from transformers import AutoTokenizer  # takes seconds, and counting words must not cost them

    way_out = "name another, or save it again"  # the host raises of everything, and tokenizers plain exceptions
    with explained(f"the tokenizer of {name!r} cannot be loaded", way_out, Exception):
        tokenizer = AutoTokenizer.from_pretrained(name)
    check_vocabulary(tokenizer, name)
    read_literally(tokenizer)
    return tokenizer


def check_vocabulary(tokenizer: Any, name: str) -> None:
    """Check that a tokenizer knows more than special tokens; without its files the host makes one
    of no others.
    """
    if (
        hasattr(tokenizer, "all_special_ids")
        and len(tokenizer) - len(tokenizer.all_special_ids) < 2
    ):
        raise InputError(
            f"{name!r} has no vocabulary for its tokenizer; save the tokenizer's files beside the model"
        )


def readable(
    tokenizer: Any, prompts: Iterable[str | None] = (), tokens: int = 8_192
) -> Callable[[str], str]:
    """What every text has to pass before a host tokenises it: :func:`cut_text`, then
    :func:`read_literally`.
    """
    literally = read_literally(tokenizer, prompts)
    return lambda text: literally(cut_text(text, tokens)[0])


def read_literally(tokenizer: Any, prompts: Iterable[str | None] = ()) -> Callable[[str], str]:
    """Make a tokenizer read special tokens that a text spells out, such as "[SEP]", as text.

    The tokenizer's own ``split_special_tokens`` does so for most, and is saved with it. Two kinds
    need more: tokenizers whose vocabulary has special tokens among its words (Unigram, as of T5 and
    XLM-R), and models whose ``prompts``, put before texts, spell special tokens that are meant. For
    both a space parts them in texts: "< /s>". Gives what every text has to pass before the prompt
    is put before it; most pass unchanged.
    """
    if not hasattr(tokenizer, "split_special_tokens"):
        if hasattr(tokenizer, "encode_special_tokens"):  # a tokenizer of the library below
            tokenizer.encode_special_tokens = True
        return _part_nothing
    special = [
        str(token)
        for token in tokenizer.added_tokens_decoder.values()
        if token.special and len(str(token)) > 1
    ]
    meant = any(token in prompt for prompt in prompts if prompt for token in special)
    tokenizer.split_special_tokens = tokenizer.init_kwargs["split_special_tokens"] = not meant
    if not meant and special:
        found = tokenizer(
            [f"a {token} a" for token in special], add_special_tokens=False, verbose=False
        )["input_ids"]
        own = zip(special, tokenizer.convert_tokens_to_ids(special), found, strict=True)
        special = [token for token, id, ids in own if id in ids and token != tokenizer.unk_token]
    return (
        partial(_part, regex.compile("|".join(map(regex.escape, special))))
        if special
        else _part_nothing
    )


def _part(special: regex.Pattern[str], text: str) -> str:
    parted: str = special.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return parted


def _part_nothing(text: str) -> str:
    return text


#: The lengths of texts in tokens, what the tokenizer adds to every text included.
Count = Callable[[Sequence[str]], list[int]]

#: The name of the tokenizer that needs no model: words, as :func:`count_units` counts them.
WORDS = "words"


@dataclass(frozen=True)
class TokenCounter:
    """A way to count, and a hash over whatever it depends on."""

    count: Count
    sha256: str


def word_counter() -> TokenCounter:
    """Counts words, without a model."""
    return TokenCounter(lambda texts: [count_units(text) for text in texts], WORDS)


def token_counter(tokenizer: Any) -> TokenCounter:
    """Counts the tokens of a ``transformers`` tokenizer, special tokens included."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = repr(sorted(tokenizer.get_vocab().items())) if backend is None else backend.to_str()

    def count(texts: Sequence[str]) -> list[int]:
        if not texts:
            return []
        encoded = tokenizer(
            list(texts), verbose=False, return_attention_mask=False, return_token_type_ids=False
        )
        return [len(ids) for ids in encoded["input_ids"]]

    return TokenCounter(count, hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest())


#: Positions with this label carry no loss (torch's own convention for cross entropy).
IGNORED = -100


class WholeWordMasker:
    """Masks whole words of token id sequences, reproducibly for a given generator.

    Of n ordinary tokens max(1, round(probability * n)) are chosen, word by word in random order,
    leaving out a word that would pass the budget (the shortest word is taken where none fits). Of
    the chosen tokens 80% become the mask token, 10% a random ordinary token, 10% stay.

    Args:
        tokenizer: a fast tokenizer with a mask token.
        probability: share of masked tokens (default 0.15).

    Source: COCO-DR, section 4.1; Condenser.
    """

    def __init__(self, tokenizer: Any, probability: float = 0.15) -> None:
        if tokenizer.mask_token_id is None:
            raise InputError(
                f"{type(tokenizer).__name__} has no mask token, so no language model can be trained"
            )
        self.probability = probability
        self.mask_id = int(tokenizer.mask_token_id)
        size = len(tokenizer)
        self.special = np.zeros(size, bool)
        self.special[list(tokenizer.all_special_ids)] = True
        self.continues = _continuations(tokenizer.convert_ids_to_tokens(range(size)))
        self.ordinary = np.flatnonzero(~self.special)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Mask one sequence: (L,) token ids to (L,) masked ids and (L,) labels, -100 where not
        masked.
        """
        positions = np.flatnonzero(~self.special[ids])
        labels = np.full(len(ids), IGNORED, dtype=ids.dtype)
        if not len(positions):
            return ids.copy(), labels
        budget = max(1, round(self.probability * len(positions)))
        # A word starts at a token that continues nothing, or where the run of ordinary tokens is
        # broken.
        starts = ~self.continues[ids[positions]] | (np.diff(positions, prepend=-2) > 1)
        begins = np.flatnonzero(starts)  # the first token always starts a word
        lengths = np.diff(begins, append=len(positions))
        at, sizes = begins.tolist(), lengths.tolist()
        chosen: list[int] = []
        taken = 0
        for index in rng.permutation(len(at)).tolist():
            if taken + sizes[index] <= budget:
                chosen.append(index)
                taken += sizes[index]
            if taken == budget:
                break
        words = chosen or [int(lengths.argmin())]
        picked = np.concatenate([positions[at[word] : at[word] + sizes[word]] for word in words])
        labels[picked] = ids[picked]
        masked = ids.copy()
        fate = rng.random(len(picked))
        masked[picked[fate < 0.8]] = self.mask_id
        random = picked[(fate >= 0.8) & (fate < 0.9)]
        masked[random] = rng.choice(self.ordinary, size=len(random))
        return masked, labels


def _continuations(tokens: list[str]) -> np.ndarray:
    """(V,) bool: which vocabulary items continue a word, by the convention that the vocabulary
    follows.
    """
    for mark in ("Ġ", "▁"):  # byte-level BPE and SentencePiece mark the beginning of a word
        if sum(token.startswith(mark) for token in tokens) > len(tokens) // 10:
            return np.array([not token.startswith(mark) for token in tokens])
    return np.array(
        [token.startswith("##") for token in tokens]
    )  # WordPiece marks its continuation
