// Memory filled with a pattern that only its key makes, and checked for it. What is wrong goes into a ledger of
// four words: how many words were wrong in all, then the place, the expected and the found value of one of them.

typedef unsigned int u32;
typedef unsigned long long u64;

/// Neighbouring indices, and neighbouring keys, have unlike words.
static __device__ u32 word(u64 key, u64 index) {
    u64 mixed = (key + index) * 0x9E3779B97F4A7C15ull;
    mixed ^= mixed >> 29;
    mixed = (mixed + key) * 0xBF58476D1CE4E5B9ull;
    return (u32)(mixed >> 32);
}

extern "C" __global__ void gpumem_pattern_write(u32 *out, u64 key, u64 n) {
    const u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    for (u64 i = thread; i < n; i += gridDim.x * (u64)blockDim.x) out[i] = word(key, i);
}

extern "C" __global__ void gpumem_pattern_check(const u32 *in, u64 key, u64 n, u64 *ledger) {
    const u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    for (u64 i = thread; i < n; i += gridDim.x * (u64)blockDim.x) {
        const u32 expected = word(key, i), found = in[i];
        if (found == expected) continue;
        if (atomicAdd(&ledger[0], 1ull) == 0) {
            ledger[1] = (u64)&in[i];
            ledger[2] = expected;
            ledger[3] = found;
        }
    }
}
