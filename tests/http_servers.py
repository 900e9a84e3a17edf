"""Real HTTP servers on this machine, whose answers a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request that a server was sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: Any


@dataclass(frozen=True)
class Reply:
    """An answer that is not just JSON with the status 200."""

    status: int = 200
    content: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Server:
    """A running server.

    Attributes:
        url: Its address, without a path.
        asked: The requests that it was sent.
    """

    url: str
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def serving(answer: Callable[[Asked], Any]) -> Iterator[Server]:
    """Run a server until the end of the block.

    Args:
        answer: Returns what is answered to a request: a :class:`Reply`, or what JSON can hold.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            text = self.rfile.read(length)
            content = json.loads(text) if text else None
            asked = Asked(self.command, self.path, dict(self.headers), content)
            server.asked.append(asked)
            reply = answer(asked)
            if not isinstance(reply, Reply):
                reply = Reply(content=json.dumps(reply).encode())
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        do_GET = do_POST

        def handle(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):  # the client did not wait
                super().handle()

        def log_message(self, *arguments: object) -> None:
            pass

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http_server.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http_server.server_port}")
    thread = threading.Thread(target=http_server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        http_server.shutdown()
        thread.join()
        http_server.server_close()
