"""A classifier of bags with the methods of scikit-learn."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import type_of_target

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import LabelError
from sgpmil.evaluation.prediction import ScoreKind
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.models.contract import MILModel
from sgpmil.models.prevalence import Prevalence
from sgpmil.models.registry import ModelLike
from sgpmil.training.fit import fit
from sgpmil.training.settings import TrainingSettings, resolve_training


class SGPMILClassifier(ClassifierMixin, BaseEstimator):
    """Classify bags given as a list of arrays, with uncertainty.

    Args:
        model: A name of `sgpmil.list_models`, a class of models, or a model, which is copied.
        epochs: Number of epochs; that of `training` where None, as the next five.
        learning_rate: Peak learning rate.
        bags_per_step: Bags of an optimiser step; where no learning rate is given, the model's
            own is scaled with it.
        random_state: Seed.
        device: As in `TrainingSettings`.
        prevalence: Class shares that the probabilities are for: those of the training bags
            (``training``) where None; ``balanced``; the share of the second of two classes, such
            as 0.1; or a share for each class, by name.
        classes: The classes in their order; sorted where None.
        ordinal: Whether the classes are ordered, such as grades, from the lowest to the highest.
            Their order must be given, or known (`sgpmil.bags.class_scales`).
        model_settings: Settings of the model that differ from its defaults.
        training: Training settings; the model's own where None.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> bags = [rng.normal(size=(5, 3)) + 3 * (i % 2) for i in range(8)]
        >>> labels = ["low", "high"] * 4
        >>> classifier = SGPMILClassifier(epochs=8).fit(bags, labels)
        >>> classifier.predict(bags[:2]).tolist()
        ['low', 'high']
    """

    def __init__(
        self,
        *,
        model: ModelLike = "sgpmil",
        epochs: int | None = None,
        learning_rate: float | None = None,
        bags_per_step: int | None = None,
        random_state: int | None = None,
        device: str | None = None,
        prevalence: Prevalence | None = None,
        classes: Sequence[Any] | None = None,
        ordinal: bool = False,
        model_settings: Mapping[str, Any] | None = None,
        training: TrainingSettings | Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.bags_per_step = bags_per_step
        self.random_state = random_state
        self.device = device
        self.prevalence = prevalence
        self.classes = classes
        self.ordinal = ordinal
        self.model_settings = model_settings
        self.training = training

    def fit(self, bags: Sequence[Any], labels: Sequence[Any] | np.ndarray) -> "SGPMILClassifier":
        """Train on bags, each an array of shape (instances, features), and a label a bag.

        Raises:
            BagError: A bag is empty, not finite, or has another number of features.
            LabelError: Labels are no classes (fractions, NaN or several a bag), there is only one
                class, a label is not among the classes that were given, or the order of ordered
                classes is not known.
        """
        if self.classes is None:
            _refuse_no_classes(labels)
        self.classes_, indices = np.unique(np.asarray(labels), return_inverse=True)
        names = tuple(str(name) for name in self.classes_)
        if self.classes is not None or self.ordinal:
            asked_order = None if self.classes is None else [str(name) for name in self.classes]
            order = ClassTarget.of(names, asked_order, ordinal=self.ordinal).names
            known = dict(zip(names, self.classes_, strict=True))
            indices = np.array([order.index(name) for name in names])[indices]
            self.classes_ = np.array(
                [known[name] for name in order] if self.classes is None else self.classes
            )
            names = order
        data = BagDataset.from_arrays(
            bags, indices.tolist(), class_names=names, ordinal=self.ordinal
        )
        asked: dict[str, Any] = {
            "epochs": self.epochs,
            "learning_rate": self.learning_rate,
            "bags_per_step": self.bags_per_step,
            "seed": self.random_state,
            "device": self.device,
            "prevalence": self.prevalence,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        settings = (
            replace(self.training, **given)
            if isinstance(self.training, TrainingSettings)
            else resolve_training(self.model, {**(self.training or {}), **given})
        )
        self.model_: MILModel = fit(
            data, model=self.model, model_settings=self.model_settings, training=settings
        )
        return self

    def predictions(self, bags: Sequence[Any]) -> PredictionTable:
        """Predict bags with uncertainty and instance scores.

        Raises:
            NotFittedError: `fit` was not called.
            PredictionError: The number of features is not that of the training bags.
        """
        if not hasattr(self, "model_"):
            raise NotFittedError("Expected a fitted classifier. Call fit(bags, labels) first.")
        return predict(self.model_, BagDataset.from_arrays(bags), prevalence=self.prevalence)

    def predict_proba(self, bags: Sequence[Any]) -> np.ndarray:
        """Return class probabilities, averaged over the posterior, a row a bag."""
        return self.predictions(bags).probs

    def predict_with_uncertainty(self, bags: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return class probabilities and their posterior standard deviations."""
        table = self.predictions(bags)
        return table.probs, table.std

    def predict(self, bags: Sequence[Any]) -> np.ndarray:
        """Return the most probable class of each bag."""
        indices = self.predict_proba(bags).argmax(1)
        return self.classes_[indices]

    def instance_scores(
        self, bags: Sequence[Any], score: ScoreKind = "attention"
    ) -> list[np.ndarray]:
        """Return the score of each instance, an array a bag.

        Args:
            bags: The bags.
            score: ``attention``, where the model looked; ``evidence``, an instance's share in the
                margin of a class; ``single``, the log-odds of that class for a bag of the instance
                alone; or ``novelty``, how unlike the training instances it is. The class is the
                second of two, or the predicted one of more.

        Raises:
            PredictionError: The model does not give this score.
        """
        return [
            p.instances.score(score, 1 if len(self.classes_) == 2 else p.predicted_class)
            for p in self.predictions(bags).predictions
            if p.instances is not None
        ]


def _refuse_no_classes(labels: Sequence[Any] | np.ndarray) -> None:
    """Refuse labels that scikit-learn would not classify either.

    Raises:
        LabelError: They are not one class a bag.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of many classes among few bags
        try:
            kind = type_of_target(labels)
        except ValueError as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise LabelError(
                f"Expected one class a bag, as text or whole numbers, but got labels that "
                f"scikit-learn refuses: {reason}. Give every bag a label."
            ) from error
    if kind not in ("binary", "multiclass"):
        raise LabelError(
            f"Expected one class a bag, as text or whole numbers, but got labels that scikit-learn "
            f"calls '{kind}'. Divide measurements into classes, or, if these are classes, give "
            "them as `classes`."
        )
