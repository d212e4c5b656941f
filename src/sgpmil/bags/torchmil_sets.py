"""Bags from torchmil's data sets and to them.

torchmil keeps an array a bag in a folder a kind of array::

    patches_512/features/features_<name>/<slide>.npy    (N, D)
    patches_512/coords/<slide>.npy                       (N, 2), in pixels
    patches_512/patch_labels/<slide>.npy                 (N,)
    patches_512/labels/<slide>.npy                       the class, a number
    splits.csv                                           bag_name, split

`sgpmil.read_bags` reads the features with coordinates and patch labels; its `labels` may be the
folder of labels, or the table ``labels.csv`` that `write_torchmil` adds, with names of classes.
``<slide>`` is a slide's name as `sgpmil.bags.files.file_name` spells it. Where it begins like a
formula, its first character is a percent sign and a number, too.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import atomic_path, file_name, identifier_of, write_text
from sgpmil.bags.splits import Fold
from sgpmil.bags.tables import sheet_text, to_spreadsheet
from sgpmil.errors import BagError, LabelError, MissingPartError, SgpmilError
from sgpmil.torchvision_import import mend_torchvision

if TYPE_CHECKING:
    from torchmil.datasets import ProcessedMILDataset


def write_torchmil(
    bags: BagDataset,
    folder: Path | str,
    *,
    name: str = "sgpmil",
    fold: Fold | None = None,
    overwrite: bool = False,
) -> Path:
    """Write bags as torchmil's hosted data sets have them.

    Coordinates, patch labels and labels are written where every bag has them. ``labels.csv`` holds
    labels and patients by name.

    Args:
        bags: The bags, of one patch size.
        folder: Folder to write to.
        name: Name of the features, as in ``features_<name>``.
        fold: Slides of each part, written to ``splits.csv``.
        overwrite: Replace a set in the folder.

    Returns:
        The folder ``patches_<size>``; the size is 0 where it is unknown.

    Raises:
        BagError: The folder is not empty, or sides of patches differ.
        OSError: The folder cannot be written.
    """
    root = Path(folder)
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not overwrite)):
        raise BagError(
            f"Expected a new or empty folder, but there is something in it ({root}). Choose "
            "another, or replace it with `overwrite=True`."
        )
    headers = [bags.source.header(slide_id) for slide_id in bags.slide_ids]
    sizes = sorted({header.patch_size or 0 for header in headers})
    if len(sizes) > 1:
        raise BagError(
            f"Expected bags of one patch size, as torchmil has one for all, but got {sizes}. Write "
            "each size to a folder of its own."
        )
    inner = root / f"patches_{sizes[0]}"
    # Files of a set that is replaced do not stay beside the new ones.
    shutil.rmtree(inner, ignore_errors=True)
    for table in ("labels.csv", "splits.csv"):
        (root / table).unlink(missing_ok=True)
    is_there = {
        "coords": all(header.has_coords for header in headers),
        "patch_labels": all(header.has_instance_labels for header in headers),
        "labels": None not in bags.labels,
    }
    kinds = [f"features/features_{name}", *(kind for kind, found in is_there.items() if found)]
    for bag in bags:
        for kind in kinds:
            _save(inner / kind / f"{_bag_name(bag.slide_id)}.npy", _stored(bag, kind))
    if len(labels := bags.label_table()):
        rows = [(_bag_name(row.slide_id), row.case_id, row.label) for row in labels]
        write_text(root / "labels.csv", sheet_text(("slide_id", "case_id", "label"), rows))
    if fold is not None:
        parts = {"train": fold.train, "val": fold.val, "test": fold.test}
        splits = [(_bag_name(slide), part) for part, slides in parts.items() for slide in slides]
        write_text(root / "splits.csv", sheet_text(("bag_name", "split"), splits))
    return inner


def to_torchmil(bags: BagDataset, folder: Path | str, **settings: Any) -> "ProcessedMILDataset":
    """Write bags for torchmil and open them with its class; see `BagDataset.to_torchmil`."""
    mend_torchvision()  # torchmil imports it through torchmetrics
    try:
        from torchmil.datasets import ProcessedMILDataset
    except ImportError as error:
        raise MissingPartError(
            "Expected the package 'torchmil' to open its data sets, but it is not installed. "
            "Install it with: pip install torchmil."
        ) from error
    writing = {key: settings.pop(key) for key in ("name", "fold", "overwrite") if key in settings}
    inner = write_torchmil(bags, folder, **writing)
    paths = {
        "X": ("features_path", inner / "features" / f"features_{writing.get('name', 'sgpmil')}"),
        "Y": ("labels_path", inner / "labels"),
        "y_inst": ("inst_labels_path", inner / "patch_labels"),
        "coords": ("coords_path", inner / "coords"),
    }
    present = {key: (option, path) for key, (option, path) in paths.items() if path.is_dir()}
    size = int(inner.name.removeprefix("patches_"))
    options = {
        **{option: str(path) for option, path in present.values()},
        # Neighbours are at most a diagonal apart; torchmil's own default is for whole steps.
        "dist_thr": 1.5 * (size or 1),
        "bag_names": [_bag_name(slide) for slide in bags.slide_ids],
        "bag_keys": [*present, *(["adj"] if "coords" in present else [])],
        "verbose": False,
        **settings,
    }
    return ProcessedMILDataset(**options)


def from_torchmil(
    dataset: Any,
    *,
    class_names: Sequence[str] | None = None,
    slide_ids: Sequence[str] | None = None,
) -> BagDataset:
    """Make bags of a torchmil data set; see `BagDataset.from_torchmil`."""
    bags = [dataset[index] for index in range(len(dataset))]
    if not bags or "X" not in bags[0].keys():  # noqa: SIM118 (a TensorDict has no such `in`)
        raise BagError(
            "Expected a torchmil data set whose bags have the features 'X', but got "
            f"{listed_keys(bags[0]) if bags else 'no bags'}. Open it with bag_keys=['X', 'Y', …]."
        )
    names = slide_ids if slide_ids is not None else getattr(dataset, "bag_names", None)
    # Its data sets of slides divide pixels by the side of a patch.
    side = getattr(dataset, "patch_size", None)
    keys = {key for bag in bags for key in bag.keys()}  # noqa: SIM118
    arrays = {key: [_array(bag, key) for bag in bags] for key in ("X", "coords", "y_inst")}
    labels = [_label(bag["Y"]) for bag in bags] if "Y" in keys else None
    return BagDataset.from_arrays(
        arrays["X"],
        labels,
        slide_ids=None if names is None else [_slide_id(str(name)) for name in names],
        class_names=class_names,
        coords=[None if array is None else array * (side or 1) for array in arrays["coords"]],
        instance_labels=[None if a is None else a.reshape(-1) for a in arrays["y_inst"]],
        patch_size=side,
    )


def _bag_name(slide_id: str) -> str:
    """Return the name of a bag on disk, which torchmil, unlike `read_table`, takes as it stands."""
    name = file_name(slide_id)
    is_formula = to_spreadsheet(name) != name
    return f"%{ord(name[0]):02X}{name[1:]}" if is_formula else name


def _slide_id(bag_name: str) -> str:
    with suppress(SgpmilError, UnicodeDecodeError):
        slide_id = identifier_of(bag_name)
        return slide_id if _bag_name(slide_id) == bag_name else bag_name
    return bag_name


def _stored(bag: Bag, kind: str) -> NDArray[Any]:
    if kind == "labels":
        return np.array(bag.label, dtype=np.int64)
    tensor = {"coords": bag.coords, "patch_labels": bag.instance_labels}.get(kind, bag.features)
    assert tensor is not None  # noqa: S101 (only what every bag has is written)
    return np.asarray(tensor.float().cpu() if tensor.is_floating_point() else tensor.cpu())


def listed_keys(bag: Mapping[str, Any]) -> str:
    """List what a bag has, for a message."""
    return ", ".join(f"'{key}'" for key in bag.keys()) or "nothing"  # noqa: SIM118


def _array(bag: Mapping[str, Any], key: str) -> NDArray[Any] | None:
    if key not in bag.keys():  # noqa: SIM118
        return None
    value = bag[key]
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _label(value: Any) -> int:
    array = np.asarray(value)
    if array.size != 1:
        raise LabelError(
            f"Expected one class as the label 'Y' of a bag, but got shape {array.shape}. Give each "
            "bag the number of its class."
        )
    return array.reshape(-1)[0].item()


def _save(path: Path, array: NDArray[Any]) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)
