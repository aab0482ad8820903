// Every element of a contiguous range set to one value of a size that is not a power of two (a pattern). Other values go through the
// driver's own memset, or `strided.cu`.

typedef unsigned long long u64;

// 16 bytes, moved by one store.
struct alignas(16) Wide {
    u64 low, high;
};

// The bytes that repeat: a whole number of elements, and of stores.
struct alignas(16) Pattern {
    char bytes[1024];
};

// `out` is aligned to the store `T`, and the pattern is `period` stores long.
template <class T> __device__ void repeat(char *out, u64 size_bytes, u64 period, const Pattern &pattern) {
    const u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x, threads = gridDim.x * (u64)blockDim.x;
    const u64 count = size_bytes / sizeof(T), step = threads % period;
    const T *words = reinterpret_cast<const T *>(pattern.bytes);
    u64 place = thread % period;
    for (u64 i = thread; i < count; i += threads) {
        reinterpret_cast<T *>(out)[i] = words[place];
        place += step;
        if (place >= period) place -= period;
    }
    const u64 done = count * sizeof(T);
    if (thread < size_bytes - done) out[done + thread] = pattern.bytes[(done + thread) % (period * sizeof(T))];
}

// In place: a copy of its own for each thread would not fit into registers.
#define PATTERN(bytes, T)                                                                                           \
    extern "C" __global__ void gpumem_pattern_##bytes(char *out, u64 size_bytes, u64 period,                        \
                                                      const __grid_constant__ Pattern pattern) {                    \
        repeat<T>(out, size_bytes, period, pattern);                                                                \
    }
PATTERN(1, unsigned char)
PATTERN(2, unsigned short)
PATTERN(4, unsigned)
PATTERN(8, u64)
PATTERN(16, Wide)
