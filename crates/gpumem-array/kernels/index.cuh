// Indices on the device.

#pragma once
#include "common.cuh"

// The index at a place in an array of u32 (kind 0), i32 (1) or 64 bits. Negative ones exceed every length.
__device__ inline u64 index_at(const void *index, u64 kind, u64 place) {
    kind = unknown(kind);
    if (kind == 0) return ((const unsigned *)index)[place];
    if (kind == 1) return (u64)(long long)((const int *)index)[place];
    return ((const u64 *)index)[place];
}
