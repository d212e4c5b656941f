"""Predictions → metrics: what a model said of slides, and how right and how sure it was.

================  ==============================================================================
file              holds
================  ==============================================================================
predictor         a model and bags become predictions
prediction        what a model says of one slide and of its instances
prediction_table  the predictions of a set of slides
prediction_folder the same as a folder, with the scores of the instances
prediction_files  the same as a file (parquet, CSV)
instance_files    the scores of a slide's instances as a file (HDF5)
slide_metrics     accuracy, AUC, kappa and calibration over slides
instance_metrics  how well instance scores find the positive instances
calibration       adaptive and expected calibration error, Brier score, log-likelihood
uncertainty       whether uncertainty points at the errors
ranking           the area under the ROC curve and average precision
summary           folds: evaluate one, summarise all, write the table
================  ==============================================================================

A table of predictions is the only input, so the predictions of any other system are evaluated
in the same way. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgpmil.evaluation.calibration import (
        adaptive_calibration_error,
        brier_score,
        expected_calibration_error,
        negative_log_likelihood,
        reliability_curve,
    )
    from sgpmil.evaluation.instance_files import read_instance_scores, write_instance_scores
    from sgpmil.evaluation.instance_metrics import InstanceMetrics, instance_auc
    from sgpmil.evaluation.prediction import InstanceScores, Prediction
    from sgpmil.evaluation.prediction_files import (
        read_predictions,
        write_predictions,
        write_predictions_csv,
    )
    from sgpmil.evaluation.prediction_folder import (
        read_prediction_folder,
        write_prediction_folder,
    )
    from sgpmil.evaluation.prediction_table import PredictionTable
    from sgpmil.evaluation.predictor import iter_predictions, predict
    from sgpmil.evaluation.slide_metrics import SlideMetrics
    from sgpmil.evaluation.summary import (
        FoldMetrics,
        MetricSummary,
        evaluate,
        read_metrics,
        summarise,
        write_metrics,
    )
    from sgpmil.evaluation.uncertainty import error_auroc

__all__ = [
    "FoldMetrics",
    "InstanceMetrics",
    "InstanceScores",
    "MetricSummary",
    "Prediction",
    "PredictionTable",
    "SlideMetrics",
    "adaptive_calibration_error",
    "brier_score",
    "error_auroc",
    "evaluate",
    "expected_calibration_error",
    "instance_auc",
    "iter_predictions",
    "negative_log_likelihood",
    "predict",
    "read_instance_scores",
    "read_metrics",
    "read_prediction_folder",
    "read_predictions",
    "reliability_curve",
    "summarise",
    "write_instance_scores",
    "write_metrics",
    "write_prediction_folder",
    "write_predictions",
    "write_predictions_csv",
]

_HOMES = {
    "FoldMetrics": "summary",
    "InstanceMetrics": "instance_metrics",
    "InstanceScores": "prediction",
    "MetricSummary": "summary",
    "Prediction": "prediction",
    "PredictionTable": "prediction_table",
    "SlideMetrics": "slide_metrics",
    "adaptive_calibration_error": "calibration",
    "brier_score": "calibration",
    "error_auroc": "uncertainty",
    "evaluate": "summary",
    "expected_calibration_error": "calibration",
    "instance_auc": "instance_metrics",
    "iter_predictions": "predictor",
    "negative_log_likelihood": "calibration",
    "predict": "predictor",
    "read_instance_scores": "instance_files",
    "read_metrics": "summary",
    "read_prediction_folder": "prediction_folder",
    "read_predictions": "prediction_files",
    "reliability_curve": "calibration",
    "summarise": "summary",
    "write_instance_scores": "instance_files",
    "write_metrics": "summary",
    "write_prediction_folder": "prediction_folder",
    "write_predictions": "prediction_files",
    "write_predictions_csv": "prediction_files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
