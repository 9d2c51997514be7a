"""What orders accesses: who makes them, and the races between those that nothing orders.

Every group of threads and every kind of asynchronous operation is an agent that counts its steps.
An agent's clock says, for each other agent, up to which step it is known to be over: what waits
for something takes over that one's clock. Of two accesses to an element, one of which writes,
the earlier must be known to the later one's clock (Lamport; Fidge and Mattern).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from attrs import define

from tilegen.simulate.report import Range, Watch, extent

if TYPE_CHECKING:
    from tilegen.simulate.memory import Buffer, Place
    from tilegen.simulate.sync import Team

Clock = dict[int, int]
"""For each agent, by number, the last of its steps that is known to be over."""

Mode = Literal["read", "write", "atomic"]

_MANY = 64


def merge(clock: Clock, other: Clock) -> None:
    """Add to a clock all that another one knows."""
    for agent, step in other.items():
        if step > clock.get(agent, 0):
            clock[agent] = step


def knows(clock: Clock, other: Clock) -> bool:
    """Return whether a clock knows all that another one does."""
    return all(clock.get(agent, 0) >= step for agent, step in other.items())


@define(eq=False)
class Access:
    """An access to a box of a buffer, or to some elements in it.

    Attributes:
        actor: Who made it, as text.
        agent: Its agent.
        step: The agent's step.
        mode: What it did.
        bounds: First element of each axis and the one after the last.
        place: What indexed the buffer.
        mask: Which elements of the place; None for all.
        is_box: Whether it is every element within the bounds.
        shape: Shape of the view of the memory.
        site: File and line.
    """

    actor: str
    agent: int
    step: int
    mode: Mode
    bounds: tuple[Range, ...]
    place: Place
    mask: torch.Tensor | None
    is_box: bool
    shape: torch.Size
    site: tuple[str, int]

    def elements(self) -> torch.Tensor:
        """Return which elements of the memory are accessed, as one axis."""
        found = torch.zeros(self.shape, dtype=torch.bool)
        place, mask = self.place, self.mask
        if mask is None:
            found[place] = True
        elif any(isinstance(part, torch.Tensor) for part in place):
            chosen = [torch.as_tensor(part).expand(mask.shape)[mask] for part in place]
            found[tuple(chosen)] = True
        else:
            found[place] = mask
        return found.view(-1)

    def covers(self, other: Access) -> bool:
        """Return whether a box leaves nothing to know about an earlier, ordered access."""
        if self.shape != other.shape:
            return False
        if self.mode == "write":
            pairs = zip(self.bounds, other.bounds, strict=True)
            return all(a[0] <= b[0] and b[1] <= a[1] for a, b in pairs)
        alike = self.agent == other.agent and self.mode == other.mode and other.is_box
        return alike and self.bounds == other.bounds

    def meets(self, other: Access) -> torch.Tensor | None:
        """Return which elements both access, as one axis; None if there are none."""
        if self.shape == other.shape:
            pairs = zip(self.bounds, other.bounds, strict=True)
            if any(a[0] >= b[1] or b[0] >= a[1] for a, b in pairs):
                return None
        mine, theirs = self.elements(), other.elements()
        common = min(len(mine), len(theirs))  # a view may be of the beginning of a memory
        both = mine[:common] & theirs[:common]
        return both if both.any() else None


class Actor:
    """Who accesses memory: a group of threads, or one asynchronous operation.

    Attributes:
        name: As messages have it.
        agent: Number of its agent.
        step: The agent's step.
        clock: What is over before its next access.
        team: All agents of the block.
        warpgroup: The warpgroup it belongs to; None if it is every thread of the block.
    """

    def __init__(
        self, name: str, agent: int, step: int, clock: Clock, team: Team, warpgroup: int | None
    ) -> None:
        self.name, self.agent, self.step, self.clock = name, agent, step, clock
        self.team, self.warpgroup = team, warpgroup

    def after(self) -> Clock:
        """Return what is over once this is."""
        return {**self.clock, self.agent: self.step}


def record(
    buffer: Buffer, place: Place, watch: Watch, mask: torch.Tensor | None, mode: Mode
) -> None:
    """Record an access, and raise a race if nothing orders it after an earlier one.

    Args:
        buffer: What is accessed.
        place: Where, inside of the buffer.
        watch: Knows who makes the access.
        mask: Which elements of the place; None for all.
        mode: Whether they are read, written, or changed atomically.
    """
    actor = watch.actor
    if actor is None or buffer.untold or (mask is not None and not mask.any()):
        return
    bounds = tuple(_bounds(part) for part in place)
    is_box = mask is None and not any(isinstance(part, torch.Tensor) for part in place)
    made, shape = (actor.name, actor.agent, actor.step), buffer.tensor.shape
    new = Access(*made, mode, bounds, place, mask, is_box, shape, watch.site)
    earlier = actor.team.accesses.setdefault(buffer.memory, [])
    for old in earlier:
        unordered = old.step > actor.clock.get(old.agent, 0)
        if unordered and (mode == "write" or mode != old.mode) and watch.checks.race:
            _require_apart(old, new, buffer, watch)
    if is_box:
        earlier[:] = [old for old in earlier if not new.covers(old)]
    elif len(earlier) > _MANY:
        known = actor.team.known()
        earlier[:] = [old for old in earlier if old.step > known.get(old.agent, 0)]
    earlier.append(new)


def _bounds(part: int | slice | torch.Tensor) -> Range:
    if isinstance(part, slice):
        return part.start, part.stop
    if isinstance(part, int):
        return part, part + 1
    return int(part.min()), int(part.max()) + 1


_VERBS = {"read": "read", "write": "written", "atomic": "updated"}


def _require_apart(old: Access, new: Access, buffer: Buffer, watch: Watch) -> None:
    both = new.meets(old)
    if both is None:
        return
    indices = torch.meshgrid(*(torch.arange(size) for size in new.shape), indexing="ij")
    verb, by = _VERBS[new.mode], _VERBS[old.mode]
    said = f"is {verb} by {new.actor}, and nothing orders that after it is {by} by {old.actor}"
    where = f" (line {old.site[1]})" if old.site[1] else ""
    watch.fault("race", buffer.name, extent(indices, both.view(new.shape)), said + where)
