"""Language models that grade: one that runs here, or one behind an endpoint."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from beir_cocodr import load_object
from beir_cocodr.endpoints import Endpoint, as_answered
from beir_cocodr.errors import InputError, kind_of
from beir_cocodr.http_requests import HttpOptions

#: Begins the name of a judge that transformers loads.
LOCAL = "hf:"

_LOCAL_GRADER = "beir_cocodr.evaluation.judge.local_grader:load_local_grader"

# A judge may have to read a long document, and a busy server may let it wait.
_HTTP = HttpOptions(timeout=180.0, retries=4, backoff=1.0, concurrency=8)

# Room for what a reasoning model writes before its grade.
_MOST_ANSWER_TOKENS = 1_024

# Characters of a token of English text, on average.
_CHARACTERS_A_TOKEN = 4


@dataclass(frozen=True)
class Reply:
    """The reply of a judge to one prompt.

    Attributes:
        text: What it wrote.
        tokens: Tokens that it read and wrote.
        is_refused: True if the judge, or its server, declined to answer.
        is_cut_off: True if the answer was longer than it may be, so that it states no grade yet.
    """

    text: str
    tokens: int
    is_refused: bool = False
    is_cut_off: bool = False


@runtime_checkable
class Grader(Protocol):
    """Anything that answers grading prompts.

    Attributes:
        name: What reports call it.
        identity: A text that is another one wherever the same prompt may be answered differently;
            grades are kept by it.
    """

    name: str
    identity: str

    def count_tokens(self, prompts: Sequence[str]) -> int:
        """Return about how many tokens some prompts have."""
        ...

    def replies(self, prompts: Sequence[str]) -> Iterator[tuple[int, Reply]]:
        """Yield the number of each prompt with the reply to it, in any order."""
        ...


class EndpointGrader:
    """A judge behind an endpoint with OpenAI's protocol, asked for eight pairs at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Take the endpoint, which is asked when there are prompts."""
        self.endpoint = endpoint
        self.name = str(endpoint)
        self.identity = str(endpoint)

    def count_tokens(self, prompts: Sequence[str]) -> int:
        """Return an estimate by characters, as the tokenizer is on the server."""
        return sum(len(prompt) for prompt in prompts) // _CHARACTERS_A_TOKEN

    def replies(self, prompts: Sequence[str]) -> Iterator[tuple[int, Reply]]:
        """Yield the number of each prompt with the reply to it, as replies come.

        Raises:
            ServerError: The server cannot be reached, or refuses the request. What it answered to
                the requests that were sent is yielded before.
        """
        concurrency = self.endpoint.options.concurrency
        yield from as_answered(self._ask, prompts, concurrency)

    def _ask(self, prompt: str) -> Reply:
        answer = self.endpoint.chat(
            [{"role": "user", "content": prompt}],
            temperature=0,
            max_tokens=_MOST_ANSWER_TOKENS,
        )
        tokens = answer.tokens
        if tokens is None:
            tokens = self.count_tokens([prompt])
        text = answer.text or ""
        if answer.is_cut_off:
            return Reply(text, tokens, is_cut_off=True)
        is_refused = answer.is_refused or answer.text is None
        return Reply(answer.refusal or text, tokens, is_refused)


def load_grader(judge: object, device: str | None = None) -> Grader:
    """Return the judge of a name.

    Args:
        judge: ``URL#MODEL`` of an endpoint with OpenAI's protocol; ``hf:MODEL``, a hub name, a
            folder or a GGUF file; or a :class:`Grader`, which is returned as it is.
        device: Where a local model runs; by default a GPU if there is one.

    Raises:
        InputError: The name has another form, or the model cannot be loaded.
    """
    if isinstance(judge, str):
        if judge.startswith(LOCAL):
            # Only a local judge needs torch.
            local: Grader = load_object(_LOCAL_GRADER)(judge.removeprefix(LOCAL), device)
            return local
        if judge.startswith(("http://", "https://")):
            return EndpointGrader(Endpoint.parse(judge, _HTTP))
        raise InputError(
            f"unknown judge {judge!r}; give URL#MODEL, such as http://localhost:8000/v1#qwen, or "
            "hf:MODEL"
        )
    if isinstance(judge, Grader):
        return judge
    raise InputError(
        f"the judge is {kind_of(judge)}; give URL#MODEL, hf:MODEL, or an object with name, "
        "identity, count_tokens and replies"
    )
