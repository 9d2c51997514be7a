"""Targets: the table, names and their near misses, and the current GPU."""

import subprocess
import sys

import pytest
from attrs import evolve

import tilegen as tg
from tilegen.targets import TARGETS, target

SPEC = tg.Gemm(m=1024, n=1024, k=1024, dtype="bfloat16", layout="nt")


def test_the_table_is_keyed_by_name():
    assert list(TARGETS) == ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a", "gfx942"]
    for name, record in TARGETS.items():
        assert record.name == name
        assert target(name) is record
        assert target(record) is record
        assert tg.TARGETS[name] is record


@pytest.mark.parametrize("record", TARGETS.values(), ids=TARGETS)
def test_limits_are_consistent(record):
    assert 0 < record.smem_bytes <= record.smem_per_sm
    assert record.smem_bytes % 1024 == 0
    assert record.tma or not record.wgmma
    assert record.max_threads <= 1024
    assert record.max_registers * 256 <= record.registers_per_sm


def test_sm_80_and_sm_90a_are_served_in_full():
    assert [record.name for record in TARGETS.values() if record.full] == ["sm_80", "sm_90a"]


@pytest.mark.parametrize(
    ("name", "dict_"),
    [
        ("sm_80", {"kind": "cuda", "arch": "sm_80"}),
        ("sm_90a", {"kind": "cuda", "arch": "sm_90a"}),
        ("gfx942", {"kind": "hip", "mcpu": "gfx942"}),
    ],
)
def test_targets_as_tilelang_takes_them(name, dict_):
    assert TARGETS[name].tilelang == dict_


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sm_90", "use 'sm_90a': warp specialization needs the architecture's suffix"),
        ("sm_100", "use 'sm_100a'"),
        ("sm_120", "use 'sm_120a'"),
        ("sm_75", "use one of sm_80, sm_89, sm_90a, sm_100a, sm_120a, gfx942"),
        ("hopper", "use one of sm_80"),
        ("", "use one of sm_80"),
        (90, "use one of sm_80"),
        ({"arch": "sm_90a"}, "use one of sm_80"),
        (["sm_90a"], "use one of sm_80"),
    ],
)
def test_unknown_targets_are_refused(name, hint):
    with pytest.raises(tg.SpecError) as raised:
        tg.build(SPEC, target=name)
    assert (raised.value.rule, raised.value.field) == ("target", "target")
    assert raised.value.value == name
    assert raised.value.hint.startswith(hint)


NO_GPU = """
import torch
torch.cuda.is_available = lambda: False
import tilegen as tg
spec = tg.Gemm(m=64, n=64, k=64, dtype="float16")
try:
    tg.build(spec)
except tg.SpecError as error:
    print(error.rule, error)
"""


def test_without_a_gpu_the_current_target_is_refused_by_name():
    run = subprocess.run([sys.executable, "-c", NO_GPU], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("target [target] target=None: there is no GPU")
    assert "pass target='sm_90a' or another of sm_80" in run.stdout


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")]
)
def test_the_current_target_is_that_of_the_gpu(monkeypatch, capability, name):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert target(None).name == name


def test_a_gpu_outside_the_table_is_refused(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(tg.SpecError, match="sm_75"):
        target(None)


def test_the_target_is_part_of_a_program():
    programs = [tg.build(SPEC, target=name) for name in TARGETS]
    assert len({program.digest for program in programs}) == len(TARGETS)
    assert len(set(programs)) == len(TARGETS)


def test_a_smaller_target_of_ones_own_is_respected():
    small = evolve(TARGETS["sm_90a"], smem_bytes=65536)
    program = tg.build(SPEC, target=small)
    assert program.smem_bytes <= 65536 < tg.build(SPEC, target="sm_90a").smem_bytes


def test_a_target_of_ones_own_is_not_saved_as_another():
    """JSON holds a target's name: one that the name does not give back cannot be saved."""
    program = tg.build(SPEC, target=evolve(TARGETS["sm_90a"], smem_bytes=65536))
    try:
        text = tg.dumps(program)
    except tg.SpecError as error:
        assert error.rule == "json"  # noqa: PT017
    else:
        assert tg.loads(text) == program
