"""Losses: values, gradients, and what an extreme ratio does to them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.learning.objectives.aggregation import masked_mean, sequence_mean
from headrace.learning.objectives.kl import k1, k2, k3
from headrace.learning.objectives.losses import bounded_ratio, decoupled_ppo_loss, ppo_loss, value_loss

floats = st.floats(-3, 3, width=32)


def test_case_d1_an_extreme_ratio_without_advantage_has_no_gradient() -> None:
    log_probs = torch.tensor([200.0, 0.0], requires_grad=True)
    loss = ppo_loss(log_probs, torch.zeros(2), torch.tensor([0.0, 1.0]), 0.2, 0.2).loss.sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [0.0, -1.0]


def test_case_d1_the_bound_leaves_ordinary_ratios_alone() -> None:
    differences = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(
        bounded_ratio(differences, torch.zeros_like(differences)), differences.exp(), rtol=1e-7, atol=0
    )


def test_case_d1_k3_stays_finite() -> None:
    log_ratio = torch.tensor([200.0, -200.0, 0.0], requires_grad=True)
    total = k3(log_ratio).sum()
    total.backward()
    assert torch.isfinite(total)
    assert log_ratio.grad is not None
    assert torch.isfinite(log_ratio.grad).all()


def test_case_d1_a_nan_is_not_hidden() -> None:
    loss = ppo_loss(torch.tensor([torch.nan]), torch.zeros(1), torch.ones(1), 0.2, 0.2).loss
    assert loss.isnan().all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "clipped"),
    [
        (1.5, 1.0, 1.2, True),
        (0.5, 1.0, 0.5, False),
        (1.5, -1.0, -1.5, False),
        (0.5, -1.0, -0.8, True),
        (1.1, 2, 2.2, False),
    ],
)
def test_ppo_takes_the_pessimistic_of_the_two(ratio: float, advantage: float, objective: float, clipped: bool) -> None:
    out = ppo_loss(torch.tensor([ratio]).log(), torch.zeros(1), torch.tensor([float(advantage)]), 0.2, 0.2)
    assert -out.loss.item() == pytest.approx(objective, abs=1e-6)
    assert out.clipped.item() is clipped


def test_dual_clip_bounds_the_objective_of_a_bad_action() -> None:
    out = ppo_loss(torch.tensor([10.0]).log(), torch.zeros(1), torch.tensor([-1.0]), 0.2, 0.2, dual_clip=3.0)
    assert -out.loss.item() == pytest.approx(-3.0)
    assert out.clipped.item()


@given(st.lists(st.tuples(floats, floats, floats), min_size=1, max_size=5))
def test_decoupled_ppo_is_ppo_where_the_policies_agree(rows: list[tuple[float, float, float]]) -> None:
    new, old, advantages = torch.tensor(rows).unbind(-1)
    plain = ppo_loss(new, old, advantages, 0.2, 0.2)
    decoupled = decoupled_ppo_loss(new, old, old, advantages, 0.2, 0.2, weight_cap=5.0)
    torch.testing.assert_close(decoupled.loss, plain.loss)


def test_the_decoupled_weight_is_detached_and_capped() -> None:
    proximal = torch.zeros(2, requires_grad=True)
    behaviour = torch.tensor([-1.0, -9.0])
    out = decoupled_ppo_loss(proximal, proximal.detach(), behaviour, torch.ones(2), 0.2, 0.2, weight_cap=5.0)
    out.loss.sum().backward()
    assert proximal.grad is not None
    assert (-proximal.grad).tolist() == pytest.approx([2.718282, 5.0], rel=1e-5)


def test_a_clipped_value_takes_the_larger_loss() -> None:
    values, returns, old = torch.tensor([2.0, 2.0]), torch.tensor([3.0, 0.0]), torch.zeros(2)
    assert value_loss(values, returns).tolist() == [0.5, 2.0]
    assert value_loss(values, returns, old, clip=0.5).tolist() == pytest.approx([3.125, 2.0])


@pytest.mark.parametrize(
    ("estimator", "expected"), [(k1, "zero"), (k2, "kl of policy to reference"), (k3, "kl of reference to policy")]
)
def test_estimators_have_the_gradient_their_name_promises(estimator, expected: str) -> None:
    """In expectation over an exact categorical, with samples taken as given."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.5, -0.4], dtype=torch.float64).log_softmax(0)
    log_probs = logits.log_softmax(0)
    loss = (log_probs.exp().detach() * estimator(log_probs - reference)).sum()
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    exact = {
        "zero": torch.zeros(3, dtype=torch.float64),
        "kl of policy to reference": torch.autograd.grad(
            (log_probs.exp() * (log_probs - reference)).sum(), logits, retain_graph=True
        )[0],
        "kl of reference to policy": torch.autograd.grad(
            (reference.exp() * (reference - log_probs)).sum(), logits, retain_graph=True
        )[0],
    }[expected]
    torch.testing.assert_close(gradient, exact, atol=1e-12, rtol=1e-9)


@given(st.lists(st.lists(floats, min_size=0, max_size=4), min_size=1, max_size=4), st.data())
def test_case_c1_a_token_mean_does_not_depend_on_the_split(sequences: list[list[float]], data: st.DataObject) -> None:
    count = sum(len(sequence) for sequence in sequences)
    width = max(len(sequence) for sequence in sequences)
    values = torch.full((len(sequences), width), torch.nan, dtype=torch.float64)
    mask = torch.zeros(len(sequences), width, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        values[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.float64)
        mask[row, : len(sequence)] = True
    whole = masked_mean(values, mask)
    cut = data.draw(st.integers(0, len(sequences)))
    parts = [masked_mean(values[rows], mask[rows], count) for rows in (slice(0, cut), slice(cut, None))]
    assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-9)


def test_case_c1_token_mean_of_uneven_sequences() -> None:
    values = torch.tensor([[4.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    assert masked_mean(values, mask).item() == 1.75
    assert sequence_mean(values, mask, 2).item() == 2.5


def test_nan_on_padding_touches_neither_value_nor_gradient() -> None:
    values = torch.tensor([1.0, torch.nan], requires_grad=True)
    loss = masked_mean(values * 2, torch.tensor([True, False]))
    loss.backward()
    assert loss.item() == 2.0
    assert values.grad is not None
    assert values.grad[0].item() == 2.0
    assert not values.grad[1].isnan()


def test_an_empty_batch_has_loss_zero() -> None:
    assert masked_mean(torch.zeros(2), torch.zeros(2, dtype=torch.bool)).item() == 0.0
