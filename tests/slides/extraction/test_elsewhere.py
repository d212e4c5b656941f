import os
import signal
import sys

import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
ray = pytest.importorskip("ray")

from sgpmil.slides.extraction import elsewhere  # noqa: E402
from sgpmil.slides.extraction.extract import ExtractOptions, extract_folder  # noqa: E402
from tests.slides.extraction.drawn_files import write_slide  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


class DiesOnce:
    """Kills the process of the first worker that extracts."""

    def __init__(self, marker, load):
        self.marker = marker
        self.load = load

    def __call__(self):
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.load()


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**27)
    yield
    ray.shutdown()


def test_workers_extract_what_one_process_extracts(cluster, tmp_path, monkeypatch):
    (tmp_path / "slides").mkdir()
    for number in range(6):
        write_slide(tmp_path / f"slides/s{number}.tif", seed=number)
    (tmp_path / "slides/damaged.tif").write_bytes(b"II*\0 nothing")
    options = {"slides": tmp_path / "slides", "patch_size": 256}
    here = extract_folder(ExtractOptions(**options, out=tmp_path / "here", workers=1))
    work = elsewhere.ExtractionWork

    def fragile(load, folder, settings):
        return work(DiesOnce(tmp_path / "died", load), folder, settings)

    monkeypatch.setattr("sgpmil.slides.extraction.extract.ExtractionWork", fragile)
    there = extract_folder(ExtractOptions(**options, out=tmp_path / "there", on="ray"))
    assert (tmp_path / "died").exists()
    assert [(o.slide_id, o.status, o.num_patches) for o in there.outcomes] == [
        (o.slide_id, o.status, o.num_patches) for o in here.outcomes
    ]
    assert [o.slide_id for o in there.failed] == ["damaged"]
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    again = extract_folder(ExtractOptions(**options, out=tmp_path / "there", on="ray"))
    assert {o.status for o in again.outcomes} == {"kept", "failed"}
