// Elements by indices on the device. An index outside of its axis is never used as an address: reads give zeros, additions are left out.
//
// Additions to rows are in a fixed order, whatever the device's load. The indices are sorted, stably, by their rows: a radix sort with
// digits of 8 bits, whose blocks count and move consecutive parts. Then each part of TILE sorted additions is summed, and the sums of
// rows that go over several parts are added in the order of the parts.

#include "index.cuh"

const unsigned THREADS = 256;

// Eight bytes, those from `end` on as zeros. A mask may begin at any address.
__device__ inline u64 eight(const unsigned char *mask, u64 place, u64 end) {
    const u64 stop = min(end, place + 8);
    if (stop == place + 8 && (u64)(mask + place) % 8 == 0) return *(const u64 *)(mask + place);
    u64 bytes = 0;
#pragma unroll 1
    for (unsigned k = 0; place + k < stop; k++) bytes |= (u64)mask[place + k] << 8 * k;
    return bytes;
}

// The sum of the values of the threads before in a block, and of all. `slots` is shared memory with one element a warp.
template <unsigned WARPS, class T> __device__ T sum_before(T value, T &total, T *slots) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T before = value;
#pragma unroll 1
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        const T other = __shfl_up_sync(0xffffffff, before, distance);
        if (lane >= distance) before += other;
    }
    if (lane == 31) slots[warp] = before;
    __syncthreads();
    before -= value;
    total = 0;
#pragma unroll 1
    for (unsigned k = 0; k < WARPS; k++) {
        if (k < warp) before += slots[k];
        total += slots[k];
    }
    __syncthreads();
    return before;
}

// The number of ones in each block's part of a mask of zeros and ones.
extern "C" __global__ void __launch_bounds__(THREADS)
    gpumem_true_count(u64 *counts, const unsigned char *mask, u64 n, u64 part) {
    __shared__ unsigned slots[THREADS / 32];
    const u64 first = blockIdx.x * part, end = min(n, first + part);
    unsigned count = 0, total;
#pragma unroll 1
    for (u64 i = first + threadIdx.x * 8; i < end; i += THREADS * 8) count += __popcll(eight(mask, i, end));
    sum_before<THREADS / 32>(count, total, slots);
    if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

// The places of the ones, in order.
extern "C" __global__ void __launch_bounds__(THREADS)
    gpumem_true_places(u64 *out, const unsigned char *mask, const u64 *counts, u64 n, u64 part) {
    __shared__ u64 slots[THREADS / 32];
    const u64 first = blockIdx.x * part, end = min(n, first + part);
    u64 blocks_before = 0, before;
#pragma unroll 1
    for (unsigned block = threadIdx.x; block < blockIdx.x; block += THREADS) blocks_before += counts[block];
    sum_before<THREADS / 32>(blocks_before, before, slots);
    for (u64 tile = first; tile < end; tile += THREADS * 8) {
        const u64 i = tile + threadIdx.x * 8;
        u64 ones = i < end ? eight(mask, i, end) : 0;
        unsigned total;
        u64 to = before + sum_before<THREADS / 32>((unsigned)__popcll(ones), total, (unsigned *)slots);
#pragma unroll 1
        for (; ones != 0; ones &= ones - 1) out[to++] = i + (__ffsll(ones) - 1) / 8;
        before += total;
    }
}

// The row of each addition, `rows` for none, and the additions' places.
extern "C" __global__ void gpumem_keys(unsigned *keys, unsigned *places, const void *index, u64 kind, u64 n, u64 rows) {
    const u64 threads = gridDim.x * (u64)blockDim.x;
#pragma unroll 1
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += threads) {
        keys[i] = (unsigned)min(index_at(index, kind, i), rows);
        places[i] = (unsigned)i;
    }
}

const unsigned DIGITS = 256;

// How often each block's part has each digit: digits in order, for each the blocks in order.
extern "C" __global__ void __launch_bounds__(THREADS)
    gpumem_digit_count(unsigned *counts, const unsigned *keys, u64 n, u64 shift, u64 part) {
    __shared__ unsigned digits[DIGITS];
    digits[threadIdx.x] = 0;
    __syncthreads();
    const u64 first = blockIdx.x * part, end = min(n, first + part);
#pragma unroll 1
    for (u64 i = first + threadIdx.x; i < end; i += THREADS) atomicAdd(&digits[keys[i] >> shift & (DIGITS - 1)], 1);
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = digits[threadIdx.x];
}

// The sums of all counts before each, in place. One block.
extern "C" __global__ void __launch_bounds__(1024) gpumem_digit_scan(unsigned *counts, u64 len) {
    __shared__ unsigned slots[32];
    const u64 each = (len + 1023) / 1024, first = threadIdx.x * each, end = min(len, first + each);
    unsigned sum = 0, total;
#pragma unroll 1
    for (u64 i = first; i < end; i++) sum += counts[i];
    unsigned before = sum_before<32>(sum, total, slots);
#pragma unroll 1
    for (u64 i = first; i < end; i++) {
        const unsigned count = counts[i];
        counts[i] = before;
        before += count;
    }
}

// Moves keys and places to where their digits belong, equal digits in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
    gpumem_digit_move(unsigned *keys_out, unsigned *places_out, const unsigned *keys, const unsigned *places,
                      const unsigned *starts, u64 n, u64 shift, u64 part) {
    __shared__ unsigned warps[THREADS / 32][DIGITS];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned next = starts[threadIdx.x * gridDim.x + blockIdx.x];
    const u64 first = blockIdx.x * part, end = min(n, first + part);
    for (u64 tile = first; tile < end; tile += THREADS) {
        for (unsigned k = 0; k < THREADS / 32; k++) warps[k][threadIdx.x] = 0;
        __syncthreads();
        const u64 i = tile + threadIdx.x;
        const unsigned key = i < end ? keys[i] : 0;
        const unsigned digit = i < end ? key >> shift & (DIGITS - 1) : DIGITS;
        const unsigned equal = __match_any_sync(0xffffffff, digit);
        const unsigned before = __popc(equal & ((1u << lane) - 1));
        if (digit < DIGITS && before == 0) warps[warp][digit] = __popc(equal);
        __syncthreads();
        for (unsigned k = 0; k < THREADS / 32; k++) {
            const unsigned count = warps[k][threadIdx.x];
            warps[k][threadIdx.x] = next;
            next += count;
        }
        __syncthreads();
        if (digit < DIGITS) {
            const unsigned to = warps[warp][digit] + before;
            keys_out[to] = key;
            places_out[to] = places[i];
        }
        __syncthreads();
    }
}

const u64 TILE = 128;

// Elements of f32 (kind 0), f64 (1), i32 (2) and i64 (3), as bits. One kernel for all of them keeps the text short.
__device__ inline u64 load(const void *from, u64 kind, u64 place) {
    return unknown(kind) % 2 == 0 ? ((const unsigned *)from)[place] : ((const u64 *)from)[place];
}

__device__ inline void store(void *to, u64 kind, u64 place, u64 bits) {
    if (unknown(kind) % 2 == 0) ((unsigned *)to)[place] = (unsigned)bits;
    else ((u64 *)to)[place] = bits;
}

__device__ inline u64 sum_of(u64 kind, u64 a, u64 b) {
    kind = unknown(kind);
    if (kind == 0) return __float_as_uint(__uint_as_float((unsigned)a) + __uint_as_float((unsigned)b));
    if (kind == 1) return __double_as_longlong(__longlong_as_double(a) + __longlong_as_double(b));
    return a + b;
}

// `out` has `outer` groups of `rows` rows of `width` elements, and `values` as many groups of `n` rows. A thread sums one column of TILE
// sorted additions. Rows that begin and end there are done. `parts` gets what other parts add to: for each thread the sum of the row that
// began before, and of the row that goes on.
extern "C" __global__ void gpumem_scatter(void *out, const void *values, const unsigned *keys, const unsigned *places,
                                          void *parts, u64 n, u64 rows, u64 width, u64 outer, u64 kind) {
    const u64 tiles = (n + TILE - 1) / TILE, threads = gridDim.x * (u64)blockDim.x;
#pragma unroll 1
    for (u64 one = blockIdx.x * (u64)blockDim.x + threadIdx.x; one < outer * tiles * width; one += threads) {
        const u64 column = one % width, tile = one / width % tiles, group = one / width / tiles;
        const u64 first = tile * TILE, end = min(n, first + TILE);
        unsigned key = keys[first];
        bool began_before = first > 0 && keys[first - 1] == key;
        u64 sum = 0;
#pragma unroll 1
        for (u64 i = first;; i++) {
            const bool is_end = i == end;
            const unsigned next = i < n ? keys[i] : (unsigned)rows;
            if (is_end || next != key) {
                const bool goes_on = is_end && i < n && next == key;
                if (began_before || goes_on) store(parts, kind, 2 * one + !began_before, sum);
                else if (key < rows) {
                    const u64 to = (group * rows + key) * width + column;
                    store(out, kind, to, sum_of(kind, load(out, kind, to), sum));
                }
                if (is_end) break;
                key = next;
                began_before = false;
                sum = 0;
            }
            sum = sum_of(kind, sum, load(values, kind, (group * n + places[i]) * width + column));
        }
    }
}

// Adds the sums of a row that goes over several parts. The thread of the part where it begins does.
extern "C" __global__ void gpumem_scatter_rest(void *out, const unsigned *keys, const void *parts, u64 n, u64 rows,
                                               u64 width, u64 outer, u64 kind) {
    const u64 tiles = (n + TILE - 1) / TILE, threads = gridDim.x * (u64)blockDim.x;
#pragma unroll 1
    for (u64 one = blockIdx.x * (u64)blockDim.x + threadIdx.x; one < outer * tiles * width; one += threads) {
        const u64 column = one % width, tile = one / width % tiles, group = one / width / tiles;
        const u64 first = tile * TILE, end = first + TILE;
        if (end >= n) continue;
        const unsigned key = keys[end];
        const bool begins_here = keys[end - 1] == key && !(first > 0 && keys[first - 1] == key);
        if (!begins_here || key >= rows) continue;
        // The end of the row.
        u64 low = end, high = n;
#pragma unroll 1
        while (low < high) {
            const u64 middle = (low + high) / 2;
            if (keys[middle] == key) low = middle + 1;
            else high = middle;
        }
        u64 sum = load(parts, kind, 2 * one + 1);
        const u64 last = (low - 1) / TILE;
#pragma unroll 1
        for (u64 other = tile + 1; other <= last; other++)
            sum = sum_of(kind, sum, load(parts, kind, 2 * (one + (other - tile) * width)));
        const u64 to = (group * rows + key) * width + column;
        store(out, kind, to, sum_of(kind, load(out, kind, to), sum));
    }
}
