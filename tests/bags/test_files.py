import os

import pytest

from sgpmil.bags.files import atomic_path, content_digest, temporary_sibling, write_text


def test_write_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "one\n")
    write_text(path, "two\n")
    assert path.read_text() == "two\n"
    assert list(tmp_path.iterdir()) == [path]


def test_failure_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_temporary_names_are_hidden_siblings(tmp_path):
    first, second = temporary_sibling(tmp_path / "a"), temporary_sibling(tmp_path / "a")
    assert first.parent == tmp_path
    assert first.name.startswith(".a.")
    assert first != second


def test_file_appears_whole(tmp_path):
    final = tmp_path / "new" / "a.txt"
    with atomic_path(final) as temporary:
        temporary.write_text("x")
        assert temporary.parent == final.parent
        assert not final.exists()
    assert final.read_text() == "x"
    assert [file.name for file in final.parent.iterdir()] == ["a.txt"]


def test_failure_keeps_the_old_file_and_leaves_nothing(tmp_path):
    final = tmp_path / "a.txt"
    final.write_text("old")

    def write_half():
        with atomic_path(final) as temporary:
            temporary.write_text("half")
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        write_half()
    assert final.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_digest_of_content_sees_size_and_every_sampled_block(tmp_path):
    path = tmp_path / "large"
    content = bytearray(range(256)) * 2**15  # eight megabytes
    path.write_bytes(content)
    first = content_digest(path)
    assert first == content_digest(path)
    path.write_bytes(content + b"0")
    assert content_digest(path) != first
    for place in (0, len(content) // 2, len(content) - 1):
        # Blocks of 64 kB at every 133 kB: one of two changes this far apart is in one.
        other = bytearray(content)
        for at in (place, (place + 66_000) % len(content)):
            other[at] ^= 1
        path.write_bytes(other)
        assert content_digest(path) != first
    small = tmp_path / "small"
    small.write_bytes(content[:1000])
    before = content_digest(small)
    small.write_bytes(content[:500] + b"x" + content[501:1000])
    assert content_digest(small) != before
