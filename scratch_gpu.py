import json, os, sys, time, collections
import torch, ncode
from benchmarks.workloads import mlp_flow, plain_node
out = os.environ.get("OUT", "/tmp")
dev = "cuda"
def clock(fn, n=30):
    for _ in range(5): fn()
    torch.cuda.synchronize()
    ts = []
    for _ in range(n):
        t = time.perf_counter(); fn(); torch.cuda.synchronize(); ts.append(time.perf_counter() - t)
    return sorted(ts)[n // 2] * 1e3
def kernels(fn):
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as p:
        fn(); torch.cuda.synchronize()
    rows = collections.Counter(); n = collections.Counter()
    for e in p.events():
        if e.device_type == torch.autograd.DeviceType.CUDA:
            rows[e.name[:50]] += e.device_time_total if hasattr(e, "device_time_total") else e.cuda_time_total; n[e.name[:50]] += 1
    return [(k, n[k], round(v, 1)) for k, v in rows.most_common(8)], sum(n.values())
def report(name, step):
    t = time.perf_counter(); step(); torch.cuda.synchronize(); first = time.perf_counter() - t
    ms = clock(step)
    k = kernels(step)
    print(name, "first %.2f s" % first, "step %.3f ms" % ms, k, flush=True)
def lorenz(t, x, rho):
    a, b, c = x.unbind(1)
    return torch.stack([10 * (b - a), a * (rho - c) - b, a * b - 8 / 3 * c], 1)
def grads(f, x0, theta, **kw):
    def step():
        sol = ncode.solve(f, x0, 0.0, 1.0, theta=theta, compile="kernel", **kw)
        sol.x.square().mean().backward()
    return step
for hidden, batch in ((16, 512), (64, 512), (16, 4096), (64, 4096), (8, 64)):
    x0, th = mlp_flow.draw(batch, 0, hidden)
    x0 = x0.float().to(dev).requires_grad_(); th = tuple(t.float().to(dev).requires_grad_() for t in th)
    report(f"mlp h{hidden} b{batch}", grads(mlp_flow.baddbmm, x0, th))
for hidden, batch in ((64, 1024), (64, 4096), (16, 64)):
    g = torch.Generator().manual_seed(0)
    w1 = torch.randn(hidden, 2, generator=g); b1 = .3 * torch.randn(hidden, generator=g); b2 = .1 * torch.randn(2, generator=g)
    w2 = 5 / hidden * torch.tensor([[-0.2, -1.0], [1.0, -0.2]]) @ w1.mT
    w = [it.to(dev).requires_grad_() for it in (w1, b1, w2, b2)]
    x0 = torch.randn(batch, 2, generator=g).to(dev)
    report(f"plain h{hidden} b{batch}", grads(lambda t, x, th, w=w: plain_node.linear(t, x, w), x0, None))
for n, dt in ((524288, torch.float64), (2**20, torch.float32)):
    rho = torch.linspace(0, 21, n, dtype=dt, device=dev)
    x0 = torch.tensor([1.0, 0, 0], dtype=dt, device=dev).expand(n, 3).contiguous()
    for rtol in (1e-3, 1e-6, 1e-8) if dt == torch.float64 else (1e-6,):
        with torch.no_grad():
            report(f"lorenz fwd {n} {dt} {rtol}", lambda: ncode.solve(lorenz, x0, 0.0, 1.0, theta=rho, method="tsit5", rtol=rtol, atol=rtol, compile="kernel"))
rho = torch.linspace(0, 21, 32768, dtype=torch.float64, device=dev).requires_grad_()
x0 = torch.tensor([1.0, 0, 0], dtype=torch.float64, device=dev).expand(32768, 3).contiguous()
report("lorenz grad 32768", grads(lorenz, x0, rho, method="tsit5", rtol=1e-6, atol=1e-6))
import cProfile, pstats, io
x0, th = mlp_flow.draw(512, 0, 16)
x0 = x0.float().to(dev).requires_grad_(); th = tuple(t.float().to(dev).requires_grad_() for t in th)
step = grads(mlp_flow.baddbmm, x0, th)
pr = cProfile.Profile(); pr.enable()
for _ in range(100): step()
torch.cuda.synchronize(); pr.disable()
s = io.StringIO(); pstats.Stats(pr, stream=s).sort_stats("tottime").print_stats(30); open(out + "/profile.txt", "w").write(s.getvalue())
s = io.StringIO(); pstats.Stats(pr, stream=s).sort_stats("cumtime").print_stats(70); open(out + "/profile_cum.txt", "w").write(s.getvalue())
