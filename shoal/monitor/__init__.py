"""Metrics as data: rows between iterations (``window``), files of rows (``sinks``), what a person sees while a run goes on
(``progress``) and afterwards (``curve``). No JAX here, and rich only once a display starts."""

from __future__ import annotations

from shoal.monitor.curve import Series, svg_curve, text_curve, write_curve
from shoal.monitor.progress import Progress
from shoal.monitor.sinks import CsvSink, JsonlSink, read_rows, write_csv
from shoal.monitor.window import Window

__all__ = ["CsvSink", "JsonlSink", "Progress", "Series", "Window", "read_rows", "svg_curve", "text_curve", "write_csv",
           "write_curve"]
