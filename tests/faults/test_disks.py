"""Commands on a full disk and in folders that cannot be written."""

import ctypes
import os
import resource
import shutil
import signal

import pytest

from tests.faults.commands import content_of, in_a_fork, is_temporary

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of a fork beside threads
]


def no_file_larger_than(size):
    def start():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return start


def without_privileges():
    """Let this process be refused what its permissions do not allow, even as root."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        if ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()) != 0:
            raise OSError("The capabilities of root cannot be dropped.")


def as_a_sentence(ended):
    """Return the last line of what a command said, which is one of our sentences."""
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    return ended.said.strip().splitlines()[-1]


def test_a_full_disk_is_one_sentence_and_the_next_run_ends_as_ever(stand):
    sizes = sorted({len(content) for content in stand.whole.values()} - {0})
    chosen = [10, sizes[len(sizes) // 2] - 1, sizes[-1] // 2]
    for size in chosen[-1:] if stand.command.name == "train" else chosen:
        out = stand.out(f"full-{size}")
        words = stand.command.begin(stand.place, out)
        said = as_a_sentence(in_a_fork(words, no_file_larger_than(size)))
        assert said.startswith(("Expected", "Could not write")), said
        assert str(out) in said, said
        assert not [path for path in out.rglob("*") if is_temporary(path)]
        assert stand.fault_after_again(out) == ""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="drops privileges as Linux does")
def test_a_folder_that_cannot_be_written_is_one_sentence_and_stays_as_it_is(stand):
    out = stand.out("locked")
    out.chmod(0o555)
    words = stand.command.begin(stand.place, out)
    said = as_a_sentence(in_a_fork(words, without_privileges))
    assert "Permission denied" in said
    assert str(out) in said
    assert list(out.iterdir()) == []
    out.chmod(0o755)
    assert stand.fault_after_again(out) == ""
    # A result that is there already stays whole where it cannot be replaced.
    before = content_of(out)
    for folder in [out, *(path for path in out.rglob("*") if path.is_dir())]:
        folder.chmod(0o555)
    again = stand.command.again(stand.place, out)
    ended = in_a_fork(again, without_privileges)
    assert "Traceback" not in ended.said
    assert ended.code in (0, 2)
    for folder in [out, *(path for path in out.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    assert content_of(out) == before
    shutil.rmtree(out)
