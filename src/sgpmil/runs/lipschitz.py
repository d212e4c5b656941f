"""Lipschitz bounds of the models of a run.

The command ``sgpmil lipschitz`` calls `bound_run`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sgpmil.errors import CheckpointError, SettingsError
from sgpmil.evaluation.lipschitz import LipschitzPath, lipschitz_paths
from sgpmil.evaluation.lipschitz_gradients import largest_gradients
from sgpmil.options import Options
from sgpmil.runs.description import is_run
from sgpmil.runs.run import Run
from sgpmil.runs.trained_model import load


@dataclass(frozen=True, kw_only=True)
class LipschitzOptions(Options):
    """Options of `bound_run`.

    Args:
        run: A run, the folder of a fold, a .safetensors file, or a folder of sgpmil export.
        raw_features: Bound changes of the raw features, not of standardised ones.
        gradients: Check the bounds: also look for a large gradient of each path, which must not
            exceed its bound. Of standardised features only.
        figure: Draw the bounds, and the gradients if asked for, into this PNG file.
    """

    run: Path
    raw_features: bool = False
    gradients: bool = False
    figure: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gradients and self.raw_features:
            raise SettingsError(
                "Expected `gradients` or `raw_features`, but got both: gradients are looked for in "
                "standardised features. Leave one out."
            )


@dataclass(frozen=True, slots=True)
class RunBounds:
    """Bounds of each trained model of a run.

    Args:
        models: Names of the models.
        paths: Bounds of each model.
        num_untrained: Number of folds without a model.
        gradients: Largest gradient norm found of each path of each model; empty where it was not
            asked for.
    """

    models: tuple[str, ...]
    paths: tuple[tuple[LipschitzPath, ...], ...]
    num_untrained: int = 0
    gradients: tuple[Mapping[str, float], ...] = ()


def bound_run(options: LipschitzOptions) -> RunBounds:
    """Bound how much the models of a run amplify a change of an instance (sgpmil, agp, abmil).

    Raises:
        CheckpointError: There is no trained model, or no bound for this kind of model.
    """
    run, num_untrained = options.run, 0
    if is_run(run):
        folds = Run.open(run).folds
        trained = {name: f.checkpoint for name, f in folds.items() if f.checkpoint}
        if not trained:
            raise CheckpointError(
                f"Expected a trained fold in {run}, but got none. Continue the run (`resume=True`)."
            )
        num_untrained = len(folds) - len(trained)
        models = {f"fold {name}": load(path)[0] for name, path in trained.items()}
    else:
        found = load(run)
        name = run.name if run.is_dir() else run.stem
        several = zip(found.names, found, strict=True)
        models = {f"fold {one}": m for one, m in several} if len(found) > 1 else {name: found[0]}
    paths = [
        tuple(lipschitz_paths(model, raw_features=options.raw_features))
        for model in models.values()
    ]
    gradients = [largest_gradients(model) for model in models.values()] if options.gradients else []
    return RunBounds(tuple(models), tuple(paths), num_untrained, tuple(gradients))
