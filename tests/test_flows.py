import copy
import math
import weakref

import pytest
import torch
import torchdiffeq
from torch import nn
from torch.distributions import (
    AffineTransform,
    Categorical,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

import ncode
from ncode._divergence import exact_divergence
from ncode.dynamics import MLP, Function
from ncode.flows import Flow, standard_normal

DOUBLE = torch.float64
TIGHT = {"rtol": 1e-9, "atol": 1e-11}
A = torch.tensor([[0.3, -1.2], [0.7, -0.5]], dtype=DOUBLE)
DRIFT = torch.tensor([0.4, -0.1], dtype=DOUBLE)


def points(n=6, dim=2):
    torch.manual_seed(1)
    return torch.randn(n, dim, dtype=DOUBLE)


def mlp_flow(dim=2, hidden=8, **options):
    torch.manual_seed(0)
    flow = Flow(MLP(dim, hidden=hidden, time=True), t1=1.5, **{**TIGHT, **options}).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(2)
    return flow


def gaussian_base():
    return MultivariateNormal(torch.tensor([0.5, -1.0], dtype=DOUBLE), 0.3 * torch.eye(2, dtype=DOUBLE))


# Closed forms


@pytest.mark.parametrize(("t0", "t1"), [(0.0, 1.0), (0.5, 2.0), (1.0, 0.0)])
def test_a_linear_flow_turns_a_gaussian_into_the_known_one(t0, t1):
    flow = Flow(lambda t, x, theta: x @ A.T, gaussian_base(), t0=t0, t1=t1, **TIGHT)
    E = torch.linalg.matrix_exp(A * (t1 - t0))
    expected = MultivariateNormal(E @ flow.base.loc, E @ flow.base.covariance_matrix @ E.T)
    torch.testing.assert_close(flow.log_prob(points()), expected.log_prob(points()), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("options", [{"method": "rodas5p"}, {"method": "kvaerno5"}, {"method": "trapezoid", "dt": 0.1}])
@pytest.mark.parametrize("divergence", ["exact", "hutchinson"])
def test_likelihoods_by_methods_for_stiff_problems_have_the_same_gradients(options, divergence):
    def gradients(**options):
        flow, x = mlp_flow(divergence=divergence, **options), points().requires_grad_()
        torch.manual_seed(2)
        return torch.autograd.grad(flow.log_prob(x).sum(), [x, *flow.parameters()])

    exact = gradients(method="trapezoid", dt=0.1, gradient="autograd") if "dt" in options else gradients()
    torch.testing.assert_close(gradients(**options), exact, rtol=1e-5, atol=1e-6)


def test_a_flow_that_expands_space_lowers_the_density():
    x = points()
    for rate in (1.0, -1.0):
        flow = Flow(lambda t, x, theta, rate=rate: rate * x, standard_normal(2), **TIGHT)
        expected = flow.base.log_prob(x * math.exp(-rate)) - 2 * rate
        torch.testing.assert_close(flow.log_prob(x), expected, rtol=1e-7, atol=1e-7)


def test_the_cost_of_each_direction_is_its_log_determinant():
    flow = mlp_flow()
    z = points(2)
    there = flow.to_data(z)
    back = flow.to_base(there.x)
    torch.testing.assert_close(back.x, z, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(back.cost, -there.cost, rtol=1e-7, atol=1e-7)
    for i in range(len(z)):
        jacobian = torch.autograd.functional.jacobian(lambda one: flow.to_data(one[None]).x[0], z[i])
        torch.testing.assert_close(there.cost[i], torch.linalg.slogdet(jacobian).logabsdet, rtol=1e-6, atol=1e-6)


def test_the_density_integrates_to_one():
    flow, side = mlp_flow(rtol=1e-6, atol=1e-6), torch.linspace(-9, 9, 181, dtype=DOUBLE)
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        mass = flow.log_prob(grid).exp().sum() * (side[1] - side[0]) ** 2
    assert float(mass) == pytest.approx(1.0, abs=1e-4)


def test_samples_of_a_linear_flow_have_the_known_mean_and_covariance():
    flow = Flow(lambda t, x, theta: x @ A.T + DRIFT, gaussian_base(), **TIGHT)
    torch.manual_seed(0)
    x = flow.sample(20_000)
    E = torch.linalg.matrix_exp(A)
    mean = E @ flow.base.loc + torch.linalg.solve(A, (E - torch.eye(2, dtype=DOUBLE)) @ DRIFT)
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=0.02)
    torch.testing.assert_close(x.T.cov(), E @ flow.base.covariance_matrix @ E.T, rtol=0, atol=0.02)
    assert not x.requires_grad


def test_samples_come_with_the_log_prob_that_they_have_alone():
    flow = mlp_flow()
    torch.manual_seed(0)
    x, log_prob = flow.rsample_and_log_prob(5)
    torch.testing.assert_close(log_prob, flow.log_prob(x), rtol=1e-6, atol=1e-6)
    torch.manual_seed(0)
    torch.testing.assert_close(flow.rsample(5), x)


def test_log_prob_and_samples_agree_with_torchdiffeq():
    flow = mlp_flow(rtol=1e-7, atol=1e-9)
    f = flow.block.dynamics
    x = points(16)

    def joint(t, state):
        with torch.enable_grad():
            y = state[0].requires_grad_()
            slope = f(t.expand(len(y)), y, dict(flow.block.controller.theta))
            rows = [torch.autograd.grad(slope[:, i].sum(), y, create_graph=True)[0][:, i] for i in range(2)]
        return slope, -sum(rows)

    def solve(start, times):
        zeros = start.new_zeros(len(start))
        ends = torchdiffeq.odeint(joint, (start, zeros), torch.tensor(times, dtype=DOUBLE), rtol=1e-7, atol=1e-9)
        return ends[0][-1], ends[1][-1]

    z, change = solve(x.clone(), [1.5, 0.0])
    expected = flow.base.log_prob(z) - change
    ours = flow.log_prob(x)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    parameters = list(flow.parameters())
    pairs = zip(
        torch.autograd.grad(ours.mean(), parameters), torch.autograd.grad(expected.mean(), parameters), strict=True
    )
    for own, other in pairs:
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
    torch.manual_seed(0)
    z = flow.base.sample((16,))
    torch.manual_seed(0)
    torch.testing.assert_close(flow.sample(16), solve(z, [0.0, 1.5])[0].detach(), rtol=1e-6, atol=1e-6)


# Gradients


def numeric_gradient(function, tensor, step=1e-6):
    """Central differences of a number with respect to every element of a tensor."""
    flat, found = tensor.detach().view(-1), torch.zeros(tensor.numel(), dtype=DOUBLE)
    with torch.no_grad():
        for i in range(len(flat)):
            old, ends = flat[i].item(), []
            for moved in (old + step, old - step):
                flat[i] = moved
                ends.append(function())
            flat[i] = old
            found[i] = (ends[0] - ends[1]) / (2 * step)
    return found.view_as(tensor)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
@pytest.mark.parametrize("divergence", ["exact", "hutchinson"])
def test_gradients_of_log_prob_agree_with_differences(gradient, divergence):
    flow = mlp_flow(hidden=3, divergence=divergence, gradient=gradient, method="rk4", dt=0.5)
    x = points(3).requires_grad_()
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=DOUBLE)

    def loss():
        torch.manual_seed(3)  # the same noise
        return (flow.log_prob(x) * weights).sum()

    loss().backward()
    for name, tensor in (("x", x), *flow.named_parameters()):
        expected = numeric_gradient(loss, tensor)
        torch.testing.assert_close(tensor.grad, expected, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("divergence", ["exact", "hutchinson"])
def test_the_adjoint_gradient_agrees_with_the_discrete_one(divergence):
    flow = mlp_flow(divergence=divergence, rtol=1e-8, atol=1e-8)
    x = points(3).requires_grad_()
    found = []
    for gradient in ("discrete", "adjoint"):
        torch.manual_seed(3)
        loss = flow.log_prob(x, gradient=gradient).sum()
        found.append(torch.autograd.grad(loss, [x, *flow.parameters()]))
    for discrete, adjoint in zip(*found, strict=True):
        torch.testing.assert_close(adjoint, discrete, rtol=1e-5, atol=1e-6)


def test_gradients_of_rsample_and_its_log_prob_agree_with_differences():
    flow = mlp_flow(hidden=3, method="rk4", dt=0.5)

    def loss():
        torch.manual_seed(3)
        x, log_prob = flow.rsample_and_log_prob(3)
        torch.manual_seed(4)
        return x.square().sum() + log_prob.sum() + flow.rsample(2).sum()

    loss().backward()
    for name, tensor in flow.named_parameters():
        expected = numeric_gradient(loss, tensor)
        torch.testing.assert_close(tensor.grad, expected, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_the_gradient_with_respect_to_x_is_the_score():
    flow = Flow(lambda t, x, theta: x @ A.T, standard_normal(2), **TIGHT)
    x = points().requires_grad_()
    (score,) = torch.autograd.grad(flow.log_prob(x).sum(), x)
    E = torch.linalg.matrix_exp(A)
    torch.testing.assert_close(score, -torch.linalg.solve(E @ E.T, x.detach().T).T, rtol=1e-6, atol=1e-6)


def test_gradients_of_a_linear_flow_are_those_of_its_closed_form():
    torch.manual_seed(0)
    flow = Flow(ncode.dynamics.Linear(2), **TIGHT).double()
    (weight,) = flow.parameters()
    E = torch.linalg.matrix_exp(weight)
    expected = MultivariateNormal(torch.zeros(2, dtype=DOUBLE), E @ E.T).log_prob(points())
    log_prob = flow.log_prob(points())
    torch.testing.assert_close(log_prob, expected, rtol=1e-7, atol=1e-7)
    found = torch.autograd.grad(log_prob.sum(), weight), torch.autograd.grad(expected.sum(), weight)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_second_derivatives_of_log_prob_are_those_of_a_gaussian():
    flow = Flow(lambda t, x, theta: x @ A.T, standard_normal(2), gradient="autograd", method="rk4", dt=0.02)
    hessian = torch.autograd.functional.hessian(lambda one: flow.log_prob(one[None])[0], points()[0])
    E = torch.linalg.matrix_exp(A)
    torch.testing.assert_close(hessian, -torch.linalg.inv(E @ E.T), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("divergence", ["exact", "hutchinson"])
def test_the_field_is_evaluated_once_per_stage(divergence):
    calls = 0

    def f(t, x, theta):
        nonlocal calls
        calls += 1
        return torch.sin(x)

    flow = Flow(f, standard_normal(2), divergence=divergence)
    x = points(1).requires_grad_()
    solution = flow.to_base(x)
    assert calls == int(solution.stats.nfe)
    solution.cost.sum().backward()
    assert calls == int(solution.stats.nfe) + int(solution.stats.nfe_backward)


def test_no_graph_of_the_field_is_kept_between_forward_and_backward():
    class Packed:
        def __init__(self, tensor):
            self.tensor = tensor.detach()

    packed = []

    def pack(tensor):
        kept = Packed(tensor)
        packed.append(weakref.ref(kept))
        return kept

    def alive(dt):
        packed.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
            loss = mlp_flow(method="rk4", dt=dt).log_prob(points()).sum()
            return sum(ref() is not None for ref in packed), len(packed), loss.requires_grad

    few, many = alive(0.75), alive(0.05)
    assert few[0] == many[0], "not more for more steps"
    assert many[1] > 5 * few[1]
    assert many[2]


def test_a_field_that_does_not_depend_on_x_has_no_divergence():
    shift = nn.Parameter(torch.tensor([1.0, -2.0], dtype=DOUBLE))
    x = points()
    for f in (lambda t, x, theta: shift.expand_as(x), lambda t, x, theta: torch.ones_like(x)):
        solution = Flow(f, standard_normal(2)).to_data(x)
        assert solution.cost.abs().max() == 0


# Hutchinson's estimate


@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_the_mean_of_many_estimates_is_the_exact_divergence(noise):
    x = points(4)
    exact = mlp_flow().log_prob(x).detach()
    torch.manual_seed(0)
    flow = mlp_flow(divergence="hutchinson", noise=noise)
    with torch.no_grad():
        draws = flow.log_prob(x.repeat(1000, 1)).reshape(1000, 4)
    error = draws.std(0) / math.sqrt(len(draws))
    assert bool((error > 0).all())
    assert bool(((draws.mean(0) - exact).abs() < 4 * error).all())


def test_several_noise_vectors_reduce_the_variance():
    spread = []
    for samples in (1, 16):
        torch.manual_seed(0)
        with torch.no_grad():
            flow = mlp_flow(divergence="hutchinson", samples=samples, rtol=1e-4, atol=1e-4)
            spread.append(float(flow.log_prob(points(1).repeat(500, 1)).std()))
    assert spread[1] == pytest.approx(spread[0] / 4, rel=0.2)


def test_estimates_with_signs_are_exact_where_elements_do_not_interact():
    x = points(3, 3 * 4 * 4).reshape(3, 3, 4, 4)
    flow = Flow(lambda t, x, theta: torch.sin(x), standard_normal(3, 4, 4), divergence="hutchinson", **TIGHT)
    exact = Flow(lambda t, x, theta: torch.sin(x), standard_normal(3, 4, 4), **TIGHT)
    torch.testing.assert_close(flow.log_prob(x), exact.log_prob(x), rtol=1e-7, atol=1e-7)
    # tan(x / 2) grows by e, so dx/dz = e / (cos(z / 2)^2 + e^2 sin(z / 2)^2)
    z = 2 * torch.atan(torch.tan(x / 2) * math.exp(-1)) + 2 * math.pi * torch.round(x / (2 * math.pi))
    slope = math.e / ((z / 2).cos() ** 2 + math.e**2 * (z / 2).sin() ** 2)
    expected = flow.base.log_prob(z) - slope.log().sum((1, 2, 3))
    torch.testing.assert_close(flow.log_prob(x), expected, rtol=1e-7, atol=1e-7)


def test_convolutions_on_images_train_by_estimated_likelihoods():
    torch.manual_seed(0)

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1))

        def forward(self, t, x, theta):
            return self.layers(x) * (1 + t[:, None, None, None])

    flow = Flow(Field(), standard_normal(1, 5, 5), divergence="hutchinson", noise="gaussian")
    x = 0.3 * torch.randn(8, 1, 5, 5)
    optimiser, losses = torch.optim.Adam(flow.parameters(), 0.04), []
    for _ in range(8):
        optimiser.zero_grad()
        loss = -flow.log_prob(x).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 5
    assert flow.sample(3).shape == (3, 1, 5, 5)


def test_noise_stays_with_its_sample_when_others_are_finished():
    speeds = torch.tensor([0.1, 12.0, 0.1, 6.0, 0.1, 0.1], dtype=DOUBLE)[:, None]
    f = Function(lambda t, x, theta: theta * torch.tanh(x @ A.T), (1,))
    flow = Flow(f, standard_normal(2), ncode.DataControl(), divergence="hutchinson", noise="gaussian")
    noise = torch.randn(6, 1, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
    x = points().requires_grad_()

    def log_prob(rows):
        flow._draw = lambda x: noise[rows]
        value = flow.log_prob(x[rows], speeds[rows])
        return value, *torch.autograd.grad(value.sum(), x)

    together, gradient = log_prob(slice(0, 6))
    for i in range(6):
        alone, own = log_prob(slice(i, i + 1))
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(gradient[i], own[i], rtol=1e-8, atol=1e-8)


def test_batched_products_give_the_same_divergence():
    torch.manual_seed(0)
    network, x = MLP(3, hidden=8, controlled=()).double(), points(4, 3).requires_grad_()
    slope = network(torch.zeros(4), x, {})
    found = exact_divergence(slope, x, True, batched=True), exact_divergence(slope, x, True, batched=False)
    torch.testing.assert_close(*found)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda one: network(torch.zeros(1), one[None], {})[0]))(x)
    torch.testing.assert_close(found[0], jacobian.diagonal(dim1=1, dim2=2).sum(1))
    grads = [
        torch.autograd.grad(it.sum(), list(network.parameters()), retain_graph=True, allow_unused=True) for it in found
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


# Context


def test_a_context_gives_a_conditional_density_and_has_a_gradient():
    flow = Flow(Function(lambda t, x, theta: theta * x, (1,)), standard_normal(2), ncode.DataControl(), **TIGHT)
    flow = flow.double()
    x, rate = points(4), torch.tensor([[0.5], [-1.0], [0.0], [2.0]], dtype=DOUBLE, requires_grad=True)
    expected = Normal(0.0, rate.exp()).log_prob(x).sum(1)
    log_prob = flow.log_prob(x, rate)
    torch.testing.assert_close(log_prob, expected, rtol=1e-7, atol=1e-7)
    found = torch.autograd.grad(log_prob.sum(), rate)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), rate), rtol=1e-6, atol=1e-6)
    samples = flow.sample(4000, torch.full((4000, 1), 1.0, dtype=DOUBLE))
    assert float(samples.std()) == pytest.approx(math.e, rel=0.03)


def test_weights_computed_from_a_context_have_gradients():
    torch.manual_seed(0)
    gamma = nn.Sequential(nn.Linear(3, 8), nn.Tanh())
    flow = Flow(MLP(2, hidden=4), standard_normal(2), ncode.OpenLoop(gamma, scale=1.0))
    context = torch.randn(5, 3, requires_grad=True)
    x = torch.randn(5, 2)
    flow.log_prob(x, context).sum().backward()
    assert context.grad.abs().min() > 0
    assert all(p.grad is not None for p in flow.parameters())
    one = flow.log_prob(x[2:3], context[2:3])
    torch.testing.assert_close(flow.log_prob(x, context)[2:3], one, rtol=1e-4, atol=1e-4)


def test_an_input_path_gives_a_density_of_its_own_to_each_sample():
    torch.manual_seed(0)
    flow = Flow(
        Function(lambda t, x, theta: theta * x, (1,)), standard_normal(2), ncode.InputControl(), t1=2.0, **TIGHT
    )
    flow = flow.double()
    x, values = points(4), torch.randn(4, 3, 1, dtype=DOUBLE)
    path, growth = ncode.paths.linear(values), (values[:, 0] / 2 + values[:, 1] + values[:, 2] / 2)
    expected = Normal(0.0, growth.exp()).log_prob(x).sum(1)
    jumps = [1.0]  # where the path has a corner
    torch.testing.assert_close(flow.log_prob(x, path=path, jump_ts=jumps), expected, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(flow.velocity(1.0, x, path=path), values[:, 1] * x)
    sol = flow.to_base(x, path=path, jump_ts=jumps)
    torch.testing.assert_close(sol.theta["theta"], values[:, 0])  # at the end of the solve, t = 0
    torch.manual_seed(0)
    samples = flow.sample(4, path=path, jump_ts=jumps)
    torch.manual_seed(0)
    torch.testing.assert_close(samples, flow.base.sample((4,)) * growth.exp(), rtol=1e-7, atol=1e-7)


def test_velocity_is_the_field_under_the_context():
    torch.manual_seed(0)
    flow = Flow(Function(lambda t, x, theta: theta * x + t[:, None], (1,)), standard_normal(2), ncode.DataControl())
    x, context = torch.randn(4, 2), torch.randn(4, 1)
    for t in (0.25, torch.tensor(0.25), torch.linspace(0, 1, 4)):
        expected = context * x + torch.as_tensor(t).expand(4)[:, None]
        torch.testing.assert_close(flow.velocity(t, x, context), expected)
    with pytest.raises(ncode.InputError, match=r"t must be a number or a tensor \(\) or \(4,\); given shape \(4, 1\)"):
        flow.velocity(torch.zeros(4, 1), x, context)


# A module


def test_a_flow_trains_and_its_state_can_be_loaded():
    torch.manual_seed(0)
    data = 0.3 * torch.randn(128, 2) + torch.tensor([1.0, -1.0])
    flow = Flow(MLP(2, hidden=16, time=True), rtol=1e-4, atol=1e-4)
    fresh = copy.deepcopy(flow)
    optimiser, losses = torch.optim.Adam(flow.parameters(), 0.1), []
    for _ in range(12):
        optimiser.zero_grad()
        loss = -flow(data).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1
    fresh.load_state_dict(flow.state_dict())
    assert torch.equal(fresh.log_prob(data), flow.log_prob(data))


@pytest.mark.parametrize(
    "base",
    [
        standard_normal(2),
        MultivariateNormal(torch.zeros(2), torch.eye(2)),
        TransformedDistribution(standard_normal(2), [AffineTransform(torch.ones(2), torch.ones(2), event_dim=1)]),
        MixtureSameFamily(Categorical(torch.ones(3)), Independent(Normal(torch.zeros(3, 2), torch.ones(3, 2)), 1)),
    ],
    ids=lambda base: type(base).__name__,
)
def test_a_base_follows_its_flow_to_another_precision(base):
    flow = Flow(MLP(2, hidden=4), base)
    assert flow.sample(3).dtype == flow.log_prob(torch.zeros(3, 2)).dtype == torch.float32
    double = copy.deepcopy(flow).double()
    assert double.sample(3).dtype == double.log_prob(torch.zeros(3, 2, dtype=DOUBLE)).dtype == DOUBLE
    torch.testing.assert_close(double.log_prob(points()).float(), flow.log_prob(points().float()), rtol=1e-3, atol=1e-3)
    assert base.sample((1,)).dtype == torch.float32, "the caller's distribution is not changed"


def test_a_module_as_base_is_learned():
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.loc = nn.Parameter(torch.ones(2))

        def forward(self):
            return Independent(Normal(self.loc, torch.ones(2)), 1)

    flow = Flow(lambda t, x, theta: torch.zeros_like(x), Learned())
    flow.log_prob(torch.zeros(1, 2)).sum().backward()
    assert torch.equal(flow.base.loc.grad, torch.tensor([-1.0, -1.0]))
    assert list(flow.state_dict()) == ["base.loc"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("divergence", ["exact", "hutchinson"])
def test_log_prob_needs_no_gradient_mode(mode, divergence):
    torch.manual_seed(0)
    flow = Flow(MLP(2, hidden=4), standard_normal(2), ncode.OpenLoop(nn.Linear(1, 3)), divergence=divergence)
    torch.manual_seed(0)
    expected = flow.log_prob(torch.ones(3, 2), torch.ones(3, 1)).detach()
    with mode():
        torch.manual_seed(0)
        found = flow.log_prob(torch.ones(3, 2), torch.ones(3, 1))
        assert flow.sample(2, torch.ones(2, 1)).shape == (2, 2)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected)


def test_a_failed_sample_has_no_density_and_the_others_keep_theirs():
    flow = Flow(lambda t, x, theta: -x * x * x, standard_normal(1))  # backward in time, x = 9 blows up
    x = torch.tensor([[0.5], [9.0], [-0.1]], requires_grad=True)
    with pytest.raises(ncode.SolveError, match="1 of 3 samples"):
        flow.log_prob(x)
    log_prob = flow.log_prob(x, throw=False)
    assert log_prob.isnan().tolist() == [False, True, False]
    log_prob[[0, 2]].sum().backward()
    assert x.grad.isfinite().all()
    torch.testing.assert_close(log_prob[::2], flow.log_prob(x[::2]))


def test_options_of_the_solver_pass_through():
    flow = Flow(MLP(2), method="rk4", dt=0.5, t1=2.0)
    assert int(flow.to_base(torch.zeros(1, 2)).stats.steps) == 4
    assert int(flow.to_base(torch.zeros(1, 2), dt=0.25).stats.steps) == 8
    assert flow.to_data(torch.zeros(3, 2), t1=1.0, save_at=[0.0, 1.0]).xs.shape == (3, 2, 2)
    tight = Flow(MLP(2))
    assert tight.block.settings.options.rtol == 1e-5
    assert "divergence=exact" in repr(flow)
    assert flow.sample(0).shape == (0, 2)


@pytest.mark.slow
def test_a_compiled_flow_equals_the_eager_one():
    flow = mlp_flow(method="midpoint", dt=0.75, divergence="hutchinson")
    x = points(3)
    results = []
    for compile in (False, True):
        torch.manual_seed(0)
        value = flow.log_prob(x, compile=compile)
        results.append((value, *torch.autograd.grad(value.sum(), list(flow.parameters()))))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


# Bad input


class NoDistribution(nn.Module):
    def forward(self):
        return 3


def loop_controller():
    return ncode.ClosedLoop(ncode.control.Feedback(nn.Sequential(nn.Linear(2, 3), nn.Tanh())))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Flow(lambda t, x, theta: x), "is unknown to Function: give the flow a base"),
        (lambda: Flow(lambda t, x: x, standard_normal(2)), r"must be a function of \(t, x, theta\)"),
        (lambda: Flow(MLP(2), (2,)), r"given \(2,\): for a standard normal, use ncode.flows.standard_normal\(2\)"),
        (lambda: Flow(MLP(2), Normal(torch.zeros(2), 1.0)), r"use torch.distributions.Independent\(base, 1\)"),
        (lambda: Flow(MLP(2), divergence="exakt"), 'did you mean "exact"'),
        (lambda: Flow(MLP(2), noise="normal"), "unknown noise"),
        (lambda: Flow(MLP(2), samples=0), "samples must be at least 1"),
        (lambda: Flow(MLP(2), samples=3), "an exact divergence needs no noise"),
        (lambda: Flow(MLP(2), tol=1e-3), "unknown option of a flow 'tol'"),
        (lambda: Flow(MLP(2), nn.Identity()), r"base must be a function of \(\); Identity takes"),
        (lambda: Flow(MLP(2), NoDistribution()), "must return a Distribution; returned int"),
        (lambda: standard_normal(0), "at least 1"),
    ],
)
def test_bad_flows_are_refused(build, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        build()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Flow(MLP(2)).log_prob(torch.zeros(2)), r"given \(2,\): use x\[None\]"),
        (lambda: Flow(MLP(2)).log_prob(torch.zeros(3, 4)), r"must be \(batch, \*\(2,\)\).* given \(3, 4\)"),
        (lambda: Flow(MLP(2)).log_prob([1.0, 2.0]), "given list"),
        (lambda: Flow(MLP(2)).log_prob(torch.zeros(1, 2).cfloat()), "real x"),
        (lambda: Flow(MLP(2)).log_prob(torch.zeros(1, 2).double()), "the block is torch.float32 and x torch.float64"),
        (lambda: Flow(MLP(2)).log_prob(torch.full((1, 2), torch.nan)), "not finite"),
        (lambda: Flow(MLP(2)).log_prob(torch.zeros(1, 2), tol=1.0), "unknown setting 'tol'"),
        (lambda: Flow(MLP(2)).sample(-1), "n must be at least 0"),
        (lambda: Flow(MLP(2)).sample(1.5), "n must be a whole number"),
        (lambda: Flow(MLP(2), controller=ncode.OpenLoop(nn.Linear(1, 3))).sample(2), "pass context"),
        (
            lambda: Flow(MLP(2), controller=ncode.OpenLoop(nn.Linear(1, 3))).sample(2, torch.zeros(3, 1)),
            r"context must be a tensor \(2, ...\)",
        ),
        (
            lambda: Flow(MLP(2), controller=loop_controller()).log_prob(torch.zeros(3, 2), torch.zeros(3, 2)),
            "drives the control along the trajectory",
        ),
        (
            lambda: Flow(ncode.dynamics.Augmented(MLP(3), 1), standard_normal(2)).log_prob(torch.zeros(3, 2)),
            "a flow must be invertible",
        ),
        (
            lambda: Flow(MLP(2), Independent(torch.distributions.Poisson(torch.ones(2)), 1)).rsample(2),
            "Independent, has no rsample",
        ),
    ],
)
def test_bad_input_is_refused(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # forward mode uses it
def test_likelihoods_refuse_derivatives_that_miss_the_divergence():
    flow, x = mlp_flow(gradient="autograd"), points()
    with pytest.raises(ncode.InputError, match="likelihood of a flow"):
        torch.func.jacrev(lambda x: flow.log_prob(x).sum())(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(ncode.InputError, match="likelihood of a flow"):
        flow.log_prob(torch.autograd.forward_ad.make_dual(x, x))
