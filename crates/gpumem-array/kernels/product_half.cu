// Products of matrices of `f16` or `bf16` by tensor cores, which multiply exactly and add in `float`.
//
// Compiled with --gpu-architecture=compute_80, for `mma` of 16 × 8 × 16, and copies to shared memory that run while the block multiplies:
// two tiles are on their way while it multiplies a third one. Tiles are stored as they are in memory, so `ldmatrix` transposes them where
// the common axis is not the contiguous one. Their chunks of 16 bytes are permuted, so that its rows are in different banks.

#include "product.cuh"

typedef unsigned short u16;

const unsigned TILE = 128, DEPTH = 32, STAGES = 3;
const unsigned OPERAND_BYTES = TILE * DEPTH * 2, STAGE_BYTES = 2 * OPERAND_BYTES;
const unsigned CHUNK = 8; // elements of 16 bytes

// Bits of `kind`.
const unsigned IS_BF16 = 1, IS_FLOAT_RESULT = 2;

__device__ inline unsigned shared_address(const void *place) { return (unsigned)__cvta_generic_to_shared(place); }

__device__ inline unsigned at_most(u64 left, unsigned most) { return left < most ? (unsigned)left : most; }

// The part of an operand that a thread loads: two chunks of each tile.
struct HalfLoader {
    const u16 *next;
    i64 step, advance, apart;
    unsigned k, k_apart, slot, left, left_apart;
    bool deep, packed;

    __device__ HalfLoader(const u16 *from, u64 first, u64 count, i64 own_step, i64 k_step) {
        const unsigned t = threadIdx.x;
        deep = is_deep(own_step, k_step);
        const unsigned own = deep ? t / 4 : t % 16 * CHUNK;
        k = deep ? t % 4 * CHUNK : t / 16;
        slot = deep ? own * 64 + ((t % 4) ^ (own / 2 % 4)) * 16 : k * 256 + ((t % 16) ^ (k % 8)) * 16;
        k_apart = deep ? 0 : 16;
        apart = deep ? 64 * own_step : 16 * k_step;
        left = first + own < count ? at_most(count - first - own, TILE) : 0;
        left_apart = deep ? 64 : 0;
        step = deep ? k_step : own_step;
        packed = step == 1 && is_aligned(from) && (deep ? own_step : k_step) % CHUNK == 0;
        next = from + (i64)(first + own) * own_step + (i64)k * k_step;
        advance = k_step * DEPTH;
    }

    // `k_left` steps are left.
    __device__ void load(unsigned tile, u64 k_left) {
        const u16 *from = next;
#pragma unroll 1
        for (unsigned j = 0; j < 2; j++, from += apart) {
            const unsigned own_left = left > j * left_apart ? left - j * left_apart : 0;
            const unsigned deeper = at_most(k_left > k + j * k_apart ? k_left - k - j * k_apart : 0, CHUNK);
            const unsigned count = deep ? (own_left > 0 ? deeper : 0) : (deeper > 0 ? at_most(own_left, CHUNK) : 0);
            const unsigned to = tile + slot + j * (OPERAND_BYTES / 2);
            if (packed) {
                // Zeros follow the bytes that are there.
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
                             "l"(__cvta_generic_to_global(count > 0 ? from : next)), "r"(count * 2));
            } else {
                u16 loaded[CHUNK];
#pragma unroll
                for (unsigned i = 0; i < CHUNK; i++) loaded[i] = i < count ? from[i * step] : 0;
#pragma unroll
                for (unsigned i = 0; i < CHUNK; i++)
                    asm volatile("st.shared.u16 [%0], %1;" ::"r"(to + i * 2), "h"(loaded[i]));
            }
        }
        next += advance;
    }
};

// Where a lane reads the fragments of its warp: the first one, what the others add, and what the next 16 steps add.
struct Fragments {
    unsigned first, deeper, mask, step;
    bool deep;

    // The rows of 8 elements that `ldmatrix` takes: `own` along the operand's axis, `k` along the common one.
    __device__ Fragments(bool deep, unsigned own, unsigned k, unsigned row) : deep(deep) {
        if (deep) {
            first = (own + row) * 64 + ((k / 8) ^ (row / 2)) * 16;
            deeper = first & 32 ? -32u : 32u;
            mask = 0;
            step = 1024;
        } else {
            first = (k + row) * 256 + own / 64 * 128 + ((own / 8 ^ row) & 1) * 16;
            deeper = 16 * 256;
            mask = ((own / 8 ^ row) & 6) * 16;
            step = 32;
        }
    }

    __device__ void read(unsigned (&to)[4], unsigned tile, unsigned fragment) const {
        asm volatile("{\n\t.reg .pred deep;\n\tsetp.ne.u32 deep, %5, 0;\n\t"
                     "@deep ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n\t"
                     "@!deep ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n\t}"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(tile + first + (fragment * step ^ mask)), "r"((unsigned)deep)
                     : "memory");
    }
};

#define MULTIPLY(type, sums, a, b0, b1)                                                                                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                                \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

__device__ inline u16 rounded(float value, bool is_bf16) {
    u16 half, brain;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(brain) : "f"(value));
    return is_bf16 ? brain : half;
}

// Like `product`. The result has the type of the operands, or `float` if sums are split into parts.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gpumem_product_half(void *out, const u16 *a, const u16 *b, u64 m, u64 n, u64 k, u64 k_part, u64 batch_count,
                        i64 a_row, i64 a_k, i64 b_k, i64 b_column, u64 kind, const Batches batches) {
    __shared__ alignas(128) char tiles[STAGES * STAGE_BYTES];
    const unsigned tiles_address = shared_address(tiles);
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Eight warps: two stripes of 64 rows, four of 32 columns.
    const unsigned stripe = warp / 4, column = warp % 4 * 32, eighth = lane / 8;
    const Place place(m, n, TILE);
    const u64 k_first = blockIdx.y * k_part;
#pragma unroll 1
    for (u64 batch = blockIdx.z; batch < batch_count; batch += gridDim.z) {
        i64 a_start, b_start;
        find_batch(batches, batch, a_start, b_start);
        HalfLoader left(a + a_start + (i64)k_first * a_k, place.row, m, a_row, a_k);
        HalfLoader right(b + b_start + (i64)k_first * b_k, place.column, n, b_column, b_k);
        const Fragments rows(left.deep, stripe * 64 + eighth % 2 * 8, eighth / 2 * 8, lane % 8);
        const Fragments columns(right.deep, column + eighth / 2 * 8, eighth % 2 * 8, lane % 8);
        u64 k_left = k - k_first < k_part ? k - k_first : k_part;
        u64 tiles_left = (k_left + DEPTH - 1) / DEPTH;
        float sums[4][4][4];
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
#pragma unroll
            for (unsigned j = 0; j < 4; j++)
#pragma unroll
                for (unsigned c = 0; c < 4; c++) sums[i][j][c] = 0;
        unsigned stage = 0, waiting = STAGES - 1;
#pragma unroll 1
        while (tiles_left > 0) {
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncthreads();
            if (k_left > 0) {
                left.load(tiles_address + stage, k_left);
                right.load(tiles_address + stage + OPERAND_BYTES, k_left);
                k_left = k_left > DEPTH ? k_left - DEPTH : 0;
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
            // The stage that was loaded two rounds ago comes next.
            stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
            if (waiting > 0) {
                waiting--;
                continue;
            }
            tiles_left--;
            const unsigned a_tile = tiles_address + stage, b_tile = a_tile + OPERAND_BYTES;
#pragma unroll 1
            for (unsigned half = 0; half < 2; half++) {
                unsigned x[4][4], y[2][4];
#pragma unroll
                for (unsigned i = 0; i < 4; i++) rows.read(x[i], a_tile + half * rows.deeper, i);
#pragma unroll
                for (unsigned i = 0; i < 2; i++) columns.read(y[i], b_tile + half * columns.deeper, i);
                if (kind & IS_BF16) {
#pragma unroll
                    for (unsigned i = 0; i < 4; i++)
#pragma unroll
                        for (unsigned j = 0; j < 4; j++)
                            MULTIPLY("bf16", sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                } else {
#pragma unroll
                    for (unsigned i = 0; i < 4; i++)
#pragma unroll
                        for (unsigned j = 0; j < 4; j++)
                            MULTIPLY("f16", sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
        // Through shared memory, one stripe at a time, so that neighbours store neighbours.
        const unsigned PITCH = TILE + 4;
        float *staged = reinterpret_cast<float *>(tiles);
        const u64 first = (blockIdx.y * batch_count + batch) * m * n;
        const bool packed = n % 4 == 0;
#pragma unroll 1
        for (unsigned s = 0; s < 2; s++) {
            __syncthreads();
            if (s == stripe) {
#pragma unroll
                for (unsigned i = 0; i < 4; i++)
#pragma unroll
                    for (unsigned j = 0; j < 4; j++)
#pragma unroll
                        for (unsigned c = 0; c < 2; c++) {
                            const unsigned r = i * 16 + lane / 4 + c * 8;
                            *reinterpret_cast<float2 *>(staged + r * PITCH + column + j * 8 + lane % 4 * 2) =
                                make_float2(sums[i][j][c * 2], sums[i][j][c * 2 + 1]);
                        }
            }
            __syncthreads();
#pragma unroll 1
            for (unsigned i = threadIdx.x; i < 64 * TILE / 4; i += THREADS) {
                const unsigned r = i / (TILE / 4), c = i % (TILE / 4) * 4;
                const u64 to_row = place.row + s * 64 + r, to_column = place.column + c;
                if (to_row >= m || to_column >= n) continue;
                const Four<float> from = *reinterpret_cast<const Four<float> *>(staged + r * PITCH + c);
                const u64 to = first + to_row * n + to_column;
                const unsigned count = at_most(n - to_column, 4);
                if (kind & IS_FLOAT_RESULT) {
                    float *line = (float *)out + to;
#pragma unroll
                    for (unsigned j = 0; j < 4; j++)
                        if (j < count) line[j] = from.lane[j];
                } else {
                    u16 *line = (u16 *)out + to;
                    ushort4 halves;
                    halves.x = rounded(from.lane[0], kind & IS_BF16);
                    halves.y = rounded(from.lane[1], kind & IS_BF16);
                    halves.z = rounded(from.lane[2], kind & IS_BF16);
                    halves.w = rounded(from.lane[3], kind & IS_BF16);
                    if (packed) {
                        *reinterpret_cast<ushort4 *>(line) = halves;
                    } else {
                        line[0] = halves.x;
                        if (count > 1) line[1] = halves.y;
                        if (count > 2) line[2] = halves.z;
                        if (count > 3) line[3] = halves.w;
                    }
                }
            }
        }
        __syncthreads();
    }
}
