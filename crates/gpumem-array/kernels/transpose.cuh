// Copies whose fastest axes in the target and in the source differ. A block moves a tile of the two through shared memory: its threads lie
// along the source's axis when they load, and along the target's when they store.

#pragma once
#include "axes.cuh"

// Accesses of several words.
template <unsigned WORDS> struct Words;
template <> struct alignas(4) Words<1> {
    unsigned at[1];
};
template <> struct alignas(16) Words<4> {
    unsigned at[4];
};

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
__device__ void turn(unsigned *words) {
    const unsigned a = words[0], b = words[1];
    words[0] = __byte_perm(a, b, 0x5410);
    words[1] = __byte_perm(a, b, 0x7632);
}

// One tile of elements of 2 bytes in words: both sides are contiguous along their fastest axes, and aligned. A word of a column is stored
// at its place in the column, with the lowest bits changed by the column, so that neither side meets a bank twice.
__device__ void transpose_words(unsigned *tile, char *target, i64 column_to, const char *source, i64 row_from) {
    const unsigned EACH = 2; // elements of a word
    const unsigned ROWS = Tile<2>::rows / EACH, COLUMNS = Tile<2>::columns / EACH;
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
                turn(words[n]);
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

// One whole tile of elements of 4 bytes, in loops that keep many loads in flight.
template <unsigned WIDTH>
__device__ void transpose_whole(unsigned (*tile)[WIDTH], char *target, const char *source, const Axis &row, const Axis &column) {
    const unsigned ROWS = Tile<4>::rows, COLUMNS = Tile<4>::columns, EACH = ROWS / WARPS;
    const unsigned IN_TURN = COLUMNS / LANES; // groups of `EACH` elements that a thread loads before it stores the first
    const unsigned lane = threadIdx.x, warp = threadIdx.y;
    source += (i64)warp * row.from + (i64)lane * column.from;
    target += (i64)warp * column.to + (i64)lane * row.to;
    unsigned loaded[IN_TURN][EACH];
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) {
#pragma unroll
        for (unsigned n = 0; n < IN_TURN; n++)
            loaded[n][k] = *(const unsigned *)(source + (i64)(k * WARPS) * row.from + (i64)(n * LANES) * column.from);
    }
#pragma unroll
    for (unsigned k = 0; k < EACH; k++) {
#pragma unroll
        for (unsigned n = 0; n < IN_TURN; n++) tile[warp + k * WARPS][lane + n * LANES] = loaded[n][k];
    }
    __syncthreads();
#pragma unroll 8
    for (unsigned k = 0; k < COLUMNS; k += WARPS) {
#pragma unroll
        for (unsigned j = 0; j < ROWS; j += LANES)
            *(unsigned *)(target + (i64)k * column.to + (i64)j * row.to) = tile[lane + j][warp + k];
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
// thread, and two blocks run at a time. A column of the tile is ROWS / 4 words. Groups of WORDS of them change places by the column's
// strip, so that no bank is met twice.
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

// Copies an element as two words if it is wide.
template <class T> __device__ void move(T *to, const T &from) { *to = from; }
__device__ inline void move(Wide *to, const Wide &from) { *to = make_ulonglong2(from.x, from.y); }

// One tile by elements, in loops that need few registers: a whole tile, or the `rows` and `columns` that are left.
template <class T, unsigned WIDTH>
__device__ void transpose_singles(T (*tile)[WIDTH], char *target, const char *source, const Axis &row, const Axis &column,
                                  unsigned rows, unsigned columns) {
    const unsigned ROWS = Tile<sizeof(T)>::rows, COLUMNS = Tile<sizeof(T)>::columns;
    const unsigned IN_TURN = ROWS / WARPS < 8 ? ROWS / WARPS : 8;
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
            if (warp + k < columns && lane + j < rows) move((T *)place, tile[lane + j][warp + k]);
            place += (i64)LANES * row.to;
        }
        target += (i64)WARPS * column.to;
    }
}

// `row` is the fastest axis of the target, `column` that of the source. Blocks of `grid.x` divide the row, those of `grid.y` the
// column, and those of `grid.z` the positions on the other axes.
template <class T>
__device__ void transpose(char *to, const char *from, const Axis &row, const Axis &column, u64 count, const Axes &axes) {
    const unsigned ROWS = Tile<sizeof(T)>::rows, COLUMNS = Tile<sizeof(T)>::columns;
    // The padding puts the elements of a column into different banks.
    const unsigned WIDTH = COLUMNS + (sizeof(T) < 4 ? 4 / sizeof(T) : 1);
    __shared__ alignas(16) T tile[ROWS][WIDTH];
    const bool is_dense = row.to == sizeof(T) && column.from == sizeof(T);
#pragma unroll 1
    for (u64 index = blockIdx.z; index < count; index += gridDim.z) {
        const Row start(axes, index);
#pragma unroll 1
        for (u64 first_row = blockIdx.x * (u64)ROWS; first_row < row.len; first_row += gridDim.x * (u64)ROWS) {
#pragma unroll 1
            for (u64 first_column = blockIdx.y * (u64)COLUMNS; first_column < column.len;
                 first_column += gridDim.y * (u64)COLUMNS) {
                const unsigned rows = min(row.len - first_row, (u64)ROWS);
                const unsigned columns = min(column.len - first_column, (u64)COLUMNS);
                const char *source = from + start.from + (i64)first_row * row.from + (i64)first_column * column.from;
                char *target = to + start.to + (i64)first_column * column.to + (i64)first_row * row.to;
                const bool is_whole = rows == ROWS && columns == COLUMNS, by_words = is_dense && is_whole;
                const u64 bits = (u64)target | (u64)source | (u64)row.from | (u64)column.to;
                if constexpr (sizeof(T) == 1) {
                    if (by_words && bits % 16 == 0)
                        transpose_bytes<4>((unsigned *)tile, target, column.to, source, row.from);
                    else if (by_words && bits % 4 == 0)
                        transpose_bytes<1>((unsigned *)tile, target, column.to, source, row.from);
                    else transpose_singles(tile, target, source, row, column, rows, columns);
                } else if constexpr (sizeof(T) == 2) {
                    if (by_words && bits % 4 == 0) transpose_words((unsigned *)tile, target, column.to, source, row.from);
                    else transpose_singles(tile, target, source, row, column, rows, columns);
                } else if constexpr (sizeof(T) == 4) {
                    if (is_whole) transpose_whole(tile, target, source, row, column);
                    else transpose_singles(tile, target, source, row, column, rows, columns);
                } else {
                    transpose_singles(tile, target, source, row, column, rows, columns);
                }
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
