/* What `allocator.cpp` calls in libgpumem_torch.so (entry/torch.cpp), which has the pools, streams and options of `gpumem.torch`. */

#pragma once

#include "gpumem.h"

extern "C" {
/* These throw PyTorch's exceptions. */
void gpumem_torch_raise(gpumem_result result, size_t size, int device);
void gpumem_torch_record_stream(void *address, void *stream);
void gpumem_torch_empty_cache();
void gpumem_torch_memory_fraction(double fraction, int device);

gpumem_result gpumem_torch_pool(int device, gpumem_pool **pool);
gpumem_pool *gpumem_torch_made_pool(int device);
gpumem_result gpumem_torch_try_alloc(size_t size, int device, void *stream, void **address);
void gpumem_torch_free(void *address, size_t size, int device, void *stream);
gpumem_result gpumem_torch_add_capture(gpumem_captures *captures, int device, void *stream);
gpumem_result gpumem_torch_synchronize(int device, void *stream);
gpumem_result gpumem_torch_wait_for(int device, void *stream, void *other);
}
