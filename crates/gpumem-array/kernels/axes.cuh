// The outer axes of copies of strided ranges.

#pragma once
#include "common.cuh"

// Each axis at least doubles the elements, and an address has 49 bits.
const unsigned AXES_MAX = 48;

// The outer axes, from the fastest to the slowest. Steps are in bytes; those of the target come first.
struct Axes {
    u64 count;
    u64 len[AXES_MAX];
    i64 to[AXES_MAX];
    i64 from[AXES_MAX];
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

// In place: a copy of its own for each thread would not fit into registers.
#define AXES const __grid_constant__ Axes axes
