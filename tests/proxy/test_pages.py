"""The dashboard's files as they are served: whole, safe, sent once, and complete without any other machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.proxy.helpers import Proxy, with_proxy
from varlog.proxy.pages import INDEX, MEDIA_TYPES, STATIC, StaticPage, load_pages

FILES = sorted(path for path in STATIC.iterdir() if path.is_file())
# A namespace is a name, not an address that is requested.
NAMESPACE = "http://www.w3.org/2000/svg"


def test_the_dashboard_is_at_the_root_and_may_do_nothing_but_talk_to_its_proxy(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.get("/")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.content == (STATIC / INDEX).read_bytes()
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"

    with_proxy(tmp_path, story)


def test_every_file_is_served_under_its_name_and_type(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        for path in FILES:
            answer = await proxy.http.get(f"/static/{path.name}")
            assert answer.status_code == 200, path.name
            assert answer.headers["content-type"] == MEDIA_TYPES[path.suffix]
            assert answer.content == path.read_bytes()
            head = await proxy.http.head(f"/static/{path.name}")
            assert head.status_code == 200 and head.content == b""

    with_proxy(tmp_path, story)


def test_what_a_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        tag = (await proxy.http.get("/")).headers["etag"]
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await proxy.http.get("/", headers={"If-None-Match": known})
            assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == tag
        changed = await proxy.http.get("/", headers={"If-None-Match": '"other"'})
        assert changed.status_code == 200

    with_proxy(tmp_path, story)


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpages.py", "%2e%2e%2fapp.py", "dashboard.html%00"])
def test_a_missing_file_is_answered_with_a_problem(tmp_path: Path, name: str) -> None:
    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.get(f"/static/{name}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == 404

    with_proxy(tmp_path, story)


def test_the_pages_are_not_part_of_the_api(tmp_path: Path) -> None:
    async def story(proxy: Proxy) -> None:
        paths = (await proxy.http.get("/openapi.json")).json()["paths"]
        assert "/" not in paths and not [path for path in paths if path.startswith("/static")]

    with_proxy(tmp_path, story)


def test_other_bytes_have_another_tag(tmp_path: Path) -> None:
    (tmp_path / "one.js").write_text("1")
    (tmp_path / "two.js").write_text("2")
    (tmp_path / "note.txt").write_text("no page")
    pages = load_pages(tmp_path)
    assert sorted(pages) == ["one.js", "two.js"]
    assert pages["one.js"].etag != pages["two.js"].etag
    assert pages["one.js"] == StaticPage.of(tmp_path / "one.js")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_names_another_machine(path: Path) -> None:
    """The dashboard works without a network: what is not here is not used."""
    text = path.read_text("utf-8").replace(NAMESPACE, "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+|@import|url\(", text) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_that_another_one_names_exists_and_states_what_it_owns(path: Path) -> None:
    text = path.read_text("utf-8")
    named = re.findall(r'(?:from|import) "\./([\w.-]+)"|"/static/([\w.-]+)"', text)
    missing = [name for pair in named for name in pair if name and not (STATIC / name).is_file()]
    assert missing == []
    if path.suffix in (".js", ".css"):
        assert re.match(r"(// |/\* )[A-Z][\w ,]*: \S", text), "the first line says what the file owns"
