"""The tuner's compilers, with the real one: binaries land in the cache, refusals come back."""

import pytest
from attrs import evolve

import tilegen as tg
from tilegen import cache
from tilegen.tuning.crew import Crew, compile_all

SPEC = tg.Gemm(m=128, n=128, k=128, dtype="float16", layout="nt")
pytestmark = pytest.mark.nvcc


def test_programs_are_compiled_into_the_cache():
    programs = [tg.build(evolve(SPEC, n=n), target="sm_90a") for n in (136, 144)]
    compile_all([*programs, programs[0]], jobs=2)
    for program in programs:
        assert cache.read_entry(program.digest, "binary") is not None


def test_what_the_compiler_says_comes_back():
    program = tg.build(SPEC, target="sm_89")  # lowers only
    with Crew((), jobs=1) as crew:
        answer = crew.compile(program).result()
    assert answer.status == "failed"
    assert answer.reason.startswith("target sm_89 is only lowered to source")
