import pytest


@pytest.fixture
def traced(monkeypatch):
    """Run graphs without compiling them; a list with an entry for every graph that would have been compiled."""
    graphs = []

    def keep(graph, inputs, *args, **kwargs):
        graphs.append(graph)
        return graph

    import torch._inductor

    from ncode.ode.backends import inductor

    monkeypatch.setattr(torch._inductor, "compile", keep)
    monkeypatch.setattr(inductor, "_compiled", type(inductor._compiled)())
    return graphs
