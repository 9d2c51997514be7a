"""Small changes of the golden kernels are noticed: by a diagnostic, or by the values."""

import importlib.util
import random
from collections import Counter

import pytest
import torch
from golden.cases import GEMM
from simulate.mutants import mutants
from simulate.test_golden_programs import drawn, shrunk

from tilegen.comparison import compare, guarded
from tilegen.errors import SimulationError
from tilegen.families import family_of
from tilegen.operands import signature
from tilegen.simulate import simulate

COUNT = 200
SEED = 0
# Adversarial magnitudes: what clears and masks hide in normal values shows in large or negative.
CHANGES = (lambda t: t, lambda t: -t.abs(), lambda t: t * 4)


def built(source, path):
    """Return the function that a source builds, or None if TileLang refuses it."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return module.build()
    except Exception:
        return None


def found(program, function, operands):
    """Return what shows that a function is not the program's; an empty text if nothing does."""
    spec = program.spec
    call = signature(spec)
    sizes = call.sizes([operands[name] for name in call.names])
    made = {o.name: guarded(o, sizes, torch.device("cpu")) for o in spec.outputs}
    tensors = {**operands, **{name: output.tensor for name, output in made.items()}}
    report = simulate(function, *(tensors[p.name] for p in program.params), outputs=list(made))
    if not report.ok:
        return report.diagnostics[0].kind
    family = family_of(spec)
    expected = family.part("reference")(spec, operands, torch.float64)
    tolerance = family.part("tolerance")(spec, operands, expected)
    for name, output in made.items():
        if not compare(name, output, output, expected[name], tolerance[name]).ok:
            return "values"
    return ""


def judged(program, source, path):
    function = built(source, path)
    if function is None:
        return "refused by TileLang"
    for seed, change in enumerate(CHANGES):
        operands = {
            name: change(tensor.float()).to(tensor.dtype)
            for name, tensor in drawn(program.spec, seed).items()
        }
        try:
            if kind := found(program, function, operands):
                return kind
        except SimulationError as error:
            return "refused" if "cannot be simulated:" not in str(error) else f"crash: {error}"
    return ""


@pytest.fixture(scope="module")
def drawn_mutants():
    small = [(name, shrunk(program, 130, 136, 72)) for name, program in GEMM.items()]
    each = [(name, p, mutant) for name, p in small for mutant in mutants(p.source)]
    return random.Random(SEED).sample(each, COUNT)


def test_nearly_every_mutant_is_noticed(drawn_mutants, tmp_path):
    kinds, survivors = Counter(), []
    for number, (name, program, mutant) in enumerate(drawn_mutants):
        kind = judged(program, mutant.source, tmp_path / f"mutant_{number}.py")
        assert not kind.startswith("crash"), f"{name}: {mutant}: {kind}"
        kinds[kind] += 1
        if not kind:
            survivors.append(f"{name}: {mutant}")
    print(dict(kinds), *survivors, sep="\n")
    assert len(survivors) <= 0.05 * COUNT, survivors
    assert kinds["refused by TileLang"] <= 0.1 * COUNT
