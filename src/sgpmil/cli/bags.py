"""`sgpmil inspect`, `pack` and `splits`: commands on bags, labels and folds."""

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace

import typer

from sgpmil.bags.inspection import Inspection
from sgpmil.bags.steps import (
    InspectOptions,
    PackOptions,
    SplitOptions,
    inspect_bags,
    make_splits,
    pack_folder,
)
from sgpmil.cli.commands import command
from sgpmil.cli.output import console, facts, grid, listed
from sgpmil.notebook import counted
from sgpmil.options import as_flags


@command(InspectOptions, arguments=["features"], lists=["order"])
def inspect(options: InspectOptions) -> None:
    """Summarise a folder of bags.

    The exit code is 1 where the bags cannot be trained on as they are.

    Example: sgpmil inspect embeddings --labels labels.csv
    """
    found = inspect_bags(options, show_progress=True)
    counts, has_labels = found.instances, options.labels is not None or bool(found.class_counts)
    facts(
        str(options.features),
        [
            ("format", _joined(found.formats)),
            ("encoder", _joined(found.encoders)),
            ("feature dimension", _joined(found.feature_dims)),
            ("magnification", _joined([f"{m:g}×" for m in found.magnifications])),
            ("patch side, level 0", _joined([f"{side} px" for side in found.patch_sizes])),
            ("coordinates", _some(found.num_with_coords, found.num_usable)),
            ("instance labels", _some(found.num_with_instance_labels, found.num_usable)),
            ("slides", f"{found.num_slides:,}"),
            (
                "instances a slide",
                f"{counts.smallest:,} to {counts.largest:,}, median {counts.median:,.0f}, "
                f"{counts.total:,} in all",
            ),
            ("classes", _classes(found)),
            *([("columns", found.columns)] if found.columns else []),
            *([("order of classes", as_flags(found.order))] if found.order else []),
            ("labels without a slide", _named(found.missing, has_labels)),
            ("slides without a label", _named(found.unlabelled, has_labels)),
            ("duplicate slides", _named(found.duplicates)),
            *([("slides with equal features", _copies(found))] if found.copies else []),
            ("empty slides", _named(found.empty)),
            ("unreadable slides", _named([f"{u.slide_id} ({u.reason})" for u in found.unreadable])),
            ("slides with NaN or infinity", _named(found.non_finite)),
        ],
    )
    if found.is_ready:
        ready = "Ready to train" if found.class_counts else "All bags can be read. With labels"
        console.print(f"{ready}: {_train_command(options, has_labels)}")
        return
    if len(found.feature_dims) > 1:
        console.print("Not ready: keep the slides of one encoder, or of one feature dimension.")
    elif found.doubt:
        console.print(
            f"Not ready: {found.doubt}. Correct the labels, or name another column with "
            "--label-column; if these are classes, train with --classes and all of them in their "
            "order."
        )
    elif len(found.class_counts) == 1:
        console.print("Not ready: all slides are of one class.")
    elif found.rare_classes and replace(found, num_folds=0).is_ready:
        console.print(_too_few(found, options))
    else:
        console.print("Not ready: correct the above, or train with --skip-missing or --skip-bad.")
    raise typer.Exit(1)


def _copies(found: Inspection) -> str:
    groups = _named([" = ".join(group) for group in found.copies])
    return f"{groups}: one in training would betray the other in testing"


def _classes(found: Inspection) -> str:
    """Count the slides of each class; values that do not look like classes are not listed."""
    if found.doubt:
        return f"none: {found.doubt}"
    return _joined(
        [
            f"{c.name}: {c.num_slides}"
            + (f" of {counted(c.num_patients, 'patient')}" * (c.num_patients != c.num_slides))
            for c in found.class_counts
        ]
    )


def _too_few(found: Inspection, options: InspectOptions) -> str:
    """Say which classes have fewer patients than there are folds, and what can be done."""
    rare = " and ".join(
        f"class '{c.name}' has {counted(c.num_divided, 'patient')}" for c in found.rare_classes
    )
    most = min(c.num_divided for c in found.rare_classes)
    fewer = (
        f"make fewer folds ({_train_command(replace(options, folds=most))})"
        if most > 1
        else "add patients, leave the class out"
    )
    return (
        f"Not ready for {counted(found.num_folds, 'fold')}, each of which needs a patient of every "
        f"class: {rare}. Either {fewer}, or train with folds of your own (--splits)."
    )


def _train_command(options: InspectOptions, stored: bool = False) -> str:
    """Return the command that trains on what was inspected, with the options that were given.

    Labels are named unless they are stored with the bags.
    """
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    if not (stored and options.labels is None):
        values["labels"] = options.labels or "LABELS"
    order, folds = values.pop("order"), values.pop("folds")
    words = ["sgpmil", "train"]
    for name in sorted(values, key=lambda name: name not in ("features", "labels")):
        if values[name] is True:
            words.append(f"--{name.replace('_', '-')}")
        elif values[name] not in (None, False):
            words += [f"--{name.replace('_', '-')}", str(values[name])]
    words += [] if order is None else ["--order", ",".join(order)]
    words += [] if folds == 5 else ["--set", f"data.folds={folds}"]
    return shlex.join(words)


@command(PackOptions, arguments=["features", "store"], lists=["classes", "order"])
def pack(options: PackOptions) -> None:
    """Pack bag files into one store.

    Example: sgpmil pack embeddings store --labels labels.csv
    """
    store = pack_folder(options, show_progress=True)
    size = sum(file.stat().st_size for file in options.store.iterdir())
    num_slides = len(store.dataset())
    console.print(
        f"Packed {counted(num_slides, 'slide')} into {options.store} ({size / 1e6:,.0f} MB)."
    )
    console.print(f"Next: sgpmil train --features {shlex.quote(str(options.store))}")


@command(SplitOptions, arguments=["labels"])
def splits(options: SplitOptions) -> None:
    """Make folds, or check existing ones.

    Example: sgpmil splits labels.csv --out splits --folds 5

    Example: sgpmil splits labels.csv --check splits
    """
    table, folds = make_splits(options)
    label_of = dict(zip(table.slide_ids, table.labels, strict=True))
    names = sorted(set(table.labels))

    def described(part: tuple[str, ...]) -> str:
        inside = ", ".join(f"{n} {sum(label_of[s] == n for s in part)}" for n in names)
        return f"{len(part)}: {inside}" if part else "none"

    grid(
        counted(len(folds), "fold"),
        ("fold", "train", "val", "test"),
        [(f.name, described(f.train), described(f.val), described(f.test)) for f in folds],
    )
    if options.check is not None:
        console.print("No slide and no known patient is in two parts of a fold.")
    else:
        console.print(f"Written to {options.out}.")


def _joined(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values) or "not stated"


def _some(count: int, total: int) -> str:
    """Say how many slides have something."""
    return "yes" if 0 < count == total else f"in {count:,} of {total:,} slides" if count else "none"


def _named(names: Sequence[str], is_known: bool = True) -> str:
    if not is_known:
        return "unknown: give --labels"
    return f"{len(names)}: {listed(names)}" if names else "none"
