"""Hypothesis strategies for specs, schedules and programs; hypothesis comes with ``tilegen[test]``.

Everything drawn is sound by construction: legal programs are reached by steps that each stay
legal, as `Program` judges it, so that nothing is filtered out and nothing says a rule twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from attrs import evolve
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tilegen import epilogue as ops
from tilegen.dims import Dyn
from tilegen.dtypes import FLOATS, DType
from tilegen.epilogue import OPS, EpilogueOp, Store, operand_kind
from tilegen.families import FAMILIES, family_of
from tilegen.program import Access, Program, build, is_legal
from tilegen.row_statistics import GemmOp, RowAmax, RowSumSquares
from tilegen.schedules.attention import VALUES as ATTENTION_VALUES
from tilegen.schedules.decode import VALUES as DECODE_VALUES
from tilegen.schedules.elementwise import VALUES as ELEMENTWISE_VALUES
from tilegen.schedules.fields import UNSET, Rasterization
from tilegen.schedules.gemm import OPTIONS, GemmSchedule
from tilegen.schedules.mla import VALUES as MLA_VALUES
from tilegen.schedules.rowwise import VALUES as ROWWISE_VALUES
from tilegen.specs.gemm import Gemm
from tilegen.targets import TARGETS, Target
from tilegen.targets import target as as_target

_T = TypeVar("_T", bound=Hashable)
_PRIMES = (2, 3, 7, 31, 127, 257, 1009)
_FULL_TARGETS = tuple(target for target in TARGETS.values() if target.full)


def sample(strategy: SearchStrategy[_T], count: int) -> tuple[_T, ...]:
    """Return up to ``count`` distinct values of a strategy: the same ones in every run."""
    drawn: list[_T] = []

    # A run starts with simple values and soon varies one of them; so one short run for each value.
    @settings(
        max_examples=3,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(strategy)
    def draw(value: _T) -> None:
        drawn.append(value)

    found: dict[_T, None] = {}
    for number in range(count):
        seed(number)(draw)()
        found.setdefault(drawn[-1])
    return tuple(found)


# --- sizes and element types ------------------------------------------------------------------


@cache
def dims_near(block: int, *, tiles: int = 8) -> SearchStrategy[int]:
    """Draw sizes at tile edges: up to ``tiles`` blocks and one off, 0, 1 and primes."""
    edges = st.builds(
        lambda blocks, off: blocks * block + off, st.integers(1, tiles), st.integers(-1, 1)
    )
    return edges | st.sampled_from((0, 1, *_PRIMES))


@cache
def dims() -> SearchStrategy[int]:
    """Draw sizes near the edges of small and of large tiles."""
    return dims_near(16) | dims_near(128)


@cache
def dyns() -> SearchStrategy[Dyn]:
    """Draw dynamic dimensions."""
    return st.builds(
        lambda name, multiple_of, hint: Dyn(name, multiple_of=multiple_of, hint=hint * multiple_of),
        st.sampled_from(("m", "tokens")),
        st.sampled_from((1, 8, 64)),
        st.integers(1, 1000),
    )


def dtypes() -> SearchStrategy[DType]:
    """Draw element types."""
    return st.sampled_from(FLOATS)


# --- epilogue ---------------------------------------------------------------------------------

_FUNCTIONS: tuple[Callable[[Any], Any], ...] = (
    lambda x: x * (x + 3).clamp(0, 6) / 6,  # hard swish
    lambda x: x.relu().square(),
    lambda x: x * (1 + x.exp()).log().tanh(),  # mish
    lambda x: x.where(x > 0, 0.1 * x),
    lambda x: x.abs().sqrt() * x.sign(),
)


def _polynomial(coefficients: list[float]) -> Callable[[Any], Any]:
    def polynomial(x: Any) -> Any:
        value: Any = coefficients[0]
        for coefficient in coefficients[1:]:
            value = value * x + coefficient
        return value

    return polynomial


def constants(minimum: float = -8.0, maximum: float = 8.0) -> SearchStrategy[float]:
    """Draw constants with short decimal forms."""
    return st.floats(minimum, maximum, width=16, allow_subnormal=False)


def maps() -> SearchStrategy[Callable[[Any], Any]]:
    """Draw Python functions of one value, for ``Map``."""
    polynomials = st.lists(constants(), min_size=1, max_size=4).map(_polynomial)
    return st.sampled_from(_FUNCTIONS) | polynomials


def _name(*names: str) -> SearchStrategy[str]:
    return st.sampled_from(names)


_AXES = st.sampled_from(("n", "m"))
_DTYPES = st.none() | dtypes()
_BOUND = st.none() | constants()
_OPS: dict[type[EpilogueOp], SearchStrategy[Any]] = {
    ops.Bias: st.builds(ops.Bias, _AXES, dtype=_DTYPES, name=_name("bias", "offset")),
    ops.Scale: st.builds(ops.Scale, constants())
    | st.builds(ops.Scale, axis=st.none() | _AXES, dtype=_DTYPES, name=_name("scale", "factor")),
    ops.Residual: st.builds(
        ops.Residual, st.just(1.0) | constants(0.25), dtype=_DTYPES, name=_name("residual", "skip")
    ),
    ops.Multiply: st.builds(ops.Multiply, dtype=_DTYPES, name=_name("gate", "mask")),
    ops.Relu: st.just(ops.Relu()),
    ops.Gelu: st.builds(ops.Gelu, st.sampled_from(("none", "tanh"))),
    ops.Silu: st.just(ops.Silu()),
    ops.Sigmoid: st.just(ops.Sigmoid()),
    ops.Tanh: st.just(ops.Tanh()),
    ops.Softcap: st.builds(ops.Softcap, constants(0.5, 64.0)),
    ops.Clamp: st.builds(ops.Clamp, constants(), _BOUND) | st.builds(ops.Clamp, max=constants()),
    ops.Map: st.builds(ops.Map, maps()),
    ops.Cast: st.builds(ops.Cast, dtypes()),
    ops.Store: st.builds(ops.Store, _name("pre", "aux"), _DTYPES),
}


@cache
def epilogue_ops(*kinds: type[EpilogueOp]) -> SearchStrategy[EpilogueOp]:
    """Draw single epilogue ops, of the given classes or of all."""
    return st.one_of([_OPS[kind] for kind in kinds or OPS.values()])


@cache
def chains(
    min_size: int = 0, max_size: int = 4, *, ops: SearchStrategy[EpilogueOp] | None = None
) -> SearchStrategy[tuple[EpilogueOp, ...]]:
    """Draw epilogue chains whose operands and outputs have names of their own."""
    each = epilogue_ops() if ops is None else ops
    return st.lists(each, min_size=min_size, max_size=max_size).map(with_unique_names)


def with_unique_names(drawn: Iterable[Any]) -> tuple[Any, ...]:
    """Return ops as a chain: those whose names repeat get other ones."""
    chain: list[Any] = []
    taken: set[str] = set()
    for op in drawn:
        if isinstance(op, (Store, RowAmax, RowSumSquares)) or operand_kind(op):
            names = (f"{op.name}_{count}" if count > 1 else op.name for count in itertools.count(1))
            name = next(name for name in names if name not in taken)
            taken.add(name)
            op = evolve(op, name=name)
        chain.append(op)
    return tuple(chain)


# --- the GEMM family --------------------------------------------------------------------------


@st.composite
def gemm_specs(
    draw: st.DrawFn,
    *,
    m: SearchStrategy[int | Dyn] | None = None,
    n: SearchStrategy[int] | None = None,
    k: SearchStrategy[int] | None = None,
    dtype: SearchStrategy[DType] | None = None,
    epilogue: SearchStrategy[tuple[GemmOp, ...]] | None = None,
) -> Gemm:
    """Draw GEMM specs; sizes, dtype and chain by other strategies where given.

    Chains have row statistics where one CTA may own a row, unless another strategy draws them.
    """
    element = draw(dtypes() if dtype is None else dtype)
    columns = draw(dims() if n is None else n)
    if epilogue is None:
        epilogue = _chains_of(columns)
    spec = Gemm(
        m=draw(dims() | dyns() if m is None else m),
        n=columns,
        k=draw(dims() if k is None else k),
        dtype=element,
        layout=draw(st.sampled_from(("nn", "nt", "tn", "tt"))),
        out_dtype=draw(st.just(element) | dtypes()),
        compute="tf32" if element == DType.float32 else None,
        epilogue=draw(epilogue),
    )
    # Without a chain, "eager" would have no effect.
    numerics = draw(st.sampled_from(("fused", "eager"))) if spec.epilogue else "fused"
    return evolve(spec, numerics=numerics)


def _chains_of(columns: int) -> SearchStrategy[tuple[GemmOp, ...]]:
    from tilegen.strategies_row_statistics import MOST_OWNED, with_row_statistics

    return chains() | with_row_statistics(chains()) if 0 < columns <= MOST_OWNED else chains()


# Values of each schedule field: those a search tries, and odd ones that fields accept.
_GEMM_VALUES: dict[str, tuple[object, ...]] = {
    **OPTIONS,
    "block_m": (*OPTIONS["block_m"], 48, 80, 96, 320),
    "block_n": (*OPTIONS["block_n"], 24, 40, 104, 224, 264),
    "block_k": (*OPTIONS["block_k"], 8, 24, 48, 96, 256, 264),
    "num_stages": (*OPTIONS["num_stages"], 9),
    "threads": (*OPTIONS["threads"], 96, 160, 192, 768, 1024, 1056),
    "rasterization": (
        None,
        *(Rasterization(panel, order) for panel in (1, 3, 4, 8, 16) for order in ("row", "column")),
    ),
}


@cache
def gemm_schedules(*, complete: bool = False) -> SearchStrategy[GemmSchedule]:
    """Draw GEMM schedules, legal or not for a spec; partial ones unless ``complete``."""
    drawn: dict[str, SearchStrategy[Any]] = {
        name: st.sampled_from(values) for name, values in _GEMM_VALUES.items()
    }
    if not complete:
        drawn = {name: st.just(UNSET) | values for name, values in drawn.items()}
    return st.builds(GemmSchedule, **drawn)


# --- any family -------------------------------------------------------------------------------


def _elsewhere(family: str, kind: str) -> Callable[..., SearchStrategy[Any]]:
    """Return what draws specs or schedules of a family that has a module of its own for it."""

    def draw(**options: Any) -> SearchStrategy[Any]:
        module = import_module(f"tilegen.strategies_{family}")
        return getattr(module, f"{family}_{kind}")(**options)

    return draw


_SPECS: dict[str, Callable[..., SearchStrategy[Any]]] = {
    "gemm": gemm_specs,
    "attention": _elsewhere("attention", "specs"),
    "decode": _elsewhere("decode", "specs"),
    "elementwise": _elsewhere("elementwise", "specs"),
    "mla": _elsewhere("mla", "specs"),
    "rowwise": _elsewhere("rowwise", "specs"),
}
_SCHEDULES: dict[str, Callable[..., SearchStrategy[Any]]] = {
    "gemm": gemm_schedules,
    "attention": _elsewhere("attention", "schedules"),
    "decode": _elsewhere("decode", "schedules"),
    "elementwise": _elsewhere("elementwise", "schedules"),
    "mla": _elsewhere("mla", "schedules"),
    "rowwise": _elsewhere("rowwise", "schedules"),
}
_VALUES: dict[str, Mapping[str, tuple[object, ...]]] = {
    "gemm": _GEMM_VALUES,
    "attention": ATTENTION_VALUES,
    "decode": DECODE_VALUES,
    "elementwise": ELEMENTWISE_VALUES,
    "mla": MLA_VALUES,
    "rowwise": ROWWISE_VALUES,
}


@cache
def specs(family: str | None = None) -> SearchStrategy[Any]:
    """Draw specs of a family, or of any."""
    return st.one_of([_SPECS[name]() for name in ([family] if family else FAMILIES)])


def schedules(family: str, *, complete: bool = False) -> SearchStrategy[Any]:
    """Draw schedules of a family, legal or not for a spec; partial ones unless ``complete``."""
    return _SCHEDULES[family](complete=complete)


def programs(
    family: str | None = None, *, target: str | Target | None = None
) -> SearchStrategy[Program]:
    """Draw legal programs of a family, or of any, for ``target`` or for any served in full."""
    return legal_programs(target, specs(family))


def accesses(program: Program) -> SearchStrategy[dict[str, Access]]:
    """Draw operands and outputs of a program that are not dense, and how not."""
    outputs = program.spec.outputs
    served: dict[str, tuple[Access, ...]] = {
        operand.name: ("strided", "unaligned")
        if operand.in_rows or (operand in outputs and len(operand.shape) > 1)
        # Vectors are read by any stride; of outputs, only those with stride 1 are used in place.
        else ("unaligned",)
        if operand in outputs
        else ("strided",)
        for operand in program.params
        # Without elements, there is nothing to lie in one way or another.
        if operand.kind not in ("scalar", "workspace") and 0 not in operand.shape
    }
    if not served:
        return st.just({})
    names = st.lists(st.sampled_from(sorted(served)), unique=True, max_size=3)
    return names.flatmap(
        lambda some: st.fixed_dictionaries({name: st.sampled_from(served[name]) for name in some})
    )


@st.composite
def legal_programs(
    draw: st.DrawFn,
    target: str | Target | None = None,
    spec: SearchStrategy[Any] | None = None,
    *,
    dense: bool = False,
) -> Program:
    """Draw legal programs of the drawn specs, for ``target`` or for any served in full.

    From the default schedule, of all or of one variant, fields are changed one by one to values
    that keep it legal. With ``dense``, they are for dense operands.
    """
    where = draw(st.sampled_from(_FULL_TARGETS)) if target is None else as_target(target)
    wanted = draw(specs() if spec is None else spec)
    program = draw(st.sampled_from(_starts(wanted, where)))
    access = {} if dense else draw(st.just({}) | accesses(program))
    if access:
        program = program.with_access(access)
    values = _VALUES[family_of(wanted).name]
    geometry = program.geometry
    for name in draw(st.lists(st.sampled_from(sorted(values)), min_size=6, max_size=12)):
        steps = [geometry, *_legal_steps(program, geometry, name, values[name])]
        geometry = draw(st.sampled_from(steps))
    return evolve(program, schedule=geometry.schedule)


def _starts(spec: Any, target: Target) -> list[Program]:
    """Return the default program of a spec, and one of each variant that is served."""
    family, found = family_of(spec), [build(spec, target=target, schedule="default")]
    for variant in _VALUES[family.name].get("variant", ()):
        some = itertools.islice(family.part("candidates")(spec, target, variant), 100)
        schedules = (evolve(schedule, variant=variant) for schedule in some)
        geometries = (family.part("geometry")(spec, s, target, ()) for s in schedules)
        legal = next((g for g in geometries if is_legal(family, g)), None)
        if legal is not None:
            found.append(Program(spec=spec, schedule=legal.schedule, target=target))
    return found


def _legal_steps(
    program: Program, geometry: Any, name: str, values: tuple[object, ...]
) -> list[Any]:
    """Return the legal geometries that differ from ``geometry`` in one schedule field."""
    steps = (evolve(geometry, schedule=evolve(geometry.schedule, **{name: v})) for v in values)
    return [step for step in steps if is_legal(program.family, step)]
