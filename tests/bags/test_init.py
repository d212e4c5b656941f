import subprocess
import sys

import sgpmil.bags


def test_every_public_name_exists():
    assert len(set(sgpmil.bags.__all__)) == len(sgpmil.bags.__all__)
    for name in sgpmil.bags.__all__:
        assert hasattr(sgpmil.bags, name)


def test_importing_the_room_loads_no_heavy_library():
    code = (
        "import sys; from sgpmil.bags import *; assert 'torch' in sys.modules;"
        "print([m for m in ('pandas', 'sklearn', 'h5py', 'scipy', 'openpyxl') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
