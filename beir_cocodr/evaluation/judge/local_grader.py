"""A causal language model of transformers as a judge."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from beir_cocodr.data.text import check_vocabulary, read_literally
from beir_cocodr.errors import InputError, explained
from beir_cocodr.evaluation.judge.graders import LOCAL, Reply
from beir_cocodr.evaluation.judge.prompt import GRADES, LEAD
from beir_cocodr.models.checkpoints.integrity import Task, check_loaded, loading
from beir_cocodr.models.checkpoints.loading import tokenizer_sha256, weights_sha256

_JUDGE = Task(
    "the weights of its decoder and its output layer",
    "name a causal language model that follows instructions",
)

# Prompts that are read at a time.
_BATCH = 8

# A tokenizer without a limit reports one beyond this.
_NO_LIMIT = 1 << 30


class LocalGrader:
    """A judge that chooses the likeliest of the four grades as the first word of its answer.

    The answer is begun for the model ("Grade:"), and the probabilities of the four digits are
    compared. So every answer has a grade, a model that explains itself first included, and one pass
    over the prompt is enough.

    Args:
        name: Hub name, folder or GGUF file.
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer, which pads on the left.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
    ) -> None:
        """Find out how the model writes the grades."""
        self.name = f"{LOCAL}{name}"
        self.model = model
        self.tokenizer = tokenizer
        self._literally = read_literally(tokenizer, [self._conversation("a")])
        self.lead, self.digits = self._answers()
        self.identity = " ".join(
            [weights_sha256(model), tokenizer_sha256(tokenizer), str(model.dtype), self._begun("a")]
        )

    def count_tokens(self, prompts: Sequence[str]) -> int:
        """Return the number of tokens of some prompts."""
        return sum(len(tokens) for tokens in self._tokens(prompts))

    def replies(self, prompts: Sequence[str]) -> Iterator[tuple[int, Reply]]:
        """Yield the number of each prompt with the reply to it, the shortest prompts first.

        A prompt that is longer than the model reads gets a reply without a grade.

        Raises:
            InputError: The prompts do not fit into memory.
        """
        tokens = self._tokens(prompts)
        lengths = np.array([len(ids) for ids in tokens], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        limit = self._limit()
        readable = order
        if limit is not None:
            readable = order[lengths[order] <= limit]
        too_long = order[len(readable) :]
        for start in range(0, len(readable), _BATCH):
            rows = readable[start : start + _BATCH].tolist()
            batch = [tokens[row] for row in rows]
            grades = self._grade(batch)
            for row, ids, grade in zip(rows, batch, grades, strict=True):
                reply = f"{LEAD} {grade}"
                yield row, Reply(reply, len(ids) + 1)
        for row in too_long.tolist():
            problem = f"{lengths[row]} tokens, and the model reads {limit}"
            yield row, Reply(problem, 0)

    def _grade(self, batch: list[list[int]]) -> list[int]:
        """Return the likeliest grade for each prompt."""
        inputs = self.tokenizer.pad({"input_ids": batch}, return_tensors="pt")
        one_token = GenerationConfig(
            max_new_tokens=1,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        problem = f"{len(batch)} prompts at a time do not fit into the memory of the device"
        with (
            torch.inference_mode(),
            explained(problem, "name a smaller judge", torch.OutOfMemoryError),
        ):
            output = self.model.generate(
                **inputs.to(self.model.device), generation_config=one_token
            )
        logits = output.logits[0][:, self.digits]  # (B, 4)
        best = logits.float().argmax(dim=1).tolist()
        return [GRADES[number] for number in best]

    def _tokens(self, prompts: Sequence[str]) -> list[list[int]]:
        texts = [self._begun(self._literally(prompt)) for prompt in prompts]
        encoded = self.tokenizer(texts, add_special_tokens=False)
        tokens: list[list[int]] = encoded["input_ids"]
        return tokens

    def _begun(self, prompt: str) -> str:
        return self._conversation(prompt) + self.lead

    def _conversation(self, prompt: str) -> str:
        """Return the prompt in the model's form of a conversation; as it is where it has none."""
        if not self.tokenizer.chat_template:
            return f"{prompt}\n\n"
        conversation: str = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
        )
        return conversation

    def _answers(self) -> tuple[str, list[int]]:
        """Return the beginning of the answer after which each grade is one token, and the tokens.

        Raises:
            InputError: The tokenizer does not write the grades as single tokens.
        """
        for lead, space in ((f"{LEAD} ", ""), (LEAD, " ")):
            begun = self._conversation("a") + lead
            before = self._encode(begun)
            continued = [self._encode(f"{begun}{space}{grade}") for grade in GRADES]
            if all(ids[:-1] == before for ids in continued):
                return lead, [ids[-1] for ids in continued]
        raise InputError(
            f"judge {self.name}: its tokenizer does not write the grades 0 to 3 as one token each; "
            "name another, or serve it and name URL#MODEL"
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _limit(self) -> int | None:
        """Return the most tokens that the model reads, None where no limit is known."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        limits = []
        for limit in (positions, self.tokenizer.model_max_length):
            if limit and limit < _NO_LIMIT:
                limits.append(limit)
        return min(limits) - 1 if limits else None


def load_local_grader(name: str, device: str | None = None) -> LocalGrader:
    """Load a causal language model as a judge, in bfloat16 on a GPU and in float32 elsewhere.

    Args:
        name: Hub name or folder, or the path of a GGUF file, which is read by the package gguf.
        device: Default: a GPU if there is one.

    Raises:
        InputError: There is no such model, or it cannot judge.
    """
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    dtype = torch.float32
    if target.type == "cuda":
        dtype = torch.bfloat16
    source = name
    settings: dict[str, str] = {}
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise InputError(f"judge {name!r}: there is no such file; correct the path")
        source = str(Path(name).parent)
        settings["gguf_file"] = Path(name).name
    with loading(source, _JUDGE, "judge", trusted=bool(settings)):
        tokenizer = AutoTokenizer.from_pretrained(source, **settings)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **settings)
        check_vocabulary(tokenizer, name)
        check_loaded(model, tokenizer, name, "judge")
    with explained(f"device {device!r} cannot be used", "choose another --device", RuntimeError):
        model = model.eval().to(target)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return LocalGrader(name, model, tokenizer)
