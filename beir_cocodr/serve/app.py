"""The page and its requests by HTTP: who may ask, and what is answered.

The page has no text of its own: texts of a corpus, a model or a person travel as JSON and are shown
as text. A browser that has shown the token once gets a cookie. Requests from another site, by
another name of this machine, or without the cookie are refused.
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

#: Files of the page, which are answered without a cookie.
_FILES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}

_LOGIN = "/api/login"

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; trusted-types 'none'"
)

# A report has its scripts in itself and offers its tables as files. To the page, it is another
# site.
_REPORT_CSP = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
)

_HEADERS = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

#: Bytes that a page may send.
_LONGEST = 65_536

#: Seconds that a wrong password takes.
_DELAY = 1.0

#: Passwords that may wait to be checked.
_MOST_WAITING = 10

_OPEN_THE_LINK = "open the link that the terminal shows"


@dataclass(frozen=True)
class Hosts:
    """The hosts under whose names the page may be asked for.

    Attributes:
        names: names and addresses, lower case.
        any_address: whether every IP address is allowed, too.
    """

    names: frozenset[str]
    any_address: bool

    def allow(self, name: str) -> bool:
        """Return whether the page answers to a name."""
        return name in self.names or (self.any_address and _address(name) is not None)


class Guard:
    """An app that passes on the requests of our own page, and adds security headers to answers.

    Args:
        app: answers the requests.
        secret: the token or the password that a browser must show once.
        hosts: the hosts that the page answers to.
        port: part of the cookie's name, because the ports of a host share cookies.
    """

    def __init__(self, app: ASGIApp, secret: str, hosts: Hosts, port: int) -> None:
        """Draw the value of the cookie."""
        self.app = app
        self.secret = secret
        self.hosts = hosts
        self.cookie = f"beir-cocodr-{port}"
        self._value = secrets.token_urlsafe(32)
        self._checking = asyncio.Lock()
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                for name, value in _HEADERS.items():
                    if name.encode() not in present:
                        message["headers"].append((name.encode(), value.encode()))
            await send(message)

        request = Request(scope, receive)
        answer = self._refusal(request)
        if answer is None and request.url.path == _LOGIN and request.method == "POST":
            answer = await self._login(request)
        await (answer or self.app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """Return the refusal of a request, None if it may be answered."""
        host = request.headers.get("host", "").lower()
        name, _, port = host.rpartition(":")
        if not port.isdecimal():
            name = host
        if not self.hosts.allow(name):
            return _error(403, f"this page is not at {name}; {_OPEN_THE_LINK}")
        is_open = request.method == "GET" and request.url.path in _FILES
        if _is_of_another_site(request, host, is_open):
            return _error(403, "the request comes from another site; open the page itself")
        if request.method == "POST":
            refusal = _refused_body(request)
            if refusal is not None:
                return refusal
        if is_open or request.url.path == _LOGIN:
            return None
        if _equal(request.cookies.get(self.cookie, ""), self._value):
            return None
        return _error(401, _OPEN_THE_LINK)

    async def _login(self, request: Request) -> Response:
        """Give a browser the cookie if it shows the secret."""
        secret = None
        with suppress(InputError):
            secret = (await _json(request)).get("secret")
        if self._waiting >= _MOST_WAITING:
            return _error(429, "too many passwords are being checked; try again in a minute")
        self._waiting += 1
        try:
            # One at a time is checked, so that many guesses at once are no faster.
            async with self._checking:
                if not isinstance(secret, str) or not _equal(secret, self.secret):
                    await asyncio.sleep(_DELAY)
                    return _error(403, "the password or token is wrong; try again")
        finally:
            self._waiting -= 1
        answer = JSONResponse({})
        answer.set_cookie(self.cookie, self._value, httponly=True, samesite="strict")
        return answer


def _is_of_another_site(request: Request, host: str, is_open: bool) -> bool:
    """Return whether another site asks.

    Args:
        request: the request.
        host: the host that is asked.
        is_open: whether a link of another site may lead there.
    """
    origin = request.headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host:
        return True
    site = request.headers.get("sec-fetch-site", "same-origin")
    return site not in ("same-origin", "none") and not is_open


def _refused_body(request: Request) -> Response | None:
    """Return the refusal of a body that is no JSON, or may be too long."""
    if request.headers.get("content-type") != "application/json":
        return _error(415, "the request is not JSON")
    length = int(request.headers.get("content-length") or _LONGEST + 1)
    # A body that comes in chunks may have any length.
    if length > _LONGEST or "transfer-encoding" in request.headers:
        return _error(413, f"the request is longer than {_LONGEST} bytes")
    return None


@dataclass(frozen=True)
class _Judge(Record):
    """A judgement of the page."""

    document: str
    grade: int | None
    query: str
    query_id: str | None = None


@dataclass(frozen=True)
class _Undo(Record):
    """A request to take back the last judgement of a version of the log."""

    version: int


def make_app(session: Session) -> Starlette:
    """Return the app that answers our own page; a wrong request gets an ``error``."""

    def answers(act: Callable[..., object], *names: str) -> Callable[..., Awaitable[Response]]:
        """Return the handler of a GET whose parameters are passed on."""

        async def handler(request: Request) -> Response:
            values = [request.query_params.get(name, "") for name in names]
            return JSONResponse(await run_in_threadpool(act, *values))

        return handler

    async def judge(request: Request) -> Response:
        judgement = _Judge.from_json(await _json(request), request.url.path)
        await run_in_threadpool(session.judge, **vars(judgement))
        return JSONResponse(await run_in_threadpool(session.state, judgement.query))

    async def undo(request: Request) -> Response:
        asked = _Undo.from_json(await _json(request), request.url.path)
        await run_in_threadpool(session.undo, asked.version)
        return JSONResponse(await run_in_threadpool(session.state))

    async def make_report(request: Request) -> Response:
        await run_in_threadpool(session.report)
        return JSONResponse({"path": str(session.report_file)})

    async def report(request: Request) -> Response:
        if not session.report_file.is_file():
            raise InputError("there is no report yet; write one first")
        headers = {"content-security-policy": _REPORT_CSP}
        return FileResponse(session.report_file, headers=headers)

    async def file(name: str, request: Request) -> Response:
        return FileResponse(_FOLDER / name)

    async def wrong(request: Request, error: Exception) -> Response:
        return _error(400, str(error))

    return Starlette(
        routes=[
            *(Route(path, partial(file, name)) for path, name in _FILES.items()),
            Route("/report", report),
            Route("/api/state", answers(session.state, "query")),
            Route("/api/search", answers(session.search, "model", "query")),
            Route("/api/document", answers(session.document, "id", "query")),
            Route("/api/wanted", answers(session.wanted, "query")),
            Route("/api/judge", judge, methods=["POST"]),
            Route("/api/undo", undo, methods=["POST"]),
            Route("/api/report", make_report, methods=["POST"]),
        ],
        exception_handlers={InputError: wrong},
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that waits for requests.

    Args:
        host: name or address.
        port: the port; 0 takes a free one.

    Raises:
        InputError: the host does not exist, or the port is taken.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # a browser that comes before the app is ready waits
    except (OSError, OverflowError) as error:
        raise InputError(
            f"{host}, port {port}: {error}; choose another --port or --host"
        ) from error
    return listening


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def guarded(session: Session, host: str, port: int, secret: str) -> Guard:
    """Return the guarded app of a session.

    Behind a loopback address, it answers to the names of that address alone.
    """
    names = {"localhost", "127.0.0.1", "[::1]", host.lower(), f"[{host.lower()}]"}
    is_local = is_loopback(host)
    if not is_local:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    hosts = Hosts(frozenset(names), any_address=not is_local)
    return Guard(make_app(session), secret, hosts, port)


def run(app: ASGIApp, listening: socket.socket) -> None:
    """Answer until the process is interrupted."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises it again at its end
        uvicorn.Server(config).run(sockets=[listening])


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(name.strip("[]"))
    return None


def _equal(text: str, secret: str) -> bool:
    """Compare with a secret, in a time that does not depend on it."""
    return secrets.compare_digest(text.encode("utf-8", "replace"), secret.encode())


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)


async def _json(request: Request) -> Json:
    try:
        content = parse_json((await request.body()).decode())
    except ValueError as error:
        raise InputError(f"the request is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError("the request is not a JSON object")
    return content
