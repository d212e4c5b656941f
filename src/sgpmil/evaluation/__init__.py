"""Predictions → metrics: what a model said of slides, and how right and how sure it was.

==================  ============================================================================
file                holds
==================  ============================================================================
predictor           a model and bags become predictions
prediction          what a model says of one slide
instance_scores     what it says of the slide's instances
prediction_table    the predictions of a set of slides
metrics             every metric of slides and instances: add one here
operating_point     the sensitivity at a specificity
calibration         adaptive and expected calibration error, Brier score, log-likelihood
brier               the Brier score taken apart
ranking             the area under the ROC curve and average precision
patients            slides of the same patient
bootstrap           confidence intervals by patient; `resampling` makes them fast
localisation/       the same at length: annotations, thresholds, lesions
uncertainty/        whether uncertainty points at the errors; temperature, prediction sets, deferral
comparison/         whether one run is better than another
lipschitz           how much a model can amplify a change of an instance
summary             folds: evaluate one, summarise all, write the table
assessment          all of it for a run; `assessment_files` writes it
==================  ============================================================================

A table of predictions is the only input, so the predictions of any other system are evaluated
in the same way. Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from sgpmil.on_demand import names_on_demand

if TYPE_CHECKING:
    from sgpmil.evaluation.assessment import (
        Assessment,
        AssessmentOptions,
        TestedFold,
        assess,
        write_assessment,
    )
    from sgpmil.evaluation.bootstrap import Interval, Intervals, bootstrap_intervals
    from sgpmil.evaluation.calibration import (
        BrierDecomposition,
        adaptive_calibration_error,
        brier_decomposition,
        brier_score,
        expected_calibration_error,
        negative_log_likelihood,
        reliability_curve,
    )
    from sgpmil.evaluation.comparison.comparability import FoldPredictions, check_own_test_slides
    from sgpmil.evaluation.comparison.compare import compare
    from sgpmil.evaluation.comparison.delong import delong_test
    from sgpmil.evaluation.comparison.result import Comparison
    from sgpmil.evaluation.comparison.significance import (
        corrected_t_test,
        holm,
        paired_t_test,
        wilcoxon_test,
    )
    from sgpmil.evaluation.comparison.tables import write_comparison_tables
    from sgpmil.evaluation.lipschitz import lipschitz_paths
    from sgpmil.evaluation.localisation.instance_evaluation import (
        InstanceEvaluation,
        InstanceOptions,
        evaluate_instances,
    )
    from sgpmil.evaluation.metrics import (
        METRICS,
        InstanceMetrics,
        Metric,
        SlideMetrics,
        confusion_matrix,
        instance_auc,
    )
    from sgpmil.evaluation.prediction import InstanceScores, Prediction
    from sgpmil.evaluation.prediction_table import PredictionTable, by_patient, without_patients
    from sgpmil.evaluation.predictor import iter_predictions, predict
    from sgpmil.evaluation.ranking import sensitivity_at_specificity
    from sgpmil.evaluation.summary import (
        FoldMetrics,
        MetricSummary,
        evaluate,
        summarise,
        write_metrics,
    )
    from sgpmil.evaluation.uncertainty.analysis import uncertainty_over_folds
    from sgpmil.evaluation.uncertainty.conformal import fit_conformal
    from sgpmil.evaluation.uncertainty.decisions import fit_deferral
    from sgpmil.evaluation.uncertainty.measures import (
        correct_versus_wrong,
        error_auroc,
        selective_prediction,
    )
    from sgpmil.evaluation.uncertainty.temperature import fit_temperature
else:
    __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "Assessment": "assessment",
            "AssessmentOptions": "assessment",
            "BrierDecomposition": "calibration",
            "Comparison": "comparison.result",
            "FoldMetrics": "summary",
            "FoldPredictions": "comparison.comparability",
            "InstanceEvaluation": "localisation.instance_evaluation",
            "InstanceMetrics": "metrics",
            "InstanceOptions": "localisation.instance_evaluation",
            "InstanceScores": "prediction",
            "Interval": "bootstrap",
            "Intervals": "bootstrap",
            "METRICS": "metrics",
            "Metric": "metrics",
            "MetricSummary": "summary",
            "Prediction": "prediction",
            "PredictionTable": "prediction_table",
            "SlideMetrics": "metrics",
            "TestedFold": "assessment",
            "adaptive_calibration_error": "calibration",
            "assess": "assessment",
            "bootstrap_intervals": "bootstrap",
            "brier_decomposition": "calibration",
            "brier_score": "calibration",
            "by_patient": "prediction_table",
            "check_own_test_slides": "comparison.comparability",
            "compare": "comparison.compare",
            "confusion_matrix": "metrics",
            "correct_versus_wrong": "uncertainty.measures",
            "corrected_t_test": "comparison.significance",
            "delong_test": "comparison.delong",
            "error_auroc": "uncertainty.measures",
            "evaluate": "summary",
            "evaluate_instances": "localisation.instance_evaluation",
            "expected_calibration_error": "calibration",
            "fit_conformal": "uncertainty.conformal",
            "fit_deferral": "uncertainty.decisions",
            "fit_temperature": "uncertainty.temperature",
            "holm": "comparison.significance",
            "instance_auc": "metrics",
            "iter_predictions": "predictor",
            "lipschitz_paths": "lipschitz",
            "negative_log_likelihood": "calibration",
            "paired_t_test": "comparison.significance",
            "predict": "predictor",
            "reliability_curve": "calibration",
            "selective_prediction": "uncertainty.measures",
            "sensitivity_at_specificity": "ranking",
            "summarise": "summary",
            "uncertainty_over_folds": "uncertainty.analysis",
            "wilcoxon_test": "comparison.significance",
            "without_patients": "prediction_table",
            "write_assessment": "assessment",
            "write_comparison_tables": "comparison.tables",
            "write_metrics": "summary",
        },
    )

__all__ = [
    "METRICS",
    "Assessment",
    "AssessmentOptions",
    "BrierDecomposition",
    "Comparison",
    "FoldMetrics",
    "FoldPredictions",
    "InstanceEvaluation",
    "InstanceMetrics",
    "InstanceOptions",
    "InstanceScores",
    "Interval",
    "Intervals",
    "Metric",
    "MetricSummary",
    "Prediction",
    "PredictionTable",
    "SlideMetrics",
    "TestedFold",
    "adaptive_calibration_error",
    "assess",
    "bootstrap_intervals",
    "brier_decomposition",
    "brier_score",
    "by_patient",
    "check_own_test_slides",
    "compare",
    "confusion_matrix",
    "correct_versus_wrong",
    "corrected_t_test",
    "delong_test",
    "error_auroc",
    "evaluate",
    "evaluate_instances",
    "expected_calibration_error",
    "fit_conformal",
    "fit_deferral",
    "fit_temperature",
    "holm",
    "instance_auc",
    "iter_predictions",
    "lipschitz_paths",
    "negative_log_likelihood",
    "paired_t_test",
    "predict",
    "reliability_curve",
    "selective_prediction",
    "sensitivity_at_specificity",
    "summarise",
    "uncertainty_over_folds",
    "wilcoxon_test",
    "without_patients",
    "write_assessment",
    "write_comparison_tables",
    "write_metrics",
]
