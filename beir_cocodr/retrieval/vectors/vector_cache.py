"""The vectors of texts that an encoder has encoded before, by content, for all commands.

A text is known by the hash of what the encoder reads of it, and an encoder by its weights and all
settings that its vectors depend on. Each corpus has a :class:`Segment` of its own, to which its new
texts are appended batch by batch, and a text is looked up in all segments of the encoder: a
changed corpus, a part of one and a command that was killed encode only what is missing.

The vectors of a text that is encoded in a batch of other texts differ in their last bits. Batches
do not depend on what is known, so a corpus that is encoded in one go, or again after a kill, has
the same vectors as without the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from beir_cocodr.arrays import Bools, Floats, Ints
from beir_cocodr.cache import vectors_folder
from beir_cocodr.data.documents import Documents
from beir_cocodr.io import json_sha256, text_sha256
from beir_cocodr.models.checkpoints.loading import fingerprint
from beir_cocodr.models.hybrid_encoder import HybridEncoder
from beir_cocodr.retrieval.store.embeddings import Embeddings
from beir_cocodr.retrieval.store.record import Backend
from beir_cocodr.retrieval.vectors.vector_segment import (
    RECORD_FILE,
    Hashes,
    Segment,
    SegmentRecord,
)

if TYPE_CHECKING:
    from beir_cocodr.models.cocodr import COCODR

# The package whose classes of encoders are known by their weights and settings.
_PACKAGE = "beir_cocodr."

# Bytes of the hash of a text.
_HASH_BYTES = 16

# Texts that are hashed at a time.
_CHUNK = 4_096

# A place is the number of a segment, and below it the slot in it.
_SLOT_BITS = 40
_SLOT = (1 << _SLOT_BITS) - 1


def encoder_identity(model: Any, backend: Backend = "fp32") -> dict[str, str | int | None]:
    """Return all that the vectors of an encoder depend on besides the texts."""
    return {
        **fingerprint(model),
        "similarity": str(model.similarity_fn_name),
        **model.text_format.as_dict(),
        "backend": backend,
    }


class VectorCache:
    """The vectors that one encoder has made, and those that it makes of one corpus.

    Args:
        model: the encoder.
        folder: the folder of all encoders.
        corpus: the name of the corpus; a corpus that changed keeps it.
        name: the name of the encoder, for people.
        backend: the precision in which the encoder runs.
        verify: compare vectors with their checksums when they are first looked up.
    """

    def __init__(
        self,
        model: COCODR,
        folder: Path,
        corpus: str,
        name: str = "",
        backend: Backend = "fp32",
        verify: bool = True,
    ) -> None:
        """Open the segments of the encoder."""
        self.model = model
        self.corpus = corpus
        self.name = name
        identity = encoder_identity(model, backend)
        # Queries have lengths and prompts of their own, which change no document.
        of_documents = {key: value for key, value in identity.items() if "query" not in key}
        encoder = folder / json_sha256(of_documents)[:32]
        folder_of_corpus = encoder / text_sha256(corpus)[:32]
        records = encoder.glob(f"*/{RECORD_FILE}")
        folders = sorted(path.parent for path in records)
        record = folder_of_corpus / RECORD_FILE
        if record.is_file():
            record.touch()  # shows when it was last used
        self.segment = Segment(folder_of_corpus, verify)
        self.segments = [self.segment]
        for other in folders:
            if other != folder_of_corpus:
                self.segments.append(Segment(other, verify))

    @classmethod
    def of(
        cls,
        model: COCODR,
        documents: Documents,
        name: str = "",
        backend: Backend = "fp32",
        verify: bool = True,
    ) -> VectorCache | None:
        """Return the cache of an encoder for a corpus, None where vectors are not kept.

        That of a hybrid encoder is the cache of its dense part. An encoder of somebody else's class
        has none: the class may encode in a way that its weights do not show.
        """
        folder = vectors_folder()
        is_of_package = type(model).__module__.startswith(_PACKAGE)
        if folder is None or not is_of_package:
            return None
        encoder = model.dense_part() if isinstance(model, HybridEncoder) else model
        return cls(
            model=encoder,
            folder=folder,
            corpus=corpus_name(documents),
            name=name,
            backend=backend,
            verify=verify,
        )

    def find(self, hashes: Hashes) -> Ints:
        """Return the (n,) places of (n, 2) hashes, -1 for an unknown text."""
        places = np.full(len(hashes), -1, np.int64)
        for number, segment in enumerate(self.segments):
            unknown = np.flatnonzero(places < 0)
            slots = segment.find(hashes[unknown])
            is_here = slots >= 0
            first_place = number << _SLOT_BITS
            places[unknown[is_here]] = first_place | slots[is_here]
        return places

    def rows(self, places: Ints) -> Floats:
        """Return the (n, d) vectors at places."""
        files = [segment.vectors for segment in self.segments]
        return _gather(files, places)

    def add(self, hashes: Hashes, vectors: Floats) -> Floats:
        """Append the vectors of texts that are unknown, and return what is kept of all.

        Args:
            hashes: (n, 2) hashes of the texts.
            vectors: (n, d) their vectors.

        Returns:
            (n, d) the vectors that the cache has: equal texts have equal vectors.
        """
        record = SegmentRecord(self.corpus, self.name, vectors.shape[1])
        self.segment.append(hashes, vectors, record)
        places = self.find(hashes)
        is_kept = places >= 0
        kept = vectors.copy()
        kept[is_kept] = self.rows(places[is_kept])
        return kept

    def look_up(self, documents: Documents, rows: Ints) -> KnownVectors:
        """Return the vectors of documents, as far as they are known."""
        parts = []
        texts_cut = 0
        for start in range(0, len(rows), _CHUNK):
            texts = self._texts(documents, rows[start : start + _CHUNK])
            hashes = hash_texts(texts)
            is_known = self.find(hashes) >= 0
            known_texts = [texts[number] for number in np.flatnonzero(is_known)]
            texts_cut += sum(lost for _, lost in self.model.cut(known_texts))
            parts.append(hashes)
        # Encoding the other texts counts those of them that are cut.
        self.model.texts_cut += texts_cut
        hashes = np.concatenate(parts)
        return KnownVectors(self, hashes, self.find(hashes))

    def count_missing(self, documents: Documents) -> int:
        """Return how many documents of a corpus are unknown."""
        missing = 0
        for places in self._places(documents):
            is_missing = places < 0
            missing += int(is_missing.sum())
        return missing

    def _places(self, documents: Documents) -> Iterator[Ints]:
        """Yield the (n,) places of all documents, some at a time, -1 for an unknown one."""
        for start in range(0, len(documents), _CHUNK):
            stop = min(start + _CHUNK, len(documents))
            texts = self._texts(documents, np.arange(start, stop))
            yield self.find(hash_texts(texts))

    def _texts(self, documents: Documents, rows: Ints) -> list[str]:
        document_text = self.model.text_format.document
        return [document_text(document) for document in documents.take(rows)]

    def embeddings(self, documents: Documents) -> CachedEmbeddings:
        """Return the embeddings of a corpus whose texts are all known, read as they are needed."""
        places = np.concatenate(list(self._places(documents)))
        files = [segment.vectors for segment in self.segments]
        return CachedEmbeddings(files, places)


@dataclass(frozen=True)
class KnownVectors:
    """What a cache knows of some documents.

    Attributes:
        cache: the cache.
        hashes: (n, 2) hashes of the documents.
        places: (n,) their places, -1 for an unknown one.
    """

    cache: VectorCache
    hashes: Hashes
    places: Ints

    @property
    def is_missing(self) -> Bools:
        """Return (n,) bool, true for an unknown document."""
        return self.places < 0

    def vectors(self) -> Floats | None:
        """Return (n, d) vectors, zero for unknown documents; None if all are unknown."""
        known = np.flatnonzero(~self.is_missing)
        if not len(known):
            return None
        of_known = self.cache.rows(self.places[known])
        shape = (len(self.places), of_known.shape[1])
        vectors = np.zeros(shape, np.float32)
        vectors[known] = of_known
        return vectors

    def keep(self, batch: Ints, vectors: Floats) -> Floats:
        """Add the vectors of some of the documents, see :meth:`VectorCache.add`."""
        return self.cache.add(self.hashes[batch], vectors)


class CachedEmbeddings(Embeddings):
    """The embeddings of a corpus, mapped into memory from the segments of a cache."""

    def __init__(self, files: Sequence[Floats], places: Ints) -> None:
        """Take mapped segments.

        Args:
            files: the vectors of each segment.
            places: (N,) places of the documents.
        """
        self._files = files
        self._places = places

    def __len__(self) -> int:
        """Return the number of vectors."""
        return len(self._places)

    @property
    def dimensions(self) -> int:
        """Return the width of the vectors."""
        return max(int(vectors.shape[1]) for vectors in self._files)

    def rows(self, rows: Ints) -> torch.Tensor:
        """Return the vectors of rows."""
        return torch.from_numpy(_gather(self._files, self._places[rows]))


def _gather(files: Sequence[Floats], places: Ints) -> Floats:
    """Return the (n, d) vectors at places in mapped segments."""
    width = max(vectors.shape[1] for vectors in files)
    gathered = np.empty((len(places), width), np.float32)
    numbers = places >> _SLOT_BITS
    for number in np.unique(numbers).tolist():
        is_here = numbers == number
        slots = places[is_here] & _SLOT
        gathered[is_here] = files[number][slots]
    return gathered


def hash_texts(texts: Iterator[str] | Sequence[str]) -> Hashes:
    """Return the (n, 2) hashes of texts."""
    digests = bytearray()
    for text in texts:
        digests += hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).digest()
    halves = np.frombuffer(digests, np.uint64)
    return halves.reshape(-1, 2)


def corpus_name(documents: Documents) -> str:
    """Return the name of a corpus, or its content where it has none."""
    return documents.name or f"documents {documents.content_hash[:12]}"
