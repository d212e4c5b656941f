"""Explanation of a run in files: maps, patches to look at, prototypes, exports.

The command ``sgpmil explain`` calls `explain`.
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from sgpmil.errors import SettingsError
from sgpmil.explanation.explanation_folder import ExportKind
from sgpmil.explanation.explanation_settings import ExplanationSettings
from sgpmil.processes import progress_bar
from sgpmil.report.explanations.run_explanation import RunExplanation, explain_run
from sgpmil.runs.material import MaterialOptions, RunMaterial, read_material

__all__ = ["ExplainOptions", "explain"]


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(MaterialOptions):
    """Options of `explain`.

    Args:
        only: Name of a slide to explain; may be repeated.
        fold: Name of a fold to explain; may be repeated.
        most: Most slides, the least certain first; all by default.
        scale: Scale of the maps. An absolute scale can be compared between slides; rank and minmax
            are relative to the slide.
        class_name: Class that evidence is for; by default the second of two and, of more, the
            predicted one.
        prototypes: Comparison of patches with inducing points: cosine as published, centred, or by
            the model's own kernel.
        beside: Another run, to compare maps with; may be repeated.
        export: Files for other programs: geojson (QuPath), csv, parquet, tiff, tiatoolbox;
            comma-separated or repeated.
        geojson_origin: Level-0 position that QuPath takes as the origin, X Y. For MIRAX, the
            slide's openslide.bounds-x and -y.
        model: Folder of the fold whose model made the predictions, for prototypes.
        out: Folder to write to; RUN/explanation by default.
        overwrite: Replace an existing explanation.
    """

    only: tuple[str, ...] = ()
    fold: tuple[str, ...] = ()
    most: int | None = None
    scale: Literal["absolute", "rank", "minmax"] = "absolute"
    class_name: str | None = None
    prototypes: Literal["cosine", "centred", "kernel", "none"] = "cosine"
    beside: tuple[Path, ...] = ()
    export: tuple[str, ...] = ()
    geojson_origin: tuple[int, int] = (0, 0)
    model: Path | None = None
    out: Path | None = None
    overwrite: bool = False

    def settings(self) -> ExplanationSettings:
        """Return the settings of the explanation.

        Raises:
            SettingsError: There is no such export, or the number of slides is below 1.
        """
        if self.most is not None and self.most < 1:
            raise SettingsError(f"Expected --most of at least 1, but got {self.most}.")
        return ExplanationSettings(
            scale=self.scale,
            class_name=self.class_name,
            prototypes=None if self.prototypes == "none" else self.prototypes,
            exports=_exports(self.export),
            geojson_origin=self.geojson_origin,
            only=self.only,
            folds=self.fold,
            most=self.most,
        )


def explain(
    options: ExplainOptions, *, show_progress: bool = False
) -> tuple[RunExplanation, RunMaterial]:
    """Explain a run. A stopped explanation resumes where it left off.

    Args:
        options: The run, its slides, and what to write.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The explanation, and the run with everything that explains it.

    Raises:
        SgpmilError: The run, or a folder that is named, cannot be read; an option is impossible; or
            the folder holds an explanation of other settings.
    """
    settings = options.settings()
    material = options.read_material()
    if options.model is not None:
        material = _with_model(material, options.model)
    others = {path: read_material(path) for path in dict.fromkeys(options.beside)}
    inputs = {
        "slides": _place(options.slides),
        "features": _place(options.features),
        "annotations": _place(options.annotations),
        "regions": None if options.regions is None else ",".join(options.regions),
        "min_coverage": options.min_coverage,
        "mask_downsample": options.mask_downsample,
        "nuclei": _place(options.nuclei),
        "mpp": options.mpp,
        "model": _place(options.model),
    }
    with progress_bar("Explaining", None, "slides", show=show_progress) as bar:
        done = explain_run(
            material,
            options.out or options.run / "explanation",
            settings,
            bar,
            beside=_named(others),
            inputs=inputs,
            overwrite=options.overwrite,
        )
    return done, material


def _exports(given: tuple[str, ...]) -> tuple[ExportKind, ...]:
    known = {str(kind): kind for kind in get_args(ExportKind)}
    names = [name.strip().lower() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise SettingsError(
                f"Expected --export of {', '.join(known)}, but got '{name}'. Choose among these."
            )
    return tuple(known[name] for name in dict.fromkeys(names))


def _with_model(material: RunMaterial, model: Path) -> RunMaterial:
    if len(material.folds) != 1 or material.folds[0].checkpoint is not None:
        raise SettingsError(
            "--model is for predictions that one model made, whose folder has no model: the run "
            f"{material.path} has its own. Leave it out."
        )
    return replace(material, folds=(replace(material.folds[0], checkpoint=model),))


def _named(others: dict[Path, RunMaterial]) -> dict[str, RunMaterial]:
    """Name runs after their models, with their folders where several have the same."""
    counts = Counter(material.model for material in others.values())
    names = {}
    for path, material in others.items():
        is_clear = material.model and counts[material.model] == 1
        place = path.resolve().name
        name = material.model if is_clear else f"{material.model} ({place})".strip()
        names[name if name not in names else str(path)] = material
    return names


def _place(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())
