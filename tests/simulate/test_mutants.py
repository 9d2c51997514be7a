"""Small changes of kernels are noticed: by a diagnostic, or by the values.

Goldens are changed as they are written and as they are scheduled; of hand-written kernels those
whose warpgroups wait for each other. What survives does the same as the kernel: it waits for more
than it needs (`wait_wgmma(0)` for 1, a slot freed a step later), computes the same parity or slot
(`+ 1` and `- 1` modulo 2), has room that nothing uses (a slot or block too many, which guards make
harmless), orders tiles alike where there is one column of them, or shifts all scores of a softmax.
"""

import inspect
import random
from collections import Counter

import pytest
import simulate.warp_specialized as ws
import torch
from attrs import evolve
from golden.cases import GEMM
from simulate.emitted import imported
from simulate.mutants import mutants
from simulate.test_golden_programs import shrunk
from simulate.test_kernels import drawn

import tilegen as tg
from tilegen.comparison import compare, guarded
from tilegen.errors import SimulationError
from tilegen.families import family_of
from tilegen.operands import signature
from tilegen.reference import inputs
from tilegen.simulate import simulate

torch.set_num_threads(1)
COUNTS = {"tile": 100, "scheduled": 200}
SEED = 0
# Adversarial magnitudes: what clears and masks hide in normal values shows in large or negative.
CHANGES = (lambda t: t, lambda t: -t.abs(), lambda t: t * 4)
MIXED = (lambda t: t, lambda t: t.abs(), lambda t: t * 4)  # all scores of attention are negative


class Golden:
    """A golden program of small sizes, as it is written or as it is scheduled."""

    def __init__(self, name, program, level):
        self.name, self.program, self.source, self.build = name, program, program.source, "build"
        self.level = level if level == "tile" else program.target.name

    def made(self, module):
        persistent = "sms" in inspect.signature(module.build).parameters
        return module.build(sms=2) if persistent else module.build()  # several tiles a CTA

    def found(self, function, seed):
        """Return what shows that a function is not the program's; an empty text if nothing does."""
        spec = self.program.spec
        rows = {dim.name: 304 // dim.multiple_of * dim.multiple_of for dim in spec.dynamic}
        normal = inputs(spec, rows, torch.Generator().manual_seed(seed))
        operands = {name: CHANGES[seed](t.float()).to(t.dtype) for name, t in normal.items()}
        call = signature(spec)
        sizes = call.sizes([operands[name] for name in call.names])
        made = {o.name: guarded(o, sizes, torch.device("cpu")) for o in spec.outputs}
        tensors = {**operands, **{name: output.tensor for name, output in made.items()}}
        given = [tensors[p.name] for p in self.program.params]
        report = simulate(function, *given, outputs=list(made), level=self.level, seed=seed)
        if not report.ok:
            return report.diagnostics[0].kind
        family = family_of(spec)
        expected = family.part("reference")(spec, operands, torch.float64)
        tolerance = family.part("tolerance")(spec, operands, expected)
        for name, output in made.items():
            if not compare(name, output, output, expected[name], tolerance[name]).ok:
                return "values"
        return ""


def product(a, b):
    return a.float() @ b.float()


def attended(q, k, v):
    return (q.float() @ k.float().T / 8).softmax(1) @ v.float()


class Written:
    """A kernel that is written by hand, with a reference in torch."""

    def __init__(self, build, args, shapes, out, reference, level="sm_90a", tolerance=1e-2):
        self.name = self.build = build.__name__
        self.source, self.args, self.level = (
            inspect.getsource(inspect.getmodule(build)),
            args,
            level,
        )
        self.shapes, self.out, self.reference = shapes, out, reference
        self.tolerance = tolerance

    def made(self, module):
        return getattr(module, self.build)(*self.args)

    def found(self, function, seed):
        dtype = self.out.dtype
        operands = [
            (MIXED if number else CHANGES)[seed](drawn(*shape, seed=seed + number)).to(dtype)
            for number, shape in enumerate(self.shapes)
        ]
        out = torch.empty_like(self.out)
        report = simulate(function, *operands, out, outputs=["out"], level=self.level, seed=seed)
        if not report.ok:
            return report.diagnostics[0].kind
        expected = self.reference(*operands).float()
        close = torch.isclose(out.float(), expected, atol=self.tolerance, rtol=4e-3, equal_nan=True)
        return "" if close.all() else "values"


def half(*shape):
    return torch.empty(shape, dtype=torch.float16)


SHAPE, FACTORS, HEAD = (70, 520), [(136, 200), (200, 72)], [(72, 64), (420, 64), (420, 64)]
WRITTEN = (
    Written(ws.gemm, (136, 72, 200), FACTORS, half(136, 72), product),
    Written(ws.attention, (72, 420, 64), HEAD, half(72, 64), attended, tolerance=4e-3),
    Written(ws.alternating, SHAPE, [SHAPE], torch.empty(70), lambda a: a.sum(1)),
    Written(ws.cp_async_producer, SHAPE, [SHAPE], half(*SHAPE), lambda a: a * 2),
    Written(ws.tma_stores, SHAPE, [SHAPE], half(*SHAPE), lambda a: a + 1),
    Written(ws.cp_async_gemm, (136, 72, 200), FACTORS, half(136, 72), product, "sm_80"),
)


def built(case, source, path):
    """Return the function that a source builds, or None if TileLang refuses it."""
    path.write_text(source)
    try:
        return case.made(imported(path))
    except Exception:
        return None


def judged(case, source, path):
    function = built(case, source, path)
    if function is None:
        return "refused by TileLang"
    for seed in range(len(CHANGES)):
        try:
            if kind := case.found(function, seed):
                return kind
        except SimulationError as error:
            return "refused" if "cannot be simulated:" not in str(error) else f"crash: {error}"
    return ""


def small(program, k):
    """Return the program of small sizes; where it rasterizes, with panels of two tiles."""
    rows = 300 if program.schedule.variant == "warp_specialized" else 130
    program = shrunk(program, rows, 136, k)
    if not program.schedule.rasterization:
        return program
    narrow = evolve(program.schedule.rasterization, panel=2)
    schedule = evolve(program.schedule, rasterization=narrow)
    made = tg.build(program.spec, target=program.target, schedule=schedule)
    return made.with_access(program.access)


def cases(level):
    k = 72 if level == "tile" else 200
    found = [Golden(name, small(program, k), level) for name, program in GEMM.items()]
    return found if level == "tile" else [*found, *WRITTEN]


@pytest.mark.parametrize("level", COUNTS)
def test_nearly_every_mutant_is_noticed(level, tmp_path):
    each = [(case, mutant) for case in cases(level) for mutant in mutants(case.source, case.build)]
    random.Random(SEED).shuffle(each)
    kinds, survivors = Counter(), []
    for number, (case, mutant) in enumerate(each):
        kind = judged(case, mutant.source, tmp_path / f"mutant_{number}.py")
        assert not kind.startswith("crash"), f"{case.name}: {mutant}: {kind}"
        if kind != "refused by TileLang":
            kinds[kind] += 1
        if not kind:
            survivors.append(f"{case.name}: {mutant}")
        if kinds.total() == COUNTS[level]:
            break
    print(len(each), dict(kinds), *survivors, sep="\n")
    assert len(survivors) <= 0.05 * COUNTS[level], survivors
