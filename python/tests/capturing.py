"""The simulator's driver, and a stream of its own that a test captures."""

import ctypes


def stream():
    """The driver, and a new stream of the first device, whose context is current."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, made = ctypes.c_void_p(), ctypes.c_void_p()
    for code in (
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuStreamCreate(ctypes.byref(made), 1),
    ):
        if code != 0:
            raise RuntimeError(f"the driver returned {code}")
    return cuda, made
