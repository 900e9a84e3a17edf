"""The page and what it asks for, by HTTP: who may ask, and what is answered.

The page has no text of its own: what a corpus, a model or a person says travels as JSON and is
shown as text. A browser that has shown the token once gets a cookie; whatever comes from another
site, by another name of this machine, or without the cookie is turned away.
"""

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beir_cocodr.errors import InputError
from beir_cocodr.io import Json, parse_json
from beir_cocodr.records import Record
from beir_cocodr.serve.session import Session

_FOLDER = Path(__file__).parent

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
# A report has its scripts in it, gives its tables as files, and is another site to all else.
_REPORT_CSP = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:"
)

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

# Bytes of what a page may send.
_LONGEST = 65_536

# Seconds that a wrong password takes, and how many may wait for theirs to be looked at.
_DELAY, _MOST_WAITING = 1.0, 10


class Guard:
    """Lets requests through that come from our own page, and puts what browsers shall keep to on
    every answer.

    Args:
        app: what answers.
        secret: the token or the password that a browser has to show once.
        hosts: names and addresses that this machine is asked by, lower case; None takes every IP
            address, too.
        port: of the cookie's name, as cookies are shared by the ports of a host.
    """

    def __init__(
        self, app: ASGIApp, secret: str, hosts: frozenset[str], any_address: bool, port: int
    ) -> None:
        self.app, self.secret, self.hosts, self.any_address = app, secret, hosts, any_address
        self.cookie, self._value, self._trying = (
            f"beir-cocodr-{port}",
            secrets.token_urlsafe(32),
            asyncio.Lock(),
        )
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                more = _HEADERS | {"content-security-policy": _CSP}
                message["headers"] += [
                    (k.encode(), v.encode()) for k, v in more.items() if k.encode() not in given
                ]
            await send(message)

        request = Request(scope, receive)
        refusal = self._refusal(request)
        if refusal is None and request.url.path == "/api/login" and request.method == "POST":
            refusal = await self._login(request)
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        headers, host = request.headers, request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if not (name in self.hosts or (self.any_address and _address(name) is not None)):
            return _error(403, f"this page is not {name}; open the link that the terminal shows")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        open_to_all = request.method == "GET" and request.url.path in ("/", "/page.js", "/page.css")
        if (origin is not None and origin.lower().partition("://")[2] != host) or (
            site not in ("same-origin", "none") and not open_to_all
        ):
            return _error(403, "another site asks")
        if request.method == "POST" and headers.get("content-type") != "application/json":
            return _error(415, "only JSON is read")
        if request.method == "POST" and (
            "transfer-encoding" in headers
            or int(headers.get("content-length") or _LONGEST + 1) > _LONGEST
        ):  # what comes in chunks may be of any length
            return _error(413, f"more than {_LONGEST} bytes")
        shown = request.cookies.get(self.cookie, "")
        if open_to_all or request.url.path == "/api/login" or _equal(shown, self._value):
            return None
        return _error(401, "open the link that the terminal shows")

    async def _login(self, request: Request) -> Response:
        given = None
        with suppress(InputError):
            given = (await _json(request)).get("secret")
        if self._waiting >= _MOST_WAITING:
            return _error(429, "too many try at once; try again in a minute")
        self._waiting += 1
        try:
            async with (
                self._trying
            ):  # one at a time is looked at, whoever makes it: many at once guess no faster
                if not isinstance(given, str) or not _equal(given, self.secret):
                    await asyncio.sleep(_DELAY)
                    return _error(403, "that is not it")
        finally:
            self._waiting -= 1
        answer = JSONResponse({})
        answer.set_cookie(self.cookie, self._value, httponly=True, samesite="strict")
        return answer


@dataclass(frozen=True)
class _Judge(Record):
    document: str
    grade: int | None
    query: str
    query_id: str | None = None


@dataclass(frozen=True)
class _Undo(Record):
    version: int


def make_app(session: Session) -> Starlette:
    """What answers our own page; what is wrong with a request is its ``error``."""

    def asks(answer: Callable[..., Any], *names: str) -> Callable[[Request], Awaitable[Response]]:
        """A GET whose parameters are passed on; work is done beside the loop that answers."""

        async def handler(request: Request) -> Response:
            given = (request.query_params.get(name, "") for name in names)
            return JSONResponse(await run_in_threadpool(answer, *given))

        return handler

    def acts(
        act: Callable[..., Any], kind: type[Record]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A POST whose JSON is passed on; answered by what is judged then."""

        async def handler(request: Request) -> Response:
            given = kind.from_json(await _json(request), request.url.path)
            await run_in_threadpool(act, **vars(given))
            return JSONResponse(await run_in_threadpool(session.state, getattr(given, "query", "")))

        return handler

    async def make_report(request: Request) -> Response:
        await run_in_threadpool(session.report)
        return JSONResponse({"path": str(session.report_file)})

    async def report(request: Request) -> Response:
        path = session.report_file
        if not path.is_file():
            raise InputError("there is no report yet")
        return FileResponse(path, headers={"content-security-policy": _REPORT_CSP})

    async def file(name: str, request: Request) -> Response:
        return FileResponse(_FOLDER / name)

    async def wrong(request: Request, error: Exception) -> Response:
        return _error(400, str(error))

    files = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
    return Starlette(
        routes=[
            *(Route(path, partial(file, name)) for path, name in files.items()),
            Route("/report", report),
            Route("/api/state", asks(session.state, "query")),
            Route("/api/search", asks(session.search, "model", "query")),
            Route("/api/document", asks(session.document, "id", "query")),
            Route("/api/wanted", asks(session.wanted, "query")),
            Route("/api/judge", acts(session.judge, _Judge), methods=["POST"]),
            Route("/api/undo", acts(session.undo, _Undo), methods=["POST"]),
            Route("/api/report", make_report, methods=["POST"]),
        ],
        exception_handlers={InputError: wrong},
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for requests, port 0 one that is free; an InputError: no such host, or
    the port is taken.
    """
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # a browser that is faster than what answers waits
    except (OSError, OverflowError) as error:
        raise InputError(
            f"{host}, port {port}: {error}; choose another --port, or --host"
        ) from error
    return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def guarded(session: Session, host: str, port: int, secret: str) -> Guard:
    """The app for a socket; behind a loopback address it answers to its names alone."""
    names = {"localhost", "127.0.0.1", "[::1]", host.lower(), f"[{host.lower()}]"}
    local = is_loopback(host)
    names |= set() if local else {socket.gethostname().lower(), socket.getfqdn().lower()}
    return Guard(make_app(session), secret, frozenset(names), not local, port)


def run(app: ASGIApp, listening: socket.socket) -> None:
    """Answer until the process is interrupted."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", ws="none", proxy_headers=False, server_header=False,
        timeout_graceful_shutdown=2,
    )  # fmt: skip
    with suppress(KeyboardInterrupt):  # the host raises it again at the end
        uvicorn.Server(config).run(sockets=[listening])


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(name.strip("[]"))
    return None


def _equal(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


async def _json(request: Request) -> Json:
    try:
        content = parse_json((await request.body()).decode())
    except ValueError as error:
        raise InputError(f"no JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError("no JSON object")
    return content
