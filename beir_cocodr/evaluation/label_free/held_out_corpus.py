"""Models over a copy of a corpus in which few documents differ, without encoding the others."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from beir_cocodr.arrays import Ints
from beir_cocodr.data.documents import Documents
from beir_cocodr.models.spec import ModelSpec
from beir_cocodr.retrieval.resources import Resources

if TYPE_CHECKING:
    from beir_cocodr.retrieval.vectors.dense import Dense


class HeldOutResources(Resources):
    """Shared resources over a changed copy of a corpus; only changed documents are encoded."""

    def __init__(
        self,
        original: Resources,
        documents: Documents,
        changed: Ints,
        folder: Path,
    ) -> None:
        """Describe the changed corpus.

        Args:
            original: Resources of the corpus itself, whose encoders and embeddings are used again.
            documents: The changed corpus.
            changed: (S,) rows of the documents that differ.
            folder: For Lucene's index; another one than that of ``original``.
        """
        super().__init__(
            documents,
            folder,
            replace(original.options, stores=()),
        )
        self.original = original
        self.changed = changed

    def spec(self, model: str | ModelSpec) -> ModelSpec:
        """Return the spec that a name has in the original corpus."""
        return self.original.spec(model)

    def name_specs(self, specs: Mapping[str, ModelSpec]) -> None:
        """Let all methods that take a name also take these labels, here and in the original."""
        self.original.name_specs(specs)

    def _load_dense(self, spec: ModelSpec) -> "Dense":
        # Imported here because a run of BM25 alone must not pay six seconds for torch.
        from beir_cocodr.retrieval.store.embeddings import ChangedEmbeddings
        from beir_cocodr.retrieval.vectors.dense import Dense

        original = self.original.dense(spec)
        embeddings = original.embeddings
        if len(self.changed):
            vectors = original.encoder_of(self.documents).encode(self.changed)
            embeddings = ChangedEmbeddings(embeddings, self.changed, vectors)
        dense = Dense(
            original.model,
            self.documents,
            self.folder,
            self.options.batch_size,
            self.options.shows_progress,
            embeddings,
        )
        dense.known_queries = original.known_queries
        return dense
