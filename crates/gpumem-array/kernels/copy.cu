// Copies of strided ranges, of elements of 16 bytes. `src/kernel/text.rs` makes the text for 1, 2, 4 and 8 bytes of it.
//
// The host orders the axes by their steps in the target, merges axes that are contiguous, and passes the innermost axis by itself: the
// threads of a block lie along it, and each thread finds the place of a row once for all elements of the row.

#include "axes.cuh"

const unsigned IN_FLIGHT = 4; // loads a thread issues before it stores the first

// Rows with at most one unit for each thread: the units of several rows are in flight. The rows of a block are neighbours.
__device__ void copy_short(char *to, const char *from, u64 len, i64 to_step, i64 from_step, u64 rows, const Axes &axes) {
    const u64 i = threadIdx.x;
    if (i >= len) return;
    to += (i64)i * to_step;
    from += (i64)i * from_step;
    const u64 each = blockDim.y * (u64)IN_FLIGHT;
#pragma unroll 1
    for (u64 first = blockIdx.y * each + threadIdx.y; first < rows; first += gridDim.y * each) {
        // The places of all rows at once; the last row stands for those behind it.
        u64 left[IN_FLIGHT];
        i64 to_place[IN_FLIGHT], from_place[IN_FLIGHT];
#pragma unroll
        for (unsigned j = 0; j < IN_FLIGHT; j++) {
            left[j] = min(first + j * blockDim.y, rows - 1);
            to_place[j] = from_place[j] = 0;
        }
#pragma unroll 1
        for (u64 axis = 0; axis < axes.count; axis++) {
            u64 place[IN_FLIGHT];
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) place[j] = left[j];
            if (axis + 1 < axes.count) {
#pragma unroll
                for (unsigned j = 0; j < IN_FLIGHT; j++) {
                    left[j] /= axes.len[axis];
                    place[j] -= left[j] * axes.len[axis];
                }
            }
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                to_place[j] += (i64)place[j] * axes.to[axis];
                from_place[j] += (i64)place[j] * axes.from[axis];
            }
        }
        Wide loaded[IN_FLIGHT];
#pragma unroll
        for (unsigned j = 0; j < IN_FLIGHT; j++) loaded[j] = *(const Wide *)(from + from_place[j]);
#pragma unroll
        for (unsigned j = 0; j < IN_FLIGHT; j++)
            if (first + j * blockDim.y < rows) *(Wide *)(to + to_place[j]) = loaded[j];
    }
}

__device__ void copy(char *to, const char *from, u64 len, i64 to_step, i64 from_step, u64 rows, const Axes &axes) {
    if (len <= blockDim.x) return copy_short(to, from, len, to_step, from_step, rows, axes);
    const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < rows; row += gridDim.y * (u64)blockDim.y) {
        const Row start(axes, row);
#pragma unroll 1
        for (u64 base = first; base < len; base += IN_FLIGHT * threads) {
            Wide loaded[IN_FLIGHT];
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                const u64 i = base + j * threads;
                if (i < len) loaded[j] = *(const Wide *)(from + start.from + (i64)i * from_step);
            }
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                const u64 i = base + j * threads;
                if (i < len) *(Wide *)(to + start.to + (i64)i * to_step) = loaded[j];
            }
        }
    }
}

extern "C" __global__ void gpumem_copy_16(char *to, const char *from, u64 len, i64 to_step, i64 from_step, u64 rows, AXES) {
    copy(to, from, len, to_step, from_step, rows, axes);
}
