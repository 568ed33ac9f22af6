"""Pages: the dashboard at / and its files at /static, read once from the package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = "dashboard.html"

MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# A page that can seal a log stream runs only its own code, talks only to its own server, and cannot be framed.
CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
SAFE_HEADERS: Final = {
    # Revalidated every time, usually with 304: a new version of the proxy never serves an old page.
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class StaticPage:
    """One file of the dashboard. `etag` is a hash of its bytes, so a browser never fetches the same bytes twice."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, path: Path) -> StaticPage:
        body = path.read_bytes()
        return cls(body, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')

    def answer(self, if_none_match: str | None) -> Response:
        headers = {**SAFE_HEADERS, "ETag": self.etag}
        if if_none_match is not None and self._known(if_none_match):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)

    def _known(self, if_none_match: str) -> bool:
        """RFC 9110: a list of tags, possibly weak ones, or a star for any."""
        tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
        return "*" in tags or self.etag in tags


def load_pages(directory: Path = STATIC) -> Mapping[str, StaticPage]:
    """Every file that has a media type, by its name."""
    return {
        path.name: StaticPage.of(path) for path in sorted(directory.iterdir()) if path.suffix in MEDIA_TYPES
    }


def pages_router() -> APIRouter:
    """Routes for people, apart from the API: they are not in its OpenAPI document."""
    pages = load_pages()
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    async def dashboard(request: Request) -> Response:
        return pages[INDEX].answer(request.headers.get("if-none-match"))

    @router.api_route("/static/{name}", methods=["GET", "HEAD"])
    async def static(request: Request, name: str) -> Response:
        page = pages.get(name)
        if page is None:
            raise HTTPException(404, f"the dashboard has no file {name!r}: open / for the page itself")
        return page.answer(request.headers.get("if-none-match"))

    return router


router = pages_router()
