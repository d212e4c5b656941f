"""Every figure, and the look they share.

=========================  =====================================================================
file                       draws
=========================  =====================================================================
curves                     reliability and ROC curves
precision_recall_figures   precision and recall
confusion_figures          which classes are taken for which
uncertainty_figures        what uncertainty is worth
recalibration_figures      temperature and prediction sets
comparison_figures         runs side by side
attention_figures          the instances of bags, as pictures
map_figures                attention and evidence at their places on the slide
map_layers, map_drawing    what such a map shows, and how it lies over the slide
patch_figures              the patches to look at
prototype_figures          where prototypes are found, and what each stands for
prototype_columns          what each prototype does, in numbers
bench_figures              time and memory as bags grow
run_figures                the figures of a run, written into its folder
canvas                     the look they share, and how they are saved
=========================  =====================================================================
"""
