"""The errors tilegen raises, one class for each thing a caller would catch apart."""

from __future__ import annotations


class TilegenError(Exception):
    """Base of every error that tilegen raises on purpose."""


class RefusedError(TilegenError, ValueError):
    """A spec, schedule or program that is refused; says which rule, field and value, and a fix.

    Attributes:
        rule: Id of the rule that refuses, such as ``smem-capacity``.
        field: Name of the field at fault, such as ``block_k``.
        value: The value given for that field.
        hint: What would work instead.
    """

    def __init__(
        self, message: str, *, rule: str = "", field: str = "", value: object = None, hint: str = ""
    ) -> None:
        self.message, self.rule, self.field, self.value, self.hint = (
            message,
            rule,
            field,
            value,
            hint,
        )
        text = f"{field}={value!r}: {message}" if field else message
        if rule:
            text = f"[{rule}] {text}"
        super().__init__(f"{text}; {hint}" if hint else text)


class SpecError(RefusedError):
    """A spec, or one of its ops, asks for something that has no meaning or is not served."""


class ScheduleError(RefusedError):
    """A schedule field has a value that no program could use."""


class LegalityError(RefusedError):
    """Spec, schedule and target are each sound, but together they make no legal program."""


class RenderError(TilegenError):
    """A template failed; names the template and line."""


class CompileError(TilegenError):
    """TileLang or nvcc refused emitted source; names the source file and repeats the program."""


class OperandError(TilegenError, ValueError):
    """A tensor handed to a kernel does not fit; ``operand`` is its name.

    Attributes:
        operand: Name of the operand or output at fault.
    """

    def __init__(self, operand: str, message: str) -> None:
        self.operand = operand
        super().__init__(f"operand {operand!r}: {message}")


class ReportError(TilegenError):
    """A check that found a fault; ``report`` holds what was found."""

    def __init__(self, message: str, report: object = None) -> None:
        self.report = report
        super().__init__(message)


class SimulationError(ReportError):
    """The simulator found a fault in a tile program."""


class VerificationError(ReportError):
    """A kernel's values differ from the reference by more than the derived tolerance."""
