"""The scores of a teacher with a memory on disk, so that it is asked for no pair twice."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from beir_cocodr import io as files
from beir_cocodr.arrays import Array, Floats, Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.distributed import do_each, on_main, rank, wait_for_all, world_size
from beir_cocodr.errors import InputError
from beir_cocodr.progress import Bar
from beir_cocodr.training.distillation.teachers import Teacher, score_lists

#: A row that fills a list where a query has fewer documents.
EMPTY = -1

log = logging.getLogger(__name__)

# Pairs scored between two files; a killed run asks for at most so many again of each process.
_CHUNK = 20_000
_PAIR = np.dtype([("key", "<i8"), ("score", "<f4")])


def array_sha256(array: Array) -> str:
    """Return the first 16 digits of a hash of an array's bytes."""
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


class TeacherScores:
    """A teacher that is asked for what is not known yet, with a memory in npy files.

    If there are several processes, the first knows the scores, and each asks for its share.

    Args:
        teacher: the teacher.
        queries: query id to text; their order numbers them.
        documents: the corpus.
        folder: folder of the memory.

    Attributes:
        texts_cut: texts that the teacher cut, by all processes, if it counts them.
    """

    def __init__(
        self, teacher: Teacher, queries: Mapping[str, str], documents: Documents, folder: Path
    ) -> None:
        """Read what is known."""
        self.teacher = teacher
        self.documents = documents
        self.folder = folder
        self.size = len(documents)
        self.texts_cut = 0
        self.ids = list(queries)
        self.texts = list(queries.values())
        folder.mkdir(parents=True, exist_ok=True)
        self._keys = np.empty(0, np.int64)
        self._scores = np.empty(0, np.float32)
        self._read: set[str] = set()
        if rank() == 0:
            self._merge()

    def score(self, queries: Ints, lists: Ints) -> Floats:
        """Return the teacher's scores of lists; all processes call this, and the first one's count.

        Args:
            queries: (S,) numbers of queries.
            lists: (S, n) corpus rows, :data:`EMPTY` where a list is shorter.

        Returns:
            (S, n) scores, −inf in empty places.

        Raises:
            InputError: A score is NaN or infinite.
        """
        first_keys = queries[:, None] * self.size
        keys = first_keys + lists  # (S, n)
        filled = lists != EMPTY
        keys_of_pairs = keys[filled]
        on_main(lambda: self._write_unknown(np.unique(keys_of_pairs)))
        unknown = np.load(self.folder / "wanted", mmap_mode="r")
        self._ask(unknown)
        scores = np.full(lists.shape, -np.inf, np.float32)
        if rank() == 0:
            self._merge()
            places = np.searchsorted(self._keys, keys_of_pairs)
            scores[filled] = self._scores[places]
        return scores

    def _write_unknown(self, keys: Ints) -> None:
        """Write the keys without a known score."""
        self._merge()
        places = np.searchsorted(self._keys, keys)
        known = places < len(self._keys)
        keys_there = self._keys[places[known]]
        known[known] = keys_there == keys[known]
        unknown = keys[~known]
        files.save_array(self.folder / "wanted", unknown)

    def _ask(self, keys: Ints) -> None:
        """Score this process's chunks of pairs, each to a file."""
        numbers = [int(file.name[:6]) for file in self._files()]
        first = 1 + max(numbers, default=-1)
        wait_for_all()  # before there are others
        starts = range(0, len(keys), _CHUNK)
        all_chunks = list(enumerate(starts, first))
        chunks = all_chunks[rank() :: world_size()]

        def ask() -> int:
            bar = Bar(chunks, desc="Teacher", disable=rank() > 0)
            for number, start in bar:
                chunk = np.asarray(keys[start : start + _CHUNK])
                pairs = self._scored(chunk)
                name = f"{number:06d}-{array_sha256(pairs)}.npy"
                files.save_array(self.folder / name, pairs)
            return int(getattr(self.teacher, "texts_cut", 0))

        self.texts_cut = sum(do_each(ask))

    def _scored(self, keys: Ints) -> Array:
        """Return the pairs of keys and their scores."""
        owners = keys // self.size  # ascending, so that a query's documents come together
        starts = np.flatnonzero(np.diff(owners)) + 1
        groups = np.split(keys % self.size, starts)
        lists: list[tuple[str, str, Ints]] = []
        for query, rows in zip(np.unique(owners), groups, strict=True):
            id = self.ids[query]
            text = self.texts[query]
            lists.append((id, text, rows))
        scores = score_lists(self.teacher, lists)
        pairs = np.empty(len(keys), _PAIR)
        pairs["key"] = keys
        pairs["score"] = np.concatenate(scores)
        self._check_finite(pairs)
        return pairs

    def _check_finite(self, pairs: Array) -> None:
        is_finite = np.isfinite(pairs["score"])
        wrong = pairs[~is_finite]
        if not len(wrong):
            return
        key = int(wrong[0]["key"])
        score = wrong[0]["score"]
        query, row = divmod(key, self.size)
        [document] = self.documents.ids(np.array([row]))
        raise InputError(
            f"the teacher scores query {self.ids[query]!r} and document {document!r} with "
            f"{score} ({len(wrong)} such scores so far); give it finite scores, or choose another "
            "teacher"
        )

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.npy"))

    def _merge(self) -> None:
        """Take in the new files, all at once: each is sorted, and so is what is known."""
        parts = []
        for file in self._files():
            if file.name in self._read:
                continue
            self._read.add(file.name)
            part = self._pairs(file)
            if len(part):
                parts.append(part)
        if not parts:
            return
        new_keys = [part["key"] for part in parts]
        new_scores = [part["score"] for part in parts]
        keys = np.concatenate([self._keys, *new_keys])
        scores = np.concatenate([self._scores, *new_scores])
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._scores = scores[order]

    @staticmethod
    def _pairs(file: Path) -> Array:
        """Return the pairs in a file; none if it is damaged, and the teacher is asked again."""
        try:
            pairs: Array = np.load(file)
            digest = file.stem.partition("-")[2]
            is_whole = digest in ("", array_sha256(pairs))
            if pairs.dtype == _PAIR and is_whole:
                return pairs
        except (OSError, ValueError, EOFError):
            pass
        log.warning("%s is damaged; its scores are computed again", file)
        file.unlink(missing_ok=True)
        return np.empty(0, _PAIR)
