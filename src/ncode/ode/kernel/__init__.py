"""The kernel: a whole solve in one compiled call, for small systems whose samples are separate, on the CPU.

To read it, follow a solve:

    backend.py      `Kernel` and `Fastest`: the backends of compile="kernel" and compile=True; why a solve has no kernel
    plan.py         which solves fit, and the kernels of those that do; the pullback of a compiled solve
    trace.py        the dynamics as graphs of tensor operations: one evaluation, and its pullback
    lower.py        such a graph as a loop program of one sample; refuses what mixes samples (values.py: kinds of
                    values; operations.py: the operations that are known)
    ir.py           loop programs: what a printer for another machine would start from
    emit_cpp.py     their statements in C++; math_cpp.py: functions of vectors of samples
    forward_cpp.py  the loop of a solve around them; backward_cpp.py: the walk back along its tape; driver_cpp.py: both
    build.py        the compiler's call, and the libraries on disk
    run.py          the call of a library, with tensors
"""
