// A matrix, its rows contiguous and `row_step` elements apart, times a vector: along rows (`rows`) and along columns
// (`columns`, the transposed product). Where that alone would leave a device idle, the work is split into parts, whose
// sums a second kernel adds up. Orders of summation depend on the sizes alone; nothing is added atomically.

#include "common.cuh"

const unsigned ROWS = 8;      // rows a block of `rows_warp` works on, and row lanes of a block of `columns`
const unsigned WIDE = 256;    // threads on one row in `rows_block`
const unsigned IN_FLIGHT = 8; // loads a thread issues before it uses the first

// out[r * out_step] = sum over c of x[r][c] * v[c], with `WIDTH` threads a row; without v, of x[r][c] alone.
template <unsigned WIDTH, bool WEIGHTED, class T>
__device__ void rows(T *out, u64 out_step, const T *x, u64 row_step, const T *v, u64 row_count, u64 column_count) {
    __shared__ T slots[WIDTH / 32];
    const bool packed = is_aligned(x) && (!WEIGHTED || is_aligned(v)) && row_step % Pack<T>::count == 0;
    const u64 packs = packed ? column_count / Pack<T>::count : 0;
    const unsigned lane = threadIdx.x;
    for (u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y; row < row_count; row += gridDim.x * (u64)blockDim.y) {
        const T *line = x + row * row_step;
        const Pack<T> *line_packs = reinterpret_cast<const Pack<T> *>(line);
        const Pack<T> *v_packs = reinterpret_cast<const Pack<T> *>(v);
        Pack<T> sums = pack_of(T(0));
        for (u64 base = lane; base < packs; base += IN_FLIGHT * WIDTH) {
            Pack<T> loaded[IN_FLIGHT];
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                const u64 i = base + j * WIDTH;
                loaded[j] = i < packs ? line_packs[i] : pack_of(T(0));
            }
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                const u64 i = base + j * WIDTH;
                if (i < packs) {
                    const Pack<T> factor = WEIGHTED ? v_packs[i] : pack_of(T(1));
#pragma unroll
                    for (unsigned k = 0; k < Pack<T>::count; k++)
                        sums.lane[k] =
                            add(sums.lane[k], WEIGHTED ? mul(loaded[j].lane[k], factor.lane[k]) : loaded[j].lane[k]);
                }
            }
        }
        for (u64 c = packs * Pack<T>::count + lane; c < column_count; c += WIDTH)
            sums.lane[0] = add(sums.lane[0], WEIGHTED ? mul(line[c], v[c]) : line[c]);
        T sum = sums.lane[0];
#pragma unroll
        for (unsigned k = 1; k < Pack<T>::count; k++) sum = add(sum, sums.lane[k]);
        sum = block_sum<WIDTH>(sum, lane, slots);
        if (lane == 0) out[row * out_step] = sum;
    }
}

// out[part][c] = sum of x[r][c] * v[r] over the `rows_a_part` rows of that part; without v, of x[r][c] alone, which is
// how the parts are added up in the end. A block works on 32 packs of columns and one part (its y index).
template <class T, bool WEIGHTED>
__device__ void columns(T *out, const T *x, u64 row_step, const T *v, u64 row_count, u64 column_count,
                        u64 rows_a_part) {
    __shared__ Pack<T> slots[ROWS][32];
    const u64 column = (blockIdx.x * (u64)32 + threadIdx.x) * Pack<T>::count;
    const u64 left = column < column_count ? column_count - column : 0;
    const bool packed = left >= Pack<T>::count && is_aligned(x) && row_step % Pack<T>::count == 0;
    const u64 first = blockIdx.y * rows_a_part;
    const u64 end = first + rows_a_part < row_count ? first + rows_a_part : row_count;
    Pack<T> sums = pack_of(T(0));
    for (u64 base = first + threadIdx.y; base < end && left > 0; base += IN_FLIGHT * ROWS) {
        Pack<T> loaded[IN_FLIGHT];
#pragma unroll
        for (unsigned j = 0; j < IN_FLIGHT; j++) {
            const u64 row = base + j * ROWS;
            const T *line = x + row * row_step + column;
            loaded[j] = pack_of(T(0));
            if (row < end) {
                if (packed) {
                    loaded[j] = *reinterpret_cast<const Pack<T> *>(line);
                } else {
#pragma unroll
                    for (unsigned k = 0; k < Pack<T>::count; k++)
                        if (k < left) loaded[j].lane[k] = line[k];
                }
            }
        }
#pragma unroll
        for (unsigned j = 0; j < IN_FLIGHT; j++) {
            const u64 row = base + j * ROWS;
            if (row < end) {
                const T weight = WEIGHTED ? v[row] : T(1);
#pragma unroll
                for (unsigned k = 0; k < Pack<T>::count; k++)
                    sums.lane[k] = add(sums.lane[k], WEIGHTED ? mul(loaded[j].lane[k], weight) : loaded[j].lane[k]);
            }
        }
    }
    slots[threadIdx.y][threadIdx.x] = sums;
    __syncthreads();
    if (threadIdx.y == 0) {
        for (unsigned y = 1; y < ROWS; y++)
#pragma unroll
            for (unsigned k = 0; k < Pack<T>::count; k++)
                sums.lane[k] = add(sums.lane[k], slots[y][threadIdx.x].lane[k]);
#pragma unroll
        for (unsigned k = 0; k < Pack<T>::count; k++)
            if (k < left) out[blockIdx.y * column_count + column + k] = sums.lane[k];
    }
}

// Compiled for each ELEMENT_SUFFIX.
ENTRY_OF(32 * ROWS, rows_warp)
(Element *out, const Element *x, u64 row_step, const Element *v, u64 row_count, u64 column_count) {
    rows<32, true>(out, 1, x, row_step, v, row_count, column_count);
}

// out[r][part] is the sum over `columns_a_part` columns; the part is the block's y index.
ENTRY_OF(WIDE, rows_block)
(Element *out, const Element *x, u64 row_step, const Element *v, u64 row_count, u64 column_count, u64 columns_a_part) {
    const u64 first = blockIdx.y * columns_a_part;
    const u64 count = first + columns_a_part < column_count ? columns_a_part : column_count - first;
    rows<WIDE, true>(out + blockIdx.y, gridDim.y, x + first, row_step, v + first, row_count, count);
}

ENTRY_OF(32 * ROWS, rows_sum)
(Element *out, const Element *x, u64 row_step, u64 row_count, u64 column_count) {
    rows<32, false>(out, 1, x, row_step, (const Element *)0, row_count, column_count);
}

ENTRY_OF(32 * ROWS, columns)
(Element *out, const Element *x, u64 row_step, const Element *v, u64 row_count, u64 column_count, u64 rows_a_part) {
    columns<Element, true>(out, x, row_step, v, row_count, column_count, rows_a_part);
}

ENTRY_OF(32 * ROWS, columns_sum)
(Element *out, const Element *x, u64 row_step, u64 row_count, u64 column_count, u64 rows_a_part) {
    columns<Element, false>(out, x, row_step, (const Element *)0, row_count, column_count, rows_a_part);
}
