"""Queries by a sequence-to-sequence or causal language model."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from beir_cocodr.data.passages import Passage, fitting_prefix
from beir_cocodr.data.text import cut_text, load_tokenizer, read_literally, token_counter
from beir_cocodr.errors import InputError, explained
from beir_cocodr.generation.settings import PLACEHOLDER, GenerationOptions
from beir_cocodr.generation.shards import Generated, Query
from beir_cocodr.models.integrity import GENERATOR, check_loaded, loading
from beir_cocodr.models.loading import weights_sha256
from beir_cocodr.records import Json

Kind = Literal["seq2seq", "causal"]


def _load(name: str, device: str | None) -> tuple[Any, Any, Kind]:
    """A language model in evaluation mode, its tokenizer, and its kind; in bfloat16 on a GPU, in
    float32 elsewhere.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    with loading(name, GENERATOR, "generator"):
        kind = _kind(name, AutoConfig.from_pretrained(name))
        loader = AutoModelForSeq2SeqLM if kind == "seq2seq" else AutoModelForCausalLM
        tokenizer = load_tokenizer(name)
        model = loader.from_pretrained(name, dtype=dtype)
        check_loaded(model, tokenizer, name, "generator")
    with explained(
        f"device {device!r} cannot be used", "choose another --device", RuntimeError, AssertionError
    ):
        model = model.eval().to(place)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if kind == "causal":
        tokenizer.padding_side = "left"  # what is written has to follow the prompt at once
    return model, tokenizer, kind


def _kind(name: str, config: Any) -> Kind:
    if config.is_encoder_decoder:
        return "seq2seq"
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # The host counts BERT and its like among the causal models, for the few that were trained as
    # decoders.
    encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if known and not (encoder and not getattr(config, "is_decoder", False)):
        return "causal"
    raise InputError(
        f"generator {name!r} is a {config.model_type} without a decoder, which cannot write; name an "
        "encoder-decoder such as a doc2query T5, a causal language model, or 'lexical'"
    )


log = logging.getLogger(__name__)
_PREFIX = "text2query: "
_CAUSAL_PROMPT = f"Passage: {PLACEHOLDER}\nSearch query:"


class ModelGenerator:
    """Samples queries from a language model: the top k, of them the nucleus, and no beams.

    The passages of a shard are read in batches of about equal length, the longest first. Every
    batch is sampled by a seed of its own, made of the seed, the shard and the batch, so that a
    query does not depend on what was generated before it. Of what a causal model writes behind its
    prompt, only the first line is the query. A prompt that the model cannot read whole loses the
    end of its passage, counted. ``counter`` counts tokens as the model does.

    Args:
        name: a hub name or a folder, of any encoder-decoder or causal model; an InputError where
            there is none, or it has no decoder or tokenizer, or lacks the decoder's weights.
        options: how queries are generated.
        device: default: a GPU if there is one. On a GPU the model runs in bfloat16.

    Source: Wu et al., 2023 (Query-as-context Pre-training), section 3.1.
    """

    def __init__(self, name: str, options: GenerationOptions, device: str | None = None) -> None:
        self.name, self.options = name, options
        self.model, self.tokenizer, self.kind = _load(name, device)
        self.counter = token_counter(self.tokenizer)
        self.template = _template(name, self.kind, options)
        self._literally = read_literally(self.tokenizer, [self.template])
        self.room = self._room()
        self.sampling = self._sampling()
        self._check_writes()

    def _check_writes(self) -> None:
        """Write one token: what the settings of a model name may not be there."""
        once = GenerationConfig(
            **self.sampling.to_diff_dict() | {"max_new_tokens": 1, "num_return_sequences": 1}
        )
        with (
            loading(self.name, GENERATOR, "generator"),
            torch.inference_mode(),
            torch.random.fork_rng(),
        ):
            self.model.generate(**self._fed(self._filled(["a"])), generation_config=once)

    def _fed(self, prompts: list[str]) -> dict[str, torch.Tensor]:
        inputs = self.tokenizer(prompts, padding=True, verbose=False, return_tensors="pt")
        return {
            name: inputs[name].to(self.model.device) for name in ("input_ids", "attention_mask")
        }

    def describe(self) -> Json:
        return {
            "name": self.name,
            "kind": self.kind,
            "sha256": weights_sha256(self.model),
            "tokenizer_sha256": self.counter.sha256,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "template": self.template,
            "sampling": self.sampling.to_diff_dict(),
        }

    def prepare(self, folder: Path) -> None:
        """Nothing has to be made."""

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """See :class:`~beir_cocodr.generation.shards.Generator`; counts passages cut to fit."""
        prompts, passages_cut = self._prompts([passage.text for passage in passages])
        order = np.argsort(-np.array(self.counter.count(prompts)), kind="stable")
        queries: list[list[Query]] = [[] for _ in passages]
        for batch, start in enumerate(range(0, len(order), self.options.batch_size)):
            chosen = order[start : start + self.options.batch_size].tolist()
            sampled = self._sampled([prompts[i] for i in chosen], (self.options.seed, shard, batch))
            for i in chosen:
                queries[i] = [next(sampled) for _ in range(self.options.per_passage)]
        return Generated(queries, {"passages_cut": passages_cut})

    def _sampled(self, prompts: list[str], seed: tuple[int, int, int]) -> Iterator[Query]:
        """The queries of a batch, ``per_passage`` for each prompt in turn."""
        fed = self._fed(prompts)
        start = (
            fed["input_ids"].shape[1] if self.kind == "causal" else 1
        )  # behind the prompt, or BOS
        cuda = self.model.device.type == "cuda"
        with torch.inference_mode(), torch.random.fork_rng([self.model.device] if cuda else []):
            torch.manual_seed(
                int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) >> 1
            )
            many = f"{len(prompts)} passages at a time do not fit into the memory of {self.model.device}"
            with explained(many, "lower --batch-size", torch.OutOfMemoryError):
                output = self.model.generate(**fed, generation_config=self.sampling)
        written = output[:, start:].cpu()  # (prompts * per_passage, at most max_length)
        ends = torch.isin(
            written, torch.tensor(_listed(self.sampling.eos_token_id), dtype=written.dtype)
        )
        cut = ~ends.any(1) & (written.shape[1] >= self.options.max_length)
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        if self.kind == "causal":
            texts = [text.partition("\n")[0] for text in texts]
        return map(Query, texts, cut.tolist())

    def _prompts(self, texts: list[str]) -> tuple[list[str], int]:
        """What the model reads for each passage, and how many passages were cut."""
        if self.room is None:
            return self._filled([self._literally(text) for text in texts]), 0
        found = [cut_text(text, self.room) for text in texts]
        texts = [self._literally(text) for text, _ in found]
        lengths = self._prompt_tokens(texts)
        shortened = [
            text if length <= self.room else fitting_prefix(text, self._prompt_tokens, self.room)
            for text, length in zip(texts, lengths, strict=True)
        ]
        passages_cut = sum(
            cut or length > self.room for (_, cut), length in zip(found, lengths, strict=True)
        )
        return self._filled(shortened), passages_cut

    def _filled(self, texts: Sequence[str]) -> list[str]:
        return [self.template.replace(PLACEHOLDER, text) for text in texts]

    def _prompt_tokens(self, texts: Sequence[str]) -> list[int]:
        return self.counter.count(self._filled(texts))

    def _room(self) -> int | None:
        """The most tokens of a prompt; None where nothing is known to limit them."""
        config = self.model.config
        positions = getattr(config, "max_position_embeddings", None)
        limits = [
            limit
            for limit in (positions, self.tokenizer.model_max_length)
            if limit and limit < 1 << 30
        ]
        if not limits:
            return None
        room: int = min(limits) - (self.options.max_length if self.kind == "causal" else 0)
        [needed] = self._prompt_tokens([""])
        if room < needed + 8:
            raise InputError(
                f"generator {self.name!r} reads {min(limits)} tokens, too few for its prompt and a query of "
                f"{self.options.max_length} tokens; lower --max-length, or shorten the prompt"
            )
        return room

    def _sampling(self) -> GenerationConfig:
        """The settings of every call; what they leave open, such as special tokens, is the model's
        own.
        """
        own = self.model.generation_config
        ends = _listed(own.eos_token_id) or _listed(self.tokenizer.eos_token_id)
        if self.kind == "causal":
            texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
            ends += [
                token for token, text in enumerate(texts) if "\n" in text
            ]  # a line feed ends a query
        pad = own.pad_token_id if own.pad_token_id is not None else self.tokenizer.pad_token_id
        return GenerationConfig(
            do_sample=True,
            top_p=self.options.top_p,
            top_k=self.options.top_k,
            temperature=1.0,
            num_beams=1,
            num_return_sequences=self.options.per_passage,
            max_new_tokens=self.options.max_length,
            max_length=None,
            min_length=0,
            eos_token_id=ends or None,
            pad_token_id=pad,
        )


def _template(name: str, kind: str, options: GenerationOptions) -> str:
    """The text that a model reads, the passage still to be put in."""
    prefix = options.prefix
    if prefix is None:
        prefix = _PREFIX if "with_prefix" in name else ""
        if prefix:
            log.info("%s: %r is put before every passage; --prefix says otherwise", name, prefix)
    return prefix + (options.prompt or (_CAUSAL_PROMPT if kind == "causal" else PLACEHOLDER))


def _listed(ids: int | list[int] | None) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)
