import pytest

from ncode.block import config


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


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    """What a test registers, or a page or script that it runs, is forgotten after it."""
    monkeypatch.setattr(config, "_registered", dict(config._registered))
