"""What works in a process in place of the true court: it hangs, dies, or has a planted fault."""

import os
import time

import pytest
from fuzz.planted import FAULTS, GPU_FAULTS

from tilegen.fuzz.case import Outcome
from tilegen.fuzz.judging import Court


class Hangs(Court):
    """Hangs where there is a Relu."""

    def judge(self, case):
        if "Relu" in repr(case.program.spec):
            time.sleep(600)
        return super().judge(case)


class Dies(Court):
    """Dies where there is a Relu."""

    def judge(self, case):
        if "Relu" in repr(case.program.spec):
            os.abort()
        return super().judge(case)


class Faulty(Court):
    """Drops a tail."""

    def __init__(self, on):
        super().__init__(on)
        FAULTS["tail"](pytest.MonkeyPatch())


class Swizzled(Court):
    """Its kernels hang on the GPU."""

    def __init__(self, on):
        super().__init__(on)
        GPU_FAULTS["swizzle"](pytest.MonkeyPatch())


class Unaligned(Court):
    """Its kernels are called with addresses that they are not built for."""

    def __init__(self, on):
        super().__init__(on)
        GPU_FAULTS["alignment"](pytest.MonkeyPatch())


class Named(Court):
    """Says in which process it runs."""

    def judge(self, case):
        return Outcome("judged", (f"by {os.getpid()}",))
