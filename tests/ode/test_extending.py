"""What users add to the solver: methods, step-size rules and backends."""

import math
from dataclasses import dataclass

import pytest
import torch

import ncode
from ncode import InputError, Tableau
from ncode.ode import METHODS
from ncode.ode.backends import find_backend

from .systems import DOUBLE, GRADIENTS, Everything, close, decay, double
from .test_tableau import SYSTEMS, exactly, observed_order

RALSTON = Tableau("ralston", order=2, c=(0, 2 / 3), a=((), (2 / 3,)), b=(1 / 4, 3 / 4))
KUTTA = Tableau("kutta", order=3, c=(0, 1 / 2, 1), a=((), (1 / 2,), (-1, 2)), b=(1 / 6, 2 / 3, 1 / 6))
SSPRK3 = Tableau(
    "ssprk3",
    order=3,
    c=(0, 1, 1 / 2),
    a=((), (1,), (1 / 4, 1 / 4)),
    b=(1 / 6, 1 / 6, 2 / 3),
    error=(1 / 6 - 1 / 2, 1 / 6 - 1 / 2, 2 / 3),  # the difference to Heun's method, which its first stages make
)


def loss_and_gradients(system, **options):
    loss = system.loss(ncode.solve(**system.arguments(), **options))
    return loss, torch.autograd.grad(loss, list(system.inputs.values()))


own_method = pytest.mark.parametrize("method", [RALSTON, KUTTA, SSPRK3], ids=lambda method: method.name)


@own_method
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("where", ["at the end of steps", "saved between steps", "called between steps"])
def test_a_method_of_ones_own_has_its_order(method, system, where):
    field, exact, start = SYSTEMS[system]
    x0 = torch.tensor(start, dtype=DOUBLE)
    steps, errors = (50, 100, 200), []
    for n in steps:
        # The same places within a step for every n, or the error would jump with them.
        places = [1.0] if where == "at the end of steps" else [0.21, 0.5, 0.83]
        ts = (torch.arange(n, dtype=DOUBLE)[:, None] + torch.tensor(places, dtype=DOUBLE)).flatten() * (2 / n)
        called = where == "called between steps"
        sol = ncode.solve(field, x0, 0.0, 2.0, method=method, dt=2 / n, dense=called, save_at=None if called else ts)
        errors.append(float(((sol(ts) if called else sol.xs) - exactly(exact, ts, x0)).abs().max()))
    assert observed_order(errors, steps) == pytest.approx(method.order, abs=0.25), errors


@pytest.mark.slow
@own_method
@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_a_method_of_ones_own_has_the_gradient_of_a_plain_graph(method, gradient):
    dt, rtol = (0.01, 1e-3) if gradient == "adjoint" else (0.25, 1e-9)  # the adjoint has an error of its own
    ours, plain = (loss_and_gradients(Everything(), method=method, dt=dt, gradient=it) for it in (gradient, "autograd"))
    close(ours, plain, rtol=rtol, atol=rtol)


def test_an_adaptive_method_of_ones_own_reaches_the_tolerance():
    x0 = torch.ones(2, 1, dtype=DOUBLE)
    for tolerance in (1e-4, 1e-6, 1e-8):
        sol = ncode.solve(decay, x0, 0.0, 2.0, method=SSPRK3, rtol=tolerance, atol=tolerance)
        assert float((sol.x - math.exp(-2)).abs().max()) < 10 * tolerance


def test_a_method_of_ones_own_that_spells_out_a_known_one_gives_the_same_solution():
    known = ncode.ode.METHODS["bosh3"]
    own = Tableau("own", known.order, known.c, known.a, known.b, known.error, known.error_order)
    x0 = torch.linspace(0.1, 1, 4, dtype=DOUBLE)[:, None]
    ours, theirs = (ncode.solve(decay, x0, 0.0, 1.0, method=m, save_at=[0.3, 1.0]) for m in (own, "bosh3"))
    assert torch.equal(ours.x, theirs.x)
    assert torch.equal(ours.xs, theirs.xs)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"c": (0, 2 / 3, 1)}, r"2 weights b needs 2 nodes c.* given 3 nodes"),
        ({"a": ((0,), (2 / 3,))}, r"rows a of 0 to 1 weights \(explicit\); given .* rows of \[1, 1\]"),
        (
            {"a": ((), (1 / 2,))},
            r"row a\[1\] sums to 0.5; expected its node c, 0.666667 \(difference -0.17\): .* 2 / 3",
        ),
        ({"b": (1 / 4, 1 / 4)}, r"weights b sum to 0.5; expected 1"),
        ({"error": (1.0, 1.0)}, r"error needs 2 or 3 weights that sum to 0.* given 2 with the sum 2"),
        ({"error": (1.0, -1.0, 0.5, -0.5)}, r"error needs 2 or 3 weights .* given 4"),
        ({"error": (0.0, 0.0)}, r"all weights of error are 0, .* leave out error and use a fixed dt"),
        ({"order": 0}, r"order of a Tableau must be at least 1; given 0"),
    ],
)
def test_a_wrong_tableau_is_refused_with_a_sentence(changes, sentence):
    right = {"order": 2, "c": RALSTON.c, "a": RALSTON.a, "b": RALSTON.b}
    with pytest.raises(InputError, match=sentence):
        Tableau("wrong", **{**right, **changes})


def test_a_method_without_an_error_estimate_needs_a_step_size():
    with pytest.raises(InputError, match='"ralston" has no error estimate: give a step size dt'):
        ncode.solve(decay, torch.ones(1, 1), 0.0, 1.0, method=RALSTON)


@dataclass(frozen=True)
class HalveOrDouble(ncode.StepSizeRule):
    def factor(self, order, ratio, previous, earlier):
        return torch.where(ratio > 1.0, 0.5, torch.where(ratio < 0.5 ** (order + 1), 2.0, 1.0))


@dataclass(frozen=True)
class Predicting(ncode.StepSizeRule):
    """Gustafsson's rule, which compares with the last accepted step."""

    uses_history: bool = True

    def factor(self, order, ratio, previous, earlier):
        return (0.8 * ratio ** (-0.7 / order) * previous ** (0.4 / order)).clamp(0.2, 5.0)


@pytest.mark.parametrize("rule", [HalveOrDouble(), Predicting()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("method", ["bosh3", "dopri5", SSPRK3], ids=lambda method: getattr(method, "name", method))
@pytest.mark.parametrize("step", ["sample", "batch"])
def test_a_step_size_rule_of_ones_own_reaches_the_tolerance(rule, method, step):
    field, exact, start = SYSTEMS["time-dependent"]
    x0, ts = torch.tensor(start, dtype=DOUBLE), torch.linspace(0, 2, 11, dtype=DOUBLE)
    for tolerance in (1e-4, 1e-6):
        options = {"rtol": tolerance, "atol": tolerance, "save_at": ts, "step": step}
        sol = ncode.solve(field, x0, 0.0, 2.0, method=method, step_rule=rule, **options)
        assert float((sol.xs - exactly(exact, ts, x0)).abs().max()) < 300 * tolerance


def test_a_step_size_rule_is_followed():
    steps = []

    @dataclass(frozen=True)
    class Recording(HalveOrDouble):
        def factor(self, order, ratio, previous, earlier):
            factor = super().factor(order, ratio, previous, earlier)
            steps.append(float(factor))
            return factor

    sol = ncode.solve(decay, torch.ones(1, 1), 0.0, 5.0, step_rule=Recording())
    assert len(steps) == int(sol.stats.steps + sol.stats.rejected)
    assert set(steps) <= {0.5, 1.0, 2.0}


def test_what_is_no_step_size_rule_is_refused():
    with pytest.raises(InputError, match=r"step_rule must be a StepSizeRule, such as PID\(p=0.2\); given float"):
        ncode.solve(decay, torch.ones(1, 1), 0.0, 1.0, step_rule=0.9)


class Counting(ncode.Backend):
    name = "counting"

    def __init__(self):
        self.calls = 0

    def run(self, function, inputs, captures):
        self.calls += 1
        return function(inputs)


class Padding(Counting):
    """Continues with batches of even sizes, and copies what it is given."""

    def prepare(self, tensor):
        return tensor.clone()

    def bucket_size(self, batch, alive):
        return min(batch, alive + alive % 2)


@pytest.mark.parametrize("make", [Counting, Padding])
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("feedback", [True, False])
def test_a_backend_of_ones_own_gives_what_eager_gives(make, gradient, feedback):
    backend, options = make(), {"rtol": 1e-5, "gradient": gradient}
    got = loss_and_gradients(Everything(batch=5, feedback=feedback), compile=backend, **options)
    expected = loss_and_gradients(Everything(batch=5, feedback=feedback), **options)
    assert backend.calls > 0
    close(got, expected)


def test_the_statistics_name_the_backend():
    x0 = torch.ones(1, 1)
    assert ncode.solve(decay, x0, 0.0, 1.0, compile=Counting()).stats.backend == "counting"
    assert ncode.solve(decay, x0, 0.0, 1.0, compile="eager").stats.backend == "eager"
    assert ncode.solve(decay, x0, 0.0, 1.0).stats.backend == "eager"


def test_true_is_inductor_with_kernels_where_they_fit():
    assert isinstance(find_backend(True), type(find_backend("inductor")))
    assert find_backend(True).name == find_backend("inductor").name == "inductor"
    assert find_backend("kernel").name == "kernel"
    assert find_backend(False) is find_backend("eager")


@pytest.mark.parametrize(
    ("compile", "sentence"),
    [
        ("inductr", 'unknown backend .inductr.; did you mean "inductor"'),
        ("egaer", 'unknown backend .egaer.; did you mean "eager"'),
        (
            1.5,
            r"compile must be False, True, the name of a backend \(eager, inductor, kernel\) or a Backend; given float",
        ),
        (Counting, "compile must be .* a Backend; given the class Counting: write Counting"),
    ],
)
def test_what_is_no_backend_is_refused(compile, sentence):
    with pytest.raises(InputError, match=sentence):
        ncode.solve(decay, torch.ones(1, 1), 0.0, 1.0, compile=compile)


def test_a_backend_of_ones_own_runs_every_gradient():
    for gradient in ("discrete", "adjoint", "autograd"):
        backend = Counting()
        sol = ncode.solve(decay, double(1.0), 0.0, 1.0, method="rk4", dt=0.25, gradient=gradient, compile=backend)
        assert backend.calls > 0
        assert sol.stats.backend == "counting"


@pytest.mark.parametrize("order", [3, 4, 5])
def test_an_order_that_a_tableau_does_not_have_is_refused(order):
    with pytest.raises(ncode.InputError, match=f"has order={order}, but it is not of order 3"):
        ncode.Tableau("second", order=order, c=(0.0, 0.5, 1.0), a=((), (0.5,), (0.0, 1.0)), b=(0.25, 0.5, 0.25))


RK4 = METHODS["rk4"]


@pytest.mark.parametrize(
    ("method", "order", "found"), [(SSPRK3, 4, 4), (RK4, 5, 5), (METHODS["tsit5"], 6, 6), (METHODS["dopri5"], 8, 6)]
)
def test_an_order_above_that_of_a_method_is_refused_by_the_trees_of_that_order(method, order, found):
    with pytest.raises(InputError, match=f"has order={order}, but it is not of order {found}: .* order={found - 1}"):
        Tableau("wrong", order, method.c, method.a, method.b)


def test_a_mistake_that_keeps_all_row_sums_is_found():
    a = ((), (1 / 2,), (1 / 2, 0.0), (0.0, 0.0, 1.0))  # that of rk4 is (0, 1 / 2)
    with pytest.raises(InputError, match="has order=4, but it is not of order 3"):
        Tableau("wrong", 4, RK4.c, a, RK4.b)


def test_a_function_of_time_and_state_alone_is_refused_with_its_signature():
    with pytest.raises(ncode.InputError, match=r"function of \(t, x, theta\); <lambda> takes \(t, x\)"):
        ncode.solve(lambda t, x: -x, double(1.0), 0.0, 1.0)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (0.9, r"returned float; expected one factor per sample, a tensor of shape \(3,\): .*full_like"),
        (None, "returned NoneType"),
        (torch.ones(2), r"returned a tensor of shape \(2,\)"),
        (torch.ones(3, 1), r"returned a tensor of shape \(3, 1\)"),
    ],
)
@pytest.mark.parametrize("step", ["sample", "batch"])
def test_a_step_size_rule_that_returns_no_factors_is_refused_with_a_sentence(returned, sentence, step):
    class Fixed(ncode.StepSizeRule):
        def factor(self, order, ratio, previous, earlier):
            return returned

    with pytest.raises(InputError, match=f"Fixed.factor {sentence}"):
        ncode.solve(decay, torch.ones(3, 1), 0.0, 1.0, step_rule=Fixed(), step=step)


def test_one_factor_for_all_samples_will_do():
    class Fixed(ncode.StepSizeRule):
        def factor(self, order, ratio, previous, earlier):
            return ratio.new_tensor(0.9)

    assert ncode.solve(decay, torch.ones(3, 1), 0.0, 1.0, step_rule=Fixed()).ok.all()


def test_a_factor_of_other_arguments_is_refused_with_its_signature():
    class Short(ncode.StepSizeRule):
        def factor(self, order, ratio):
            return ratio

    with pytest.raises(InputError, match=r"factor of Short must be a function of \(order, .* takes \(order, ratio\)"):
        ncode.SolveOptions(step_rule=Short())


def test_a_jacobian_of_other_arguments_is_refused_with_its_signature():
    class Decay(ncode.dynamics.Dynamics):
        def forward(self, t, x, theta):
            return -x

        def jacobian(self, t, x):
            return -torch.ones(len(x), 1, 1)

    sentence = r"jacobian of Decay must be a function of \(t, x, theta\); jacobian takes \(t, x\)"
    with pytest.raises(InputError, match=sentence):
        ncode.NCODE(Decay())
    with pytest.raises(InputError, match=sentence):
        ncode.solve(Decay(), torch.ones(1, 1), 0.0, 1.0, method="rodas5p")
    assert ncode.solve(Decay(), torch.ones(1, 1), 0.0, 1.0).ok.all()  # an explicit method has no use for it


@pytest.mark.parametrize("name", ["dt", "max_dt"])
def test_a_tensor_of_one_number_is_told_how_to_become_one(name):
    with pytest.raises(
        InputError, match=rf"{name} must be a finite number; given a tensor of shape \(\): use .item\(\)"
    ):
        ncode.SolveOptions(**{name: torch.tensor(0.1)})
