"""Verification without a GPU: the tile program is simulated and judged as a kernel is."""

import sys

import pytest
import torch
from simulate.emitted import imported

import tilegen as tg
from tilegen.errors import OperandError, SimulationError, VerificationError

SPEC = tg.Gemm(m=tg.dyn("m", hint=40), n=40, k=48, dtype="float16") | tg.Bias() | tg.Relu()
SCHEDULE = tg.GemmSchedule(block_m=64, block_n=32, variant="pipelined")
PROGRAM = tg.build(SPEC, target="sm_90a", schedule=SCHEDULE)


@pytest.fixture
def emitted(monkeypatch, tmp_path):
    """Return a function that changes the source which is simulated in place of a program's."""

    def change(old, new):
        assert PROGRAM.source.count(old) == 1
        path = tmp_path / "changed.py"
        path.write_text(PROGRAM.source.replace(old, new))
        function = imported(path).build()
        monkeypatch.setattr(sys.modules["tilegen.simulate"], "traced", lambda _: function)

    return change


def test_a_sound_program_passes():
    report = tg.verify(PROGRAM, on="cpu", sizes={"m": 77}, seed=3)
    assert report.ok
    assert report.sizes == (("m", 77),)
    (out,) = report.outputs
    assert 0 < out.max_error < 0.01
    assert 0 < out.relative_error < 1e-3
    assert report.simulation.counters["blocks"] == 4
    assert report.simulation.seed == 4, "the second run has its blocks in another order"
    rows = dict(report.rows())
    assert rows["kernel"] == f"{PROGRAM.name} with m=77"
    assert rows["simulated"] == "on the CPU, as it is written"
    assert "blocks 4" in rows["executed"]
    assert rows["checked"] == "bounds, uninitialized, unwritten, ownership, race"
    assert rows["seed"] == "3"
    assert report.to_json()["simulation"]["counters"]["launches"] == 1


def test_the_program_is_judged_as_it_is_scheduled():
    report = tg.verify(PROGRAM, on="cpu", level="scheduled", sizes={"m": 77})
    assert report.simulation.level == "sm_90a"
    assert dict(report.rows())["simulated"] == "on the CPU, as scheduled for sm_90a"
    assert "on='cpu', level='scheduled'" in report.repro


def test_wrong_values_are_named_as_on_a_gpu(emitted):
    emitted("T.if_then_else(x < 0.0, 0.0, x)", "T.if_then_else(x < 1.0, 0.0, x)")
    with pytest.raises(VerificationError, match=r"out\[0, \d+\] is 0.0, expected") as caught:
        tg.verify(PROGRAM, on="cpu", sizes={"m": 77}, seed=3)
    report = caught.value.report
    assert report.simulation.ok
    assert report.outputs[0].wrong > 100
    assert report.repro in str(caught.value)
    with pytest.raises(VerificationError) as again:
        exec(report.repro, {})
    assert again.value.report == report


def test_a_fault_is_named_by_its_statement_and_not_by_its_consequences(emitted):
    emitted("            T.clear(acc)\n", "")
    with pytest.raises(VerificationError, match=r"\[uninitialized\] acc") as caught:
        tg.verify(PROGRAM, on="cpu", seed=3)
    report = caught.value.report
    assert not report.ok
    assert report.outputs == ()
    assert report.simulation.diagnostics[0].statement.startswith("T.gemm(a_shared, b_shared, acc")
    labels = [label for label, _ in report.rows()]
    assert labels[-5:] == ["fault", "", "", "", "repro"]
    with pytest.raises(VerificationError) as again:
        exec(report.repro, {})
    assert again.value.report == report


def test_elements_that_are_not_written_are_named(emitted):
    emitted("T.Kernel(T.ceildiv(m, BLOCK_M)", "T.Kernel(m // BLOCK_M")
    with pytest.raises(VerificationError, match=r"\[unwritten\] out\[64:77, 0:40\]"):
        tg.verify(PROGRAM, on="cpu", sizes={"m": 77})


def test_two_blocks_that_write_an_element_are_named(emitted):
    emitted("T.copy(out_shared, out[", "T.copy(out_shared, out[0 *")
    with pytest.raises(VerificationError, match="is written by two blocks of one launch"):
        tg.verify(PROGRAM, on="cpu", sizes={"m": 77})


def test_given_operands_are_used():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(33, 96, generator=generator).half()[:, ::2]
    report = tg.verify(PROGRAM, on="cpu", operands={"a": a})
    assert report.sizes == (("m", 33),)
    assert "operands={...}" in report.repro
    with pytest.raises(OperandError, match=r"must be torch\.float16"):
        tg.verify(PROGRAM, on="cpu", operands={"a": a.float()})


def test_an_empty_output_is_sound():
    assert tg.verify(PROGRAM, on="cpu", sizes={"m": 0}).ok


def test_a_level_that_is_not_served_is_refused():
    with pytest.raises(SimulationError, match="level='block': is not served"):
        tg.verify(PROGRAM, on="cpu", level="block")
