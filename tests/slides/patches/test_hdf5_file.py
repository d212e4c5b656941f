import errno
import os
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest

from sgpmil.slides.patches import write_coords
from sgpmil.slides.patches.hdf5_file import NewHdf5File

from .test_patch_files import patches


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    # A limit on the size of files fails as a full disk does. HDF5 by itself would end the process
    # with a segmentation fault, so it is tried in one of its own.
    limits = (0, 100, 4_000, 300_000, 1_900_000)
    script = f"""
        import resource
        import numpy as np
        from sgpmil.slides.patches import FeatureWriter, Patches

        places = Patches(np.zeros((1000, 2), dtype=np.int64), 1, 1, 0, 1.0, 1.0, (1, 1), "a")
        for limit in {limits}:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            writer = None
            try:
                writer = FeatureWriter({str(tmp_path / "a.h5")!r}, places, dim=1000,
                                       dtype="float16", encoder="e")
                for _ in range(10):
                    writer.append(np.ones((100, 1000), dtype=np.float16))
                writer.finish()
            except OSError as error:
                if writer is not None:
                    writer.drop()
                print(error, flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    sentence = f"[Errno 27] File too large: '{tmp_path / 'a.h5'}'"
    assert done.stdout.splitlines() == [sentence] * len(limits)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_at_the_last_moment(tmp_path, monkeypatch):
    write_coords(tmp_path / "a.h5", patches())
    before = (tmp_path / "a.h5").read_bytes()

    def no_space(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.h5'"):
        write_coords(tmp_path / "a.h5", patches(np.ones((5, 2), dtype=np.int64)))
    assert [file.name for file in tmp_path.iterdir()] == ["a.h5"]
    assert (tmp_path / "a.h5").read_bytes() == before


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.open", refuse)  # the tests may run as root, who may write
    with pytest.raises(OSError, match=r"Permission denied: '.*a\.h5'"):
        write_coords(tmp_path / "a.h5", patches())
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "patches").write_text("")
    with pytest.raises(OSError, match=r"(File exists|Not a directory): '.*a\.h5'"):
        write_coords(tmp_path / "patches" / "a.h5", patches())


def test_a_failing_block_leaves_nothing(tmp_path):
    def write():
        with NewHdf5File(tmp_path / "a.h5") as new:
            new.file["x"] = np.zeros(5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_what_hdf5_would_write(tmp_path):
    values = np.random.default_rng(0).normal(size=(3000, 40))
    with NewHdf5File(tmp_path / "a.h5") as new:
        new.file.create_dataset("x", data=values, chunks=(100, 40))
        np.testing.assert_array_equal(new.file["x"][700:900], values[700:900])
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(100, 40))
        file["x"][700:900]
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
