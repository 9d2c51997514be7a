"""Legality rules of GEMMs with warpgroups of their own roles: what these and barriers can serve."""

from __future__ import annotations

from collections.abc import Iterator

from tilegen.dims import Dyn
from tilegen.expr import Expr
from tilegen.expr_print import calls_long_function, functions
from tilegen.geometry.gemm import GemmGeometry
from tilegen.geometry.specialized import GROUP_THREADS, MIN_STAGES, REGISTERS
from tilegen.geometry.warps import WGMMA_M
from tilegen.rules.rule import Rule, Violation

_STEEP_N = 192
_FETCHED_N = 160
_STORED_N = 128


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
    served = [GROUP_THREADS * groups for groups in REGISTERS[s.variant]]
    if s.threads not in served:
        yield Violation(
            "threads",
            s.threads,
            f"{s.variant} multiplies with {' or '.join(map(str, served))} threads, for which "
            "it has register budgets and named barriers",
        )
    if g.takes_turns:
        yield from _turns(g)
    elif g.warps is not None and g.policy_split != g.warps:
        yield Violation(
            "policy",
            s.policy,
            f"is not how warp_specialized splits a {s.block_m} x {s.block_n} tile: over "
            f"{g.warps[0]} x {g.warps[1]} warps, by whole warpgroups",
        )


def _turns(g: GemmGeometry) -> Iterator[Violation]:
    s = g.schedule
    if s.block_m not in (WGMMA_M, 2 * WGMMA_M):
        yield Violation(
            "block_m",
            s.block_m,
            f"ping_pong gives each warpgroup whole tiles of {WGMMA_M} or {2 * WGMMA_M} rows",
        )
    if s.policy != "full_row":
        yield Violation(
            "policy", s.policy, "has no effect on a tile that one warpgroup has to itself: full_row"
        )
    yield from _light_chain(g)


def _light_chain(g: GemmGeometry) -> Iterator[Violation]:
    """Yield a fault where nvcc has so many elements of a chain in flight that they spill.

    Calibrated against ptxas, as the estimates in `tilegen.rules.gemm_registers`.
    """
    if g.spec.numerics == "eager" and g.spec.epilogue:
        yield _variant(g, "rounds after each step only where numerics is 'fused'")
    loaded = [o.name for o in g.spec.operands if o.kind == "tile" and o != g.fetched]
    if loaded:
        yield _variant(
            g,
            f"fetches one tile of an operand, to where the output of its type is staged, and not "
            f"{', '.join(loaded)}",
        )
    if g.fetched and g.schedule.block_n > _FETCHED_N:
        yield Violation(
            "block_n",
            g.schedule.block_n,
            f"a chain that reads {g.fetched.name} spills on ping_pong tiles of more than "
            f"{_FETCHED_N} columns",
        )
    if len(g.stores) > 1 and g.schedule.block_n > _STORED_N:
        yield Violation(
            "block_n",
            g.schedule.block_n,
            f"chains of several outputs spill on ping_pong tiles of more than {_STORED_N} columns",
        )
    steep = [step for segment in g.segments for step in segment.steps if is_steep(step.value)]
    if any(calls_long_function(step.value) for step in steep) or len(steep) > 1:
        yield _variant(
            g, "keeps at most one sigmoid, silu or tanh-gelu in registers, and no longer function"
        )
    elif steep and (g.acc_registers < _STEEP_N or isinstance(g.spec.m, Dyn)):
        yield Violation(
            "block_n",
            g.schedule.block_n,
            f"sigmoid, silu or tanh-gelu spill on ping_pong tiles below 128 x {_STEEP_N}, and "
            "where m is dynamic",
        )
    if g.spec.epilogue and not all(g.roles.by_tma(stored) for stored in g.stores):
        yield _variant(g, "stores what a chain makes by TMA, which these outputs do not allow")


def is_steep(value: Expr) -> bool:
    """Return whether nvcc computes an expression by several functions in a row."""
    return "T.fast_rcp" in functions(value) or calls_long_function(value)


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
