// out[i] = a[i] as another floating-point type: the nearest value, ties to even. Numbers that are too large become infinite, and NaN
// stays NaN. Complex numbers are two numbers each.

typedef unsigned long long u64;

// NVRTC has no header of these types. Every conversion goes through `float`, which holds them exactly.
struct Half {
    unsigned short bits;
};
struct Brain {
    unsigned short bits;
};

// A float between the same two shorter numbers as `value`, and nearest to the same one: toward zero, with a last bit of 1 if that
// changed the value (round to odd). A second rounding then gives what one rounding would.
__device__ float narrowed(double value) {
    const float toward_zero = __double2float_rz(value);
    return (double)toward_zero == value ? toward_zero : __uint_as_float(__float_as_uint(toward_zero) | 1);
}
__device__ float narrowed(float value) { return value; }
__device__ float narrowed(Half value) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return wide;
}
__device__ float narrowed(Brain value) { return __uint_as_float((unsigned)value.bits << 16); }

template <class T> __device__ void store(float &out, T value) { out = narrowed(value); }
__device__ void store(float &out, double value) { out = (float)value; }
template <class T> __device__ void store(double &out, T value) { out = narrowed(value); }
template <class T> __device__ void store(Half &out, T value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(narrowed(value)));
}
template <class T> __device__ void store(Brain &out, T value) {
    const float wide = narrowed(value);
    const unsigned bits = __float_as_uint(wide);
    // The rounding would make infinity of some NaNs.
    out.bits = wide != wide ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Neighbours that are loaded or stored at once.
template <class T, unsigned COUNT> struct alignas(COUNT * sizeof(T)) Lanes {
    T lane[COUNT];
};

template <class T, class U> __device__ void cast(U *out, const T *a, u64 n) {
    const unsigned COUNT = 16 / (sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U));
    const u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    const u64 threads = gridDim.x * (u64)blockDim.x;
    u64 done = 0;
    if ((u64)a % sizeof(Lanes<T, COUNT>) == 0 && (u64)out % sizeof(Lanes<U, COUNT>) == 0) {
        const u64 groups = n / COUNT;
        for (u64 i = thread; i < groups; i += threads) {
            const Lanes<T, COUNT> from = reinterpret_cast<const Lanes<T, COUNT> *>(a)[i];
            Lanes<U, COUNT> to;
#pragma unroll
            for (unsigned k = 0; k < COUNT; k++) store(to.lane[k], from.lane[k]);
            reinterpret_cast<Lanes<U, COUNT> *>(out)[i] = to;
        }
        done = groups * COUNT;
    }
    for (u64 i = done + thread; i < n; i += threads) store(out[i], a[i]);
}

#define CAST(from, T, to, U)                                                                                        \
    extern "C" __global__ void gpumem_cast_##from##_##to(U *out, const T *a, u64 n) { cast(out, a, n); }

CAST(f32, float, f64, double)
CAST(f32, float, f16, Half)
CAST(f32, float, bf16, Brain)
CAST(f64, double, f32, float)
CAST(f64, double, f16, Half)
CAST(f64, double, bf16, Brain)
CAST(f16, Half, f32, float)
CAST(f16, Half, f64, double)
CAST(f16, Half, bf16, Brain)
CAST(bf16, Brain, f32, float)
CAST(bf16, Brain, f64, double)
CAST(bf16, Brain, f16, Half)
