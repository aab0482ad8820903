// Copies and fills of strided ranges, by the size of an element: 1, 2, 4, 8 or 16 bytes.
//
// `copy` and `fill`: the host orders the axes by their steps in the target, merges axes that are contiguous, and passes the innermost axis by
// itself: the threads of a block lie along it, and each thread finds the place of a row once for all elements of the row.
//
// `transpose`: the fastest axes of target and source differ. A block moves a square tile of the two through shared memory: its threads
// lie along the source's axis when they load, and along the target's when they store.

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

// An axis, with the steps of the target and of the source in bytes.
struct Axis {
    u64 len;
    i64 to, from;
};

const unsigned LANES = 32; // threads of a warp, which lie along an axis
const unsigned WARPS = 8;  // of a block

// `row` is the fastest axis of the target, `column` that of the source. Blocks of `grid.x` divide the row, those of `grid.y` the
// column, and those of `grid.z` the positions on the other axes.
template <class T>
__device__ void transpose(char *to, const char *from, const Axis &row, const Axis &column, u64 count, const Axes &axes) {
    // Wide enough that a warp fills a line of 128 bytes. The padding puts the elements of a column into different banks.
    const unsigned TILE = sizeof(T) < 4 ? 128 / sizeof(T) : LANES;
    const unsigned PAD = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    const unsigned EACH = TILE / WARPS;
    __shared__ T tile[TILE][TILE + PAD];
    const unsigned lane = threadIdx.x, warp = threadIdx.y;
    for (u64 index = blockIdx.z; index < count; index += gridDim.z) {
        const Row start(axes, index);
        for (u64 first_column = blockIdx.y * (u64)TILE; first_column < column.len; first_column += gridDim.y * (u64)TILE) {
            const u64 first_row = blockIdx.x * (u64)TILE;
            const char *source = from + start.from + (i64)(first_row + warp) * row.from + (i64)(first_column + lane) * column.from;
#pragma unroll
            for (unsigned j = 0; j < TILE; j += LANES) {
                T loaded[EACH];
#pragma unroll
                for (unsigned k = 0; k < EACH; k++) {
                    if (first_row + warp + k * WARPS < row.len && first_column + lane + j < column.len)
                        loaded[k] = *(const T *)(source + (i64)(k * WARPS) * row.from + (i64)j * column.from);
                }
#pragma unroll
                for (unsigned k = 0; k < EACH; k++) tile[warp + k * WARPS][lane + j] = loaded[k];
            }
            __syncthreads();
            char *target = to + start.to + (i64)(first_column + warp) * column.to + (i64)(first_row + lane) * row.to;
#pragma unroll
            for (unsigned j = 0; j < TILE; j += LANES) {
#pragma unroll
                for (unsigned k = 0; k < EACH; k++) {
                    if (first_column + warp + k * WARPS < column.len && first_row + lane + j < row.len)
                        *(T *)(target + (i64)(k * WARPS) * column.to + (i64)j * row.to) = tile[lane + j][warp + k * WARPS];
                }
            }
            __syncthreads();
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
#define TRANSPOSE(bytes, T)                                                                                         \
    extern "C" __global__ void gpumem_transpose_##bytes(char *to, const char *from, Axis row, Axis column,          \
                                                        u64 count, AXES) {                                          \
        transpose<T>(to, from, row, column, count, axes);                                                           \
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
TRANSPOSE(1, unsigned char)
TRANSPOSE(2, unsigned short)
TRANSPOSE(4, unsigned)
TRANSPOSE(8, u64)
TRANSPOSE(16, Wide)
FILL(1, unsigned char)
FILL(2, unsigned short)
FILL(4, unsigned)
FILL(8, u64)

extern "C" __global__ void gpumem_fill_16(char *to, u64 low, u64 high, u64 len, i64 to_step, u64 rows, AXES) {
    fill<Wide>(to, Wide{low, high}, len, to_step, rows, axes);
}
