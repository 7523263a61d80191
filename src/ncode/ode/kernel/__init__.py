"""The kernel: a whole solve in one compiled call, for small systems whose samples are separate, on a CPU or a GPU.

To read it, follow a solve:

    backend.py      `Kernel` and `Fastest`: the backends of compile="kernel" and compile=True; why a solve has no kernel
    plan.py         which solves fit, and the kernels of those that do; the pullback of a compiled solve
    trace.py        the dynamics as graphs of tensor operations: one evaluation, or a Rosenbrock step, and its pullback
    lower.py        such a graph as a loop program of one sample; refuses what mixes samples (values.py: kinds of
                    values; operations.py: the operations that are known)
    outside.py      what torch computes before and after a kernel: shared tensors, gradients of captures
    ir.py           loop programs; rearrange.py: with fewer loops, and less that backward keeps
    emit_cpp.py     their statements in C++, the same for a CPU and for CUDA
    forward_cpp.py  the loop of a solve around them; backward_cpp.py: the walk back along its tape; driver_cpp.py: both
    machine_cpu.py  samples side by side in vectors, and threads; math_cpp.py: functions of such vectors
    machine_cuda.py one thread per sample; math_cuda.py: the same functions of one number
    build.py        the call of the C++ compiler, and the libraries on disk; build_cuda.py: of NVRTC
    run.py          the call of a kernel, with tensors; run_cpu.py, run_cuda.py: on each machine
"""
