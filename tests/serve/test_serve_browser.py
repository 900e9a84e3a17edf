"""The page in a real browser, answered by the command itself: search, judge, kill, restart,
verdict, report.
"""

import inspect
import json
import os
import signal
import statistics
import sys
import textwrap
import time
from html import escape
from pathlib import Path

import pytest
from conftest import process

from beir_cocodr.cli.__main__ import main
from beir_cocodr.data.judgement_log import typed_id

pytestmark = pytest.mark.browser
QUERY = "average of data"
MARKUP = (
    "<img src=x onerror='window.broken = 1'><script>window.broken = 1</script> in the average of"
    " data: average data"
)


# Judges until nobody answers, and notes what was answered.
JUDGING = """
const [documents, tab] = arguments; window.judged = [];
(async () => {
  for (let i = 0; ; i += 1) for (const query of [`a mean ${tab}`, `a median ${tab}`]) {
    const document = documents[i % documents.length];
    const given = { document, grade: Math.floor(i / documents.length) % 3, query };
    try { await ask('api/judge', given); } catch (error) { return; }
    window.judged.push([query, given.document, given.grade]);
  }
})();
"""


def write_files(folder: Path) -> None:
    """Mixed files of Python's own documentation, and one that would break a page."""
    folder.mkdir()
    functions = [*vars(statistics).items(), *vars(textwrap).items(), *vars(json).items()]
    texts = {
        name: text
        for name, thing in functions
        if callable(thing) and (text := inspect.getdoc(thing))
    }
    for number, (name, text) in enumerate(texts.items()):
        kind = (".txt", ".md", ".rst", ".html")[number % 4]
        heading = {".md": f"# {name}\n\n", ".rst": f"{name}\n{'=' * len(name)}\n\n"}.get(kind, "")
        body = (
            f"<title>{name}</title><pre>{escape(text)}</pre>" if kind == ".html" else heading + text
        )
        (folder / f"{name}{kind}").write_text(body)
    (folder / "table.csv").write_text(f'title,text\n<b>Bold</b>,"{MARKUP}"\n')


def answer(folder: Path, model: str, place: Path) -> None:
    """A terminal, whose output goes to a file."""
    os.chdir(place)
    sys.stdout = (place / "out").open("w")
    main(
        [
            "serve",
            "--dataset",
            str(folder),
            "--model",
            "bm25",
            "--model",
            model,
            "--no-browser",
            "--output",
            "judged",
        ]
    )


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, inspect.getsource(condition)
        time.sleep(0.05)
    return found


class Page:
    """A person at the page: one program, and its tabs in one browser."""

    def __init__(self, browser, place: Path, model: str) -> None:
        self.browser, self.place, self.model, self.log = (
            browser,
            place,
            model,
            place / "judged" / "judgements.jsonl",
        )
        self.start()

    def start(self) -> None:
        (self.place / "out").unlink(missing_ok=True)
        self.program = process(answer, self.place / "files", self.model, self.place)
        out = until(lambda: (self.place / "out").is_file() and (self.place / "out").read_text())
        self.link = next(word for word in out.split() if word.startswith("http"))

    def kill(self) -> None:
        self.program.kill()
        self.program.join()

    def lines(self):
        return (
            [json.loads(line) for line in self.log.read_text().splitlines()]
            if self.log.is_file()
            else []
        )

    def keys(self, *keys) -> None:
        self.browser.driver.switch_to.active_element.send_keys(*keys)

    def hits(self, model="bm25"):
        return self.browser.all(f".column[data-model='{model}'] .hit")

    def grade(self, number, grade, model="bm25"):
        return self.browser.one(f".column[data-model='{model}'] .hit:nth-child({number}) .g{grade}")

    def pressed(self):
        return self.browser.run(
            "return [...document.querySelectorAll('#columns [aria-pressed=true]')].map((button) =>"
            " [button.closest('.hit').dataset.id, Number(button.className.slice(-1))])"
        )

    def text(self, selector):
        return self.browser.one(selector).text


@pytest.fixture
def page(browser, tmp_path, tiny_cosine):
    write_files(tmp_path / "files")
    found = Page(browser, tmp_path, str(tiny_cosine))
    yield found
    found.kill()


def test_a_folder_is_searched_and_judged_and_the_verdict_moves(browser, page):
    from selenium.webdriver.common.keys import Keys

    driver, place = browser.driver, page.place
    driver.get_log("browser")
    browser.requests()
    browser.open(page.link.partition("#")[0])  # without the token nothing is shown
    until(lambda: browser.one("#login").is_displayed())
    browser.open("about:blank")
    browser.open(page.link)
    until(lambda: browser.one("#page").is_displayed())
    assert "#" not in driver.current_url
    assert driver.switch_to.active_element.get_attribute("id") == "query"
    driver.get_log("browser")  # that nothing was shown is one of its errors

    # By the keyboard alone: search, go to a result, judge it, read it in full, undo.
    page.keys(QUERY, Keys.ENTER)
    until(lambda: page.hits() and len(page.hits(page.model)) == 10)
    assert {mark.text.lower() for mark in browser.all(".snippet mark")} >= {"average", "data"}
    assert "<b>Bold</b>" in browser.run("return document.body.textContent")
    page.keys(Keys.TAB, Keys.TAB, "j", "j")
    title = driver.switch_to.active_element
    id = browser.run("return document.activeElement.closest('.hit').dataset.id")
    page.keys("2")
    until(lambda: [id, 2] in page.pressed())
    page.keys(Keys.ENTER)
    until(lambda: browser.one("#reader").is_displayed())
    assert title.text == page.text("#reader-title")
    assert browser.all("#reader-text mark")
    page.keys(Keys.ESCAPE)
    page.keys("u")
    until(lambda: page.pressed() == [])
    until(lambda: browser.one("#undo").get_property("disabled"))

    # Two tabs agree, doubled clicks count once, and what one takes back is gone in both.
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    browser.open(page.link.partition("#")[0] + "?q=" + QUERY.replace(" ", "+"))
    until(lambda: page.hits())
    second = driver.current_window_handle
    for _ in range(2):
        page.grade(1, 1).click()
    until(lambda: len(page.pressed()) >= 1)
    driver.switch_to.window(first)
    until(lambda: page.pressed())
    assert len(page.lines()) == 3
    page.grade(2, 0).click()
    until(lambda: len({id for id, _ in page.pressed()}) == 2)
    driver.switch_to.window(second)
    until(lambda: len({id for id, _ in page.pressed()}) == 2)

    # The next pairs, of the typed query first, until ten are judged.
    browser.one("#next").click()
    until(lambda: page.text("#pair-query") == QUERY)
    for count in range(3, 11):
        until(lambda: browser.one("#pair").is_displayed())
        page.keys("1")
        until(lambda count=count: page.text("#count").startswith(f"{count} judgements of "))
        time.sleep(0.3)  # the next pair is asked for
    page.keys(Keys.ESCAPE)
    until(lambda: "of 10 judged queries" in page.text("#progress-text"))
    assert browser.run(
        "return window.broken === undefined && document.querySelectorAll('img').length === 0"
    )
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
    own = page.link.partition("#")[0]
    assert all(
        url.startswith((own, "data:", "about:", "blob:", "chrome")) for url in browser.requests()
    )

    # Killed while two tabs judge as fast as they can: what the page shows as judged is in the log,
    # once.
    ids = browser.run("return [...document.querySelectorAll('.hit')].map((hit) => hit.dataset.id)")
    for tab in (first, second):
        driver.switch_to.window(tab)
        driver.execute_script(JUDGING, list(dict.fromkeys(ids)), tab)
    until(lambda: len(page.lines()) > 40)
    page.kill()
    lines = page.lines()
    written = [(line["query"], line["document_id"], line["grade"]) for line in lines]
    for tab in (first, second):
        driver.switch_to.window(tab)
        until(lambda: "program has ended" in page.text("#notice"))
        shown = browser.run("return window.judged")
        assert len(shown) > 5
        assert [tuple(one) for one in shown if tuple(one[:3]) not in written] == []
        mine = [one for one in written if one[0].endswith(tab)]
        assert len(mine) == len(set(mine))
        assert len(mine) - len(shown) in (0, 1)  # one may be written and not yet answered

    # Started again it goes on, and the verdict and its report come.
    page.start()
    browser.open(page.link)
    until(lambda: browser.one("#page").is_displayed())
    last: dict[tuple[str, str], object] = {}
    for query, document, grade in written:
        last.pop((query, document), None)
        if grade is not None:  # else taken back
            last[query, document] = grade
    queries = {typed_id(query) for query, _ in last}
    assert page.text("#count") == f"{len(last)} judgements of {len(queries)} queries."
    until(lambda: f"{len(queries)} of 10 judged queries" in page.text("#progress-text"))
    assert "hybrid:" in page.text("#headline") or "bet" in page.text("#headline")
    assert len(browser.all(".comparison")) == 1
    browser.one("#report").click()
    link = until(lambda: browser.one("#report-link").is_displayed() and browser.one("#report-link"))
    report = link.get_attribute("href")
    browser.open(page.link.partition("#")[0] + "?q=" + QUERY.replace(" ", "+"))
    until(lambda: page.pressed() and len(page.hits(page.model)) == 10)
    for width in (400, 800, 1280, 1600):
        for scheme in ("light", "dark"):
            browser.look(width, scheme)
            wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, (width, wide)
            if width in (400, 1280):
                assert browser.probe("faint") == [], scheme
    nameless = (
        "return [...document.querySelectorAll('button, input:not([hidden])')].filter((e) =>"
        " !(e.textContent.trim() ||"
    )
    assert (
        browser.run(nameless + " e.ariaLabel || e.labels?.length)).map((e) => e.outerHTML)") == []
    )
    browser.open(report)
    assert "Retrieval report" in page.text("body")
    assert (place / "judged" / "verdict" / "report.html").is_file()
    os.kill(page.program.pid, signal.SIGINT)
    page.program.join(20)
    assert page.program.exitcode == 0
    assert f"{len(last)} judgements of" in (place / "out").read_text()
