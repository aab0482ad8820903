// Rows by indices on the device, in units of 16 bytes. `src/kernel/text.rs` makes the text for 1, 2, 4 and 8 bytes of it. An index outside
// of its axis is never used as an address: it gives zeros.

#include "index.cuh"

// `from` has `outer` groups of `len` rows, each of `width` units, without gaps. Row i of each group of `out`, which has `count` rows, is
// row index[i] of that group. A unit has 2^unit_log bytes.
extern "C" __global__ void gpumem_gather_16(char *out, const char *from, const void *index, u64 kind, u64 count, u64 len,
                                            u64 width, u64 outer, u64 unit_log) {
    const u64 threads = gridDim.x * (u64)blockDim.x;
#pragma unroll 1
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < outer * count * width; i += threads) {
        const u64 row = i / width, group = row / count;
        const u64 place = index_at(index, kind, row - group * count);
        const u64 k = (group * len + place) * width + (i - row * width);
        Wide loaded = {};
        if (place < len) loaded = *(const Wide *)(from + (k << unit_log));
        *(Wide *)(out + (i << unit_log)) = loaded;
    }
}
