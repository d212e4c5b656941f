import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import SettingsError
from sgpmil.gp.noise import RepeatableNoise, ZeroNoise
from sgpmil.models import build_model, load_model, save_model
from sgpmil.models.mixmil import MIN_BAGS

from .small import IN_DIM, SMALL, random_bags


def labelled_bags(count, *, num_classes=2, seed=0, dtype=torch.float64, share=None):
    """Bags of different sizes whose class shifts one feature."""
    generator = torch.Generator().manual_seed(seed)
    bags = []
    for b in range(count):
        label = b % num_classes if share is None else int(b < share * count)
        size = int(torch.randint(1, 9, (1,), generator=generator))
        x = torch.randn(size, IN_DIM, generator=generator).to(dtype) + 3
        x[:, label] += 1.5
        bags.append(Bag(x, f"m{b}", label=label))
    return bags


def mixmil(bags, *, num_classes=2, dtype=torch.float64, away=True, **settings):
    """A small model that has seen the bags; its effects are away from their start."""
    torch.manual_seed(0)
    model = build_model(
        "mixmil", in_dim=IN_DIM, num_classes=num_classes, **{**SMALL["mixmil"], **settings}
    ).to(dtype)
    batch = BagBatch.pack(bags)
    model.initialise(batch, seed=0)
    if away:
        with torch.no_grad():
            model.posterior.mean.normal_()
            model.intercept.normal_()
        model.conclude([batch])
    return model.eval()


def functions(model, seed=0):
    """Effects of the posterior's mean and of prediction's samples, by the posterior's formula."""
    posterior, S = model.posterior, model.settings.num_samples
    P, E = posterior.mean.shape
    if posterior.is_full:
        flat = RepeatableNoise(seed).per_function(S, 2 * P * E, torch.zeros(1))
        first, second = flat.double().view(S, 2, P, E).unbind(1)
        draws = [
            [
                posterior.mean[p] + posterior.factor[p] @ first[s, p] + 0.01 * second[s, p]
                for p in range(P)
            ]
            for s in range(S)
        ]
    else:
        eps = RepeatableNoise(seed).per_function(S, P * E, torch.zeros(1)).double().view(S, P, E)
        deviation = posterior.log_variance.exp().sqrt()
        draws = [[posterior.mean[p] + deviation[p] * eps[s, p] for p in range(P)] for s in range(S)]
    return [list(posterior.mean), *draws]


@torch.no_grad()
def bag_effect(model, features, effect):
    """Weights, values and r of one bag for one function and output, by loops."""
    x = ((features - model.standardise.mean) / model.standardise.scale).clamp(-5, 5)
    if model.settings.projection_dim:
        x = x @ model.projection.weight.T + model.projection.bias
    Q = x.shape[1]
    x = x / math.sqrt(Q)
    u, z = effect[:Q], effect[Q:]
    b = math.sqrt((z**2).mean())
    powers = [math.exp(row @ u) for row in x]
    weights = [power / sum(powers) for power in powers]
    values = [float(row @ z) / b for row in x]
    return weights, values, sum(w * t for w, t in zip(weights, values, strict=True)), b


def statistics(model, bags):
    """Mean and unbiased deviation of r over bags for each function and output, by loops."""
    means, deviations = [], []
    for effects in functions(model):
        r = torch.tensor([[bag_effect(model, bag.features, e)[2] for e in effects] for bag in bags])
        means.append(r.double().mean(0))
        deviations.append(r.double().std(0))
    return torch.stack(means), torch.stack(deviations)


@torch.no_grad()
@pytest.mark.parametrize(
    ("num_classes", "settings"),
    [
        (2, {}),
        (2, {"projection_dim": 0, "covariance": "mean_field"}),
        (2, {"likelihood": "categorical"}),
        (3, {}),
    ],
)
def test_every_sample_by_hand(num_classes, settings):
    """Statistics, logits, attention and evidence from the formulas, by loops."""
    bags = labelled_bags(9, num_classes=num_classes)
    model = mixmil(bags, num_classes=num_classes, **settings)
    mean, std = statistics(model, bags)
    assert torch.allclose(model.effect_mean, mean, atol=1e-6)
    assert torch.allclose(model.effect_std, std, atol=1e-6)
    new = labelled_bags(5, num_classes=num_classes, seed=3)
    output = model(BagBatch.pack(new))
    start = 0
    for i, bag in enumerate(new):
        rows = slice(start, start := start + bag.num_instances)
        predicted = int(output.probs[i].mean(0).argmax()) if len(model.intercept) > 1 else 0
        for s, effects in enumerate(functions(model)):
            logits, shares = [], []
            for p, effect in enumerate(effects):
                weights, values, r, b = bag_effect(model, bag.features, effect)
                logits.append(model.intercept[p] + b * (r - mean[s, p]) / std[s, p])
                shares.append(
                    [
                        b * w * (t - mean[s, p]) / std[s, p]
                        for w, t in zip(weights, values, strict=True)
                    ]
                )
                if p == predicted:
                    found = output.score[rows] if s == 0 else output.attention[s - 1, rows]
                    assert torch.allclose(found, torch.tensor(weights).double(), atol=1e-6)
            if s == 0:
                continue
            if len(logits) == 1:
                logits = [torch.zeros(()), *logits]
                shares = [[0.0] * bag.num_instances, *shares]
            logits, shares = torch.stack(logits), torch.tensor(shares).T
            assert torch.allclose(output.logits[i, s - 1], logits.double(), atol=1e-5)
            assert torch.allclose(output.evidence_samples[s - 1, rows], shares.double(), atol=1e-5)
            bias = logits - output.evidence_samples[s - 1, rows].sum(0)
            own = (
                model.intercept if len(model.intercept) > 1 else torch.tensor([0, model.intercept])
            )
            assert torch.allclose(bias, own.double(), atol=1e-5)


@torch.no_grad()
def test_no_noise_is_the_posterior_mean_with_its_statistics():
    bags = labelled_bags(9)
    model = mixmil(bags)
    output = model(BagBatch.pack(bags), noise=ZeroNoise())
    mean, std = statistics(model, bags)
    for i, bag in enumerate(bags):
        _, _, r, b = bag_effect(model, bag.features, model.posterior.mean[0])
        expected = model.intercept[0] + b * (r - mean[0, 0]) / std[0, 0]
        assert torch.allclose(output.logits[i, :, 1], expected.expand(4), atol=1e-6)
    assert torch.allclose(output.attention, output.score.expand(4, -1))


@torch.no_grad()
def test_a_bag_alone_is_predicted_as_in_company():
    """The published code standardises by the batch it predicts: alone, a bag is always 0."""
    bags = labelled_bags(12)
    model = mixmil(bags)
    together = model(BagBatch.pack(bags)).logits
    alone = torch.cat([model(BagBatch.pack([bag])).logits for bag in bags])
    assert torch.allclose(together, alone, atol=1e-12)
    effects = alone[..., 1] - model.intercept
    assert effects.std(0).min() > 0.1  # bags differ
    assert effects.abs().max() > 0.5
    other = model(BagBatch.pack([bags[0], *labelled_bags(5, seed=8)])).logits
    assert torch.allclose(other[0], together[0], atol=1e-12)


@torch.no_grad()
def test_without_effect_the_probability_is_of_the_intercept():
    bags = labelled_bags(8)
    model = mixmil(bags)
    model.posterior.mean.zero_()
    model.posterior.factor.zero_()
    model.intercept.fill_(-1.3)
    model.conclude([BagBatch.pack(bags)])
    output = model(BagBatch.pack(bags), noise=ZeroNoise())
    assert torch.allclose(output.probs[..., 1], torch.tensor(-1.3).sigmoid().double())
    sampled = model(BagBatch.pack(bags)).probs[..., 1]  # the jitter's spread is left
    assert (sampled - torch.tensor(-1.3).sigmoid()).abs().max() < 0.02


@torch.no_grad()
@pytest.mark.parametrize("num_classes", [2, 3])
def test_it_starts_as_a_regression_of_mean_features(num_classes):
    bags = labelled_bags(3 * num_classes, num_classes=num_classes)
    model = mixmil(bags, num_classes=num_classes, projection_dim=0, away=False)
    batch = BagBatch.pack(bags)
    x = model.standardise(batch.features)
    means = torch.stack([part.mean(0) for part in x.split(batch.sizes.tolist())])
    means -= means.mean(0)
    means /= means.var(0).sum().sqrt()
    sklearn = LogisticRegression(C=1.0, max_iter=1000).fit(means.numpy(), batch.labels)
    expected = torch.from_numpy(sklearn.predict_proba(means.numpy()))
    found = model(batch, noise=ZeroNoise())
    assert (found.probs - expected.unsqueeze(1)).abs().max() < 1e-5
    uniform = 1 / batch.sizes[batch.bag_index]
    assert torch.allclose(found.score, uniform.double())


def test_initialise_without_classes_keeps_the_start():
    torch.manual_seed(0)
    model = build_model("mixmil", in_dim=IN_DIM, num_classes=2, **SMALL["mixmil"])
    before = {key: value.clone() for key, value in model.named_parameters()}
    unlabelled = [Bag(bag.features, bag.slide_id) for bag in random_bags()]
    one_class = [Bag(bag.features, bag.slide_id, label=1) for bag in random_bags()]
    for bags in (unlabelled, one_class, random_bags((7,))):
        model.initialise(BagBatch.pack(bags), seed=0)
        for key, value in model.named_parameters():
            assert torch.equal(value, before[key]), key
        assert model(BagBatch.pack(bags)).logits.isfinite().all()


def test_initialise_repeats_itself():
    batch = BagBatch.pack(labelled_bags(12, dtype=torch.float32))
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = build_model("mixmil", in_dim=IN_DIM, num_classes=2, **SMALL["mixmil"])
        model.initialise(batch, seed=seed)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert not torch.equal(states[0]["posterior.factor"], states[2]["posterior.factor"])


def test_a_large_batch_is_standardised_by_itself():
    """The logits of each sample have the intercept as mean and b as deviation."""
    model = mixmil(labelled_bags(8), num_train_samples=5).train()
    with torch.no_grad():  # running statistics that would be wrong
        model.effect_mean.fill_(40)
        model.effect_std.fill_(9)
    batch = BagBatch.pack(labelled_bags(MIN_BAGS))
    torch.manual_seed(3)
    output = model(batch)
    torch.manual_seed(3)
    E = model.posterior.mean.shape[1]
    first, second = torch.randn(5, 2 * E).double().chunk(2, 1)
    z = (model.posterior.mean[0] + first @ model.posterior.factor[0].T + 0.01 * second)[:, E // 2 :]
    logits = output.logits[..., 1]
    assert torch.allclose(logits.mean(0), model.intercept.expand(5))
    assert torch.allclose(logits.std(0), z.square().mean(1).sqrt())


def test_a_small_batch_is_standardised_by_running_statistics():
    bags = labelled_bags(MIN_BAGS - 1)
    model = mixmil(bags).train()
    batch = BagBatch.pack(bags)
    with torch.no_grad():
        model.effect_mean.fill_(0.5)
        model.effect_std.fill_(2.0)
    output = model(batch, noise=ZeroNoise())
    r = [bag_effect(model, bag.features, model.posterior.mean[0])[2] for bag in bags]
    r = torch.tensor(r).double()
    b = model.posterior.mean[0, 5:].square().mean().sqrt()
    expected = model.intercept + b * (r - 0.5) / 2.0
    assert torch.allclose(output.logits[:, 0, 1], expected, atol=1e-6)
    # They move on by a tenth, and prediction's samples share them until training is over.
    mean = 0.9 * 0.5 + 0.1 * r.mean()
    std = (0.9 * 4.0 + 0.1 * r.var()).sqrt()
    assert torch.allclose(model.effect_mean, mean.expand(5, 1), atol=1e-6)
    assert torch.allclose(model.effect_std, std.expand(5, 1), atol=1e-6)


def test_a_bag_alone_deviates_from_the_running_mean():
    bags = labelled_bags(8)
    model = mixmil(bags).train()
    with torch.no_grad():
        model.effect_mean.fill_(0.5)
        model.effect_std.fill_(2.0)
    model(BagBatch.pack(bags[:1]), noise=ZeroNoise())
    r = bag_effect(model, bags[0].features, model.posterior.mean[0])[2]
    assert model.effect_mean[0].item() == pytest.approx(0.45 + 0.1 * r)
    assert model.effect_std[0].item() ** 2 == pytest.approx(3.6 + 0.1 * (r - 0.5) ** 2)


def test_running_statistics_come_near_those_of_all_bags():
    bags = labelled_bags(60)
    model = mixmil(bags)
    exact = model.effect_mean[0].clone(), model.effect_std[0].clone()
    with torch.no_grad():
        model.effect_mean.fill_(10)
        model.effect_std.fill_(10)
    model.train()
    means, stds = [], []
    for step in range(180):
        start = 2 * step % 60
        model(BagBatch.pack(bags[start : start + 2]), noise=ZeroNoise())
        if step >= 60:
            means.append(model.effect_mean[0].clone())
            stds.append(model.effect_std[0].clone())
    assert torch.stack(means).mean().item() == pytest.approx(exact[0].item(), abs=0.05)
    assert torch.stack(stds).mean().item() == pytest.approx(exact[1].item(), rel=0.15)


def test_a_last_batch_of_one_bag_trains():
    """A bag alone has no deviation: the published code makes NaN of it."""
    bags = labelled_bags(33, dtype=torch.float32)
    model = mixmil(bags, dtype=torch.float32).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for part in (bags[:16], bags[16:32], bags[32:]):
        batch = BagBatch.pack(part)
        optimiser.zero_grad()
        loss = model.loss(model(batch), batch.labels, 33).total
        loss.backward()
        optimiser.step()
        assert loss.isfinite()
    for key, value in model.state_dict().items():
        assert value.isfinite().all(), key
    assert model.eval()(BagBatch.pack(bags[:1])).logits.isfinite().all()


def test_bags_that_are_all_alike_train():
    bag = labelled_bags(1)[0]
    batch = BagBatch.pack([Bag(bag.features, str(i), label=i % 2) for i in range(MIN_BAGS)])
    model = mixmil(labelled_bags(8)).train()
    model.loss(model(batch), batch.labels, 16).total.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_conclude_does_not_depend_on_the_batches():
    bags = labelled_bags(11)
    model = mixmil(bags).train()
    expected = model.effect_mean.clone(), model.effect_std.clone()
    model.effect_mean.fill_(3)
    model.conclude(BagBatch.pack(part) for part in (bags[:4], bags[4:5], bags[5:]))
    assert torch.allclose(model.effect_mean, expected[0])
    assert torch.allclose(model.effect_std, expected[1])
    assert model.training


def test_conclude_counts_classes_as_often_as_training_drew_them():
    """Weights of 3 and 1 are bags that are there three times and once."""
    bags = labelled_bags(8)
    model = mixmil(bags)
    batch = BagBatch.pack(bags)
    model.train()
    output = model(batch)
    model.loss(output, torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), 8)
    assert model.bags_seen.tolist() == [6, 2]
    model.eval()
    model.loss(model(batch), batch.labels, 8)
    assert model.bags_seen.tolist() == [6, 2]  # validation does not count
    model.conclude([batch])
    repeated = [bag for bag in bags for _ in range(3 if bag.label == 0 else 1)]
    mean, std = statistics(model, repeated)
    assert torch.allclose(model.effect_mean, mean, atol=1e-6)
    # The unbiased correction is another where bags repeat.
    share = torch.tensor([3 / 16, 1 / 16] * 4)
    factor = (15 / 16) / (1 - share.square().sum())
    assert torch.allclose(model.effect_std, std * factor.sqrt(), atol=1e-6)


def test_statistics_are_part_of_the_checkpoint(tmp_path):
    bags = labelled_bags(9, dtype=torch.float32)
    model = mixmil(bags, dtype=torch.float32)
    save_model(model, tmp_path / "checkpoint.safetensors", class_names=("a", "b"))
    loaded, _ = load_model(tmp_path)
    batch = BagBatch.pack(bags)
    assert torch.equal(loaded(batch).logits, model(batch).logits)
    with torch.no_grad():
        loaded.effect_mean += 1
    assert not torch.allclose(loaded(batch).logits, model(batch).logits, atol=1e-2)


def test_loss_is_the_bound_of_a_bag():
    bags = labelled_bags(6)
    model = mixmil(bags, kl_factor=0.5)
    batch = BagBatch.pack(bags)
    output = model(batch)
    loss = model.loss(output, batch.labels, num_bags=40)
    logit = output.logits[..., 1]
    target = batch.labels.double().unsqueeze(1).expand_as(logit)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logit, target)
    assert torch.allclose(loss.terms["nll"], expected)
    assert torch.allclose(loss.terms["kl"], 0.5 * model.posterior.kl() / 40)
    assert torch.allclose(loss.total, expected + 0.5 * model.kl() / 40)


def planted_bags(count, *, seed, share=0.5):
    """One instance of a bag stands out in the first feature, and tells the class in the second."""
    generator = torch.Generator().manual_seed(seed)
    bags, keys = [], []
    for b in range(count):
        x = torch.randn(20, IN_DIM, generator=generator)
        label = int(torch.rand((), generator=generator) < share)
        key = int(torch.randint(20, (1,), generator=generator))
        x[key, 0] += 5
        x[key, 1] = 2 * (2 * label - 1) + 0.5 * torch.randn((), generator=generator)
        bags.append(Bag(x, f"p{b}", label=label))
        keys.append(key)
    return bags, torch.tensor(keys)


def train(bags, *, steps, batch_size, rate, **settings):
    model = mixmil(bags, dtype=torch.float32, away=False, num_samples=16, **settings).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        chosen = torch.randperm(len(bags))[:batch_size]
        batch = BagBatch.pack([bags[i] for i in chosen])
        optimiser.zero_grad()
        model.loss(model(batch), batch.labels, len(bags)).total.backward()
        optimiser.step()
    model.conclude([BagBatch.pack(bags)])
    return model.eval()


@pytest.mark.parametrize(("batch_size", "steps", "rate"), [(64, 150, 0.03), (2, 250, 0.01)])
def test_learns_planted_attention(batch_size, steps, rate):
    """Whatever the statistics in training: of the batch, or running."""
    bags, _ = planted_bags(128, seed=0)
    new, keys = planted_bags(100, seed=1)
    batch = BagBatch.pack(new)
    start = mixmil(bags, dtype=torch.float32, away=False, projection_dim=8)
    before = (start(batch).probs.mean(1).argmax(1) == batch.labels).float().mean()
    model = train(bags, steps=steps, batch_size=batch_size, rate=rate, projection_dim=8)
    output = model(batch)
    correct = (output.probs.mean(1).argmax(1) == batch.labels).float().mean()
    assert before < 0.8
    assert correct > 0.93
    assert (output.score.view(100, 20).argmax(1) == keys).float().mean() > 0.9


def test_mean_probability_is_near_the_base_rate():
    """Without the intercept, as the published code predicts, it would be near a half."""
    bags, _ = planted_bags(128, seed=0, share=0.1)
    rate = sum(bag.label for bag in bags) / 128
    model = train(bags, steps=60, batch_size=64, rate=0.03, projection_dim=0)
    mean = model(BagBatch.pack(bags)).probs[..., 1].mean().item()
    assert rate < 0.2
    assert mean == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 1_574_403),
        ({"projection_dim": 0}, 4_196_355),
        ({"projection_dim": 0, "covariance": "mean_field"}, 4_099),
        ({"projection_dim": 384, "likelihood": "categorical"}, 1_574_790),
    ],
)
def test_parameter_counts(settings, count):
    model = build_model("mixmil", in_dim=1024, num_classes=2, **settings)
    assert model.num_parameters() == count


def test_likelihood_says_how_many_outputs_there_are():
    def outputs(num_classes, likelihood):
        model = build_model("mixmil", in_dim=3, num_classes=num_classes, likelihood=likelihood)
        return len(model.intercept)

    assert outputs(2, "auto") == outputs(2, "bernoulli") == 1
    assert outputs(2, "categorical") == 2
    assert outputs(3, "auto") == outputs(3, "categorical") == 3
    with pytest.raises(SettingsError, match="two classes for the likelihood 'bernoulli'"):
        outputs(3, "bernoulli")


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "wrong", [{"covariance": "low_rank"}, {"likelihood": "poisson"}, {"projection_dim": -1}]
)
def test_impossible_settings(wrong):
    with pytest.raises(SettingsError):
        build_model("mixmil", in_dim=3, num_classes=2, **wrong)


def test_autocast_leaves_the_mixture_in_single_precision():
    bags = labelled_bags(MIN_BAGS, dtype=torch.float32)
    model = mixmil(bags, dtype=torch.float32)
    batch = BagBatch.pack(bags)
    single = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(batch)
        model.train()
        model.loss(model(batch), batch.labels, 16).total.backward()
    assert half.logits.dtype == half.attention.dtype == torch.float32
    assert (half.probs - single.probs).abs().max() < 0.05
    assert all(p.grad.isfinite().all() for p in model.parameters())
