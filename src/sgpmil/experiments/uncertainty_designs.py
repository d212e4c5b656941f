"""Designs of the uncertainty study: models with settings, ensembles and dropout in prediction.

`train_design` trains a design on the bags of a set. `DESIGNS` has those that the study compares.
"""

import copy
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import SettingsError
from sgpmil.evaluation.ensemble import mixture
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.uncertainty_sets import UncertaintySet
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import list_models, resolve_settings, unknown_name
from sgpmil.processes import compute_device
from sgpmil.shapes import Float
from sgpmil.training.classifier import SGPMILClassifier
from sgpmil.training.fit import fit
from sgpmil.training.settings import TrainingSettings, resolve_training

_MEMBER_STEP = 1000
"""Difference of the seeds of an ensemble's members: larger than the number of seeds of a study."""


@dataclass(frozen=True)
class Design:
    """A model with settings, trained and used in one way, under a name.

    Args:
        name: Its name, and that of its folder of results.
        model: A name of `sgpmil.list_models`.
        settings: Settings of the model that differ from its defaults.
        training: Training settings that differ from the model's own.
        members: Number of models that are trained with different seeds; probabilities are means
            over them.
        dropout_samples: Number of predictions with dropout, whose mean is taken; 0 predicts
            without dropout.
        as_classifier: Whether to train by ``SGPMILClassifier(random_state=seed).fit(bags,
            labels)``, as a user would who changes nothing.
    """

    name: str
    model: str = "sgpmil"
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1
    dropout_samples: int = 0
    as_classifier: bool = False

    def __post_init__(self) -> None:
        if self.members < 1 or self.dropout_samples < 0:
            raise SettingsError(
                f"Expected members >= 1 and dropout_samples >= 0 of the design '{self.name}', but "
                f"got {self.members} and {self.dropout_samples}."
            )
        if self.as_classifier and (self.settings or self.training or self.members > 1):
            raise SettingsError(
                f"Expected no settings of the design '{self.name}', which is trained as "
                "SGPMILClassifier is by itself. Leave them out, or leave out as_classifier."
            )

    def shortened(self) -> "Design":
        """Return the design with two epochs, members and samples at most, to try the study."""
        if self.as_classifier:
            return self
        return replace(
            self,
            training={**self.training, "epochs": 2, "warmup_epochs": 0},
            members=min(2, self.members),
            dropout_samples=min(2, self.dropout_samples),
        )

    def resolved(self) -> dict[str, Any]:
        """Return every setting that decides the result, those with default values included.

        Raises:
            SettingsError: The model or a setting does not exist, or a value is impossible.
        """
        training = asdict(resolve_training(self.model, self.training))
        for name in ("seed", "device"):  # the seed is the job's; the device decides nothing
            del training[name]
        return {
            "model": self.model,
            "model_settings": vars(resolve_settings(self.model, self.settings)),
            "training": training,
            "members": self.members,
            "dropout_samples": self.dropout_samples,
            "as_classifier": self.as_classifier,
        }


# With its training written out, so that the row stays the same when the defaults change; a test
# has the settings of the preset.
_BEFORE: dict[str, Any] = {"preset": "points"}
_BEFORE_TRAINING: dict[str, Any] = {
    "epochs": 30,
    "optimiser": "adamw",
    "learning_rate": 4e-4,
    "weight_decay": 1e-5,
    "betas": (0.9, 0.999),
    "schedule": "cosine",
    "warmup_epochs": 6,
    "warmup_learning_rate": 1e-5,
    "min_learning_rate": 1e-7,
    "bags_per_step": 2,
    "accumulate_steps": 1,
    "gradient_clip": 1.0,
    "balanced_sampling": True,
    "select": "last",
    "patience": 0,
}

_DEEP: dict[str, Any] = {"hidden_dims": (768, 384, 256)}
_DEEP_TRAINING: dict[str, Any] = {**_BEFORE_TRAINING, "learning_rate": 3e-4, "bags_per_step": 4}

DESIGNS: dict[str, Design] = {
    design.name: design
    for design in (
        Design("abmil", "abmil"),
        Design("abmil-ensemble", "abmil", members=5),
        # With SGPMIL's embedding and schedule, so that the two differ in the attention alone.
        Design("abmil-deep", "abmil", _DEEP, _DEEP_TRAINING),
        Design("abmil-deep-decay", "abmil", _DEEP, {**_DEEP_TRAINING, "weight_decay": 0.1}),
        Design("abmil-deep-ensemble", "abmil", _DEEP, _DEEP_TRAINING, members=5),
        Design("abmil-deep-dropout", "abmil", _DEEP, _DEEP_TRAINING, dropout_samples=30),
        Design("bayesmil", "bayesmil"),
        Design("mixmil", "mixmil"),
        Design("agp", "agp"),
        Design("sgpmil-1", "sgpmil", _BEFORE, {**_BEFORE_TRAINING, "prevalence": "balanced"}),
        Design("default", as_classifier=True),
    )
}
"""Designs by name. ``default`` is what a user gets who changes nothing."""


def find_design(name: str) -> Design:
    """Return a design of `DESIGNS`, or a registered model with its own settings.

    Raises:
        SettingsError: There is neither.
    """
    if name in DESIGNS:
        return DESIGNS[name]
    if name in list_models():
        return Design(name, name)
    raise SettingsError(unknown_name("design", name, [*DESIGNS, *list_models()]))


def parse_design(text: str) -> Design:
    """Read a design from text, ``NAME:key=value,...``.

    Keys are settings of the model, ``training.`` with a training setting, and the fields of
    `Design` (``model``, ``members``, ``dropout_samples``).

    Raises:
        SettingsError: The text has another form, or a value is impossible.

    Example:
        >>> parse_design("wide:num_inducing=160,training.epochs=60").training
        {'epochs': 60}
    """
    from sgpmil.experiments.recipe import parse_value

    name, colon, values = text.partition(":")
    content: dict[str, Any] = {"settings": {}, "training": {}}
    # A comma within brackets belongs to a list.
    for one in re.split(r",(?![^\[]*\])", values) if values else ():
        key, equals, value = (word.strip() for word in one.partition("="))
        if not (name and colon and equals and key):
            raise SettingsError(f"Expected `design` as NAME:key=value,..., but got '{text}'.")
        section, _, inner = key.replace("-", "_").rpartition(".")
        if not section and inner in _OWN_KEYS:
            content[inner] = parse_value(value, text)
        elif section in ("", "settings", "training"):
            content[section or "settings"][inner] = parse_value(value, text)
        else:
            raise SettingsError(
                f"Expected settings of the model or training.NAME in the design '{name}', but got "
                f"'{key}'."
            )
    return _from_content(name, content)


_OWN_KEYS = ("model", "members", "dropout_samples")


def read_designs(path: Path) -> list[Design]:
    """Read designs from a YAML file: a section a design, with the fields of `Design`.

    Raises:
        SettingsError: The file cannot be read, or a field is unknown or impossible.
    """
    from sgpmil.experiments.recipe import read_yaml

    try:
        content = read_yaml(path, "designs")
    except FileNotFoundError as error:
        raise SettingsError(f"Expected designs as YAML in {path}, but there is none.") from error
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise SettingsError(f"Expected a section for each design in {path}.")
    return [_from_content(str(name), values) for name, values in content.items()]


def _from_content(name: str, content: Mapping[str, Any]) -> Design:
    from sgpmil.experiments.recipe import parse_value

    known = [*_OWN_KEYS, "settings", "training"]
    for key in content:
        if key not in known:
            raise SettingsError(unknown_name(f"field of the design '{name}'", str(key), known))
    sections = {
        key: {
            # YAML takes 3e-4, without a point, for text.
            inner: parse_value(value, inner) if isinstance(value, str) else value
            for inner, value in (content.get(key) or {}).items()
        }
        for key in ("settings", "training")
    }
    design = Design(name, **{**content, **sections})
    design.resolved()  # refuses what is unknown before anything is trained
    return design


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained design.

    Args:
        models: Its models: the members of an ensemble, or one.
        seconds_per_epoch: Median seconds of an epoch, of all members together; None where it is
            not known.
        dropout_samples: Number of predictions with dropout; 0 predicts without.
        device: Device that predicts; by default that of the models, which training leaves on the
            CPU.
    """

    models: tuple[MILModel, ...]
    seconds_per_epoch: float | None = None
    dropout_samples: int = 0
    device: str | None = None

    @property
    def model(self) -> MILModel:
        """The first model, whose process and prototypes are looked at."""
        return self.models[0]

    def predict(self, bags: BagDataset) -> PredictionTable:
        """Predict bags: means over members and over samples of dropout."""
        tables = [predict(model, bags, device=self.device, warn=False) for model in self.models]
        first = tables[0].predictions
        if self.dropout_samples:
            samples = [
                sample
                for model in self.models
                for sample in dropout_predictions(model, bags, self.dropout_samples, self.device)
            ]
            scores = [own.instances for own in first]
            means = Prediction.from_batch(first, np.stack(samples, axis=1), scores)
        else:
            rows = zip(*(table.predictions for table in tables), strict=True)
            means = [mixture(row) for row in rows]
        found = (
            # Members have the same training bags, and so the same novelty but for the draw.
            replace(mean, novel_share=own.novel_share, novelty_p=own.novelty_p)
            for mean, own in zip(means, first, strict=True)
        )
        return PredictionTable(tuple(found), tables[0].target)


class _LastingDropout(nn.Module):
    """Dropout that also acts in prediction."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, values: Tensor) -> Tensor:
        return nn.functional.dropout(values, self.share, training=True)


def dropout_predictions(
    model: MILModel, bags: BagDataset, num_samples: int, device: str | None = None
) -> list[Float[np.ndarray, "n C"]]:
    """Predict bags several times with dropout (Gal and Ghahramani, 2016).

    Raises:
        SettingsError: The model has no dropout.
    """
    lasting = copy.deepcopy(model)
    places = [
        (parent, name, child.p)
        for parent in lasting.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Dropout) and child.p > 0
    ]
    if not places:
        raise SettingsError(
            f"Expected a model with dropout, but {model.name} has none. Use dropout_samples 0."
        )
    for parent, name, share in places:
        setattr(parent, name, _LastingDropout(share))
    found = []
    with torch.random.fork_rng():
        for sample in range(num_samples):
            torch.manual_seed(sample)
            table = predict(lasting, bags, with_instances=False, novelty=False, device=device)
            found.append(table.probs)
    return found


def train_design(design: Design, data: UncertaintySet, *, device: str = "auto") -> Trained:
    """Train a design on a set, with the set's seed.

    Args:
        design: The design.
        data: The set. Its validation bags are used only where the design chooses an epoch by them.
        device: Device to train on.
    """
    if design.as_classifier:
        return _train_as_classifier(design, data, device)
    models, seconds = [], []
    for member in range(design.members):
        training = replace(
            resolve_training(design.model, design.training),
            seed=data.seed + _MEMBER_STEP * member,
            device=device,
        )
        model, time_of_epoch = _fit(design, data, training)
        models.append(model)
        seconds.append(time_of_epoch)
    known = [value for value in seconds if value is not None]
    return Trained(
        tuple(models),
        sum(known) if len(known) == len(seconds) else None,
        design.dropout_samples,
        str(compute_device(device)),
    )


def _fit(
    design: Design, data: UncertaintySet, training: TrainingSettings
) -> tuple[MILModel, float | None]:
    ends: list[float] = []
    chooses = training.select == "best" or training.patience > 0
    model = fit(
        data.train,
        val=data.val if chooses else None,
        model=design.model,
        model_settings=design.settings,
        training=training,
        on_epoch=lambda _: ends.append(time.perf_counter()),
    )
    epochs = [after - before for before, after in pairwise(ends)]
    return model, statistics.median(epochs) if epochs else None


def _train_as_classifier(design: Design, data: UncertaintySet, device: str) -> Trained:
    bags = [bag.features.numpy() for bag in data.train]
    classifier = SGPMILClassifier(random_state=data.seed)
    if device != "auto":
        classifier.set_params(device=device)
    start = time.perf_counter()
    classifier.fit(bags, data.train.labels)
    seconds = time.perf_counter() - start
    epochs = resolve_training(design.model, None).epochs
    return Trained((classifier.model_,), seconds / epochs, 0, str(compute_device(device)))
