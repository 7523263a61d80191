"""Backends: how the pure functions of a solve (start, attempt, pullback of a step) are executed.

Here: what a backend is, and the eager one, which calls functions as they are. inductor.py compiles them. A backend may
also run a solve as a whole (ode/kernel/).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from ...errors import InputError, check_choice, format_type
from ..system import RightHandSide, State

if TYPE_CHECKING:
    from ..attempt import LoopState
    from ..captures import Captures
    from ..gradients.function import InputGradients, Outputs
    from ..problem import Problem, SampleInputs
    from ..solution import Stats

BACKENDS = ("eager", "inductor", "kernel")


class TensorFunction(Protocol):
    """A pure function of one tree of tensors, as a solve hands it to a backend."""

    carries: ClassVar[tuple[str, ...]]
    """Fields of the result that become the fields of the same names of the next call's inputs."""

    recorded: ClassVar[bool]
    """Whether the function runs often enough that recording it as a CUDA graph pays."""

    @property
    def system(self) -> RightHandSide | None:
        """The system that it evaluates, None if it evaluates none."""
        ...

    @property
    def signature(self) -> Hashable:
        """Everything else that its result depends on, apart from its inputs and the captured tensors."""
        ...

    @property
    def cache(self) -> dict[Hashable, Any]:
        """Where a backend may keep what it has made of this function."""
        ...

    def __call__(self, inputs: Any, /) -> Any: ...


class WholeSolve(NamedTuple):
    """A solve that a backend ran as a whole: the end of the loop, and how to make its pullback, if it has one."""

    backend: str
    state: LoopState
    nfe: Tensor
    failed: int  # number of failed samples
    saved: State  # x and the driven control at the saved times; empty without
    pullback: Callable[[Problem, Captures, Stats], WholePullback] | None


class WholePullback(Protocol):
    """What a solve that ran as a whole leaves behind for backward."""

    problem: Problem
    captures: Captures

    def __call__(self, needed: SampleInputs, grads: Outputs) -> InputGradients:
        """Gradients for z0, for those of the inputs that `needed` marks with True, and for the trained captures."""
        ...


class Backend(ABC):
    """How the pure functions of a solve are executed. Subclass it for a backend of your own: one method is enough.

    >>> import torch, ncode
    >>> class Counting(ncode.Backend):
    ...     name, calls = "counting", 0
    ...     def run(self, function, inputs, captures):
    ...         self.calls += 1
    ...         return function(inputs)
    >>> backend = Counting()
    >>> sol = ncode.solve(lambda t, x, theta: -x, torch.ones(1, 1), 0.0, 1.0, method="rk4", dt=0.25, compile=backend)
    >>> backend.calls, sol.stats.backend  # the start and four attempts
    (5, 'counting')
    """

    name: str = "unnamed"
    """What `sol.stats.backend` says."""

    fuses: bool = False
    """Whether small extra operations inside a function cost nothing."""

    checks_values: bool = False
    """Whether `solve_whole` fails for samples whose state or control is not finite."""

    differentiable: bool = False
    """Whether autograd may record what `run` does, so that the graph of a short solve can be kept."""

    @abstractmethod
    def run(self, function: TensorFunction, inputs: Any, captures: Sequence[Tensor]) -> Any:
        """Return function(inputs); `captures` are the outside tensors that the user's functions use."""

    def prepare(self, tensor: Tensor) -> Tensor:
        """The tensor in the memory layout that `run` works best with."""
        return tensor

    def check(self, system: RightHandSide, inputs: Any, check: Callable[[], None]) -> None:
        """Run a check of a system's functions with inputs of these shapes: here each time, elsewhere once."""
        check()

    def has_changed(self, system: RightHandSide) -> bool:
        """Whether something that a system's functions read has changed since its forward pass, if it is watched."""
        return False

    def bucket_size(self, batch: int, alive: int) -> int:
        """The batch size to continue with when this many samples of a batch are alive, at least `alive`."""
        return alive

    def recall(self, problem: Problem, train: bool) -> Captures | None:
        """The captures of a problem, without an evaluation, if they are those of an earlier solve; `slope` is empty."""
        return None

    def remember(self, problem: Problem, captures: Captures, train: bool) -> None:  # noqa: B027
        """Keep what `recall` needs, after a solve as a whole."""

    def solve_whole(self, problem: Problem, captures: Captures, differentiates: bool) -> WholeSolve | None:
        """The solve as a whole, without `run`; None where the backend cannot do that."""
        return None

    def why_not_whole(self, problem: Problem, captures: Captures, differentiates: bool) -> str | None:
        """Why a solve cannot run as a whole, as a clause; None if it can."""
        return "the backend runs functions one by one"


class Eager(Backend):
    """Calls functions as they are."""

    name = "eager"
    differentiable = True

    def run(self, function: TensorFunction, inputs: Any, captures: Sequence[Tensor]) -> Any:
        return function(inputs)


EAGER = Eager()


def find_backend(compile: Any) -> Backend:
    """The backend that `compile` asks for; `True` takes the fastest one that fits."""
    if isinstance(compile, Backend):
        return compile
    if not isinstance(compile, (bool, str)):
        raise InputError(
            f"compile must be False, True, the name of a backend ({', '.join(BACKENDS)}) or a Backend;"
            f" given {format_type(compile)}"
        )
    if compile is False or (isinstance(compile, str) and check_choice("backend", compile, BACKENDS) == "eager"):
        return EAGER
    if compile == "inductor":
        from .inductor import INDUCTOR  # only here: an eager solve needs no compiler

        return INDUCTOR
    from ..kernel.backend import FASTEST, KERNEL

    return KERNEL if compile == "kernel" else FASTEST
