"""Emitted files as they are or edited: imported, simulated, and their values examined."""

import importlib.util

import tilegen as tg
from tilegen.comparison import examine


def imported(path):
    """Return the module of a file that no other import finds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults(program, source, folder, operands, level="tile", **options):
    """Return what is wrong with a file of a program: of the runs, then of their values.

    ``options`` are those of its ``build``, such as so few ``sms`` that each walks over some tiles.
    """
    path = folder / "emitted.py"
    path.write_text(source)
    module = imported(path)
    found = []

    def compute(operands, outputs):
        tensors = (*operands.values(), *outputs.values())
        function = module.build(**options)
        report = tg.simulate(function, *tensors, outputs=tuple(outputs), level=level)
        found.extend(map(str, report.diagnostics))

    for report in examine(compute, program.spec, operands):
        found.extend(map(str, report.faults()))
    return found
