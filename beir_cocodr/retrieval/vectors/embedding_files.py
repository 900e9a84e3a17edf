"""Files of embeddings with BEIR's names, which hold arrays of numpy and no pickles."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from beir_cocodr.arrays import Floats
from beir_cocodr.errors import InputError
from beir_cocodr.io import atomic_path, json_sha256


@dataclass(frozen=True)
class EmbeddingFile:
    """A file that `ExactSearch.encode` writes: the queries, or one part of a corpus.

    Attributes:
        path: the file.
        ids: of its texts.
        encoder: hash of all that the vectors depend on besides the texts; empty if the model does
            not show it.
        number: of the part, from 0.
        parts: how many parts the corpus has.
        key: hash of the encoder and the texts; empty for a file that is not written yet.
    """

    path: Path
    ids: list[str]
    encoder: str
    number: int
    parts: int
    key: str = ""

    @classmethod
    def read(cls, path: Path) -> EmbeddingFile:
        """Read everything except the vectors.

        Raises:
            InputError: If the file is missing, damaged or not of this kind.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                key, encoder, number, parts = file["about"].tolist()
                ids = file["ids"].tolist()
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            zipfile.BadZipFile,
        ) as error:
            raise InputError(
                f"{path} is not a file of embeddings that ExactSearch.encode wrote; encode again "
                "(BEIR's own files are pickles, which can run code, and are not read)"
            ) from error
        return cls(path, ids, encoder, int(number), int(parts), key)

    def vectors(self) -> Floats:
        """Read the vectors, (n, d) float32."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                vectors: Floats = file["vectors"]
                return vectors
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path} is damaged; encode again with overwrite=True") from error

    def key_of(self, texts: Sequence[object], kind: str) -> str:
        """Return the key that the file has when it holds these texts."""
        return json_sha256([self.encoder, kind, self.ids, texts, [self.number, self.parts]])

    def holds(self, key: str, kind: str) -> bool:
        """Return true if the file exists and holds what it should.

        Raises:
            InputError: If it exists and holds something else, or that cannot be known.
        """
        if not self.path.exists():
            return False
        if self.encoder and EmbeddingFile.read(self.path).key == key:
            return True
        reason = "exists already"
        if self.encoder:
            reason = f"contains other embeddings than this encoder's of these {kind}"
        raise InputError(
            f"{self.path} {reason}; give overwrite=True, or another encode_output_path"
        )

    def write(self, vectors: Floats, key: str) -> None:
        """Write the file with its vectors, (n, d)."""
        about = [key, self.encoder, str(self.number), str(self.parts)]
        with atomic_path(self.path) as temporary, temporary.open("wb") as file:
            np.savez(file, vectors=vectors, ids=np.array(self.ids), about=np.array(about))


def read_corpus(files: Sequence[str | Path], queries: EmbeddingFile) -> list[EmbeddingFile]:
    """Read the files of a corpus, in the order of its parts.

    Raises:
        InputError: If one is of another encoding than the queries, or a part is missing.
    """
    parts = sorted((EmbeddingFile.read(Path(file)) for file in files), key=lambda part: part.number)
    for part in parts:
        if (part.encoder, part.parts) != (queries.encoder, queries.parts):
            raise InputError(
                f"{part.path} and {queries.path} are from different encodings: move one of them "
                "away, or encode again"
            )
    if [part.number for part in parts] != list(range(queries.parts)):
        raise InputError(
            f"{queries.path} belongs to {queries.parts} files of documents, but {len(parts)} are "
            "here; encode again"
        )
    return parts
