"""Encoding of slides: the embeddings of many slides, written one file a slide."""

import glob
import time
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch

from sgpmil.bags.readers.own_data import own_dataset, refuse_missing_data
from sgpmil.errors import EncoderError, ExtractionError, SgpmilError, reason_of
from sgpmil.processes import FileLock
from sgpmil.shapes import UInt8
from sgpmil.slides.encoders import Encoder
from sgpmil.slides.extraction.jobs import (
    PROCESS_DIED,
    ExtractionSettings,
    SlideJob,
    SlideOutcome,
    Status,
    cannot_write,
    is_write_failure,
)
from sgpmil.slides.extraction.preparation import PreparedSlide, outdated, stored_record
from sgpmil.slides.extraction.progress import ExtractionProgress
from sgpmil.slides.extraction.tile_stream import SlideBegin, SlideEnd, TileBatch, tile_stream
from sgpmil.slides.extraction.tile_workers import TileWorkers
from sgpmil.slides.patches import ExtractionFolder, FeatureWriter, read_coords, write_coords

_FINGERPRINT = "encoder_fingerprint"


@dataclass(frozen=True, slots=True)
class Extraction:
    """Result of an extraction.

    Args:
        outcomes: Outcome of each slide, in the given order.
        seconds: Duration.
        encoding_seconds: Part of the duration in which the encoder was at work.
    """

    outcomes: tuple[SlideOutcome, ...]
    seconds: float
    encoding_seconds: float


def extract_slides(
    jobs: Sequence[SlideJob],
    encoder: Encoder,
    folder: ExtractionFolder,
    settings: ExtractionSettings,
    progress: ExtractionProgress,
) -> Extraction:
    """Extract the embeddings of slides.

    Existing embeddings are kept. A slide that fails is reported and does not stop the others. Every
    file is whole or absent, so that a stopped extraction resumes where it left off, with the same
    result to the byte. Several processes may work in one folder; each slide is done by one of them.

    Args:
        jobs: The slides.
        encoder: Encoder of the patches.
        folder: Folder to write.
        settings: Patches, tissue, batches and processes.
        progress: Progress bar.

    Raises:
        ExtractionError: The folder holds embeddings of another encoder, or cannot be written.
    """
    start = time.perf_counter()
    extractor = _Extractor(encoder, folder, settings, progress)
    outcomes = extractor.run(jobs)
    return Extraction(outcomes, time.perf_counter() - start, extractor.encoding_seconds)


class _Extractor:
    """An extraction under way."""

    def __init__(
        self,
        encoder: Encoder,
        folder: ExtractionFolder,
        settings: ExtractionSettings,
        progress: ExtractionProgress,
    ) -> None:
        self.encoding_seconds = 0.0
        self._encoder = encoder
        self._batch_size = settings.batch_size_on(encoder.device.type)
        self._folder = folder
        self._settings = settings
        self._progress = progress
        self._outcomes: dict[str, SlideOutcome] = {}
        self._locks: dict[str, FileLock] = {}
        self._notes: dict[str, tuple[str, ...]] = {}
        self._writer: FeatureWriter | None = None
        self._failure: Exception | None = None

    def run(self, jobs: Sequence[SlideJob]) -> tuple[SlideOutcome, ...]:
        try:
            self._run_all(jobs)
            # Another process may have finished or left those that it held.
            busy = [job for job in jobs if self._outcomes[job.slide_id].status == "busy"]
            self._run_all(busy)
        finally:
            self._drop_file()
            for lock in self._locks.values():
                lock.release()
        return tuple(self._outcomes[job.slide_id] for job in jobs)

    def _run_all(self, jobs: Sequence[SlideJob]) -> None:
        left = list(jobs)
        while left:
            try:
                self._run(left)
                return
            except BrokenProcessPool:
                # A process died: it ran out of memory, or a decoder crashed. Each slide that was
                # under way runs alone, which shows the one to blame.
                self._drop_file()
                for job in [job for job in left if job.slide_id in self._locks]:
                    self._run_alone(job)
                left = [job for job in left if job.slide_id not in self._outcomes]

    def _run_alone(self, job: SlideJob) -> None:
        try:
            self._run([job])
        except BrokenProcessPool:
            self._drop_file()
            self._end(SlideOutcome(job.slide_id, "failed", reason=PROCESS_DIED))

    def _run(self, jobs: Sequence[SlideJob]) -> None:
        """Extract slides with a new set of processes."""
        with ExitStack() as stack:
            workers = stack.enter_context(
                TileWorkers(
                    self._settings.num_workers, self._settings.patches.size, self._batch_size
                )
            )
            stream = tile_stream(
                self._claimed(jobs), workers, self._folder, self._settings, self._batch_size
            )
            stack.callback(stream.close)
            for item in stream:
                match item:
                    case SlideBegin():
                        self._begin(item.job, item.prepared)
                    case TileBatch():
                        self._append(item.tiles)
                    case SlideEnd():
                        self._finish(item.job, item.error)

    def _claimed(self, jobs: Sequence[SlideJob]) -> Iterator[SlideJob]:
        """Yield the slides that this process extracts, each with its lock held."""
        for job in jobs:
            path = self._features(job)
            lock = self._locks.get(job.slide_id) or FileLock(path.with_name(f"{path.name}.lock"))
            if job.slide_id not in self._locks and not self._acquire(lock):
                self._end(SlideOutcome(job.slide_id, "busy"))
                continue
            self._locks[job.slide_id] = lock
            _remove_leftovers(path)
            stored = _read_stored(job, self._folder, self._encoder, self._settings)
            if stored is not None:
                num_patches, redo = stored
                if not redo:
                    _restore_coords(job, self._folder, self._encoder)
                    self._end(SlideOutcome(job.slide_id, "kept", num_patches))
                    continue
                self._notes[job.slide_id] = (f"Extracted again: {redo}.",)
            yield job

    def _acquire(self, lock: FileLock) -> bool:
        try:
            return lock.acquire()
        except OSError as error:
            raise cannot_write(self._folder.root, error) from error

    def _begin(self, job: SlideJob, prepared: PreparedSlide) -> None:
        self._notes[job.slide_id] = (*self._notes.get(job.slide_id, ()), *prepared.notes)
        self._progress.begin(job.slide_id, len(prepared.patches.coords))
        try:
            self._writer = FeatureWriter(
                self._features(job),
                prepared.patches,
                dim=self._encoder.dim,
                dtype=self._settings.dtype,
                encoder=self._encoder.name,
                attributes={_FINGERPRINT: self._encoder.fingerprint},
                coords_attributes=prepared.record,
            )
        except OSError as error:
            raise cannot_write(self._folder.root, error) from error

    def _append(self, tiles: UInt8[np.ndarray, "K P P 3"]) -> None:
        if self._writer is None:
            return  # an earlier batch of the slide failed
        try:
            start = time.perf_counter()
            features = self._encoder.encode(torch.from_numpy(tiles)).numpy()
            self.encoding_seconds += time.perf_counter() - start
            self._writer.append(features)
        except (EncoderError, ExtractionError) as error:
            self._failure = error
            self._drop_file()
        except torch.OutOfMemoryError as error:
            raise ExtractionError(
                f"The GPU has too little memory for batches of {self._batch_size} patches. Take a "
                "smaller `batch_size`."
            ) from error
        except OSError as error:
            raise cannot_write(self._folder.root, error) from error
        self._progress.advance(len(tiles))

    def _finish(self, job: SlideJob, error: Exception | None) -> None:
        error, self._failure = error or self._failure, None
        if error is not None:
            self._drop_file()
            if isinstance(error, OSError) and is_write_failure(error):
                raise cannot_write(self._folder.root, error) from error
            reason = str(error) if isinstance(error, SgpmilError) else repr(error)
            self._end(SlideOutcome(job.slide_id, "failed", reason=reason))
            return
        assert self._writer is not None  # noqa: S101 - a slide began
        num_patches = self._writer.num_patches
        try:
            self._writer.finish()
        except OSError as failure:
            raise cannot_write(self._folder.root, failure) from failure
        self._writer = None
        status: Status = "done" if num_patches else "empty"
        self._end(SlideOutcome(job.slide_id, status, num_patches, notes=self._notes[job.slide_id]))

    def _end(self, outcome: SlideOutcome) -> None:
        self._outcomes[outcome.slide_id] = outcome
        lock = self._locks.pop(outcome.slide_id, None)
        if lock is not None:
            lock.release()
        if outcome.status != "busy":
            self._progress.end(outcome)

    def _drop_file(self) -> None:
        if self._writer is not None:
            self._writer.drop()
            self._writer = None

    def _features(self, job: SlideJob) -> Path:
        return self._folder.features(self._encoder.name, job.slide_id)


def _remove_leftovers(output: Path) -> None:
    """Remove the partial files of a killed process. The output's lock must be held."""
    for partial in output.parent.glob(f".{glob.escape(output.name)}.*.tmp"):
        partial.unlink(missing_ok=True)


def _read_stored(
    job: SlideJob, folder: ExtractionFolder, encoder: Encoder, settings: ExtractionSettings
) -> tuple[int, str] | None:
    """Return the patches of stored embeddings and why to extract them again (or an empty text).

    Embeddings of other tools, which do not record their encoder's weights, are kept.
    """
    path = folder.features(encoder.name, job.slide_id)
    if not path.exists():
        return None
    try:
        with h5py.File(path, "r", locking=False) as file:
            features, coords = (own_dataset(file, name, path) for name in ("features", "coords"))
            if features is None or coords is None:
                raise KeyError("features or coords")
            refuse_missing_data(features, path)
            shape, fingerprint = features.shape, features.attrs.get(_FINGERPRINT)
            dtype, num_coords = features.dtype.name, coords.shape[-2]
    except Exception as error:  # noqa: BLE001 (a damaged file fails in many ways)
        return 0, f"its file was damaged ({reason_of(error)})"
    num_patches, record = int(num_coords), stored_record(path) or {}
    if num_patches and shape[-2:-1] != (num_patches,):
        return 0, "its file was damaged (not an embedding for each patch)"
    if settings.overwrite:
        return num_patches, "asked for"
    other = num_patches > 0 and shape[-1] != encoder.dim
    if other or fingerprint not in (None, encoder.fingerprint):
        raise ExtractionError(
            f"Expected embeddings of this {encoder.name} in {path.parent}, but those of "
            f"'{path.stem}' come from other weights, another transform or another precision. "
            "Choose another `out`, give the same `precision`, or replace them with "
            "`overwrite=True`."
        )
    if settings.resegment:
        return num_patches, "its tissue is segmented again"
    if fingerprint is not None and dtype != settings.dtype:
        return num_patches, f"its numbers were {dtype}"
    return num_patches, outdated(record, job, folder, settings)


def _restore_coords(job: SlideJob, folder: ExtractionFolder, encoder: Encoder) -> None:
    """Replace coordinates of ours that differ from those of the kept embeddings."""
    features, coords = folder.features(encoder.name, job.slide_id), folder.coords(job.slide_id)
    wanted = stored_record(features)
    if wanted and stored_record(coords) != wanted:
        write_coords(coords, read_coords(features), attributes=wanted)
