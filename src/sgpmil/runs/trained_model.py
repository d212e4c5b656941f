"""A trained model, ready to predict: one model, or the folds of a run together.

`load` reads it from a run, a fold, a checkpoint, an exported folder or the Hugging Face hub::

    model = sgpmil.load("runs/colon")
    model.class_names, model.in_dim, len(model)
    table = model.predict(sgpmil.read_bags("features"))
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from math import fsum
from pathlib import Path
from typing import Any, overload

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset, content_of
from sgpmil.bags.feature_origin import FeatureOrigin, other_features
from sgpmil.bags.seen_slides import SeenSlides
from sgpmil.bags.target import Target
from sgpmil.errors import CheckpointError, PredictionError
from sgpmil.evaluation.novelty_warning import warn_where_most_are_unlike
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import (
    iter_predictions,
    num_training_slides,
    warn_of_other_features,
)
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.evaluation.seen_slides import mark_seen
from sgpmil.models.checkpoint import CheckpointInfo, load_model
from sgpmil.models.contract import MILModel
from sgpmil.models.prevalence import ClassShares, expected_shares
from sgpmil.models.registry import ModelLike
from sgpmil.runs.description import is_run
from sgpmil.runs.exported_folder import is_exported, read_exported
from sgpmil.runs.hub import fetch, is_hub_id
from sgpmil.runs.run import Run
from sgpmil.runs.seen_slides import seen_by


@dataclass(frozen=True, eq=False)
class TrainedModel(Sequence[MILModel]):
    """One model, or several that predict together; a sequence of them.

    Args:
        models: The models, in evaluation mode.
        infos: Description of each.
        names: Name of each: its fold.
        source: The place that it was loaded from.
        encoders: Names of the patch encoders, where known.
        seen: Slides that the models have seen.
    """

    models: tuple[MILModel, ...] = field(repr=False)
    infos: tuple[CheckpointInfo, ...] = field(repr=False)
    names: tuple[str, ...]
    source: str
    encoders: tuple[str, ...] = ()
    seen: SeenSlides = field(default=SeenSlides(), repr=False)

    @overload
    def __getitem__(self, index: int) -> MILModel: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[MILModel, ...]: ...
    def __getitem__(self, index: int | slice) -> MILModel | tuple[MILModel, ...]:
        return self.models[index]

    def __len__(self) -> int:
        return len(self.models)

    @property
    def target(self) -> Target:
        """Quantity that is predicted."""
        return self.models[0].target

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class, in the order of the probabilities."""
        return self.target.names

    @property
    def in_dim(self) -> int:
        """Number of features of an instance."""
        return self.models[0].in_dim

    @property
    def shares(self) -> ClassShares | None:
        """Class shares of the models, in the mean; None where they are not all known."""
        known = [model.shares for model in self.models if model.shares is not None]
        if len(known) < len(self.models):
            return None

        def mean(of: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
            return tuple(fsum(values) / len(values) for values in zip(*of, strict=True))

        return ClassShares(
            mean([shares.training for shares in known]),
            mean([shares.drawn for shares in known]),
            mean([shares.expected for shares in known]),
        )

    @property
    def num_training_slides(self) -> int:
        """Number of training slides that the p-values of novelty are of."""
        return num_training_slides(self.models)

    def other_features(self, bags: BagDataset) -> str:
        """Say in what bags are not like those of training (`sgpmil.bags.feature_origin`)."""
        return other_features((model.origin for model in self.models), bags)

    def check(self, bags: BagDataset) -> None:
        """Refuse bags that the model cannot predict.

        Raises:
            PredictionError: They do not have the number of features of the training.
        """
        if bags.feature_dim != self.in_dim:
            raise PredictionError(
                f"Expected bags of {self.in_dim} features, as the model was trained on, but these "
                f"have {bags.feature_dim}. Use embeddings of "
                f"{' or '.join(self.encoders) or 'the same encoder'}."
            )

    def iter_predictions(self, bags: Iterable[Bag], **options: Any) -> Iterator[Prediction]:
        """Predict bags one after another, and mark those that were seen in training.

        Args:
            bags: Bags, or a data set.
            options: Those of `sgpmil.evaluation.iter_predictions`.

        Raises:
            PredictionError: A bag does not have the number of features of the training.
        """
        digests = {}
        if isinstance(bags, BagDataset):
            self.check(bags)
            digests = bags.slide_digests() if self.seen else {}
        for prediction in iter_predictions(self.models, bags, **options):
            yield mark_seen(prediction, self.seen, digests.get(prediction.slide_id, ""))

    def provenance(
        self, bags: Iterable[Bag], *, precision: str = "auto", prevalence: Any = None, **_: Any
    ) -> PredictionProvenance:
        """Return the origin of predictions of bags by this model.

        Args:
            bags: The bags.
            precision: Arithmetic of the dense layers, as of `sgpmil.predict`.
            prevalence: Class shares among the bags, as of `sgpmil.predict`.
        """
        first, shares = self.infos[0], self.shares
        expected = None if shares is None else shares.expected
        if prevalence is not None:
            given = expected_shares(prevalence, self.target)
            expected = given if given is not None or shares is None else shares.training
        digests = bags.slide_digests() if isinstance(bags, BagDataset) else {}
        return PredictionProvenance(
            model=first.model,
            source=self.source,
            folds=self.names,
            encoders=bags.encoders() if isinstance(bags, BagDataset) else (),
            settings={"model": dict(first.settings)},
            version=version("sgpmil"),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            prevalence={}
            if expected is None
            else dict(zip(self.class_names, expected, strict=True)),
            precision=precision,
            seed=first.details.get("seed"),
            samples=first.settings.get("prediction_samples") or first.settings.get("num_samples"),
            train=self.seen.train_contents,
            validation=self.seen.validation_contents,
            slides={slide: content_of(digest) for slide, digest in digests.items()},
            novelty_slides=self.num_training_slides,
            other_features=self.other_features(bags) if isinstance(bags, BagDataset) else "",
        )

    def predict(self, bags: Iterable[Bag], *, warn: bool = True, **options: Any) -> PredictionTable:
        """Predict bags, labelled or not, as ``sgpmil predict`` does.

        The labels of a data set with other names or another order of the classes are translated by
        name.

        Args:
            bags: Bags, or a data set.
            warn: Whether to warn where most of the slides are unlike the training slides
                (`NoveltyWarning`), or their features are of another encoder, magnification or
                patch size (`FeatureOriginWarning`).
            options: Those of `sgpmil.predict`: `device`, `precision`, `prevalence`,
                `with_instances`, `novelty`, `on_bag`.

        Raises:
            PredictionError: A bag does not have the number of features of the training.
            LabelError: A label of the data set is not among the class names.
            SettingsError: The prevalence does not fit the classes.
        """
        if isinstance(bags, BagDataset) and bags.target.names:
            bags = bags.with_target(self.target)
        if warn and isinstance(bags, BagDataset):
            warn_of_other_features(self.models, bags)
        provenance = self.provenance(bags, **options)
        found = tuple(self.iter_predictions(bags, **options))
        table = PredictionTable(found, self.target, provenance)
        if warn:
            warn_where_most_are_unlike(table, self.num_training_slides)
        return table


def load(
    source: Path | str,
    *,
    revision: str | None = None,
    model: ModelLike | None = None,
    **settings: Any,
) -> TrainedModel:
    """Load a trained model, on the CPU.

    Args:
        source: A run, whose folds then predict together; the folder of one fold; a
            ``.safetensors`` file; a folder of ``sgpmil export``; or the name of such a folder on
            the Hugging Face hub (``user/name``), which is fetched.
        revision: Commit, branch or tag on the hub.
        model: Class of a model that is not registered.
        settings: Settings to replace; a kernel of the user's own must be passed again here.

    Raises:
        CheckpointError: The model cannot be read or fetched, or the run has a fold that is not
            done, or its folds' classes or features differ.
        MissingPartError: The model is on the hub, and huggingface_hub is not installed.
        SettingsError: A setting to replace does not exist or is impossible.
    """
    place = Path(source)
    if not place.exists() and is_hub_id(place.as_posix()):
        found = load(fetch(place.as_posix(), revision), model=model, **settings)
        return replace(found, source=place.as_posix())
    if is_exported(place):
        models, described = read_exported(place, model=model, **settings)
        return TrainedModel(
            models,
            described.infos,
            described.names,
            str(source),
            described.encoders,
            described.seen,
        )
    names, checkpoints = _checkpoints(place)
    pairs = [load_model(path, model=model, **settings) for path in checkpoints]
    if len({(network.target, network.in_dim) for network, _ in pairs}) > 1:
        raise CheckpointError(
            f"Expected folds of the same classes and features in {source}, but they differ. "
            f"Name a fold, such as {place / 'fold-0'}."
        )
    return TrainedModel(
        tuple(network for network, _ in pairs),
        tuple(info for _, info in pairs),
        names,
        str(source),
        FeatureOrigin.joined(network.origin for network, _ in pairs).encoders,
        seen_by(place),
    )


def _checkpoints(place: Path) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return names and places of the checkpoints of a run, or of the only one."""
    if not place.exists():
        raise CheckpointError(
            f"Expected a run, a fold, a checkpoint or an exported folder at {place}, but there is "
            "nothing. Check the path."
        )
    if not is_run(place):
        name = place.resolve().name if place.is_dir() else place.stem
        return (name.removeprefix("fold-"),), (place,)
    run = Run.open(place)
    if run.unfinished:
        raise CheckpointError(
            f"Expected all folds of {place} to be done, but {', '.join(run.unfinished)} "
            f"{'is' if len(run.unfinished) == 1 else 'are'} not. "
            f"Resume the run (`resume=True`), or name a fold, such as {place / 'fold-0'}."
        )
    return tuple(run.folds), tuple(fold.path for fold in run.folds.values())
