"""The figures of a run, written into its folder."""

from collections.abc import Sequence
from pathlib import Path

from sgpmil.bags.files import file_name
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.curves import reliability_figure, roc_figure
from sgpmil.report.figures.map_figures import attention_map_figure

NUM_MAPS = 4
"""Folds of which a map is drawn: of the test slide surest to be of the last class."""


def write_run_figures(folder: Path, tables: Sequence[PredictionTable]) -> list[Path]:
    """Draw reliability, ROC and a few attention maps.

    Returns:
        The files written.
    """
    written = []
    labelled = [table.labelled() for table in tables]
    labelled = [table for table in labelled if len(table)]
    if labelled:
        save_figure(reliability_figure(_pooled(labelled)), folder / "reliability.png")
        save_figure(roc_figure(labelled), folder / "roc.png")
        written += [folder / "reliability.png", folder / "roc.png"]
    for table in tables[:NUM_MAPS]:
        class_index = table.target.num_outputs - 1
        chosen = max(table.predictions, key=lambda p: float(p.probs[class_index]))
        scores = chosen.instances
        if scores is None or scores.coords is None:
            continue
        figure = attention_map_figure(
            scores,
            f"{chosen.slide_id}: {table.target.names[class_index]} "
            f"{chosen.probability_text(class_index)}",
            class_index=class_index,
            class_name=table.target.names[class_index],
        )
        path = folder / f"attention-{file_name(chosen.slide_id)}.png"
        save_figure(figure, path)
        written.append(path)
    return written


def _pooled(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Put test sets together; a slide tested in several folds counts in the first."""
    seen: set[str] = set()
    predictions = []
    for table in tables:
        for prediction in table.predictions:
            if prediction.slide_id not in seen:
                seen.add(prediction.slide_id)
                predictions.append(prediction)
    return PredictionTable(tuple(predictions), tables[0].target)
