"""The dashboard in a headless Chromium.

A visit fails if the page reports an error or contacts any machine but this one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

# Where `VARLOG_SCREENSHOTS=DIR` puts pictures; without it none are made.
SCREENSHOTS = os.environ.get("VARLOG_SCREENSHOTS", "")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Only a guard against hanging: a busy machine may pause for ten seconds, and more than once.
WAIT_MS = 90_000
# Of a whole story: below the time after which pytest ends the worker.
STORY_S = 240.0
# What Chromium itself logs for a response that is not 2xx: some tests request what does not exist.
REFUSED = "Failed to load resource"


def chromium() -> str:
    """The browser of this machine; without one, these tests are skipped with that reason, the only ones that may be."""
    named = os.environ.get("VARLOG_CHROMIUM", "")
    found = next(filter(None, (shutil.which(name) for name in ([named] if named else NAMES))), None)
    if found is None:
        pytest.skip(
            "NO CHROMIUM: the dashboard is not tested here. `make chromium` installs it as root (Debian, Ubuntu: "
            "apt-get install chromium), or name one: VARLOG_CHROMIUM=/path/to/chromium",
            allow_module_level=True,
        )
    return found


@dataclass
class Visit:
    """One page, and everything that should not have happened on it."""

    page: Page
    origin: str
    complaints: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", lambda message: self._on_console(message.type, message.text))
        self.page.on("request", lambda request: self._asked(request.url))

    def _on_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            (self.refusals if text.startswith(REFUSED) else self.complaints).append(f"{kind}: {text}")

    def _asked(self, url: str) -> None:
        if not url.startswith(self.origin + "/"):
            self.complaints.append(f"asks {urlsplit(url).netloc or url[:60]}, which is not the proxy")

    async def open(self, rest: str = "/") -> None:
        await self.page.goto(self.origin + rest)
        await self.page.wait_for_selector("html[data-health]", state="attached")

    async def wait(self, selector: str, *, text: str | None = None, gone: bool = False) -> None:
        """Wait until it is visible (with this text in it), or hidden."""
        found = self.page.locator(selector, has_text=text).first
        await found.wait_for(state="hidden" if gone else "visible")

    async def wait_health(self, level: str) -> None:
        await self.page.wait_for_selector(f"html[data-health='{level}']", state="attached")

    async def wait_count(self, selector: str, count: int) -> None:
        """Wait until this many of them exist, visible or not."""
        await expect(self.page.locator(selector)).to_have_count(count, timeout=WAIT_MS)

    async def wait_true(self, script: str) -> None:
        """Wait until this JavaScript is true."""
        await self.page.wait_for_function(script)

    async def close_dialog(self) -> None:
        """Close by Escape and wait until the page has received the event, which comes some time after the dialog has
        disappeared."""
        await self.page.keyboard.press("Escape")
        await self.wait_count("dialog", 0)

    async def record(self, selector: str) -> None:
        """Record every text that this element has from now on: some are shown only for a moment."""
        await self.page.evaluate(
            """(selector) => {
              const element = document.querySelector(selector);
              window.recorded = [element.innerText];
              new MutationObserver(() => window.recorded.push(element.innerText))
                .observe(element, { childList: true, characterData: true, subtree: true });
            }""",
            selector,
        )

    async def wait_recorded(self, text: str) -> None:
        await self.page.wait_for_function(
            "(text) => recorded.some((found) => found.includes(text))", arg=text
        )

    async def text(self, selector: str) -> str:
        return (await self.page.locator(selector).first.inner_text()).strip()

    async def look(self, script: str) -> Any:
        """The value of some JavaScript."""
        return await self.page.evaluate(script)

    async def picture(self, name: str) -> None:
        if SCREENSHOTS:
            await self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png")


@asynccontextmanager
async def browser(*flags: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(
            executable_path=chromium(), args=[*FLAGS, *flags], timeout=WAIT_MS
        )
        try:
            yield opened
        finally:
            await opened.close()


@asynccontextmanager
async def visit(
    opened: Browser,
    origin: str,
    *,
    width: int = 1440,
    height: int = 900,
    colours: Literal["light", "dark"] = "light",
    motion: Literal["reduce", "no-preference"] = "reduce",
    refusals: bool = False,
) -> AsyncIterator[Visit]:
    """A visitor with a fresh profile. `refusals`: error responses are part of this story."""
    context = await opened.new_context(
        viewport={"width": width, "height": height}, color_scheme=colours, reduced_motion=motion
    )
    context.set_default_timeout(WAIT_MS)
    visitor = Visit(await context.new_page(), origin)
    visitor.watch()
    try:
        yield visitor
    finally:
        await context.close()
    assert visitor.complaints == []
    assert refusals or visitor.refusals == []
