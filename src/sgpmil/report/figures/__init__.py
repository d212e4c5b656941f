"""Figures, and the look they share.

=====================  ==========================================================================
file                   draws
=====================  ==========================================================================
curves                 reliability, ROC, precision and recall; the confusion matrix
uncertainty_figures    errors against confidence, temperature scaling, prediction sets
comparison_figures     runs side by side
map_figures            scores of patches at their places on the slide
map_drawing            the parts of such a map: slide, colours, outlines, marks, scale bar
patch_figures          key patches of a slide; instances of bags as pictures
prototype_map          prototypes of a slide's patches at their places
prototype_sheet        prototypes with their origins, examples and numbers
prototype_columns      the numbers beside them
bench_figures          time and memory against the size of bags
run_figures            the figures of a run, written into its folder
canvas                 colours, sizes, and how figures are saved
=====================  ==========================================================================
"""
