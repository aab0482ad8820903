// Copies of rows of bytes without gaps, and transposes of elements of 1, 2 and 4 bytes.

#include "transpose.cuh"

// Rows of bytes without gaps, at any addresses: each thread stores 16 aligned bytes at a time. If the source is aligned differently, it
// loads the words that hold the bytes, all of which are in the row, and shifts them. At the ends of a row it moves single bytes.
__device__ void copy_dense(char *to, const char *from, u64 len, u64 rows, const Axes &axes) {
    const unsigned BYTES = 16;
    const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < rows; row += gridDim.y * (u64)blockDim.y) {
        const Row start(axes, row);
        const u64 target = (u64)to + start.to, source = (u64)from + start.from;
        const u64 aligned = target / BYTES * BYTES;
        const u64 count = (target + len - aligned + BYTES - 1) / BYTES;
#pragma unroll 2
        for (u64 i = first; i < count; i += threads) {
            const u64 store = aligned + i * BYTES, load = source + (store - target);
            const u64 word = load / 4 * 4;
            const bool is_whole = store >= target && store + BYTES <= target + len;
            if (is_whole && load % BYTES == 0) {
                *(Words<4> *)store = *(const Words<4> *)load;
            } else if (is_whole && word >= source && word + BYTES + 4 <= source + len) {
                const unsigned *words = (const unsigned *)word;
                unsigned loaded[5];
#pragma unroll
                for (unsigned j = 0; j < 5; j++) loaded[j] = words[j];
                Words<4> shifted;
#pragma unroll
                for (unsigned j = 0; j < 4; j++)
                    shifted.at[j] = __funnelshift_r(loaded[j], loaded[j + 1], (unsigned)(load % 4) * 8);
                *(Words<4> *)store = shifted;
            } else {
#pragma unroll 4
                for (unsigned j = 0; j < BYTES; j++)
                    if (store + j >= target && store + j < target + len) *(char *)(store + j) = *(const char *)(load + j);
            }
        }
    }
}

// The parameters of `gpumem_copy_1`.
extern "C" __global__ void gpumem_dense_1(char *to, const char *from, u64 len, i64, i64, u64 rows, AXES) {
    copy_dense(to, from, len, rows, axes);
}

TRANSPOSE(1, unsigned char)
TRANSPOSE(2, unsigned short)
TRANSPOSE(4, unsigned)
