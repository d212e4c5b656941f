import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from sgpmil.viewer.bounded_cache import BoundedCache


def test_the_least_recently_used_goes_first():
    cache = BoundedCache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"1234")
    assert cache.get("a") == b"1234"
    cache.put("c", b"1234")
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (b"1234", b"1234")
    assert cache.num_bytes == 8


def test_a_value_that_is_too_large_is_not_kept_and_drops_nothing():
    cache = BoundedCache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"x" * 11)
    assert cache.get("b") is None
    assert cache.get("a") == b"1234"


def test_replacing_a_value_counts_it_once():
    cache = BoundedCache(10, len)
    for _ in range(5):
        cache.put("a", b"12345678")
    assert cache.num_bytes == 8


def test_threads_that_want_the_same_value_make_it_once():
    cache, made, begun = BoundedCache(100, len), [], threading.Event()

    def make():
        made.append(1)
        begun.wait(5)
        return b"tile"

    with ThreadPoolExecutor(8) as threads:
        work = [threads.submit(cache.get_or_make, "a", make) for _ in range(8)]
        begun.set()
        assert {one.result() for one in work} == {b"tile"}
    assert len(made) == 1
    assert not cache._making


def test_a_failure_is_not_kept():
    cache = BoundedCache(100, len)

    def fail():
        raise ValueError

    for _ in range(2):
        with contextlib.suppress(ValueError):
            cache.get_or_make("a", fail)
    assert cache.get_or_make("a", lambda: b"1") == b"1"
