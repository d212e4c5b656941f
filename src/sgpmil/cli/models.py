"""`sgpmil predict`, `export`, `lipschitz` and `import-released`: commands on trained models."""

import shlex

from sgpmil.cli.commands import command
from sgpmil.cli.output import console, facts, grid
from sgpmil.evaluation.lipschitz import summarise_paths
from sgpmil.models.released import ReleasedOptions, convert_released
from sgpmil.notebook import counted
from sgpmil.report.export import ExportOptions, export_model
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.study_figures import BoundRow, bounds_figure
from sgpmil.runs.lipschitz import LipschitzOptions, bound_run
from sgpmil.runs.predict import PredictedFolder, PredictOptions, predict_folder


@command(PredictOptions, arguments=["model", "features"])
def predict(options: PredictOptions) -> None:
    """Predict slides.

    Example: sgpmil predict runs/latest embeddings --out predictions

    Example: sgpmil predict runs/latest/fold-0 embeddings --coverage 0.9 --defer 0.1
    """
    predicted = predict_folder(options, show_progress=True)
    _print_least_certain(predicted)
    for note in predicted.notes:
        console.print(note)
    if predicted.warning:
        console.print(f"Warning: {predicted.warning}", style="yellow")
    scores = ", attention/" if options.instances else ""
    console.print(f"Written to {options.out}: predictions.parquet, predictions.csv{scores}")
    if options.labels is not None and predicted.num_unseen:
        console.print(f"Next: sgpmil evaluate {shlex.quote(str(options.out))}")
    elif options.labels is not None:
        run = shlex.quote(str(options.model))
        console.print(
            "The model was trained on all of these slides: nothing can be measured on them. Its "
            f"own test slides can: sgpmil evaluate {run}"
        )


def _print_least_certain(predicted: PredictedFolder) -> None:
    shown = predicted.least_certain
    title = counted(predicted.num_slides, "slide")
    if len(shown) < predicted.num_slides:
        title += f"; the {len(shown)} least certain"
    else:
        title += ", the least certain first"
    rows = [
        (
            p.slide_id,
            f"{predicted.target.decode(p.predicted_class)} "
            f"{p.probability_text(p.predicted_class, digits=3)}",
            *decision.columns.values(),
        )
        for p, decision in shown
    ]
    columns = [name.replace("_", " ") for name in shown[0][1].columns] if shown else []
    if columns:
        grid(title, ["slide", "predicted", *columns], rows)
    else:
        facts(title, [(slide_id, text) for slide_id, text, *_ in rows])


@command(ExportOptions, arguments=["model"])
def export(options: ExportOptions) -> None:
    """Export a model.

    The folder has the layout of the Hugging Face hub: weights, configuration and a model card.
    Python loads it with sgpmil.load, and sgpmil predict takes it in the place of a run.

    Example: sgpmil export runs/latest --to model

    Example: sgpmil export runs/latest/fold-0 --to model --push-to-hub user/name --private
    """
    exported = export_model(options)
    folds = f"{len(exported.model)} folds" if len(exported.model) > 1 else "1 model"
    facts(
        f"{exported.path}: {folds}, {counted(exported.model.in_dim, 'feature')}, classes "
        f"{', '.join(exported.model.class_names)}",
        [(name, _size(size)) for name, size in exported.files],
    )
    if not exported.model.encoders:
        console.print(
            "The embeddings do not state their encoder: add --encoder NAME, so that users know."
        )
    if exported.address:
        console.print(f"Pushed to {exported.address}")
    console.print(f"Next: sgpmil predict {shlex.quote(str(exported.path))} FEATURES")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


@command(LipschitzOptions, arguments=["run"])
def lipschitz(options: LipschitzOptions) -> None:
    """Bound how much a model amplifies a change of an instance.

    The models are sgpmil, agp and abmil.

    Example: sgpmil lipschitz runs/latest

    Example: sgpmil lipschitz runs/latest --gradients --figure bounds.png
    """
    found = bound_run(options)
    if found.num_untrained:
        total = found.num_untrained + len(found.models)
        console.print(f"{found.num_untrained} of {total} folds are not trained.")
    has_several = len(found.models) > 1
    grid(
        f"{options.run}: Lipschitz bounds on "
        f"{'raw' if options.raw_features else 'standardised'} features",
        ["path", *found.models, *(["mean ± sd"] if has_several else [])],
        [
            [
                summary.name,
                *(f"{value:.4g}" for value in summary.values),
                *([f"{summary.mean:.4g} ± {summary.sd:.2g}"] if has_several else []),
            ]
            for summary in summarise_paths(found.paths)
        ],
    )
    if found.gradients:
        grid(
            "Largest gradient norms found",
            ["path", *found.models],
            [
                [name, *(f"{one[name]:.4g}" for one in found.gradients)]
                for name in found.gradients[0]
            ],
        )
    for path in found.paths[0]:
        console.print(f"{path.name}: {' × '.join(factor.name for factor in path.factors)}")
    console.print("'all layers' is no bound: it leaves out the pooling and the posterior.")
    if options.figure is not None:
        rows = [
            BoundRow(
                path.name,
                "",
                [paths[number].bound for paths in found.paths],
                [one[path.name] for one in found.gradients if path.name in one],
            )
            for number, path in enumerate(found.paths[0])
        ]
        save_figure(bounds_figure(rows, f"Lipschitz bounds, {options.run.name}"), options.figure)
        console.print(f"Written to {options.figure}")


@command(ReleasedOptions, arguments=["checkpoint", "out"], lists=["classes"])
def import_released(options: ReleasedOptions) -> None:
    """Convert a checkpoint of the released code.

    Example: sgpmil import-released last.ckpt model.safetensors --classes normal,tumor
    """
    convert_released(options)
    console.print(f"Written to {options.out}. Next: sgpmil predict {options.out} FEATURES")
