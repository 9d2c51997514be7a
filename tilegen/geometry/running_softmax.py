"""The running softmax of attention and of both kinds of decode: rows of scores, and their scale."""

from __future__ import annotations

from math import frexp, ldexp

from attrs import frozen

from tilegen.geometry.parameters import LOG2_E, Parameters


@frozen
class RunningSoftmax(Parameters):
    """How scores become weights relative to the largest score so far."""

    @property
    def specialized(self) -> bool:
        """Whether the emitted kernel names the warps of each role."""
        return False

    @property
    def rows(self) -> str:
        """How the emitted file spells the rows of a fragment."""
        return "BLOCK_M"

    @property
    def scales_first(self) -> bool:
        """Whether scores are scaled by a step of their own, and not within the exponential."""
        return False

    @property
    def log2_scale(self) -> str:
        """The factor that makes scores exponents of two."""
        return "LOG2_E" if self.scales_first else "LOG2_SCALE"

    @property
    def far(self) -> str:
        """The size of scores whose exponents are 16 apart, or the largest that is not infinite."""
        found = 2.0**27 / self._factor
        return f"2.0**27 / {self.log2_scale}" if found < 3.4e38 else "3.4e38"

    @property
    def _factor(self) -> float:
        return LOG2_E * (1.0 if self.scales_first else self.spec.scale)

    @property
    def coarse_scale(self) -> float:
        """The power of two at or above that factor, for exponents too large to be exact.

        A weight is 2 to the power of score * factor - base, by one fused multiply-add; base is the
        largest score * factor, rounded. So the weight of the largest score is 2 to at most half the
        distance of floats at base, which divides out again while that is a number. By a power of
        two it is 1; and where floats are 16 apart, all others are below 2^-7 by either factor, as
        is what was summed before by the other one.
        """
        fraction, exponent = frexp(self._factor)
        return ldexp(1.0, exponent - (fraction == 0.5))
