"""Safety of the server: host, token, origin, sizes, rates and headers of every request."""

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BODY = 2**20
"""Most bytes of a request's body."""
MOST_URL = 4096
"""Most bytes of a path with its query."""
WRITE_HEADER = "x-sgpmil"
"""Header that a page of another origin cannot send without asking first."""
COOKIE = "sgpmil_session"
"""Beginning of the name of the cookie."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_WRITES = ("POST", "PUT", "PATCH", "DELETE")


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class RateLimit:
    """Counter of events of each client, of which so many are allowed a minute.

    Args:
        most: Most events a minute.
        clock: Gives the time in seconds.
    """

    _MOST_CLIENTS = 10_000

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def is_exceeded(self, client: str, *, count: bool = True) -> bool:
        """Return whether a client has used its events up; count one more unless it has."""
        now = self._clock()
        with self._lock:
            if len(self._left) > self._MOST_CLIENTS:
                self._left.clear()
            left, since = self._left.get(client, (float(self.most), now))
            left = min(float(self.most), left + (now - since) * self.most / 60)
            if left < 1:
                self._left[client] = left, now
                return True
            self._left[client] = left - count, now
            return False


class Guard:
    """Checks of every request before the application sees it.

    Args:
        app: The application.
        hosts: Names of this server that are accepted; empty accepts any. A page of another site
            cannot reach the server under a name of its own (DNS rebinding).
        token: Token that clients must know; None for a server that only this machine reaches.
        read_only: Whether nothing may be changed.
        writes_a_minute: Most changes of a client a minute.
        guesses_a_minute: Most wrong tokens of a client a minute.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: Iterable[str] = (),
        token: str | None = None,
        read_only: bool = False,
        writes_a_minute: int = 120,
        guesses_a_minute: int = 10,
    ) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)
        self.read_only = read_only
        self._token = None if token is None else _digest(token)
        # Cookies hold for all ports of a host: each server has a name of its own.
        self.cookie = f"{COOKIE}_{secrets.token_hex(4)}"
        self._session = secrets.token_hex(32)
        self._writes = RateLimit(writes_a_minute)
        self._guesses = RateLimit(guesses_a_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it in a sentence."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSockets
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message.get("headers", []) if k.lower() != b"server"]
                kept += [(k.encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = kept
            await send(message)

        headers = _headers(scope)
        refusal = self._refusal(scope, headers)
        if refusal is None and self._token is not None:
            if await self._let_in(scope, guarded):
                return
            refusal = self._unknown(scope, headers)
        if refusal is not None:
            await _answer(guarded, *refusal)
            return
        await self.app(scope, _bounded(receive), guarded)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts and name not in self.hosts:
            return 421, "This server does not answer under that name."
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MOST_URL:
            return 414, f"Expected an address of at most {MOST_URL} bytes."
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > MOST_BODY:
            return 413, f"Expected a body of at most {MOST_BODY} bytes."
        if scope["method"] not in _WRITES:
            return None
        if self.read_only:
            return 403, "The viewer was started with --read-only: nothing can be saved."
        origin = headers.get("origin")
        same = origin is None or origin.lower().partition("://")[2] == host
        if not same or headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "Changes are accepted from the viewer's own page only."
        if WRITE_HEADER not in headers:
            return 403, f"Expected the header {WRITE_HEADER}, which the viewer's own page sends."
        if self._writes.is_exceeded(_client(scope)):
            return 429, "Too many changes in a minute. Wait a little."
        return None

    def _unknown(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Refuse a client that has not shown the token."""
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            cookie = None
        # Random and long, unlike a token that somebody chose: it cannot be guessed.
        if cookie is not None and _is_same(cookie.value, self._session):
            return None
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if given:
            if self._guesses.is_exceeded(_client(scope), count=False):
                return 429, "Too many wrong tokens. Wait a minute."
            if self._fits(given):
                return None
            self._guesses.is_exceeded(_client(scope))
        return 401, "Open the address with the token that sgpmil view printed."

    async def _let_in(self, scope: Scope, send: Send) -> bool:
        """Answer an address with the right token by a cookie, and the address without it."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is None or scope["method"] != "GET":
            return False
        if self._guesses.is_exceeded(_client(scope), count=False):
            await _answer(send, 429, "Too many wrong tokens. Wait a minute.")
            return True
        if not self._fits(given):
            self._guesses.is_exceeded(_client(scope))
            return False
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        cookie = f"{self.cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"
        place = f"/?{rest}" if rest else "/"
        await _answer(send, 303, "", {"location": place, "set-cookie": cookie})
        return True

    def _fits(self, token: str) -> bool:
        return _is_same(_digest(token), self._token or "")


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _headers(scope: Scope) -> dict[str, str]:
    return {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _bounded(receive: Receive) -> Receive:
    """Stop a body that is longer than it says."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MOST_BODY:
            return {"type": "http.disconnect"}
        return message

    return bounded


async def _answer(
    send: Send, status: int, text: str, headers: Mapping[str, str] | None = None
) -> None:
    body = text.encode()
    given = {
        "content-type": "text/plain; charset=utf-8",
        "content-length": str(len(body)),
        **(headers or {}),
    }
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
