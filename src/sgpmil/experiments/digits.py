"""Bags of handwritten digits, and the demo that trains on them.

scikit-learn contains 1,797 digits of 8×8 pixels (UCI optical recognition). A bag is positive when
it contains the target digit, so the label of every instance is known. No digit is in two bags:
folds over bags share no image.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.splits import make_kfold
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.patch_figures import AttentionPanel, attention_figure
from sgpmil.report.figures.run_figures import write_run_figures
from sgpmil.training.cross_validation import CrossValidation, cross_validate
from sgpmil.training.settings import TrainingSettings, default_training

IMAGE_SIDE = 8


def digit_bags(
    *, target: int = 9, bag_size: int = 9, num_bags: int = 180, seed: int = 0
) -> BagDataset:
    """Deal digits into bags, half of them with one or two of the target digit.

    Args:
        target: The digit that makes a bag positive.
        bag_size: Digits of a bag.
        num_bags: Number of bags; scikit-learn's digits suffice for 180 of nine.
        seed: Seed of the dealing.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(data.target))
    targets = [i for i in order if data.target[i] == target]
    others = [i for i in order if data.target[i] != target]
    features, labels, instance_labels, coords = [], [], [], []
    for number in range(num_bags):
        positive = number % 2
        count = int(generator.integers(1, 3)) if positive else 0
        chosen = [targets.pop() for _ in range(count)]
        chosen += [others.pop() for _ in range(bag_size - count)]
        chosen = generator.permutation(chosen).tolist()
        features.append(data.data[chosen].astype(np.float32))
        labels.append(positive)
        instance_labels.append((data.target[chosen] == target).astype(np.int64))
        columns = int(np.ceil(np.sqrt(bag_size)))
        grid = [(IMAGE_SIDE * (k % columns), IMAGE_SIDE * (k // columns)) for k in range(bag_size)]
        coords.append(np.array(grid))
    return BagDataset.from_arrays(
        features,
        labels,
        slide_ids=[f"digits-{number:03d}" for number in range(num_bags)],
        class_names=(f"no {target}", f"has a {target}"),
        instance_labels=instance_labels,
        coords=coords,
    )


DEMO_TRAINING = TrainingSettings(epochs=30, bags_per_step=4)


@dataclass(frozen=True, slots=True)
class Demo:
    """Result of the demo.

    Args:
        result: The cross-validation.
        figures: The figures written.
    """

    result: CrossValidation
    figures: tuple[Path, ...]


def run_demo(
    run: Path,
    *,
    model: str = "sgpmil",
    num_folds: int = 5,
    epochs: int | None = None,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Demo:
    """Cross-validate a model on digit bags and draw its attention.

    Args:
        run: Folder of the run.
        model: A name of `sgpmil.list_models`.
        num_folds: Number of folds.
        epochs: Number of epochs; the model's own where None.
        seed: Seed of bags, folds and training.
        resume: Continue an interrupted run.
        overwrite: Replace an existing run.
        progress: Whether to show a progress bar.
    """
    bags = digit_bags(seed=seed)
    folds = make_kfold(bags.label_table(), num_folds=num_folds, seed=seed)
    own = DEMO_TRAINING if model == "sgpmil" else default_training(model)
    result = cross_validate(
        bags,
        folds,
        model=model,
        training=replace(own, seed=seed, epochs=own.epochs if epochs is None else epochs),
        run=run,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
    )
    figures = [
        path
        for path in write_run_figures(run / "figures", result.predictions)
        if not path.name.startswith("attention-")
    ]
    attention = run / "figures" / "attention.png"
    save_figure(_attention(bags, result.predictions[0]), attention)
    return Demo(result, (*figures, attention))


def _attention(bags: BagDataset, table: PredictionTable) -> Figure:
    chosen = [p for p in table.predictions if p.label == 1][:3]
    chosen += [p for p in table.predictions if p.label == 0][:1]
    panels = []
    for prediction in chosen:
        features = bags[bags.index(prediction.slide_id)].features.numpy()
        if prediction.instances is None:
            continue
        panels.append(
            AttentionPanel(
                title=f"{prediction.slide_id} ({bags.target.decode(prediction.label or 0)}): "
                f"p({bags.target.names[1]}) = {prediction.probability_text(1)}",
                images=features.reshape(-1, IMAGE_SIDE, IMAGE_SIDE),
                scores=prediction.instances,
                class_index=1,
            )
        )
    return attention_figure(panels)
