"""The dashboard as people see it, in headless Chromium, over an embedded log.

What it shows, and what it does only after a confirmation. Every visit ends with two claims (browser.py): the page had
no error, and it contacted no machine but this one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from tests.e2e.browser import STORY_S, Visit, browser, chromium, visit
from tests.proxy.live_helpers import LiveProxy, live_proxy

chromium()  # without one, all of this is skipped, loudly
pytestmark = pytest.mark.process

Story = Callable[[LiveProxy, Visit], Awaitable[None]]


def origin(proxy: LiveProxy) -> str:
    return f"http://127.0.0.1:{proxy.port}"


def run(path: Path, story: Callable[[LiveProxy, Browser], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(STORY_S), live_proxy(path) as proxy, browser() as opened:
            await story(proxy, opened)

    asyncio.run(whole())


def with_visit(path: Path, story: Story, **options: Any) -> None:
    async def whole(proxy: LiveProxy, opened: Browser) -> None:
        async with visit(opened, origin(proxy), **options) as visitor:
            await story(proxy, visitor)

    run(path, whole)


# --- what it shows ------------------------------------------------------------------------------------------------------


def test_entries_show_as_they_arrive(tmp_path: Path) -> None:
    """Existing entries, and those that arrive while the page is open, newest first, without a reload."""

    async def story(proxy: LiveProxy, page: Visit) -> None:
        log = await proxy.log()
        await page.open()
        await page.wait("#entries .empty", text="Nothing here yet")
        await log.append(b"first")
        await page.wait("#entries tr", text="first")
        await log.append_batch([b'{"item": "espresso"}', b"\xff\x00"])
        await page.wait("#entries tr", text="espresso")
        await page.wait("#entries tr", text="ff 00")
        await page.wait_count("#entries .position", 3)
        positions = await page.page.locator("#entries .position").all_inner_texts()
        assert [found.strip() for found in positions] == ["3", "2", "1"]
        await page.wait("#topics .newest", text="3")
        await page.wait("#topology .replica .mark", text="3")

    with_visit(tmp_path, story)


def test_rates_and_latency_are_drawn_as_lines(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        log = await proxy.log()
        await page.open()
        ready = (
            "() => [...document.querySelectorAll('.chart')].slice(0, 3)"
            ".every((chart) => (chart.querySelector('.line')?.getAttribute('d') ?? '').includes('L'))"
        )
        waiting = asyncio.create_task(page.page.wait_for_function(ready))
        while not waiting.done():
            await log.append(b"x" * 100)
            await log.read(1)
        await waiting
        assert "entries/s" in await page.text(".tile:nth-child(1) .figures")
        # Under the pointer the figures are those of that moment.
        chart = page.page.locator(".chart").first
        await chart.focus()
        await page.page.keyboard.press("ArrowLeft")
        await page.wait(".tile .when", text="ago")
        await page.wait_count(".chart .hair:not([visibility])", 4)

    with_visit(tmp_path, story)


def test_a_fast_topic_is_sampled_and_not_followed(tmp_path: Path) -> None:
    """Entries too fast to read are not sent: the newest of each second are, and the page stays quick."""

    async def story(proxy: LiveProxy, page: Visit) -> None:
        log = await proxy.log()
        await page.open()
        for batch in itertools.count():
            await log.append_batch([b"%d/%d" % (batch, i) for i in range(500)])
            if "newest of each second" in await page.text("#pace"):
                break
        # Then it is quiet again, and new entries are followed.
        await page.wait("#pace", text="live")
        await log.append(b"after the storm")
        await page.wait("#entries tr:first-child", text="after the storm")
        assert await page.page.locator("#entries tbody tr").count() <= 60

    with_visit(tmp_path, story)


def test_a_paused_list_does_not_move_and_older_entries_can_be_fetched(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        log = await proxy.log()
        await log.append_batch([b"entry %d" % i for i in range(1, 101)])
        await page.open()
        await page.wait("#entries tr:first-child", text="entry 100")
        await page.page.keyboard.press("p")
        await log.append(b"unseen")
        await page.wait("#pace", text="paused, 1 newer")
        assert await page.page.locator("#entries tbody tr").count() == 60
        await page.page.get_by_role("button", name="Older entries").click()
        await page.page.locator("#entries tbody tr").nth(99).wait_for()
        assert "entry 1" in await page.text("#entries tbody tr:last-child")
        await page.page.keyboard.press("p")
        await page.wait("#entries tr:first-child", text="unseen")

    with_visit(tmp_path, story)


def test_named_readers_are_shown_with_their_lag(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        log = await proxy.log()
        await log.append_batch([b"x"] * 30)
        await log.set_reader("billing", 12)
        await page.open()
        await page.wait("#topics .readers li", text="billing")
        await page.wait("#topics .readers li", text="18 behind")
        await page.wait(".tile:nth-child(4) .figure", text="billing")
        await log.set_reader("billing", 30)
        await page.wait("#topics .readers .lag", text="up to date")

    with_visit(tmp_path, story)


def test_the_contents_of_an_entry_are_never_run(tmp_path: Path) -> None:
    """A person who may append must not be able to act as a person who looks: markup is shown as it is written."""
    markup = b"<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"

    async def story(proxy: LiveProxy, page: Visit) -> None:
        await (await proxy.log()).append(markup)
        await page.open("/#orders/1")
        await page.wait("dialog.inspector pre", text=markup.decode())
        await page.wait("#entries .data", text=markup.decode())
        assert "owned" not in await page.page.title()

    with_visit(tmp_path, story)


# --- reading by position ------------------------------------------------------------------------------------------------


def test_an_entry_is_found_by_its_position(tmp_path: Path) -> None:
    """By number, by words, in another topic; and from there to the next and the previous one."""

    async def story(proxy: LiveProxy, page: Visit) -> None:
        await (await proxy.log()).append_batch([b'{"order": %d}' % i for i in range(1, 11)])
        await page.open()
        await page.wait("#entries tr", text='"order"')
        # By now the page knows what "newest" means.
        await page.wait("#topics .newest", text="10")

        async def find(typed: str, expected: str) -> None:
            await page.page.keyboard.press("/")
            await page.page.keyboard.type(typed)
            await page.page.keyboard.press("Enter")
            await page.wait("dialog.inspector h2", text=expected)

        await find("7", "orders 7")
        await page.wait("dialog.inspector pre", text='"order": 7')
        await page.page.keyboard.press("ArrowRight")
        await page.wait("dialog.inspector pre", text='"order": 8')
        await page.wait_true("location.hash === '#orders/8'")
        await page.close_dialog()
        for typed, expected in (("newest", "orders 10"), ("orders/3", "orders 3"), ("-2", "orders 8")):
            await find(typed, expected)
            await page.close_dialog()
        await page.open("/#orders/5")
        await page.wait("dialog.inspector pre", text='"order": 5')
        await page.page.reload()
        await page.wait("dialog.inspector pre", text='"order": 5')

    with_visit(tmp_path, story)


def test_an_address_typed_while_an_entry_closes_is_followed(tmp_path: Path) -> None:
    """Browsers report a close to the page after it; by then the user may be elsewhere."""

    async def story(proxy: LiveProxy, page: Visit) -> None:
        await (await proxy.log()).append_batch([b'{"order": %d}' % i for i in range(1, 11)])
        await page.open("/#orders/5")
        await page.wait("dialog.inspector pre", text='"order": 5')
        await page.look("document.querySelector('dialog').close(); location.hash = '#orders/6'")
        await page.wait("dialog.inspector pre", text='"order": 6')
        await page.wait_true("location.hash === '#orders/6'")

    with_visit(tmp_path, story)


def test_a_position_without_an_entry_says_why_and_what_to_do(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        log = await proxy.log()
        await log.append_batch([b"a", b"b", b"c"])
        await log.trim(1)
        await page.open("/#orders/1")
        await page.wait("dialog.inspector .refusal", text="trimmed")
        await page.close_dialog()
        await page.page.fill("#position", "99")
        await page.page.keyboard.press("Enter")
        await page.wait("dialog.inspector .refusal", text="Subscribe from this position")
        await page.close_dialog()
        await page.page.fill("#position", "elsewhere/1")
        await page.page.keyboard.press("Enter")
        await page.wait_true(
            "document.querySelector('#position').validationMessage.includes('no topic elsewhere')"
        )

    with_visit(tmp_path, story, refusals=True)


# --- actions ------------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_only_after_a_confirmation(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        admin = await proxy.gateway.admin()
        await page.open()
        await page.wait("#topics .name", text="orders")
        await page.page.click("#create")
        await page.page.fill("dialog input[name=name]", "payments")
        await page.wait("dialog .summary", text="Creates topic payments with 2 log streams")
        await page.page.get_by_role("button", name="Cancel").click()
        await page.wait_count("dialog", 0)
        assert [topic.name for topic in await admin.topics()] == ["orders"]

        await page.page.keyboard.press("n")
        await page.page.fill("dialog input[name=name]", "payments")
        await page.page.get_by_role("button", name="Create topic").click()
        await page.wait("#topics .topic.chosen .name", text="payments")
        await page.wait("#topology .topic-row", text="payments")
        made = [topic for topic in await admin.topics() if topic.name == "payments"]
        assert len(made) == 1 and len(await admin.streams("payments")) == 2

    with_visit(tmp_path, story)


def test_a_refusal_of_an_action_is_shown_where_it_was_requested(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        await page.open()
        await page.wait("#topics .name", text="orders")
        await page.page.click("#create")
        await page.page.fill("dialog input[name=name]", "orders")
        await page.page.select_option("dialog select", "sequenced")
        await page.page.get_by_role("button", name="Create topic").click()
        await page.wait("dialog .problem", text="orders")

    with_visit(tmp_path, story, refusals=True)


def test_a_log_stream_is_sealed_and_unsealed_only_after_a_confirmation(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        admin = await proxy.gateway.admin()
        await page.open()
        act = page.page.locator("tr[data-stream='1'] .act")
        await act.click()
        await page.wait("dialog", text="Seal log stream 1?")
        # An Enter that was meant for something else does nothing.
        await page.page.keyboard.press("Enter")
        await page.wait_count("dialog", 0)
        assert [stream.state for stream in await admin.streams()] == ["running"]

        await act.click()
        await page.page.locator("dialog").get_by_role("button", name="Seal log stream 1").click()
        await page.wait("tr[data-stream='1'] .state", text="sealed by admin")
        await page.wait("#events li", text="seal")
        assert [stream.sealed_by_admin for stream in await admin.streams()] == [True]

        await act.click()
        await page.page.locator("dialog").get_by_role("button", name="Unseal log stream 1").click()
        await page.wait("tr[data-stream='1'] .state", text="running")
        assert [stream.state for stream in await admin.streams()] == ["running"]

    with_visit(tmp_path, story)


# --- accessibility
# ------------------------------------------------------------------------------------------------------

BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"


def test_light_and_dark_follow_the_system_until_the_user_chooses(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, opened: Browser) -> None:
        async with visit(opened, origin(proxy)) as page:
            await page.open()
            light = await page.look(BACKGROUND)
        async with visit(opened, origin(proxy), colours="dark") as page:
            await page.open()
            dark = await page.look(BACKGROUND)
            assert dark != light
            await page.page.keyboard.press("d")
            assert await page.look(BACKGROUND) == light
            await page.page.reload()
            await page.wait_health("ok")
            assert await page.look(BACKGROUND) == light
            await page.page.keyboard.press("d")
            await page.page.keyboard.press("d")
            assert await page.look("document.documentElement.dataset.theme") == "auto"
            assert await page.look(BACKGROUND) == dark

    run(tmp_path, story)


@pytest.mark.parametrize("width", [360, 768, 1280, 2560])
def test_nothing_is_cut_off_at_any_width(tmp_path: Path, width: int) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        await (await proxy.log()).append(b"x" * 2000)
        await page.open()
        await page.wait("#entries tr", text="xxx")
        assert await page.look("document.documentElement.scrollWidth") <= width
        for panel in ("charts", "topology", "events", "entries", "topics"):
            box = await page.page.locator(f"#{panel}").bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width, panel

    with_visit(tmp_path, story, width=width)


# The contrast of two colours as WCAG 2 defines it, of every text on the page against its background.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const found = rgba(getComputedStyle(element).backgroundColor);
      if (found[3] > 200) return found;
    }
    return rgba("white");
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *:not(svg *)")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !element.checkVisibility()) continue;
    const [one, other] = [light(rgba(getComputedStyle(element).color)), light(behind(element))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const name = `${element.tagName}.${element.className} "${element.textContent.slice(0, 20)}"`;
    if (contrast < 4.5) poor.push(`${name} ${contrast.toFixed(2)}`);
  }
  return poor;
}"""

NAMELESS = """() => [...document.querySelectorAll("button, input, select, [role=img], [role=group], section")]
  .filter((element) => element.checkVisibility())
  .filter((element) => !(element.getAttribute("aria-label") || element.textContent.trim() || element.labels?.length
    || document.getElementById(element.getAttribute("aria-labelledby"))))
  .map((element) => element.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_everything_can_be_read_and_has_a_name(tmp_path: Path, colours: str) -> None:
    """Contrast of at least 4.5 (WCAG AA), and a name for a screen reader on every control."""

    async def story(proxy: LiveProxy, page: Visit) -> None:
        log = await proxy.log()
        await log.append_batch([b'{"text": "a", "number": 1, "flag": true}', b"\xff", b"plain"])
        await log.set_reader("billing", 1)
        await (await proxy.gateway.admin()).seal_stream(1)
        await page.open()
        await page.wait("tr[data-stream='1'] .state", text="sealed by admin")
        await page.wait("#topics .readers li", text="billing")
        assert await page.look(f"({CONTRAST})()") == []
        assert await page.look(f"({NAMELESS})()") == []
        await page.page.click("#create")
        assert await page.look(f"({CONTRAST})()") == []

    with_visit(tmp_path, story, colours=colours)


FOCUSED = "(({ id, className }) => id || (className.baseVal ?? className))(document.activeElement)"


def test_the_keyboard_reaches_everything_that_the_pointer_does(tmp_path: Path) -> None:
    async def story(proxy: LiveProxy, page: Visit) -> None:
        await (await proxy.log()).append(b"x")
        await page.open()
        await page.wait("#entries tr", text="x")
        await page.page.keyboard.press("?")
        await page.wait("dialog", text="go to a position")
        await page.close_dialog()
        reached = set()
        for _ in range(40):
            await page.page.keyboard.press("Tab")
            reached.add(await page.look(FOCUSED))
        assert reached >= {
            "position",
            "theme",
            "help",
            "chart",
            "quiet act",
            "topic",
            "pause",
            "at",
            "create",
            "name",
        }

    with_visit(tmp_path, story)
