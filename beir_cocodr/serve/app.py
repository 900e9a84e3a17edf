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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from beir_cocodr.errors import InputError
from beir_cocodr.io import Json, parse_json
from beir_cocodr.records import Record
from beir_cocodr.serve.served_files import serve_file
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

#: Passwords of one client that may wait to be checked.
_MOST_WAITING = 10

#: Seconds that a client may take to send what it posts.
_SLOWEST = 15.0

#: Bits of an IPv6 address that all addresses of one client share.
_IPV6_PREFIX = 64

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


@dataclass(frozen=True)
class Key:
    """What a browser must show once.

    Attributes:
        secret: a token or a password.
        may_be_guessed: true for a password, whose guesses take time. A token is too long for that.
    """

    secret: str
    may_be_guessed: bool

    def fits(self, secret: object) -> bool:
        """Return whether it was shown, in a time that does not depend on what was."""
        return isinstance(secret, str) and _equal(secret, self.secret)


class _Queue:
    """The guesses of one client, which are checked one after another.

    Attributes:
        turn: held by the guess that is checked.
        waiting: number of guesses that are checked or wait for it.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0


class Guard:
    """An app that passes on the requests of our own page, and adds security headers to answers.

    Args:
        app: answers the requests.
        key: what a browser must show once.
        hosts: the hosts that the page answers to.
        port: part of the cookie's name, because the ports of a host share cookies.
    """

    def __init__(self, app: ASGIApp, key: Key, hosts: Hosts, port: int) -> None:
        """Draw the value of the cookie."""
        self.app = app
        self.key = key
        self.hosts = hosts
        self.cookie = f"beir-cocodr-{port}"
        self._value = secrets.token_urlsafe(32)
        self._queues: dict[str, _Queue] = {}

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
            try:
                answer = await self._login(request)
            except ClientDisconnect:
                return
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
        if self.key.may_be_guessed:
            refusal = await self._check_in_turn(secret, _client(request))
        else:
            refusal = await self._check(secret)
        if refusal is not None:
            return refusal
        answer = JSONResponse({})
        answer.set_cookie(self.cookie, self._value, httponly=True, samesite="strict")
        return answer

    async def _check_in_turn(self, secret: object, client: str) -> Response | None:
        """Check a secret after the earlier ones of its client, so that many are no faster.

        The guesses of one client keep nobody else waiting.
        """
        queue = self._queues.setdefault(client, _Queue())
        if queue.waiting >= _MOST_WAITING:
            return _error(429, "too many passwords are being checked; try again in a minute")
        queue.waiting += 1
        try:
            async with queue.turn:
                return await self._check(secret)
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                del self._queues[client]

    async def _check(self, secret: object) -> Response | None:
        """Return the refusal of a wrong secret after a while, None for the right one."""
        if self.key.fits(secret):
            return None
        await asyncio.sleep(_DELAY)
        return _error(403, "the password or token is wrong; try again")


def _client(request: Request) -> str:
    """Return the address of a client, or for IPv6 the network, which is one client's."""
    host = "" if request.client is None else request.client.host
    address = _address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return host


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
    length = request.headers.get("content-length", "")
    # A body that comes in chunks may have any length.
    is_short = length.isdecimal() and int(length) <= _LONGEST
    if not is_short or "transfer-encoding" in request.headers:
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


class _Answers:
    """The answers to the requests of our own page."""

    def __init__(self, session: Session) -> None:
        self.session = session
        # Reports wait for each other here, and not in the threads, which searches need.
        self.reporter = ThreadPoolExecutor(1)

    async def judge(self, request: Request) -> Response:
        judgement = _Judge.from_json(await _json(request), request.url.path)
        await run_in_threadpool(self.session.judge, **vars(judgement))
        return JSONResponse(await run_in_threadpool(self.session.state, judgement.query))

    async def undo(self, request: Request) -> Response:
        asked = _Undo.from_json(await _json(request), request.url.path)
        await run_in_threadpool(self.session.undo, asked.version)
        return JSONResponse(await run_in_threadpool(self.session.state))

    async def learn(self, request: Request) -> Response:
        await run_in_threadpool(self.session.learn)
        return JSONResponse(await run_in_threadpool(self.session.state))

    async def forget(self, request: Request) -> Response:
        await run_in_threadpool(self.session.forget)
        return JSONResponse(await run_in_threadpool(self.session.state))

    async def make_report(self, request: Request) -> Response:
        await _json(request)  # a client that goes away before the end of its post wants no report
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.reporter, self.session.report)
        return JSONResponse({"path": str(self.session.report_file)})

    async def report(self, request: Request) -> Response:
        file = self.session.report_file
        if not file.is_file():
            raise InputError("there is no report yet; write one first")
        return FileResponse(file, headers={"content-security-policy": _REPORT_CSP})

    async def corpus_file(self, request: Request) -> Response:
        id = request.query_params.get("id", "")
        path = await run_in_threadpool(self.session.file, id)
        return await run_in_threadpool(serve_file, path)


def _passing_on(act: Callable[..., object], *names: str) -> Callable[..., Awaitable[Response]]:
    """Return the handler of a GET whose parameters are passed on."""

    async def handler(request: Request) -> Response:
        values = [request.query_params.get(name, "") for name in names]
        return JSONResponse(await run_in_threadpool(act, *values))

    return handler


async def _page_file(name: str, request: Request) -> Response:
    return FileResponse(_FOLDER / name)


async def _refuse(request: Request, error: Exception) -> Response:
    return _error(400, str(error))


async def _give_up(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # the client has gone, and nobody reads it


def make_app(session: Session) -> Starlette:
    """Return the app that answers our own page; a wrong request gets an ``error``."""
    answers = _Answers(session)
    return Starlette(
        routes=[
            *(Route(path, partial(_page_file, name)) for path, name in _FILES.items()),
            Route("/report", answers.report),
            Route("/file", answers.corpus_file),
            Route("/api/state", _passing_on(session.state, "query")),
            Route("/api/search", _passing_on(session.search, "model", "query", "kind", "folder")),
            Route("/api/document", _passing_on(session.document, "id", "query")),
            Route("/api/wanted", _passing_on(session.wanted, "query")),
            Route("/api/judge", answers.judge, methods=["POST"]),
            Route("/api/undo", answers.undo, methods=["POST"]),
            Route("/api/learn", answers.learn, methods=["POST"]),
            Route("/api/forget", answers.forget, methods=["POST"]),
            Route("/api/report", answers.make_report, methods=["POST"]),
        ],
        exception_handlers={InputError: _refuse, ClientDisconnect: _give_up},
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
    if address is None:
        return host.lower() == "localhost"
    return address.is_loopback


def guarded(session: Session, host: str, port: int, secret: str) -> Guard:
    """Return the guarded app of a session.

    Behind a loopback address, it answers to the names of that address alone.
    """
    lower_host = host.lower()
    names = {
        "localhost",
        "127.0.0.1",
        "[::1]",
        lower_host,
        f"[{lower_host}]",
    }
    is_local = is_loopback(host)
    if not is_local:
        names.add(socket.gethostname().lower())
        names.add(socket.getfqdn().lower())
    hosts = Hosts(frozenset(names), any_address=not is_local)
    key = Key(secret, may_be_guessed=not is_local)
    return Guard(make_app(session), key, hosts, port)


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
        async with asyncio.timeout(_SLOWEST):
            body = await request.body()
        content = parse_json(body.decode())
    except TimeoutError as error:
        raise InputError(f"the request took longer than {_SLOWEST:.0f} seconds") from error
    except ValueError as error:
        raise InputError(f"the request is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError("the request is not a JSON object")
    return content
