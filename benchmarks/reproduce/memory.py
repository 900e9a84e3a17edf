"""Estimates of the memory of a GPU that a training takes, or a generation of queries.

A training keeps weights, gradients and moments, for the backward pass the activations of all tokens
that it embeds at a time, and with language-model losses the logits over a vocabulary. A loss that
caches gradients embeds a part of the batch at a time; all others hold the whole batch of a process.
Texts count with the most tokens that they are cut to, as the longest one of a batch pads the
others. The constants are those of BERT-base on an H200 (``benchmarks/results/gpu.json``), and a
test compares the estimates with every figure there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """The shape of a transformer.

    Attributes:
        millions: Its weights, in millions.
        layers: Its layers.
        width: Its dimensions.
    """

    millions: float
    layers: int
    width: int


#: Shapes of a command's models, by the first of these words that it contains.
SHAPES = {
    "gtr-xxl": Shape(4_800, 24, 1_024),
    "gtr-xl": Shape(1_240, 24, 1_024),
    "large": Shape(335, 24, 1_024),
    "distilbert": Shape(66, 6, 768),
    "tas-b": Shape(66, 6, 768),
    "margin-mse": Shape(66, 6, 768),
    "mrl": Shape(66, 6, 768),
    "gpl": Shape(66, 6, 768),
    "target/": Shape(66, 6, 768),
    "generator": Shape(220, 24, 768),
    "doc2query": Shape(220, 24, 768),
}
BASE = Shape(110, 12, 768)

#: Bytes of a weight in training: weights, gradients and two moments in fp32.
_TRAINING_BYTES = 16
#: Bytes that a layer keeps of a token for the backward pass, in parts of its width, by precision:
#: layer norms and sums stay in fp32, and in bf16 each has a copy for the product that follows.
_ACTIVATIONS = {"bfloat16": 44, "float32": 66}
#: Bytes of a hidden state that is kept for a head, in parts of its width.
_STATE_BYTES = 4
#: Bytes of a logit in the backward pass: itself, its probability and their gradients.
_LOGIT_BYTES = 12
#: Words of BERT's vocabulary, and of T5's.
_VOCABULARY = 30_522
_T5_VOCABULARY = 32_128
#: Bytes of the examples' gradients that iDRO holds at a time, and again of their clusters'.
_GRADIENTS_BYTES = 2 * 256 * 2**20
#: Bytes of a weight in the gradients of a cluster, and again in their stack, one call for each.
_CALLS_BYTES = 8
#: Tokens of queries and documents where the options leave them to the checkpoint.
_LENGTHS = (64, 128)
#: Tokens of a generated query, and of the passage that it is generated from.
_GENERATED_TOKENS = 64
_PASSAGE_TOKENS = 144
#: GiB of searches, which follow a training of architectures.
_SEARCH_GIB = 8.0

#: Losses that cache gradients where the batch of a process needs it. The others hold all of it.
CACHING = ("infonce", "lambdarank", "kl_margin")
#: Objectives that hold a part of the batch at a time without a second forward pass.
_ACCUMULATING = ("cotmae",)


@dataclass(frozen=True)
class Held:
    """What a GPU holds for the backward pass of a step.

    Attributes:
        tokens: The tokens that the encoder embeds at a time.
        beside: Tokens times layers of a head or a decoder behind the encoder.
        logits: The logits over a vocabulary.
        states: Whether the hidden states of all layers are kept for a head.
        is_cached: Whether each text passes the encoder once more, to cache gradients.
        precision: The precision of the products.
    """

    tokens: float
    beside: float = 0.0
    logits: float = 0.0
    states: bool = False
    is_cached: bool = False
    precision: str = "auto"


def training_gib(shape: Shape, held: Held) -> float:
    """Return the memory of a GPU that trains an encoder of a shape."""
    name = "float32" if held.precision == "float32" else "bfloat16"
    layer_bytes = shape.width * _ACTIVATIONS[name]
    kept = (held.tokens * shape.layers + held.beside) * layer_bytes
    if held.states:
        kept += held.tokens * (shape.layers + 1) * shape.width * _STATE_BYTES
    kept += held.logits * _LOGIT_BYTES
    return (shape.millions * 1e6 * _TRAINING_BYTES + kept) / GIB


def pretraining(options: Any, shape: Shape, processes: int) -> Held:
    """Return what a step of pre-training holds.

    Args:
        options: Options of the training.
        shape: The shape of the encoder.
        processes: The processes that share a batch.
    """
    objective = options.row("objective")
    examples = options.batch_size / processes
    mini_batch = _mini_batch(options, processes)
    at_once = examples if mini_batch is None else mini_batch
    length = options.longest_text()
    is_decoded = objective.decoder or options.objective == "tsdae"
    columns = 1 if is_decoded else len(objective.columns)
    # Caching embeds one column after the other.
    texts = at_once * columns if mini_batch is None else at_once
    held = Held(
        tokens=texts * length,
        is_cached=mini_batch is not None and options.objective not in _ACCUMULATING,
        precision=options.precision,
    )
    if options.masked:
        held = _with_head(held, options)
    if objective.decoder:
        held = _with_cotmae_decoder(held, options, at_once)
    if options.objective == "tsdae":
        # A decoder of as many layers predicts every token.
        beside = held.tokens * shape.layers
        held = replace(held, beside=beside, logits=held.tokens * _VOCABULARY)
    return held


def _with_head(held: Held, options: Any) -> Held:
    """Add the masked tokens of a language-model head, which may have layers of its own."""
    own_options = options.language_model
    layers = getattr(own_options, "n_head_layers", 0)
    losses = int(getattr(own_options, "late_mlm", True)) + int(layers > 0)
    masked = held.tokens * own_options.mask_probability * losses
    return replace(held, beside=held.tokens * layers, logits=masked * _VOCABULARY, states=True)


def _with_cotmae_decoder(held: Held, options: Any, contexts: float) -> Held:
    """Add the contexts that CoT-MAE's decoder predicts: queries, or other passages."""
    own_options = options.objective_options
    length = options.max_length if own_options.mix else _GENERATED_TOKENS
    tokens = contexts * length
    is_masked = own_options.decoder == "masked"
    layers = own_options.decoder_layers or (2 if is_masked else 1)
    share = own_options.decoder_mask_probability if is_masked else 1.0
    return replace(
        held,
        beside=held.beside + tokens * layers,
        logits=held.logits + tokens * share * _VOCABULARY,
    )


def _mini_batch(options: Any, processes: int) -> int | None:
    """Return the texts that a process embeds at a time; None if all of its batch."""
    # Options refuse a batch of one example, which a process may have of a larger one.
    own_batch = max(2, options.batch_size // processes)
    mini_batch: int | None = replace(options, batch_size=own_batch).cached_mini_batch()
    return mini_batch


def finetuning(options: Any, processes: int) -> Held:
    """Return what a step of fine-tuning holds, in the largest batch of its episodes."""
    query, document = _lengths(options.encoder)
    mini_batch = None
    if options.loss in CACHING and not options.weighted:
        mini_batch = _mini_batch(options, processes)
    warm_up = options.episode_options.warm_up_budget().get("batch_size", 0)
    examples = max(options.batch_size, warm_up) / processes
    tokens = examples * (query + (1 + options.negatives) * document)
    return _held(tokens, mini_batch, document, options.precision)


def distillation(options: Any, processes: int) -> Held:
    """Return what a step of distillation holds."""
    query, document = _lengths(options.encoder)
    mini_batch = _mini_batch(options, processes) if options.loss in CACHING else None
    tokens = options.batch_size / processes * (query + options.list_size * document)
    return _held(tokens, mini_batch, document, options.precision)


def _held(
    tokens: float,
    mini_batch: int | None,
    document: int,
    precision: str,
) -> Held:
    """Return all tokens of a process, or with gradient caching those of a mini-batch."""
    if mini_batch is None:
        return Held(tokens, precision=precision)
    return Held(mini_batch * document, is_cached=True, precision=precision)


def _lengths(encoder: Any) -> tuple[int, int]:
    """Return the most tokens of queries and documents."""
    query, document = _LENGTHS
    return encoder.query_length or query, encoder.document_length or document


def idro_gib(options: Any, shape: Shape) -> float:
    """Return what the gradients of clusters take beside a step; 0 without iDRO."""
    if options.weighting != "idro":
        return 0.0
    own_options = options.weighting_options
    if own_options.gram != "k_calls":
        return _GRADIENTS_BYTES / GIB
    weights = compared_layers(options, shape) * 12 * shape.width**2
    return float(own_options.clusters * weights * _CALLS_BYTES / GIB)


def compared_layers(options: Any, shape: Shape) -> int:
    """Return the last layers whose gradients iDRO compares."""
    chosen: int | None = options.weighting_options.gradient_layers
    return chosen or (3 if shape.layers == BASE.layers else 2)


def architectures_gib(recipe: Any, names: Iterable[str], processes: int) -> float:
    """Return the memory of a GPU that trains and judges architectures, one after the other."""
    trained = set(names)
    if "dense-distilled" in trained and recipe.teacher == "cross-encoder":
        trained.add("cross-encoder")
    needed = [_SEARCH_GIB]
    for name in trained - {"bm25"}:
        held = _architecture(name.partition("@")[0], recipe, processes)
        needed.append(training_gib(BASE, held))
    return max(needed)


def _architecture(name: str, recipe: Any, processes: int) -> Held:
    """Return what a step of an architecture holds: its own batch without gradient caching.

    Dense ones cache gradients of a larger batch than a mini-batch of the defaults.
    """
    from beir_cocodr.training.options import FinetuneOptions

    query, document = _lengths(recipe)
    examples = recipe.batch_size / processes
    documents = {
        "dense-hard": 1 + recipe.negatives,
        "dense-distilled": recipe.list_size,
    }.get(name, 1)
    if name == "cross-encoder":  # which reads a query with each of its documents
        tokens = examples * (1 + recipe.negatives) * (query + document)
    else:
        tokens = examples * (query + documents * document)
    mini_batch = FinetuneOptions().mini_batch_size
    is_cached = name.startswith("dense") and examples > mini_batch
    held = _held(tokens, mini_batch if is_cached else None, document, recipe.precision)
    if name == "splade":
        held = replace(held, logits=tokens * _VOCABULARY)
    return held


def generating_gib(shape: Shape, sequences: int) -> float:
    """Return the memory of a GPU that generates queries.

    Each query keeps keys and values of its tokens and of its passage's in each layer of the
    decoder, half of the layers, in float32, and they are copied when a token is added. A token
    is drawn by its logits, which are sorted.

    Args:
        shape: The shape of the generator.
        sequences: The queries that are generated at a time.
    """
    tokens = _PASSAGE_TOKENS + _GENERATED_TOKENS
    kept = sequences * tokens * 2 * (shape.layers // 2) * shape.width * 4
    drawn = 4 * sequences * _T5_VOCABULARY * 4
    return (shape.millions * 1e6 * 4 + 2 * kept + drawn) / GIB
