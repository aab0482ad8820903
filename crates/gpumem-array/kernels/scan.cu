// Sums of all elements up to each one along an axis, for each ELEMENT_SUFFIX. A long axis is divided into parts: their sums are scanned
// first, and each part begins with the sum of those before. The order of the additions depends on the shape alone.
//
// A line is a part of an axis at one place on the axes before it. Both kernels write the last sum of each line alone if `is_total`, and
// begin with `starts` of the line before, unless a line is the first of its axis or there are none.

#include "common.cuh"

const unsigned THREADS = 256;

// Lines of contiguous elements: a block for each, a pack of elements for each thread at a time.
ENTRY_OF(THREADS, scan_rows)
(Element *out, const Element *x, const Element *starts, u64 len, u64 part, u64 parts, u64 lines, u64 is_total) {
    __shared__ Element slots[THREADS / 32];
    const unsigned EACH = Pack<Element>::count, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (u64 line = blockIdx.x; line < lines; line += gridDim.x) {
        const u64 group = line / parts, index = line - group * parts, first = index * part;
        const u64 begin = group * len + first, count = min(part, len - first);
        const bool packed = is_aligned(x + begin) && is_aligned(out + begin);
        Element carry = starts && index > 0 ? starts[line - 1] : Element(0);
#pragma unroll 1
        for (u64 tile = 0; tile < count; tile += THREADS * EACH) {
            const u64 place = tile + threadIdx.x * EACH, at = begin + place;
            const bool is_whole = packed && place + EACH <= count;
            Pack<Element> sums;
            if (is_whole) {
                sums = *reinterpret_cast<const Pack<Element> *>(x + at);
            } else {
#pragma unroll
                for (unsigned k = 0; k < EACH; k++) sums.lane[k] = place + k < count ? x[at + k] : Element(0);
            }
#pragma unroll
            for (unsigned k = 1; k < EACH; k++) sums.lane[k] += sums.lane[k - 1];
            Element until = sums.lane[EACH - 1];
#pragma unroll 1
            for (unsigned distance = 1; distance < 32; distance *= 2) {
                const Element other = __shfl_up_sync(0xffffffff, until, distance);
                if (lane >= distance) until += other;
            }
            if (lane == 31) slots[warp] = until;
            Element before = __shfl_up_sync(0xffffffff, until, 1);
            __syncthreads();
            Element warps = carry;
#pragma unroll 1
            for (unsigned k = 0; k < THREADS / 32; k++) {
                if (k == warp) before = lane > 0 ? warps + before : warps;
                warps += slots[k];
            }
            carry = warps;
            __syncthreads();
            if (unknown(is_total)) continue;
#pragma unroll
            for (unsigned k = 0; k < EACH; k++) sums.lane[k] += before;
            if (is_whole) {
                *reinterpret_cast<Pack<Element> *>(out + at) = sums;
            } else {
#pragma unroll
                for (unsigned k = 0; k < EACH; k++)
                    if (place + k < count) out[at + k] = sums.lane[k];
            }
        }
        if (is_total && threadIdx.x == 0) out[line] = carry;
    }
}

// Lines of elements that are `width` apart: a thread for each, and for each of the `width` lines beside it.
ENTRY_OF(THREADS, scan_columns)
(Element *out, const Element *x, const Element *starts, u64 len, u64 part, u64 parts, u64 lines, u64 is_total, u64 width) {
#pragma unroll 1
    for (u64 line = blockIdx.y * (u64)blockDim.y + threadIdx.y; line < lines; line += gridDim.y * (u64)blockDim.y) {
        const u64 group = line / parts, index = line - group * parts, first = index * part, end = min(len, first + part);
#pragma unroll 1
        for (u64 column = blockIdx.x * (u64)blockDim.x + threadIdx.x; column < width; column += gridDim.x * (u64)blockDim.x) {
            Element sum = starts && index > 0 ? starts[(line - 1) * width + column] : Element(0);
            u64 at = (group * len + first) * width + column;
#pragma unroll 1
            for (u64 i = first; i < end; i++, at += width) {
                sum += x[at];
                if (!unknown(is_total)) out[at] = sum;
            }
            if (is_total) out[line * width + column] = sum;
        }
    }
}
