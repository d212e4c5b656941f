"""The rule for the regions of BRACS.

BRACS draws regions of seven subtypes on its slides, and not all of the tissue. A region is
positive where its subtype belongs to the coarse class of its slide, and negative otherwise.
What lies outside every region is unknown: a slide of a malignant tumour has more of it than was
drawn. (`unannotated="negative"` is the variant that counts it as negative.)
"""

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.regions import RegionRule, Unannotated

__all__ = ["bracs_rule"]

_SUBTYPES = {
    "BT": ("N", "Normal", "PB", "Pathological Benign", "UDH", "Usual Ductal Hyperplasia"),
    "AT": ("FEA", "Flat Epithelial Atypia", "ADH", "Atypical Ductal Hyperplasia"),
    "MT": ("DCIS", "Ductal Carcinoma In Situ", "IC", "Invasive Carcinoma"),
}
"""Subtypes of each coarse class: benign, atypical and malignant tumours."""

_COARSE = {
    "bt": "BT",
    "benign": "BT",
    "group_bt": "BT",
    "at": "AT",
    "atypical": "AT",
    "group_at": "AT",
    "mt": "MT",
    "malignant": "MT",
    "group_mt": "MT",
}


def bracs_rule(slide_class: str, unannotated: Unannotated = "unknown") -> RegionRule:
    """Give the rule for a slide of a coarse class.

    Args:
        slide_class: ``BT``, ``AT`` or ``MT`` (or benign, atypical, malignant).
        unannotated: What tissue outside every region is.

    Raises:
        AnnotationError: There is no such class.

    Example:
        >>> bracs_rule("AT").positive
        ('FEA', 'Flat Epithelial Atypia', 'ADH', 'Atypical Ductal Hyperplasia')
    """
    coarse = _COARSE.get(slide_class.strip().casefold())
    if coarse is None:
        raise AnnotationError(
            f"Expected a slide of BRACS of class BT, AT or MT, but got '{slide_class}'. "
            "Name the classes of the predictions so."
        )
    others = [name for key, names in _SUBTYPES.items() if key != coarse for name in names]
    return RegionRule(positive=_SUBTYPES[coarse], negative=tuple(others), unannotated=unannotated)
