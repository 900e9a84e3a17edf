"""Hostile clients of the page: what they send, how they leave, and what the server makes of it.

Many cases share one server. After each, the server must still answer a search as it did before,
within seconds, keep every judgement that it has answered, and have printed no traceback.
"""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from faults.damage import HUGE, LINE_VALUES, WRONG
from faults.inputs import LONGEST, TRACEBACK, Campaign, Outcome
from faults.page_server import Answer, PageServer, read_all, reset
from faults.runner import remove

_QUERY = "lift shock"
_POSTS = ["/api/judge", "/api/undo", "/api/report", "/api/login"]
_GETS = ["/api/state", "/api/search", "/api/document", "/api/wanted", "/file", "/report"]
_PARAMETERS = ["model", "query", "kind", "folder", "id"]

#: MiB by which one case may let the server grow; a report of both models takes most.
_GROWTH = 300.0


@dataclass
class Attack:
    """What a hostile client has done.

    Attributes:
        what: What it did.
        answers: What was answered.
        forbidden: Answers to one who may not ask, which must be refusals.
        judged: Queries of judgements that were answered, which must be in the log.
        restart: Whether the server must be started anew, as files were taken from it.
    """

    what: str
    answers: list[Answer] = field(default_factory=list)
    forbidden: list[Answer] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    restart: bool = False


#: Attacks the page, and says how.
Attacker = Callable[[PageServer, random.Random], Attack]


@cache
def _server(campaign: Campaign) -> PageServer:
    """Return the server that the cases of a worker share."""
    work = campaign.work.parent / "page"
    return PageServer(campaign.warm, campaign.folder, work)


def _large_body(server: PageServer, rng: random.Random) -> Attack:
    path = rng.choice(_POSTS)
    said = rng.choice([65_537, 10**6, 10**9, 10**18, 10**40])
    chunk = b'{"document": "' + b"a" * rng.choice([10, 70_000, 5_000_000])
    kind = rng.choice(["said", "chunked", "more than said", "encoded"])
    headers: dict[str, str | None] = {"content-length": str(said)}
    content = chunk
    if kind == "chunked":
        headers = {"transfer-encoding": "chunked"}
        content = b"%x\r\n" % len(chunk) + chunk + b"\r\n0\r\n\r\n"
    elif kind == "more than said":
        headers = {"content-length": "12"}
    elif kind == "encoded":
        content = gzip.compress(b" " * 10**7)
        headers = {"content-length": str(len(content)), "content-encoding": "gzip"}
    answer = server.exchange(server.head("POST", path, headers) + content, 5)
    return Attack(f"{path}, {kind}: {said} bytes", [answer])


def _slow(server: PageServer, rng: random.Random) -> Attack:
    """Send a few bytes at a time on many connections, and ask for the page meanwhile."""
    count = rng.choice([1, 20, 100])
    path = rng.choice(_POSTS)
    content = server.head("POST", path, {"content-length": "500"}) + b'{"document": "d1", '
    connections = [server.connect() for _ in range(count)]
    for position in range(0, len(content), 40):
        for connection in connections:
            connection.sendall(content[position : position + 40])
    answer = server.search(_QUERY)
    for connection in connections:
        rng.choice([reset, lambda one: one.close()])(connection)
    return Attack(f"{count} slow clients of {path}", [answer])


def _idle(server: PageServer, rng: random.Random) -> Attack:
    """Open many connections and send nothing."""
    count = rng.choice([50, 200])
    connections = [server.connect() for _ in range(count)]
    answer = server.search(_QUERY)
    for connection in connections:
        connection.close()
    return Attack(f"{count} idle connections", [answer])


def _leaving_while_posting(server: PageServer, rng: random.Random) -> Attack:
    path = rng.choice(_POSTS)
    body = json.dumps({"document": "d1", "grade": 1, "query": "left while posting"}).encode()
    sent = rng.randrange(len(body))
    for _ in range(rng.choice([1, 5, 20])):
        connection = server.connect()
        head = server.head("POST", path, {"content-length": str(len(body))})
        connection.sendall(head + body[:sent])
        time.sleep(rng.choice([0, 0.01]))
        rng.choice([reset, lambda one: one.close()])(connection)
    return Attack(f"gone after {sent} bytes of {path}")


def _leaving_while_reading(server: PageServer, rng: random.Random) -> Attack:
    path = rng.choice(["/", "/page.js", f"/api/search?model=bm25&query={_QUERY[:4]}", "/api/state"])
    for _ in range(rng.choice([1, 5, 20])):
        connection = server.connect()
        connection.sendall(server.head("GET", path))
        time.sleep(rng.choice([0, 0.01]))
        reset(connection)
    return Attack(f"gone before the answer to {path}")


def _wrong_types(server: PageServer, rng: random.Random) -> Attack:
    path = rng.choice(["/api/judge", "/api/judge", "/api/undo", "/api/report", "/api/login"])
    contents: dict[str, dict[str, object]] = {
        "/api/judge": {"document": "d1", "grade": 1, "query": "wing", "query_id": None},
        "/api/undo": {"version": 0},
        "/api/report": {},
        "/api/login": {"secret": server.secret},
    }
    content: object = contents[path]
    value = rng.choice([*WRONG, *HUGE, *LINE_VALUES])
    assert isinstance(content, dict)
    name = rng.choice([*content, "surprise"])
    content = rng.choice([content | {name: value}, [content], value])
    if path == "/api/report" and content == {}:
        content = []
    body = json.dumps(content).encode()
    judged = []
    answer = server.post(path, body)
    is_judged = path == "/api/judge" and answer.status == 200
    if is_judged and isinstance(content, dict) and content["grade"] is not None:
        judged.append(str(content["query"]))
    return Attack(f"{path}, {name} is {str(value)[:40]!r}", [answer], judged=judged)


def _wrong_encodings(server: PageServer, rng: random.Random) -> Attack:
    path = rng.choice(["/api/judge", "/api/undo", "/api/login"])
    text = json.dumps({"document": "d1", "grade": 1, "query": "w\u00f6rd"}, ensure_ascii=False)
    bodies = {
        "utf-16": text.encode("utf-16"),
        "utf-32": text.encode("utf-32"),
        "latin-1": text.encode("latin-1"),
        "bytes": rng.randbytes(200),
        "NUL": b"\0" * 100,
        "a mark": text.encode("utf-8-sig"),
        "gzip": gzip.compress(text.encode()),
        "nothing": b"",
        "half": text.encode()[:-4],
        "two": text.encode() * 2,
        "nested": b"[" * 60_000,
        "a nested object": b'{"a":' * 10_000,
        "form": b"document=d1&grade=1&query=wing",
        "NaN": b'{"document": "d1", "grade": NaN, "query": "wing"}',
        "twice a key": b'{"version": 0, "version": "x", "document": "d1"}',
    }
    kind = rng.choice(list(bodies))
    types = ["application/json", "application/json", "text/plain", "", "application/json; x=\xff"]
    content_type = rng.choice(types)
    answer = server.post(path, bodies[kind], {"content-type": content_type})
    return Attack(f"{path}, {kind} as {content_type!r}", [answer])


_BAD_REQUESTS: dict[str, bytes] = {
    "no version": b"GET /\r\n\r\n",
    "a version of the future": b"GET / HTTP/9.9\r\n\r\n",
    "line feeds": b"GET / HTTP/1.1\nhost: a\n\n",
    "no host": b"GET /api/state HTTP/1.1\r\n\r\n",
    "a method of bytes": b"\xff\xfe / HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "a preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nhost: a\r\n b\r\n\r\n",
    "a header without a name": b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nhost : a\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nhost: a\0b\r\n\r\n",
    "a full address": b"GET http://elsewhere/ HTTP/1.1\r\nhost: elsewhere\r\n\r\n",
    "CONNECT": b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere:443\r\n\r\n",
}


def _malformed(server: PageServer, rng: random.Random) -> Attack:
    kind = rng.choice([*_BAD_REQUESTS, "headers", "a long header", "a long line", "lengths"])
    if kind == "headers":
        many = {f"x-{number}": "a" for number in range(rng.choice([100, 20_000]))}
        content = server.head("GET", "/api/state", many)
    elif kind == "a long header":
        content = server.head("GET", "/api/state", {"x-long": "a" * 200_000})
    elif kind == "a long line":
        content = server.head("GET", "/api/state?query=" + "a" * rng.choice([70_000, 2_000_000]))
    elif kind == "lengths":
        length = rng.choice(["-1", "+5", "5, 5", "0x5", "five", "", "5\r\ncontent-length: 6"])
        content = server.head("POST", "/api/judge", {"content-length": length}) + b"{}   "
    else:
        content = _BAD_REQUESTS[kind]
    answer = server.exchange(content, 3)
    return Attack(f"a malformed request: {kind}", [answer])


def _smuggled(server: PageServer, rng: random.Random) -> Attack:
    """Hide a request without the cookie in the body of another."""
    inner = b"GET /api/state HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    lengths = {"content-length": "5", "transfer-encoding": "chunked", "cookie": None}
    content = server.head("POST", "/api/judge", lengths) + b"0\r\n\r\n" + inner
    connection = server.connect()
    with suppress(OSError):
        connection.sendall(content)
    replies = read_all(connection, 3)
    connection.close()
    parts = [part for part in replies.split(b"HTTP/1.1 ") if part]
    answers = []
    for part in parts:
        status = int(part[:3]) if part[:3].isdigit() else None
        answers.append(Answer(status, "", part.partition(b"\r\n\r\n")[2]))
    return Attack("a request in the body of another", forbidden=answers)


_ODD_VALUES = [
    "",
    " ",
    "%00",
    "%ed%a0%80",
    "%ff%fe",
    "%",
    "%zz",
    "%c0%ae",
    "a" * 3_000,
    "%F0%9F%A6%86" * 300,
    "../../etc/passwd",
    "/etc/passwd",
    "%2e%2e%2f",
    "<script>alert(1)</script>",
    "%0d%0aset-cookie:%20a=b",
    "d1%00.txt",
    "-1",
    "null",
    "1e999",
    "%25%25s%25n",
    "%E2%80%AE",
    "#%",
]


def _odd_parameters(server: PageServer, rng: random.Random) -> Attack:
    path = rng.choice(_GETS)
    values = {"model": "bm25", "query": "wing", "id": "d1"}
    name = rng.choice(_PARAMETERS)
    values[name] = rng.choice(_ODD_VALUES)
    words = [f"{key}={value}" for key, value in values.items()]
    if rng.random() < 0.2:
        words.append(f"{name}={rng.choice(_ODD_VALUES)}")
    target = f"{path}?{'&'.join(words)}".replace(" ", "%20")
    return Attack(f"{path}, {name}={values[name][:40]}", [server.get(target)])


def _odd_paths(server: PageServer, rng: random.Random) -> Attack:
    path = "/" + rng.choice([*_ODD_VALUES, "api", "api/", "api/judge/", "page.py", "api//state"])
    answer = server.get(path.replace(" ", "%20"))
    if answer.status == 200 and path not in ("/", "/#%"):
        return Attack(f"a path {path[:40]}", forbidden=[answer])
    return Attack(f"a path {path[:40]}", [answer])


def _methods(server: PageServer, rng: random.Random) -> Attack:
    method = rng.choice(["PUT", "DELETE", "OPTIONS", "TRACE", "HEAD", "PATCH", "get", "X" * 3_000])
    path = rng.choice([*_POSTS, *_GETS, "/"])
    if rng.random() < 0.3:
        upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        content = server.head("GET", path, upgrade)
        return Attack(f"{path} as a web socket", [server.exchange(content, 3)])
    return Attack(f"{method[:10]} {path}", [server.exchange(server.head(method, path), 5)])


def _without_permission(server: PageServer, rng: random.Random) -> Attack:
    """Ask without the cookie, from another site, or by another name of the machine."""
    changes: dict[str, dict[str, str | None]] = {
        "no cookie": {"cookie": None},
        "an old cookie": {"cookie": f"beir-cocodr-{server.port}=" + "a" * 43},
        "another name of the cookie": {"cookie": server.cookie.replace("cocodr", "other")},
        "another site": {"origin": "http://elsewhere"},
        "no site": {"origin": "null"},
        "another site's request": {"sec-fetch-site": "cross-site"},
        "another host": {"host": "elsewhere"},
        "a host that looks alike": {"host": "127.0.0.1.elsewhere"},
        "no host": {"host": ""},
    }
    kind = rng.choice(list(changes))
    path = rng.choice([*_GETS, *_POSTS[:3]])
    if path in _GETS:
        answer = server.get(f"{path}?model=bm25&query=wing&id=d1", changes[kind])
    else:
        body = json.dumps({"document": "d1", "grade": 1, "query": "forbidden", "version": 0})
        answer = server.post(path, body.encode(), changes[kind])
    return Attack(f"{path} with {kind}", forbidden=[answer])


def _guesses(server: PageServer, rng: random.Random) -> Attack:
    """Guess the key ten times and more at once, while the one who has it enters."""
    count = rng.choice([10, 15, 30])

    def guess(number: int) -> Answer:
        return server.post("/api/login", json.dumps({"secret": f"guess {number}"}).encode())

    with ThreadPoolExecutor(count) as pool:
        guesses = [pool.submit(guess, number) for number in range(count)]
        began = time.perf_counter()
        body = json.dumps({"secret": server.secret}).encode()
        entered = server.post("/api/login", body)
        seconds = time.perf_counter() - began
        refused = [guess.result() for guess in guesses]
    if entered.status != 200:
        entered = Answer(500, "", b"the rightful user was not let in")
    elif seconds > 10:
        entered = Answer(500, "", b"the rightful user waited for the others")
    return Attack(f"{count} guesses at once", [entered], forbidden=refused)


def _two_reports(server: PageServer, rng: random.Random) -> Attack:
    """Judge something, and ask for several reports at once."""
    query = f"wing {rng.random()}"
    answers = [server.judge("d1", 1, query)]
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(server.post, "/api/report", b"{}") for _ in range(rng.choice([2, 3]))]
        answers += [one.result() for one in asked]
    answers.append(server.get("/report"))
    return Attack("reports at once", answers, judged=[query])


def _judging_at_once(server: PageServer, rng: random.Random) -> Attack:
    """Judge, take back and look from several connections at once."""
    queries = [f"at once {rng.random()}" for _ in range(rng.choice([4, 12]))]
    with ThreadPoolExecutor(6) as pool:
        asked = [
            pool.submit(server.judge, f"d{row}", 1, query) for row, query in enumerate(queries)
        ]
        looked = [pool.submit(server.get, "/api/state?query=wing") for _ in range(4)]
        answers = [one.result() for one in (*asked, *looked)]
    judged = []
    for query, answer in zip(queries, answers, strict=False):
        if answer.status == 200:
            judged.append(query)
    return Attack(f"{len(queries)} judgements at once", answers, judged=judged)


def _pipelined(server: PageServer, rng: random.Random) -> Attack:
    """Send many requests at once on one connection."""
    count = rng.choice([5, 100])
    request = server.head("GET", "/api/state?query=wing", {"connection": "keep-alive"})
    last = server.head("GET", "/api/state?query=wing")
    connection = server.connect()
    with suppress(OSError):
        connection.sendall(request * count + last)
    replies = read_all(connection)
    connection.close()
    number = replies.count(b"HTTP/1.1 200")
    answers = [Answer(200 if number == count + 1 else 500, "", b"not all were answered")]
    return Attack(f"{count} requests in one", answers)


def _log_damaged(server: PageServer, rng: random.Random) -> Attack:
    """Change the log under the server, judge, look, and give the log back."""
    answers = [server.judge("d1", 1, "before the damage")]
    content = server.log.read_bytes()
    kind = rng.choice(["a folder", "gone", "half", "rubbish", "edited", "not readable", "a link"])
    if kind in ("a folder", "gone", "a link"):
        server.log.unlink()
        if kind == "a folder":
            server.log.mkdir()
        elif kind == "a link":
            server.log.symlink_to("nowhere")
    elif kind == "half":
        server.log.write_bytes(content[: len(content) - 9])
    elif kind == "rubbish":
        server.log.write_bytes(content + b"\xff\xfe rubbish\n")
    elif kind == "edited":
        server.log.write_bytes(content.replace(b'"grade": 1', b'"grade": 2'))
    else:
        server.log.chmod(0)
    answers.append(server.get("/api/state?query=wing"))
    answers.append(server.judge("d2", 2, "after the damage"))
    answers.append(server.post("/api/undo", b'{"version": 0}'))
    answers.append(server.search(_QUERY))
    return Attack(f"the log is {kind}", answers, restart=True)


def _output_gone(server: PageServer, rng: random.Random) -> Attack:
    """Take the folder of the judgements away, or the permission to write to it."""
    folder = server.work / "judged"
    kind = rng.choice(["gone", "not writable", "a file", "moved"])
    if kind == "not writable":
        folder.chmod(0o500)
    elif kind == "moved":
        folder.rename(server.work / "moved")
    else:
        remove(folder)
        if kind == "a file":
            folder.write_text("a file")
    answers = [server.judge("d2", 2, "without a folder"), server.get("/api/state?query=wing")]
    answers.append(server.post("/api/report", b"{}"))
    if folder.is_dir():
        folder.chmod(0o755)
    return Attack(f"the folder of judgements is {kind}", answers, restart=True)


_ATTACKERS: dict[Attacker, int] = {
    _large_body: 6,
    _slow: 4,
    _idle: 1,
    _leaving_while_posting: 6,
    _leaving_while_reading: 4,
    _wrong_types: 14,
    _wrong_encodings: 10,
    _malformed: 10,
    _smuggled: 1,
    _odd_parameters: 14,
    _odd_paths: 6,
    _methods: 6,
    _without_permission: 8,
    _guesses: 1,
    _two_reports: 1,
    _judging_at_once: 3,
    _pipelined: 2,
    _log_damaged: 2,
    _output_gone: 1,
}


def run_client(case: str, campaign: Campaign) -> Outcome:
    """Attack the page, and judge what it answers and how it goes on."""
    rng = campaign.generator(case)
    server = _server(campaign)
    server.start()
    began = time.perf_counter()
    expected = server.search(_QUERY)
    errors_before = len(server.errors)
    memory_before = server.memory()
    attacker = rng.choices(list(_ATTACKERS), list(_ATTACKERS.values()))[0]
    attack = attacker(server, rng)
    outcome, message = _judge(server, attack, errors_before)
    if outcome not in ("traceback", "hole") and not attack.restart:
        problem = _judge_rest(server, attack, expected, memory_before)
        outcome, message = problem or (outcome, message)
    if attack.restart or outcome not in ("refused", "harmless", "refused unclearly"):
        server.stop()
    kind = attacker.__name__.strip("_").replace("_", " ")
    seconds = round(time.perf_counter() - began, 3)
    return Outcome(case, "serve", "page", kind, attack.what, outcome, message[-300:], seconds, [])


def _judge(server: PageServer, attack: Attack, errors_before: int) -> tuple[str, str]:
    """Judge the answers, and what the server has printed meanwhile."""
    new_errors = server.errors[errors_before:]
    if TRACEBACK in new_errors or not server.is_alive():
        return "traceback", new_errors.strip()[-300:] or "the server has ended"
    for answer in (*attack.answers, *attack.forbidden):
        if answer.status is not None and answer.status >= 500:
            return "traceback", f"status {answer.status}: {answer.error}"
    for answer in attack.forbidden:
        if answer.status is not None and answer.status < 400:
            return "hole", f"status {answer.status}: {answer.error[:100]}"
    refusals = [one for one in attack.answers if one.status is not None and one.status >= 400]
    for answer in refusals:
        if not _is_clear(answer):
            return "refused unclearly", f"status {answer.status}: {answer.error!r}"
    if refusals or attack.forbidden:
        return "refused", refusals[0].error if refusals else ""
    return "harmless", ""


def _is_clear(answer: Answer) -> bool:
    """Say whether a refusal is one line; nobody reads the body of an answer to HEAD."""
    lines = answer.error.strip().splitlines()
    return not answer.body or (len(lines) == 1 and len(answer.error) <= LONGEST)


def _judge_rest(
    server: PageServer,
    attack: Attack,
    expected: Answer,
    memory_before: float,
) -> tuple[str, str] | None:
    """Return an outcome if the server no longer works as before, otherwise None."""
    answer = server.search(_QUERY)
    if answer.status is None:
        return "hang", "a search is not answered any more"
    if answer.body != expected.body:
        return "silent difference", "a search is answered differently"
    missing = sorted(set(attack.judged) - _logged_queries(server.log))
    if missing:
        return "lost work", f"judged and not in the log: {missing[0][:100]}"
    growth = server.memory() - memory_before
    if growth > _GROWTH:
        return "hang", f"the server has grown by {growth:.0f} MiB"
    return None


def _logged_queries(log: Path) -> set[str]:
    lines: Iterable[str] = log.read_text().splitlines() if log.is_file() else ()
    return {json.loads(line)["query"] for line in lines}
