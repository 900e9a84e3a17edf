"""A real browser for tests of pages."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROBES = Path(__file__).with_name("report").joinpath("page_probes.js").read_text(encoding="utf-8")


class Browser:
    """A headless chromium without a network, which records the requests of pages."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = shutil.which("chromium")
        for argument in (
            *(
                "headless=new",
                "no-sandbox",
                "disable-gpu",
                "disable-dev-shm-usage",
                "disable-quic",
                "no-first-run",
            ),
            *("disable-background-networking", "disable-component-update", "disable-sync"),
        ):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(executable_path=shutil.which("chromedriver"))
        self.driver: Any = webdriver.Chrome(options=options, service=service)

    def open(
        self, path: Path | str, width: int = 1280, scheme: str = "light", medium: str = ""
    ) -> None:
        self.look(width, scheme, medium)
        self.driver.get(path.as_uri() if isinstance(path, Path) else path)

    def look(self, width: int = 1280, scheme: str = "light", medium: str = "") -> None:
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": medium, "features": [scheme_feature]}
        )
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def probe(self, name: str) -> list[Any]:
        found: list[Any] = self.run(f"{PROBES}\nreturn {name}();")
        return found

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def requests(self) -> set[str]:
        events = [
            json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")
        ]
        return {
            e["params"]["request"]["url"]
            for e in events
            if e["method"] == "Network.requestWillBeSent"
        }


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    pytest.importorskip("selenium", reason="selenium is not installed")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("no chromium and chromedriver; apt-get install chromium chromium-driver")
    found = Browser()
    yield found
    found.driver.quit()
