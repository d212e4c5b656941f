"""Ten lines, as in a notebook: cross-validate SGPMIL on digit bags and look at one bag."""

from sgpmil import TrainingSettings, cross_validate
from sgpmil.bags import make_kfold
from sgpmil.experiments.digits import digit_bags

bags = digit_bags()
folds = make_kfold(bags.label_table(), num_folds=2)
result = cross_validate(bags, folds, training=TrainingSettings(epochs=10, bags_per_step=4))
print({metric.name: round(metric.mean, 3) for metric in result.summary()})
first = result.predictions[0].predictions[0]
print(first.slide_id, first.probs.round(3), first.std.round(3))
print(first.instances.attention_mean.round(3), first.instances.instance_labels)
