// Sums over one array and dot products of two, in an order that depends on the length alone.
//
// Each block sums what it strides over and writes one element. A short input takes one block; for a long one the host
// launches many and then `sum` over what they wrote.

#include "common.cuh"

const unsigned THREADS = 256;
const unsigned IN_FLIGHT = 8; // loads a thread issues before it uses the first

template <class T> struct One {
    const T *a;
    __device__ bool packs() const { return is_aligned(a); }
    __device__ T at(u64 i) const { return a[i]; }
    __device__ Pack<T> pack_at(u64 i) const { return reinterpret_cast<const Pack<T> *>(a)[i]; }
};

template <class T> struct Product {
    const T *a, *b;
    __device__ bool packs() const { return is_aligned(a) && is_aligned(b); }
    __device__ T at(u64 i) const { return mul(a[i], b[i]); }
    __device__ Pack<T> pack_at(u64 i) const {
        Pack<T> x = reinterpret_cast<const Pack<T> *>(a)[i];
        const Pack<T> y = reinterpret_cast<const Pack<T> *>(b)[i];
#pragma unroll
        for (unsigned k = 0; k < Pack<T>::count; k++) x.lane[k] = mul(x.lane[k], y.lane[k]);
        return x;
    }
};

template <class T, class Source> __device__ void reduce(T *out, Source source, u64 n) {
    __shared__ T slots[THREADS / 32];
    const u64 thread = blockIdx.x * (u64)THREADS + threadIdx.x;
    const u64 threads = gridDim.x * (u64)THREADS;
    Pack<T> sums = pack_of(T(0));
    u64 done = 0;
    if (source.packs()) {
        const u64 packs = n / Pack<T>::count;
        for (u64 base = thread; base < packs; base += IN_FLIGHT * threads) {
            Pack<T> loaded[IN_FLIGHT];
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++) {
                const u64 i = base + j * threads;
                loaded[j] = i < packs ? source.pack_at(i) : pack_of(T(0));
            }
#pragma unroll
            for (unsigned j = 0; j < IN_FLIGHT; j++)
#pragma unroll
                for (unsigned k = 0; k < Pack<T>::count; k++) sums.lane[k] = add(sums.lane[k], loaded[j].lane[k]);
        }
        done = packs * Pack<T>::count;
    }
    for (u64 i = done + thread; i < n; i += threads) sums.lane[0] = add(sums.lane[0], source.at(i));
    T sum = sums.lane[0];
#pragma unroll
    for (unsigned k = 1; k < Pack<T>::count; k++) sum = add(sum, sums.lane[k]);
    sum = block_sum<THREADS>(sum, threadIdx.x, slots);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

// Compiled for each ELEMENT_SUFFIX.
ENTRY_OF(THREADS, sum)(Element *out, const Element *a, u64 n) { reduce(out, One<Element>{a}, n); }

ENTRY_OF(THREADS, dot)(Element *out, const Element *a, const Element *b, u64 n) {
    reduce(out, Product<Element>{a, b}, n);
}
