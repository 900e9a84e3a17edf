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
    (folder / "deep").mkdir()
    (folder / "deep" / "notes.html").write_text(
        "<title>Notes</title><script>document.title = 'changed by a script'</script>"
        "<p>The average of the notes.</p>"
    )


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


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory, tiny_cosine):
    """One program for all tests here, in their order; the last one judges, and kills it."""
    place = tmp_path_factory.mktemp("page")
    write_files(place / "files")
    person = Page(browser, place, str(tiny_cosine))
    yield person
    person.kill()


@pytest.fixture
def opened(page):
    """The page in the browser, whose models are ready and where nothing was searched."""
    page.browser.open("about:blank")
    page.browser.open(page.link)
    until(lambda: page.browser.one("#page").is_displayed())
    until(lambda: page.browser.run("return state.models.every((m) => m.state === 'ready')"))
    return page


def focused(page, part):
    """Return a part of the result that has the focus, "" if none has it."""
    return page.browser.run(
        "const hit = document.activeElement.closest('.hit');"
        f"return hit ? hit.querySelector('{part}').textContent : ''"
    )


def search(page, text):
    from selenium.webdriver.common.keys import Keys

    field = page.browser.one("#query")
    field.clear()
    field.send_keys(text, Keys.ENTER)


def files(page):
    """Return the files that the results on the page link to."""
    script = "return [...document.querySelectorAll('.hit .file')].map((link) => link.textContent)"
    return page.browser.run(script)


def test_an_address_with_a_broken_key_asks_for_the_right_one(page):
    address = page.link.partition("#")[0]
    for broken in ("#%", "#%E0%A4%A"):
        page.browser.open("about:blank")
        page.browser.open(address + broken)
        until(lambda: page.browser.one("#login").is_displayed())
        until(lambda: "wrong" in page.text("#login-notice"))
    page.browser.one("#secret").send_keys(page.link.partition("#")[2])
    page.browser.one("#login button").click()
    until(lambda: page.browser.one("#page").is_displayed())
    assert not page.browser.one("#login").is_displayed()


def test_after_a_search_the_first_result_has_the_focus_and_keys_move_on(opened):
    from selenium.webdriver.common.keys import Keys

    search(opened, QUERY)
    until(lambda: focused(opened, ".rank") == "1")
    titles = [hit.find_element("css selector", ".title").text for hit in opened.hits()]
    assert focused(opened, ".title") == titles[0]
    for key, row in (("j", 1), ("j", 2), ("k", 1)):
        opened.keys(key)
        assert focused(opened, ".title") == titles[row]
    opened.keys("/")
    assert opened.browser.run("return document.activeElement.id") == "query"
    opened.keys(" and more", Keys.ESCAPE)
    field = opened.browser.one("#query")
    assert field.get_property("value") != QUERY  # what was typed is kept
    assert "and more" in field.get_property("value")
    assert focused(opened, ".rank") == "1"
    opened.keys("j")
    assert focused(opened, ".title") == titles[1]
    # Later results do not take the focus from a person who has moved on.
    assert opened.browser.run("return focuses") is False


def test_a_query_with_the_signs_of_addresses_is_asked_again_as_it_was(page):
    """The page is loaded anew, and takes the query from its address."""
    page.browser.open("about:blank")
    page.browser.open(page.link)
    until(lambda: page.browser.one("#page").is_displayed())
    text = "average #1 & 100%25 + data"
    search(page, text)
    until(page.hits)
    found = files(page)
    page.browser.driver.refresh()
    until(page.hits)
    assert page.browser.one("#query").get_property("value") == text
    assert set(files(page)) >= set(found)


def test_what_was_not_found_stays_said(opened):
    search(opened, "xylophone")
    selector = ".column[data-model='bm25'] .status"
    until(lambda: "No document" in opened.text(selector))
    opened.browser.run("window.asked = 0; const get0 = show; show = (s) => { asked++; get0(s); };")
    opened.browser.run("return refresh()")
    opened.browser.run("return refresh()")
    until(lambda: opened.browser.run("return asked >= 2"))
    assert opened.text(selector) == "No document contains these words."
    assert opened.hits() == []
    # The other model answers, and its first result has the focus.
    until(lambda: focused(opened, ".rank") == "1")
    search(opened, QUERY)
    until(lambda: opened.hits())
    assert opened.text(selector) == ""


def test_results_are_narrowed_by_type_and_folder_and_open_the_file_itself(opened, page):
    from selenium.webdriver.support.ui import Select

    browser = page.browser
    search(opened, QUERY)
    until(lambda: len(opened.hits()) > 3)
    kind = Select(browser.one("#kind"))
    assert {option.get_attribute("value") for option in kind.options} >= {"", ".md", ".csv"}
    assert "1 file)" in next(o.text for o in kind.options if o.text.startswith(".csv"))
    kind.select_by_value(".csv")
    until(lambda: set(files(page)) == {"table.csv"})
    assert "kind=.csv" in browser.driver.current_url
    kind.select_by_value(".rst")
    until(lambda: files(page) and all(file.endswith(".rst") for file in files(page)))
    Select(browser.one("#folder")).select_by_value("deep")
    until(lambda: "Nothing in these files" in opened.text(".column[data-model='bm25'] .status"))
    kind.select_by_value("")
    until(lambda: set(files(page)) == {"deep/notes.html"})
    browser.driver.back()
    until(lambda: kind.first_selected_option.get_attribute("value") == ".rst")
    browser.driver.forward()
    until(lambda: set(files(page)) == {"deep/notes.html"})
    # The file is opened beside the page, as it is; its script does not run.
    first = browser.driver.current_window_handle
    browser.one(".hit .file").click()
    until(lambda: len(browser.driver.window_handles) == 2)
    browser.driver.switch_to.window(browser.driver.window_handles[-1])
    until(
        lambda: "average of the notes" in browser.driver.find_element("css selector", "body").text
    )
    assert "changed by a script" not in browser.driver.title
    browser.driver.close()
    browser.driver.switch_to.window(first)


def test_on_a_phone_the_fusion_comes_first(browser, page, tmp_path):
    """The order of tabs, and which one is open, by the states of models alone."""
    page.browser.open(page.link, width=400)
    until(lambda: browser.one("#page").is_displayed())
    until(lambda: browser.run("return state !== null"))
    script = """
      const model = (name, about, now) => ({ name, about, state: now, done: 0, remark: "" });
      const [dense, fused] = arguments;
      $("tabs").replaceChildren(); $("columns").replaceChildren(); picked = false; query = "";
      state = null; answers.clear();
      const models = [model("bm25", "words", "ready"), model("m", "meaning", dense),
        model("hybrid:m", "words and meaning", fused)];
      show({ ...window.kept, models });
      return [[...$("tabs").children].map((tab) => tab.textContent), shown];
    """
    browser.run("window.kept = state; window.poll = () => {};")
    run = browser.driver.execute_script
    assert run(script, "encoding", "waiting") == [["hybrid:m …", "bm25", "m …"], "bm25"]
    assert run(script, "ready", "ready") == [["hybrid:m", "bm25", "m"], "hybrid:m"]
    assert run(script, "failed", "ready") == [["hybrid:m", "bm25", "m failed"], "hybrid:m"]
    assert [tab.text for tab in browser.all("#tabs button") if tab.is_displayed()]


def test_the_time_left_is_shown_while_a_model_encodes(opened):
    times = opened.browser.driver.execute_script(
        """
        const model = (done, more) => ({ name: "m", state: "encoding", done, remark: "", ...more });
        state.documents = 1000;
        const texts = [status(model(10))];
        paces.set("m", [performance.now() / 1000 - 20, 0]);
        texts.push(status(model(200)), status(model(10)), status(model(500, { seconds_left: 7 })));
        return [...texts, duration(1), duration(3000), duration(9000)];
        """
    )
    assert times == [
        "encoding: 10 of 1,000 texts …",
        "encoding: 200 of 1,000 texts, 80 seconds left",
        "encoding: 10 of 1,000 texts, 33 minutes left",
        "encoding: 500 of 1,000 texts, 7 seconds left",
        "1 second",
        "50 minutes",
        "2.5 hours",
    ]


def test_counts_are_words(opened):
    verdict = {"fewest": 10, "more": 4, "open": ["bm25"]}
    said = opened.browser.driver.execute_script(
        "return arguments[0].map((verdict) => progress(verdict))",
        [
            {**verdict, "queries": 0},
            {**verdict, "queries": 1},
            {**verdict, "queries": 1, "open": []},
            {**verdict, "queries": 12},
            {**verdict, "queries": 12, "more": None},
        ],
    )
    assert "No query is judged yet" in said[0]
    assert said[1] == "1 judged query; from 10 on, they can decide by themselves."
    assert said[2] == "Decided by 1 judged query."
    assert said[3] == "12 judged queries; about 4 more would decide."
    assert "12 judged queries; even 10,000 more" in said[4]


@pytest.mark.parametrize("width", [400, 768, 1280, 1600])
def test_names_hold_the_visible_words_and_targets_are_large_enough(opened, width):
    browser = opened.browser
    browser.look(width)
    search(opened, QUERY)
    until(lambda: browser.all(".hit"))
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.probe("otherNames") == []
    assert browser.probe("small") == []
    assert browser.one("#page h1").is_displayed()
    assert browser.one("#page h1").text.startswith("files")
    browser.run("document.querySelector('.column.open .title, .title').click()")
    until(lambda: browser.one("#reader").is_displayed())
    assert browser.probe("small") == []
    assert browser.probe("otherNames") == []
    opened.keys("\ue00c")
    browser.one("#show-keys").click()
    assert browser.probe("small") == []
    opened.keys("\ue00c")
    assert browser.probe("cut") == []


def test_a_folder_is_searched_and_judged_and_the_verdict_moves(browser, page):
    from selenium.webdriver.common.keys import Keys

    driver, place = browser.driver, page.place
    driver.get_log("browser")
    browser.requests()
    driver.delete_all_cookies()
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
    until(lambda: focused(page, ".rank") == "1")
    page.keys("j")
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
    until(lambda: "; from 10 on" in page.text("#progress-text"))
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
        until(lambda: browser.one("#page > .lost").is_displayed())
        assert "program has ended" in page.text("#page > .lost")
        browser.run("scrollTo(0, 10000)")  # it is said where one looks
        box = browser.run("return document.querySelector('.lost').getBoundingClientRect().top")
        assert 0 <= box < 100
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
    until(lambda: f"{len(queries)} judged queries; from" in page.text("#progress-text"))
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
