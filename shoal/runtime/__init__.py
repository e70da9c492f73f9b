"""Runtimes: where engines are placed and how their parts reach each other. They never name an algorithm."""
