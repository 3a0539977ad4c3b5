"""Asynchronous embodied training: experience flows all the time, the learner takes it as it comes.

     weights (versioned, every weight_sync_interval steps)
   ┌──────────────────────────────────────┐
   ▼                                      │
rollout ── rollout_channel ──▶ env ── replay_channel ──▶ learner
   ▲                            │
   └─────── env_channel ────────┘
"""

from __future__ import annotations

from headrace.runners.embodied import EmbodiedRunner, RunResult


class AsyncRunner(EmbodiedRunner):
    """Interaction is started once and runs freely; how far it may run ahead is bounded by the replay channel."""

    trains_ahead = True

    def run(self) -> RunResult:
        self.update_rollout_weights()
        interacting = self.interact()
        generating = self.generate()
        receiving = self.learner.recv_rollout_trajectories(self.replay_channel)
        running = [interacting, generating, receiving]

        while not self.is_finished():
            with self.timer("train"):
                results = self.learner.run_training(self.config.data_wait_s).wait(unless_failed=running)
            if results[0] is None:
                self.console.note(f"no training step: too little data within {self.config.data_wait_s} s")
                continue
            self.after_step(results)

        return self._stop(running)
