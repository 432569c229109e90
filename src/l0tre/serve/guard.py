"""Who may ask, and what answers allow: tokens, host names, headers."""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

__all__ = ["COOKIE", "Guard", "is_local"]

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "l0tre"
HEADERS = {
    # Only this server's own scripts and styles run, and no page of another site can hold one of these.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def is_local(host: str) -> bool:
    """Whether an address is of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets requests through to an application.

    A server of this machine alone answers requests that name it by an address of this machine: a page of another site
    cannot reach it by a name of its own (DNS rebinding). Any other server asks for a token, once in the address, then
    in a cookie.
    """

    def __init__(self, app: Application, *, token: str = "") -> None:
        self.app = app
        self.token = token  # empty for this machine alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                names = {name for name, _ in own}
                message["headers"] = [pair for pair in message.get("headers", []) if pair[0] not in names] + own
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if not self.token:
            if not is_local(_host(headers.get("host", ""))):
                await _refuse(with_headers, 421, "this server answers requests to this machine alone")
            else:
                await self.app(scope, receive, with_headers)
            return
        asked = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if "token" in asked and self._fits(asked.pop("token")):  # keep it out of the address that people copy
            # One slash: two would lead to another host.
            where = f"/{quote(scope['path'].lstrip('/'))}" + (f"?{urlencode(asked)}" if asked else "")
            cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            start = {"type": "http.response.start", "status": 303}
            pairs = [(b"location", where.encode("ascii")), (b"set-cookie", cookie.encode())]
            await with_headers({**start, "headers": pairs})
            await send({"type": "http.response.body", "body": b""})
        elif self._fits(_cookie(headers.get("cookie", ""))):
            await self.app(scope, receive, with_headers)
        else:
            await _refuse(with_headers, 403, "this server needs the token that it printed: open ADDRESS/?token=TOKEN")

    def _fits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


def _host(text: str) -> str:
    """The host of a header ``Host``, without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if ":" in text else text


def _cookie(text: str) -> str:
    jar = SimpleCookie()
    try:
        jar.load(text)
    except Exception:  # whatever a foreign header does to the parser, it is no token
        return ""
    return jar[COOKIE].value if COOKIE in jar else ""


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
