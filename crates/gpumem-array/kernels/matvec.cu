// A matrix, its rows contiguous and `row_step` elements apart, times a vector: along rows (`rows`) and along columns
// (`columns`, the transposed product). Where that alone would leave a device idle, the work is split into parts, which
// `columns` adds up. Orders of summation depend on the sizes alone; nothing is added atomically.

#include "common.cuh"

const unsigned ROWS = 8;      // row lanes of a block of `columns`
const unsigned THREADS = 256;
const unsigned IN_FLIGHT = 8; // loads that a thread issues before it uses the first

// The compiler moves no load behind it.
__device__ inline void after_loads() { asm volatile("" ::: "memory"); }

// sums += x * v, for each lane.
template <class T> __device__ void accumulate(Pack<T> &sums, Pack<T> x, Pack<T> v) {
#pragma unroll
    for (unsigned k = 0; k < Pack<T>::count; k++) sums.lane[k] += x.lane[k] * v.lane[k];
}

// A pack of a vector whose elements are `step` apart. It is aligned if they are not.
template <class T> __device__ Pack<T> pack_at(const T *v, i64 step, u64 pack) {
    if (step == 1) return reinterpret_cast<const Pack<T> *>(v)[pack];
    Pack<T> gathered;
    v += (i64)(pack * Pack<T>::count) * step;
#pragma unroll
    for (unsigned k = 0; k < Pack<T>::count; k++, v += step) gathered.lane[k] = *v;
    return gathered;
}

// out[part][r] = sum over c of x[r][c] * v[c], over the `columns_a_part` columns of that part, the block's y index. The threads of a row
// are the block's x axis: one warp, or all.
template <class T>
__device__ void rows(T *out, const T *x, u64 row_step, const T *v, i64 v_step, u64 row_count, u64 column_count,
                     u64 columns_a_part) {
    __shared__ T slots[THREADS / 32];
    const u64 first = blockIdx.y * columns_a_part;
    const u64 count = first + columns_a_part < column_count ? columns_a_part : column_count - first;
    x += first, v += (i64)first * v_step, out += blockIdx.y * row_count;
    const bool packed = is_aligned(x) && (v_step != 1 || is_aligned(v)) && row_step % Pack<T>::count == 0;
    const unsigned lane = threadIdx.x, width = blockDim.x;
    const u64 packs = packed ? count / Pack<T>::count : 0;
#pragma unroll 1
    for (u64 row = blockIdx.x * (u64)blockDim.y + threadIdx.y; row < row_count; row += gridDim.x * (u64)blockDim.y) {
        const T *line = x + row * row_step;
        const Pack<T> *line_packs = reinterpret_cast<const Pack<T> *>(line);
        Pack<T> sums = pack_of(T(0));
#pragma unroll 1
        for (u64 base = lane; base < packs; base += IN_FLIGHT * width) {
            Pack<T> loaded[IN_FLIGHT];
            // The last pack stands for those behind it, which are not used.
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) loaded[j] = line_packs[min(base + j * width, packs - 1)];
            after_loads();
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++)
                if (base + j * width < packs) accumulate(sums, loaded[j], pack_at(v, v_step, base + j * width));
        }
#pragma unroll 1
        for (u64 c = packs * Pack<T>::count + lane; c < count; c += width)
            sums.lane[0] += line[c] * v[(i64)c * v_step];
        T sum = sums.lane[0];
#pragma unroll
        for (unsigned k = 1; k < Pack<T>::count; k++) sum += sums.lane[k];
        sum = warp_sum(sum);
        if (width > 32) {
            if (lane % 32 == 0) slots[lane / 32] = sum;
            __syncthreads();
            sum = T(0);
#pragma unroll 1
            for (unsigned warp = 0; warp < THREADS / 32; warp++) sum += slots[warp];
            __syncthreads();
        }
        if (lane == 0) out[row] = sum;
    }
}

// out[part][c] = sum of x[r][c] * v[r] over the `rows_a_part` rows of that part, the block's y index; without v, of x[r][c] alone. A block
// works on 32 packs of columns.
template <class T>
__device__ void columns(T *out, const T *x, u64 row_step, const T *v, i64 v_step, u64 row_count, u64 column_count,
                        u64 rows_a_part) {
    __shared__ Pack<T> slots[ROWS][32];
    const u64 column = (blockIdx.x * (u64)32 + threadIdx.x) * Pack<T>::count;
    const u64 left = column < column_count ? column_count - column : 0;
    const bool packed = left >= Pack<T>::count && is_aligned(x) && row_step % Pack<T>::count == 0;
    const u64 first = blockIdx.y * rows_a_part;
    const u64 end = first + rows_a_part < row_count ? first + rows_a_part : row_count;
    Pack<T> sums = pack_of(T(0));
#pragma unroll 1
    for (u64 base = first + threadIdx.y; base < end && left > 0; base += IN_FLIGHT * ROWS) {
        Pack<T> loaded[IN_FLIGHT];
        // The last row and column stand for those behind them, which are not used.
        const T *from = x + column;
        if (packed) {
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++)
                loaded[j] = *reinterpret_cast<const Pack<T> *>(from + min(base + j * ROWS, end - 1) * row_step);
        } else {
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++)
#pragma unroll
                for (unsigned k = 0; k < Pack<T>::count; k++)
                    loaded[j].lane[k] = from[min(base + j * ROWS, end - 1) * row_step + min((u64)k, left - 1)];
        }
        after_loads();
#pragma unroll
        for (unsigned j = 0; j < IN_FLIGHT; j++)
            if (base + j * ROWS < end) accumulate(sums, loaded[j], pack_of(v ? v[(i64)(base + j * ROWS) * v_step] : T(1)));
    }
    slots[threadIdx.y][threadIdx.x] = sums;
    __syncthreads();
    if (threadIdx.y > 0) return;
#pragma unroll 1
    for (unsigned y = 1; y < ROWS; y++)
#pragma unroll
        for (unsigned k = 0; k < Pack<T>::count; k++) sums.lane[k] += slots[y][threadIdx.x].lane[k];
#pragma unroll
    for (unsigned k = 0; k < Pack<T>::count; k++)
        if (k < left) out[blockIdx.y * column_count + column + k] = sums.lane[k];
}

// Compiled for each ELEMENT_SUFFIX.
ENTRY_OF(THREADS, rows)
(Element *out, const Element *x, u64 row_step, const Element *v, i64 v_step, u64 row_count, u64 column_count,
 u64 columns_a_part) {
    rows(out, x, row_step, v, v_step, row_count, column_count, columns_a_part);
}

ENTRY_OF(THREADS, columns)
(Element *out, const Element *x, u64 row_step, const Element *v, i64 v_step, u64 row_count, u64 column_count,
 u64 rows_a_part) {
    columns(out, x, row_step, v, v_step, row_count, column_count, rows_a_part);
}
