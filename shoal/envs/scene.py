"""Simple pictures: a few shapes in the world's own units, painted as pixels or as characters. NumPy only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

Colour = tuple[int, int, int]
Point = tuple[float, float]

BACKGROUND: Colour = (250, 250, 247)
INK: Colour = (40, 44, 52)
GREY: Colour = (150, 155, 162)
PALE: Colour = (222, 224, 220)
BLUE: Colour = (58, 110, 165)
ORANGE: Colour = (214, 120, 50)
GREEN: Colour = (70, 150, 90)

NUM_COLUMNS, NUM_ROWS = 64, 20  # of a picture in characters, at most
_TALL = 2.0  # a character is about twice as high as it is wide


class Line(NamedTuple):
    """A stroke with round ends; a disc where both ends are one point."""

    start: Point
    end: Point
    radius: float
    colour: Colour
    mark: str  # the character it is painted with


class Area(NamedTuple):
    """A filled rectangle."""

    left: float
    bottom: float
    right: float
    top: float
    colour: Colour
    mark: str


class Scene(NamedTuple):
    """What there is to see between ``left``, ``bottom`` and ``right``, ``top``; later shapes cover earlier ones. y points up."""

    left: float
    bottom: float
    right: float
    top: float
    shapes: list[Line | Area]
    text: str = ""  # the whole picture in characters, where shapes would not do


def disc(centre: Point, radius: float, colour: Colour, mark: str) -> Line:
    return Line(centre, centre, radius, colour, mark)


def paint(scene: Scene, width: int) -> np.ndarray:
    """uint8 [H, W, 3], ``width`` pixels wide; edges are smooth."""
    scale = width / (scene.right - scene.left)
    height = max(1, round((scene.top - scene.bottom) * scale))
    canvas = np.empty((height, width, 3))
    canvas[:] = BACKGROUND
    for shape in scene.shapes:
        left, right, bottom, top = _reach(shape)
        columns = slice(max(0, math.floor((left - scene.left) * scale) - 1), max(0, math.ceil((right - scene.left) * scale) + 1))
        rows = slice(max(0, math.floor((scene.top - top) * scale) - 1), max(0, math.ceil((scene.top - bottom) * scale) + 1))
        part = canvas[rows, columns]
        x = scene.left + (np.arange(width)[columns] + 0.5) / scale
        y = scene.top - (np.arange(height)[rows] + 0.5) / scale
        cover = np.clip(0.5 - _outside(shape, x[None, :], y[:, None]) * scale, 0.0, 1.0)[..., None]
        part += cover * (np.asarray(shape.colour) - part)
    return np.rint(canvas).astype(np.uint8)


def write(scene: Scene) -> str:
    """The picture in lines of characters; spaces at the ends of lines are left out."""
    if scene.text:
        return scene.text
    cell = max((scene.right - scene.left) / NUM_COLUMNS, (scene.top - scene.bottom) / (NUM_ROWS * _TALL))
    columns = max(1, round((scene.right - scene.left) / cell))
    num_rows = max(1, round((scene.top - scene.bottom) / (cell * _TALL)))
    grid = np.full((num_rows, columns), " ")
    x = scene.left + (np.arange(columns) + 0.5) * cell
    y = scene.top - (np.arange(num_rows) + 0.5) * cell * _TALL
    for shape in scene.shapes:
        grid[_outside(shape, x[None, :], y[:, None]) <= 0] = shape.mark
        if isinstance(shape, Line):  # thinner than a character: each one it passes through
            (x0, y0), (x1, y1) = shape.start, shape.end
            steps = np.linspace(0.0, 1.0, 2 + int(2 * math.hypot(x1 - x0, y1 - y0) / cell))
            column = np.floor((x0 + steps * (x1 - x0) - scene.left) / cell).astype(int)
            row = np.floor((scene.top - y0 - steps * (y1 - y0)) / (cell * _TALL)).astype(int)
            inside = (column >= 0) & (column < columns) & (row >= 0) & (row < num_rows)
            grid[row[inside], column[inside]] = shape.mark
    return "\n".join("".join(row).rstrip() for row in grid)


def _reach(shape: Line | Area) -> tuple[float, float, float, float]:
    """Left, right, bottom, top."""
    if isinstance(shape, Area):
        return shape.left, shape.right, shape.bottom, shape.top
    (x0, y0), (x1, y1), r = shape.start, shape.end, shape.radius
    return min(x0, x1) - r, max(x0, x1) + r, min(y0, y1) - r, max(y0, y1) + r


def _outside(shape: Line | Area, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far each place lies outside the shape; negative within."""
    if isinstance(shape, Area):
        return np.maximum(np.maximum(shape.left - x, x - shape.right), np.maximum(shape.bottom - y, y - shape.top))
    (x0, y0), (x1, y1) = shape.start, shape.end
    squared = (x1 - x0) ** 2 + (y1 - y0) ** 2
    part = np.clip(((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / squared, 0.0, 1.0) if squared else 0.0
    return np.hypot(x - x0 - part * (x1 - x0), y - y0 - part * (y1 - y0)) - shape.radius
