"""Cohorts of the paper: what each looks like, and how every model is trained on it.

`COHORTS` has the facts that users' files are checked against. `row_variant` gives a row of the
paper's table as a model with settings; `Budget` says whose optimiser settings it has:

==========  ==================================================================================
`authors`   CAMELYON16, TCGA-NSCLC: each model's own published training; AGP and SGPMIL as in
            the paper with AdamW, a linear warm-up and a cosine from 6e-4
`equal`     PANDA, BRACS: 20 epochs of AdamW with a cosine from 1e-4 for every model, from 2e-4
            for AGP and SGPMIL
==========  ==================================================================================

Every row is trained with classes drawn equally often, as in the paper, and gives probabilities as
if all classes were equally frequent, unless another prevalence is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from sgpmil.errors import SettingsError
from sgpmil.experiments.study import Variant
from sgpmil.models.registry import list_models
from sgpmil.training.settings import TrainingSettings, resolve_training

Budget = Literal["authors", "equal"]
Splitting = Literal["official test", "column", "patients"]
"""Folds that are made where no split files are given. `official test`: slides called test_* are
tested, a fifth of each class of the others validates. `column`: a column of the table names the
part of each slide. `patients`: patients are drawn, anew for each fold."""


@dataclass(frozen=True)
class Cohort:
    """A data set of the paper.

    Args:
        name: Its name on the command line.
        title: Its name in tables.
        classes: The classes in the order of their numbers.
        counts: Slides of each class in the published table of labels.
        folds: Number of folds of the paper.
        seeds: Seeds of the training; each trains every fold.
        parts: Slides to train, to validate and to test on in a published fold.
        metrics: Slide metrics of the paper's table.
        budget: Whose optimiser settings the models have.
        magnification: Magnification of the paper's patches.
        patch_size: Side of a patch at that magnification in pixels.
        patches: Median number of patches of a slide, to judge the users' files and for rehearsals.
        ordinal: Whether the classes are ordered, such as grades.
        label_column: Column of the labels.
        splitting: Folds that are made where no split files are given.
        split_column: Column of the parts.
        regions: Rule of annotations; empty where the paper has no instance metrics.
        positive_classes: Classes whose slides hold positive instances.
        shared_case: Treatment of a patient in two parts of a fold: error, or warn where the
            published folds have one.
        source: Where slides and labels come from.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    counts: tuple[int, ...]
    folds: int
    seeds: tuple[int, ...]
    parts: tuple[int, int, int]
    metrics: tuple[str, ...]
    budget: Budget
    magnification: int
    patches: int
    source: str
    patch_size: int = 224
    ordinal: bool = False
    label_column: str = "label"
    splitting: Splitting = "patients"
    split_column: str = ""
    regions: tuple[str, ...] = ()
    positive_classes: tuple[int, ...] = ()
    shared_case: Literal["error", "warn"] = "error"

    @property
    def num_slides(self) -> int:
        """Number of slides of the published table."""
        return sum(self.counts)


_SLIDE_METRICS = ("balanced_accuracy", "auc", "ace")
_BRACS_SEEDS = (2025, 2026, 2027, 2028, 2029)
"""The paper gives the seed 2025 for all sets; of the five seeds of BRACS it gives the number."""

COHORTS: Mapping[str, Cohort] = MappingProxyType(
    {
        cohort.name: cohort
        for cohort in (
            Cohort(
                name="camelyon16",
                title="CAMELYON16",
                classes=("normal", "tumor"),
                counts=(238, 160),
                folds=10,
                seeds=(2025,),
                parts=(215, 54, 129),
                metrics=_SLIDE_METRICS,
                budget="authors",
                magnification=10,
                patches=2200,
                splitting="official test",
                regions=("camelyon",),
                positive_classes=(1,),
                source="camelyon17.grand-challenge.org: training and test slides, and the "
                "annotations lesion_annotations.zip",
            ),
            Cohort(
                name="tcga-nsclc",
                title="TCGA-NSCLC",
                classes=("LUSC", "LUAD"),
                counts=(512, 494),
                folds=4,
                seeds=(2025,),
                parts=(607, 141, 258),
                metrics=_SLIDE_METRICS,
                budget="authors",
                magnification=10,
                patches=3000,
                source="portal.gdc.cancer.gov: diagnostic slides (DX) of TCGA-LUSC and TCGA-LUAD",
            ),
            Cohort(
                name="panda",
                title="PANDA",
                classes=("NC", "G1", "G2", "G3", "G4", "G5"),
                counts=(2892, 2666, 1343, 1242, 1249, 1224),
                folds=5,
                seeds=(2025,),
                parts=(8494, 530, 1592),
                metrics=("balanced_accuracy", "kappa", "ace"),
                budget="equal",
                magnification=20,
                patches=450,
                ordinal=True,
                source="kaggle.com/c/prostate-cancer-grade-assessment: train_images and train.csv",
            ),
            Cohort(
                name="bracs",
                title="BRACS",
                classes=("AT", "BT", "MT"),
                counts=(89, 265, 193),
                folds=1,
                seeds=_BRACS_SEEDS,
                parts=(395, 65, 87),
                metrics=_SLIDE_METRICS,
                budget="equal",
                magnification=20,
                patches=6000,
                splitting="column",
                split_column="Set",
                regions=("bracs",),
                positive_classes=(0, 2),
                shared_case="warn",  # patient 67 trains and validates
                source="www.bracs.icar.cnr.it: whole-slide images and their annotated regions",
            ),
        )
    }
)


def find_cohort(name: str) -> Cohort:
    """Return a cohort of the paper.

    Raises:
        SettingsError: There is none of this name.

    Example:
        >>> find_cohort("bracs").classes
        ('AT', 'BT', 'MT')
    """
    if name not in COHORTS:
        raise SettingsError(
            f"Expected a cohort among {', '.join(COHORTS)}, but got '{name}'. Choose one of these."
        )
    return COHORTS[name]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        name: Its name on the command line and that of its runs.
        title: Its name in tables.
        model: A name of `sgpmil.list_models`.
        settings: Settings of the model that differ from its defaults.
        about: What it is, where the name does not say so.
    """

    name: str
    title: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    about: str = ""


ROWS: Mapping[str, Row] = MappingProxyType(
    {
        row.name: row
        for row in (
            Row("abmil", "ABMIL", "abmil"),
            Row("clam-sb", "CLAM", "clam-sb"),
            Row("transmil", "TransMIL", "transmil"),
            Row("dgrmil", "DGRMIL", "dgrmil"),
            Row("bayesmil", "BayesMIL", "bayesmil"),
            Row("mixmil", "MixMIL", "mixmil"),
            Row("agp", "AGP", "agp"),
            Row(
                "sgpmil-paper",
                "SGPMIL (paper)",
                "sgpmil",
                {"preset": "paper"},
                "the design and training of the paper",
            ),
            Row("sgpmil", "SGPMIL", "sgpmil", about="the default design of this package"),
        )
    }
)
"""Rows of the paper's tables in their order, the reference last."""

_WARM = {
    "epochs": 20,
    "optimiser": "adamw",
    "learning_rate": 6e-4,
    "schedule": "cosine",
    "warmup_epochs": 6,
    "warmup_learning_rate": 1e-5,
    "min_learning_rate": 1e-7,
    "bags_per_step": 1,
    "select": "last",
    "patience": 0,
}
_EQUAL = {
    "epochs": 20,
    "optimiser": "adamw",
    "learning_rate": 1e-4,
    "weight_decay": 5e-5,
    "schedule": "cosine",
    "warmup_epochs": 0,
    "min_learning_rate": 1e-5,
    "bags_per_step": 1,
    "accumulate_steps": 1,
    "gradient_clip": 1.0,
    "balanced_sampling": True,
    "select": "last",
    "patience": 0,
}
_PROCESS = {"learning_rate": 2e-4, "min_learning_rate": 1e-7}
_TRAINING: Mapping[Budget, Mapping[str, Mapping[str, Any]]] = {
    "authors": {
        "agp": {**_WARM, "weight_decay": 5e-5},
        "sgpmil-paper": {**_WARM, "weight_decay": 1e-5},
    },
    "equal": {
        # Its bag effect is standardised over the bags of a step: it cannot take one at a time. The
        # rate grows with the root of the bags, as everywhere in this package.
        "mixmil": {**_EQUAL, "bags_per_step": 64, "learning_rate": 8e-4, "min_learning_rate": 8e-5},
        "agp": {**_EQUAL, **_PROCESS},
        "sgpmil-paper": {**_EQUAL, **_PROCESS, "weight_decay": 1e-5},
        # Steps and weight decay are parts of the default design; again the root of 4 bags.
        "sgpmil": {"epochs": 20, "learning_rate": 4e-4, "warmup_epochs": 0},
    },
}


def choose_rows(names: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """Return the rows asked for, in the order of the table: by default those of the paper.

    Args:
        names: Names of `ROWS`, or of other models of `sgpmil.list_models`.

    Raises:
        SettingsError: A name is unknown.
    """
    others = [name for name in list_models() if name not in ROWS]
    unknown = [name for name in names if name not in ROWS and name not in others]
    if unknown:
        raise SettingsError(
            f"Expected models (`model`) among {', '.join((*ROWS, *others))}, but got "
            f"'{unknown[0]}'. Choose among these."
        )
    more = [Row(name, name, name) for name in others if name in names]
    paper = [row for row in ROWS.values() if not names or row.name in names]
    return (*more, *paper)


def row_variant(row: Row, cohort: Cohort) -> Variant:
    """Return a row as a model with the settings and the training it has on a cohort."""
    usual = _EQUAL if cohort.budget == "equal" else {}
    training = _TRAINING[cohort.budget].get(row.name, usual)
    return Variant(row.name, row.model, row.settings, training)


def row_training(
    row: Row,
    cohort: Cohort,
    *,
    seed: int,
    epochs: int | None = None,
    prevalence: str = "balanced",
    device: str = "auto",
) -> TrainingSettings:
    """Return the training of a row on a cohort.

    Args:
        row: The row.
        cohort: The cohort.
        seed: Seed of the training.
        epochs: Number of epochs instead of the row's own.
        prevalence: Class shares that the probabilities are for.
        device: Device to train on.

    Example:
        >>> row_training(ROWS["agp"], COHORTS["camelyon16"], seed=0).learning_rate
        0.0006
    """
    given = dict(row_variant(row, cohort).training)
    given |= {"seed": seed, "prevalence": prevalence, "device": device}
    if epochs is not None:
        given["epochs"] = epochs
    return resolve_training(row.model, given)
