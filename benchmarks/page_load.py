"""Claim: the page answers many clients in bounded memory and time, hostile ones among them.

The command ``serve`` answers on the loopback address of this machine, over a folder of files with
the documentation of numpy. First, searches follow one another on a few connections. Then many
clients search, judge and look at the state of the page at once, with a pause after each visit; one
in ten goes away in the middle of what it posts, and comes again. Every judgement that was answered
must be in the log. The number of searches and the time are bounded. Times depend on what else the
machine does, so its load is recorded.

The script writes ``benchmarks/results/page_load.json``:

    python benchmarks/page_load.py [--searches 5000] [--clients 200] [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness.script import option_parser, origin, write_results

from beir_cocodr.data.collection import load_collection

#: The collection whose documents become files.
TEXTS = "apidocs/numpy"
MODEL = "bm25"

#: The most that may be asked for.
MOST_SEARCHES = 20_000
MOST_CLIENTS = 400
MOST_SECONDS = 120

#: Seconds after which a client gives up waiting; such answers are counted as late.
LONGEST = 30.0

#: Seconds that a client pauses after each visit, as a person reads.
PAUSE = 10.0

#: Clients that search at once in the first part.
FEW = 4

#: The share of clients that go away while they post.
HOSTILE = 0.1

WORDS = (
    "array sorted copy random matrix inverse sum axis shape index string float mask norm".split()
)


@dataclass
class Load:
    """What clients have seen.

    Attributes:
        seconds: the time of each answer.
        statuses: status of an answer to its number.
        judged: judgements that were answered.
        gone: clients that went away while they posted.
        late: answers for which a client did not wait.
    """

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    judged: int = 0
    gone: int = 0
    late: int = 0

    def describe(self) -> dict[str, Any]:
        """Return the number of answers by status, and quantiles of their times."""
        ordered = sorted(self.seconds)
        return {
            "answers": len(ordered),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "late": self.late,
            "median_ms": round(1000 * ordered[len(ordered) // 2], 1),
            "p95_ms": round(1000 * ordered[int(0.95 * len(ordered))], 1),
            "longest_ms": round(1000 * ordered[-1], 1),
        }


class Client:
    """A connection to the page, which stays open between requests."""

    def __init__(self, port: int, cookie: str, load: Load) -> None:
        self.port = port
        self.cookie = cookie
        self.load = load
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
        """Return status, head and body of an answer."""
        began = time.perf_counter()
        async with asyncio.timeout(LONGEST):
            reader, writer = await self.connect()
            writer.write(self.head(method, path, len(body)) + body)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            content = await reader.readexactly(length)
        status = int(head.split()[1])
        self.load.seconds.append(time.perf_counter() - began)
        self.load.statuses[status] += 1
        return status, head, content

    async def go_away(self) -> None:
        """Post a part of a judgement, and close the connection."""
        _, writer = await self.connect()
        writer.write(self.head("POST", "/api/judge", 500) + b'{"document": "')
        await writer.drain()
        self.close()
        self.load.gone += 1

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of the connection, opened anew where the server has closed it."""
        if self.streams is None or self.streams[0].at_eof():
            self.close()
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        return self.streams

    def head(self, method: str, path: str, length: int) -> bytes:
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: 127.0.0.1:{self.port}",
            f"cookie: {self.cookie}",
        ]
        if method == "POST":
            lines += ["content-type: application/json", f"content-length: {length}"]
        return "\r\n".join([*lines, "", ""]).encode()

    def close(self) -> None:
        """Close the connection."""
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


async def log_in(port: int, secret: str) -> str:
    """Return the cookie that the page gives for its key."""
    client = Client(port, "", Load())
    body = json.dumps({"secret": secret}).encode()
    _, head, _ = await client.request("POST", "/api/login", body)
    client.close()
    return head.partition("set-cookie: ")[2].partition(";")[0]


def draw_query(rng: random.Random) -> str:
    """Return a query of one to five words."""
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 5)))


async def search_on(client: Client, searches: int, rng: random.Random) -> None:
    """Search again and again on one connection."""
    for _ in range(searches):
        await client.request("GET", f"/api/search?model={MODEL}&query={quote(draw_query(rng))}")
    client.close()


async def live(client: Client, end: float, rng: random.Random, is_hostile: bool) -> None:
    """Search, judge and look at the state, with pauses, until the end."""
    await asyncio.sleep(rng.random() * PAUSE)
    while time.perf_counter() < end:
        try:
            if is_hostile:
                await client.go_away()
            else:
                await visit(client, rng)
        except TimeoutError:
            client.load.late += 1
        client.close()  # the server closes an idle connection, too
        await asyncio.sleep(rng.random() * 2 * PAUSE)
    client.close()


async def visit(client: Client, rng: random.Random) -> None:
    """Search, and judge a result of some searches."""
    query = draw_query(rng)
    path = f"/api/search?model={MODEL}&query={quote(query)}"
    status, _, content = await client.request("GET", path)
    hits = json.loads(content)["hits"] if status == 200 else []
    await client.request("GET", f"/api/state?query={quote(query)}")
    if hits and rng.random() < 0.1:
        # Each judgement is of a query of its own, so that the log has a line for each.
        query = f"{query} {rng.random()}"
        judgement = {"document": rng.choice(hits)["id"], "grade": rng.randrange(3), "query": query}
        status, _, _ = await client.request("POST", "/api/judge", json.dumps(judgement).encode())
        client.load.judged += status == 200


def memory(process: int, name: str) -> float:
    """Return the resident memory of a process in MiB: VmRSS now, or VmHWM at the peak."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return round(int(line.split()[1]) / 1024, 1)


async def measure(port: int, cookie: str, process: int, options: argparse.Namespace) -> Any:
    """Run both parts."""
    before = memory(process, "VmRSS")
    processor_before = processor_seconds_of(process)
    few = Load()
    began = time.perf_counter()
    rng = random.Random(options.seed)
    connections = [Client(port, cookie, few) for _ in range(FEW)]
    share = options.searches // FEW
    seeds = [random.Random(rng.random()) for _ in range(FEW + options.clients)]
    await asyncio.gather(
        *(search_on(client, share, seed) for client, seed in zip(connections, seeds, strict=False))
    )
    took = time.perf_counter() - began
    after_searches = memory(process, "VmRSS")
    processor = processor_seconds_of(process) - processor_before
    many = Load()
    end = time.perf_counter() + options.seconds
    visitors = []
    for number, seed in enumerate(seeds[FEW:]):
        is_hostile = number < HOSTILE * options.clients
        visitors.append(live(Client(port, cookie, many), end, seed, is_hostile))
    await asyncio.gather(*visitors)
    return {
        "searches": few.describe()
        | {
            "per_second": round(len(few.seconds) / took, 1),
            "processor_ms": round(1000 * processor / len(few.seconds), 1),
        },
        "clients": many.describe() | {"judged": many.judged, "went_away": many.gone},
        "memory_mib": {
            "before": before,
            "after_searches": after_searches,
            "after_clients": memory(process, "VmRSS"),
            "peak": memory(process, "VmHWM"),
        },
    }


def processor_seconds_of(process: int) -> float:
    """Return the processor time that a process has taken, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write_files(folder: Path) -> None:
    """Write a file for each document."""
    folder.mkdir()
    for number, document in enumerate(load_collection(TEXTS, labels="none").documents.values()):
        (folder / f"{number}.txt").write_text(f"{document['title']}\n\n{document['text']}")


def serve(folder: Path) -> tuple[subprocess.Popen[str], int, str]:
    """Start the page, and return its process, its port and its key."""
    command = [sys.executable, "-m", "beir_cocodr.cli", "serve", "--dataset", str(folder / "files")]
    command += ["--model", MODEL, "--no-browser", "--output", str(folder / "judged")]
    errors = (folder / "errors").open("w")
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert server.stdout is not None
    link = next(word for word in server.stdout.readline().split() if word.startswith("http"))
    address, _, secret = link.partition("#")
    return server, int(address.rstrip("/").rpartition(":")[2]), secret


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__, "page_load")
    parser.add_argument("--searches", type=int, default=5_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=60, help="Time of the clients.")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    for name, most in (
        ("searches", MOST_SEARCHES),
        ("clients", MOST_CLIENTS),
        ("seconds", MOST_SECONDS),
    ):
        if not 1 <= getattr(options, name) <= most:
            parser.error(f"--{name} is from 1 to {most}")
    return options


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder / "files")
        server, port, secret = serve(folder)
        try:
            cookie = asyncio.run(log_in(port, secret))
            figures = asyncio.run(measure(port, cookie, server.pid, options))
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
        log = folder / "judged" / "judgements.jsonl"
        figures["logged"] = len(log.read_text().splitlines()) if log.is_file() else 0
        figures["exit_status"] = server.returncode
        figures["tracebacks"] = (folder / "errors").read_text().count("Traceback")
    print(json.dumps(figures, indent=2))
    names = ("searches", "clients", "seconds", "seed")
    settings = {name: getattr(options, name) for name in names}
    settings |= {
        "load_of_machine": round(os.getloadavg()[0], 1),
        "texts": TEXTS,
        "pause_seconds": PAUSE,
        "hostile": HOSTILE,
    }
    write_results(options.results, origin() | {"settings": settings} | figures)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
