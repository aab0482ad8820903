// The functions of expressions. A kernel that is written for an expression contains those that it calls: `src/expression/functions.rs`
// takes them from the PTX of this source.
//
// Compiled with --relocatable-device-code=true, which keeps functions that no kernel calls.

// A function of one number by its name here and in CUDA's library, and for `float`.
#define ONE(name, function)                                                                                    \
    extern "C" __device__ __noinline__ float gpumem_##name##_f32(float x) { return function##f(x); }           \
    extern "C" __device__ __noinline__ double gpumem_##name##_f64(double x) { return function(x); }
#define TWO(name, function)                                                                                    \
    extern "C" __device__ __noinline__ float gpumem_##name##_f32(float x, float y) { return function##f(x, y); } \
    extern "C" __device__ __noinline__ double gpumem_##name##_f64(double x, double y) { return function(x, y); }

ONE(exp, exp)
ONE(exp2, exp2)
ONE(exp_m1, expm1)
ONE(ln, log)
ONE(log2, log2)
ONE(log10, log10)
ONE(ln_1p, log1p)
ONE(sin, sin)
ONE(cos, cos)
ONE(tan, tan)
ONE(asin, asin)
ONE(acos, acos)
ONE(atan, atan)
ONE(sinh, sinh)
ONE(cosh, cosh)
ONE(tanh, tanh)
ONE(erf, erf)
ONE(cbrt, cbrt)
TWO(pow, pow)
TWO(atan2, atan2)
TWO(rem, fmod)
TWO(hypot, hypot)

// A whole power by products, in the order of the bits of `n`.
template <class T> __device__ T power(T x, int n) {
    unsigned left = n < 0 ? 0u - (unsigned)n : (unsigned)n;
    T result = 1;
    for (; left; left >>= 1) {
        if (left & 1) result *= x;
        x *= x;
    }
    return n < 0 ? (T)1 / result : result;
}
extern "C" __device__ __noinline__ float gpumem_powi_f32(float x, int n) { return power(x, n); }
extern "C" __device__ __noinline__ double gpumem_powi_f64(double x, int n) { return power(x, n); }
