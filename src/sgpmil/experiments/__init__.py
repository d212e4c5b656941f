"""Recipes, demo, benchmarks and comparisons of models.

================  ==============================================================================
file              holds
================  ==============================================================================
recipe            one YAML file that describes an experiment
train             training of a recipe
digits            bags of handwritten digits, and the demo on them
study             variants of models over data sets, folds and seeds
jobs              jobs of a study: their result files and processes
model_study       every model on real data sets, and the time of an epoch
model_table       the table of that study
cohorts           studies of the paper's cohorts
mnist             bags of MNIST images
mnist_*           the paper's table on bags of all MNIST digits: dealing, rows, study and tables
uncertainty_*     sets, designs, measures, runs and tables of the study of uncertainty
design_study      designs on data sets that are drawn from each seed: jobs, scores, files
seed_spreads      means over seeds with intervals, paired comparisons, tables
ablation_*        one setting of SGPMIL at a time, and the grid of the paper
stress_*          every model with few targets, wrong labels, few bags
stability_*       trainings under hostile conditions, and what fails
lipschitz_study   Lipschitz bounds of trained models, and the largest gradients found
classic_mil       the classic sets of multiple instance learning
bench             time and memory of every model on random bags
bench_table       their table beside the paper's
peak_memory       peak memory of a block of code
================  ==============================================================================
"""
