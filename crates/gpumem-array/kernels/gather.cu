// Rows by indices on the device, in units of 16 bytes. `src/kernel/text.rs` makes the text for 1, 2, 4 and 8 bytes of it. An index outside
// of its axis is never used as an address: it gives zeros.

#include "axes.cuh"
#include "index.cuh"

// `out` has `total` units without gaps. `axes` leads from the place of a unit to one in `from`, from the fastest axis to the slowest; along
// axis `selected`, place i stands for index[i], and `from` has `len` of them. A unit has 2^unit_log bytes.
extern "C" __global__ void gpumem_gather_16(char *out, const char *from, const void *index, u64 kind, u64 total, u64 len,
                                            u64 selected, u64 unit_log, AXES) {
    const u64 threads = gridDim.x * (u64)blockDim.x;
#pragma unroll 1
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < total; i += threads) {
        u64 rest = i;
        const char *source = from;
        bool is_inside = true;
#pragma unroll 1
        for (u64 axis = 0; axis < axes.count; axis++) {
            u64 place = rest;
            if (axis + 1 < axes.count) {
                rest = place / axes.len[axis];
                place -= rest * axes.len[axis];
            }
            if (axis == selected) {
                place = index_at(index, kind, place);
                is_inside = place < len;
            }
            source += (i64)place * axes.from[axis];
        }
        Wide loaded = {};
        if (is_inside) loaded = *(const Wide *)source;
        *(Wide *)(out + (i << unit_log)) = loaded;
    }
}
