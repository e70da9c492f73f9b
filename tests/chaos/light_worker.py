"""A worker without JAX, which starts in a fifth of a second: real processes, channels and shared memory; lanes that only mix numbers."""

from __future__ import annotations

import os
import socket
import sys

import numpy as np
import safetensors.numpy

from shoal.runtime.wire import Gone, Layout, Line, Pages, Slots
from shoal.runtime.worker import _die_with

STEPS, ENVS, ROOM = 4, 2, 2


def mixed(numbers: np.ndarray, weight: int, seq: int) -> np.ndarray:
    """The numbers [T, B] of a chunk; the last row is where the lane then stands."""
    rows = []
    for t in range(STEPS):
        numbers = (numbers * 48271 + weight * 69621 + seq * 31 + t) % (2**31 - 1)
        rows.append(numbers)
    return np.stack(rows)


def start_of(lane: int) -> np.ndarray:
    return np.arange(ENVS, dtype=np.int64) + 1000 * (lane + 1)


class Worker:
    def __init__(self, line: Line, plan: dict):
        self.line, self.plan = line, plan
        self.beat = Pages(fd=plan["beat_fd"]).array("int64", (8,), 0)
        self.slots, self.layouts, self.params = Slots(Pages(fd=plan["chunks_fd"])), {}, plan["params"]
        self.pages = Pages(fd=self.params["fd"])
        self.stamps = self.pages.array("int64", (self.params["slots"] + 1,), 0)
        self.layout = Layout.read(self.params["layout"])
        self.numbers = {lane: start_of(lane) for lane in plan["lanes"]}
        if plan["state_bytes"]:
            data = Pages(fd=plan["state_fd"]).array("uint8", (plan["state_bytes"],), 0).tobytes()
            for name, value in safetensors.numpy.load(data).items():
                if name.endswith(".obs"):
                    self.numbers[int(name[4:-4])] = value
        line.send({"is": "ready", "notes": [], "mode": "state"}, 5.0)

    def weight(self, version: int) -> int:
        slot = version % self.params["slots"]
        assert self.stamps[slot] == version
        return int(self.layout.views(self.pages, self.params["start"] + slot * self.layout.size)[0][0])

    def make(self, lane: int, seq: int, version: int, weight: int, with_after: bool) -> None:
        data = mixed(self.numbers[lane], weight, seq)
        self.numbers[lane] = data[-1]
        ended = np.zeros((STEPS, ENVS), bool)
        leaves = [data, *([np.zeros(ENVS, np.int64), data[-1]] if with_after else []), ended]
        offset, layout = self.slots.write((lane, seq % 2), leaves)
        if id(layout) not in self.layouts:
            self.layouts[id(layout)] = layout, len(self.layouts)
            self.line.send({"is": "layout", "leaves": layout.kinds}, 5.0)
        self.beat[4] += 1
        number = self.layouts[id(layout)][1]
        self.line.send({"is": "chunk", "lane": lane, "seq": seq, "version": version, "at": offset, "layout": number}, 5.0)

    def run(self) -> None:
        while (message := self.line.receive(60.0)) is not None and message["is"] != "end":
            for lane in message["lanes"]:
                version = max(0, message["seq"] - self.plan["lag"])
                self.make(lane, message["seq"], version, self.weight(version), with_after=True)

    def run_freely(self) -> None:
        room, seqs = dict.fromkeys(self.numbers, ROOM), dict.fromkeys(self.numbers, 0)
        while True:
            message = self.line.receive(0.0 if any(room.values()) else 60.0)
            if message is not None:
                if message["is"] == "end":
                    return
                room[message["lane"]] += 1
                continue
            if not any(room.values()):
                return
            lane = min((x for x in room if room[x]), key=lambda x: seqs[x])
            version = int(self.stamps[self.params["slots"]])
            self.make(lane, seqs[lane], version, 0, with_after=False)
            room[lane], seqs[lane] = room[lane] - 1, seqs[lane] + 1


if __name__ == "__main__":
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    told = line.receive(60.0)
    _die_with(told["driver"])
    try:
        worker = Worker(line, told)
        worker.run_freely() if told.get("free") else worker.run()
    except Gone:
        pass
    os._exit(0)
