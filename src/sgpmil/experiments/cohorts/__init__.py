"""Studies of the paper's cohorts: CAMELYON16, TCGA-NSCLC, PANDA and BRACS.

================  ==============================================================================
file              holds
================  ==============================================================================
cohort            what each cohort looks like, and how every model is trained on it
published         the paper's results, to stand beside those of a study
data              bags and folds of a user's folder
plan              options of a study, its runs and jobs
study             training of its jobs in processes
measures          measures of a fold, kept in a file
tables            the paper's tables
figures           the paper's figures
maps              maps of all models, and inducing points
report            tables and figures of what is finished
checks            check of a user's files before a study
costs             time, memory and disk space of a study, from measurements
synthetic         synthetic slides of a cohort
rehearsal         synthetic embeddings under the slides and labels of a cohort, on disk
================  ==============================================================================
"""
