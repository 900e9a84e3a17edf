"""A served page that cases of hostile clients share, and plain connections to it."""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from faults.runner import Running, Warm, remove, run_command_line
from faults.world import lay_out

#: Seconds that an answer may take, on a machine that does other work too.
PATIENCE = 30.0

#: The command lines that open the page.
SERVE = "serve --dataset in/beir --model bm25 --model in/model --no-browser --output judged"
TRY = "try in/beir --model in/model --no-browser --output judged"

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


@dataclass(frozen=True)
class Answer:
    """What a server sent.

    Attributes:
        status: The status, or None if it closed the connection without one.
        head: The head.
        body: The body, as far as it came.
    """

    status: int | None
    head: str
    body: bytes

    @property
    def error(self) -> str:
        """Return the message of a refusal."""
        with suppress(ValueError, AttributeError):
            return str(json.loads(self.body).get("error", ""))
        return self.body.decode(errors="replace")


def parse_answer(content: bytes) -> Answer:
    """Read the first answer from the bytes of a connection."""
    head, _, rest = content.partition(b"\r\n\r\n")
    _, _, length = head.lower().partition(b"content-length: ")
    digits = length.partition(b"\r\n")[0]
    # Another answer may follow, to what came after the request.
    body = rest[: int(digits)] if digits.isdigit() else rest
    if b"transfer-encoding: chunked" in head.lower():
        body = rest.partition(b"\r\n")[2].partition(b"\r\n")[0]
    words = head.split(b" ", 2)
    is_http = head.startswith(b"HTTP/") and len(words) > 1 and words[1].isdigit()
    return Answer(int(words[1]) if is_http else None, head.decode(errors="replace"), body)


def reset(connection: socket.socket) -> None:
    """Close a connection at once, as a client does that is killed."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_all(connection: socket.socket, patience: float = PATIENCE) -> bytes:
    """Read until the server closes the connection, or says nothing for a while."""
    connection.settimeout(patience)
    parts = []
    with suppress(OSError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def die_with_parent() -> None:
    """Let this process end when the one that forked it ends; Linux only."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


class PageServer:
    """The page of ``serve``, which is started again after each harm.

    Args:
        warm: The process that forks the server.
        folder: The folder of the campaign.
        work: The folder in which the server runs.

    Attributes:
        line: The command line that starts it.
    """

    def __init__(self, warm: Warm, folder: Path, work: Path) -> None:
        self.warm = warm
        self.folder = folder
        self.work = work
        self.line = SERVE
        self.running: Running | None = None
        self.port = 0
        self.secret = ""
        self.cookie = ""

    @property
    def log(self) -> Path:
        """Return the log of judgements."""
        return self.work / "judged" / "judgements.jsonl"

    @property
    def errors(self) -> str:
        """Return what the server has printed on its standard error."""
        return (self.work / "log" / "stderr").read_text(errors="replace")

    def is_alive(self) -> bool:
        """Say whether the server runs."""
        return self.running is not None and not self.running.ends_within(0)

    def lay_out(self) -> None:
        """Empty the folder of the server."""
        self.stop()
        lay_out(self.work, self.folder / "world", [])

    def start(self) -> None:
        """Open the page over a new folder, unless it is open."""
        if not self.is_alive():
            self.lay_out()
            self.open()

    def open(self) -> None:
        """Start the server over the folder as it is, and enter when all models are ready."""
        self.fork()
        link = self._wait_for_link()
        address, _, self.secret = link.partition("#")
        self.port = int(address.rstrip("/").rpartition(":")[2])
        answer = self.post("/api/login", json.dumps({"secret": self.secret}).encode())
        self.cookie = answer.head.partition("set-cookie: ")[2].partition(";")[0]
        self._wait_for_models()

    def fork(self) -> None:
        """Start the server, and do not wait."""

        def serve() -> None:
            die_with_parent()
            run_command_line(self.line.split())

        environment = {"BEIR_COCODR_CACHE": str(self.work.parent / "cache")}
        self.running = self.warm.fork(serve, self.work, environment)

    def _wait_for_link(self) -> str:
        end = time.perf_counter() + 4 * PATIENCE
        while time.perf_counter() < end and self.is_alive():
            words = (self.work / "log" / "stdout").read_text(errors="replace").split()
            links = [word for word in words if word.startswith("http")]
            if links and "ends" in words:
                return links[0]
            time.sleep(0.05)
        raise SystemExit(f"the page does not start: {self.errors[-1000:]}")

    def _wait_for_models(self) -> None:
        end = time.perf_counter() + 4 * PATIENCE
        while time.perf_counter() < end:
            columns = json.loads(self.get("/api/state?query=lift").body)["models"]
            if all(column["state"] == "ready" for column in columns):
                return
            time.sleep(0.05)
        raise SystemExit(f"the models of the page do not load: {columns}")

    def kill(self) -> None:
        """Kill the server, and leave its folder."""
        if self.running is not None:
            self.running.kill()
            self.running.wait(10)
        self.running = None

    def stop(self) -> None:
        """Kill the server, and remove its folder."""
        self.kill()
        remove(self.work)

    def memory(self) -> float:
        """Return the resident memory of the server in MiB."""
        if self.running is None:
            return 0.0
        lines = Path(f"/proc/{self.running.pid}/status").read_text().splitlines()
        resident = [line for line in lines if line.startswith("VmRSS:")]
        return int(resident[0].split()[1]) / 1024 if resident else 0.0

    def connect(self) -> socket.socket:
        """Open a connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def head(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str | None] = {},
    ) -> bytes:
        """Return the head of a request of our own page, with some headers changed."""
        usual: dict[str, str | None] = {
            "host": f"127.0.0.1:{self.port}",
            "cookie": self.cookie,
            "connection": "close",
        }
        if method == "POST":
            usual["content-type"] = "application/json"
        lines = [f"{method} {path} HTTP/1.1"]
        for name, value in (usual | dict(headers)).items():
            if value is not None:
                lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")

    def exchange(self, content: bytes, patience: float = PATIENCE) -> Answer:
        """Send bytes, and return what is answered."""
        connection = self.connect()
        with suppress(OSError):  # the server may close before it has read everything
            connection.sendall(content)
        answer = parse_answer(read_all(connection, patience))
        connection.close()
        return answer

    def get(self, path: str, headers: Mapping[str, str | None] = {}) -> Answer:
        """Ask for a path."""
        return self.exchange(self.head("GET", path, headers))

    def post(
        self,
        path: str,
        body: bytes,
        headers: Mapping[str, str | None] = {},
    ) -> Answer:
        """Post a body."""
        length = {"content-length": str(len(body))}
        return self.exchange(self.head("POST", path, {**length, **headers}) + body)

    def search(self, query: str) -> Answer:
        """Search as our own page does."""
        return self.get(f"/api/search?model=bm25&query={quote(query)}")

    def judge(self, document: object, grade: object, query: object) -> Answer:
        """Judge as our own page does."""
        content = {"document": document, "grade": grade, "query": query}
        return self.post("/api/judge", json.dumps(content).encode())
