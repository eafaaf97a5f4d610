"""A headless Chromium for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

MISSING = "Chromium and its driver are not installed (Debian: chromium, chromium-driver)"


@contextmanager
def headless_chromium() -> Iterator[Any]:
    """A browser that records console messages and requests; without one a test skips, in CI it fails."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.fail(MISSING) if os.environ.get("CI") else pytest.skip(MISSING)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()
