// Rows by their indices. `from` has `outer` groups of `len` rows, each of `width` units of 1, 2, 4, 8 or 16 bytes, without gaps. Row i of
// each group of `out`, which has `count` rows, is row index[i] of that group. The host has checked the indices.

typedef unsigned long long u64;

// 16 bytes, moved by one load and one store.
struct alignas(16) Wide {
    u64 low, high;
};

template <class T>
__device__ void gather(T *out, const T *from, const u64 *index, u64 count, u64 len, u64 width, u64 outer) {
    const u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < outer * count * width; i += threads) {
        const u64 row = i / width, group = row / count;
        out[i] = from[(group * len + index[row - group * count]) * width + (i - row * width)];
    }
}

#define GATHER(bytes, T)                                                                                            \
    extern "C" __global__ void gpumem_gather_##bytes(T *out, const T *from, const u64 *index, u64 count, u64 len,   \
                                                     u64 width, u64 outer) {                                        \
        gather(out, from, index, count, len, width, outer);                                                         \
    }
GATHER(1, unsigned char)
GATHER(2, unsigned short)
GATHER(4, unsigned)
GATHER(8, u64)
GATHER(16, Wide)
