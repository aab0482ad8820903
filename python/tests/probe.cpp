/* Calls the allocator as PyTorch does, and has PyTorch make Python's exception of what it throws. */

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

namespace torch {
bool translate_exception_to_python(const std::exception_ptr &exception);
}

using PoolId = std::pair<std::uint64_t, std::uint64_t>;

extern "C" {
void *gpumem_torch_alloc(std::size_t size, int device, void *stream);
void gpumem_torch_memory_fraction(double fraction, int device);
void gpumem_torch_record_stream(void *address, void *stream);
void gpumem_torch_begin_pool(int device, PoolId id, std::function<bool(void *)> includes);
void gpumem_torch_end_pool(int device, PoolId id);
void gpumem_torch_release_pool(int device, PoolId id);

void *probe_alloc(std::size_t size, int device, void *stream) {
    try {
        return gpumem_torch_alloc(size, device, stream);
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
        return nullptr;
    }
}

void probe_record_stream(void *address, void *stream) {
    try {
        gpumem_torch_record_stream(address, stream);
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
    }
}

void probe_begin_pool(int device, std::uint64_t id, void *captured) {
    try {
        gpumem_torch_begin_pool(device, {id, 0}, [captured](void *stream) { return stream == captured; });
    } catch (...) {
        torch::translate_exception_to_python(std::current_exception());
    }
}

void probe_end_pool(int device, std::uint64_t id) { gpumem_torch_end_pool(device, {id, 0}); }

void probe_release_pool(int device, std::uint64_t id) { gpumem_torch_release_pool(device, {id, 0}); }
}
