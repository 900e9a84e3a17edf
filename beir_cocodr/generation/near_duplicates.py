"""Near duplicates among millions of texts, found exactly and by all processes of a run together."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np
import xxhash

from beir_cocodr.arrays import Array, Bools, Ints
from beir_cocodr.data.text import words
from beir_cocodr.distributed import gather, rank, world_size

# What a product of a similarity and a whole number may lack by rounding.
_ROUNDING = 1e-9

# Texts that are read at a time, and texts that are compared with one another at a time.
_READ = 10_000
_BLOCK = 65_536

# Pairs of texts that are compared at a time.
_PAIRS = 1 << 20

# Two numbers below 2**32, such as the words of a key, make one of 64 bits. A key of a single word
# has this one as its second.
_SHIFT = 32
_NO_WORD = (1 << _SHIFT) - 1

# An odd number by which keys are spread over the processes (2**64 divided by the golden ratio).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def without_near_duplicates(texts: Iterable[str], similarity: float) -> Bools:
    """Return which texts have less than a Jaccard similarity to all earlier ones that are kept.

    All processes of a run call this with the same texts, and share the work; the result does not
    depend on their number. Every pair that may be so similar is compared. The n words of a text are
    put in the order of their rarity. Two texts can be so similar only if they share ⌈s n⌉ words,
    for the n of the larger one, and the two rarest of the shared words are among the first
    n - ⌈s n⌉ + 2 words of each. So only texts that share two such words are compared, or, where
    ⌈s n⌉ is 1 for both, those that share one word.

    Texts are read once and not held; words are equal if their 64-bit hashes are. A process needs
    4 bytes for each word of each text, and several times as many while it reads them, and 16 for
    each pair of words in its share of those that are compared: a text of 9 words has 6 such pairs
    at s = 0.7, and one of 25 words 36.

    Args:
        texts: n texts, the same in each process.
        similarity: s, the similarity from which texts are near duplicates, above 0.

    Returns:
        (n,) bool, the same in each process.

    References:
        Bayardo, Ma and Srikant, Scaling up all pairs similarity search, 2007; Xiao et al.,
        Efficient similarity joins for near duplicate detection, 2008 (the prefix filter); Wang, Li
        and Feng, Can we beat the prefix filtering, 2012 (prefixes that share two words).
    """
    decisions = _Decisions(_read(texts), similarity)
    for start in range(0, len(decisions.sets), _BLOCK):
        decisions.decide(np.arange(start, min(start + _BLOCK, len(decisions.sets))))
    return decisions.kept


@dataclass(frozen=True)
class _WordSets:
    """The different words of n texts, as numbers that are smaller for rarer words.

    Attributes:
        words: (w,) int32, those of the first text first, and of each text the rarest first.
        starts: (n + 1,) where the words of each text begin.
    """

    words: Array
    starts: Ints

    def __len__(self) -> int:
        """Return n."""
        return len(self.starts) - 1

    def sizes(self, rows: Ints) -> Ints:
        """Return the numbers of words of some texts, (r,)."""
        sizes: Ints = self.starts[rows + 1] - self.starts[rows]
        return sizes

    def of(self, rows: Ints) -> tuple[Array, Ints]:
        """Return the words of some texts, one text after the other, and the place of each in rows.

        Args:
            rows: (r,) rows of texts; a row may be repeated.

        Returns:
            (v,) words, and (v,) numbers from 0 to r - 1.
        """
        sizes = self.sizes(rows)
        positions = _ranges(self.starts[rows], sizes)
        return self.words[positions], np.repeat(np.arange(len(rows)), sizes)

    def similar(self, a: Ints, b: Ints, similarity: float) -> Bools:
        """Return which of p pairs of texts have at least a Jaccard similarity.

        Args:
            a: (p,) rows of the first texts.
            b: (p,) rows of the second texts.
            similarity: The similarity.

        Returns:
            (p,) bool.
        """
        parts = []
        for rows in (a, b):
            of_rows, pair = self.of(rows)
            parts.append((pair << _SHIFT) | of_rows)
        both = np.concatenate(parts)
        both.sort()
        is_shared = both[1:] == both[:-1]
        shared = np.bincount(both[1:][is_shared] >> _SHIFT, minlength=len(a))
        union = self.sizes(a) + self.sizes(b) - shared
        are_similar: Bools = shared >= similarity * union - _ROUNDING
        return are_similar


def _read(texts: Iterable[str]) -> _WordSets:
    """Read the words of all texts; each process hashes those of its share of them."""
    hashed: dict[int, tuple[Array, Array]] = {}
    stream = iter(texts)
    number = 0
    while block := list(islice(stream, _READ)):
        if number % world_size() == rank():
            hashed[number] = _hashed_words(block)
        number += 1
    of_blocks: dict[int, tuple[Array, Array]] = {}
    for of_process in gather(hashed):
        of_blocks |= of_process
    in_order = [of_blocks[number] for number in range(len(of_blocks))]
    hashes = np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in in_order)])
    sizes = np.concatenate([np.zeros(0, np.int64), *(sizes for _, sizes in in_order)])
    _, numbers, frequencies = np.unique(hashes, return_inverse=True, return_counts=True)
    rarities = np.empty(len(frequencies), np.int64)
    rarities[frequencies.argsort(kind="stable")] = np.arange(len(frequencies))
    of_texts = np.repeat(np.arange(len(sizes)) << _SHIFT, sizes) | rarities[numbers]
    of_texts.sort()
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return _WordSets((of_texts & _NO_WORD).astype(np.int32), starts)


def _hashed_words(texts: Sequence[str]) -> tuple[Array, Array]:
    """Return the hashes of the different words of each of n texts, and their numbers, (n,)."""
    word_sets = [set(words(text)) for text in texts]
    hashes = [
        xxhash.xxh3_64_intdigest(word.encode("utf-8", "surrogatepass"))
        for word_set in word_sets
        for word in word_set
    ]
    return np.array(hashes, np.uint64), np.array([len(word_set) for word_set in word_sets])


def _ranges(starts: Ints, sizes: Ints) -> Ints:
    """Return the numbers from each start, as many as its size, one range after the other."""
    ends = np.cumsum(sizes)
    positions: Ints = np.arange(ends[-1] if len(ends) else 0)
    positions += np.repeat(starts - (ends - sizes), sizes)
    return positions


@dataclass(frozen=True)
class _Keys:
    """Keys of texts: two texts can be similar only if they share one.

    Attributes:
        keys: (k,) int64, in ascending order.
        rows: (k,) the row of the text that has each key.
    """

    keys: Ints
    rows: Ints

    @classmethod
    def sorted_by_key(cls, keys: Sequence[Ints], rows: Sequence[Ints]) -> "_Keys":
        """Join keys and the rows of their texts."""
        all_keys = np.concatenate(keys)
        order = all_keys.argsort(kind="stable")
        return cls(all_keys[order], np.concatenate(rows)[order])

    def of_rows(self, is_chosen: Bools) -> "_Keys":
        """Return the keys of some texts.

        Args:
            is_chosen: (n,) bool over all texts.
        """
        of_chosen = is_chosen[self.rows]
        return _Keys(self.keys[of_chosen], self.rows[of_chosen])

    def pairs_within(self) -> int:
        """Return how many pairs of these share a key, counted once for each key they share."""
        _, counts = np.unique(self.keys, return_counts=True)
        return int((counts * (counts - 1) // 2).sum())

    def pairs_with(self, others: "_Keys") -> Iterator[tuple[Ints, Ints]]:
        """Yield the rows of these and of others that share a key, some pairs at a time."""
        firsts = np.searchsorted(others.keys, self.keys, side="left")
        counts = np.searchsorted(others.keys, self.keys, side="right") - firsts
        parts = np.cumsum(counts) // _PAIRS
        starts = np.flatnonzero(np.diff(parts, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(counts)]):
            of_part = counts[start:end]
            rows = np.repeat(self.rows[start:end], of_part)
            yield rows, others.rows[_ranges(firsts[start:end], of_part)]


@dataclass
class _Decisions:
    """Decisions which texts are kept: those that are similar to no kept text before them.

    Attributes:
        sets: The texts.
        similarity: The similarity from which texts are near duplicates.
        kept: (n,) bool, true for texts that are decided and kept.
    """

    sets: _WordSets
    similarity: float
    kept: Bools = field(init=False)
    # This process's keys of the kept texts, in parts; each part is larger than the next.
    _index: list[_Keys] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Begin without any text."""
        self.kept = np.zeros(len(self.sets), bool)

    def decide(self, rows: Ints) -> None:
        """Decide which of the next texts are kept.

        Those that are similar to none of the kept ones are compared with one another. If too many
        pairs of these share a key, as when all are made from one template, half of them are decided
        first: they may rule out the rest.

        Args:
            rows: (r,) their rows, ascending; all earlier texts are decided.
        """
        keys = self._own_keys(rows)
        is_open = np.zeros(len(self.sets), bool)
        is_open[rows] = True
        for similar in gather(self._similar_to_kept(keys)):
            is_open[similar] = False
        keys = keys.of_rows(is_open)
        open_rows = rows[is_open[rows]]
        if len(open_rows) > 1 and sum(gather(keys.pairs_within())) > _PAIRS:
            half = len(open_rows) // 2
            self.decide(open_rows[:half])
            self.decide(open_rows[half:])
            return
        self.kept[open_rows] = True
        pairs = np.unique(np.concatenate(gather(self._similar_pairs(keys))))
        for pair in pairs.tolist():
            row, earlier = pair >> _SHIFT, pair & _NO_WORD
            if self.kept[earlier]:
                self.kept[row] = False
        self._add(keys.of_rows(self.kept))

    def _own_keys(self, rows: Ints) -> _Keys:
        """Return those keys of some texts that this process compares."""
        sizes = self.sets.sizes(rows)
        least = np.ceil(self.similarity * sizes - _ROUNDING).astype(np.int64)
        lengths = sizes - np.maximum(least, 2) + 2
        alone, text = self.sets.of(rows[least <= 1])
        keys = [(alone.astype(np.int64) << _SHIFT) | _NO_WORD]
        rows_of_keys = [rows[least <= 1][text]]
        for length in np.unique(lengths[lengths > 1]).tolist():
            of_length = rows[lengths == length]
            prefixes = self.sets.words[self.sets.starts[of_length][:, None] + np.arange(length)]
            first, second = np.triu_indices(length, 1)
            pairs = (prefixes[:, first].astype(np.int64) << _SHIFT) | prefixes[:, second]
            keys.append(pairs.reshape(-1))
            rows_of_keys.append(np.repeat(of_length, len(first)))
        if world_size() > 1:
            for number, part in enumerate(keys):
                spread = (part.view(np.uint64) * _SPREAD) >> np.uint64(_SHIFT)
                is_own = spread % np.uint64(world_size()) == rank()
                keys[number] = part[is_own]
                rows_of_keys[number] = rows_of_keys[number][is_own]
        return _Keys.sorted_by_key(keys, rows_of_keys)

    def _similar_to_kept(self, keys: _Keys) -> Ints:
        """Return the rows that are similar to a kept text with a key of this process."""
        is_similar = np.zeros(len(self.sets), bool)
        for part in self._index:
            undecided = keys.of_rows(~is_similar)
            for rows, others in undecided.pairs_with(part):
                pairs = self._similar(rows, others)
                is_similar[pairs >> _SHIFT] = True
        return np.flatnonzero(is_similar)

    def _similar_pairs(self, keys: _Keys) -> Ints:
        """Return the similar pairs among some texts, each later row before its earlier one."""
        pairs = [np.zeros(0, np.int64)]
        for rows, others in keys.pairs_with(keys):
            is_later = rows > others
            pairs.append(self._similar(rows[is_later], others[is_later]))
        return np.concatenate(pairs)

    def _similar(self, rows: Ints, others: Ints) -> Ints:
        """Return which pairs of texts are similar, each once, as one number a pair."""
        sizes, of_others = self.sets.sizes(rows), self.sets.sizes(others)
        smaller, larger = np.minimum(sizes, of_others), np.maximum(sizes, of_others)
        may_be = smaller >= self.similarity * larger - _ROUNDING
        pairs = np.unique((rows[may_be] << _SHIFT) | others[may_be])
        are_similar = self.sets.similar(pairs >> _SHIFT, pairs & _NO_WORD, self.similarity)
        similar: Ints = pairs[are_similar]
        return similar

    def _add(self, keys: _Keys) -> None:
        """Add keys of kept texts to the index."""
        self._index.append(keys)
        while len(self._index) > 1 and len(self._index[-2].keys) <= len(self._index[-1].keys):
            last, before = self._index.pop(), self._index.pop()
            self._index.append(
                _Keys.sorted_by_key([before.keys, last.keys], [before.rows, last.rows])
            )
