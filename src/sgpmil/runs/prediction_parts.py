"""Parts of a folder of predictions: slides that one worker predicts and writes together.

::

    parts/<digest>.parquet   predictions of a part; removed when the table of all slides is there
    attention/<slide>.h5     scores of the instances

A part is whole or absent, and its name is a digest of the model, the options and its slides. So a
stopped prediction goes on with the parts that are missing, here or on a cluster, and what a dead
worker left of a part never shows in the table.
"""

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import torch

from sgpmil.bags.dataset import BagDataset, content_of
from sgpmil.bags.files import remove_temporaries
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_columns import optional_columns
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import MAX_INSTANCES
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.processes import compute_device
from sgpmil.runs.prediction_files import TABLE, read_predictions, write_predictions
from sgpmil.runs.prediction_folder import scores_path, write_instance_scores
from sgpmil.runs.trained_model import TrainedModel

MOST_PARTS = 2000
"""Parts of an archive: each takes some milliseconds to hand out, and is read again in the end."""

_ROWS_AT_ONCE = 4096
"""Slides whose predictions are in memory together when parts are merged."""


@dataclass(frozen=True)
class Part:
    """Slides that are predicted together.

    Args:
        slides: Their names.
        name: Name of the file of their predictions.
    """

    slides: tuple[str, ...]
    name: str


@dataclass(frozen=True)
class PredictionWork:
    """The prediction of parts of a data set; pickled for workers elsewhere.

    Args:
        model: The model.
        bags: All bags, in terms of the model's target.
        out: Folder of the predictions, which all workers see.
        with_instances: Whether to write the scores of the instances.
        novelty: Whether to compare the slides with the training slides.
        device: Name of the device that computes.
        precision: Arithmetic of the dense layers.
        prevalence: Class shares that the probabilities are for.
    """

    model: TrainedModel
    bags: BagDataset
    out: Path
    with_instances: bool = True
    novelty: bool = True
    device: str = "auto"
    precision: str = "auto"
    prevalence: str | None = None

    def __call__(self) -> "Callable[[Part], None]":
        """Return the function that predicts a part, for an executor."""
        return lambda part: self.predict([part])

    def parts(self) -> tuple[Part, ...]:
        """Divide the bags.

        Parts end where a batch of a CPU ends, so that predictions do not depend on who makes them.
        """
        state, bags = _state(self), self.bags
        sizes = bags.num_instances
        least = sum(sizes) / MOST_PARTS
        ends, in_batch, in_part = [0], 0, 0
        for position, size in enumerate(sizes):
            if in_batch and in_batch + size > MAX_INSTANCES["cpu"]:
                in_batch = 0
                if in_part >= least:
                    ends.append(position)
                    in_part = 0
            in_batch, in_part = in_batch + size, in_part + size
        rows = list(zip(bags.slide_ids, bags.case_ids, bags.labels, sizes, strict=True))
        return tuple(
            Part(bags.slide_ids[first:end], _digest([state, rows[first:end]]))
            for first, end in pairwise([*ends, len(sizes)])
        )

    def predict(self, parts: Sequence[Part], on_slide: Callable[[], None] = lambda: None) -> None:
        """Predict those of some parts that are not there, in one stream of slides.

        Args:
            parts: The parts.
            on_slide: Called when a slide is done.

        Raises:
            PredictionError: The bags do not fit the model.
            OSError: The folder cannot be written.
        """
        todo = []
        for part in parts:
            if self._is_there(part):
                for _ in part.slides:
                    on_slide()
            else:
                todo.append(part)
        if not todo:
            return
        bags = self.bags.subset([slide for part in todo for slide in part.slides])
        found = self.model.iter_predictions(
            bags,
            with_instances=self.with_instances,
            device=compute_device(self.device),
            precision=self.precision,
            prevalence=self.prevalence,
            novelty=self.novelty,
        )
        for part in todo:
            rows = []
            for _ in part.slides:
                prediction = next(found)
                if prediction.instances is not None:
                    path = scores_path(self.out, prediction.slide_id)
                    write_instance_scores(path, prediction.instances)
                rows.append(replace(prediction, instances=None))
                on_slide()
            self._write(part, rows)

    def _is_there(self, part: Part) -> bool:
        path = part_path(self.out, part)
        if not path.exists():
            return False
        try:
            origin = read_predictions(path).provenance
        except PredictionError:
            return False
        slides = {} if origin is None else dict(origin.slides)
        are_scored = not self.with_instances or all(
            scores_path(self.out, slide).exists() for slide in part.slides
        )
        return are_scored and slides == self._contents(part)

    def _contents(self, part: Part) -> dict[str, str]:
        digests = self.bags.subset(part.slides).slide_digests()
        return {slide: content_of(digest) for slide, digest in digests.items()}

    def _write(self, part: Part, rows: Sequence[Prediction]) -> None:
        origin = PredictionProvenance(slides=self._contents(part))
        table = PredictionTable(tuple(rows), self.model.target, origin)
        write_predictions(part_path(self.out, part), table)


def part_path(out: Path, part: Part) -> Path:
    """Return the file of a part."""
    return out / "parts" / f"{part.name}.parquet"


def keep_parts(out: Path, parts: Sequence[Part]) -> None:
    """Prepare a folder for parts: remove the table, and all that is not of these parts.

    Where the folder held a table, nothing of it is kept.

    Raises:
        OSError: The folder cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    # Old scores beside a new table, or a new score beside an old table, would be mixed runs.
    if (out / TABLE).exists():
        (out / TABLE).unlink()
        shutil.rmtree(out / "parts", ignore_errors=True)
    there = [part for part in parts if part_path(out, part).exists()]
    _keep(out / "parts", {part_path(out, part) for part in there})
    _keep(out / "attention", {scores_path(out, s) for part in there for s in part.slides})


def remove_parts(out: Path) -> None:
    """Remove the parts of a whole table, and what dead workers left of scores.

    A machine that was lost cannot remove its own temporary files, and nobody else writes now.
    """
    shutil.rmtree(out / "parts", ignore_errors=True)
    remove_temporaries(out)


def _keep(folder: Path, kept: Collection[Path]) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path not in kept:
            path.unlink()


@dataclass(frozen=True)
class MergedParts:
    """The predictions of all parts, a chunk in memory at a time.

    Args:
        out: Folder of the predictions.
        parts: The parts, all of them there.
        provenance: Origin of the predictions, without their slides.
    """

    out: Path
    parts: Sequence[Part]
    provenance: PredictionProvenance
    optional: frozenset[str] = field(init=False)
    """Optional columns that any of the parts has."""

    def __post_init__(self) -> None:
        slides: dict[str, str] = {}
        columns: frozenset[str] = frozenset()
        for part in self.parts:
            table = read_predictions(part_path(self.out, part))
            columns |= optional_columns(table)
            slides |= {} if table.provenance is None else table.provenance.slides
        object.__setattr__(self, "optional", columns)
        object.__setattr__(self, "provenance", replace(self.provenance, slides=slides))

    def __iter__(self) -> Iterator[PredictionTable]:
        """Read the predictions in the order of the slides, as tables of some thousand slides."""
        rows: list[Prediction] = []
        for number, part in enumerate(self.parts, 1):
            table = read_predictions(part_path(self.out, part))
            rows += table.predictions
            if len(rows) >= _ROWS_AT_ONCE or number == len(self.parts):
                yield PredictionTable(tuple(rows), table.target, self.provenance)
                rows = []


def _state(work: PredictionWork) -> str:
    """Return a digest of everything but the slides that decides predictions."""
    digest = hashlib.sha256()
    for model, info in zip(work.model.models, work.model.infos, strict=True):
        settings = sorted(dict(info.settings).items())
        digest.update(repr((info.model, settings, model.shares)).encode())
        for name, value in model.state_dict().items():
            digest.update(name.encode())
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    seen = work.model.seen
    known = [sorted(part) for part in (seen.train, seen.validation, seen.patients)]
    options = (work.with_instances, work.novelty, work.precision, work.prevalence)
    digest.update(repr((known, options, version("sgpmil"))).encode())
    return digest.hexdigest()


def _digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:24]
