"""How the built-in environments look: each a function from environment and state to a scene, and one for any observation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.envs.scene import BLUE, GREEN, GREY, INK, ORANGE, PALE, Area, Line, Scene, disc
from shoal.specs import Discrete, Group, Space

_MOST_ROWS = 40  # numbers of an observation that are shown


def _cartpole(env: Any, state: np.ndarray) -> Scene:
    x, angle = float(state[0]), float(state[2])
    edge, length = float(env.max_position), 2 * float(env.half_length)
    pivot = (x, 0.12)
    tip = (x + length * math.sin(angle), pivot[1] + length * math.cos(angle))
    return Scene(-1.1 * edge, -0.35, 1.1 * edge, 1.15 * (length + 0.2), [
        Line((-edge, -0.18), (edge, -0.18), 0.015, GREY, "-"), Area(x - 0.3, -0.15, x + 0.3, 0.15, INK, "#"),
        Line(pivot, tip, 0.045, ORANGE, "o"), disc(pivot, 0.05, GREY, "O")])


def _acrobot(env: Any, state: np.ndarray) -> Scene:
    first, second = float(state[0]), float(state[0] + state[1])
    long_1, long_2 = float(env.length_1), 2 * float(env.centre_2)
    elbow = (long_1 * math.sin(first), -long_1 * math.cos(first))
    tip = (elbow[0] + long_2 * math.sin(second), elbow[1] - long_2 * math.cos(second))
    edge = 1.1 * (long_1 + long_2)
    return Scene(-edge, -edge, edge, edge, [
        Line((-edge, 1.0), (edge, 1.0), 0.02, GREEN, "-"), Line((0.0, 0.0), elbow, 0.08, BLUE, "#"),
        Line(elbow, tip, 0.08, ORANGE, "o"),
        disc((0.0, 0.0), 0.06, INK, "+"), disc(elbow, 0.06, INK, "+")])


def _pendulum(env: Any, state: np.ndarray) -> Scene:
    angle, length = float(state[0]), float(env.length)
    edge = 1.25 * length
    tip = (-length * math.sin(angle), length * math.cos(angle))
    return Scene(-edge, -edge, edge, edge, [
        disc((0.0, length), 0.04 * length, GREEN, "x"), Line((0.0, 0.0), tip, 0.09 * length, ORANGE, "o"),
        disc((0.0, 0.0), 0.05 * length, INK, "+")])


def _mountain_car(env: Any, state: np.ndarray) -> Scene:
    def road(x: float) -> Any:
        return x, 0.45 * math.sin(3 * x)

    low, high, goal = (float(getattr(env, name)) for name in ("min_position", "max_position", "goal_position"))
    places = np.linspace(low, high, 40).tolist()
    shapes: list[Any] = [Line(road(a), road(b), 0.008, INK, ".") for a, b in zip(places[:-1], places[1:], strict=True)]
    foot, (x, y) = road(goal), road(float(state[0]))
    flag = Area(foot[0], foot[1] + 0.13, foot[0] + 0.09, foot[1] + 0.2, GREEN, ">")
    shapes += [Line(foot, (foot[0], foot[1] + 0.2), 0.006, GREY, "|"), flag, disc((x, y + 0.05), 0.05, ORANGE, "O")]
    return Scene(low - 0.05, -0.5, high + 0.05, 0.75, shapes)


def _gridworld(env: Any, state: np.ndarray) -> Scene:
    width, height = int(env.width), int(env.height)

    def square(cell: tuple[int, int], colour: tuple[int, int, int], mark: str) -> Area:
        x, y, gap = cell[0] % width, height - 1 - cell[1] % height, 0.03
        return Area(x + gap, y + gap, x + 1 - gap, y + 1 - gap, colour, mark)

    at = (int(state) % width, int(state) // width)
    cells: list[Any] = [square((x, y), PALE, ".") for y in range(height) for x in range(width)]
    cells += [square(cell, INK, "#") for cell in env.obstacles]
    cells += [square(env.goal, GREEN, "G"), disc((at[0] + 0.5, height - 0.5 - at[1]), 0.3, ORANGE, "A")]
    marks = np.full((height, width), ".")
    for x, y in env.obstacles:
        marks[y, x] = "#"
    marks[env.goal[1], env.goal[0]] = "G"
    marks[at[1], at[0]] = "A"
    return Scene(0.0, 0.0, width, height, cells, "\n".join(" ".join(row) for row in marks))


# by name: what the environment must have for its drawing to fit, and the drawing
DRAWINGS: dict[str, tuple[tuple[str, ...], tuple[int, ...], Callable[[Any, np.ndarray], Scene]]] = {
    "cartpole": (("max_position", "half_length"), (4,), _cartpole),
    "acrobot": (("length_1", "centre_2"), (4,), _acrobot),
    "pendulum": (("length",), (2,), _pendulum),
    "mountain_car": (("min_position", "max_position", "goal_position"), (2,), _mountain_car),
    "mountain_car_continuous": (("min_position", "max_position", "goal_position"), (2,), _mountain_car),
    "gridworld": (("width", "height", "obstacles", "goal"), (), _gridworld),
}


def known(env: Any, state: Any) -> Scene | None:
    """The environment's own drawing, if it has one that fits."""
    needs, shape, draw_fn = DRAWINGS.get(env.spec.name, ((), (), None))
    if draw_fn is None or not all(hasattr(env, name) for name in needs):
        return None
    state = None if isinstance(state, tuple | dict) else np.asarray(state)
    return draw_fn(env, state) if state is not None and state.shape == shape else None


def bars(space: Space, obs: Any) -> Scene:
    """Any observation: a row of cells for a single choice; else one bar for each number, v / (1 + |v|) long, from the middle."""
    if isinstance(space, Discrete) and np.ndim(obs) == 0 and space.num <= _MOST_ROWS:
        return _row(space.num, int(obs))
    rows = _numbers("obs", space, obs)
    shown = rows[:_MOST_ROWS]
    label = max(len(name) for name, _ in shown)
    shapes: list[Any] = [Line((0.0, 0.0), (0.0, float(len(shown))), 0.01, GREY, "|")]
    lines = []
    for i, (name, value) in enumerate(shown):
        part = value / (1 + abs(value)) if math.isfinite(value) else math.copysign(1.0, value)
        top, marks = len(shown) - i, "#" * round(abs(part) * 20)
        ends = sorted((0.0, 4 * part))
        shapes.append(Area(ends[0], top - 0.8, ends[1], top - 0.2, BLUE if part >= 0 else ORANGE, "#"))
        lines.append(f"{name:<{label}} {value:>12.5g} {marks if part < 0 else '':>20}|{marks if part > 0 else ''}")
    if len(rows) > _MOST_ROWS:
        lines.append(f"… and {len(rows) - _MOST_ROWS} more")
    return Scene(-4.2, 0.0, 4.2, float(len(shown)), shapes, "\n".join(lines))


def _row(num: int, at: int) -> Scene:
    cells = [Area(i + 0.03, 0.03, i + 0.97, 0.97, ORANGE if i == at else PALE, "#") for i in range(num)]
    return Scene(0.0, 0.0, num, 1.0, list(cells), " ".join("#" if i == at else "." for i in range(num)) + f"   {at}")


def _numbers(name: str, space: Space, obs: Any) -> list[tuple[str, float]]:
    if isinstance(space, Group):
        return [row for key, inner in space.items for row in _numbers(key, inner, obs[key])]
    values = np.asarray(obs, np.float64)
    return [(f"{name}{list(place) if place else ''}", float(value)) for place, value in np.ndenumerate(values)]
