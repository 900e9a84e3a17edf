"""Requests to HTTP servers as data; nothing here loads the libraries that send them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from beir_cocodr.errors import InputError

# Characters of a server's answer that a message quotes.
QUOTED = 120


class ServerError(InputError):
    """A server that cannot be reached, refuses a request, or gives an answer of another form."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """Keep the status.

        Args:
            message: What went wrong, and what to do.
            status: The status of the server's answer, None if there was none.
        """
        super().__init__(message)
        self.status = status


#: The most seconds between two attempts, whatever the server asks for.
LONGEST_WAIT = 60.0


@dataclass(frozen=True)
class HttpOptions:
    """Options of asking a server.

    Attributes:
        timeout: Seconds to wait for an answer.
        retries: Further attempts after the server was busy, failed, or could not be reached.
        backoff: Seconds before the first further attempt; every later wait is twice as long. A
            server that says when to ask again is obeyed.
        concurrency: Requests that are sent at the same time.
    """

    timeout: float = 60.0
    retries: int = 3
    backoff: float = 0.5
    concurrency: int = 4

    def seconds_before(self, attempt: int) -> float:
        """Return the seconds to wait before a further attempt by its number, from 1."""
        return min(self.backoff * 2.0 ** (attempt - 1), LONGEST_WAIT)


@dataclass(frozen=True)
class HttpRequest:
    """A request to a server.

    Attributes:
        method: GET or POST.
        url: The URL, without secrets: messages show it.
        headers: Headers, which may hold secrets.
        body: Content that is sent as JSON; None for no content.
        secrets: Values that no message may show.
        key_advice: What to do where the server asks for a key; "" names the usual variable.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: object = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    key_advice: str = field(default="", repr=False)

    def hide(self, text: str) -> str:
        """Return a text in one line, without the secrets, as far as a message quotes it."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        line = " ".join(text.split())
        if len(line) <= QUOTED:
            return line
        return f"{line[:QUOTED]}..."


def check_url(url: str) -> str:
    """Return a URL that has a host and holds no password.

    Raises:
        InputError: It is none, or it holds a password, which records would show.
    """
    try:
        parts = urlsplit(url)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        parts = urlsplit("")
        port_is_valid = False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
        raise InputError(f"{url!r} is not a URL; give one such as http://localhost:8000/v1")
    if parts.username is not None or parts.password is not None:
        raise InputError(
            f"the URL of {parts.hostname} contains a user name or a password, which records would "
            "show; leave it out, and give a key in an environment variable"
        )
    return url


def secret(variable: str) -> str:
    """Return the value of an environment variable that holds a secret.

    Raises:
        InputError: It is not set, or holds characters that no header can have.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise InputError(f"the environment variable {variable} is not set; set it to the key")
    if not (value.isascii() and value.isprintable()):
        raise InputError(
            f"the environment variable {variable} contains characters that no header can have; set "
            "it to the key alone"
        )
    return value
