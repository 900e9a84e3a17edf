"""Objectives of pre-training: what each sees of a corpus, its options, and its papers.

Nothing here imports torch: options and the command line's help are made from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from beir_cocodr.data.spans import SpannedText, damaged, inverse_cloze, span_pair, twice, window
from beir_cocodr.models.spec import Options, option
from beir_cocodr.provenance import SPANS
from beir_cocodr.training.finetuning.loss_rows import ScaleOptions
from beir_cocodr.training.rows import Row

# The most layers of a head or decoder: each takes a moment to make.
_MOST_LAYERS = 100


@dataclass(frozen=True)
class LanguageModelOptions(Options):
    """Options of objectives that predict masked tokens.

    Args:
        mask_probability: share of the tokens that are masked.
        mlm_weight: weight of the language-model losses beside the contrastive loss. For cotmae it
            is the weight of the encoder's loss beside the decoder's.
    """

    mask_probability: float = option(0.15, min=0, max=1)
    mlm_weight: float = option(
        1.0, "Multiply the language-model losses by this factor; 0 leaves them out.", min=0
    )


@dataclass(frozen=True)
class HeadOptions(LanguageModelOptions):
    """Options of objectives with a Condenser head.

    Args:
        n_head_layers: transformer layers of the head.
        skip_from: layer that the head takes its tokens from. None means half the depth.
        late_mlm: whether the encoder's last layer has a language-model loss, too.
    """

    n_head_layers: int = option(2, min=0, max=_MOST_LAYERS)
    skip_from: int | None = option(
        None,
        "Feed the head with the tokens from this layer. Default: the layer at half the depth.",
        min=0,
    )
    late_mlm: bool = option(True)


@dataclass(frozen=True)
class SpanPairOptions(ScaleOptions, HeadOptions):
    """Options of coco and cocondenser, which pair two spans of a document.

    Args:
        single_spans: whether documents with a single span are used, too, paired with themselves.
            The published code would pair them, but its preparation leaves them out.
    """

    single_spans: bool = option(
        False, "Also use documents of a single span, paired with themselves."
    )


@dataclass(frozen=True)
class ClozeOptions(ScaleOptions):
    """Options of ict.

    Args:
        keep_query: share of the queries that stay in their passage (Lee et al.: 0.1).
    """

    keep_query: float = option(0.1, min=0, max=1)


@dataclass(frozen=True)
class DenoisingOptions(Options):
    """Options of tsdae.

    Args:
        deletion: share of the words that are deleted (Wang et al.: 0.6).
    """

    deletion: float = option(0.6, min=0, max=1)


@dataclass(frozen=True)
class ContextOptions(Options):
    """Options of objectives on generated queries.

    Args:
        per_passage: C, the most queries of a passage that are used. None means all.
        mix: chance that a passage meets another passage of its document instead of a query
            (paper: 0; its Table 4: 0.5).
    """

    per_passage: int | None = option(
        None, "Use at most this many queries for each passage. Default: all.", min=1
    )
    mix: float = option(
        0.0,
        "With this probability, pair a passage with another passage instead of a query. Default: "
        "0.",
        min=0,
        max=1,
    )


@dataclass(frozen=True)
class QueryContextOptions(ContextOptions, ScaleOptions, HeadOptions):
    """Options of qc."""


@dataclass(frozen=True)
class CoTMAEOptions(ContextOptions, LanguageModelOptions):
    """Options of cotmae.

    Args:
        mask_probability: share of the tokens that are masked for the encoder.
        decoder: "autoregressive" or "masked".
        decoder_layers: transformer layers of the decoder. None means 1 autoregressive or 2 masked
            ones.
        decoder_window: attention window of the autoregressive decoder.
        decoder_mask_probability: share of the tokens that are masked for the masked decoder.
    """

    mask_probability: float = 0.3
    decoder: str = option(
        "autoregressive",
        "Use this decoder in cotmae: autoregressive (default) or masked.",
        choices=("autoregressive", "masked"),
    )
    decoder_layers: int | None = option(None, min=1, max=_MOST_LAYERS)
    decoder_window: int = option(3, min=1)
    decoder_mask_probability: float = option(0.45, min=0, max=1)


@dataclass(frozen=True)
class View:
    """The way in which the texts of an objective are drawn from a document.

    Attributes:
        draw: draws the texts, one for each column of the objective.
        two_spans: whether a document must have two spans.
        options: names of the objective's own options that ``draw`` takes.
    """

    draw: Callable[..., tuple[str, ...]]
    two_spans: bool = False
    options: tuple[str, ...] = ()

    def texts(
        self, own_options: Options | None, document: SpannedText, rng: np.random.Generator
    ) -> tuple[str, ...]:
        """Return the texts of one document, one for each column."""
        return self.draw(
            document, rng, **{name: getattr(own_options, name) for name in self.options}
        )


@dataclass(frozen=True, kw_only=True)
class Objective(Row):
    """A way to learn from a corpus without labels.

    ``build`` is called with the model, the
    :class:`~beir_cocodr.training.options.PretrainOptions` and the texts embedded at a time (None
    for all), and returns the loss.

    Attributes:
        view: how its texts are drawn from a document. None means that it sees passages and
            queries generated for them, see
            :class:`~beir_cocodr.training.pretraining.context_views.ContextViews`.
        contrastive: whether a text is compared with the other documents of its batch.
        decoder: whether CoT-MAE's decoder reads the head; texts are then masked whatever the
            weights.
        dropout: whether the encoder has dropout by default.
        needs_dropout: whether it must have dropout.
        rehearses_mixed: what it practises beside ``rehearses`` if passages meet other passages.
        defaults: options of :class:`~beir_cocodr.training.options.PretrainOptions` in which its
            paper differs from COCO.
    """

    view: View | None = None
    contrastive: bool = False
    decoder: bool = False
    dropout: bool = True
    needs_dropout: bool = False
    rehearses_mixed: tuple[str, ...] = ()
    defaults: Mapping[str, float] = field(default_factory=dict)

    @property
    def on_queries(self) -> bool:
        """Return true if it needs generated queries."""
        return self.view is None

    @property
    def masked(self) -> bool:
        """Return true if it has language-model losses over masked tokens."""
        return self.options is not None and issubclass(self.options, LanguageModelOptions)

    def rehearsed(self, own_options: Options | None) -> tuple[str, ...]:
        """Return what a training with these own options practises."""
        mixed = isinstance(own_options, ContextOptions) and own_options.mix > 0
        if mixed:
            return self.rehearses + self.rehearses_mixed
        return self.rehearses


_BUILDERS = "beir_cocodr.training.finetuning.loss_builders"
_SPAN_COLUMNS = {"span_1": "document", "span_2": "document"}
_WINDOW_COLUMNS = {"window": "document"}
_CONTEXT_COLUMNS = {"passage": "document", "context": "query"}

# The most tokens of a generated query's passage, special tokens included.
_PASSAGE = {"max_length": 144}

#: Name to objective: COCO and its rivals (COCO-DR, Table 3), and query-as-context pre-training.
#: Add a row for your own.
OBJECTIVES: dict[str, Objective] = {
    "coco": Objective(
        build=f"{_BUILDERS}:coco",
        help="two spans of a document find each other, and language-model losses",
        options=SpanPairOptions,
        columns=_SPAN_COLUMNS,
        rehearses=(SPANS,),
        citations=("yu2022cocodr",),
        view=View(span_pair, two_spans=True),
        contrastive=True,
        dropout=False,
    ),
    "mlm": Objective(
        build=f"{_BUILDERS}:coco",
        help="masked language modelling from the last layer alone",
        options=LanguageModelOptions,
        columns=_WINDOW_COLUMNS,
        citations=("devlin2019bert",),
        view=View(window),
    ),
    "condenser": Objective(
        build=f"{_BUILDERS}:coco",
        help="the language-model losses of coco alone, on one window of each document",
        options=HeadOptions,
        columns=_WINDOW_COLUMNS,
        citations=("gao2021condenser",),
        view=View(window),
    ),
    "cocondenser": Objective(
        build=f"{_BUILDERS}:coco",
        help="as coco with encoder dropout, meant for the source corpus",
        options=SpanPairOptions,
        columns=_SPAN_COLUMNS,
        rehearses=(SPANS,),
        citations=("gao2022cocondenser",),
        view=View(span_pair, two_spans=True),
        contrastive=True,
    ),
    "simcse": Objective(
        build=f"{_BUILDERS}:simcse",
        help="a window finds itself under other dropout",
        options=ScaleOptions,
        columns={"view_1": "document", "view_2": "document"},
        citations=("gao2021simcse",),
        view=View(twice),
        contrastive=True,
        needs_dropout=True,
    ),
    "ict": Objective(
        build=f"{_BUILDERS}:contrastive",
        help="a span finds the rest of its window",
        options=ClozeOptions,
        columns={"query": "query", "passage": "document"},
        rehearses=(SPANS,),
        citations=("lee2019ict",),
        view=View(inverse_cloze, two_spans=True, options=("keep_query",)),
        contrastive=True,
    ),
    "tsdae": Objective(
        build=f"{_BUILDERS}:tsdae",
        help="a decoder rebuilds a window from the embedding of what is left of it",
        options=DenoisingOptions,
        columns={"damaged": "document", "original": "document"},
        rehearses=(SPANS,),  # the embedding of a part has to give the whole
        citations=("wang2021tsdae",),
        view=View(damaged, options=("deletion",)),
    ),
    "qc": Objective(
        build=f"{_BUILDERS}:coco",
        help="a passage and a query generated for it find each other",
        options=QueryContextOptions,
        columns=_CONTEXT_COLUMNS,
        rehearses_mixed=(SPANS,),
        citations=("wu2023qc",),
        contrastive=True,
        defaults=_PASSAGE,
    ),
    "cotmae": Objective(
        build=f"{_BUILDERS}:cotmae",
        help="a decoder rebuilds a query from its passage's embedding",
        options=CoTMAEOptions,
        columns=_CONTEXT_COLUMNS,
        rehearses_mixed=(SPANS,),
        citations=("wu2023cotmae",),
        decoder=True,
        defaults=_PASSAGE | {"batch_size": 16_384, "learning_rate": 4e-4},
    ),
}
