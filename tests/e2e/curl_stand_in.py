"""The part of curl that the pages use, for machines without it.

shell.py runs it as a program.
"""

from __future__ import annotations

import argparse
import os
import sys

import httpx


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-X", dest="method")
    parser.add_argument("-N", action="store_true")
    parser.add_argument("-o", dest="output")
    parser.add_argument("-d", dest="data")
    parser.add_argument("--data-binary", dest="binary")
    given = parser.parse_args()
    body: bytes | None = None
    if given.binary is not None:
        body = sys.stdin.buffer.read() if given.binary == "@-" else given.binary.encode()
    elif given.data is not None:
        body = given.data.encode()
    method = given.method or ("GET" if body is None else "POST")
    headers = dict(header.split(": ", 1) for header in given.headers)
    url = httpx.URL(given.url)
    headers["Host"] = f"{url.host}:{url.port}"
    moved = dict(pair.split(":") for pair in os.environ.get("CURL_STAND_IN", "").split())
    url = url.copy_with(port=int(moved.get(str(url.port), url.port or 80)))
    answer = httpx.request(method, url, headers=headers, content=body, timeout=60.0)
    if given.output is None:
        sys.stdout.buffer.write(answer.content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
