"""What a user may hook into the main loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shoal.types import EpisodeEnd, Iteration


class Callback:
    """Override what you need. Returning True from any of them asks the run to stop at this iteration's end.

    Overriding an iteration or update hook makes the fused engine answer after every iteration instead of about every second;
    overriding an episode hook makes it report single episodes. Neither changes a bit of the result.
    """

    def on_start(self, loop: Any) -> bool | None: ...
    def on_iteration_start(self, loop: Any, iteration: int) -> bool | None: ...
    def on_iteration_end(self, loop: Any, iteration: int, result: Iteration) -> bool | None: ...
    def on_episode_start(self, loop: Any, env: int) -> bool | None: ...
    def on_episode_end(self, loop: Any, episode: EpisodeEnd) -> bool | None: ...
    def on_update(self, loop: Any, metrics: dict[str, float]) -> bool | None: ...
    def on_evaluation(self, loop: Any, scores: Any) -> bool | None: ...
    def on_checkpoint(self, loop: Any, path: Path) -> bool | None: ...
    def on_stop(self, loop: Any, reason: str) -> bool | None: ...


class Callbacks:
    """All of a run's callbacks, called in the order they were given."""

    def __init__(self, callbacks: tuple[Callback, ...]):
        self._all = callbacks
        self.asked_to_stop = False
        self.want_iterations = self._overridden("on_iteration_start", "on_iteration_end", "on_update")
        self.want_episodes = self._overridden("on_episode_start", "on_episode_end")

    def _overridden(self, *names: str) -> bool:
        return any(getattr(type(c), name) is not getattr(Callback, name) for c in self._all for name in names)

    def _call(self, name: str, *args: Any) -> None:
        for callback in self._all:
            if getattr(callback, name)(*args) is True:
                self.asked_to_stop = True

    def start(self, loop: Any) -> None:
        self._call("on_start", loop)
        if self.want_episodes and loop.iteration == 0:
            for env in range(loop.plan.num_envs):
                self._call("on_episode_start", loop, env)

    def iteration_start(self, loop: Any) -> None:
        if self.want_iterations:
            self._call("on_iteration_start", loop, loop.iteration)

    def iteration_end(self, loop: Any, result: Iteration) -> None:
        for episode in result.ended:
            self._call("on_episode_end", loop, episode)
            self._call("on_episode_start", loop, episode.env)
        self._call("on_update", loop, result.metrics)
        self._call("on_iteration_end", loop, loop.iteration - 1, result)

    def evaluation(self, loop: Any, scores: Any) -> None:
        self._call("on_evaluation", loop, scores)

    def checkpoint(self, loop: Any, path: Path) -> None:
        self._call("on_checkpoint", loop, path)

    def stop(self, loop: Any, reason: str) -> None:
        self._call("on_stop", loop, reason)
