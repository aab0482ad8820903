/* PyTorch's allocator on gpumem with functions that name the device and the stream, because PyTorch has neither on the simulator. What it
 * throws becomes Python's exception, as in PyTorch. */

#include "allocator.cpp"

#include <torch/csrc/profiler/combined_traceback.h>

namespace torch {
bool translate_exception_to_python(const std::exception_ptr &exception);
}

#define PROBE extern "C" __attribute__((visibility("default")))

template <typename Work> static auto translated(Work work) -> decltype(work()) {
    try {
        return work();
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
        return decltype(work())();
    }
}

PROBE void *full_allocate(size_t size, int device, cudaStream_t stream) {
    return translated([=] { return gpumem::allocator().allocate_on(size, static_cast<c10::DeviceIndex>(device), stream); });
}

PROBE void full_free(void *address) {
    translated([=] { gpumem::allocator().free(address); });
}

PROBE void full_record_use(void *address, cudaStream_t stream) {
    translated([=] { gpumem::allocator().record_use(address, stream); });
}

PROBE void full_share(void *address) {
    translated([=] { gpumem::allocator().shareIpcHandle(address); });
}

/* As torch.cuda.memory._record_memory_history, which looks for a device first. */
PROBE void full_record_history(int is_enabled, size_t entries_max, const char *skipped) {
    translated([=] {
        const std::vector<std::string> actions = *skipped == '\0' ? std::vector<std::string>{} : std::vector<std::string>{skipped};
        const auto gather = []() -> gpumem::Context { return torch::CapturedTraceback::gather(true, false, false); };
        gpumem::allocator().recordHistory(is_enabled != 0, gather, entries_max, gpumem::RecordContext::ALL, false, actions);
    });
}

static long observed[4];

/* The figures of the last report of an observer. */
PROBE long *full_observe() {
    gpumem::allocator().attachOutOfMemoryObserver([](int64_t device, size_t size, size_t total, size_t free) {
        const long figures[] = {static_cast<long>(device), static_cast<long>(size), static_cast<long>(total), static_cast<long>(free)};
        std::copy(std::begin(figures), std::end(figures), observed);
    });
    return observed;
}

PROBE size_t full_largest(int device) {
    return translated([=] {
        size_t largest = 0;
        gpumem::allocator().cacheInfo(static_cast<c10::DeviceIndex>(device), &largest);
        return largest;
    });
}

PROBE void full_init(int device_count) { gpumem::allocator().init(device_count); }

PROBE void full_retain_pool(uint64_t first, uint64_t second) {
    translated([=] { gpumem::allocator().createOrIncrefPool(0, {first, second}); });
}

PROBE int full_use_count(uint64_t first, uint64_t second) { return gpumem::allocator().getPoolUseCount(0, {first, second}); }

PROBE void full_set_no_split(uint64_t first, uint64_t second) {
    translated([=] { gpumem::allocator().setNoSplit(0, {first, second}); });
}

PROBE void full_set_use_on_oom(uint64_t first, uint64_t second) {
    translated([=] { gpumem::allocator().setUseOnOOM(0, {first, second}, true); });
}

/* As a capture does: allocations on the stream belong to the pool. */
PROBE void full_begin_pool(uint64_t first, uint64_t second, cudaStream_t stream) {
    translated([=] {
        gpumem::allocator().beginAllocateToPool(0, {first, second}, [=](cudaStream_t asked) { return asked == stream; });
    });
}

PROBE void full_end_pool(uint64_t first, uint64_t second) {
    translated([=] { gpumem::allocator().endAllocateToPool(0, {first, second}); });
}

PROBE void full_release_pool(uint64_t first, uint64_t second) {
    translated([=] { gpumem::allocator().releasePool(0, {first, second}); });
}

static int seen[16];

/* Counts the entries of each action. */
PROBE int *full_track() {
    gpumem::allocator().attachAllocatorTraceTracker([](const gpumem::TraceEntry &entry) { seen[static_cast<int>(entry.action_)] += 1; });
    return seen;
}
