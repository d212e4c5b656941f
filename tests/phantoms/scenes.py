"""Settings that the tests share."""

from sgpmil.phantoms import PhantomSettings

SMALL = PhantomSettings(size=(2000, 1500), tumour_share=0.1, pen_share=1.0, fold_share=1.0)
