"""Settings for all tests, and a browser for those that look at pages.

No hypothesis example fails because the machine was slow, and torch and NumPy compute on one thread:
every core has a worker of pytest, and threads that wait for each other on busy cores take many
times as long as the work.
"""

import gc
import os
import shutil

import pytest
from hypothesis import HealthCheck, settings

LONG = {"test_benchmarks.py", "test_docs.py"}
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read where torch and NumPy are first imported
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest, so that no worker has one of them left when all others are done."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """Collect garbage less often, and without looking at all that was imported by then."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program of a Chromium, which `CHROMIUM` may name; needs the extra `browser` as well.

    Tests are skipped where there is none.
    """
    pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    return program


@pytest.fixture(scope="session")
def browser(chromium: str):
    """A browser, one for all tests of a worker."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """Opens an address; at the end, nothing was logged or shown as a dialog.

    Nothing was requested but what begins with `allowed`, either.
    """
    troubles: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(5000)
    page = context.new_page()
    allowed = ["file:"]
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda r: r.url.startswith(tuple(allowed)) or troubles.append(r.url))

    def open_address(url: str):
        if not url.startswith("file:"):
            allowed.append(url)
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_address
    context.close()
    assert troubles == []
