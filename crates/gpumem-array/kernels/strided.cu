// Copies and fills of strided ranges, by the size of an element: 1, 2, 4, 8 or 16 bytes.
//
// The host orders the axes by their steps in the target, merges axes that are contiguous, and passes the innermost axis by
// itself: the threads of a block lie along it, and each thread finds the place of a row once for all elements of the row.

typedef unsigned long long u64;
typedef long long i64;

const unsigned AXES_MAX = 7;
const unsigned IN_FLIGHT = 4; // loads a thread issues before it stores the first

// The outer axes, from the fastest to the slowest. Steps are in bytes; those of the target come first.
struct Axes {
    u64 count;
    u64 len[AXES_MAX];
    i64 to[AXES_MAX];
    i64 from[AXES_MAX];
};

// 16 bytes, moved by one load and one store.
struct alignas(16) Wide {
    u64 low, high;
};

// Where a row begins in the target and in the source.
struct Row {
    i64 to, from;
    __device__ Row(const Axes &axes, u64 index) : to(0), from(0) {
#pragma unroll 1
        for (u64 axis = 0; axis < axes.count; axis++) {
            u64 place = index;
            if (axis + 1 < axes.count) {
                const u64 len = axes.len[axis];
                const u64 rest = index / len;
                place = index - rest * len;
                index = rest;
            }
            to += (i64)place * axes.to[axis];
            from += (i64)place * axes.from[axis];
        }
    }
};

template <class T>
__device__ void copy(char *to, const char *from, u64 len, i64 to_step, i64 from_step, u64 rows, const Axes &axes) {
    const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < rows; row += gridDim.y * (u64)blockDim.y) {
        const Row start(axes, row);
#pragma unroll 1
        for (u64 base = first; base < len; base += IN_FLIGHT * threads) {
            T loaded[IN_FLIGHT];
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                const u64 i = base + j * threads;
                if (i < len) loaded[j] = *(const T *)(from + start.from + (i64)i * from_step);
            }
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                const u64 i = base + j * threads;
                if (i < len) *(T *)(to + start.to + (i64)i * to_step) = loaded[j];
            }
        }
    }
}

template <class T> __device__ void fill(char *to, T value, u64 len, i64 to_step, u64 rows, const Axes &axes) {
    const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < rows; row += gridDim.y * (u64)blockDim.y) {
        const Row start(axes, row);
#pragma unroll 1
        for (u64 i = first; i < len; i += threads) *(T *)(to + start.to + (i64)i * to_step) = value;
    }
}

// In place: a copy of its own for each thread would not fit into registers.
#define AXES const __grid_constant__ Axes axes
#define COPY(bytes, T)                                                                                              \
    extern "C" __global__ void gpumem_copy_##bytes(char *to, const char *from, u64 len, i64 to_step, i64 from_step, \
                                                   u64 rows, AXES) {                                                \
        copy<T>(to, from, len, to_step, from_step, rows, axes);                                                     \
    }
#define FILL(bytes, T)                                                                                              \
    extern "C" __global__ void gpumem_fill_##bytes(char *to, u64 low, u64, u64 len, i64 to_step, u64 rows, AXES) {  \
        fill<T>(to, (T)low, len, to_step, rows, axes);                                                              \
    }

COPY(1, unsigned char)
COPY(2, unsigned short)
COPY(4, unsigned)
COPY(8, u64)
COPY(16, Wide)
FILL(1, unsigned char)
FILL(2, unsigned short)
FILL(4, unsigned)
FILL(8, u64)

extern "C" __global__ void gpumem_fill_16(char *to, u64 low, u64 high, u64 len, i64 to_step, u64 rows, AXES) {
    fill<Wide>(to, Wide{low, high}, len, to_step, rows, axes);
}
