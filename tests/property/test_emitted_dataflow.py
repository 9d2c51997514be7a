"""What the templates emit passes the dataflow checks and lints, for any legal program."""

from hypothesis import given

from tilegen import strategies
from tilegen.rules.dataflow import check_dataflow, lint_source


@given(strategies.legal_programs())
def test_emitted_source_has_no_finding(program):
    assert check_dataflow(program.source) == ()
    assert lint_source(program.source) == ()
