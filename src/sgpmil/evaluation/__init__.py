"""Predictions of slides, and metrics of predictions.

================  ==============================================================================
file              contents
================  ==============================================================================
predictor         predictions of a model for bags
novelty_warning   warning of slides that are unlike the training slides
prediction        the prediction of one slide, with the scores of its instances
prediction_table  the predictions of a set of slides, by slide or by patient
metrics           every metric of slides and instances; add a metric here
calibration       calibration errors, Brier score with its parts, log-likelihood
ranking           area under the ROC curve, average precision, sensitivity at a specificity
bootstrap         confidence intervals by patient; `resampling` makes them fast
summary           metrics of a fold, and their summary over folds
localisation/     instance scores against annotations: thresholds, lesions, pixels
uncertainty/      uncertainty as a sign of errors; temperature, prediction sets, deferral
comparison/       tests of whether one run is better than another
lipschitz         bounds on how much a model amplifies a change of an instance
assessment        all metrics of a run, and their tables
================  ==============================================================================

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
    from sgpmil.evaluation.novelty_warning import NoveltyWarning
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
            "assessment": "Assessment AssessmentOptions TestedFold assess write_assessment",
            "bootstrap": "Interval Intervals bootstrap_intervals",
            "calibration": (
                "BrierDecomposition adaptive_calibration_error brier_decomposition "
                "brier_score expected_calibration_error negative_log_likelihood "
                "reliability_curve"
            ),
            "comparison.comparability": "FoldPredictions check_own_test_slides",
            "comparison.compare": "compare",
            "comparison.delong": "delong_test",
            "comparison.result": "Comparison",
            "comparison.significance": "corrected_t_test holm paired_t_test wilcoxon_test",
            "comparison.tables": "write_comparison_tables",
            "lipschitz": "lipschitz_paths",
            "localisation.instance_evaluation": (
                "InstanceEvaluation InstanceOptions evaluate_instances"
            ),
            "metrics": "METRICS InstanceMetrics Metric SlideMetrics confusion_matrix instance_auc",
            "novelty_warning": "NoveltyWarning",
            "prediction": "InstanceScores Prediction",
            "prediction_table": "PredictionTable by_patient without_patients",
            "predictor": "iter_predictions predict",
            "ranking": "sensitivity_at_specificity",
            "summary": "FoldMetrics MetricSummary evaluate summarise write_metrics",
            "uncertainty.analysis": "uncertainty_over_folds",
            "uncertainty.conformal": "fit_conformal",
            "uncertainty.decisions": "fit_deferral",
            "uncertainty.measures": "correct_versus_wrong error_auroc selective_prediction",
            "uncertainty.temperature": "fit_temperature",
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
    "NoveltyWarning",
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
