"""A package that stands for PyTorch without a GPU, under its name: tensors are memory of the allocator that is installed."""

import types

import standin

__version__ = "0"
_native = standin.extension()
_native.set_releases(True)
OutOfMemoryError = MemoryError


class _Setters:
    """The allocator's functions that PyTorch takes one by one."""

    def __init__(self, malloc, free):
        self.functions = (malloc, free)

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)
        return lambda address: None


class _Memory(types.ModuleType):
    _CUDAAllocator = staticmethod(lambda allocator: allocator)

    def change_current_allocator(self, allocator):
        if cuda.is_used:
            raise RuntimeError("Can't swap an already initialized allocator")
        cuda.allocator = _native.torch_allocator(*allocator.functions)


_C = types.SimpleNamespace(_cuda_customAllocator=_Setters)
cuda = types.SimpleNamespace(
    allocator=None,
    is_used=False,
    memory=_Memory("torch.cuda.memory"),
    current_device=lambda: 0,
    is_initialized=lambda: cuda.is_used,
)


class device:
    def __init__(self, kind, index=None):
        self.index = index


def empty(size):
    cuda.is_used = True
    if cuda.allocator is None:
        raise SystemExit("the tensor came from PyTorch's own allocator")
    return cuda.allocator.malloc(size)


def backward(size):
    """Memory that is allocated in a thread of C++ that knows Python, as the threads of `backward` are. It is never freed."""
    cuda.is_used = True
    return _native.malloc_in_thread(size)
