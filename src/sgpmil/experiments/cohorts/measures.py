"""Measures of one fold of a cohort's study, kept in a file beside the runs.

Instance scores of many runs do not fit in memory, and take minutes to measure. So the process that
trained a fold measures it, and tables read these small files.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sgpmil.bags.files import read_json, write_text
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.localisation.localisation import localisation
from sgpmil.evaluation.localisation.scored_slides import InstanceLabeller
from sgpmil.evaluation.metrics import InstanceMetrics, SlideMetrics
from sgpmil.evaluation.summary import FoldMetrics, measure_fold
from sgpmil.slides.annotations.folder import AnnotationFolder

LOCALISED = ("balanced_accuracy", "auc", "ace")
"""Measures of instances in the paper's table, of the attention of each positive slide by itself."""


@dataclass(frozen=True)
class Cost:
    """Time and memory of a fold.

    Args:
        seconds: Seconds of the training and prediction; those of folds that were trained side by
            side are shared equally.
        epochs: Number of epochs that were trained.
        gpu_bytes: Peak of the memory of the GPU that its process had reserved; 0 on a CPU.
        host_bytes: Peak of the memory of its process.
        device: Kind of device.
    """

    seconds: float
    epochs: int
    gpu_bytes: int
    host_bytes: int
    device: str


@dataclass(frozen=True)
class MeasuredFold:
    """Measures of one fold.

    Args:
        fold: Name of the fold.
        slides: Value of each slide metric.
        num_slides: Number of test slides with a label.
        instances: Value of each metric of instances; None without instance labels.
        num_bags: Number of positive slides with both kinds of instances.
        localised: `LOCALISED` by name; empty without instance labels.
        cost: Time and memory.
        annotations: Place of the annotations that labelled the instances; empty where the bags
            carry labels, or there are none.
    """

    fold: str
    slides: Mapping[str, float]
    num_slides: int
    instances: Mapping[str, float] | None
    num_bags: int
    localised: Mapping[str, float] = field(default_factory=dict)
    cost: Cost | None = None
    annotations: str = ""

    def metrics_as(self, name: str) -> FoldMetrics:
        """Return the metrics as those of a run's fold, under a name."""
        instances = None
        if self.instances is not None:
            instances = InstanceMetrics(self.instances, self.num_bags)
        return FoldMetrics(name, SlideMetrics(self.slides, self.num_slides), instances)

    def write(self, path: Path) -> None:
        """Write the measures.

        Raises:
            OSError: The file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        # JSON has no NaN.
        write_text(path, json.dumps(_without_nan(asdict(self)), indent=1, allow_nan=False))

    @staticmethod
    def read(path: Path) -> "MeasuredFold | None":
        """Read the measures; None where the file is missing or damaged, so that they are redone."""
        try:
            content = read_json(path)
            cost, instances = content.pop("cost"), content.pop("instances")
            content["slides"] = _with_nan(content["slides"])
            content["localised"] = _with_nan(content["localised"])
            return MeasuredFold(
                **content,
                instances=None if instances is None else _with_nan(instances),
                cost=None if cost is None else Cost(**cost),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def measure(
    tested: TestedFold,
    annotations: AnnotationFolder | None = None,
    *,
    min_coverage: float = 0.5,
    positive_classes: tuple[int, ...] = (),
    cost: Cost | None = None,
) -> MeasuredFold:
    """Measure the slides and, where their labels are known, the instances of a fold.

    Args:
        tested: The fold with the scores of its instances.
        annotations: Annotations that label the instances; those that the bags carry otherwise.
        min_coverage: Least share of a patch that is positive.
        positive_classes: Classes whose slides hold positive instances; all but 0 where empty.
        cost: Time and memory of the fold.
    """
    test, validation = tested.test, tested.validation
    classes = positive_classes or None
    if annotations is not None:
        labeller = InstanceLabeller(annotations, min_coverage, classes)
        test = labeller.label(test).table
        validation = None if validation is None else labeller.label(validation).table
    found = measure_fold(test, tested.name)
    localised: dict[str, float] = {}
    if found.instance is not None:
        (row,) = localisation(
            test,
            validation,
            positive_classes=classes,
            fold=tested.name,
            scores=("attention",),
            scopes=("per_slide",),
        )
        if row.num_slides:  # positive by the cohort's classes
            localised = {name: getattr(row, name) for name in LOCALISED}
    return MeasuredFold(
        fold=tested.name,
        slides=dict(found.slide.values),
        num_slides=found.slide.num_slides,
        instances=None if found.instance is None else dict(found.instance.values),
        num_bags=0 if found.instance is None else found.instance.num_bags,
        localised=localised,
        cost=cost,
        annotations="" if annotations is None else str(annotations.folder.resolve()),
    )


def _without_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_nan(values: Mapping[str, float | None]) -> dict[str, float]:
    return {key: math.nan if value is None else value for key, value in values.items()}
