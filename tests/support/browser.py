"""A headless Chromium for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from include.services.process import free_port
from include.settings import REPOSITORY

AXE = REPOSITORY / "tests" / "support" / "vendor" / "axe.min.js"

_AXE = (
    "const done = arguments[arguments.length - 1];"
    "axe.run(document, {runOnly: arguments[0]}).then((found) => done("
    "found.violations.map((v) => v.id + ': ' + v.nodes.slice(0, 3).map((n) => n.html + n.failureSummary))))"
)

WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa")

COLOURS = ("color-contrast",)
"""What depends on the colour scheme."""

MISSING = "Chromium and its driver are not installed (Debian: chromium, chromium-driver)"


def show_in(browser: Any, scheme: str) -> None:
    """Show pages as for a person who prefers `light` or `dark`."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@contextmanager
def telephone(browser: Any) -> Iterator[None]:
    """Show pages as wide as a telephone's, 375 px, during the block."""
    metrics = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def violations(browser: Any, rules: Sequence[str] = WCAG) -> list[str]:
    """Return what axe-core finds in the page, or the frame, against WCAG 2.1 at levels A and AA, or these rules."""
    browser.set_script_timeout(120)
    browser.execute_script(f"if (!window.axe) {{ {AXE.read_text()} }}")
    return list(browser.execute_async_script(_AXE, rules))


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
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver, free_port()))
    yield chrome
    chrome.quit()
