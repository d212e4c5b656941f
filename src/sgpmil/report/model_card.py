"""The model card of an exported model: Markdown with the YAML front matter of Hugging Face.

It says what the model predicts, from which features, how it was trained and measured, and where it
should not be used. It names no slide, no patient and no path.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import yaml

from sgpmil.evaluation.assessment import Assessment
from sgpmil.models.inducing_patches import InducingPatches
from sgpmil.models.prevalence import shares_text
from sgpmil.notebook import counted
from sgpmil.report.pages.texts import (
    format_number,
    format_range,
    metric_name,
    setting_text,
)
from sgpmil.runs.exported_folder import GRAPH
from sgpmil.runs.material import RunFacts
from sgpmil.runs.run import Run
from sgpmil.runs.trained_model import TrainedModel

_TAGS = (
    "multiple-instance-learning",
    "digital-pathology",
    "histopathology",
    "whole-slide-images",
    "uncertainty-estimation",
)
_RESULTS = ("auc", "balanced_accuracy", "accuracy", "average_precision", "f1")
_CALIBRATION = ("ece", "ace", "nll", "brier")
_FEW_SLIDES = 200


@dataclass(frozen=True, slots=True, eq=False)
class CardContent:
    """Everything that a model card tells.

    Args:
        name: Title of the card, and name of the model in commands.
        model: The model.
        license: Name of its licence, as the hub spells it; empty where nobody said.
        run: The run that it is of; None for a checkpoint of unknown origin.
        facts: Counts of the run's slides.
        assessment: Measurements of the run; None where it has no labelled test slide.
        graph_outputs: Outputs of the ONNX graph beside the card; empty where there is none.
    """

    name: str
    model: TrainedModel
    license: str = ""
    run: Run | None = None
    facts: RunFacts | None = None
    assessment: Assessment | None = None
    graph_outputs: tuple[str, ...] = ()


def model_card(content: CardContent) -> str:
    """Write the model card."""
    sections = (
        _introduction(content),
        _usage(content),
        _intended_use(content),
        _data(content),
        _results(content),
        _calibration(content),
        _limits(content),
        _training(content),
        _versions(content),
    )
    front = yaml.safe_dump(_front_matter(content), sort_keys=False, allow_unicode=True)
    return f"---\n{front}---\n\n" + "\n".join(section for section in sections if section)


def _front_matter(content: CardContent) -> dict[str, Any]:
    first = content.model.infos[0]
    found: dict[str, Any] = {"library_name": "sgpmil"}
    if content.license:
        found["license"] = content.license
    found["tags"] = [*_TAGS, first.model, *(["onnx"] if content.graph_outputs else [])]
    values = _metric_values(content)
    if values:
        found["model-index"] = [
            {
                "name": content.name,
                "results": [
                    {
                        "task": {"type": "image-classification", "name": "Slide classification"},
                        "dataset": {"type": "slides", "name": _data_name(content), "split": "test"},
                        "metrics": values,
                    }
                ],
            }
        ]
    return found


def _metric_values(content: CardContent) -> list[dict[str, Any]]:
    assessment = content.assessment
    if assessment is None:
        return []
    found = []
    for metric in assessment.summary:
        if metric.name not in (*_RESULTS, *_CALIBRATION) or math.isnan(metric.mean):
            continue
        one: dict[str, Any] = {
            "type": metric.name,
            "name": metric_name(metric.name),
            "value": round(metric.mean, 4),
        }
        intervals = assessment.intervals[0] if len(assessment.folds) == 1 else None
        if intervals is not None:
            ends = intervals.of(metric.name)
            if not math.isnan(ends.low):
                one["args"] = {
                    "interval": [round(ends.low, 4), round(ends.high, 4)],
                    "level": intervals.level,
                }
        elif len(assessment.folds) > 1 and not math.isnan(metric.sd):
            one["args"] = {"folds": len(assessment.folds), "sd": round(metric.sd, 4)}
        found.append(one)
    return found


def _data_name(content: CardContent) -> str:
    facts = content.facts
    return "unknown" if facts is None else f"{counted(facts.num_slides, 'slide')} of one data set"


def _introduction(content: CardContent) -> str:
    model, first = content.model, content.model.infos[0]
    encoders = " or ".join(model.encoders)
    together = (
        f"{len(model)} models, one a fold of a cross-validation, which predict together: "
        "probabilities are their mean."
        if len(model) > 1
        else "one model."
    )
    rows = [
        ("Model", f"`{first.model}`: {together}"),
        ("Input", f"a bag of patch embeddings of a slide, N × {model.in_dim}, float32"),
        ("Encoder", f"`{encoders}`" if encoders else "not recorded; see below"),
        ("Classes", ", ".join(f"{k} = {name}" for k, name in enumerate(model.class_names))),
        ("Prevalence", _prevalence(model)),
        ("Parameters", f"{sum(p.num_parameters() for p in model):,}"),
    ]
    return (
        f"# {content.name}\n\n"
        "A classifier of whole-slide images from patch embeddings, by multiple instance learning. "
        "It gives class probabilities with their uncertainty, and the attention of each patch.\n\n"
        + _table(("", ""), rows)
    )


def _prevalence(model: TrainedModel) -> str:
    known = [shares.expected for m in model if (shares := m.shares) is not None]
    if len(known) < len(model):
        return "not recorded: probabilities are for the class shares that training drew"
    mean = [sum(part) / len(known) for part in zip(*known, strict=True)]
    several = " (mean over folds)" if len(known) > 1 else ""
    return (
        f"probabilities are for {shares_text(mean, model.target)}{several}; `prevalence` changes it"
    )


def _usage(content: CardContent) -> str:
    graph = (
        f"\n`{GRAPH}` is the prediction as a graph for ONNX Runtime: input `features` (N × "
        f"{content.model.in_dim}), outputs {', '.join(f'`{o}`' for o in content.graph_outputs)}.\n"
        if content.graph_outputs
        else ""
    )
    return (
        "## How to use it\n\n"
        "With sgpmil installed:\n\n```bash\n"
        "sgpmil predict FOLDER features/ --out predictions   # FOLDER: this one, or its hub name\n"
        "```\n\n"
        "```py\nimport sgpmil\n\n"
        'model = sgpmil.load("FOLDER")\n'
        'table = model.predict(sgpmil.read_bags("features"))\n'
        "table.probs, table.predictions[0].std, table.predictions[0].instances.attention_mean\n"
        "```\n\n"
        f"Features must come from {_encoder_text(content)}, on patches of the same size and "
        f"resolution as in training.\n{graph}"
    )


def _encoder_text(content: CardContent) -> str:
    encoders = " or ".join(f"`{name}`" for name in content.model.encoders)
    return encoders or f"the encoder of the training, with {content.model.in_dim} features"


def _intended_use(content: CardContent) -> str:
    names = content.model.class_names
    return (
        "## Intended use\n\n"
        f"Research on slides like those of the training: to tell {' from '.join(names)}, to rank "
        "slides by uncertainty, and to show which patches the model looked at. It is not a medical "
        "device, and no diagnosis may rest on it. Measure it on slides of your own before you rely "
        "on its numbers.\n"
    )


def _data(content: CardContent) -> str:
    facts, run = content.facts, content.run
    if facts is None or run is None:
        return "## Data\n\nIt is not recorded which slides the model was trained on.\n"
    counts = zip(content.model.class_names, facts.class_counts, strict=True)
    rows = [
        ("Slides", f"{facts.num_slides:,} of {counted(facts.num_patients, 'patient')}"),
        ("Classes", ", ".join(f"{name} {count:,}" for name, count in counts)),
    ]
    if facts.bag_sizes:
        sizes = facts.bag_sizes
        rows.append(
            (
                "Patches of a slide",
                f"{min(sizes):,} to {max(sizes):,}, median {round(median(sizes)):,}",
            )
        )
    rows += [
        (
            f"Fold {name}",
            f"{len(split.train):,} training, {len(split.val):,} validation and "
            f"{len(split.test):,} test slides",
        )
        for name, split in run.splits.items()
        if name in content.model.names
    ]
    print_of = run.provenance.data_fingerprint
    if print_of is not None:
        rows.append(("Fingerprint", f"`{print_of[:16]}`"))
    synthetic = "\nThe slides are **synthetic**.\n" if facts.is_synthetic else ""
    return (
        "## Data\n\n"
        + _table(("", ""), rows)
        + f"\nSlides, classes and patches are those of the test slides of all folds.\n{synthetic}"
    )


def _results(content: CardContent) -> str:
    assessment = content.assessment
    if assessment is None:
        return "## Results\n\nThe model comes without measurements.\n"
    several = len(assessment.folds) > 1
    rows: list[tuple[str, ...]] = []
    for metric in assessment.summary:
        if metric.name not in _RESULTS or math.isnan(metric.mean):
            continue
        value = format_number(metric.mean)
        if several:
            value += f" ± {format_number(metric.sd)}"
        rows.append((metric_name(metric.name), value, *_fold_cells(assessment, metric.name)))
    names = [f"fold {fold.fold}" for fold in assessment.folds] if several else ["95 % interval"]
    slides = [counted(fold.slide.num_slides, "slide") for fold in assessment.folds]
    header = ("", "mean ± sd" if several else "value", *names)
    counts = ("Test slides", "" if several else slides[0], *(slides if several else ("",)))
    text = (
        "Each fold's model on its own test slides, which it has not seen. All folds together, as "
        "exported, are not measured: every slide has trained some fold."
        if several
        else "The model on its test slides, which it has not seen."
    )
    known = next((one for one in assessment.intervals if one is not None), None)
    how = (
        ""
        if known is None
        else f" In brackets: {known.level:.0%} bootstrap intervals over patients "
        f"({known.rounds:,} rounds), for other patients and the same model."
    )
    return f"## Results\n\n{text}{how}\n\n" + _table(header, [counts, *rows])


def _fold_cells(assessment: Assessment, name: str) -> Iterable[str]:
    several = len(assessment.folds) > 1
    for number, fold in enumerate(assessment.folds):
        intervals = assessment.intervals[number] if assessment.intervals else None
        ends = None if intervals is None else intervals.of(name)
        span = "" if ends is None else f"[{format_range(ends.low, ends.high)}]"
        yield f"{format_number(fold.slide[name])} {span}".strip() if several else span


def _calibration(content: CardContent) -> str:
    assessment = content.assessment
    if assessment is None:
        return ""
    several = len(assessment.folds) > 1
    rows = [
        (
            metric_name(metric.name),
            format_number(metric.mean) + (f" ± {format_number(metric.sd)}" if several else ""),
        )
        for metric in assessment.summary
        if metric.name in _CALIBRATION
    ]
    wanted = ("temperature", "ECE after", "LAC: coverage", "LAC: classes in a set")
    names = {
        "temperature": "Temperature, fitted on validation slides",
        "ECE after": "ECE with that temperature",
        "LAC: coverage": "Coverage of prediction sets that promise 90 %",
        "LAC: classes in a set": "Classes in such a set",
    }
    fitted = [
        (names[row.name], format_number(row.mean))
        for row in assessment.uncertainty.calibration_rows
        if row.name in wanted and not math.isnan(row.mean)
    ]
    rows += fitted
    only = " The temperature is only measured: the exported model does not apply it."
    return (
        "## Calibration\n\nOf a calibrated model, 80 % of the slides that are predicted with a "
        f"probability of .8 are right.{only if fitted else ''}\n\n"
        + _table(("", "mean over folds" if several else "value"), rows)
    )


def _limits(content: CardContent) -> str:
    facts, model = content.facts, content.model
    lines = [
        "Slides of another scanner, stain, hospital or organ can be predicted wrong with high "
        "confidence. `novelty_p` of a prediction tests whether a slide is like those of the "
        "training; it does not find every difference.",
        "The probabilities are right only for the prevalence above. Give that of your slides "
        "(`--prevalence`).",
        "Attention shows where the model looked. It is no segmentation and no proof of a finding.",
    ]
    if facts is not None and facts.num_slides < _FEW_SLIDES:
        lines.append(
            f"It was developed on {counted(facts.num_slides, 'slide')}, which is few: intervals "
            "are wide, and rare appearances are missing."
        )
    if facts is not None and facts.encoders_not_for_pathology:
        lines.append(
            f"The encoder {', '.join(facts.encoders_not_for_pathology)} learned from everyday "
            "photographs. Encoders trained on pathology are better."
        )
    if facts is not None and facts.is_synthetic:
        lines.append("It was trained on synthetic slides and knows no real tissue.")
    patches = [m for net in model for m in net.modules() if isinstance(m, InducingPatches)]
    if patches:
        named = any(origin.slide_id for part in patches for origin in part.origins)
        lines.append(
            f"The weights hold the embeddings of {sum(map(len, patches)):,} training patches (the "
            f"inducing patches), {'with' if named else 'without'} the names of their slides."
        )
    return "## Limits\n\n" + "".join(f"- {line}\n" for line in lines)


def _training(content: CardContent) -> str:
    first = content.model.infos[0]
    parts = [("Model settings", first.settings)]
    if content.run is not None:
        parts.append(("Training settings", content.run.settings.get("training", {})))
    text = "## Training settings\n"
    for title, settings in parts:
        rows = [(f"`{name}`", setting_text(value)) for name, value in settings.items()]
        if rows:
            text += f"\n<details><summary>{title}</summary>\n\n"
            text += _table(("setting", "value"), rows) + "\n</details>\n"
    return text


def _versions(content: CardContent) -> str:
    if content.run is None:
        return ""
    found = content.run.provenance
    versions: Mapping[str, str] = {"python": found.python or "–", **found.versions}
    rows = [
        ("Trained", found.created or "–"),
        *((name, str(version)) for name, version in versions.items()),
        ("Seed", "–" if found.seed is None else str(found.seed)),
    ]
    return "## Versions\n\n" + _table(("", ""), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    cells = (
        ["\\|".join(str(cell).split("|")).replace("\n", " ") for cell in line] for line in lines
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)
