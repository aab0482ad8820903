// Products of sparse matrices in compressed rows, for each ELEMENT_SUFFIX. A warp sums a row: its lanes are the stored elements of the row
// if there is one column, and otherwise the columns. The order of the sums depends on the number of the row's elements alone.
//
// The kernel follows no index outside the matrix, and no offset outside the elements.

#include "common.cuh"

typedef long long i64;

// The number at a place of 4 or 8 bytes. A negative one is large.
__device__ inline u64 number_at(const char *numbers, u64 place, u64 bytes) {
    return bytes == 4 ? ((const unsigned *)numbers)[place] : ((const u64 *)numbers)[place];
}

// out[r][c] = sum over the elements e of row r of values[e] * right[indices[e]][c].
ENTRY_OF(256, sparse_rows)
(Element *out, const char *offsets, u64 offset_bytes, const char *indices, u64 index_bytes, const Element *values,
 const Element *right, u64 row_count, u64 term_count, u64 column_count, u64 element_count, i64 right_row,
 i64 right_column) {
    const unsigned lane = threadIdx.x;
    const u64 lanes_of_elements = column_count == 1 ? 32 : 1;
#pragma unroll 1
    for (u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y; row < row_count; row += gridDim.x * (u64)blockDim.y) {
        const u64 first = number_at(offsets, row, offset_bytes);
        const u64 end = min(number_at(offsets, row + 1, offset_bytes), element_count);
#pragma unroll 1
        for (u64 base = 0; base < column_count; base += 32) {
            const u64 column = column_count == 1 ? 0 : base + lane;
            Element sum = 0;
            if (column < column_count) {
#pragma unroll 1
                for (u64 e = first + (column_count == 1 ? lane : 0); e < end; e += lanes_of_elements) {
                    const u64 index = number_at(indices, e, index_bytes);
                    if (index < term_count) sum += values[e] * right[(i64)index * right_row + (i64)column * right_column];
                }
            }
            if (column_count == 1) sum = warp_sum(sum);
            if (column < column_count && (column_count > 1 || lane == 0)) out[row * column_count + column] = sum;
        }
    }
}
