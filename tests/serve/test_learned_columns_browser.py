"""Learning from judgements in a real browser: one click learns, one click forgets."""

import pytest
from test_serve_browser import Page, search, until, write_files

pytestmark = pytest.mark.browser

# Twelve queries that one document answers, judged as a person would.
JUDGING = """
const [document, done] = arguments;
const words = "wing flow shock layer drag lift heat plate nozzle index journal reader".split(" ");
(async () => {
  for (const word of words) {
    const query = `average ${word} of some data`;
    await ask("api/judge", { document, grade: 2, query, query_id: null });
  }
  await refresh();
  done();
})();
"""


@pytest.fixture
def page(browser, tmp_path, tiny_cosine):
    write_files(tmp_path / "files")
    person = Page(browser, tmp_path, str(tiny_cosine))
    browser.open("about:blank")
    browser.open(person.link)
    until(lambda: browser.one("#page").is_displayed())
    until(lambda: browser.run("return state.models.every((m) => m.state === 'ready')"))
    yield person
    person.kill()


def test_one_click_learns_and_one_click_forgets(browser, page):
    driver = browser.driver
    assert browser.one("#learn").get_attribute("disabled")
    assert not browser.one("#forget").is_displayed()
    search(page, "average of data")
    until(lambda: len(page.hits(page.model)) == 10)

    def ids():
        # In one step, as the page may replace its results at any time.
        selector = f".column[data-model='{page.model}'] .hit"
        script = "return [...document.querySelectorAll(arguments[0])].map((hit) => hit.dataset.id)"
        return driver.execute_script(script, selector)

    before = ids()
    driver.set_script_timeout(60)
    driver.execute_async_script(JUDGING, before[-1])
    until(lambda: browser.one("#learn").get_attribute("disabled") is None)
    browser.one("#learn").click()
    until(lambda: browser.one("#learned").is_displayed())
    assert "12 judged queries moved the vectors of 1 document" in page.text("#learned")
    assert "90% interval" in page.text("#learned")
    until(lambda: before[-1] in ids()[:-1])
    assert browser.probe("small") == []
    browser.one("#forget").click()
    until(lambda: ids() == before)
    assert not browser.one("#learned").is_displayed()
    assert not browser.one("#forget").is_displayed()
    # Of a corpus that has changed, the page says that nothing learned is in use.
    browser.one("#learn").click()
    until(lambda: browser.one("#learned").is_displayed())
    (page.place / "files" / "new.txt").write_text("The average of some data.")
    until(lambda: browser.all("#learned .unused"))
    assert "is not in use; learn again" in page.text("#learned")
    browser.one("#learn").click()
    until(lambda: not browser.all("#learned .unused"))
    assert "12 judged queries moved the vectors of 1 document" in page.text("#learned")
