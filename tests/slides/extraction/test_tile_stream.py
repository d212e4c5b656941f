"""The order and the make-up of batches, with processes that are none."""

from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2", reason="pip install '.[slides]'")

from sgpmil.slides.extraction.jobs import ExtractionSettings, SlideJob
from sgpmil.slides.extraction.preparation import PreparedSlide
from sgpmil.slides.extraction.tile_stream import SlideBegin, SlideEnd, TileBatch, tile_stream
from sgpmil.slides.extraction.tile_workers import TileWorkers
from sgpmil.slides.patches import ExtractionFolder, Patches

SIZE = 2
TILES_PER_SLOT = 16


class Workers(TileWorkers):
    """Decodes at once, in this process: a tile shows its own number, in its slide's colour."""

    def __init__(self, num_slots, counts, broken=()):
        memory = np.zeros((num_slots, TILES_PER_SLOT, SIZE, SIZE, 3), np.uint8)
        self.slots = SimpleNamespace(
            num_slots=num_slots,
            tiles_per_slot=TILES_PER_SLOT,
            tiles=lambda slot, count: memory[slot, :count],
        )
        self.num_workers = 2
        self.counts = counts
        self.broken = broken
        self.memory = memory

    def prepare(self, job, folder, settings):
        number = int(job.slide_id)
        coords = np.stack([np.arange(self.counts[number]), np.full(self.counts[number], number)], 1)
        patches = Patches(coords, SIZE, SIZE, 0, 20.0, 20.0, (9, 9), job.slide_id)
        return done(PreparedSlide(patches, {}))

    def decode(self, slot, path, coords, side):
        if (int(path.stem), int(coords[0, 0])) in self.broken:
            return done(error=ValueError("damaged here"))
        self.memory[slot, : len(coords), :, :, 0] = coords[:, 0, None, None]
        self.memory[slot, : len(coords), :, :, 1] = coords[:, 1, None, None]
        return done(None)


def done(result=None, error=None):
    future = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return future


def stream(tmp_path, counts, batch_size, num_slots, broken=()):
    jobs = [SlideJob(tmp_path / f"{number}.svs") for number in range(len(counts))]
    chosen = ExtractionSettings()
    folder = ExtractionFolder.of(tmp_path, chosen.patches)
    workers = Workers(num_slots, counts, broken)
    return list(tile_stream(iter(jobs), workers, folder, chosen, batch_size))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 70), min_size=1, max_size=5),
    st.integers(1, 40),
    st.integers(0, 3),
)
def test_every_tile_comes_once_in_order_and_in_the_same_batches(
    tmp_path_factory, counts, batch_size, more_slots
):
    num_slots = -(-batch_size // TILES_PER_SLOT) + more_slots + 1
    items = stream(tmp_path_factory.mktemp("s"), counts, batch_size, num_slots)
    expected = []
    for number, count in enumerate(counts):
        expected.append(("begin", number))
        for start in range(0, count, batch_size):
            expected.append((number, list(range(start, min(start + batch_size, count)))))
        expected.append(("end", number))
    found = []
    for item in items:
        match item:
            case SlideBegin():
                found.append(("begin", int(item.job.slide_id)))
            case SlideEnd():
                assert item.error is None
                found.append(("end", int(item.job.slide_id)))
            case TileBatch():
                (slide,) = np.unique(item.tiles[..., 1])
                found.append((int(slide), item.tiles[:, 0, 0, 0].tolist()))
    assert found == expected


def test_a_damaged_slide_ends_early_and_the_next_one_is_whole(tmp_path):
    items = stream(tmp_path, [64, 20], 16, 4, broken={(0, 16)})
    ends = [item for item in items if isinstance(item, SlideEnd)]
    assert [str(end.error) for end in ends] == ["damaged here", "None"]
    begun = next(i for i, item in enumerate(items) if item is ends[0])
    batches = [item.tiles[..., 0].max() for item in items[:begun] if isinstance(item, TileBatch)]
    assert batches == [15]
    assert sum(len(i.tiles) for i in items[begun:] if isinstance(i, TileBatch)) == 20


def test_stopping_early_ends_the_thread(tmp_path):
    import threading

    before = threading.active_count()
    chosen = ExtractionSettings()
    folder = ExtractionFolder.of(tmp_path, chosen.patches)
    jobs = [SlideJob(tmp_path / "0.svs")]
    running = tile_stream(iter(jobs), Workers(4, [500]), folder, chosen, 8)
    assert isinstance(next(running), SlideBegin)
    running.close()
    assert threading.active_count() == before


def test_an_error_of_the_jobs_reaches_the_caller(tmp_path):
    def jobs():
        yield SlideJob(tmp_path / "0.svs")
        raise LookupError("of the jobs")

    chosen = ExtractionSettings()
    folder = ExtractionFolder.of(tmp_path, chosen.patches)
    with pytest.raises(LookupError, match="of the jobs"):
        list(tile_stream(jobs(), Workers(4, [3]), folder, chosen, 8))
