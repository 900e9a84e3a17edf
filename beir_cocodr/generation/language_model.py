"""Queries sampled from a sequence-to-sequence or causal language model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    LogitsProcessorList,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.passages import Passage, fitting_prefix
from beir_cocodr.data.text import (
    cut_text,
    load_tokenizer,
    read_literally,
    token_counter,
    without_thoughts,
)
from beir_cocodr.errors import InputError, explained
from beir_cocodr.generation.generators import LOCAL_PREFIX, Generated, Query
from beir_cocodr.generation.own_draws import OwnDraws, draws_of
from beir_cocodr.generation.query_kinds import kinds_in_turn
from beir_cocodr.generation.question_prompt import few_shot_prompt
from beir_cocodr.generation.settings import PLACEHOLDER, GenerationOptions
from beir_cocodr.io import text_sha256
from beir_cocodr.models.checkpoints.integrity import GENERATOR, check_loaded, loading
from beir_cocodr.models.checkpoints.loading import weights_sha256
from beir_cocodr.models.checkpoints.model_files import DAMAGED
from beir_cocodr.records import Json

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

# The prefix that the models of doc2query with "with_prefix" in their names were trained on.
_PREFIX = "text2query: "

# The end of a file with the weights, the settings and the tokenizer of a model.
_GGUF = ".gguf"

# A tokenizer without a limit reports one beyond this.
_NO_LIMIT = 1 << 30

# The least tokens of a passage in a prompt.
_LEAST_PASSAGE = 8

log = logging.getLogger(__name__)


class ModelGenerator:
    """A generator that samples from a language model: the nucleus of the top k tokens, no beams.

    The passages of a shard are read in batches of about equal length, the longest first. Every
    query is sampled with random numbers of its own, made of the seed, the shard, the passage's text
    and the prompt, so that it depends neither on what was generated before it nor on the passages
    beside it. These matter by rounding alone: a model computes slightly different scores when it
    reads other passages with one, which changes a query very rarely in float32 and now and then in
    bfloat16. A prompt that is longer than the model can read loses the end of its passage, which is
    counted.

    Use :func:`load_generator`, which chooses the subclass by the model's configuration.

    Args:
        name: Hub name or folder of the model.
        options: How queries are generated.
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.

    References:
        Wu et al., Query-as-context pre-training for dense passage retrieval, 2023, section 3.1.
    """

    kind: ClassVar[str]
    #: The host's class that loads the model.
    host: ClassVar[Any]
    #: Pad prompts on the left, so that a query follows its prompt without padding.
    pads_left: ClassVar[bool] = False
    #: What the model reads if the options name no prompt.
    default_prompt: ClassVar[str]

    def __init__(
        self,
        name: str,
        options: GenerationOptions,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        """Check that the model has room for a query, and writes one token."""
        self.name = name
        self.options = options
        self.model = model
        self.tokenizer = tokenizer
        self.counter = token_counter(tokenizer)
        self.template = self._template()
        self.templates = {kind: few_shot_prompt(kind) for kind in options.kinds}
        prompts = list(self.templates.values()) or [self.template]
        self._literally = read_literally(tokenizer, prompts)
        self.room = self._room(prompts)
        self.sampling = self._sampling()
        self._check_writes()

    def query_start(self, prompt_tokens: int) -> int:
        """Return the column of the output in which the query begins."""
        raise NotImplementedError

    def query_text(self, text: str) -> str:
        """Return the query in the text that the model has written."""
        return text

    def extra_ends(self) -> list[int]:
        """Return the tokens that end a query beside the model's own."""
        return []

    def reserved_tokens(self) -> int:
        """Return the number of positions of a prompt that are needed for the query."""
        return 0

    def describe(self) -> Json:
        """Return what the queries depend on beside passages and options."""
        return {
            "name": self.name,
            "kind": self.kind,
            "sha256": weights_sha256(self.model),
            "tokenizer_sha256": self.counter.sha256,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "template": self.templates or self.template,
            "sampling": self.sampling.to_diff_dict(),
        }

    def prepare(self, folder: Path) -> None:
        """Do nothing: the model is all that is needed."""

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """Return the queries of a shard's passages, and the number of passages that were cut."""
        asked = self._asked(passages)
        prompts: list[str] = []
        rows_cut: set[int] = set()
        for row, template in asked:
            prompt, is_cut = self._prompt(passages[row].text, template)
            prompts.append(prompt)
            if is_cut:
                rows_cut.add(row)
        lengths = np.array(self.counter.count(prompts))
        longest_first = np.argsort(-lengths, kind="stable")
        seeds = self._seeds([(passages[row].text, template) for row, template in asked], shard)
        written: list[list[Query]] = [[] for _ in asked]
        size = self.options.batch_size
        for start in range(0, len(prompts), size):
            positions = longest_first[start : start + size].tolist()
            sampled = self._sampled(
                [prompts[position] for position in positions],
                [seeds[position] for position in positions],
            )
            for position in positions:
                written[position] = [next(sampled) for _ in range(self._samples)]
        queries: list[list[Query]] = [[] for _ in passages]
        for (row, _), texts in zip(asked, written, strict=True):
            queries[row] += texts
        return Generated(queries, {"passages_cut": len(rows_cut)})

    def prompts_of(self, passage: Passage) -> list[str]:
        """Return what the model reads for a passage: without kinds, one prompt for all queries."""
        return [_filled(template, passage.text) for _, template in self._asked([passage])]

    def _asked(self, passages: Sequence[Passage]) -> list[tuple[int, str]]:
        """Return the row of the passage and the template of each prompt."""
        if not self.templates:
            return [(row, self.template) for row in range(len(passages))]
        asked = []
        for row, passage in enumerate(passages):
            kinds = kinds_in_turn(self.options.kinds, passage.text, self.options.per_passage)
            asked += [(row, self.templates[kind]) for kind in kinds]
        return asked

    def _seeds(self, asked: Sequence[tuple[str, str]], shard: int) -> list[tuple[int, ...]]:
        """Return a seed for each text and template; equal ones are told apart by their order."""
        earlier: Counter[tuple[str, str]] = Counter()
        seeds: list[tuple[int, ...]] = []
        for text, template in asked:
            content = int(text_sha256(template, text), 16)
            seeds.append((self.options.seed, shard, content, earlier[text, template]))
            earlier[text, template] += 1
        return seeds

    @property
    def _samples(self) -> int:
        """Return the number of queries that are sampled from a prompt."""
        return 1 if self.templates else self.options.per_passage

    def _sampled(self, prompts: list[str], seeds: list[tuple[int, ...]]) -> Iterator[Query]:
        """Return the queries of a batch, as many for each prompt, in their order."""
        inputs = self._inputs(prompts)
        device = self.model.device
        forked = []
        if device.type == "cuda":
            forked = [device]
        draws = draws_of(seeds, self._samples, self.options.max_length)
        own_draws = OwnDraws(draws, self.options.top_k, self.options.top_p)
        problem = f"{len(prompts)} passages at a time do not fit into the memory of {device}"
        # Only one token is left to draw, but the host moves the caller's random numbers on.
        with (
            torch.inference_mode(),
            torch.random.fork_rng(forked),
            explained(problem, "lower --batch-size", torch.OutOfMemoryError),
        ):
            try:
                output = self.model.generate(
                    **inputs,
                    generation_config=self.sampling,
                    logits_processor=LogitsProcessorList([own_draws]),
                )
            except RuntimeError as error:  # the host samples by numbers that are none
                if "probability tensor" not in str(error):
                    raise
                raise InputError(
                    f"the generator {self.name} computes probabilities that are no numbers; "
                    f"{DAMAGED}"
                ) from None
        start = self.query_start(inputs["input_ids"].shape[1])
        written = output[:, start:].cpu()  # (prompts * samples, at most max_length)
        end_ids = _as_list(self.sampling.eos_token_id)
        ends = torch.tensor(end_ids, dtype=written.dtype)
        has_ended = torch.isin(written, ends).any(1)
        is_full = written.shape[1] >= self.options.max_length
        is_cut = ~has_ended & is_full
        texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
        query_texts = map(self.query_text, texts)
        return map(Query, query_texts, is_cut.tolist())

    def _inputs(self, prompts: list[str]) -> dict[str, torch.Tensor]:
        encoded = self.tokenizer(
            prompts,
            padding=True,
            verbose=False,
            return_tensors="pt",
        )
        names = ("input_ids", "attention_mask")
        return {name: encoded[name].to(self.model.device) for name in names}

    def _check_writes(self) -> None:
        """Write a token for two texts: settings may name what does not exist, or fit one text."""
        settings = self.sampling.to_diff_dict()
        settings |= {"max_new_tokens": 1, "num_return_sequences": 1}
        one_token = GenerationConfig(**settings)
        with (
            loading(self.name, GENERATOR, "generator"),
            torch.inference_mode(),
            torch.random.fork_rng(),
        ):
            inputs = self._inputs([_filled(self.template, "a")] * 2)
            self.model.generate(**inputs, generation_config=one_token)

    def _prompt(self, text: str, template: str) -> tuple[str, bool]:
        """Return what the model reads for a passage, and true if the passage was cut for it."""
        if self.room is None:
            return _filled(template, self._literally(text)), False

        def tokens(texts: Sequence[str]) -> list[int]:
            return self.counter.count([_filled(template, one) for one in texts])

        readable, loses_words = cut_text(text, self.room)
        literal = self._literally(readable)
        [length] = tokens([literal])
        is_long = length > self.room
        if is_long:
            literal = fitting_prefix(literal, tokens, self.room)
        return _filled(template, literal), loses_words or is_long

    def _room(self, templates: Sequence[str]) -> int | None:
        """Return the most tokens of a prompt, or None if no limit is known."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        limits: list[int] = []
        for limit in (positions, self.tokenizer.model_max_length):
            if limit and limit < _NO_LIMIT:
                limits.append(limit)
        if not limits:
            return None
        most = min(limits)
        room = most - self.reserved_tokens()
        empty_prompts = [_filled(template, "") for template in templates]
        without_passage = max(self.counter.count(empty_prompts))
        if room < without_passage + _LEAST_PASSAGE:
            raise InputError(
                f"generator {self.name!r} reads {most} tokens, too few for its prompt and a query "
                f"of {self.options.max_length} tokens; lower --max-length, or shorten the prompt"
            )
        return room

    def _sampling(self) -> GenerationConfig:
        """Return the settings of every call; the model's own are used for special tokens alone."""
        defaults = self.model.generation_config
        ends = _as_list(defaults.eos_token_id) or _as_list(self.tokenizer.eos_token_id)
        ends += self.extra_ends()
        padding = defaults.pad_token_id
        if padding is None:
            padding = self.tokenizer.pad_token_id
        return GenerationConfig(
            do_sample=True,
            top_p=self.options.top_p,
            top_k=self.options.top_k,
            temperature=1.0,
            num_beams=1,
            num_return_sequences=self._samples,
            max_new_tokens=self.options.max_length,
            max_length=None,
            min_length=0,
            eos_token_id=ends or None,
            pad_token_id=padding,
        )

    def _template(self) -> str:
        """Return the text that the model reads, with the placeholder of the passage."""
        prefix = self.options.prefix
        if prefix is None:
            prefix = _PREFIX if "with_prefix" in self.name else ""
            if prefix:
                log.info(
                    "%s: %r is put before every passage; --prefix changes it", self.name, prefix
                )
        return prefix + (self.options.prompt or self._usual_prompt())

    def _usual_prompt(self) -> str:
        """Return the prompt without one in the options."""
        return self.default_prompt


class Seq2SeqGenerator(ModelGenerator):
    """A generator that samples from an encoder-decoder, such as a doc2query T5."""

    kind = "seq2seq"
    host = AutoModelForSeq2SeqLM
    default_prompt = PLACEHOLDER

    def query_start(self, prompt_tokens: int) -> int:
        """Return the column after the start token."""
        return 1


class CausalGenerator(ModelGenerator):
    """A generator that samples from a causal model, which continues a prompt.

    Only the first line that the model writes is the query, without thoughts in it. A model whose
    thoughts have several lines writes no query.
    """

    kind = "causal"
    host = AutoModelForCausalLM
    pads_left = True
    default_prompt = f"Passage: {PLACEHOLDER}\nSearch query:"

    def query_start(self, prompt_tokens: int) -> int:
        """Return the column after the prompt."""
        return prompt_tokens

    def query_text(self, text: str) -> str:
        """Return the first line after the model's thoughts."""
        return without_thoughts(text).partition("\n")[0]

    def extra_ends(self) -> list[int]:
        """Return the tokens with a line feed, which ends a query."""
        tokens = [[token] for token in range(len(self.tokenizer))]
        texts = self.tokenizer.batch_decode(tokens)
        return [token for token, text in enumerate(texts) if "\n" in text]

    def _usual_prompt(self) -> str:
        """Return the prompt without one in the options, with examples if they ask for some."""
        if self.options.few_shot:
            return few_shot_prompt()
        return self.default_prompt

    def reserved_tokens(self) -> int:
        """Return the length of a query, as the model reads what it writes."""
        return self.options.max_length


def build(
    name: str,
    documents: Documents,
    options: GenerationOptions,
    device: str | None,
) -> ModelGenerator:
    """Build the generator, for its row in the table of generators."""
    return load_generator(name.removeprefix(LOCAL_PREFIX), options, device)


def load_generator(
    name: str,
    options: GenerationOptions,
    device: str | None = None,
) -> ModelGenerator:
    """Load a language model as a generator, in bfloat16 on a GPU or if the options say so.

    Args:
        name: Hub name or folder of any encoder-decoder or causal model, or the path of a GGUF file,
            which the package gguf reads.
        options: How queries are generated.
        device: Default: a GPU if there is one.

    Raises:
        InputError: There is no such model, it has no decoder or tokenizer, lacks the weights of its
            decoder, or reads too few tokens.
    """
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.float32
    if target.type == "cuda" or options.bf16:
        dtype = torch.bfloat16
    source, settings = _source(name)
    with loading(source, GENERATOR, "generator", trusted=bool(settings)):
        kind = _generator_class(name, AutoConfig.from_pretrained(source, **settings))
        tokenizer = load_tokenizer(source, **settings)
        model = kind.host.from_pretrained(source, dtype=dtype, **settings)
        check_loaded(model, tokenizer, name, "generator")
    problem = f"device {device!r} cannot be used"
    with explained(problem, "choose another --device", RuntimeError, AssertionError):
        model = model.eval().to(target)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if kind.pads_left:
        tokenizer.padding_side = "left"
    return kind(name, options, model, tokenizer)


def _source(name: str) -> tuple[str, dict[str, str]]:
    """Return what the host loads by a name, and the settings that a GGUF file needs."""
    if not name.endswith(_GGUF):
        return name, {}
    file = Path(name)
    if not file.is_file():
        raise InputError(f"generator {name!r}: there is no such file; correct the path")
    if find_spec("gguf") is None:
        raise InputError(f"generator {name!r}: a GGUF file needs gguf; pip install gguf")
    return str(file.parent), {"gguf_file": file.name}


def _generator_class(name: str, config: PretrainedConfig) -> type[ModelGenerator]:
    """Return the generator of a model by its configuration."""
    if config.is_encoder_decoder:
        return Seq2SeqGenerator
    is_known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # The host counts BERT and related encoders among the causal models, for the few that were
    # trained as decoders.
    is_encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    is_decoder = getattr(config, "is_decoder", False)
    if is_known and (is_decoder or not is_encoder):
        return CausalGenerator
    raise InputError(
        f"generator {name!r} is a {config.model_type} without a decoder, which cannot generate "
        "text; name an encoder-decoder such as a doc2query T5, a causal language model, or "
        "'lexical'"
    )


def _filled(template: str, text: str) -> str:
    """Return a prompt with the text of a passage in its place."""
    return template.replace(PLACEHOLDER, text)


def _as_list(ids: int | list[int] | None) -> list[int]:
    """Return the host's token ids, one or several or none, as a list."""
    if ids is None:
        return []
    if isinstance(ids, int):
        return [ids]
    return list(ids)
