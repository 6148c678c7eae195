"""The exceptions Doppler raises on purpose.

```text
DopplerError
├── FormatError        (ValueError)    a file that cannot be read as what it should be
├── OutputError        (OSError)       a file that cannot, or must not, be written
├── GraphError         (ValueError)    a dataflow graph that is not one
├── ProgramError       (ValueError)    a tensor program whose shapes or dtypes do not fit
├── ModelError         (ValueError)    a model of another library that cannot be imported
├── ShardingError      (ValueError)    a cut of a program that cannot be made
├── TopologyError      (ValueError)    a machine description that is not one
├── AssignmentError    (ValueError)    an assignment that does not fit its graph or topology
├── ConfigError        (ValueError)    an option with a value it cannot have
├── CheckpointError    (ValueError)    a policy that cannot be saved, or a file without one
├── TrainingError      (RuntimeError)  training that cannot continue
├── EngineError        (RuntimeError)  a run on real devices that failed, and at which vertex
│   └── DeadlineError                  one that was stopped at its deadline
├── PlacerError        (RuntimeError)  a placer of one's own that cannot be loaded, or that failed
├── WrongTypeError     (TypeError)     an argument of a type it cannot have
├── UnknownNameError   (LookupError)   no placer, topology, strategy… of that name
├── MissingExtraError  (ImportError)   an optional library is needed and absent
└── OutOfMemoryError   (RuntimeError)  no task can start: device memory is too small
```

Each says what is wrong, where, and with which value; `hint` says what to do about it.
"""

import difflib
from collections.abc import Iterable


class DopplerError(Exception):
    """An error with a message for a person and, where there is one, a hint.

    >>> import doppler as dp
    >>> try:
    ...     dp.Topology.preset("p100")
    ... except dp.DopplerError as error:
    ...     print(error.message)
    no topology named `p100`
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class FormatError(DopplerError, ValueError):
    """A file that cannot be read as what it should be."""


class OutputError(DopplerError, OSError):
    """A file that cannot, or must not, be written."""


class GraphError(DopplerError, ValueError):
    """A dataflow graph that is not one."""


class ProgramError(DopplerError, ValueError):
    """A tensor program whose shapes or dtypes do not fit."""


class ModelError(DopplerError, ValueError):
    """A model of another library that cannot be imported."""


class ShardingError(DopplerError, ValueError):
    """A cut of a program that cannot be made."""


class TopologyError(DopplerError, ValueError):
    """A machine description that is not one."""


class AssignmentError(DopplerError, ValueError):
    """An assignment that does not fit its graph or topology."""


class ConfigError(DopplerError, ValueError):
    """An option with a value it cannot have."""


class CheckpointError(DopplerError, ValueError):
    """A policy that cannot be saved, or a file that holds none that can be used."""


class TrainingError(DopplerError, RuntimeError):
    """Training that cannot continue."""


class EngineError(DopplerError, RuntimeError):
    """A run on real devices that failed."""


class DeadlineError(EngineError):
    """A run on real devices that was stopped at its deadline."""


class PlacerError(DopplerError, RuntimeError):
    """A placer of one's own that cannot be loaded, or that failed."""


class WrongTypeError(DopplerError, TypeError):
    """An argument of a type it cannot have."""

    def __init__(self, argument: str, value: object, wanted: str) -> None:
        super().__init__(f"{argument} must be {wanted}, not of type `{type(value).__name__}`")


class UnknownNameError(DopplerError, LookupError):
    """No thing of that kind has that name."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1)
        guess = f"did you mean `{close[0]}`? " if close else ""
        super().__init__(f"no {kind} named `{name}`", hint=f"{guess}known: {', '.join(names)}")


class Interrupted(BaseException):
    """Ctrl-C. Work that has a best result so far returns it; other work lets this pass."""


class MissingExtraError(DopplerError, ImportError):
    """An optional library is needed and absent."""

    def __init__(self, library: str, purpose: str, *, extra: str | None = None) -> None:
        """`extra` of this package brings the library, where one does."""
        package = library if extra is None else f"doppler-placement[{extra}]"
        super().__init__(f"{purpose} needs `{library}`", hint=f"pip install {package}")


class OutOfMemoryError(DopplerError, RuntimeError):
    """No task can start because its output fits on no device that it may use."""
