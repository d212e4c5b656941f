"""The demo: train, predict and measure SGPMIL on bags of real handwritten digits."""

from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.figure import Figure

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.splits import make_kfold
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.experiments.digits import IMAGE_SIDE, digit_bags
from sgpmil.report.figures.attention_figures import AttentionPanel, attention_figure
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.run_figures import write_run_figures
from sgpmil.training.cross_validation import CrossValidation, cross_validate
from sgpmil.training.settings import TrainingSettings, default_training

__all__ = ["DEMO_TRAINING", "Demo", "run_demo"]

DEMO_TRAINING = TrainingSettings(epochs=30, bags_per_step=4)


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo leaves.

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
    """Cross-validate a model on digit bags and draw what it saw.

    Args:
        run: Folder of the run.
        model: A name of `sgpmil.list_models`.
        num_folds: Number of folds.
        epochs: Number of epochs; the model's own where None.
        seed: Seed of bags, folds and training.
        resume: Go on with an interrupted run.
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
