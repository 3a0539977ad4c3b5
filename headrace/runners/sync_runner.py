"""Synchronous embodied training: collect, then train, then hand the weights down."""

from __future__ import annotations

from pathlib import Path

from headrace.runners.embodied import EmbodiedRunner, RunResult


class SyncRunner(EmbodiedRunner):
    """Every step is on-policy; the same seed and placement give the same result."""

    trains_ahead = False

    def run(self) -> RunResult:
        self.update_rollout_weights()
        receiving = self.learner.recv_rollout_trajectories(self.replay_channel)
        fragments = (self.config.trajectories_per_step or self.env.world_size) // self.env.world_size
        while not self.is_finished():
            with self.timer("collect"):
                generating = self.generate()
                self.interact(fragments).wait(unless_failed=[generating, receiving])
                generating.wait()
            with self.timer("train"):
                results = self.learner.run_training(self.config.data_wait_s).wait(unless_failed=[receiving])
            if results[0] is not None:
                self.after_step(results)
        return self._stop([receiving])

    def _save_sources(self, directory: Path) -> list[str]:
        self.rollout.save_state(directory).wait()
        return [] if all(self.env.save_state(directory).wait()) else ["environments"]

    def _restore_sources(self, directory: Path) -> None:
        self.rollout.load_state(directory).wait()
        if not all(self.env.load_state(directory).wait()):
            self.console.note("the environments' state was not saved: fresh episodes begin")
