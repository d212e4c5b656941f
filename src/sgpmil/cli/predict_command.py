"""`sgpmil predict` and `import-released`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sgpmil.bags.target import ClassTarget
from sgpmil.cli.decision_options import (
    Calibration,
    Conformal,
    Coverage,
    Defer,
    DeferBy,
    read_rules,
)
from sgpmil.cli.options import (
    CaseColumn,
    Device,
    Features,
    LabelColumn,
    Labels,
    Overwrite,
    SkipBad,
    SkipMissing,
    SlideColumn,
    SlideTable,
)
from sgpmil.cli.output import console, counting, facts, grid
from sgpmil.errors import CheckpointError, PredictionError, RunFolderError, SettingsError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.decisions import Decision, add_decisions, decide

__all__ = ["import_released", "predict"]


def predict(
    model: Annotated[
        Path, typer.Argument(help="Folder of a fold (runs/x/fold-0) or a .safetensors file.")
    ],
    folder: Features,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("predictions"),
    labels: Labels = None,
    slide_column: SlideColumn = None,
    label_column: LabelColumn = None,
    case_column: CaseColumn = None,
    slide_table: SlideTable = None,
    skip_missing: SkipMissing = False,
    skip_bad: SkipBad = False,
    device: Device = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Arithmetic of the dense layers: 32, bf16, or auto, which is bf16 on GPUs that "
            "have it."
        ),
    ] = "auto",
    instances: Annotated[
        bool, typer.Option(help="Write the scores of the instances to OUT/attention/.")
    ] = True,
    coverage: Coverage = None,
    conformal: Conformal = None,
    defer: Defer = None,
    defer_by: DeferBy = None,
    calibration: Calibration = None,
    overwrite: Overwrite = False,
) -> None:
    """Predict slides, with or without labels."""
    from sgpmil.bags import read_bags
    from sgpmil.evaluation import iter_predictions
    from sgpmil.evaluation.device import compute_device
    from sgpmil.models import load_model
    from sgpmil.runs.prediction_files import write_predictions_csv
    from sgpmil.runs.prediction_folder import is_prediction_folder, write_prediction_folder
    from sgpmil.runs.run import is_run

    if is_run(model):
        raise CheckpointError(
            f"Expected one model, but {model} is a run of several folds. "
            f"Name a fold, such as {model / 'fold-0'}."
        )
    if is_prediction_folder(out) and not overwrite:
        raise RunFolderError(f"{out} holds predictions already. Replace them with --overwrite.")
    where = compute_device(device or "auto")
    network, info = load_model(model)
    rules = read_rules(
        model,
        info.class_names,
        coverage=coverage,
        conformal=conformal,
        defer=defer,
        defer_by=defer_by,
        calibration=calibration,
    )
    bags = read_bags(
        folder,
        labels,
        classes=info.class_names if labels is not None else None,
        slide_column=slide_column,
        label_column=label_column,
        case_column=case_column,
        slide_table=slide_table,
        on_mismatch="skip" if skip_missing else "error",
        on_bad="skip" if skip_bad else "error",
    ).with_target(ClassTarget(info.class_names))
    if bags.feature_dim != network.in_dim:
        raise PredictionError(
            f"Expected bags of {network.in_dim} features, as the model was trained on, but those "
            f"of {folder} have {bags.feature_dim}. Use embeddings of the same encoder."
        )
    with counting("Predicting", len(bags)) as bar:
        found = iter_predictions(
            network,
            bags,
            with_instances=instances,
            device=where,
            precision=precision,
            on_bag=lambda _: bar.advance(bar.task_ids[0]),
        )
        table = write_prediction_folder(out, found, info.class_names, keep_instances=False)
    write_predictions_csv(out / "predictions.csv", table)
    decisions = decide(table, rules.conformal, rules.deferral)
    if rules.calibration is not None:
        for name in ("predictions.csv", "predictions.parquet"):
            add_decisions(out / name, decisions)
    _print_least_certain(table, decisions)
    rules.tell(table, decisions)
    scores = ", attention/" if instances else ""
    console.print(f"Written to {out}: predictions.parquet, predictions.csv{scores}")
    if labels is not None:
        console.print(f"Next: sgpmil evaluate {shlex.quote(str(out))}")


def _print_least_certain(table: PredictionTable, decisions: tuple[Decision, ...]) -> None:
    title = f"{len(table)} slides, the least certain first"
    pairs = zip(table.predictions, decisions, strict=True)
    shown = sorted(pairs, key=lambda pair: -pair[0].entropy)[:10]
    rows = [
        (
            p.slide_id,
            f"{table.class_names[p.predicted_class]} {p.told(p.predicted_class, digits=3)}",
            *decision.columns.values(),
        )
        for p, decision in shown
    ]
    asked = [name.replace("_", " ") for name in decisions[0].columns] if decisions else []
    if asked:
        grid(title, ["slide", "predicted", *asked], rows)
    else:
        facts(title, [(slide_id, told) for slide_id, told, *_ in rows])


def import_released(
    checkpoint: Annotated[Path, typer.Argument(help="A .ckpt or .pt of the released code.")],
    out: Annotated[Path, typer.Argument(help="Checkpoint (.safetensors) to write.")],
    classes: Annotated[
        str | None, typer.Option(help="Class names in the order of the model, comma-separated.")
    ] = None,
    jitter: Annotated[float, typer.Option(help="Jitter the model was trained with.")] = 1e-4,
    overwrite: Overwrite = False,
) -> None:
    """Turn a checkpoint of the authors' released SGPMIL code into one of ours."""
    from sgpmil.cli.options import class_tuple
    from sgpmil.models import read_released_checkpoint, save_model

    if out.exists() and not overwrite:
        raise RunFolderError(f"{out} exists already. Replace it with --overwrite.")
    model = read_released_checkpoint(checkpoint, jitter=jitter)
    names = class_tuple(classes) or tuple(str(c) for c in range(model.num_classes))
    if len(names) != model.num_classes:
        raise SettingsError(
            f"Expected {model.num_classes} class names, as the model has, but got {len(names)}."
        )
    save_model(model, out, class_names=names, details={"imported_from": checkpoint.name})
    console.print(f"Written to {out}. Next: sgpmil predict {out} FEATURES")
