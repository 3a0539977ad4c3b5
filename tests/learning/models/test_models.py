"""Distributions, the normaliser, the module and its flat state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import CheckpointError, ConfigError, EnvironmentFaultError
from headrace.learning.models.config import ModelConfig
from headrace.learning.models.distributions import Bernoulli, Categorical, DiagGaussian, MultiCategorical
from headrace.learning.models.mlp_module import build_module
from headrace.learning.models.normalizer import RunningNormalizer

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTION_SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "discrete": spaces.Discrete(4),
    "multi discrete": spaces.MultiDiscrete([2, 3]),
    "multi binary": spaces.MultiBinary(3),
}


def test_the_gaussian_agrees_with_torch() -> None:
    mean, log_std = torch.randn(5, 2), torch.tensor([0.3, -0.5])
    ours, theirs = DiagGaussian(mean, log_std), torch.distributions.Normal(mean, log_std.exp())
    actions = torch.randn(5, 2)
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    sample, log_prob = ours.sample_with_log_prob(torch.Generator().manual_seed(0))
    torch.testing.assert_close(log_prob, theirs.log_prob(sample).sum(-1))


def test_case_e2_the_log_prob_is_of_the_raw_action() -> None:
    unit = DiagGaussian(torch.zeros(1, 1), torch.zeros(1))
    assert unit.log_prob(torch.tensor([[2.5]])).item() == pytest.approx(-4.04394, abs=1e-5)


@given(st.integers(0, 1000))
def test_discrete_distributions_agree_with_torch(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, 5, generator=generator)
    theirs = torch.distributions.Categorical(logits=logits)
    ours = Categorical(logits)
    actions = ours.sample(generator)
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), atol=1e-6, rtol=1e-5)
    two = MultiCategorical(logits, [2, 3])
    first, second = (torch.distributions.Categorical(logits=part) for part in logits.split([2, 3], -1))
    pair = two.sample(generator)
    expected = first.log_prob(pair[:, 0]) + second.log_prob(pair[:, 1])
    torch.testing.assert_close(two.log_prob(pair), expected, atol=1e-6, rtol=1e-5)
    coins = Bernoulli(logits)
    faces = coins.sample(generator)
    expected = torch.distributions.Bernoulli(logits=logits).log_prob(faces.float()).sum(-1)
    torch.testing.assert_close(coins.log_prob(faces), expected, atol=1e-5, rtol=1e-5)


def test_case_d3_a_masked_action_has_no_probability_and_a_finite_entropy() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    masked = Categorical(logits, torch.tensor([[True, True, False]]))
    entropy = masked.entropy()
    assert entropy.item() == pytest.approx(0.582203, abs=1e-5)
    entropy.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    probabilities = [masked.log_prob(torch.tensor([i])).exp().item() for i in range(2)]
    assert probabilities == pytest.approx([0.26894, 0.73106], abs=1e-5)
    many = Categorical(logits.detach().expand(10_000, 3), torch.tensor([[True, True, False]]).expand(10_000, 3))
    assert (many.sample(torch.Generator().manual_seed(0)) != 2).all()


def test_case_d3_a_row_without_any_allowed_action_is_named() -> None:
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[2] = False
    with pytest.raises(EnvironmentFaultError, match="env 2"):
        Categorical(torch.zeros(4, 3), mask)


@pytest.mark.parametrize(
    ("workers", "mean", "variance"), [([[0, 0], [10, 10]], 5.0, 25.0), ([[0], [4, 4, 4]], 3.0, 3.0)]
)
def test_case_j3_statistics_of_workers_merge_exactly(workers: list, mean: float, variance: float) -> None:
    normalizer = RunningNormalizer(())
    for observations in workers:
        normalizer.update(torch.tensor(observations, dtype=torch.float32))
    assert (normalizer.mean.item(), normalizer.variance.item()) == (mean, variance)


def test_case_j3_deltas_are_counted_once() -> None:
    normalizer = RunningNormalizer((2,))
    for _ in range(3):
        for _ in range(2):
            normalizer.update(torch.randn(100, 2))
    assert normalizer.count.item() == 600


@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(0, 1000))
def test_merging_in_parts_is_computing_at_once(sizes: list[int], seed: int) -> None:
    data = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 5 + 100
    normalizer = RunningNormalizer((3,))
    for part in data.split(sizes):
        normalizer.update(part)
    if len(data):
        torch.testing.assert_close(normalizer.mean, data.mean(0))
        torch.testing.assert_close(normalizer.variance, data.var(0, unbiased=False), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("space", ACTION_SPACES)
def test_what_was_explored_has_the_same_log_prob_in_training(space: str, chunks: int) -> None:
    module = build_module(ModelConfig(hidden=(8,)), BOX, ACTION_SPACES[space], num_action_chunks=chunks, seed=1)
    obs = torch.randn(6, 3)
    out = module.forward_exploration(obs, torch.Generator().manual_seed(0))
    shape = ACTION_SPACES[space].shape or ()
    assert tuple(out.actions.shape) == ((6, *shape) if chunks == 1 else (6, chunks, *shape))
    trained = module.forward_train(obs, out.actions.clone())  # an array crosses in between; this leaves inference mode
    torch.testing.assert_close(trained.log_probs, out.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(trained.values, out.values)
    assert trained.entropy.shape == (6,)
    best = module.forward_inference(obs)
    other = module.forward_inference(obs)
    assert torch.equal(best.actions, other.actions)


def test_equal_seeds_give_equal_modules_whatever_the_global_state() -> None:
    def make(seed: int) -> torch.Tensor:
        torch.manual_seed(torch.seed())
        return build_module(ModelConfig(), BOX, ACTION_SPACES["box"], seed=seed).flat_parameters()

    assert torch.equal(make(1), make(1))
    assert not torch.equal(make(1), make(2))


def test_the_flat_state_is_exact_and_knows_its_module() -> None:
    module = build_module(ModelConfig(hidden=(8,)), BOX, ACTION_SPACES["box"], seed=1)
    module.update_statistics(torch.tensor(3.0), torch.full((3,), math.pi, dtype=torch.float64), torch.ones(3).double())
    copy = build_module(ModelConfig(hidden=(8,)), BOX, ACTION_SPACES["box"], seed=2).inference_copy()
    copy.load_flat(module.flat_parameters())
    for (name, ours), theirs in zip(module.state_dict().items(), copy.state_dict().values()):
        assert torch.equal(ours, theirs), name
    obs = torch.randn(4, 3)
    assert torch.equal(module.forward_inference(obs).actions, copy.forward_inference(obs).actions)
    other = build_module(ModelConfig(hidden=(9,)), BOX, ACTION_SPACES["box"], seed=1)
    with pytest.raises(CheckpointError):
        other.load_flat(module.flat_parameters())
    assert not any(parameter.requires_grad for parameter in copy.parameters())


def test_images_are_scaled_once() -> None:
    space = spaces.Box(0, 255, (2, 2, 3), np.uint8)
    module = build_module(ModelConfig(normalize_obs=False, hidden=(4,)), space, spaces.Discrete(2), seed=0)
    white = torch.full((1, 2, 2, 3), 255, dtype=torch.uint8)
    assert torch.equal(module._flatten(white), torch.ones(1, 12))


def test_spaces_that_cannot_be_acted_in_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.action_space"):
        build_module(ModelConfig(), BOX, spaces.Text(3))
