"""Workers that do not wait for the learner: each makes chunk after chunk with the newest policy, as long as there is room for them.

There is room for two chunks a lane. So nothing piles up, and how old a chunk can get follows from how many lanes there are. A worker
that dies takes what it was at with it, counted; its lanes begin new episodes in a new life.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np

from shoal.runtime import lanes as lanes_
from shoal.runtime import supervise
from shoal.runtime.hand import Hand
from shoal.runtime.crew import Crew
from shoal.types import Chunk, Params

ROOM = 2  # chunks of a lane that may wait


class Stream(Crew):
    """A crew that works by itself."""

    asks = False

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self.overlaps = False  # it is never asked
        self._slots, self._told = 2, self._told | {"free": True}
        self._before = 0  # lives of earlier runs of this folder
        self._waiting: Counter[tuple[int, int]] = Counter()  # by lane and life: chunks that came and have not been used up
        self.made, self.lost, self.dropped = 0, 0, 0  # of lives that are over; of all
        self.staleness: Counter[int] = Counter()  # of what was learned from, in versions
        self._ages: Counter[int] = Counter()  # the same, since it was last asked for

    def _shape(self) -> Any:
        data, memory, _, episodes = jax.tree.unflatten(whole := lanes_.chunk_like(self._world), range(whole.num_leaves))
        return jax.tree.structure((data, memory, (), episodes))

    def _start(self, hand: Hand) -> None:
        self._told |= {"life_before": self._before}
        super()._start(hand)
        hand.owed = set(hand.lanes)

    def _failed(self, hand: Hand, place: supervise.Place, cause: supervise.Cause) -> None:
        made = int(hand.beat[4])
        hand.owed.clear()  # none of it will be made again
        self.made, self.lost = self.made + made, self.lost + made - hand.received
        hand.received = made
        super()._failed(hand, place, cause)

    def _accept(self, hand: Hand, message: dict[str, Any]) -> None:
        index, life = message["lane"], self._before + hand.life
        data, memory, after, episodes = self._unflatten(hand.views(message))
        self._restarts.delivered(hand.index)
        self._waiting[index, life] += 1
        if self._waiting[index, life] < ROOM:
            hand.owed.add(index)
        self._taken.append(Chunk(index, life, message["seq"], message["version"], data, memory, after, episodes))

    def take(self, deadline_s: float) -> Chunk:
        if self._pages is None:
            self._open()
        return super().take(deadline_s)

    def used(self, chunk: Chunk, version: int) -> None:
        """A chunk has been learned from by what will be ``version`` + 1: there is room for another."""
        self.learned += 1
        self.staleness[version - chunk.version] += 1
        self._ages[version - chunk.version] += 1
        self._free(chunk)

    def drop(self, chunk: Chunk) -> None:
        """A chunk is too old to be learned from."""
        self.dropped += 1
        self._free(chunk)

    def _free(self, chunk: Chunk) -> None:
        hand = self._of[chunk.lane]
        self._waiting[chunk.lane, chunk.life] -= 1
        if hand.process is not None and chunk.life == self._before + hand.life:
            hand.free(chunk.lane)

    def publish(self, version: int, params: Params, deadline_s: float) -> None:
        if self._pages is not None:
            self._write(version, params)
            self._stamps[self._slots] = version

    def _open(self) -> None:
        super()._open()
        self._stamps[self._slots] = max(self._params.versions)  # type: ignore[attr-defined]

    # the cut: where lanes stand is not kept, new lives begin new episodes

    def tensors(self) -> dict[str, np.ndarray]:
        return {"lives": np.asarray(self._before + max(hand.life for hand in self.hands))}

    def load(self, tensors: dict[str, np.ndarray], inexact: bool) -> list[tuple[int, str]]:
        self._before = int(tensors["lives"])
        return []

    def ledger(self, iterations: int) -> dict[str, int]:
        """What became of chunks. It closes: produced = learned + buffered + in_flight + dropped + lost."""
        alive = [hand for hand in self.hands if hand.process is not None]
        made = [int(hand.beat[4]) for hand in alive]  # read once: they go on
        waiting = len(self._taken) + sum(count - hand.received for count, hand in zip(made, alive, strict=True))
        return {"produced": self.made + sum(made), "learned": self.learned, "buffered": 0, "in_flight": waiting, "dropped": self.dropped,
                "lost": self.lost, "redone": 0, "restarts": self._restarts.total}

    def timing(self) -> dict[str, Any]:
        """As in step, and how many versions old the policies were that the last while's chunks came from."""
        ages, self._ages = self._ages, Counter()
        mean = sum(age * count for age, count in ages.items()) / max(1, ages.total())
        return super().timing() | {"policy_lag": round(mean, 4), "most_lag": max(ages, default=0)}

    def rest(self) -> bool:
        """Let workers go. What they had made and nobody learned from is dropped, and counted."""
        for hand in self.hands:
            if hand.process is not None:
                made = int(hand.beat[4])
                self.made, self.dropped, hand.received = self.made + made, self.dropped + made - hand.received, made
        self.dropped += len(self._taken)
        self._waiting.clear()
        return super().rest()

