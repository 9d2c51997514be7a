"""The default schedule is legal for every legal spec, on every target that is served in full."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilegen as tg
from tilegen.errors import RefusedError
from tilegen.schedules.fields import UNSET
from tilegen.strategies import chains, dims, dyns, epilogue_ops, gemm_specs, specs

FULL = ("sm_80", "sm_90a")
LOWER_ONLY = ("sm_89", "sm_100a", "sm_120a", "gfx942")
AWKWARD = st.sampled_from((0, 1, 2, 3, 17, 4093, 4096, 65535, 65537, 8_388_593))
LONG = st.integers(1, 2**31 - 1).map(lambda hint: tg.dyn("m", hint=hint))
TENSORS = epilogue_ops(tg.Bias, tg.Scale, tg.Residual, tg.Multiply, tg.Store)


@pytest.mark.parametrize("target", FULL)
@given(specs())
def test_default_schedule_is_legal_for_any_spec(target, spec):
    program = tg.build(spec, target=target, schedule="default")
    assert UNSET not in vars_of(program.schedule)
    assert tg.build(spec, target=target) == program
    assert tg.build(spec, target=target, schedule=type(program.schedule)()) == program


def vars_of(schedule):
    return [getattr(schedule, name) for name in type(schedule).__slots__ if name[:2] != "__"]


@pytest.mark.parametrize("target", FULL)
@given(gemm_specs(m=AWKWARD | LONG | dyns(), n=AWKWARD, k=AWKWARD))
def test_default_schedule_is_legal_for_awkward_and_huge_sizes(target, spec):
    tg.build(spec, target=target)


@pytest.mark.parametrize("target", FULL)
@given(gemm_specs(m=dims() | LONG, n=AWKWARD, k=AWKWARD, epilogue=chains(5, 16, ops=TENSORS)))
def test_default_schedule_is_legal_for_long_chains_of_tensors(target, spec):
    tg.build(spec, target=target)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("target", FULL)
@pytest.mark.parametrize("m", [0, 1, 128, 4096, tg.dyn("m"), tg.dyn("m", hint=1)], ids=str)
def test_default_schedule_is_legal_in_every_layout_and_dtype(m, target, dtype, layout):
    compute = "tf32" if dtype == "float32" else None
    for n, k in ((0, 64), (1, 1), (8, 0), (4096, 4096), (4097, 4093), (8_000_000, 16)):
        spec = tg.Gemm(m=m, n=n, k=k, dtype=dtype, layout=layout, compute=compute)
        program = tg.build(spec, target=target)
        assert program.smem_bytes <= program.target.smem_bytes


@pytest.mark.parametrize("target", LOWER_ONLY)
@given(specs())
def test_other_targets_render_or_refuse_by_name(target, spec):
    try:
        program = tg.build(spec, target=target)
    except RefusedError as error:
        assert error.rule  # noqa: PT017
        assert error.field  # noqa: PT017
    else:
        assert target in program.source
