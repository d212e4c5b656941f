import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("ray")

from sgpmil.slides.extraction import elsewhere
from sgpmil.slides.extraction.extract import ExtractOptions, extract_folder
from tests.ray_machines import (
    by_value,
    contents,
    first,
    losing_a_machine,
    wait_on_lost,
)
from tests.slides.extraction.drawn_files import write_slide

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


class Fragile(elsewhere.ExtractionWork):
    """Leaves half of a file on the machine that is to be lost, and waits there."""

    def __call__(self):
        import ray

        extract = super().__call__()
        markers = self.folder.root.parent
        lost = (markers / "machine").read_text()

        def work(slides):
            if ray.get_runtime_context().get_node_id() == lost and first(markers / "begun"):
                for path in (self.folder.coords, self.folder.preview):
                    place = path(slides[0].slide_id)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    half = place.with_name(f".{place.name}.0ddba1-7.deadbeef.tmp")
                    half.write_bytes(b"half")
            wait_on_lost(markers, lost)
            return extract(slides)

        return work


def test_a_machine_that_is_lost_changes_nothing(cluster, tmp_path, monkeypatch):
    by_value(__name__)
    (tmp_path / "slides").mkdir()
    for number in range(5):
        write_slide(tmp_path / f"slides/s{number}.tif", seed=number)
    (tmp_path / "slides/damaged.tif").write_bytes(b"II*\0 nothing")
    options = {"slides": tmp_path / "slides", "patch_size": 256}
    here = extract_folder(ExtractOptions(**options, out=tmp_path / "here", workers=1))
    monkeypatch.setattr("sgpmil.slides.extraction.extract.ExtractionWork", Fragile)
    monkeypatch.setattr(elsewhere, "SLIDES_AT_ONCE", 2)
    with losing_a_machine(cluster, tmp_path) as lost:
        (tmp_path / "machine").write_text(lost)
        there = extract_folder(ExtractOptions(**options, out=tmp_path / "there", on="ray"))
    assert (tmp_path / "begun").exists()
    assert [(o.slide_id, o.status, o.num_patches) for o in there.outcomes] == [
        (o.slide_id, o.status, o.num_patches) for o in here.outcomes
    ]
    assert [o.slide_id for o in there.failed] == ["damaged"]
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    again = extract_folder(ExtractOptions(**options, out=tmp_path / "there", workers=1))
    assert {o.status for o in again.outcomes} == {"kept", "failed"}
