"""Queries that a language model behind an endpoint of OpenAI's protocol writes."""

import json
import logging
from collections.abc import Sequence
from typing import NamedTuple

from beir_cocodr.data.documents import Documents
from beir_cocodr.data.passages import Passage
from beir_cocodr.data.text import without_thoughts, word_counter
from beir_cocodr.endpoints import Endpoint, as_answered
from beir_cocodr.generation.generators import Generated, Query
from beir_cocodr.generation.query_kinds import kinds_in_turn
from beir_cocodr.generation.question_prompt import few_shot_messages
from beir_cocodr.generation.question_text import clean_question, is_question
from beir_cocodr.generation.settings import PLACEHOLDER, GenerationOptions
from beir_cocodr.generation.text_cache import TextCache
from beir_cocodr.http_requests import ServerError
from beir_cocodr.io import parse_json
from beir_cocodr.records import Json

log = logging.getLogger(__name__)

# The version of what is taken from an answer; queries of another version are not mixed with these.
_ANSWERS_VERSION = "first line after thoughts"


class _Asked(NamedTuple):
    """A query that the server is asked for: the number tells those of a passage apart."""

    passage: str
    number: int
    kind: str | None


class EndpointGenerator:
    """A generator that asks a server for one query at a time, several at the same time.

    The server is shown three examples, unless the options have a prompt. Passages are counted in
    words. The first line of an answer after the model's thoughts is the query; an answer that ended
    within them gives none. Whether another server gives the same queries is up to it; it is sent a
    seed.

    Every answer of use is on the disk as soon as it comes, so it is not paid for twice: neither
    after a failure or a kill, nor for another output.

    Args:
        endpoint: The server and its model.
        options: ``prompt``, ``query_kinds``, ``per_passage``, ``max_length``, ``top_p``, ``seed``.
    """

    def __init__(self, endpoint: Endpoint, options: GenerationOptions) -> None:
        """Create the generator; nothing is asked yet."""
        self.endpoint = endpoint
        self.options = options
        self.counter = word_counter()
        self._has_warned = False
        identity: Json = {
            "generator": self.describe(),
            "max_length": options.max_length,
            "top_p": options.top_p,
            "seed": options.seed,
        }
        self._cache = TextCache("questions", identity)

    def describe(self) -> Json:
        """Return what the queries depend on beside passages and options."""
        return {
            "name": str(self.endpoint),
            "kind": "endpoint",
            "model": self.endpoint.model,
            "prompt": self._prompts(),
            "answers": _ANSWERS_VERSION,
        }

    def prepare(self, folder: object) -> None:
        """Do nothing: the server is all that is needed."""

    def generate(self, passages: Sequence[Passage], shard: int) -> Generated:
        """Return the queries of a shard's passages, and ask for those that are not kept.

        Raises:
            ServerError: The server cannot be reached, refuses a request, or answers without text.
                What it answered to the requests that were sent is kept.
        """
        wanted = [self._asked(passage) for passage in passages]
        distinct = dict.fromkeys(asked for of_passage in wanted for asked in of_passage)
        answers = {asked: self._kept(asked) for asked in distinct}
        missing = [asked for asked, query in answers.items() if query is None]
        written = as_answered(self._ask, missing, self.endpoint.options.concurrency)
        for number, query in written:
            asked = missing[number]
            answers[asked] = query
            if self._is_of_use(query):
                self._cache.put(_key(asked), json.dumps(query, ensure_ascii=False))
        queries = [[answers[asked] or Query("") for asked in of_passage] for of_passage in wanted]
        self._warn([query for of_passage in queries for query in of_passage])
        return Generated(queries, {})

    def prompts_of(self, passage: Passage) -> list[str]:
        """Return the texts of the conversations about a passage, one for each query not kept."""
        prompts = []
        for asked in self._asked(passage):
            if self._kept(asked) is None:
                messages = self._messages(asked.passage, asked.kind)
                prompts.append("\n".join(message["content"] for message in messages))
        return prompts

    def _asked(self, passage: Passage) -> list[_Asked]:
        """Return what the server is asked for about a passage."""
        kinds = self._kinds(passage)
        return [_Asked(passage.text, number, kind) for number, kind in enumerate(kinds)]

    def _kept(self, asked: _Asked) -> Query | None:
        """Return the query that the server wrote before, None if it wrote none of use."""
        content = self._cache.get(_key(asked))
        if content is None:
            return None
        text, is_cut = parse_json(content)
        return Query(text, is_cut)

    def _is_of_use(self, query: Query) -> bool:
        """Return true if a query can be used, and is kept; others are asked for again."""
        if self.options.kinds:
            return is_question(clean_question(query.text))
        return bool(query.text.strip())

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

    def _ask(self, asked: _Asked) -> Query:
        """Return the query of an answer, "" where the model declined or was still thinking."""
        answer = self.endpoint.chat(
            self._messages(asked.passage, asked.kind),
            max_tokens=self.options.max_length,
            top_p=self.options.top_p,
            seed=self.options.seed + asked.number,
        )
        if answer.is_refused:
            return Query("")
        if answer.text is None and not answer.is_cut_off:
            raise ServerError(
                f"{self.endpoint} gave no text (choices, message and content in the answer); name "
                "a server with OpenAI's /v1/chat/completions"
            )
        text = without_thoughts(answer.text or "").lstrip()
        line, line_feed, _ = text.partition("\n")
        # A line that was followed by another one was complete.
        return Query(line.rstrip(), answer.is_cut_off and not line_feed)

    def _warn(self, queries: Sequence[Query]) -> None:
        """Warn once if answers reached their limit before any text, as long thoughts do."""
        unfinished = sum(query.cut and not query.text for query in queries)
        if unfinished and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: %d of %d answers reached %d tokens before any text; raise --max-length, or "
                "turn off the thoughts of the model",
                self.endpoint,
                unfinished,
                len(queries),
                self.options.max_length,
            )

    def _messages(self, passage: str, kind: str | None) -> list[dict[str, str]]:
        if self.options.prompt is None:
            return few_shot_messages(passage, kind)
        return [{"role": "user", "content": self.options.prompt.replace(PLACEHOLDER, passage)}]


def _key(asked: _Asked) -> str:
    """Return what a query is kept by: its number, its kind and the passage."""
    return f"{asked.number} {asked.kind or ''}\n{asked.passage}"


def build(
    name: str,
    documents: Documents,
    options: GenerationOptions,
    device: str | None,
) -> EndpointGenerator:
    """Build the generator, for its row in the table of generators."""
    return EndpointGenerator(Endpoint.parse(name), options)
