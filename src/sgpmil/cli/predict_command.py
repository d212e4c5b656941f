"""`sgpmil predict` and `import-released`."""

import csv
from pathlib import Path
from typing import Annotated

import typer

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
from sgpmil.cli.output import console, counting, facts
from sgpmil.errors import CheckpointError, RunFolderError, SettingsError

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
    instances: Annotated[
        bool, typer.Option(help="Write the scores of the instances to OUT/attention/.")
    ] = True,
    overwrite: Overwrite = False,
) -> None:
    """Predict slides, with or without labels."""
    import torch

    from sgpmil.bags import read_bags
    from sgpmil.evaluation import predict as predict_bags
    from sgpmil.evaluation import write_instance_scores, write_predictions
    from sgpmil.models import load_model

    if (model / "run.json").exists():
        raise CheckpointError(
            f"Expected one model, but {model} is a run of several folds. "
            f"Name a fold, such as {model / 'fold-0'}."
        )
    if (out / "predictions.parquet").exists() and not overwrite:
        raise RunFolderError(f"{out} holds predictions already. Replace them with --overwrite.")
    if device not in (None, "auto", "cpu", "gpu"):
        raise SettingsError(f"Expected --device auto, cpu or gpu, but got '{device}'.")
    network, info = load_model(model)
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
    )
    use_gpu = torch.cuda.is_available() if device in (None, "auto") else device == "gpu"
    with counting("Predicting", len(bags)) as bar:
        table = predict_bags(
            network,
            bags,
            class_names=info.class_names,
            with_instances=instances,
            device="cuda" if use_gpu else "cpu",
            on_bag=lambda _: bar.advance(bar.task_ids[0]),
        )
    for prediction in table.predictions:
        if prediction.instances is not None:
            write_instance_scores(
                out / "attention" / f"{prediction.slide_id}.h5", prediction.instances
            )
    write_predictions(out / "predictions.parquet", table)
    with (out / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        columns = range(len(table.class_names))
        writer.writerow(["slide_id", "predicted", *(f"p_{c}" for c in columns), "std", "entropy"])
        for p in table.predictions:
            name = table.class_names[p.predicted_class]
            row = [f"{value:.6f}" for value in (*p.probs, p.std[p.predicted_class], p.entropy)]
            writer.writerow([p.slide_id, name, *row])
    shown = sorted(table.predictions, key=lambda p: -p.entropy)[:10]
    facts(
        f"{len(table)} slides, the least certain first",
        [
            (
                p.slide_id,
                f"{table.class_names[p.predicted_class]} {p.probs[p.predicted_class]:.3f} "
                f"± {p.std[p.predicted_class]:.3f}",
            )
            for p in shown
        ],
    )
    console.print(f"Written to {out}: predictions.parquet, predictions.csv, attention/")
    if labels is not None:
        console.print(f"Next: sgpmil evaluate {out}")


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
