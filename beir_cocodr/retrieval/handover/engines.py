"""The search engines that vectors are handed over to, one row each; nothing imports torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from beir_cocodr.errors import InputError
from beir_cocodr.models.spec import Options, option


@dataclass(frozen=True)
class Engine:
    """A search engine, or a file format: a row of :data:`ENGINES`.

    Args:
        write: The ``module:object`` of the function that writes its files. It is called with the
            folder and a :class:`~beir_cocodr.retrieval.handover.hand_over.HandedOver`, and returns
            the values that fill the row's README.
        help: What is written, a few words for ``--help``.
        readme: The file with the template of the folder's README.
        most_dimensions: The widest vectors that it takes.
        collection: How a collection is called by default.
        names: A regular expression of the names that it allows.
        names_help: The same in words.
    """

    write: str
    help: str
    readme: str
    most_dimensions: int
    collection: str = "documents"
    names: str = r"[^/\\]+"
    names_help: str = "a name without a slash"

    def check_collection(self, name: str) -> None:
        """Check the name of a collection.

        Raises:
            InputError: The engine does not allow it.
        """
        if not re.fullmatch(self.names, name):
            raise InputError(f"--collection {name!r} is not allowed: give {self.names_help}")

    def check_dimensions(self, dimensions: int, engine: str) -> None:
        """Check the width of vectors.

        Raises:
            InputError: The engine takes only narrower ones.
        """
        if dimensions > self.most_dimensions:
            raise InputError(
                f"{engine} takes vectors of at most {self.most_dimensions:,} dimensions, and these "
                f"have {dimensions:,}; make narrower ones, for example with fuse "
                f"--bytes-per-document {2 * self.most_dimensions}"
            )


_PARQUET = "beir_cocodr.retrieval.handover.parquet_files"
_BULK = "beir_cocodr.retrieval.handover.bulk_files"

#: Search engines by name. Add a row of your own from a script.
ENGINES: dict[str, Engine] = {
    "qdrant": Engine(
        write=f"{_PARQUET}:write_qdrant",
        help="parquet files and the collection's configuration",
        readme="qdrant.md",
        most_dimensions=65_536,
    ),
    "opensearch": Engine(
        write=f"{_BULK}:write_opensearch",
        help="bulk files, the index's mapping and a search pipeline",
        readme="opensearch.md",
        most_dimensions=16_000,
        names=r"[a-z0-9][a-z0-9_.-]*",
        names_help="lowercase letters, digits, '_', '-' and '.', beginning with a letter or digit",
    ),
    "weaviate": Engine(
        write=f"{_BULK}:write_weaviate",
        help="batches of objects and the schema of their class",
        readme="weaviate.md",
        most_dimensions=65_535,
        collection="Documents",
        names=r"[A-Z][A-Za-z0-9_]*",
        names_help="a capital letter, then letters, digits and '_'",
    ),
    "parquet": Engine(
        write=f"{_PARQUET}:write_parquet",
        help="parquet files, for LanceDB, pgvector and others",
        readme="parquet.md",
        most_dimensions=1_000_000,
    ),
}


def engine_forms() -> str:
    """Return the engines with what is written for each, for help."""
    return "; ".join(f"{name} ({engine.help})" for name, engine in ENGINES.items())


@dataclass(frozen=True)
class HandOverOptions(Options):
    """What is written, and for whom; each field is described beside its default."""

    to: str = option(
        "qdrant",
        lambda: f"Write for one of these engines: {engine_forms()}.",
        choices=ENGINES.keys(),
    )
    collection: str | None = option(
        None,
        "Call the collection, index or class by this name. Default: documents, or Documents for "
        "Weaviate.",
    )
    vectors: bool = option(
        True,
        "Write the documents with their vectors, or with --no-vectors the configuration alone.",
    )
