"""Learner: the update of the PPO family: loss, backward, optimiser."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.core.errors import CheckpointError
from headrace.learning.data.trajectory import Trajectory
from headrace.learning.learners.batch import TrainBatch, build_batch
from headrace.learning.learners.config import PPOSettings
from headrace.learning.learners.flat_parameters import FlatParameters
from headrace.learning.learners.parallel import Parallel, Single
from headrace.learning.models.rl_module import RLModule
from headrace.learning.objectives.advantages import whiten
from headrace.learning.objectives.losses import PolicyLoss, decoupled_ppo_loss, ppo_loss, value_loss


class Learner:
    """Owns a module's training: `update(trajectories)` makes one new version of it.

    Data-parallel ranks draw minibatches from one common permutation of all ranks' decisions, each computing the
    part it holds, so the result is that of a single learner with all the data, however unevenly it is spread.
    The module's parameters are moved into one vector (see FlatParameters).
    """

    def __init__(
        self, settings: PPOSettings, module: RLModule, parallel: Parallel | None = None, seed: int = 0
    ) -> None:
        self.settings = settings
        self.module = module.train()
        self.parallel = parallel or Single()
        self.version = 0
        self.skipped_updates = 0
        self._flat = FlatParameters(module)
        self._optimizer = torch.optim.Adam(
            [self._flat.vector],
            lr=settings.lr,
            betas=(0.9, settings.adam_beta2),
            eps=settings.adam_epsilon,
            fused=True,
        )
        self._generator = torch.Generator().manual_seed(seed)
        self._share_start()

    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Train on `trajectories` (of this rank; may be none where other ranks have some); the next version.

        Returns metrics over all ranks: train/policy_loss, value_loss, entropy, approx_kl (to the policy that the
        ratio refers to), clip_fraction, grad_norm, lr, explained_variance, staleness (mean, versions), ratio_error
        (mean |difference of log-probabilities| of the policy before the update and the behaviour policy),
        epochs, samples, skipped_updates (optimiser steps left out because a gradient was not finite, so far).
        Averages of nothing are absent.
        """
        batch = build_batch(trajectories, self.module, self.settings)
        counts = self._gather_counts(len(batch))
        total = int(counts.sum())
        lr = self.settings.lr_at(self.version)
        self._optimizer.param_groups[0]["lr"] = lr
        metrics = {"train/lr": lr, "train/samples": float(total)}
        if total:
            metrics |= self._describe(batch, trajectories, total)
            if self.settings.normalize_advantages:
                whitened = whiten(batch.advantages, reduce=self.parallel.all_reduce_sum)
                batch = dataclasses.replace(batch, advantages=whitened)
            metrics |= self._optimize(batch, counts)
            self._update_statistics(batch)
        self.version += 1
        metrics["train/skipped_updates"] = float(self.skipped_updates)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on; `load_state_dict` goes on bit-equal."""
        return {
            "module": {name: tensor.clone() for name, tensor in self.module.state_dict().items()},
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "version": self.version,
            "skipped_updates": self.skipped_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises CheckpointError where the state is of another module."""
        try:
            self.module.load_state_dict(state["module"])
            self._optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"learner state does not fit this module: {error}") from error
        self._generator.set_state(state["generator"])
        self.version = state["version"]
        self.skipped_updates = state["skipped_updates"]

    def _share_start(self) -> None:
        """Every rank begins with rank 0's weights, statistics and permutations."""
        if self.parallel.world_size == 1:
            return
        for tensor in self.module.state_dict().values():
            self.parallel.broadcast(tensor)
        self.module.refresh()
        self._generator.set_state(self.parallel.broadcast(self._generator.get_state()))

    def _gather_counts(self, count: int) -> Tensor:
        counts = torch.zeros(self.parallel.world_size, dtype=torch.int64)
        counts[self.parallel.rank] = count
        return self.parallel.all_reduce_sum(counts)

    def _optimize(self, batch: TrainBatch, counts: Tensor) -> dict[str, float]:
        """Epochs of minibatches. Returns the losses' averages over all of them."""
        sums = torch.zeros(6, dtype=torch.float64)
        norms: list[float] = []
        epochs = 0
        for _ in range(self.settings.epochs):
            epoch_sums = torch.zeros(6, dtype=torch.float64)
            for part, size in self._minibatches(batch, counts):
                self._flat.gradient.zero_()
                if len(part):
                    epoch_sums += self._backward(part, size)
                norms.append(self._step())
            sums += epoch_sums
            epochs += 1
            if self.settings.target_kl is not None and self._mean_kl(epoch_sums) > self.settings.target_kl:
                break
        policy, value, entropy, kl, clipped, count = self.parallel.all_reduce_sum(sums).tolist()
        return {
            "train/policy_loss": policy / count,
            "train/value_loss": value / count,
            "train/entropy": entropy / count,
            "train/approx_kl": kl / count,
            "train/clip_fraction": clipped / count,
            "train/grad_norm": sum(norms) / len(norms),
            "train/epochs": float(epochs),
        }

    def _mean_kl(self, sums: Tensor) -> float:
        total = self.parallel.all_reduce_sum(sums.clone())
        return float(total[3] / total[5])

    def _minibatches(self, batch: TrainBatch, counts: Tensor) -> Iterator[tuple[TrainBatch, int]]:
        """This rank's parts of the minibatches of one epoch, with each one's size over all ranks."""
        total, size = int(counts.sum()), self.settings.minibatch_size
        order = torch.randperm(total, generator=self._generator)
        first = int(counts[: self.parallel.rank].sum())
        mine = (order >= first) & (order < first + len(batch))
        # Shuffled once per epoch: minibatches are then plain slices.
        rows = order[mine] - first
        shuffled = batch.map(lambda tensor: tensor[rows])
        ends = torch.cumsum(mine, 0)
        start = 0
        for begin in range(0, total, size):
            stop_all = min(begin + size, total)
            stop = int(ends[stop_all - 1])
            piece = slice(start, stop)
            yield shuffled.map(lambda tensor, piece=piece: tensor[piece]), stop_all - begin
            start = stop

    def _backward(self, part: TrainBatch, size: int) -> Tensor:
        """Add the gradient of this part / `size` to the gradient vector; returns sums for the metrics [6]."""
        settings = self.settings
        out = self.module.forward_train(part.obs, part.actions)
        policy = self._policy_loss(out.log_probs, part)
        value = value_loss(out.values, part.returns, part.values, settings.value_clip)
        policy_sum, value_sum, entropy_sum = policy.loss.sum(), value.sum(), out.entropy.sum()
        loss = torch.add(policy_sum, value_sum, alpha=settings.value_coef)
        if settings.entropy_coef:
            loss = torch.sub(loss, entropy_sum, alpha=settings.entropy_coef)
        (loss / size).backward()
        with torch.no_grad():
            ratio = policy.ratio
            kl = (ratio - 1.0 - ratio.log()).sum()
            sums = (policy_sum, value_sum, entropy_sum, kl, policy.clipped.sum(), torch.tensor(float(len(part))))
            return torch.stack([item.detach().double() for item in sums])

    def _policy_loss(self, log_probs: Tensor, part: TrainBatch) -> PolicyLoss:
        s = self.settings
        if s.loss == "ppo":
            return ppo_loss(log_probs, part.log_probs, part.advantages, s.clip_low, s.clip_high, s.dual_clip)
        return decoupled_ppo_loss(
            log_probs,
            part.proximal_log_probs,
            part.log_probs,
            part.advantages,
            s.clip_low,
            s.clip_high,
            s.dual_clip,
            s.behaviour_weight_cap,
        )

    def _step(self) -> float:
        """One optimiser step with the gradient summed over the ranks; returns its norm before clipping.

        The sum is the same on every rank, so a gradient that is not finite is skipped by all together.
        """
        gradient = self.parallel.all_reduce_sum(self._flat.gradient)
        norm = float(torch.linalg.vector_norm(gradient))
        if not norm < float("inf"):
            self.skipped_updates += 1
            return norm
        if norm > self.settings.max_grad_norm:
            gradient.mul_(self.settings.max_grad_norm / norm)
        self._optimizer.step()
        return norm

    def _describe(self, batch: TrainBatch, trajectories: Sequence[Trajectory], total: int) -> dict[str, float]:
        """Metrics of the data before the first step, over all ranks."""
        error = (batch.proximal_log_probs - batch.log_probs).abs().double().sum()
        returns = batch.returns.double()
        residual = returns - batch.values.double()
        lag = sum(float((self.version - t.versions[t.mask]).sum()) for t in trajectories)
        sums = torch.stack(
            [
                error,
                torch.tensor(lag, dtype=torch.float64),
                returns.sum(),
                returns.square().sum(),
                residual.sum(),
                residual.square().sum(),
            ]
        )
        means = self.parallel.all_reduce_sum(sums) / total
        metrics = {"train/ratio_error": float(means[0]), "train/staleness": float(means[1])}
        variance = float(means[3] - means[2].square())
        if variance > 0.0:
            metrics["train/explained_variance"] = 1.0 - float(means[5] - means[4].square()) / variance
        return metrics

    def _update_statistics(self, batch: TrainBatch) -> None:
        """Merge the observations of all ranks into the normaliser: after the update, so that its policy ratio was 1."""
        shape = self.module.statistics_shape
        if shape is None:
            return
        features = self.module.raw_features(batch.obs).double() if len(batch) else torch.zeros(0, *shape).double()
        count_and_sum = torch.cat([torch.tensor([float(len(batch))]).double(), features.sum(0)])
        count_and_sum = self.parallel.all_reduce_sum(count_and_sum)
        mean = count_and_sum[1:] / count_and_sum[0]
        m2 = self.parallel.all_reduce_sum((features - mean).square().sum(0))
        self.module.update_statistics(count_and_sum[0], mean, m2)
