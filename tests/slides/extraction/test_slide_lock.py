import subprocess
import sys

from sgpmil.slides.extraction.slide_lock import SlideLock, remove_leftovers

HOLD = """
import sys, time
from pathlib import Path
from sgpmil.slides.extraction.slide_lock import SlideLock
lock = SlideLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
time.sleep(60)
"""


def test_one_process_at_a_time(tmp_path):
    output = tmp_path / "new" / "a slide.h5"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(output)], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "True\n"
        ours = SlideLock(output)
        assert not ours.acquire()
        holder.kill()
        holder.wait()
        assert ours.acquire()  # a lock ends with its process, though its file is still there
    assert not SlideLock(output).acquire()
    ours.release()
    assert list(output.parent.iterdir()) == []


def test_only_what_was_begun_for_this_file_is_removed(tmp_path):
    for name in (".a[1].h5.0123abcd.tmp", ".a1.h5.0123abcd.tmp", "a[1].h5", ".a[1].h5"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path / "a[1].h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".a1.h5.0123abcd.tmp",
        ".a[1].h5",
        "a[1].h5",
    ]
