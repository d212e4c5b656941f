import subprocess
import sys

import pytest

import sgpmil.evaluation as room


def test_every_exported_name_exists():
    for name in room.__all__:
        assert getattr(getattr(room, name), "__name__", name) == name
    assert set(room.__all__) <= set(dir(room))


def test_unknown_name():
    with pytest.raises(AttributeError, match="nothing"):
        _ = room.nothing


def test_import_is_cheap():
    code = (
        "import sys, sgpmil.evaluation as e; e.evaluate, e.METRICS, e.Prediction;"
        "heavy = {'sklearn', 'pandas', 'pyarrow', 'h5py', 'matplotlib'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
