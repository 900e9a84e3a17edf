"""The page in a real browser."""

from __future__ import annotations

import csv
import io
import json
from itertools import product
from typing import Any
from urllib.parse import unquote

import pytest

from beir_cocodr.report.html.page import write_report
from beir_cocodr.report.html.several import write_joint_report

pytestmark = pytest.mark.browser
NAMES = ("two_models", "nine_models", "adapted", "adapted_without_labels")


@pytest.fixture(scope="module")
def pages(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name in NAMES:
        made[name] = folder / f"{name}.html"
        write_report(request.getfixturevalue(name), made[name])
    made["several"] = folder / "several.html"
    folders = [request.getfixturevalue(name) for name in NAMES]
    write_joint_report(folders, made["several"], overwrite=False)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_no_errors_no_requests_and_no_markup_from_data(browser, pages, name):
    browser.driver.get_log("browser")
    browser.requests()
    browser.open(pages[name])
    for button in browser.all(".query-list button")[:5]:
        button.click()
    assert [entry for entry in browser.driver.get_log("browser") if entry["level"] != "INFO"] == []
    allowed = (pages[name].as_uri(), "data:")
    assert all(url.startswith(allowed) for url in browser.requests())
    assert browser.run("return window.broken === undefined")
    assert browser.run("return document.compatMode") == "CSS1Compat"


def test_requests_are_seen_at_all(browser, tmp_path):
    (tmp_path / "asks.html").write_text("<!DOCTYPE html><img src='http://127.0.0.1:9/x.png'>")
    browser.requests()
    browser.open(tmp_path / "asks.html")
    assert "http://127.0.0.1:9/x.png" in browser.requests()


def values(browser, column: int) -> list[float]:
    cells = browser.all(f"#models tbody tr > :nth-child({column})")
    return [
        float(cell.get_attribute("data-value"))
        for cell in cells
        if cell.get_attribute("data-value")
    ]


def test_tables_sort_both_ways_by_mouse_and_keyboard(browser, pages):
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["nine_models"])
    header = browser.all("#models thead tr:last-child th")[1]
    button = header.find_element("css selector", "button")
    before = values(browser, 2)
    button.click()
    assert header.get_attribute("aria-sort") == "descending"
    assert values(browser, 2) == sorted(before, reverse=True)
    button.send_keys(Keys.ENTER)
    assert header.get_attribute("aria-sort") == "ascending"
    assert values(browser, 2) == sorted(before)
    name = browser.all("#models thead tr:last-child th")[0]
    name.find_element("css selector", "button").send_keys(Keys.SPACE)
    assert (name.get_attribute("aria-sort"), header.get_attribute("aria-sort")) == (
        "ascending",
        "none",
    )
    names = [cell.text.split("\n")[0].casefold() for cell in browser.all("#models tbody th")]
    assert names == sorted(names)
    difference = browser.all("#models thead tr:last-child th button")[2]
    for _ in range(2):  # the reference has no difference to itself, and stays last either way
        difference.click()
        assert browser.all("#models tbody tr:last-child td")[1].text == "–"


def test_the_drill_down_opens_searches_orders_and_changes_models(browser, pages):
    from selenium.webdriver.support.ui import Select

    browser.open(pages["nine_models"])
    data = json.loads(browser.one("#data").get_attribute("textContent"))
    buttons = browser.all(".query-list button")
    assert len(buttons) == len(data["queries"]) == 20
    buttons[3].click()
    chosen = next(q for q in data["queries"] if q["id"] == buttons[3].get_attribute("data-id"))
    assert browser.one(".query h3").get_property("textContent") == chosen["text"]
    assert buttons[3].get_attribute("aria-current") == "true"
    left, right = data["pair"]
    sides = browser.all(".side")
    for side, model in zip(sides, (left, right), strict=True):
        shown = [
            int(hit.get_attribute("data-document"))
            for hit in side.find_elements("css selector", ".hit")
        ]
        ranked = sorted(
            (r, d) for r, d in zip(chosen["ranks"][model], chosen["documents"], strict=True) if r
        )
        assert shown == [document for rank, document in ranked if rank <= 10]
    grades = dict(zip(chosen["documents"], chosen["grades"], strict=True))
    marked = {int(hit.get_attribute("data-document")) for hit in browser.all(".hit.relevant")}
    assert marked == {
        int(hit.get_attribute("data-document"))
        for hit in browser.all(".hit")
        if (grades[int(hit.get_attribute("data-document"))] or 0) > 0
    }
    gains = [q["scores"][right][0] - q["scores"][left][0] for q in data["queries"]]
    Select(browser.one("#order")).select_by_visible_text("Largest gain")
    first = browser.one(".query-list .gain").text.replace("−", "-")
    assert float(first) == pytest.approx(max(gains), abs=1e-3)
    Select(browser.one("#order")).select_by_visible_text("Largest loss")
    first = browser.one(".query-list .gain").text.replace("−", "-")
    assert float(first) == pytest.approx(min(gains), abs=1e-3)
    Select(browser.one("#right")).select_by_index(left)  # against itself nothing moves
    assert {gain.text for gain in browser.all(".query-list .gain")} == {"0"}
    assert {move.text for move in browser.all(".move")} == {"="}
    browser.one("#search").send_keys(data["queries"][5]["id"])
    expected = [
        q for q in data["queries"] if data["queries"][5]["id"] in f"{q['id']} {q['text']}".lower()
    ]
    assert len(browser.all(".query-list button")) == len(expected)
    browser.one("#search").send_keys(" surely nowhere")
    assert browser.all(".query-list button") == []
    assert "No query" in browser.one(".query").text


def test_a_table_is_exported_with_all_its_cells(browser, pages):
    browser.open(pages["nine_models"])
    link = browser.one("#models .export a")
    browser.run(
        "document.querySelector('#models .export a').addEventListener('click', (e) =>"
        " e.preventDefault())"
    )
    link.click()
    kind, text = link.get_attribute("href").split(",", 1)
    assert kind == "data:text/csv;charset=utf-8"
    head, *rows = csv.reader(io.StringIO(unquote(text)))
    assert head[0] == "Model"
    assert "nDCG@10 Difference" in head
    assert len(rows) == len(browser.all("#models tbody tr"))
    assert {len(row) for row in rows} == {len(head)}
    means = [float(row[head.index("nDCG@10 Mean")]) for row in rows]
    assert means == pytest.approx(values(browser, 2), abs=1e-3)
    differences = [row[head.index("nDCG@10 Difference")] for row in rows]
    assert [float(value) for value in differences if value != "–"]
    assert link.get_attribute("download").endswith(".csv")


def test_what_a_spreadsheet_would_run_is_text(browser, pages):
    browser.open(pages["two_models"])
    browser.run("document.querySelector('#models tbody .figure').textContent = '=1+1 \"x\", y'")
    browser.run(
        "document.querySelector('#models .export a').addEventListener('click', (e) =>"
        " e.preventDefault())"
    )
    browser.one("#models .export a").click()
    text = unquote(browser.one("#models .export a").get_attribute("href").split(",", 1)[1])
    assert list(csv.reader(io.StringIO(text)))[1][0] == '\'=1+1 "x", y'


def test_terms_are_explained_by_mouse_and_keyboard(browser, pages):
    from selenium.webdriver.common.keys import Keys

    for width in (400, 1280):
        browser.open(pages["nine_models"], width)
        term, tip = browser.one("#models abbr"), browser.one("#tip")
        browser.run("document.querySelector('#models abbr').focus()")
        assert "relevant documents" in tip.text
        box = browser.run(
            "const r = document.getElementById('tip').getBoundingClientRect(); return [r.left,"
            " r.right]"
        )
        assert 0 <= box[0] < box[1] <= width
        assert term.get_attribute("aria-describedby") == "tip"
        term.send_keys(Keys.ESCAPE)
        assert not tip.is_displayed()
        browser.run("document.querySelectorAll('#models thead button')[2].focus()")
        assert "95% interval" in tip.text
        browser.run("document.activeElement.blur()")
        assert not tip.is_displayed()


def test_full_texts_open_with_the_words_that_match(browser, pages):
    browser.open(pages["two_models"])
    data = json.loads(browser.one("#data").get_attribute("textContent"))
    assert browser.all(".hit .text mark")
    hit = next(h for h in browser.all(".hit") if h.find_elements("css selector", "details"))
    details = hit.find_element("css selector", "details")
    details.find_element("css selector", "summary").click()
    whole = data["documents"][int(hit.get_attribute("data-document"))][2]
    assert details.find_element("css selector", "p").get_property("textContent") == whole
    assert hit.find_elements("css selector", "details mark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_table_that_is_too_wide_shows_that_it_scrolls(browser, pages, scheme):
    """By a shade at its edge, which goes away at the end: the column of pixels inside the right
    border differs.
    """
    from PIL import Image

    browser.open(pages["nine_models"], 400, scheme)
    box = browser.one("#models .scroll")
    assert browser.run(
        "const b = document.querySelector('#models .scroll'); return b.scrollWidth > b.clientWidth"
    )

    def edge() -> set[Any]:
        picture = Image.open(io.BytesIO(box.screenshot_as_png)).convert("RGB")
        lowest = picture.height - 12
        return {picture.getpixel((picture.width - 3, y)) for y in range(lowest - 30, lowest)}

    before = edge()
    browser.run("const b = document.querySelector('#models .scroll'); b.scrollLeft = b.scrollWidth")
    assert before != edge()


@pytest.mark.parametrize("name", NAMES)
def test_contrast(browser, pages, name):
    browser.open(pages[name])
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for scheme in ("light", "dark"):
        browser.look(scheme=scheme)
        dark = browser.run("return matchMedia('(prefers-color-scheme: dark)').matches")
        assert dark == (scheme == "dark")
        assert browser.probe("faint") == [], scheme


def test_the_probes_see_what_they_look_for(browser, tmp_path):
    (tmp_path / "bad.html").write_text(
        "<!DOCTYPE html><main><p style='color: #bbb'>pale</p><p style='margin-top: -3em'>dark</p><p"
        " style='width: 9999px'>wide</p><div class='picture'><svg width='40' height='20'><text"
        " y='9'>one</text><text y='9' x='30'>longer</text><text y='9'>two</text></svg></div></main>"
    )
    browser.open(tmp_path / "bad.html")
    assert [text for text, _, _ in browser.probe("faint")] == ["pale"]
    assert "pale" in str(browser.probe("overlaps"))
    assert ["one", "two"] in browser.probe("overlapsInPictures")
    assert "longer" in str(browser.probe("cut"))
    assert "wide" in str(browser.probe("cut"))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_overlaps_and_nothing_is_cut(browser, pages, name):
    browser.open(pages[name])
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for width, medium in product((400, 800, 1280), ("", "print")):
        browser.look(width, medium=medium)
        layout = f"{width} pixels {medium}"
        assert browser.probe("overlaps") == [], layout
        assert browser.probe("overlapsInPictures") == [], layout
        if not medium or width == 800:  # about A4
            assert browser.run("return document.documentElement.scrollWidth") <= width, layout
        if not medium:
            assert browser.probe("cut") == [], layout


def test_figures_of_several_runs_are_filtered(browser, pages):
    from selenium.webdriver.support.ui import Select

    browser.open(pages["several"])
    rows = "return [...document.querySelectorAll('#figures tbody tr')].filter((r) => !r.hidden)"
    cells = f"{rows}.map((r) => [...r.cells].map((c) => c.querySelector('.figure').textContent))"
    everything = browser.run(cells)
    labels = browser.all("#figures .tools label")
    titles = [label.text.split("\n")[0].strip() for label in labels]
    assert titles == ["Collection", "Model", "Measure", "Verdict"]
    heads = browser.run(
        "return [...document.querySelectorAll('#figures th')].map((h) => h.textContent.trim())"
    )
    chosen = {title: heads.index(title) for title in ("Model", "Measure")}
    for title, column in chosen.items():
        select = Select(labels[titles.index(title)].find_element("css selector", "select"))
        value = everything[-1][column]
        select.select_by_visible_text(value)
        wanted = [row for row in browser.run(cells) if row[column] != value]
        assert wanted == []
    kept = [row for row in everything if all(row[c] == everything[-1][c] for c in chosen.values())]
    assert browser.run(cells) == kept
    status = browser.one("#figures [role=status]").text
    assert status == f"{len(kept)} of {len(everything)} figures"
    for width in (400, 768, 1280):
        browser.look(width)
        assert browser.probe("cut") == []
        assert browser.probe("overlaps") == []
        for scheme in ("light", "dark"):
            browser.look(width, scheme)
            assert browser.probe("faint") == []
