"""`sgpmil inspect`, `pack` and `splits`: commands on bags, labels and folds."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sgpmil.bags import (
    check_folds,
    inspect_folder,
    make_kfold,
    make_monte_carlo,
    pack_bags,
    read_bags,
    read_labels,
    read_splits,
    write_splits,
)
from sgpmil.cli.options import (
    CaseColumn,
    Classes,
    Features,
    LabelColumn,
    Labels,
    Overwrite,
    SharedCase,
    SkipBad,
    SkipMissing,
    SlideColumn,
    SlideTable,
    class_tuple,
)
from sgpmil.cli.output import console, counting, facts, grid
from sgpmil.errors import SettingsError

__all__ = ["inspect", "pack", "splits"]


def inspect(
    folder: Features,
    labels: Labels = None,
    slide_column: SlideColumn = None,
    label_column: LabelColumn = None,
    case_column: CaseColumn = None,
    slide_table: SlideTable = None,
) -> None:
    """Tell what a folder of bags holds, and what is wrong with it (then exit code 1)."""
    table = None
    if labels is not None:
        table = read_labels(
            labels,
            slide_column=slide_column,
            label_column=label_column,
            case_column=case_column,
            slide_table=slide_table,
        )
    with counting("Reading", None) as bar:
        found = inspect_folder(folder, table, on_bag=lambda _: bar.advance(bar.task_ids[0]))
    counts = found.instances
    facts(
        str(folder),
        [
            ("format", _joined(found.formats)),
            ("encoder", _joined(found.encoders)),
            ("feature dimension", _joined(found.feature_dims)),
            ("magnification", _joined(tuple(f"{m:g}×" for m in found.magnifications))),
            ("patch side, level 0", _joined(tuple(f"{side} px" for side in found.patch_sizes))),
            ("coordinates", "yes" if found.has_coords else "not in every slide"),
            ("instance labels", "yes" if found.has_instance_labels else "not in every slide"),
            ("slides", f"{found.num_slides:,}"),
            (
                "instances a slide",
                f"{counts.smallest:,} to {counts.largest:,}, median {counts.median:,.0f}, "
                f"{counts.total:,} in all",
            ),
            (
                "classes",
                _joined(tuple(f"{c.name}: {c.num_slides}" for c in found.class_counts)),
            ),
            ("labels without a slide", _named(found.missing, labels is not None)),
            ("slides without a label", _named(found.unlabelled, labels is not None)),
            ("duplicate slides", _named(found.duplicates)),
            ("empty slides", _named(found.empty)),
            (
                "unreadable slides",
                _named(tuple(f"{u.slide_id} ({u.reason})" for u in found.unreadable)),
            ),
            ("slides with NaN or infinity", _named(found.non_finite)),
        ],
    )
    if found.is_ready:
        next_labels = shlex.quote(str(labels)) if labels else "LABELS"
        console.print(
            f"Ready to train: sgpmil train --features {shlex.quote(str(folder))} "
            f"--labels {next_labels}"
        )
        return
    if len(found.feature_dims) > 1:
        console.print("Not ready: keep the slides of one encoder, or of one feature dimension.")
    elif len(found.class_counts) == 1:
        console.print("Not ready: all slides are of one class.")
    else:
        console.print("Not ready as it is: mend the above, or use --skip-missing and --skip-bad.")
    raise typer.Exit(1)


def pack(
    folder: Features,
    store: Annotated[Path, typer.Argument(help="Packed store to write.")],
    labels: Labels = None,
    classes: Classes = None,
    slide_column: SlideColumn = None,
    label_column: LabelColumn = None,
    case_column: CaseColumn = None,
    slide_table: SlideTable = None,
    skip_missing: SkipMissing = False,
    skip_bad: SkipBad = False,
    overwrite: Overwrite = False,
) -> None:
    """Pack bag files into one memory-mapped store that reads fast."""
    bags = read_bags(
        folder,
        labels,
        classes=class_tuple(classes),
        slide_column=slide_column,
        label_column=label_column,
        case_column=case_column,
        slide_table=slide_table,
        on_mismatch="skip" if skip_missing else "error",
        on_bad="skip" if skip_bad else "error",
    )
    with counting("Packing", len(bags)) as bar:
        pack_bags(
            bags,
            store,
            overwrite=overwrite,
            on_bag=lambda _: bar.advance(bar.task_ids[0]),
        )
    size = sum(file.stat().st_size for file in store.iterdir())
    console.print(f"Packed {len(bags):,} slides into {store} ({size / 1e6:,.0f} MB).")
    console.print(f"Next: sgpmil train --features {shlex.quote(str(store))}")


def splits(
    labels: Annotated[Path, typer.Argument(help="Table of labels (.csv, .tsv, .xlsx).")],
    out: Annotated[Path | None, typer.Option(help="Folder to write splits_k.csv to.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Check these existing splits instead of making new ones.")
    ] = None,
    folds: Annotated[int, typer.Option(help="Number of folds.")] = 5,
    monte_carlo: Annotated[
        bool, typer.Option("--monte-carlo", help="Draw every fold anew, rather than k-fold.")
    ] = False,
    val: Annotated[float, typer.Option(help="Share of all slides to validate on.")] = 0.15,
    test: Annotated[float, typer.Option(help="Share to test on (--monte-carlo).")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed; the same seed gives the same folds.")] = 0,
    slide_column: SlideColumn = None,
    label_column: LabelColumn = None,
    case_column: CaseColumn = None,
    slide_table: SlideTable = None,
    shared_case: SharedCase = None,
    overwrite: Overwrite = False,
) -> None:
    """Make patient-grouped, stratified folds, or check existing ones."""
    table = read_labels(
        labels,
        slide_column=slide_column,
        label_column=label_column,
        case_column=case_column,
        slide_table=slide_table,
    )
    if check is not None:
        made = check_folds(
            read_splits(check, table),
            table,
            on_shared_case="warn" if shared_case == "warn" else "error",
        )
    elif out is None:
        raise SettingsError("Expected --out FOLDER to write folds to, or --check SPLITS.")
    elif monte_carlo:
        made = make_monte_carlo(
            table, num_folds=folds, val_fraction=val, test_fraction=test, seed=seed
        )
    else:
        made = make_kfold(table, num_folds=folds, val_fraction=val, seed=seed)
    label_of = dict(zip(table.slide_ids, table.labels, strict=True))
    names = sorted(set(table.labels))

    def described(part: tuple[str, ...]) -> str:
        inside = ", ".join(f"{n} {sum(label_of[s] == n for s in part)}" for n in names)
        return f"{len(part)}: {inside}" if part else "none"

    grid(
        f"{len(made)} folds",
        ("fold", "train", "val", "test"),
        [(f.name, described(f.train), described(f.val), described(f.test)) for f in made],
    )
    if check is not None:
        console.print("No slide and no known patient is in two parts of a fold.")
    elif out is not None:
        write_splits(made, out, overwrite=overwrite)
        console.print(f"Written to {out}.")


def _joined(values: tuple[object, ...]) -> str:
    return ", ".join(str(value) for value in values) or "not stated"


def _named(names: tuple[str, ...], known: bool = True) -> str:
    if not known:
        return "unknown: give --labels"
    if not names:
        return "none"
    shown = ", ".join(names[:5])
    return f"{len(names)}: {shown}" + (" …" if len(names) > 5 else "")
