/* The functions that CuPy calls (cupy.cuda.CFunctionAllocator), with the interpreter's lock: no line of Python runs while a request
 * succeeds, or in a free.
 *
 * What needs Python is a function of gpumem/cupy.py, `settle`: it makes a device's pool, or raises the exception of a failed request.
 * Compiled without Python's headers, so that one library serves every version. */

#include "gpumem.h"

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

/* PyObject */
struct Object;

/* The functions of Python and CuPy, which gpumem/cupy.py looks up. */
struct Functions {
    /* The current stream of this thread on the current device; -1 with an exception of Python's if it fails. */
    std::intptr_t (*current_stream)();
    Object *(*call)(Object *function, const char *format, ...);
    void (*decrease)(Object *object);
    Object *(*exception)();
    Object *settle;
};

Functions functions;

/* True if CuPy turns an exception of C++ into one of Python's. Otherwise it takes null, and the caller settles it. */
bool throws;

/* Python's exception is set. CuPy raises that one; what this one states is never seen. */
struct Raised : std::bad_alloc {
    const char *what() const noexcept override { return "gpumem has raised an exception of Python's"; }
};

constexpr int DEVICES_MAX = 64;

std::atomic<gpumem_pool *> pools[DEVICES_MAX];
/* Set before the pools. */
std::atomic<gpumem_stream *> default_streams[DEVICES_MAX];
std::atomic<std::uint64_t> failed_frees{0};
thread_local int last_result;

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. */
constexpr std::intptr_t LEGACY = 1, PER_THREAD = 2;

/* No result of gpumem's: the device has no pool yet. */
constexpr int NO_POOL = -1;

int allocate(std::size_t size, int device, std::intptr_t raw, void **address) {
    if (device < 0 || device >= DEVICES_MAX) return NO_POOL;
    gpumem_pool *pool = pools[device].load(std::memory_order_acquire);
    if (pool == nullptr) return NO_POOL;
    if (raw == 0 || raw == LEGACY) {
        return gpumem_alloc(pool, size, default_streams[device].load(std::memory_order_relaxed), address);
    }
    void *const stream = reinterpret_cast<void *>(raw);
    /* CuPy destroys its streams when they are collected, so none is named again in a later call. */
    if (raw != PER_THREAD) return gpumem_alloc_borrowed(pool, size, stream, address);
    gpumem_stream *own = nullptr;
    const gpumem_result result = gpumem_stream_long_lived(pool, stream, &own);
    return result == GPUMEM_SUCCESS ? gpumem_alloc(pool, size, own, address) : result;
}

/* Makes the device's pool, or raises the exception of the failed request. */
void settle(int result, std::size_t size, int device) {
    Object *const settled = functions.call(functions.settle, "iKi", result, static_cast<unsigned long long>(size), device);
    if (settled == nullptr) throw Raised();
    functions.decrease(settled);
}

void *request(std::size_t size, int device) {
    for (;;) {
        void *address = nullptr;
        const std::intptr_t raw = functions.current_stream();
        if (raw == -1 && functions.exception() != nullptr) {
            if (throws) throw Raised();
            return nullptr;
        }
        last_result = allocate(size, device, raw, &address);
        if (last_result == GPUMEM_SUCCESS || !throws) return address;
        settle(last_result, size, device);
    }
}

} // namespace

/* -------------------------------------------------------------------------------------------------- called by gpumem/cupy.py */

EXPORTED void gpumem_cupy_set_functions(const Functions *found, int throws_exceptions) {
    functions = *found;
    throws = throws_exceptions != 0;
}

/* The pool of a device from now on, and its default stream. */
EXPORTED void gpumem_cupy_set_pool(int device, gpumem_pool *pool, gpumem_stream *default_stream) {
    if (device < 0 || device >= DEVICES_MAX) return;
    default_streams[device].store(default_stream, std::memory_order_relaxed);
    pools[device].store(pool, std::memory_order_release);
}

/* The result of this thread's last request. */
EXPORTED int gpumem_cupy_last_result() { return last_result; }

/* The number of frees that failed. */
EXPORTED std::uint64_t gpumem_cupy_failed_frees() { return failed_frees.load(std::memory_order_relaxed); }

/* The library that this one calls: the process may have loaded another one of its name. */
EXPORTED const void *gpumem_cupy_library() { return reinterpret_cast<const void *>(&gpumem_alloc); }

/* ------------------------------------------------------------------------------------------------------------- called by CuPy */

EXPORTED void *gpumem_cupy_alloc(void *, std::size_t size, int device) {
    try {
        return request(size, device);
    } catch (const abi::__forced_unwind &) {
        /* As in python.cpp: the process ends, and so does each thread that waits for Python's lock. CuPy would catch this one. */
        for (;;) pause();
    }
}

/* Calls nothing of Python's: arrays that live until the interpreter is torn down are freed too. */
EXPORTED void gpumem_cupy_free(void *, void *address, int) {
    if (gpumem_free(address) == GPUMEM_SUCCESS) return;
    if (failed_frees.fetch_add(1, std::memory_order_relaxed) == 0)
        std::fprintf(stderr, "gpumem: an array's memory could not be freed: %s\n", gpumem_last_error_as(GPUMEM_INTERFACE_CUPY));
}
