"""Gradients of a block against finite differences, in double precision."""

import torch


def assert_gradients_agree(block, x, *, rtol=1e-5, atol=1e-7, step=1e-6, **solve):
    """Every parameter's and x's gradient of a random number made of x at t1 agrees with central differences."""
    x = x.detach().clone().requires_grad_()
    weights = torch.randn_like(block.solve(x, **solve).x)

    def loss():
        return (block.solve(x, **solve).x * weights).sum()

    block.zero_grad()
    loss().backward()
    for name, tensor in (("x", x), *block.named_parameters()):
        assert tensor.grad is not None, f"{name} has no gradient"
        numeric, flat = torch.zeros_like(tensor).view(-1), tensor.detach().view(-1)
        with torch.no_grad():
            for i in range(len(flat)):
                ends, old = [], flat[i].item()
                for moved in (old + step, old - step):
                    flat[i] = moved
                    ends.append(loss())
                flat[i] = old
                numeric[i] = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(
            tensor.grad.view(-1), numeric, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )
