"""Legality rules of the ``warp_specialized`` GEMM: what its warpgroups and barriers can serve."""

from __future__ import annotations

from collections.abc import Iterator

from tilegen.geometry.gemm import GemmGeometry
from tilegen.geometry.specialized import GROUP_THREADS, MIN_STAGES, REGISTERS
from tilegen.rules.rule import Rule, Violation


def _target(g: GemmGeometry) -> Iterator[Violation]:
    if not (g.target.tma and g.target.wgmma):
        yield _variant(g, f"loads by TMA and multiplies by wgmma, and {g.target.name} lacks one")


def _work(g: GemmGeometry) -> Iterator[Violation]:
    if g.is_empty or not g.trips:
        yield _variant(
            g, f"m={g.spec.m}, n={g.spec.n}, k={g.spec.k} leave the producer nothing to load"
        )


def _operands(g: GemmGeometry) -> Iterator[Violation]:
    spec = g.spec
    if spec.dtype.bits != 16 and spec.layout != "nt":
        yield _variant(
            g, f"{spec.dtype} operands in layout {spec.layout!r} are none that wgmma reads: only nt"
        )
    for name in ("a", "b"):
        if not g.tma_load(name):
            row = next(o for o in spec.operands if o.name == name).shape[1]
            yield _variant(
                g,
                f"{name} is {g.access_of(name)} with rows of {row} {spec.dtype}; TMA loads rows "
                "that start on 16-byte boundaries",
            )


def _warpgroups(g: GemmGeometry) -> Iterator[Violation]:
    s = g.schedule
    served = [GROUP_THREADS * groups for groups in REGISTERS]
    if s.threads not in served:
        yield Violation(
            "threads",
            s.threads,
            f"warp_specialized multiplies with {' or '.join(map(str, served))} threads, for which "
            "it has register budgets and named barriers",
        )
    if g.warps is not None and g.policy_split != g.warps:
        yield Violation(
            "policy",
            s.policy,
            f"is not how warp_specialized splits a {s.block_m} x {s.block_n} tile: over "
            f"{g.warps[0]} x {g.warps[1]} warps, by whole warpgroups",
        )


def _stages(g: GemmGeometry) -> Iterator[Violation]:
    if g.schedule.num_stages < MIN_STAGES:
        yield Violation(
            "num_stages",
            g.schedule.num_stages,
            f"a slot is freed when the next one is in use: fewer than {MIN_STAGES} never meet",
        )


def _variant(g: GemmGeometry, message: str) -> Violation:
    return Violation("variant", g.schedule.variant, message)


def _specialized(g: GemmGeometry) -> Iterator[Violation]:
    if g.specialized:
        for check in (_target, _work, _operands, _warpgroups, _stages):
            yield from check(g)


RULE = Rule(
    "warp-specialized",
    "The explicit producer loads by TMA only, and whole warpgroups multiply by wgmma.",
    _specialized,
)
