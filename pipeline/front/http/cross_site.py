"""Cross-site requests: a web page must not change a server that only its visitor can reach.

A browser sends some requests to any server without asking it first: those whose content type is a form's or
text/plain. It names the page's origin in `Origin`, and how far away that is in `Sec-Fetch-Site`.
"""

from __future__ import annotations

from pipeline.errors import CrossSite
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import header

_SAME_SITE = ("", "same-origin", "none")  # "none": the user entered the address
_UNASKED = ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded")
_PORTS = {"http": "80", "https": "443"}


def refuse_cross_site(request: HttpRequest) -> None:
    """Raise CrossSite for a request that a page of another origin can make a browser send.

    Requests without a content type pass: Triton's clients send none, and a browser adds an Origin.
    """
    site = header(request, b"sec-fetch-site").strip().lower()
    if site not in _SAME_SITE:
        raise CrossSite(f"{request.path} changes the server: a page of another site ({site}) may not ask it")
    origin = header(request, b"origin").strip()
    if b"origin" in request.headers and not _is_own(origin, header(request, b"host")):
        raise CrossSite(f"{request.path} changes the server: a page of {origin[:100]!r} may not ask it")
    media = header(request, b"content-type").partition(";")[0].strip().lower()
    if media in _UNASKED:
        error = CrossSite(f"{request.path} takes application/json, not {media}, which any page may send")
        error.http_status = 415
        raise error


def _is_own(origin: str, host: str) -> bool:
    """Whether the origin is this server, by the Host that the client asked."""
    scheme, _, name = origin.lower().partition("://")
    port = _PORTS.get(scheme, "")
    return bool(name) and _with_port(name, port) == _with_port(host.strip().lower(), port)


def _with_port(name: str, default: str) -> str:
    host, colon, port = name.rpartition(":")
    if not colon or port.endswith("]"):  # no port: a name, or an address of IPv6 alone
        return f"{name}:{default}"
    return f"{host}:{port or default}"
