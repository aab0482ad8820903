/* An allocator with the function of PyTorch's by which it copies between devices, and what stands for the runtime's. */

#include <cstddef>

struct Allocator {
    virtual ~Allocator() = default;
    virtual int before() { return 11; }
    virtual int copy(void *target, int target_device, const void *source, int source_device, std::size_t size, void *stream, bool has_access);
    virtual int after() { return 13; }
};

/* Defined here, so that this file has the class's table. */
int Allocator::copy(void *, int target_device, const void *, int source_device, std::size_t size, void *, bool has_access) {
    return 1000 + static_cast<int>(size) + 100 * target_device + 10 * source_device + (has_access ? 1 : 0);
}

extern "C" {
Allocator *copying_allocator = new Allocator;

int copying_peer_copy(void *, int target_device, const void *, int source_device, std::size_t size, void *) {
    return 2000 + static_cast<int>(size) + 100 * target_device + 10 * source_device;
}

int copying_copy(int target_device, int source_device, int has_access) {
    return copying_allocator->copy(nullptr, target_device, nullptr, source_device, 5, nullptr, has_access != 0);
}

int copying_others() { return copying_allocator->before() + copying_allocator->after(); }
}
