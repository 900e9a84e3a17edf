"""HTTP servers that answer JSON, and endpoints that speak the protocol of OpenAI."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from beir_cocodr.errors import InputError, first_line
from beir_cocodr.http_requests import (
    LONGEST_WAIT,
    QUOTED,
    HttpOptions,
    HttpRequest,
    ServerError,
    check_url,
    secret,
)
from beir_cocodr.io import check_nesting

#: The environment variable that holds the key of an endpoint by default.
KEY_VARIABLE = "BEIR_COCODR_API_KEY"

# What follows the name of a model in the name of an endpoint, before the name of a variable.
_KEY = "?key="

# Statuses of a server that may answer the same request later.
_TEMPORARY = {408, 425, 429, 500, 502, 503, 504}

# Paths of the protocol that may end a URL that was copied from somewhere.
_OPERATIONS = ("/embeddings", "/chat/completions", "/completions")

# Endings of an answer that is none, or not all of one: too long, or held back by the server.
_CUT_OFF = "length"
_HELD_BACK = "content_filter"

Given = TypeVar("Given")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class _Failure:
    """A request that was not answered.

    Attributes:
        reason: Why.
        way_out: What a person can do.
        is_temporary: True if the same request may be answered later.
        wait: Seconds after which the server wants to be asked again, None if it does not say.
        status: The status of the answer, None if there was none.
    """

    reason: str
    way_out: str
    is_temporary: bool
    wait: float | None = None
    status: int | None = None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect, so that no key travels to another host."""

    def redirect_request(self, *arguments: object) -> None:
        """Return None, which makes the redirect an error."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def fetch_json(request: HttpRequest, options: HttpOptions = HttpOptions()) -> Any:
    """Send a request and return the JSON that the server answers.

    Args:
        request: The request.
        options: How long to wait, and how often to try again.

    Raises:
        ServerError: The server cannot be reached, answers with an error, or its answer is no JSON.
    """
    answer = _send(request, options.timeout)
    attempts = 1
    while isinstance(answer, _Failure) and answer.is_temporary and attempts <= options.retries:
        wait = answer.wait
        if wait is None:
            wait = options.seconds_before(attempts)
        time.sleep(min(wait, LONGEST_WAIT))
        answer = _send(request, options.timeout)
        attempts += 1
    if isinstance(answer, _Failure):
        tried = f" in {attempts} attempts" if attempts > 1 else ""
        message = f"{request.url} {answer.reason}{tried}; {answer.way_out}"
        raise ServerError(message, answer.status)
    try:
        check_nesting(answer.decode(errors="replace"))
        return json.loads(answer)
    except (ValueError, RecursionError):
        quoted = request.hide(answer.decode(errors="replace"))
        raise ServerError(
            f"{request.url} gave an answer that is not JSON ({quoted!r}); correct the URL"
        ) from None


def _send(request: HttpRequest, timeout: float) -> bytes | _Failure:
    """Send a request once, and return the content of the answer."""
    headers = {"Accept": "application/json", **request.headers}
    body = None
    if request.body is not None:
        body = json.dumps(request.body).encode()
        headers.setdefault("Content-Type", "application/json")
    way_out = "start the server, or correct the URL"
    try:
        sent = urllib.request.Request(request.url, body, headers, method=request.method)
        with _OPENER.open(sent, timeout=timeout) as response:
            content: bytes = response.read()
            return content
    except urllib.error.HTTPError as error:
        with error:
            return _refused(request, error)
    except TimeoutError:
        return _Failure(
            f"did not answer within {timeout:g} seconds", "wait longer, or ask for less", True
        )
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return _Failure(f"did not answer within {timeout:g} seconds", way_out, True)
        reason = getattr(error.reason, "strerror", None) or str(error.reason)
        hidden = request.hide(reason)
        return _Failure(f"cannot be reached ({hidden})", way_out, True)
    except (http.client.HTTPException, OSError) as error:
        reason = request.hide(first_line(error))
        return _Failure(f"broke off its answer ({reason})", way_out, True)
    except ValueError as error:  # a header or a URL that cannot be sent
        reason = request.hide(first_line(error))
        return _Failure(f"cannot be queried ({reason})", "correct the URL and the headers", False)


def _refused(request: HttpRequest, error: urllib.error.HTTPError) -> _Failure:
    """Return the failure that a status of the server means."""
    status = error.code
    try:
        content = error.read(20 * QUOTED).decode(errors="replace")
    except (http.client.HTTPException, OSError):
        content = ""
    reason = f"answered with status {status}"
    explanation = request.hide(_explanation(content))
    if explanation:
        reason += f" ({explanation})"
    if status in (401, 403):
        usual = f"give the key that the server asks for, by default in {KEY_VARIABLE}"
        way_out = request.key_advice or usual
    elif 300 <= status < 400:
        way_out = "give the URL that it redirects to"
    elif status < 500 and status not in _TEMPORARY:
        way_out = "correct the URL, the name of the model or the request"
    else:
        way_out = "look at the log of the server"
    retry_after = error.headers.get("Retry-After")
    return _Failure(
        reason,
        way_out,
        status in _TEMPORARY,
        _wait(retry_after),
        status,
    )


def _explanation(content: str) -> str:
    """Return the message in a server's answer, or the answer as it is."""
    try:
        check_nesting(content)
        answer = json.loads(content)
    except (ValueError, RecursionError):
        return content
    for name in ("error", "message", "detail", "reason"):
        while isinstance(answer, dict) and answer.get(name):
            answer = answer[name]
    return answer if isinstance(answer, str) else content


def _wait(retry_after: str | None) -> float | None:
    """Return the seconds of a header Retry-After, None for a date or none."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None


def as_answered(
    ask: Callable[[Given], Answer],
    items: Iterable[Given],
    concurrency: int,
) -> Iterator[tuple[int, Answer]]:
    """Yield the number of each item with its answer as it comes, asking for several at a time.

    The first failure ends the work: requests that were not sent yet are not sent. It is raised
    after all that were sent have ended, and after their answers were yielded.

    Args:
        ask: Answers one item.
        items: The items, which are counted from 0.
        concurrency: Items at a time; at most twice as many are sent and not yet yielded.
    """
    pool = ThreadPoolExecutor(concurrency)
    waiting = enumerate(items)
    numbers: dict[Future[Answer], int] = {}
    failure: BaseException | None = None

    def submit(count: int) -> None:
        for number, item in islice(waiting, count):
            numbers[pool.submit(ask, item)] = number

    try:
        submit(2 * concurrency)
        while numbers:
            ended, _ = wait(numbers, return_when=FIRST_COMPLETED)
            for future in ended:
                number = numbers.pop(future)
                error = future.exception()
                if error is None:
                    yield number, future.result()
                elif failure is None:
                    failure = error
            if failure is None:
                submit(2 * concurrency - len(numbers))
            else:
                # A request that cannot be cancelled is on its way.
                numbers = {sent: number for sent, number in numbers.items() if not sent.cancel()}
        if failure is not None:
            raise failure
    finally:
        pool.shutdown(cancel_futures=True)


def in_parallel(
    ask: Callable[[Given], Answer],
    items: Iterable[Given],
    concurrency: int,
) -> Iterator[Answer]:
    """Yield the answers for some items in their order, asking for several at the same time.

    The first failure ends the work; requests that were not sent yet are not sent.

    Args:
        ask: Answers one item.
        items: The items.
        concurrency: Items at a time.
    """
    answers: dict[int, Answer] = {}
    due = 0
    for number, answer in as_answered(ask, items, concurrency):
        answers[number] = answer
        while due in answers:
            yield answers.pop(due)
            due += 1


@dataclass(frozen=True)
class ChatAnswer:
    """The answer of a model to a conversation.

    Attributes:
        text: What it wrote, with its thoughts; None where it wrote nothing.
        refusal: Why the model declined to answer, "" where it does not say.
        is_refused: True if the model declined, or its server held the answer back.
        is_cut_off: True if the answer reached the limit of its length.
        tokens: Tokens that were read and written; None where the server counts none.
    """

    text: str | None
    refusal: str = ""
    is_refused: bool = False
    is_cut_off: bool = False
    tokens: int | None = None

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Return the answer in the JSON of a server.

        Raises:
            LookupError, TypeError, AttributeError: The JSON has another form.
        """
        choice = content["choices"][0]
        message = choice["message"]
        text = message.get("content")
        refusal = message.get("refusal")
        ending = choice.get("finish_reason")
        usage = content.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
        return cls(
            text=text if isinstance(text, str) else None,
            refusal=str(refusal or ""),
            is_refused=bool(refusal) or ending == _HELD_BACK,
            is_cut_off=ending == _CUT_OFF,
            tokens=tokens if isinstance(tokens, int) else None,
        )


@dataclass(frozen=True)
class Endpoint:
    """A server with OpenAI's protocol, such as vLLM, Ollama, llama.cpp or a hosted one.

    The key is read from an environment variable whenever a request is sent; it is in no field, and
    so in no record, log or message.

    Args:
        url: The base URL, which usually ends in ``/v1``.
        model: The name of the model on the server.
        key_variable: The environment variable that holds the key.
        options: How long to wait, and how often to try again.

    Example:
        >>> from beir_cocodr.endpoints import Endpoint
        >>> endpoint = Endpoint.parse("http://localhost:8000#all-minilm")
        >>> endpoint.url, endpoint.model
        ('http://localhost:8000/v1', 'all-minilm')
    """

    url: str
    model: str
    key_variable: str = KEY_VARIABLE
    options: HttpOptions = HttpOptions()

    @classmethod
    def parse(cls, name: str, options: HttpOptions = HttpOptions()) -> Self:
        """Return the endpoint of a name ``URL#MODEL`` or ``URL#MODEL?key=VARIABLE``.

        A URL without a path gets ``/v1``.

        Args:
            name: The name.
            options: How long to wait, and how often to try again.

        Raises:
            InputError: The name has another form.
        """
        url, _, fragment = name.partition("#")
        model, _, variable = fragment.partition(_KEY)
        if not model:
            raise InputError(
                f"{name!r} names no model; the form is URL#MODEL, such as "
                "http://localhost:8000/v1#all-minilm"
            )
        parts = urlsplit(check_url(url))
        path = parts.path.rstrip("/")
        for operation in _OPERATIONS:
            path = path.removesuffix(operation)
        base = urlunsplit((parts.scheme, parts.netloc, path or "/v1", parts.query, ""))
        return cls(base, model, variable or KEY_VARIABLE, options)

    def __str__(self) -> str:
        """Return the URL and the model."""
        return f"{self.url}#{self.model}"

    def ask(self, operation: str, content: Mapping[str, object]) -> Any:
        """Return the JSON that the server answers.

        Args:
            operation: What is asked for, such as "embeddings" or "chat/completions".
            content: The content of the request; the model is added.

        Raises:
            ServerError: The server cannot be reached, answers with an error or without JSON.
            InputError: A variable was named for the key, and it is not set.
        """
        parts = urlsplit(self.url)
        url = urlunsplit(parts._replace(path=f"{parts.path}/{operation}"))
        headers = {}
        secrets: tuple[str, ...] = ()
        if self.key_variable != KEY_VARIABLE or os.environ.get(KEY_VARIABLE):
            key = secret(self.key_variable)
            headers["Authorization"] = f"Bearer {key}"
            secrets = (key,)
        request = HttpRequest("POST", url, headers, {"model": self.model, **content}, secrets)
        return fetch_json(request, self.options)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the embedding of each text, all of one width.

        Args:
            texts: One batch, which is sent in one request.

        Raises:
            ServerError: As for :meth:`ask`, or the answer does not hold an embedding of each text.
        """
        answer = self.ask("embeddings", {"input": list(texts)})
        try:
            rows = sorted(answer["data"], key=lambda row: int(row["index"]))
            vectors = [[float(number) for number in row["embedding"]] for row in rows]
        except (KeyError, TypeError, ValueError):
            raise ServerError(
                f"{self} gave no embeddings (data, index and embedding in the answer); name a "
                "server with OpenAI's /v1/embeddings"
            ) from None
        if len(vectors) != len(texts):
            raise ServerError(
                f"{self} gave {len(vectors)} embeddings for {len(texts)} texts; look at the log of "
                "the server"
            )
        widths = {len(vector) for vector in vectors}
        if len(widths) > 1:
            numbers = ", ".join(map(str, sorted(widths)))
            raise ServerError(
                f"{self} gave embeddings of several dimensions ({numbers}); look at the server"
            )
        return vectors

    def chat(self, messages: Sequence[Mapping[str, str]], **settings: object) -> ChatAnswer:
        """Return what the model answers to a conversation.

        Args:
            messages: The conversation, each with a role and content.
            **settings: Further fields of the request, such as ``temperature`` or ``max_tokens``.

        Raises:
            ServerError: As for :meth:`ask`, or the answer holds no message.
        """
        content = {"messages": [dict(message) for message in messages], **settings}
        answer = self.ask("chat/completions", content)
        try:
            return ChatAnswer.parse(answer)
        except (LookupError, TypeError, AttributeError):
            raise ServerError(
                f"{self} gave no message (choices and message in the answer); name a server "
                "with OpenAI's /v1/chat/completions"
            ) from None
