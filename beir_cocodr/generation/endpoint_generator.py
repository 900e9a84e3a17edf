"""Queries that a language model behind an endpoint of OpenAI's protocol writes."""

from collections.abc import Sequence
from typing import NamedTuple

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.passages import Passage
from beir_cocodr.data.text import word_counter
from beir_cocodr.endpoints import Endpoint, in_parallel
from beir_cocodr.generation.generators import Generated, Query
from beir_cocodr.generation.query_kinds import kinds_in_turn
from beir_cocodr.generation.question_prompt import few_shot_messages
from beir_cocodr.generation.settings import PLACEHOLDER, GenerationOptions
from beir_cocodr.records import Json


class _Asked(NamedTuple):
    """A query that the server is asked for: the number tells those of a passage apart."""

    passage: str
    number: int
    kind: str | None


class EndpointGenerator:
    """A generator that asks a server for one query at a time, several at the same time.

    The server is shown three examples, unless the options have a prompt. Passages are counted in
    words. Whether the same call gives the same queries is up to the server, which is sent a seed.

    Args:
        endpoint: The server and its model.
        options: ``prompt``, ``query_kinds``, ``per_passage``, ``max_length``, ``top_p``, ``seed``.
    """

    def __init__(self, endpoint: Endpoint, options: GenerationOptions) -> None:
        """Create the generator; nothing is asked yet."""
        self.endpoint = endpoint
        self.options = options
        self.counter = word_counter()

    def describe(self) -> Json:
        """Return what the queries depend on beside passages and options."""
        return {
            "name": str(self.endpoint),
            "kind": "endpoint",
            "model": self.endpoint.model,
            "prompt": self._prompts(),
        }

    def prepare(self, folder: object) -> None:
        """Do nothing: the server is all that is needed."""

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """Return the queries of a shard's passages.

        Raises:
            ServerError: The server cannot be reached, or refuses a request.
        """
        asked: list[_Asked] = []
        for passage in passages:
            for number, kind in enumerate(self._kinds(passage)):
                asked.append(_Asked(passage.text, number, kind))
        texts = list(in_parallel(self._ask, asked, self.endpoint.options.concurrency))
        size = self.options.per_passage
        queries = []
        for start in range(0, len(texts), size):
            of_passage = texts[start : start + size]
            queries.append([Query(text) for text in of_passage])
        return Generated(queries, {})

    def prompts_of(self, passage: Passage) -> list[str]:
        """Return the texts of the conversations about a passage, one for each query."""
        prompts = []
        for kind in self._kinds(passage):
            messages = self._messages(passage.text, kind)
            prompts.append("\n".join(message["content"] for message in messages))
        return prompts

    def _kinds(self, passage: Passage) -> Sequence[str | None]:
        """Return the kind of each query of a passage, None for a query as people type them."""
        count = self.options.per_passage
        if not self.options.kinds:
            return [None] * count
        return kinds_in_turn(self.options.kinds, passage.text, count)

    def _prompts(self) -> object:
        """Return what is sent with a passage, for each kind if there are kinds."""
        if not self.options.kinds:
            return self._messages(PLACEHOLDER, None)
        return {kind: self._messages(PLACEHOLDER, kind) for kind in self.options.kinds}

    def _ask(self, asked: _Asked) -> str:
        answer = self.endpoint.chat(
            self._messages(asked.passage, asked.kind),
            max_tokens=self.options.max_length,
            top_p=self.options.top_p,
            seed=self.options.seed + asked.number,
        )
        return answer.strip().partition("\n")[0]

    def _messages(self, passage: str, kind: str | None) -> list[dict[str, str]]:
        if self.options.prompt is None:
            return few_shot_messages(passage, kind)
        return [{"role": "user", "content": self.options.prompt.replace(PLACEHOLDER, passage)}]


def build(
    name: str,
    documents: Documents,
    options: GenerationOptions,
    device: str | None,
) -> EndpointGenerator:
    """Build the generator, for its row in the table of generators."""
    return EndpointGenerator(Endpoint.parse(name), options)
