"""A ready-made vector of environments as a lane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from shoal import rng
from shoal.envs import rows
from shoal.envs.gym_vector import GymVector
from shoal.host_lane import ActFn, HostRecord, check_like, checksums, chunk, guarded, map2, with_row
from shoal.loops import Scores
from shoal.specs import zeros
from shoal.types import Chunk, Episodes, Memory, Params, Role, Transition, Tree


class VectorLane:
    """A ready-made vector of environments as a lane: it resets itself, in its own way and with its own generators.

    Rows in which an environment only reset are not valid. Evaluation borrows the environments: the running episodes are given up.
    """

    def __init__(self, vector: GymVector, *, seed: int, num_steps: int, memory_fn: Callable[[int], Memory],
                 acting_fn: Callable[[Params], ActFn], noise_fn: Callable[[int, int], Tree], role: Role):
        self.lane, self.size, self.spec, self._vector = 0, vector.num_envs, vector.spec, vector
        self._seed, self._num_steps, self._acting, self._noise, self._role = seed, num_steps, acting_fn, noise_fn, role
        self._fresh_memory = memory_fn(self.size)
        self._episode = np.zeros(self.size, np.int64)
        self._obs = zeros(self.spec.obs, (self.size,))
        self._begin()

    def _begin(self) -> None:
        """New episodes everywhere, seeded by how many there were."""
        obs = self._vector.reset(rng.host_seed(self._seed, rng.Stream.ENV, self.lane, int(self._episode.sum())))
        check_like(self.spec.name, zeros(self.spec.obs), rows.each(lambda x: x[0], obs), "reset")
        rows.write(self._obs, ..., obs)
        self._returns, self._lengths = np.zeros(self.size), np.zeros(self.size, np.int64)
        self._memory = self._fresh_memory

    def make(self, params: Params, version: int, seq: int) -> Chunk:
        return chunk(self, params, version, seq)

    def _steps(self, params: Params, noise: Tree) -> tuple[Transition, Episodes]:
        act_fn, shape = self._acting(params), (self._num_steps, self.size)
        obs, next_obs = zeros(self.spec.obs, shape), zeros(self.spec.obs, shape)
        reward, returns = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        terminated, last, valid = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape, bool)
        lengths, ended = np.zeros(shape, np.int32), np.zeros(shape, bool)
        actions: list[np.ndarray] = []
        for t in range(self._num_steps):
            rows.write(obs, t, self._obs)
            acted = act_fn(self._memory, rows.row(obs, t), self._role, rows.row(noise, t))
            self._memory = acted.memory
            actions.append(np.asarray(acted.action))
            moved = self._vector.step(actions[t])
            rows.write(next_obs, t, moved.obs)
            rows.write(self._obs, ..., moved.following)
            ended[t] = moved.terminated | moved.truncated
            # a row that only reset ends too: policy memory starts afresh after it, here and in the learner
            reward[t], terminated[t], last[t], valid[t] = moved.reward, moved.terminated, ended[t] | ~moved.played, moved.played
            self._returns += moved.reward
            self._lengths += moved.played
            returns[t], lengths[t] = self._returns, self._lengths
            if last[t].any():
                self._renew(ended[t], last[t])
        alive = 1.0 - terminated.astype(np.float32)
        data = Transition(obs, np.stack(actions), reward, alive, next_obs, last, valid.astype(np.float32), ())
        return data, Episodes(ended, returns * ended, lengths * ended)

    def _renew(self, ended: np.ndarray, last: np.ndarray) -> None:
        self._episode += ended
        self._returns[ended], self._lengths[ended] = 0.0, 0
        if not (isinstance(self._memory, tuple) and self._memory == ()):
            self._memory = map2(lambda now, new: with_row(now, last, np.asarray(new)[last]), self._memory, self._fresh_memory)

    def record(self) -> HostRecord:
        """How far the lane is; where its environments stand cannot be said."""
        return HostRecord(self._episode.copy(), self._returns.copy(), self._lengths.copy(), np.ones(self.size, bool), (),
                          checksums(self._obs, self.size), self._memory, rows.each(np.copy, self._obs), ())

    def restore(self, record: HostRecord, *, inexact: bool) -> list[str]:
        """Start new episodes after those of ``record``, and say so: they are all that can be had, asked for or not."""
        self._episode = record.episode + 1
        self._begin()
        return [f"{self.spec.name}: a ready-made vector cannot be brought back to where it stood; "
                f"its {self.size} environments start new episodes"]

    def evaluate(self, act_fn: ActFn, noise_fn: Callable[[int, int], Tree], episodes: int, role: Role, limit: int) -> Scores:
        """Scores of ``episodes`` episodes, one on each environment at a time; those of training start anew afterwards."""
        returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
        for first in range(0, episodes, self.size):
            part = slice(first, min(first + self.size, episodes))
            play = partial(self._play, act_fn, partial(noise_fn, first), first, part.stop - first, role, limit)
            returns[part], lengths[part] = guarded(self.spec.name, play)
        self._episode += 1
        self._begin()
        return Scores(returns, lengths, np.full(episodes, np.nan))

    def _play(self, act_fn: ActFn, noise_fn: Callable[[int], Tree], first: int, num: int, role: Role, limit: int
              ) -> tuple[np.ndarray, np.ndarray]:
        """One episode on each of the first ``num`` environments; what the others, and those that are done, do is ignored."""
        rows.write(self._obs, ..., self._vector.reset(rng.host_seed(self._seed, rng.Stream.EVAL_ENV, first)))
        returns, lengths, memory, t = np.zeros(self.size), np.zeros(self.size, np.int64), self._fresh_memory, 0
        present, greedy, noise = np.arange(self.size) < num, bool(np.asarray(role.greedy).all()), None
        while present.any() and t < limit:
            noise = noise_fn(t) if t == 0 or not greedy else noise  # what is not used need not be drawn anew
            acted = act_fn(memory, self._obs, role, noise)
            moved, memory = self._vector.step(np.asarray(acted.action)), acted.memory
            rows.write(self._obs, ..., moved.following)
            returns += np.where(present, moved.reward, 0.0)
            lengths += present
            present &= ~(moved.terminated | moved.truncated)
            t += 1
        return returns[:num], lengths[:num]

    def close(self) -> None:
        """Nothing: the vector is its maker's."""
