// `dense`: a copy of rows of bytes without gaps.
//
// `transpose`: a copy of elements of 1, 2, 4, 8 or 16 bytes whose fastest axes in the target and in the source differ. A block moves a tile of
// the two through shared memory: its threads lie along the source's axis when they load, and along the target's when they store.

#include "axes.cuh"

// 16 bytes, moved by one load and one store.
struct alignas(16) Wide {
    u64 low, high;
};

// Accesses of several words.
template <unsigned WORDS> struct Words;
template <> struct alignas(4) Words<1> {
    unsigned at[1];
};
template <> struct alignas(16) Words<4> {
    unsigned at[4];
};

// Rows of bytes without gaps, at any addresses: each thread stores 16 aligned bytes at a time. If the source is aligned differently, it
// loads the words that hold the bytes, all of which are in the row, and shifts them. At the ends of a row it moves single bytes.
__device__ void copy_dense(char *to, const char *from, u64 len, u64 rows, const Axes &axes) {
    const unsigned BYTES = 16;
    const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 threads = gridDim.x * (u64)blockDim.x;
    for (u64 row = blockIdx.y * (u64)blockDim.y + threadIdx.y; row < rows; row += gridDim.y * (u64)blockDim.y) {
        const Row start(axes, row);
        const u64 target = (u64)to + start.to, source = (u64)from + start.from;
        const u64 aligned = target / BYTES * BYTES;
        const u64 count = (target + len - aligned + BYTES - 1) / BYTES;
#pragma unroll 2
        for (u64 i = first; i < count; i += threads) {
            const u64 store = aligned + i * BYTES, load = source + (store - target);
            const u64 word = load / 4 * 4;
            const bool is_whole = store >= target && store + BYTES <= target + len;
            if (is_whole && load % BYTES == 0) {
                *(Words<4> *)store = *(const Words<4> *)load;
            } else if (is_whole && word >= source && word + BYTES + 4 <= source + len) {
                const unsigned *words = (const unsigned *)word;
                unsigned loaded[5];
#pragma unroll
                for (unsigned j = 0; j < 5; j++) loaded[j] = words[j];
                Words<4> shifted;
#pragma unroll
                for (unsigned j = 0; j < 4; j++)
                    shifted.at[j] = __funnelshift_r(loaded[j], loaded[j + 1], (unsigned)(load % 4) * 8);
                *(Words<4> *)store = shifted;
            } else {
#pragma unroll 4
                for (unsigned j = 0; j < BYTES; j++)
                    if (store + j >= target && store + j < target + len) *(char *)(store + j) = *(const char *)(load + j);
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

// The elements of a tile along the target's fastest axis and along the source's. Memory is fast in lines of 256 bytes. Tiles of bytes read
// 128 of a line: with 256 they are slower at addresses that are no multiples of 16.
template <unsigned BYTES> struct Tile {
    enum : unsigned { rows = 32, columns = 32 };
};
template <> struct Tile<1> {
    enum : unsigned { rows = 256, columns = 128 };
};
template <> struct Tile<2> {
    enum : unsigned { rows = 128, columns = 128 };
};
template <> struct Tile<4> {
    enum : unsigned { rows = 64, columns = 64 };
};

// A square of elements in words: element `i` of word `j` changes places with element `j` of word `i`.
template <unsigned BYTES> __device__ void turn(unsigned *) {}
template <> __device__ void turn<2>(unsigned *words) {
    const unsigned a = words[0], b = words[1];
    words[0] = __byte_perm(a, b, 0x5410);
    words[1] = __byte_perm(a, b, 0x7632);
}

// One tile in words of several elements: both sides are contiguous along their fastest axes, and aligned. A word of a column is stored
// at its place in the column, with the lowest bits changed by the column, so that neither side meets a bank twice.
template <class T>
__device__ void transpose_words(unsigned *tile, char *target, i64 column_to, const char *source, i64 row_from) {
    const unsigned EACH = sizeof(T) < 4 ? 4 / sizeof(T) : 1; // elements of a word
    const unsigned ROWS = Tile<sizeof(T)>::rows / EACH, COLUMNS = Tile<sizeof(T)>::columns / EACH;
    const unsigned IN_TURN = 4; // squares that a thread loads before it stores the first
    const unsigned lane = threadIdx.x, warp = threadIdx.y;
#pragma unroll 1
    for (unsigned j = 0; j < COLUMNS; j += LANES) {
#pragma unroll 1
        for (unsigned k = 0; k < ROWS; k += WARPS * IN_TURN) {
            unsigned words[IN_TURN][EACH];
#pragma unroll
            for (unsigned n = 0; n < IN_TURN; n++) {
#pragma unroll
                for (unsigned i = 0; i < EACH; i++) {
                    const unsigned row = (warp + k + n * WARPS) * EACH + i;
                    words[n][i] = *(const unsigned *)(source + (i64)row * row_from + 4 * (lane + j));
                }
            }
#pragma unroll
            for (unsigned n = 0; n < IN_TURN; n++) {
                turn<sizeof(T)>(words[n]);
#pragma unroll
                for (unsigned i = 0; i < EACH; i++)
                    tile[((lane + j) * EACH + i) * ROWS + ((warp + k + n * WARPS) ^ lane)] = words[n][i];
            }
        }
    }
    __syncthreads();
#pragma unroll 4
    for (unsigned k = 0; k < COLUMNS * EACH; k += WARPS) {
        const unsigned column = warp + k;
#pragma unroll
        for (unsigned j = 0; j < ROWS; j += LANES)
            *(unsigned *)(target + (i64)column * column_to + 4 * (lane + j)) =
                tile[column * ROWS + ((lane + j) ^ (column / EACH % LANES))];
    }
}

// One tile by elements: of a whole tile, or of the `rows` and `columns` that are left.
template <class T, bool WHOLE, unsigned WIDTH>
__device__ void transpose_elements(T (*tile)[WIDTH], char *target, const char *source, const Axis &row, const Axis &column,
                                   u64 rows, u64 columns) {
    const unsigned ROWS = Tile<sizeof(T)>::rows, COLUMNS = Tile<sizeof(T)>::columns;
    const unsigned EACH = ROWS / WARPS;
    const unsigned IN_TURN = sizeof(T) == 4 ? 2 : 1; // groups of `EACH` elements that a thread loads before it stores the first
    const unsigned lane = threadIdx.x, warp = threadIdx.y;
    source += (i64)warp * row.from + (i64)lane * column.from;
    target += (i64)warp * column.to + (i64)lane * row.to;
#pragma unroll
    for (unsigned j = 0; j < COLUMNS; j += LANES * IN_TURN) {
        T loaded[IN_TURN][EACH];
#pragma unroll
        for (unsigned k = 0; k < EACH; k++) {
#pragma unroll
            for (unsigned n = 0; n < IN_TURN; n++) {
                const unsigned i = j + n * LANES;
                if (WHOLE || (warp + k * WARPS < rows && lane + i < columns))
                    loaded[n][k] = *(const T *)(source + (i64)(k * WARPS) * row.from + (i64)i * column.from);
            }
        }
#pragma unroll
        for (unsigned k = 0; k < EACH; k++) {
#pragma unroll
            for (unsigned n = 0; n < IN_TURN; n++) tile[warp + k * WARPS][lane + j + n * LANES] = loaded[n][k];
        }
    }
    __syncthreads();
#pragma unroll 8
    for (unsigned k = 0; k < COLUMNS; k += WARPS) {
#pragma unroll
        for (unsigned j = 0; j < ROWS; j += LANES) {
            if (WHOLE || (warp + k < columns && lane + j < rows))
                *(T *)(target + (i64)k * column.to + (i64)j * row.to) = tile[lane + j][warp + k];
        }
    }
}

// Bytes: byte `i` of word `j` changes places with byte `j` of word `i`.
__device__ void turn(unsigned &v, unsigned &x, unsigned &y, unsigned &z) {
    const unsigned a = __byte_perm(v, x, 0x5140), b = __byte_perm(v, x, 0x7362);
    const unsigned c = __byte_perm(y, z, 0x5140), d = __byte_perm(y, z, 0x7362);
    v = __byte_perm(a, c, 0x5410);
    x = __byte_perm(a, c, 0x7632);
    y = __byte_perm(b, d, 0x5410);
    z = __byte_perm(b, d, 0x7632);
}

// A tile of bytes in accesses of WORDS words, in loops that need few registers. Of longer loops the driver's compiler makes 128 registers a
// thread, and two blocks run at a time. A column of the tile is ROWS / 4 words. Groups of WORDS of them change places by the column's strip,
// so that no bank is met twice.
template <unsigned WORDS>
__device__ void transpose_bytes(unsigned *tile, char *target, i64 column_to, const char *source, i64 row_from) {
    const unsigned ROWS = Tile<1>::rows, COLUMNS = Tile<1>::columns, BYTES = 4 * WORDS, THREADS = LANES * WARPS;
    const unsigned QUADS = ROWS / 4;         // words of a column
    const unsigned STRIPS = COLUMNS / BYTES; // accesses of a row
    const unsigned GROUPS = ROWS / BYTES;    // accesses of a column
    const unsigned IN_TURN = WORDS == 1 ? 2 : 1; // squares that a thread loads before it stores the first
    const unsigned thread = threadIdx.y * LANES + threadIdx.x;
    const unsigned strip = thread % STRIPS, quad = thread / STRIPS;
    source += (i64)(quad * 4) * row_from + strip * BYTES;
    const i64 row_step = (i64)(THREADS / STRIPS * 4) * row_from;
#pragma unroll 1
    for (unsigned k = quad; k < QUADS; k += IN_TURN * (THREADS / STRIPS)) {
        Words<WORDS> loaded[IN_TURN][4];
#pragma unroll
        for (unsigned n = 0; n < IN_TURN; n++) {
#pragma unroll
            for (unsigned i = 0; i < 4; i++) loaded[n][i] = *(const Words<WORDS> *)(source + (i64)i * row_from);
            source += row_step;
        }
#pragma unroll
        for (unsigned n = 0; n < IN_TURN; n++) {
            unsigned *place = tile + strip * BYTES * QUADS + ((k + n * (THREADS / STRIPS)) ^ (strip * WORDS % LANES));
            Words<WORDS> *square = loaded[n];
#pragma unroll
            for (unsigned w = 0; w < WORDS; w++) {
                turn(square[0].at[w], square[1].at[w], square[2].at[w], square[3].at[w]);
#pragma unroll
                for (unsigned i = 0; i < 4; i++) place[(w * 4 + i) * QUADS] = square[i].at[w];
            }
        }
    }
    __syncthreads();
    const unsigned group = thread % GROUPS, column = thread / GROUPS;
    target += (i64)column * column_to + group * BYTES;
    const i64 column_step = (i64)(THREADS / GROUPS) * column_to;
#pragma unroll 4
    for (unsigned k = column; k < COLUMNS; k += THREADS / GROUPS) {
        const unsigned at = (group * WORDS) ^ (k / BYTES * WORDS % LANES);
        *(Words<WORDS> *)target = *(const Words<WORDS> *)(tile + k * QUADS + at);
        target += column_step;
    }
}

// Like `transpose_elements`, in loops that need few registers: of a whole tile, or of the `rows` and `columns` that are left.
template <class T, unsigned WIDTH>
__device__ void transpose_singles(T (*tile)[WIDTH], char *target, const char *source, const Axis &row, const Axis &column,
                                  u64 rows, u64 columns) {
    const unsigned ROWS = Tile<sizeof(T)>::rows, COLUMNS = Tile<sizeof(T)>::columns, IN_TURN = 8;
    const unsigned lane = threadIdx.x, warp = threadIdx.y;
    source += (i64)warp * row.from + (i64)lane * column.from;
    target += (i64)warp * column.to + (i64)lane * row.to;
#pragma unroll 1
    for (unsigned j = 0; j < COLUMNS; j += LANES) {
        const char *place = source;
#pragma unroll 1
        for (unsigned k = 0; k < ROWS; k += IN_TURN * WARPS) {
            T loaded[IN_TURN];
#pragma unroll
            for (unsigned n = 0; n < IN_TURN; n++) {
                if (warp + k + n * WARPS < rows && lane + j < columns) loaded[n] = *(const T *)place;
                place += (i64)WARPS * row.from;
            }
#pragma unroll
            for (unsigned n = 0; n < IN_TURN; n++) tile[warp + k + n * WARPS][lane + j] = loaded[n];
        }
        source += (i64)LANES * column.from;
    }
    __syncthreads();
#pragma unroll 2
    for (unsigned k = 0; k < COLUMNS; k += WARPS) {
        char *place = target;
#pragma unroll
        for (unsigned j = 0; j < ROWS; j += LANES) {
            if (warp + k < columns && lane + j < rows) *(T *)place = tile[lane + j][warp + k];
            place += (i64)LANES * row.to;
        }
        target += (i64)WARPS * column.to;
    }
}

// One tile of bytes, or the `rows` and `columns` that are left.
template <unsigned WIDTH>
__device__ void tile_of_bytes(unsigned char (*tile)[WIDTH], char *target, const char *source, const Axis &row, const Axis &column,
                              u64 rows, u64 columns, bool is_dense) {
    const unsigned ROWS = Tile<1>::rows, COLUMNS = Tile<1>::columns;
    const u64 bits = (u64)target | (u64)source | (u64)row.from | (u64)column.to;
    const bool by_words = is_dense && rows >= ROWS && columns >= COLUMNS;
    if (by_words && bits % 16 == 0)
        transpose_bytes<4>((unsigned *)tile, target, column.to, source, row.from);
    else if (by_words && bits % 4 == 0)
        transpose_bytes<1>((unsigned *)tile, target, column.to, source, row.from);
    else
        transpose_singles(tile, target, source, row, column, rows, columns);
}

// `row` is the fastest axis of the target, `column` that of the source. Blocks of `grid.x` divide the row, those of `grid.y` the
// column, and those of `grid.z` the positions on the other axes.
template <class T>
__device__ void transpose(char *to, const char *from, const Axis &row, const Axis &column, u64 count, const Axes &axes) {
    const unsigned ROWS = Tile<sizeof(T)>::rows, COLUMNS = Tile<sizeof(T)>::columns;
    // The padding puts the elements of a column into different banks.
    const unsigned WIDTH = COLUMNS + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);
    __shared__ alignas(16) T tile[ROWS][WIDTH];
    const bool is_dense = sizeof(T) < 4 && row.to == sizeof(T) && column.from == sizeof(T) && row.from % 4 == 0 && column.to % 4 == 0;
    for (u64 index = blockIdx.z; index < count; index += gridDim.z) {
        const Row start(axes, index);
        const bool by_words = is_dense && ((u64)(to + start.to) | (u64)(from + start.from)) % 4 == 0;
        for (u64 first_row = blockIdx.x * (u64)ROWS; first_row < row.len; first_row += gridDim.x * (u64)ROWS) {
            for (u64 first_column = blockIdx.y * (u64)COLUMNS; first_column < column.len;
                 first_column += gridDim.y * (u64)COLUMNS) {
                const u64 rows = row.len - first_row, columns = column.len - first_column;
                const char *source = from + start.from + (i64)first_row * row.from + (i64)first_column * column.from;
                char *target = to + start.to + (i64)first_column * column.to + (i64)first_row * row.to;
                if constexpr (sizeof(T) == 1)
                    tile_of_bytes(tile, target, source, row, column, rows, columns, is_dense);
                else if (sizeof(T) == 2 && (!by_words || rows < ROWS || columns < COLUMNS))
                    transpose_singles(tile, target, source, row, column, rows, columns);
                else if (rows < ROWS || columns < COLUMNS)
                    transpose_elements<T, false>(tile, target, source, row, column, rows, columns);
                else if (by_words)
                    transpose_words<T>((unsigned *)tile, target, column.to, source, row.from);
                else
                    transpose_elements<T, true>(tile, target, source, row, column, rows, columns);
                __syncthreads();
            }
        }
    }
}

#define TRANSPOSE(bytes, T)                                                                                         \
    extern "C" __global__ void gpumem_transpose_##bytes(char *to, const char *from, Axis row, Axis column,          \
                                                        u64 count, AXES) {                                          \
        transpose<T>(to, from, row, column, count, axes);                                                           \
    }

// The parameters of `gpumem_copy_1`.
extern "C" __global__ void gpumem_dense_1(char *to, const char *from, u64 len, i64, i64, u64 rows, AXES) {
    copy_dense(to, from, len, rows, axes);
}

TRANSPOSE(1, unsigned char)
TRANSPOSE(2, unsigned short)
TRANSPOSE(4, unsigned)
TRANSPOSE(8, u64)
TRANSPOSE(16, Wide)
