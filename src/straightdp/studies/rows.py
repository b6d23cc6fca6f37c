"""What a study is made of: rows, each one method in one space, crossed with budgets and seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from straightdp.config import Preset


class Key(NamedTuple):
    """What tells a row from its study's others."""

    block: str
    method: str
    space: str
    variant: str = ""


@dataclass(frozen=True)
class Row:
    """A line of a table: its block, its method, the space it runs in, and its budgets.

    No budgets: the study's own. `variant` names what a control changes
    (:mod:`straightdp.studies.variants`); `one_seed` keeps to the first of the preset's seeds.
    """

    block: str
    method: str
    space: str
    epsilons: tuple[float, ...] = ()
    variant: str = ""
    one_seed: bool = False

    @property
    def key(self) -> Key:
        return Key(self.block, self.method, self.space, self.variant)

    def seeds(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the preset's seeds that the row runs."""
        return given[:1] if self.one_seed else given


@dataclass(frozen=True)
class Study:
    """A table's rows and budgets, in the paper's order. No budgets: the preset's.

    `by_preset` gives the rows where they follow from the preset's settings. `beside` are rows
    whose cells are needed too, for what is written beside the table.
    """

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    epsilons: tuple[float, ...] = ()
    by_preset: Callable[[Preset], tuple[Row, ...]] | None = None
    beside: tuple[Row, ...] = ()

    def rows_on(self, preset: Preset) -> tuple[Row, ...]:
        """The table's rows on a preset."""
        return self.rows if self.by_preset is None else self.by_preset(preset)

    def columns(self, preset: Preset) -> tuple[float, ...]:
        """The budgets that head the table's columns."""
        return self.epsilons or preset.grid.epsilons
