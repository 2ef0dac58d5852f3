"""A headless Chromium: the system's, or playwright's own. Without one the test is skipped, unless
PAGELENS_REQUIRE_BROWSER=1 says that this machine must have one."""

import os
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, Error, sync_playwright

__all__ = ["Browser", "chromium"]

REQUIRED = os.environ.get("PAGELENS_REQUIRE_BROWSER") == "1"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=system, args=["--no-sandbox", "--disable-gpu"])
        except Error as error:
            if REQUIRED:
                raise
            pytest.skip(f"no Chromium here: {error.message.splitlines()[0]}")
        yield browser
        browser.close()
