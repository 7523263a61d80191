"""Every private torch API that ncode uses, in one file. Tried with torch 2.11 (CUDA 13) and 2.13 (CPU).

When a new torch version breaks ncode, this is the first place to look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction as without_function_modes  # noqa: F401  # pyright: ignore
from torch.autograd.forward_ad import _set_fwd_grad_enabled as forward_mode_enabled  # noqa: F401
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: F401
from torch.utils import _pytree as pytree  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: F401


def is_transforming() -> bool:
    """Whether a torch.func transform is active."""
    return torch._C._are_functorch_transforms_active()


def is_symbolic() -> bool:
    """Whether values cannot be read: under torch.func, torch.export, or during the capture of a CUDA graph."""
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    return capturing or torch.compiler.is_compiling() or is_transforming()


def current_stream(device: int) -> int:
    """The address of the current CUDA stream of a device; torch.cuda.current_stream makes an object of it."""
    return torch._C._cuda_getCurrentRawStream(device)


def is_traced() -> bool:
    """Whether `trace` records operations."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None  # pyright: ignore


def is_tracing() -> bool:
    """Whether torch.jit.trace, or torch.onnx.export by it, records operations."""
    return torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]


def is_dual(tensor: Tensor) -> bool:
    """Whether forward-mode differentiation follows this tensor."""
    return torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None


def in_dual_level() -> bool:
    """Whether forward-mode differentiation is under way."""
    return torch.autograd.forward_ad._current_level >= 0


def in_transform() -> bool:
    """Whether torch.func.vmap, grad, jvp or another of its transforms runs the code."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return functorch.peek_interpreter_stack() is not None


def is_mapped(tensor: Tensor) -> bool:
    """Whether torch.func.vmap maps over this tensor."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def backward_keeps_graph() -> bool:
    """Whether the backward pass under way was called with retain_graph=True."""
    return torch._C._autograd._get_current_graph_task_keep_graph()  # pyright: ignore[reportAttributeAccessIssue]


def has_saved_tensor_hooks() -> bool:
    """Whether hooks decide what becomes of tensors that are saved for backward, as in activation checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # pyright: ignore


def trace(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    decompositions: dict[Any, Any] | None,
    prepare: Callable[[torch.fx.Graph], None] | None = None,
) -> torch.fx.GraphModule:
    """The operations of a function as an fx graph, common subexpressions merged; `prepare` sees it before that."""
    from torch._functorch.compile_utils import fx_graph_cse
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function, decomposition_table=decompositions)(*inputs)
    if prepare is not None:
        prepare(graph.graph)
    graph.graph = fx_graph_cse(graph.graph)
    return graph


def compile_graph(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """A traced graph compiled by TorchInductor."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Inductor keeps compiled graphs on disk, for later processes, only where it finds an environment of shapes.
    with tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))):
        return torch._inductor.compile(graph, list(inputs))  # pyright: ignore[reportReturnType]


def stride_order_op() -> Any:
    """Inductor's operation that fixes the memory layout of a tensor."""
    from torch._inductor import inductor_prims

    return inductor_prims.force_stride_order


def has_other_ranks() -> bool:
    """Whether this process is one of several ranks of a distributed training."""
    return (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )


def core_decompositions() -> dict[Any, Any]:
    """Operations in terms of those of the core ATen set, and some of those in terms of simpler ones."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    more = [aten._softmax, aten._log_softmax, aten.gelu, aten.elu, aten.leaky_relu, aten.hardtanh, aten.addmv]
    more += [aten.native_layer_norm, aten.native_layer_norm_backward, aten.var, aten.linalg_vector_norm, aten.baddbmm]
    return {**core_aten_decompositions(), **get_decompositions(more)}
