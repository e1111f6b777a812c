"""Paths as they are meant: without `./`, doubled and trailing slashes, `..` resolved, seen from a known directory."""

from __future__ import annotations

import posixpath
import re

_OPAQUE = ("~", "$", "\0")
_ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|[\w.-]+@[\w.-]+:")


def normal_path(path: str) -> str:
    """The shortest spelling of a path; "." for an empty one. What is no path of this machine stays as it is."""
    if _ELSEWHERE.match(path) or "\n" in path:
        return path
    normal = posixpath.normpath(path)
    # Two leading slashes mean something to POSIX and nothing to agents.
    return normal[1:] if normal.startswith("//") else normal


def is_absolute(path: str) -> bool:
    """Whether a path says where it begins: at the root, at home, or at what a variable holds."""
    return path.startswith(("/", *_OPAQUE))


def seen_from(directory: str | None, path: str) -> str:
    """A path joined to the directory it is relative to; None is a directory that is not known."""
    if directory is None or is_absolute(path) or _ELSEWHERE.match(path):
        return normal_path(path)
    return normal_path(f"{directory}/{path}")


def normal_url(url: str) -> str:
    """A URL without a trailing slash, scheme and host in lower case, what it asks in one order.

    A fragment is a place on the page and does not count, but one that is an application's own path does.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator:
        return url.strip()
    rest, hash_mark, fragment = rest.partition("#")
    route = hash_mark + fragment if fragment.startswith(("/", "!")) else ""
    host, _, path = rest.partition("/")
    path, question, query = path.partition("?")
    host = host.lower().removesuffix({"http": ":80", "https": ":443"}.get(scheme.lower(), ""))
    asked = "&".join(sorted(query.split("&")))
    return f"{scheme.lower()}://{host}/{path}".rstrip("/") + question + asked + route
