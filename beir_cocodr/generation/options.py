"""Settings of query generation, with the paper's defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from beir_cocodr.data.text import WORDS, TextFormat
from beir_cocodr.errors import InputError, check_at_least
from beir_cocodr.models.spec import option
from beir_cocodr.records import Json

#: What decides which of the generated queries stay; everything else decides what is generated.
SELECTION = ("dedupe", "filter_retriever", "filter_top", "analyzer")

#: Where a prompt takes its passage.
PLACEHOLDER = "{passage}"


@dataclass(frozen=True)
class GenerationOptions:
    """How queries are generated and which of them stay.

    Args:
        per_passage: C, queries of a passage (5; the published code 20).
        passage_tokens: the most tokens of a passage, special tokens included.
        tokenizer: what counts them: ``words``, ``minilm``, a folder or a hub name. By default the generator's own, and
            ``words`` for the lexical one.
        language: ISO 639 code for the abbreviations that do not end a sentence.
        prefix: put before a passage; by default nothing, but "text2query: " for a model whose name has "with_prefix" in
            it, as the authors' has.
        prompt: what a model reads, with ``{passage}`` in it, behind the prefix; by default the passage alone for an
            encoder-decoder, and "Passage: {passage}\\nSearch query:" for a causal model.
        max_length: the most tokens of a query; a longer text without tokens, the lexical generator's, is cut to so many
            words.
        top_p, top_k: of nucleus sampling.
        batch_size: passages read at a time.
        max_passages: generate for a random sample of so many passages; for all by default.
        shard_documents: documents of a shard, which is the unit of resuming.
        seed: of sampling.
        title_separator: between title and text of a document.
        dedupe: keep a text once in the whole output, its first time.
        filter_retriever: keep a query only if its document is among the first ``filter_top`` of this retriever, named
            as for ``evaluate``; None keeps all.
        filter_top: r.
        analyzer: of BM25 in that retriever, "english" or "none".

    Source: Wu et al., 2023 (Query-as-context Pre-training), sections 3.1 and 4.1; for the filter Dai et al., 2022
    (Promptagator), section 3.2, with r = 1.
    """

    per_passage: int = option(5, "Queries of a passage.")
    passage_tokens: int = option(144, "The most tokens of a passage, special ones too.")
    tokenizer: str | None = option(
        None,
        "What counts them: a model that will read the passages, or words; "
        "default: the generator's own, and words for lexical.",
    )
    language: str = option("en", "ISO 639 code, for abbreviations that do not end a sentence.")
    prefix: str | None = option(None, 'Before every passage; default: none, or "text2query: " for a with_prefix model.')
    prompt: str | None = option(None, "What the model reads, with {passage} in it; default: by its kind.")
    max_length: int = option(64, "The most tokens of a query.")
    top_p: float = option(0.95, "Probability mass that is sampled from.")
    top_k: int = option(25, "Tokens that are sampled from.")
    batch_size: int = option(32, "Passages read at a time.")
    max_passages: int | None = option(None, "Passages, drawn at random from all; default: all.")
    shard_documents: int = option(500, "Documents of a shard; a killed run goes on behind its last one.")
    seed: int = option(42, "Seed of sampling.")
    title_separator: str = option(" ", "Between title and text of a document.")
    dedupe: bool = option(False, "Keep a text once in the whole output.")
    filter_retriever: str | None = option(
        None, "Keep a query only if this model finds its document; named as for evaluate."
    )
    filter_top: int = option(1, "... among so many first documents.")
    analyzer: str = option("english", "english (stop words out, stemmed) or none (neither).", flag="--bm25-analyzer")

    def __post_init__(self) -> None:
        check_at_least(self, 1, "per_passage", "batch_size", "shard_documents", "filter_top", "max_length", "top_k")
        if self.max_passages is not None:
            check_at_least(self, 1, "max_passages")
        check_at_least(self, 8, "passage_tokens")
        check_at_least(self, 0, "seed")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.prompt is not None and self.prompt.count(PLACEHOLDER) != 1:
            raise InputError(f"the prompt needs {PLACEHOLDER} once, where the passage goes: {self.prompt!r}")

    @property
    def text_format(self) -> TextFormat:
        """Joins titles and texts."""
        return TextFormat(title_separator=self.title_separator)

    def counting(self, generator: str) -> str | None:
        """The name of the tokenizer that counts a passage's tokens; None where the model's own does."""
        return self.tokenizer or (WORDS if generator == "lexical" else None)

    def generation(self) -> Json:
        """The settings that decide what is generated."""
        return {name: value for name, value in asdict(self).items() if name not in SELECTION}

    def selection(self) -> Json:
        """The settings that decide which queries stay."""
        return {name: value for name, value in asdict(self).items() if name in SELECTION}
