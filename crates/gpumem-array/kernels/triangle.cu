// A triangle of a square matrix times a vector. Elements outside of the triangle are not read. Element (i, j) is at
// x[i * row_step + j * column_step], so a transposed matrix has its steps exchanged.
//
// `triangle_rows` has a warp for each row, which reads neighbours if `column_step` is 1. `triangle_columns` has a thread for each row, and the
// threads of a warp read neighbours if `row_step` is 1.

#include "common.cuh"

const unsigned ROWS = 8;
const unsigned THREADS = 256;

// `form` is a sum of these.
const u64 UPPER = 1;  // columns from the diagonal on, otherwise up to it
const u64 STRICT = 2; // without the diagonal
const u64 UNIT = 4;   // a diagonal of ones, which are not read
const u64 ADDS = 8;   // out[i] += instead of out[i] =

struct Columns {
    u64 first, end;
    __device__ Columns(u64 row, u64 n, u64 form) {
        const u64 strict = (form & (STRICT | UNIT)) ? 1 : 0;
        first = form & UPPER ? row + strict : 0;
        end = form & UPPER ? n : row + 1 - strict;
    }
};

template <class T> __device__ void finish(T *out, T sum, const T *v, u64 row, u64 form) {
    if (form & UNIT) sum = add(sum, v[row]);
    out[row] = form & ADDS ? add(out[row], sum) : sum;
}

// Compiled for each ELEMENT_SUFFIX.
ENTRY_OF(32 * ROWS, triangle_rows)
(Element *out, const Element *x, u64 row_step, u64 column_step, const Element *v, u64 n, u64 form) {
    for (u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y; row < n; row += gridDim.x * (u64)blockDim.y) {
        const Columns columns(row, n, form);
        Element sum = Element(0);
        for (u64 c = columns.first + threadIdx.x; c < columns.end; c += 32)
            sum = add(sum, mul(x[row * row_step + c * column_step], v[c]));
        sum = warp_sum(sum);
        if (threadIdx.x == 0) finish(out, sum, v, row, form);
    }
}

ENTRY_OF(THREADS, triangle_columns)
(Element *out, const Element *x, u64 row_step, u64 column_step, const Element *v, u64 n, u64 form) {
    for (u64 row = blockIdx.x * (u64)THREADS + threadIdx.x; row < n; row += gridDim.x * (u64)THREADS) {
        const Columns columns(row, n, form);
        Element sum = Element(0);
        for (u64 c = columns.first; c < columns.end; c++)
            sum = add(sum, mul(x[row * row_step + c * column_step], v[c]));
        finish(out, sum, v, row, form);
    }
}
