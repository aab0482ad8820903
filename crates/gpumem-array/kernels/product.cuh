// Products of matrices, by tiles: a block multiplies a tile of rows of `a` by a tile of columns of `b`, a few steps of the common axis at
// a time. The next steps are loaded while the block multiplies the last ones, which are in shared memory.
//
// Steps between elements are arbitrary. Threads lie along the axis whose elements are contiguous, and load 16 bytes at a time where
// alignment and edges allow it. The order of the sums depends on the lengths alone.

#pragma once
#include "common.cuh"

typedef long long i64;

const unsigned AXES_MAX = 48;
const unsigned THREADS = 256;

// The axes before the last two, from the fastest to the slowest, with the steps of `a` and `b` in elements.
struct Batches {
    u64 count;
    u64 len[AXES_MAX];
    i64 a[AXES_MAX];
    i64 b[AXES_MAX];
};

// The place of a block in the result.
struct Place {
    u64 row, column;
    // Tiles that run at the same time are neighbours in both directions, so that they share what they load.
    __device__ Place(u64 m, u64 n, unsigned tile) {
        const unsigned HEIGHT = 16;
        const unsigned down = (unsigned)((m + tile - 1) / tile), across = gridDim.x / down;
        const unsigned first = blockIdx.x / (HEIGHT * across) * HEIGHT;
        const unsigned height = down - first < HEIGHT ? down - first : HEIGHT;
        const unsigned within = blockIdx.x - first * across;
        row = (u64)(first + within % height) * tile;
        column = (u64)(within / height) * tile;
    }
};

// Where the matrices of a batch begin.
__device__ inline void find_batch(const Batches &axes, u64 index, i64 &a, i64 &b) {
    a = b = 0;
#pragma unroll 1
    for (u64 axis = 0; axis < axes.count; axis++) {
        const u64 rest = index / axes.len[axis], place = index - rest * axes.len[axis];
        index = rest;
        a += (i64)place * axes.a[axis];
        b += (i64)place * axes.b[axis];
    }
}

// True if the elements of an operand are loaded along the common axis.
__device__ inline bool is_deep(i64 step, i64 k_step) {
    const i64 outer = step < 0 ? -step : step, inner = k_step < 0 ? -k_step : k_step;
    return k_step == 1 || (step != 1 && inner < outer);
}

// Four elements: 16 bytes, or twice 16.
template <class T> struct alignas(16) Four {
    T lane[4];
};

// The part of an operand that a thread loads: four elements of each tile of `DEPTH` steps.
template <class T, unsigned TILE, unsigned DEPTH, unsigned PITCH> struct Loader {
    const T *next;
    i64 step, advance;
    unsigned k, left, slot;
    bool deep, packed;

    // `count` elements from `first` on along the operand's own axis, whose elements are `own_step` apart.
    __device__ Loader(const T *from, u64 first, u64 count, i64 own_step, i64 k_step) {
        deep = is_deep(own_step, k_step);
        k = deep ? threadIdx.x % (DEPTH / 4) * 4 : threadIdx.x / (TILE / 4);
        const unsigned own = deep ? threadIdx.x / (DEPTH / 4) : threadIdx.x % (TILE / 4) * 4;
        left = first + own < count ? (count - first - own < 4 ? (unsigned)(count - first - own) : 4) : 0;
        step = deep ? k_step : own_step;
        packed = step == 1 && is_aligned(from) && (deep ? own_step : k_step) % Pack<T>::count == 0;
        next = from + (i64)(first + own) * own_step + (i64)k * k_step;
        advance = k_step * DEPTH;
        slot = k * PITCH + own;
    }

    // `k_left` steps are left.
    __device__ void load(Four<T> &loaded, u64 k_left) {
        const unsigned deeper = k_left > k ? (k_left - k < 4 ? (unsigned)(k_left - k) : 4) : 0;
        const unsigned count = deep ? (left > 0 ? deeper : 0) : (deeper > 0 ? left : 0);
        if (packed && count == 4) {
            loaded = *reinterpret_cast<const Four<T> *>(next);
        } else {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) loaded.lane[i] = i < count ? next[i * step] : T(0);
        }
        next += advance;
    }

    __device__ void store(T *tile, const Four<T> &loaded) const {
        if (deep) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) tile[slot + i * PITCH] = loaded.lane[i];
        } else {
            *reinterpret_cast<Four<T> *>(tile + slot) = loaded;
        }
    }
};

// out[part][batch][row][column], of the steps `k_part * part` and on. The parts are the grid's y axis. Each thread has `GROUPS` groups of
// four rows and of four columns.
template <class T, unsigned TILE>
__device__ void product(T *out, const T *a, const T *b, u64 m, u64 n, u64 k, u64 k_part, u64 batch_count, i64 a_row,
                        i64 a_k, i64 b_k, i64 b_column, const Batches &batches) {
    const unsigned GROUPS = TILE / 64, DEPTH = 1024 / TILE, PITCH = TILE + 4, STRIPE = TILE / 4;
    __shared__ alignas(16) T tiles[2][2][DEPTH * PITCH];
    typedef Loader<T, TILE, DEPTH, PITCH> Part;
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Eight warps: four stripes of rows, two of columns.
    const unsigned stripe = warp / 2, row = lane / 8 * 4, column = warp % 2 * (TILE / 2) + lane % 8 * 4;
    const Place place(m, n, TILE);
    const u64 k_first = blockIdx.y * k_part;
#pragma unroll 1
    for (u64 batch = blockIdx.z; batch < batch_count; batch += gridDim.z) {
        i64 a_start, b_start;
        find_batch(batches, batch, a_start, b_start);
        Part left(a + a_start + (i64)k_first * a_k, place.row, m, a_row, a_k);
        Part right(b + b_start + (i64)k_first * b_k, place.column, n, b_column, b_k);
        u64 k_left = k - k_first < k_part ? k - k_first : k_part;
        Four<T> sums[4 * GROUPS][GROUPS], a_loaded, b_loaded;
#pragma unroll
        for (unsigned r = 0; r < 4 * GROUPS; r++)
#pragma unroll
            for (unsigned g = 0; g < GROUPS; g++)
#pragma unroll
                for (unsigned c = 0; c < 4; c++) sums[r][g].lane[c] = T(0);
        unsigned at = 1;
#pragma unroll 1
        for (bool is_first = true;; is_first = false) {
            if (k_left > 0) {
                left.load(a_loaded, k_left);
                right.load(b_loaded, k_left);
            }
            if (!is_first) {
                const T *a_tile = tiles[at][0] + stripe * STRIPE + row, *b_tile = tiles[at][1] + column;
#pragma unroll 1
                for (unsigned d = 0; d < DEPTH; d++, a_tile += PITCH, b_tile += PITCH) {
                    Four<T> x[GROUPS], y[GROUPS];
#pragma unroll
                    for (unsigned g = 0; g < GROUPS; g++) {
                        x[g] = *reinterpret_cast<const Four<T> *>(a_tile + g * 16);
                        y[g] = *reinterpret_cast<const Four<T> *>(b_tile + g * 32);
                    }
#pragma unroll
                    for (unsigned r = 0; r < 4 * GROUPS; r++)
#pragma unroll
                        for (unsigned g = 0; g < GROUPS; g++)
#pragma unroll
                            for (unsigned c = 0; c < 4; c++)
                                sums[r][g].lane[c] += x[r / 4].lane[r % 4] * y[g].lane[c];
                }
            }
            if (k_left == 0) break;
            at ^= 1;
            left.store(tiles[at][0], a_loaded);
            right.store(tiles[at][1], b_loaded);
            __syncthreads();
            k_left = k_left > DEPTH ? k_left - DEPTH : 0;
        }
        // Through shared memory, one stripe at a time, so that neighbours store neighbours.
        T *staged = tiles[0][0], *to = out + (blockIdx.y * batch_count + batch) * m * n;
        const bool packed = n % 4 == 0 && is_aligned(out);
#pragma unroll 1
        for (unsigned s = 0; s < 4; s++) {
            __syncthreads();
            if (s == stripe) {
#pragma unroll
                for (unsigned r = 0; r < 4 * GROUPS; r++)
#pragma unroll
                    for (unsigned g = 0; g < GROUPS; g++)
                        *reinterpret_cast<Four<T> *>(staged + (r / 4 * 16 + row + r % 4) * PITCH + column + g * 32) =
                            sums[r][g];
            }
            __syncthreads();
#pragma unroll 1
            for (unsigned i = threadIdx.x; i < STRIPE * TILE / 4; i += THREADS) {
                const unsigned r = i / (TILE / 4), c = i % (TILE / 4) * 4;
                const u64 to_row = place.row + s * STRIPE + r, to_column = place.column + c;
                if (to_row >= m || to_column >= n) continue;
                const T *from = staged + r * PITCH + c;
                T *line = to + to_row * n + to_column;
                if (packed) {
                    *reinterpret_cast<Four<T> *>(line) = *reinterpret_cast<const Four<T> *>(from);
                } else {
#pragma unroll 1
                    for (unsigned j = 0; j < 4 && to_column + j < n; j++) line[j] = from[j];
                }
            }
        }
        __syncthreads();
    }
}
