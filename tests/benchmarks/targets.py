"""What a benchmark's figures shall reach; `./tidemark bench --check` fails where one does not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A figure and its bound: at least this share of the baseline, or at most this many times it."""

    figure: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound."""
        enough = self.at_least is None or self.measured >= self.at_least
        return enough and (self.at_most is None or self.measured <= self.at_most)

    def __str__(self) -> str:
        bound = f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"
        return f"{self.figure} is {self.measured:g}, {bound} is wanted: {'met' if self.met else 'missed'}"
