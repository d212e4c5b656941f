"""Connections of the server that do not wait for ever.

uvicorn closes a connection that is idle between two requests, but waits without end for the rest of
a request that has begun. A client that sends a byte now and then could hold all connections.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 20.0
"""Time that a client has to send the head and the body of a request."""


class PatientProtocol(H11Protocol):
    """A connection that is closed where a request takes too long to arrive."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time of the first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request, and start or stop its time."""
        super().data_received(data)
        self._watch()

    @property
    def _is_arriving(self) -> bool:
        """Whether a part of a request is still to come."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _watch(self) -> None:
        if not self._is_arriving:
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._end)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        self._deadline = None
        if self._is_arriving and not self.transport.is_closing():
            self.transport.close()
