"""What every model of the registry keeps to."""

from dataclasses import replace

import pytest
import torch

import sgpmil
from sgpmil import chunks
from sgpmil.bags.bag import BagBatch
from sgpmil.models import load_model, save_model
from sgpmil.models.embedding import MAX_DEVIATIONS

from .small import IN_DIM, SIZES, random_bags, small_model, without_noise

NAMES = [*sgpmil.list_models(), "sgpmil/points"]  # a preset with another design
every_model = pytest.mark.parametrize("name", NAMES)
with_evidence = pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in ("transmil", "dgrmil", "bag-size")]
)
IN_ORDER = ("transmil", "dgrmil")  # landmarks are means of neighbours in the order of instances
UNIFORM = ("mean-pool", "bag-size")  # attention is the same for all instances
PROBABILISTIC = ("agp", "sgpmil", "sgpmil/points", "bayesmil", "mixmil")
both_dtypes = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["f32", "f64"]
)


PARAMETERS = {
    "abmil": 657_283,
    "agp": 1_209_622,
    "bag-size": 4,
    "bayesmil": 1_315_588,
    "clam-mb": 922_632,
    "clam-sb": 922_247,
    "dgrmil": 4_211_218,
    "dsmil": 153_860,
    "kernel-attention": 919_941,
    "max-pool": 525_826,
    "mean-pool": 525_826,
    "mixmil": 1_574_403,
    "sgpmil": 680_085,
    "sgpmil/points": 1_209_686,
    "transmil": 2_672_146,
}


@every_model
def test_parameter_count_is_the_published(name):
    model_name, _, preset = name.partition("/")
    model = sgpmil.build_model(
        model_name, in_dim=1024, num_classes=2, **({"preset": preset} if preset else {})
    )
    assert model.num_parameters() == PARAMETERS[name]


@every_model
@both_dtypes
@pytest.mark.parametrize("num_classes", [2, 4])
def test_output(name, num_classes, dtype, tolerance):
    model = small_model(name, num_classes=num_classes, dtype=dtype)
    output = model(BagBatch.pack(random_bags(dtype=dtype)))
    B, T, S = len(SIZES), sum(SIZES), output.logits.shape[1]
    assert output.logits.shape == (B, S, num_classes)
    assert output.attention.shape == (S if output.moments is None else 1, T)
    assert (S > 1) == model.is_probabilistic == (name in PROBABILISTIC)
    for value in (output.logits, output.attention, output.score):
        assert value.dtype == dtype
        assert value.isfinite().all()
    assert torch.allclose(output.probs.sum(-1), torch.ones(B, S, dtype=dtype))
    assert (output.attention >= 0).all()
    if S > 1:
        several = torch.tensor(SIZES) > 1
        assert output.logits[several].std(1).amax(1).min() > 0
        assert output.score_std.max() > 0


@every_model
@both_dtypes
def test_a_packed_batch_gives_what_the_bags_give_one_by_one(name, dtype, tolerance):
    model = small_model(name, dtype=dtype)
    bags = random_bags(dtype=dtype)
    packed = model(BagBatch.pack(bags))
    start = 0
    for b, bag in enumerate(bags):
        alone = model(BagBatch.pack([bag]))
        rows = slice(start, start := start + bag.num_instances)
        # Of some bags more samples are drawn; those of the others are repeated as often.
        logits = alone.logits[0].repeat(packed.logits.shape[1] // alone.logits.shape[1], 1)
        assert (packed.logits[b] - logits).abs().max() < tolerance
        assert (packed.attention[:, rows] - alone.attention).abs().max() < tolerance
        assert (packed.score[rows] - alone.score).abs().max() < tolerance
        if packed.evidence is not None:
            assert (packed.evidence[rows] - alone.evidence).abs().max() < 10 * tolerance
            assert (packed.evidence_std[rows] - alone.evidence_std).abs().max() < 10 * tolerance


@pytest.mark.parametrize("name", [n for n in NAMES if n not in IN_ORDER])
@both_dtypes
def test_permuting_instances_permutes_scores(name, dtype, tolerance):
    model = small_model(name, dtype=dtype)
    bag = random_bags((19,), dtype=dtype)[0]
    order = torch.randperm(19, generator=torch.Generator().manual_seed(1))
    plain = without_noise(model, BagBatch.pack([bag]))
    moved = replace(bag, features=bag.features[order], coords=bag.coords[order])
    permuted = without_noise(model, BagBatch.pack([moved]))
    assert (plain.score[order] - permuted.score).abs().max() < tolerance
    if plain.evidence is not None:
        assert (plain.evidence[order] - permuted.evidence).abs().max() < tolerance
    assert (plain.logits - permuted.logits).abs().max() < tolerance
    # So that the scores' order means something.
    assert name in UNIFORM or plain.score.std() > 1e-4


@every_model
def test_features_stored_in_half_precision_give_what_their_values_give(name):
    model = small_model(name)
    half = BagBatch.pack(random_bags()).to(dtype=torch.float16)
    stored, values = model(half), model(half.to(dtype=torch.float32))
    assert torch.equal(stored.logits, values.logits)
    assert torch.equal(stored.attention, values.attention)


@every_model
def test_many_instances_are_taken_a_chunk_at_a_time(name, monkeypatch):
    """With gradients and without, chunks of 7 of the 33 instances give what all at once give."""
    batch = BagBatch.pack(random_bags(dtype=torch.float64))

    def outcome():
        model = small_model(name, dtype=torch.float64).train()
        torch.manual_seed(0)
        output = model(batch)
        model.loss(output, batch.labels, num_bags=4).total.backward()
        with torch.no_grad():
            predicted = model.eval()(batch)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        drawn = "dropout" in vars(model.settings) and model.settings.dropout > 0
        return predicted, None if drawn else torch.cat([g.flatten() for g in gradients])

    whole, whole_gradient = outcome()
    monkeypatch.setitem(chunks.ROWS, "cpu", 7)
    monkeypatch.setattr(chunks, "RECOMPUTED_ROWS", 7)
    parts, gradient = outcome()
    assert (whole.logits - parts.logits).abs().max() < 1e-10
    assert (whole.attention - parts.attention).abs().max() < 1e-10
    if gradient is not None:
        assert (whole_gradient - gradient).abs().max() < 1e-10


@every_model
def test_a_bag_of_one_instance(name):
    model = small_model(name).train()
    batch = BagBatch.pack(random_bags((1,)))
    output = model(batch)
    model.loss(output, batch.labels, num_bags=1).total.backward()
    assert output.logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    if name in ("bayesmil", "transmil"):  # a sigmoid; a rollout that keeps to the class token
        assert ((output.attention > 0) & (output.attention < 1)).all()
    elif name != "dgrmil":  # in training its attention has dropout
        assert torch.allclose(output.attention, torch.ones_like(output.attention))


STANDARDISED = {"projection.bias"}  # inputs are centred after it
# A softmax over the bag drops what is added to every instance's logit alike.
SHIFTS = {
    "abmil": {"attention.bias"},
    "clam-sb": {"attention.bias"},
    "clam-mb": {"attention.bias"},
    "kernel-attention": {"attention.bias"},
    "sgpmil": {"gp.mean.raw_constant", *STANDARDISED},
    "sgpmil/points": {"gp.mean.bias"},
    "agp": {"gp.mean.raw_constant"},
}


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        *((name, None) for name in NAMES),
        ("sgpmil", "sigmoid"),
        ("sgpmil/points", "sigmoid"),
        ("agp", "sigmoid"),
    ],
)
def test_a_gradient_reaches_every_parameter(name, activation):
    settings = {} if activation is None else {"activation": activation}
    model = small_model(name, dtype=torch.float64, **settings).train()
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    torch.manual_seed(0)
    model.loss(model(batch), batch.labels, num_bags=4).total.backward()
    shifts = SHIFTS.get(name, set()) if activation is None else SHIFTS[name] & STANDARDISED
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        size = parameter.grad.abs().max()
        if key in shifts:
            assert size < 1e-12, key
        else:
            assert size > 1e-11, key
        if key == "gp.variational.chol_variational_covar":
            lower = torch.ones_like(parameter).tril().bool()
            assert (parameter.grad[lower] != 0).all()
            assert (parameter.grad[~lower] == 0).all()


@every_model
def test_no_two_gradients_share_their_memory(name):
    # What clips gradients in place would do so once for each of them.
    model = small_model(name).train()
    batch = BagBatch.pack(random_bags())
    model.loss(model(batch), batch.labels, num_bags=4).total.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    values = [gradient.clone() for gradient in gradients]
    for gradient, value in zip(gradients, values, strict=True):
        assert torch.equal(gradient, value)
        gradient.add_(1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in ("sgpmil", "sgpmil/points", "agp")),
        *((name, {"preset": "released"}) for name in ("sgpmil/points", "agp")),
    ],
)
def test_the_process_learns_from_the_labels(name, settings):
    """The published AGP's process never received a gradient from the cross-entropy."""
    model = small_model(name, dtype=torch.float64, **settings).train()
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    loss = model.loss(model(batch), batch.labels, num_bags=4)
    terms = {term: value for term, value in loss.terms.items() if term != "kl"}
    sum(terms.values()).backward()
    shifts = SHIFTS[name] if model.settings.activation == "softmax" else set()
    for key, parameter in model.named_parameters():
        if key.startswith(("gp.", "projection.")) and key not in shifts:
            assert parameter.grad is not None, key
            assert parameter.grad.abs().max() > 1e-12, key


@every_model
def test_gradients_are_those_of_central_differences(name):
    model = small_model(name, dtype=torch.float64)  # evaluation mode: repeatable noise
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    parameters = {k: p.detach() for k, p in model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    direction = {
        k: torch.randn(p.shape, generator=generator).double() for k, p in parameters.items()
    }

    def loss(step):
        # Through the module's own parameters: the divergence is not part of the forward pass.
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(parameters[key] + step * direction[key])
        return model.loss(model(batch), batch.labels, num_bags=4).total

    parameters = {k: p.clone() for k, p in parameters.items()}
    loss(0.0).backward()
    slope = sum((p.grad * direction[k]).sum() for k, p in model.named_parameters())
    step = 1e-6
    numeric = (loss(step) - loss(-step)) / (2 * step)
    assert slope.item() == pytest.approx(numeric.item(), rel=1e-4, abs=1e-6)


@every_model
def test_same_seed_same_output(name):
    batch = BagBatch.pack(random_bags())
    first, second = small_model(name, seed=3), small_model(name, seed=3)
    assert torch.equal(first(batch).logits, second(batch).logits)
    assert not torch.equal(first(batch).logits, small_model(name, seed=4)(batch).logits)
    first.train()
    second.train()
    outputs = []
    for model in (first, second):
        torch.manual_seed(0)
        outputs.append(model(batch).logits)
    assert torch.equal(*outputs)


@every_model
def test_save_and_load_give_the_same_output(name, tmp_path):
    model = small_model(name)
    batch = BagBatch.pack(random_bags())
    save_model(model, tmp_path / "checkpoint.safetensors", class_names=("a", "b"))
    loaded, _ = load_model(tmp_path)
    before, after = model(batch), loaded(batch)
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.attention, after.attention)
    assert torch.equal(before.score, after.score)


@every_model
def test_float32_is_near_float64(name):
    model = small_model(name)
    bags = random_bags()
    single = without_noise(model, BagBatch.pack(bags))
    double = without_noise(
        model.double(), BagBatch.pack([replace(b, features=b.features.double()) for b in bags])
    )
    assert (single.logits - double.logits).abs().max() < 1e-3
    assert (single.attention - double.attention).abs().max() < 1e-3


@with_evidence
@both_dtypes
def test_evidence_adds_up_to_the_logit(name, dtype, tolerance):
    model = small_model(name, num_classes=4, dtype=dtype)
    bags = random_bags(num_classes=4, dtype=dtype)
    output = model(BagBatch.pack(bags))
    parts = output.evidence.split([bag.num_instances for bag in bags])
    total = torch.stack([part.sum(0) for part in parts])
    # What is left is the same for all bags: a bias. Moments are those at the posterior's mean.
    logits = (
        output if output.moments is None else without_noise(model, BagBatch.pack(bags))
    ).logits
    rest = logits.mean(1) - total
    assert (rest - rest[0]).abs().max() < 20 * tolerance
    assert (total - total[0]).abs().max() > 0.01


OF_ONE = [
    *((name, {}) for name in NAMES),
    *(
        (name, {"activation": "sigmoid", "pooling": p})
        for name in ("sgpmil", "sgpmil/points")
        for p in ("sum", "mean", "normalised")
    ),
    ("sgpmil/points", {"pooling": "mean"}),
    ("agp", {"activation": "sigmoid"}),
    ("dsmil", {"likelihood": "sigmoid", "value_network": True}),
    ("transmil", {"zero_padding": True}),
    ("dgrmil", {"zero_padding": True}),
]


@pytest.mark.parametrize(("name", "settings"), OF_ONE)
@pytest.mark.parametrize("num_classes", [2, 3])
def test_single_logits_are_those_of_bags_of_one_instance(name, settings, num_classes, monkeypatch):
    monkeypatch.setattr("sgpmil.models.contract._BAGS_OF_ONE", 7)
    model = small_model(name, num_classes=num_classes, dtype=torch.float64, **settings)
    bags = random_bags((5, 1, 6), num_classes=num_classes, dtype=torch.float64)
    batch = BagBatch.pack(bags)
    with torch.no_grad():
        output = model(batch)
        found = model.single_logits(batch, output)
        row = 0
        for bag in bags:
            for i in range(bag.num_instances):
                own = slice(i, i + 1)
                one = replace(bag, features=bag.features[own], coords=bag.coords[own])
                expected = model(BagBatch.pack([one])).logits[0]
                if len(found) < len(expected):  # the classifier's weights are drawn
                    expected = expected.mean(0)
                assert (found[:, row] - expected).abs().max() < 1e-9
                row += 1
    assert found.shape[1] == row
    # Instances differ, or the comparison would say nothing.
    assert name == "bag-size" or found[0].std(0).max() > 1e-3


@pytest.mark.parametrize("name", sgpmil.list_models())
def test_standardisation_is_fitted_and_part_of_the_model(name):
    torch.manual_seed(0)
    batch = BagBatch.pack(random_bags((200,)))
    features = batch.features
    features[:, 3] = 2.5
    model = sgpmil.build_model(name, in_dim=IN_DIM, num_classes=2)
    model.initialise(batch, seed=0)
    result = model.standardise(features)
    assert torch.allclose(result.mean(0), torch.zeros(IN_DIM), atol=1e-2)
    spread = torch.ones(IN_DIM)
    spread[3] = 0
    assert torch.allclose(result.std(0), spread, atol=2e-2)
    far = model.standardise(torch.full((1, IN_DIM), 1e6))
    assert torch.equal(far, torch.full((1, IN_DIM), MAX_DEVIATIONS))
    scaled = sgpmil.build_model(name, in_dim=IN_DIM, num_classes=2, standardise=False)
    scaled.initialise(batch, seed=0)
    assert torch.equal(scaled.standardise(features), features)


@pytest.mark.parametrize("name", sgpmil.list_models())
def test_the_scale_of_the_features_does_not_matter_after_initialise(name):
    bags = random_bags()
    outputs = []
    for factor in (1.0, 1024.0):
        torch.manual_seed(0)
        model = sgpmil.build_model(name, in_dim=IN_DIM, num_classes=2).eval()
        batch = BagBatch.pack([replace(bag, features=factor * bag.features) for bag in bags])
        model.initialise(batch, seed=0)
        outputs.append(without_noise(model, batch).logits)
    assert torch.allclose(*outputs, atol=1e-3)


@pytest.mark.parametrize("name", [n for n in sgpmil.list_models() if n != "bag-size"])
def test_training_fits_separable_bags(name):
    torch.manual_seed(0)
    bags = [
        replace(bag, features=torch.randn(4, IN_DIM) + 2.0 * (i % 2))
        for i, bag in enumerate(random_bags((4,) * 12))
    ]
    batch = BagBatch.pack(bags)
    model = small_model(name).train()
    model.initialise(batch, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = model.loss(model(batch), batch.labels, num_bags=12).total
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    model.eval().conclude([batch])
    predicted = model(batch).probs.mean(1).argmax(1)
    assert (predicted == batch.labels).all()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["bayesmil", "mixmil", "sgpmil", "clam-mb"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_deviation_of_the_evidence_margin(name, num_classes):
    """What `InstanceScores.score_std` says is the deviation of the samples' margins."""
    model = small_model(name, num_classes=num_classes, dtype=torch.float64)
    bag = random_bags((7,), num_classes=num_classes, dtype=torch.float64)[0]
    output = model(BagBatch.pack([bag]))
    samples, tolerance = output.evidence_samples, 1e-4
    if output.moments is not None:  # weights and classifier as independent normal variables
        drawn, tolerance = 100_000, 0.02
        mean, std = (moment.unsqueeze(1) for moment in output.moments)
        weights = mean + std * torch.randn(drawn, 7, 1, dtype=torch.float64)
        classes = torch.randn(drawn, 7, num_classes, dtype=torch.float64)
        samples = weights * (output.instance_logits + output.instance_logits_std * classes)
    elif samples is None:
        samples = output.weights.unsqueeze(2) * output.instance_logits
    scores = sgpmil.predict(model, [bag]).predictions[0].instances
    for c in range(num_classes):
        others = [k for k in range(num_classes) if k != c]
        margin = samples[..., c] - samples[..., others].mean(-1)
        expected = margin.std(0) if len(margin) > 1 else torch.zeros(7)
        found = torch.from_numpy(scores.score_std("evidence", c))
        assert torch.allclose(found.double(), expected.detach().double(), rtol=tolerance, atol=1e-6)


@every_model
def test_half_precision_features_are_taken(name):
    model = small_model(name)
    bags = [replace(bag, features=bag.features.half()) for bag in random_bags()]
    output = model(BagBatch.pack(bags))
    assert output.logits.dtype == torch.float32
    assert output.logits.isfinite().all()
