"""How well patches are found, as a section of the page."""

import math
from collections.abc import Sequence

from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.localisation.lesion_detection import FALSE_POSITIVE_RATES, LesionRow
from sgpmil.evaluation.localisation.localisation import LOCALISATION_METRICS, LocalisationRow
from sgpmil.report.pages.blocks import Block, Prose, Section, Table
from sgpmil.report.pages.number_texts import told_mean

__all__ = ["localisation_section"]


def localisation_section(assessment: Assessment | None) -> Section:
    """Tell how well the scores of patches find the positive ones.

    Args:
        assessment: What was measured; None where no slide has a label.
    """
    found = None if assessment is None else assessment.instances
    if found is None:
        missing = Prose(
            "No patch has a label, so it cannot be measured whether the model looks at the right "
            "places. Annotations label them: sgpmil report … --annotations FOLDER.",
            "note",
        )
        return Section("localisation", "Localisation", (missing,))
    groups: dict[tuple[str, str], list[LocalisationRow]] = {}
    for row in found.localisation:
        groups.setdefault((row.score, row.scope), []).append(row)
    rows = tuple(
        (
            score,
            scope.replace("_", " "),
            *(told_mean([getattr(row, name) for row in own]) for name in LOCALISATION_METRICS),
            f"{sum(row.num_instances for row in own):,}",
        )
        for (score, scope), own in groups.items()
    )
    blocks: list[Block] = [
        Prose(
            "How well attention and evidence rank positive patches above others, as means over "
            "folds. “per slide” averages over positive slides with both kinds of patch; “pooled” "
            "takes all patches together, those of negative slides included. Uniform and random "
            "attention know nothing and are there to compare with."
        ),
        Table(
            (
                "Score",
                "Scope",
                *(metric.short_name for metric in LOCALISATION_METRICS.values()),
                "Patches",
            ),
            rows,
            "Localisation. Thresholds are chosen on validation slides.",
            num_words=2,
        ),
    ]
    if found.lesions:
        blocks += _lesions(found.lesions)
    notes = [row.note for row in found.localisation] + [row.note for row in found.lesions]
    blocks += [Prose(note, "note") for note in dict.fromkeys(notes) if note]
    return Section("localisation", "Localisation", tuple(blocks))


def _lesions(rows: Sequence[LesionRow]) -> list[Block]:
    groups: dict[str, list[LesionRow]] = {}
    for row in rows:
        if row.froc is not None:
            groups.setdefault(row.score, []).append(row)
    if not groups:
        return []
    cells = []
    for score, own in groups.items():
        curves = [row.froc for row in own if row.froc is not None]
        at_rates = zip(*(curve.sensitivities for curve in curves), strict=True)
        cells.append(
            (
                score,
                *(told_mean(list(values)) for values in at_rates),
                told_mean([curve.mean for curve in curves]),
                f"{sum(curve.num_lesions for curve in curves if not math.isnan(curve.mean)):,}",
            )
        )
    return [
        Table(
            ("Score", *(f"{rate:g} FP" for rate in FALSE_POSITIVE_RATES), "Mean", "Lesions"),
            tuple(cells),
            "Lesions found (FROC as of CAMELYON16): sensitivity at false positives a slide, means "
            "over folds.",
        )
    ]
