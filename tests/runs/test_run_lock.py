import subprocess
import sys

import pytest

from sgpmil.errors import RunFolderError
from sgpmil.runs.run_lock import run_lock


def test_a_second_holder_is_refused(tmp_path):
    with (
        run_lock(tmp_path / "runs" / "a"),
        pytest.raises(RunFolderError, match=r"Another process is training into .*a"),
        run_lock(tmp_path / "runs" / "a"),
    ):
        pass
    with run_lock(tmp_path / "runs" / "a"), run_lock(tmp_path / "runs" / "b"):
        pass
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_killed_holder_leaves_no_lock(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from sgpmil.runs.run_lock import run_lock
with run_lock(Path({str(tmp_path / "a")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with run_lock(tmp_path / "a"):
        pass


def test_nowhere_to_write(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(RunFolderError, match="Could not write"),
        run_lock(tmp_path / "file" / "run"),
    ):
        pass
