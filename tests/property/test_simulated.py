"""Any legal program of any family agrees with PyTorch, simulated at ragged sizes on hard values."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilegen as tg
from tilegen.families import FAMILIES
from tilegen.reference import derived, inputs
from tilegen.strategies import dims_near, gemm_specs, legal_programs, specs
from tilegen.strategies_attention import attention_specs
from tilegen.strategies_decode import decode_specs
from tilegen.strategies_mla import mla_specs
from tilegen.strategies_rowwise import rowwise_specs
from tilegen.targets import TARGETS

torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other

SIZES = dims_near(16, tiles=4).filter(lambda size: size < 140)
SMALL = {
    "gemm": gemm_specs(m=SIZES | st.just(tg.dyn("m", hint=50)), n=SIZES, k=SIZES),
    "elementwise": specs("elementwise"),
    "attention": attention_specs(
        seq=st.integers(0, 70) | st.just(tg.dyn("s", hint=50)),
        width=st.sampled_from((8, 32, 40)),
        batch=st.integers(0, 1) | st.just(tg.dyn("batch", hint=1)),
    ),
    "decode": decode_specs(
        room=st.integers(1, 140),
        width=st.sampled_from((8, 32, 40)),
        batch=st.integers(1, 2),
    ),
    "mla": mla_specs(
        kv_len=st.integers(1, 140) | st.just(tg.dyn("kv_len", hint=100)),
        latent=st.just(128),
        heads=st.sampled_from((1, 5, 16)),
        batch=st.integers(0, 1),
        page=st.sampled_from((None, 16, 48)),
    ),
    "rowwise": rowwise_specs(
        rows=st.integers(0, 20) | st.just(tg.dyn("rows", hint=50)),
        cols=SIZES | st.sampled_from((1000, 1100)),
    ),
}
"""By family, specs that are simulated in milliseconds."""


def planted(tensor, draw):
    """Return a tensor with a NaN and both infinities at drawn places."""
    tensor = tensor.clone()
    for value in (torch.nan, torch.inf, -torch.inf):
        if tensor.numel():
            tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = value
    return tensor


VALUES = {
    "normal": lambda tensor, draw: tensor,
    "large": lambda tensor, draw: tensor * 30,
    "huge": lambda tensor, draw: tensor * 2.0**12,
    "tiny": lambda tensor, draw: tensor * 2.0**-12,
    "negative": lambda tensor, draw: -tensor.abs(),
    "zero": lambda tensor, draw: tensor * 0,
    "not finite": planted,
}


def test_every_family_is_simulated():
    assert set(SMALL) == set(FAMILIES)


@pytest.mark.parametrize("level", ["tile", "scheduled"])
@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.full])
@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
def test_legal_programs_agree_with_the_reference(family, target, level, data):
    program = data.draw(legal_programs(target, SMALL[family]))
    sizes = {
        dim.name: data.draw(st.integers(0, 90 // dim.multiple_of)) * dim.multiple_of
        for dim in program.spec.dynamic
    }
    seed = data.draw(st.integers(0, 99))
    drawn = inputs(program.spec, sizes, torch.Generator().manual_seed(seed))
    values = VALUES[data.draw(st.sampled_from(sorted(VALUES)))]
    operands = {
        name: tensor
        # Where sequences end, and where their pages are, is no value to be tried.
        if name.startswith("cu_seqlens") or name in ("kv_lens", "page_table")
        else values(tensor.float(), data.draw).to(tensor.dtype)
        for name, tensor in drawn.items()
    }
    operands |= derived(program.spec, operands)
    assert tg.verify(program, on="cpu", level=level, operands=operands, seed=seed).ok
