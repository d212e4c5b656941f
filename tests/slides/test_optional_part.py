import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")

from sgpmil.errors import MissingPartError
from sgpmil.slides.annotations.mask import read_mask
from sgpmil.slides.annotations.patch_labels import patch_coverage
from sgpmil.slides.annotations.region_files import read_asap_xml
from sgpmil.slides.annotations.regions import Annotations
from tests.slides.annotations.drawings import rectangle, write_asap, write_tiff


def test_without_the_part(tmp_path, monkeypatch):
    xml = write_asap(tmp_path / "a.xml", [("Tumor", rectangle(0, 0, 1, 1))])
    tiff = write_tiff(tmp_path / "a.tif", np.ones((4, 4), dtype=np.uint8))
    monkeypatch.setattr("sgpmil.slides.optional_part.install_command", lambda part: f"add {part}")
    words = r"'{}' to work with slides, .* Install it with: add slides\."
    monkeypatch.setitem(sys.modules, "shapely", None)
    with pytest.raises(MissingPartError, match=words.format("shapely")):
        read_asap_xml(xml)
    with pytest.raises(MissingPartError, match=words.format("shapely")):
        patch_coverage(np.array([[0, 0]]), 4, Annotations(()))
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingPartError, match=words.format("imagecodecs")):
        read_mask(tiff)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(MissingPartError, match=words.format("tifffile")):
        read_mask(tiff)


def test_importing_the_room_loads_nothing_of_it():
    code = (
        "import sys, sgpmil.slides, sgpmil.evaluation.localisation.instance_evaluation;"
        "heavy = {'shapely', 'tifffile', 'imagecodecs', 'scipy', 'h5py'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
