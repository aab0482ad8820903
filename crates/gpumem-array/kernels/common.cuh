// What the kernels share: 16-byte loads, and sums in a fixed order.
//
// Every kernel takes addresses and 64-bit counts, works for any grid (loops stride by the grid), and reads nothing that
// the launch did not pass.

#pragma once

typedef unsigned long long u64;
typedef long long i64;

// 16 bytes, moved by one load and one store of two words.
typedef ulonglong2 Wide;

// A value that the compiler does not know. Of a loop with branches by it, the compiler does not make one loop for each value.
__device__ inline u64 unknown(u64 value) {
    asm volatile("" : "+l"(value));
    return value;
}

// 16 bytes of elements: one load or store of the widest kind.
template <class T> struct alignas(16) Pack {
    static const unsigned count = 16 / sizeof(T);
    T lane[count];
};

template <class T> __device__ bool is_aligned(const T *address) { return ((u64)address & 15) == 0; }

template <class T> __device__ Pack<T> pack_of(T value) {
    Pack<T> pack;
#pragma unroll
    for (unsigned k = 0; k < Pack<T>::count; k++) pack.lane[k] = value;
    return pack;
}

// The sum over the lanes of a warp, in lane 0.
template <class T> __device__ T warp_sum(T value) {
#pragma unroll
    for (unsigned distance = 16; distance > 0; distance /= 2)
        value += __shfl_down_sync(0xffffffff, value, distance);
    return value;
}

// A source that says ELEMENT_SUFFIX is compiled once for `float` and once for `double`, into a module of its own: a program pays for
// the types that it uses. `src/kernel/text.rs` makes the texts for integers of them, so sums and products are the only
// arithmetic of elements there. `ENTRY(name)` begins the kernel `gpumem_<name>_<suffix>`.
#ifdef ELEMENT_SUFFIX
typedef ELEMENT_TYPE Element;
#define JOIN(name, suffix) gpumem_##name##_##suffix
#define NAMED(name, suffix) JOIN(name, suffix)
#define ENTRY(name) extern "C" __global__ void NAMED(name, ELEMENT_SUFFIX)
#define ENTRY_OF(threads, name) extern "C" __global__ void __launch_bounds__(threads) NAMED(name, ELEMENT_SUFFIX)
#endif
