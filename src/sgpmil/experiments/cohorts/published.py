"""Results of the paper (WACV 2026), to stand beside those of a study.

Mean and standard deviation over the paper's folds, in the columns of its tables: balanced
accuracy, AUC (PANDA: quadratic kappa) and ACE. Those of instances have no standard deviation.
"""

from collections.abc import Mapping
from types import MappingProxyType

Figures = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]

_ORDER = ("abmil", "clam-sb", "transmil", "dgrmil", "bayesmil", "mixmil", "agp", "sgpmil")


def _table(*rows: Figures) -> Mapping[str, Figures]:
    return MappingProxyType(dict(zip(_ORDER, rows, strict=True)))


PUBLISHED_SLIDES: Mapping[str, Mapping[str, Figures]] = MappingProxyType(
    {
        "camelyon16": _table(
            ((0.964, 0.010), (0.990, 0.005), (0.032, 0.011)),
            ((0.978, 0.007), (0.986, 0.007), (0.021, 0.007)),
            ((0.962, 0.009), (0.980, 0.004), (0.029, 0.014)),
            ((0.960, 0.012), (0.980, 0.010), (0.045, 0.016)),
            ((0.976, 0.007), (0.981, 0.006), (0.020, 0.007)),
            ((0.960, 0.009), (0.978, 0.007), (0.430, 0.002)),
            ((0.883, 0.021), (0.954, 0.019), (0.069, 0.013)),
            ((0.980, 0.007), (0.986, 0.005), (0.021, 0.005)),
        ),
        "tcga-nsclc": _table(
            ((0.953, 0.003), (0.973, 0.009), (0.039, 0.008)),
            ((0.934, 0.014), (0.953, 0.004), (0.056, 0.016)),
            ((0.950, 0.017), (0.970, 0.012), (0.046, 0.019)),
            ((0.947, 0.024), (0.974, 0.011), (0.038, 0.022)),
            ((0.953, 0.023), (0.973, 0.021), (0.033, 0.017)),
            ((0.925, 0.015), (0.963, 0.014), (0.410, 0.025)),
            ((0.948, 0.026), (0.976, 0.014), (0.048, 0.025)),
            ((0.955, 0.021), (0.973, 0.014), (0.047, 0.027)),
        ),
        "panda": _table(
            ((0.834, 0.064), (0.910, 0.028), (0.044, 0.015)),
            ((0.867, 0.061), (0.927, 0.025), (0.031, 0.018)),
            ((0.827, 0.074), (0.911, 0.030), (0.043, 0.021)),
            ((0.843, 0.097), (0.933, 0.047), (0.036, 0.025)),
            ((0.850, 0.060), (0.926, 0.031), (0.031, 0.016)),
            ((0.690, 0.054), (0.870, 0.028), (0.180, 0.010)),
            ((0.802, 0.086), (0.906, 0.047), (0.026, 0.013)),
            ((0.900, 0.065), (0.955, 0.037), (0.028, 0.022)),
        ),
        "bracs": _table(
            ((0.694, 0.010), (0.852, 0.025), (0.175, 0.007)),
            ((0.699, 0.034), (0.850, 0.021), (0.183, 0.011)),
            ((0.676, 0.005), (0.826, 0.032), (0.186, 0.012)),
            ((0.703, 0.033), (0.818, 0.035), (0.186, 0.023)),
            ((0.648, 0.058), (0.829, 0.022), (0.183, 0.028)),
            ((0.662, 0.031), (0.855, 0.010), (0.254, 0.002)),
            ((0.634, 0.030), (0.830, 0.010), (0.134, 0.014)),
            ((0.736, 0.029), (0.870, 0.026), (0.142, 0.032)),
        ),
    }
)
"""The paper's slide metrics by cohort and row, in the order of the cohort's metrics."""


PUBLISHED_INSTANCES: Mapping[str, Mapping[str, tuple[float, float, float]]] = MappingProxyType(
    {
        "camelyon16": MappingProxyType(
            dict(
                zip(
                    _ORDER,
                    (
                        (0.775, 0.910, 0.191),
                        (0.678, 0.792, 0.245),
                        (0.578, 0.803, 0.110),
                        (0.710, 0.820, 0.264),
                        (0.787, 0.855, 0.166),
                        (0.563, 0.670, 0.256),
                        (0.864, 0.950, 0.046),
                        (0.910, 0.979, 0.059),
                    ),
                    strict=True,
                )
            )
        ),
        "bracs": MappingProxyType(
            dict(
                zip(
                    _ORDER,
                    (
                        (0.514, 0.560, 0.062),
                        (0.522, 0.590, 0.061),
                        (0.696, 0.852, 0.188),
                        (0.673, 0.720, 0.207),
                        (0.568, 0.684, 0.096),
                        (0.509, 0.528, 0.033),
                        (0.718, 0.832, 0.188),
                        (0.765, 0.899, 0.050),
                    ),
                    strict=True,
                )
            )
        ),
    }
)
"""The paper's instance metrics: accuracy, AUC, ACE over all pixels of the slide, background too."""
