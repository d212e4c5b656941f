"""Synthetic slides of the uncertainty study, with a tissue, a stain and a scanner not seen before.

Slides of training have no aggregates of lymphocytes, haematoxylin and eosin, and a sharp scanner.

===========  ===================================================================================
``tissue``   30 % of the tissue is a sheet of lymphocytes
``stain``    the second stain is brown (as DAB is), not pink
``scanner``  the picture is blurred and the glass bluish
===========  ===================================================================================

Seeds 0 to 9 divide the slides of one pool in different ways, seeds 10 to 19 those of the next. To
draw and embed a pool takes minutes, so its features are kept in a folder.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import atomic_path
from sgpmil.bags.readers.numpy_files import load_npz
from sgpmil.errors import BagError
from sgpmil.experiments.uncertainty_sets import (
    PHANTOM_DESIGN,
    UNSEEN_SHARE,
    DrawOptions,
    Part,
    PoolDesign,
    UncertaintySet,
)
from sgpmil.phantoms.painter import render
from sgpmil.phantoms.scene import PhantomSettings, Scene, make_scene
from sgpmil.shapes import Bool, Float, Int, UInt8
from sgpmil.slides.optional_part import Geometry

_PATCH = 256
_SEEDS_OF_A_POOL = 10
_LEAST_TISSUE, _LEAST_TARGET, _LEAST_UNSEEN = 0.5, 0.2, 0.5
KINDS = ("stroma", "gland", "fat", "lymphocytes", "tumour")
"""Classes of patches: what covers a fifth of one and most of it, before all tumour, or stroma."""
SHIFTS = ("tissue", "stain", "scanner")


_QUICK = PoolDesign((8, 4, 6), 2, (1024, 1024))


@dataclass(frozen=True, eq=False)
class PatchedSlide:
    """A slide as patches.

    Args:
        name: Its name.
        label: Whether it has a tumour.
        features: Embedding of each patch.
        classes: Index of each patch's kind in `KINDS`.
        targets: Whether a patch has tumour.
        unseen: Whether a patch is unlike those of training.
    """

    name: str
    label: int
    features: Float[np.ndarray, "n D"]
    classes: Int[np.ndarray, " n"]
    targets: Bool[np.ndarray, " n"]
    unseen: Bool[np.ndarray, " n"]


def draw_phantom_set(name: str, options: DrawOptions) -> UncertaintySet:
    """Divide the pool of a seed into parts.

    Raises:
        MissingPartError: The pool is not in the folder yet, and a package to draw and embed slides
            is not installed.
    """
    design = _QUICK if options.quick else PHANTOM_DESIGN
    slides = phantom_pool(design, options.seed // _SEEDS_OF_A_POOL, options.cache)
    generator = np.random.default_rng([options.seed, 3])
    usual = [slide for slide in slides if slide.name.startswith("usual")]
    groups: list[list[PatchedSlide]] = [[], [], []]
    for label in (0, 1):  # every part has as many slides of either class as the pool
        ours = [slide for slide in usual if slide.label == label]
        order = generator.permutation(len(ours))
        ends = np.cumsum([0, *(count // 2 + (label * count % 2) for count in design.parts)])
        for part, group in enumerate(groups):
            group += [ours[i] for i in order[ends[part] : ends[part + 1]]]
    train, val, test = (_part(group) for group in groups)
    shifted = {
        shift: _part([slide for slide in slides if slide.name.startswith(shift)])
        for shift in SHIFTS
    }
    return UncertaintySet(name, options.seed, train.bags, val.bags, test, shifted)


def prepare_phantoms(seeds: Sequence[int], options: DrawOptions) -> None:
    """Draw and embed the pools of some seeds, unless they are in the folder already."""
    design = _QUICK if options.quick else PHANTOM_DESIGN
    for number in sorted({seed // _SEEDS_OF_A_POOL for seed in seeds}):
        phantom_pool(design, number, options.cache)


def _part(slides: Sequence[PatchedSlide]) -> Part:
    bags = BagDataset.from_arrays(
        [slide.features for slide in slides],
        [slide.label for slide in slides],
        slide_ids=[slide.name for slide in slides],
        class_names=("normal", "tumour"),
        instance_labels=[slide.targets.astype(np.int64) for slide in slides],
    )
    return Part(bags, tuple(s.classes for s in slides), tuple(s.unseen for s in slides))


def phantom_pool(design: PoolDesign, number: int, cache: Path) -> list[PatchedSlide]:
    """Read the slides of a pool, or draw and embed them and keep the features.

    Args:
        design: Slides of the pool.
        number: Number of the pool, from which its slides are drawn.
        cache: Folder of the features.
    """
    digest = hashlib.sha256(repr((design, UNSEEN_SHARE)).encode()).hexdigest()[:8]
    path = cache / f"phantoms-{digest}-pool{number}.npz"
    found = _read(path)
    if found is None:
        found = _embed(_scenes(design, number))
        _write(path, found)
    return found


def _read(path: Path) -> list[PatchedSlide] | None:
    """Read a pool; None where there is no whole file."""
    try:
        arrays = load_npz(path)
        ends = arrays["ends"]
        return [
            PatchedSlide(
                str(name),
                int(label),
                *(arrays[key][start:end] for key in ("features", "classes", "targets", "unseen")),
            )
            for name, label, start, end in zip(
                arrays["names"], arrays["labels"], [0, *ends[:-1]], ends, strict=True
            )
        ]
    except (BagError, ValueError, KeyError):
        return None


def _write(path: Path, slides: Sequence[PatchedSlide]) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            names=np.array([slide.name for slide in slides]),
            labels=np.array([slide.label for slide in slides]),
            ends=np.cumsum([len(slide.features) for slide in slides]),
            features=np.concatenate([slide.features for slide in slides]),
            classes=np.concatenate([slide.classes for slide in slides]),
            targets=np.concatenate([slide.targets for slide in slides]),
            unseen=np.concatenate([slide.unseen for slide in slides]),
        )


def _scenes(design: PoolDesign, number: int) -> list[tuple[str, Scene]]:
    """Draw the scenes of a pool: the usual ones, then those of each shift."""
    change: dict[str, Callable[[Scene], Scene]] = {
        "usual": _without_lymphocytes,
        "tissue": _with_sheet_of_lymphocytes,
        "stain": lambda scene: _brown(_without_lymphocytes(scene)),
        "scanner": lambda scene: _other_scanner(_without_lymphocytes(scene)),
    }
    counts = {"usual": sum(design.parts), **dict.fromkeys(SHIFTS, design.shifted)}
    found = []
    for kind, count in counts.items():
        for index in range(count):
            share = design.tumour_share if index % 2 else 0.0
            settings = PhantomSettings(
                design.size, tumour_share=share, pen_share=0.0, fold_share=0.0
            )
            entropy = [number, list(counts).index(kind), index]
            seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            found.append((f"{kind}-{index:04d}", change[kind](make_scene(seed, settings))))
    return found


def _without_lymphocytes(scene: Scene) -> Scene:
    import shapely

    return replace(scene, lymphocytes=shapely.MultiPolygon())


def _with_sheet_of_lymphocytes(scene: Scene) -> Scene:
    """Turn 30 % of the tissue, at its left, into a sheet of lymphocytes."""
    import shapely

    room = shapely.difference(scene.tissue, shapely.buffer(scene.tumour, 4))
    width, height = scene.settings.extent
    low, high = 0.0, width
    for _ in range(30):
        middle = (low + high) / 2
        sheet = shapely.intersection(room, shapely.box(0, 0, middle, height))
        low, high = (middle, high) if sheet.area < UNSEEN_SHARE * room.area else (low, middle)
    return replace(
        scene,
        lymphocytes=sheet,
        glands=tuple(g for g in scene.glands if not g.outline.intersects(sheet)),
        vessels=tuple(v for v in scene.vessels if not v.outline.intersects(sheet)),
        fat=shapely.difference(scene.fat, sheet),
        adipocytes=tuple(a for a in scene.adipocytes if not a.intersects(sheet)),
    )


def _brown(scene: Scene) -> Scene:
    strength = float(np.linalg.norm(scene.stain.eosin))
    red, green, blue = (strength * value for value in (0.27, 0.57, 0.78))
    return replace(scene, stain=replace(scene.stain, eosin=(red, green, blue)))


def _other_scanner(scene: Scene) -> Scene:
    return replace(scene, stain=replace(scene.stain, background=(220.0, 230.0, 247.0), blur=1.2))


def _embed(scenes: Sequence[tuple[str, Scene]]) -> list[PatchedSlide]:
    """Draw the patches of slides, and embed them."""
    from sgpmil.slides.encoders.loading import load_encoder

    encoder = load_encoder(device="cpu")
    slides = []
    for name, scene in scenes:
        corners, classes, targets, lymphoid = _patches(scene)
        pixels = np.stack([_pixels(scene, x, y) for x, y in corners])
        everything = name.startswith(("stain", "scanner"))
        slides.append(
            PatchedSlide(
                name=name,
                label=int(scene.is_positive),
                features=encoder.encode(torch.from_numpy(pixels)).numpy().astype(np.float32),
                classes=classes,
                targets=targets,
                unseen=lymphoid | everything,
            )
        )
    return slides


def _pixels(scene: Scene, x: int, y: int) -> UInt8[np.ndarray, "p p 3"]:
    return render(scene, x, y, _PATCH, _PATCH)


def _patches(
    scene: Scene,
) -> tuple[
    list[tuple[int, int]], Int[np.ndarray, " n"], Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]
]:
    """Return the corners and kinds of the patches of tissue, and which are tumour or lymphoid."""
    import shapely

    glands = shapely.union_all([gland.outline for gland in scene.glands])
    width, height = scene.settings.size
    corners, rows = [], []
    for y in range(0, height - _PATCH + 1, _PATCH):
        for x in range(0, width - _PATCH + 1, _PATCH):
            box = shapely.box(*(v * scene.settings.mpp for v in (x, y, x + _PATCH, y + _PATCH)))
            areas = (scene.tissue, glands, scene.fat, scene.lymphocytes, scene.tumour)
            shares = [_share(area, box) for area in areas]
            if shares[0] >= _LEAST_TISSUE:
                corners.append((x, y))
                rows.append([shares[0] - sum(shares[1:]), *shares[1:]])
    if not rows:
        # A needle's core may fill no square by half: then the middle of the tissue is the patch.
        point = scene.tissue.representative_point()
        corners = [tuple(round(v / scene.settings.mpp) - _PATCH // 2 for v in (point.x, point.y))]
        rows = [[1.0, 0.0, 0.0, 0.0, 0.0]]
    found = np.array(rows)
    targets = found[:, 4] >= _LEAST_TARGET
    covered = np.where(found[:, 1:4].max(1) >= _LEAST_TARGET, 1 + found[:, 1:4].argmax(1), 0)
    classes = np.where(targets, KINDS.index("tumour"), covered)
    return corners, classes.astype(np.int64), targets, found[:, 3] >= _LEAST_UNSEEN


def _share(area: Geometry, box: Geometry) -> float:
    import shapely

    return float(shapely.intersection(area, box).area / box.area)
