"""Lifting: how much of a model could be sharded, and how much was."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lifting:
    """How much of a model can be sharded, and how much was.

    >>> import doppler as dp, torch
    >>> module = torch.nn.Linear(8, 8).eval()
    >>> print(dp.from_torch(module, (torch.ones(4, 8),), parts=2).lifting)
    lifted 100.0 % of the flops, cut 100.0 %; all operations are lifted
    """

    parts: int
    flops: float  # of the whole model
    lifted_flops: float  # of operations that have a rule
    cut_flops: float  # of those that were cut
    left_whole: Mapping[str, int]  # how often each operation without a rule is called

    @property
    def lifted_share(self) -> float:
        """The part of the flops that has a rule."""
        return self.lifted_flops / self.flops if self.flops else 1.0

    @property
    def cut_share(self) -> float:
        """The part of the flops that was cut."""
        return self.cut_flops / self.flops if self.flops else 1.0

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "parts": self.parts,
            "lifted_share": self.lifted_share,
            "cut_share": self.cut_share,
            "left_whole": dict(self.left_whole),
        }

    def __str__(self) -> str:
        whole = ", ".join(f"{name} ({count})" for name, count in self.left_whole.items())
        return (
            f"lifted {100 * self.lifted_share:.1f} % of the flops, cut {100 * self.cut_share:.1f} %"
            f"; {f'left whole: {whole}' if whole else 'all operations are lifted'}"
        )
