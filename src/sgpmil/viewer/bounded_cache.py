"""A cache of bounded size that threads share."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values by key, of which the least recently used go first.

    Args:
        limit: Most bytes that it holds. A value larger than this is not kept.
        size_of: Gives the bytes of a value.
    """

    def __init__(self, limit: int, size_of: Callable[[V], int]) -> None:
        self.limit = limit
        self.num_bytes = 0
        self._size_of = size_of
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[K, threading.Lock] = {}

    def get(self, key: K) -> V | None:
        """Return a value, or None where it is not kept."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V) -> None:
        """Keep a value; the least recently used make room."""
        size = self._size_of(value)
        with self._lock:
            before = self._values.pop(key, None)
            self.num_bytes -= 0 if before is None else before[1]
            if size > self.limit:
                return
            self._values[key] = value, size
            self.num_bytes += size
            while self.num_bytes > self.limit:
                self.num_bytes -= self._values.popitem(last=False)[1][1]

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return a value, made where it is not kept; threads that want the same wait for it."""
        found = self.get(key)
        if found is not None:
            return found
        with self._lock:
            turn = self._making.setdefault(key, threading.Lock())
        try:
            with turn:
                found = self.get(key)
                if found is None:
                    found = make()
                    self.put(key, found)
                return found
        finally:
            with self._lock:
                self._making.pop(key, None)
