"""Airflow's own pages, as a person uses them in a browser: the login, a DAG's grid, its form, what awaits an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from selenium.common.exceptions import ElementClickInterceptedException
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.conftest import Home, wait_for
from tests.support.airflow_api import AirflowApi

PATIENCE = 60.0
"""Seconds that Airflow's pages may take: each asks for its own data when it is there."""

PAGES = "/plugin/tidemark-pages"
"""Where Airflow shows Tidemark's pages in a frame of its own."""

_DIALOG = "[role=dialog][data-state=open]"


def api_of(home: Home) -> AirflowApi:
    """Return the REST API of a home's Airflow."""
    return AirflowApi(home.address("airflow"), "admin", password_of(home))


def password_of(home: Home) -> str:
    """Return the password of `admin`."""
    return str(json.loads((home.path / "airflow" / "passwords.json").read_text())["admin"])


def ui_of(home: Home, browser: Any) -> AirflowUi:
    """Return the pages of a home's Airflow."""
    browser.set_window_size(1280, 1000)
    # Nobody is logged in yet, whatever a test before did.
    browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    return AirflowUi(browser, home.address("airflow"), password_of(home))


@dataclass(frozen=True)
class AirflowUi:
    """A browser at an Airflow."""

    browser: Any
    address: str
    password: str

    def log_in(self, path: str) -> None:
        """Open a page of which Airflow asks for a login first, and log in as `admin`."""
        self.browser.get(self.address + path)
        self.wait("the login", "document.querySelector('input[name=username]')")
        self.find("input[name=username]").send_keys("admin")
        self.find("input[name=password]").send_keys(self.password, Keys.ENTER)
        self.wait("the page behind the login", "!location.pathname.includes('/login')")
        # Requests before the login were refused, as they must be.
        self.browser.get_log("browser")

    def open_grid(self, dag: str) -> None:
        """Open the grid of a DAG."""
        self.browser.get(f"{self.address}/dags/{dag}")
        self.wait("the DAG", "document.querySelector('[data-testid=trigger-dag-button]')")

    def open_form(self, dag: str) -> None:
        """Open the form of a DAG's run."""
        self.open_grid(dag)
        self.begin_form()

    def begin_form(self) -> None:
        """Open the form of a run of the DAG whose grid is open."""
        self.find("[data-testid=trigger-dag-button]").click()
        self.wait("the form", "document.querySelector('[data-testid=trigger-dag-submit]')")

    def open_section(self, section: str) -> None:
        """Open a section of the form, which closes the one that was open."""
        heading = f"//div[@role='dialog']//button[@data-part='item-trigger'][contains(., '{section}')]"
        button = wait_for(section, lambda: self.browser.find_elements(By.XPATH, heading), PATIENCE)[0]
        button.send_keys(Keys.ENTER)
        wait_for(f"{section} to open", lambda: button.get_attribute("data-state") == "open", PATIENCE)

    def fill(self, label: str, value: str) -> None:
        """Type a value into a field of the form: a text, or one of the values that it offers."""
        field = wait_for(label, lambda: self._field(label, "input:not([type=hidden])"), PATIENCE)
        field.send_keys(value, Keys.ENTER if field.get_attribute("role") == "combobox" else "")

    def fill_time(self, label: str, value: datetime) -> None:
        """Type a time into a field of the form, whose parts Airflow shows once it was clicked."""
        self.click(wait_for(label, lambda: self._field(label, "[data-testid=datetime-input]"), PATIENCE))
        for placeholder, text in (("YYYY/MM/DD", f"{value:%Y/%m/%d}"), ("HH:mm", f"{value:%H:%M}")):
            at = f"[data-part=content][data-state=open] input[placeholder='{placeholder}']"
            part = wait_for(placeholder, lambda s=at: self.browser.find_elements(By.CSS_SELECTOR, s), PATIENCE)[0]
            part.send_keys(Keys.CONTROL, "a")
            part.send_keys(text, Keys.TAB)
        # Escape would close the whole form when the calendar has closed by itself.
        self._click_beside_fields()
        left = """[...document.querySelectorAll("input[placeholder='HH:mm']")].filter((e) => e.checkVisibility())"""
        self.wait("the calendar to be gone", f"{left}.length === 0")

    def switch(self, label: str) -> None:
        """Turn on a field of the form that is yes or no."""
        field = wait_for(label, lambda: self._field(label, "input[type=checkbox]"), PATIENCE)
        field.send_keys(Keys.SPACE)
        assert field.is_selected(), label

    def submit(self) -> None:
        """Trigger the run."""
        button = self.find("[data-testid=trigger-dag-submit]")
        wait_for("the form to be complete", button.is_enabled, 30)
        self.click(button)
        self.wait("the form to close", f"!document.querySelector('{_DIALOG} [data-testid=trigger-dag-submit]')")

    def open_question(self, dag: str, run: str, task: str) -> str:
        """Open the question of a task that awaits input, and return the page's text."""
        self.browser.get(f"{self.address}/dags/{dag}/runs/{run}/tasks/{task}/required_actions")
        self.wait("the question", "document.querySelector('#element_reason')")
        return self.text()

    def answer(self, option: str, reason: str) -> None:
        """Give a reason and an answer to the question that is open."""
        self.find("#element_reason").send_keys(reason, Keys.TAB)
        button = self.find(f"[data-testid=hitl-option-{option}]")
        wait_for("the answer to be taken", button.is_enabled, 30)
        self.click(button)

    @contextmanager
    def pages(self, path: str = "/") -> Iterator[Any]:
        """Return Tidemark's page at a path inside Airflow's frame, reached by the navigation."""
        self.browser.get(f"{self.address}{PAGES}")
        with self.frame():
            if path != "/":
                self.go_to(path)
            yield self.browser

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Be in the frame with Tidemark's pages, which Airflow's page at `PAGES` has."""
        self.wait("the frame", "document.querySelector('iframe')?.contentDocument?.querySelector('h1')")
        self.browser.switch_to.frame(self.find("iframe"))
        try:
            yield
        finally:
            self.browser.switch_to.default_content()

    def go_to(self, path: str) -> None:
        """Show Tidemark's page at another path in the frame."""
        self.browser.execute_script("location.href = arguments[0]", f"/tidemark{path}")
        self.wait("the page", f"location.pathname.endsWith({path.split('?')[0]!r}) && document.querySelector('h1')")

    def click(self, element: Any) -> None:
        """Click an element once moving elements before it have come to rest."""

        def is_clicked() -> bool:
            try:
                element.click()
            except ElementClickInterceptedException:
                return False
            return True

        wait_for("the way to be clear", is_clicked, 30)

    def find(self, selector: str) -> Any:
        """Return the first element of a selector."""
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "body") -> str:
        """Return the text of an element; empty where there is none."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.browser.execute_script(script, selector))

    def wait(self, what: str, script: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression in the page is true."""
        return wait_for(what, lambda: self.browser.execute_script(f"return Boolean({script})"), seconds)

    def complaints(self) -> list[str]:
        """Return the errors of the console since the last call."""
        told = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        # Caused by the machine, not by a page: a network interface was created or removed.
        return [message for message in told if "ERR_NETWORK_CHANGED" not in message]

    def _click_beside_fields(self) -> None:
        place = self.find(f"{_DIALOG}:has([data-testid=trigger-dag-submit])").rect
        # By the window's coordinates: an element's own are those of the part of it that can be seen.
        pointer = ActionBuilder(self.browser)
        pointer.pointer_action.move_to_location(round(place["x"]) + 12, round(place["y"]) + 12).click()
        pointer.perform()

    def _field(self, label: str, selector: str) -> Any:
        """Return the input of a labelled field; Airflow's labels do not all name theirs."""
        script = (
            "const said = [...document.querySelectorAll('[role=dialog] label')].filter((l) => "
            "l.innerText.replace('*', '').trim() === arguments[0] && l.checkVisibility());"
            "return said[0]?.closest('[data-part=root][role=group]')?.querySelector(arguments[1])"
        )
        return self.browser.execute_script(script, label, selector)
