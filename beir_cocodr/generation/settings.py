"""Settings of query generation, with the paper's defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from beir_cocodr.data.analyzers import ANALYZER_HELP, ANALYZERS
from beir_cocodr.data.text import TextFormat
from beir_cocodr.errors import SEED_MAX, InputError
from beir_cocodr.generation.query_kinds import QUERY_KINDS, parse_kinds
from beir_cocodr.models.spec import (
    BM25_WEIGHT,
    FUSIONS,
    ModelSpec,
    SearchOptions,
    check_options,
    option,
)
from beir_cocodr.records import Json

#: The options that decide which of the generated queries are kept; all others decide which are
#: generated.
SELECTION = (
    "dedupe",
    "near_duplicates",
    "filter_retriever",
    "filter_top",
    "analyzer",
    "bm25_weight",
)

#: Options that a record names only where they are set: earlier records do not have them.
_LATER = ("query_kinds", "near_duplicates", "bf16")

# A query that a language model wrote for training is kept if its document is among so many first
# ones of a filter, and its words are less like those of any earlier one, as a Jaccard similarity.
_FILTER_TOP = 10
_SIMILAR = 0.8

#: The part of a prompt that is replaced by the passage.
PLACEHOLDER = "{passage}"


@dataclass(frozen=True)
class GenerationOptions:
    """Options that decide which queries are generated and which of them are kept.

    Each field is described beside its default. ``per_passage`` is C (5; the published code 20). A
    ``prompt`` follows the prefix; by default it is the passage alone for an encoder-decoder, and
    "Passage: {passage}", a line feed and "Search query:" for a causal model. The lexical generator
    counts ``max_length`` in words.

    References:
        - Wu et al., Query-as-context pre-training for dense passage retrieval, 2023, sections 3.1
          and 4.1.
        - The filter: Dai et al., Promptagator, 2022, section 3.2, with r = 1.
    """

    per_passage: int = option(5, "Generate this many queries for each passage.", min=1)
    passage_tokens: int = option(
        144, "Cut passages to at most this many tokens, including special ones.", min=8
    )
    tokenizer: str | None = option(
        None,
        "Count tokens with the tokenizer of this model, which will read the passages, or count "
        "words. Default: the generator's tokenizer, or words for lexical.",
        is_name=True,
    )
    language: str | None = option(
        None,
        "Treat the corpus as written in this language, an ISO 639 code or an English name. It "
        "decides where sentences end. Default: the language that most text of a folder of files "
        "is written in; English for other collections.",
    )
    prefix: str | None = option(
        None,
        'Put this text before every passage. Default: none, or "text2query: " for a with_prefix '
        "model.",
    )
    prompt: str | None = option(
        None,
        "Prompt the model with this text, which contains {passage}. Default: a prompt for the "
        "model's kind.",
    )
    few_shot: bool | None = option(
        None,
        "Show a causal model three examples before the passage. Default: none, but an endpoint is "
        "always shown them.",
    )
    query_kinds: str | None = option(
        None,
        f"Alternate between these kinds of queries, separated by commas: any of "
        f"{','.join(QUERY_KINDS)}. Default: one kind, the generator's own.",
    )
    max_length: int = option(64, "Generate at most this many tokens for each query.", min=1)
    top_p: float = option(
        0.95,
        "Sample from the most probable tokens that together have this probability.",
        above=0,
        max=1,
    )
    top_k: int = option(25, "Sample from at most this many of the most probable tokens.", min=1)
    batch_size: int = option(32, "Read this many passages at a time.", min=1)
    bf16: bool = option(
        False,
        "Run a local language model in bfloat16 on a CPU, too, which is faster on one that has "
        "instructions for it. Default: bfloat16 on a GPU, float32 on a CPU.",
    )
    max_passages: int | None = option(
        None, "Draw this many passages at random. Default: all.", min=1
    )
    shard_documents: int = option(
        500,
        "Write this many documents to each shard; a killed run resumes after its last shard.",
        min=1,
    )
    seed: int = option(42, "Seed the sampling with this number.", min=0, max=SEED_MAX)
    title_separator: str = option(" ", "Join title and text of a document by this separator.")
    dedupe: bool = option(False, "Keep each query text only once in the whole output.")
    near_duplicates: float | None = option(
        None,
        "Leave out a query whose words have at least this Jaccard similarity to those of an "
        "earlier query. Default: keep near duplicates.",
        above=0,
        max=1,
    )
    filter_retriever: str | None = option(
        None,
        "Keep a query only if this model retrieves its document; named as for evaluate.",
        is_name=True,
    )
    filter_top: int = option(
        1,
        "With --filter-retriever, require the document to be among this many first results.",
        min=1,
    )
    analyzer: str = option("english", ANALYZER_HELP, "--bm25-analyzer", choices=ANALYZERS)
    bm25_weight: float = option(
        BM25_WEIGHT,
        "Give BM25 this weight if the filtering retriever is a fusion.",
        min=0,
        max=1000,
    )

    def __post_init__(self) -> None:
        """Check every option."""
        check_options(self)
        if self.prompt is not None and self.prompt.count(PLACEHOLDER) != 1:
            raise InputError(
                f"the prompt {self.prompt!r} needs {PLACEHOLDER} once; put it where the passage "
                "belongs"
            )
        if self.kinds and self.prompt is not None:
            raise InputError(
                "a prompt and query_kinds exclude each other: kinds have prompts of their own; "
                "leave one of them out"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of queries that alternate, none for the generator's own."""
        return parse_kinds(self.query_kinds)

    def in_kinds(self, filtering: str | None, search: SearchOptions) -> GenerationOptions:
        """Return the options with all kinds of queries that a generator has, where none is named.

        What a language model writes may ask for nothing, or for another document, so it is filtered
        where these options name no filter.

        Args:
            filtering: The model that filters; None for the generator without a model, whose queries
                are words of their documents.
            search: How BM25 analyses texts, and its weight in a fusion that filters.
        """
        changed = self
        if self.query_kinds is None and self.prompt is None:
            all_kinds = [
                name for name, kind in QUERY_KINDS.items() if kind.lexical or filtering is not None
            ]
            changed = replace(changed, query_kinds=",".join(all_kinds))
        if filtering is not None and self.filter_retriever is None:
            changed = replace(
                changed,
                filter_retriever=filtering,
                filter_top=_FILTER_TOP,
                analyzer=search.analyzer,
                bm25_weight=search.bm25_weight,
            )
            if self.near_duplicates is None:
                changed = replace(changed, near_duplicates=_SIMILAR)
        return changed

    @property
    def text_format(self) -> TextFormat:
        """Return the format that joins titles and texts."""
        return TextFormat(title_separator=self.title_separator)

    def generation(self) -> Json:
        """Return the options that decide which queries are generated."""
        return {name: value for name, value in self._recorded().items() if name not in SELECTION}

    def selection(self) -> Json:
        """Return the options that decide which queries are kept.

        BM25's weight is among them only if the retriever of the filter weights BM25.
        """
        options = self._recorded()
        selection = {name: options[name] for name in options if name in SELECTION}
        if not self._weights_bm25():
            del selection["bm25_weight"]
        return selection

    def _recorded(self) -> Json:
        """Return the options as records have them."""
        options = asdict(self)
        for name in _LATER:
            if not options[name]:
                del options[name]
        return options

    def _weights_bm25(self) -> bool:
        if not self.filter_retriever:
            return False
        fusion = FUSIONS.get(ModelSpec.parse(self.filter_retriever).kind)
        return fusion is not None and fusion.weighted
