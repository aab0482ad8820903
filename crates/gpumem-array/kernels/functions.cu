// The functions of expressions. A kernel that is written for an expression contains those that it calls: `src/expression/functions.rs`
// takes them from the PTX of this source.
//
// Compiled with --relocatable-device-code=true, which keeps functions that no kernel calls. A function that others are made from is called,
// not inlined, so that its text is there once.

#define FUNCTION extern "C" __device__ __noinline__

// A function of one number by its name here and in CUDA's library, and for `float`.
#define ONE(name, function)                                                                                    \
    FUNCTION float gpumem_##name##_f32(float x) { return function##f(x); }                                      \
    FUNCTION double gpumem_##name##_f64(double x) { return function(x); }
#define TWO(name, function)                                                                                    \
    FUNCTION float gpumem_##name##_f32(float x, float y) { return function##f(x, y); }                          \
    FUNCTION double gpumem_##name##_f64(double x, double y) { return function(x, y); }

ONE(exp, exp)
ONE(exp2, exp2)
ONE(exp_m1, expm1)
ONE(ln, log)
ONE(asin, asin)
ONE(atan, atan)
ONE(erf, erf)
ONE(erfc, erfc)
ONE(cbrt, cbrt)
TWO(pow, pow)
TWO(hypot, hypot)
FUNCTION float gpumem_log2_f32(float x) { return log2f(x); }
FUNCTION float gpumem_acos_f32(float x) { return acosf(x); }
FUNCTION float gpumem_cosh_f32(float x) { return coshf(x); }
FUNCTION float gpumem_tanh_f32(float x) { return tanhf(x); }

// The functions above for templates.
static __device__ __forceinline__ float ln(float x) { return gpumem_ln_f32(x); }
static __device__ __forceinline__ double ln(double x) { return gpumem_ln_f64(x); }
static __device__ __forceinline__ float exp_m1(float x) { return gpumem_exp_m1_f32(x); }
static __device__ __forceinline__ double exp_m1(double x) { return gpumem_exp_m1_f64(x); }
static __device__ __forceinline__ float exponential(float x) { return gpumem_exp_f32(x); }
static __device__ __forceinline__ double exponential(double x) { return gpumem_exp_f64(x); }
static __device__ __forceinline__ float arctangent(float x) { return gpumem_atan_f32(x); }
static __device__ __forceinline__ double arctangent(double x) { return gpumem_atan_f64(x); }

// The logarithm to another base: a product with a constant of twice the digits.
FUNCTION double gpumem_log2_f64(double x) {
    const double y = gpumem_ln_f64(x);
    return fma(y, 1.4426950408889634, y * 2.0355273740931033e-17);
}
FUNCTION double gpumem_log10_f64(double x) {
    const double y = gpumem_ln_f64(x);
    return fma(y, 0.43429448190325182, y * 1.0983196502167651e-17);
}
FUNCTION float gpumem_log10_f32(float x) { return log10f(x); }

// `1 + x` is rounded, and the quotient corrects the logarithm of the rounded sum (Kahan; Goldberg 1991, theorem 4).
template <class T> __device__ T log_of_one_more(T x) {
    const T sum = 1 + x;
    if (sum == 1) return x;
    // Infinite numbers and NaN.
    return sum - sum == 0 ? ln(sum) * (x / (sum - 1)) : ln(sum);
}
FUNCTION float gpumem_ln_1p_f32(float x) { return log_of_one_more(x); }
FUNCTION double gpumem_ln_1p_f64(double x) { return log_of_one_more(x); }

// The sine and the cosine: one reduction to an eighth of a turn.
FUNCTION float gpumem_trigonometric_f32(float x, int is_cos) {
    float sin, cos;
    sincosf(x, &sin, &cos);
    return is_cos ? cos : sin;
}
FUNCTION double gpumem_trigonometric_f64(double x, int is_cos) {
    double sine, cosine;
    sincos(x, &sine, &cosine);
    return is_cos ? cosine : sine;
}
#define TRIGONOMETRIC(of, T)                                                                                   \
    FUNCTION T gpumem_sin_##of(T x) { return gpumem_trigonometric_##of(x, 0); }                                        \
    FUNCTION T gpumem_cos_##of(T x) { return gpumem_trigonometric_##of(x, 1); }                                        \
    FUNCTION T gpumem_tan_##of(T x) { return gpumem_trigonometric_##of(x, 0) / gpumem_trigonometric_##of(x, 1); }
TRIGONOMETRIC(f32, float)
TRIGONOMETRIC(f64, double)

// Beyond a half, where the difference would lose digits, by half of the angle.
FUNCTION double gpumem_acos_f64(double x) {
    const double size = fabs(x);
    const bool is_large = size > 0.5;
    const double angle = gpumem_asin_f64(is_large ? sqrt(0.5 - 0.5 * size) : x);
    if (!is_large) return 1.5707963267948966 - (angle - 6.123233995736766e-17);
    return x > 0 ? 2 * angle : 3.1415926535897931 - (2 * angle - 1.2246467991473532e-16);
}

template <class T> __device__ T angle_of(T y, T x, T half_turn) {
    const T width = fabs(x), height = fabs(y);
    const T small = fmin(width, height), large = fmax(width, height);
    if (x != x || y != y) return x + y;
    // Both are zero, or infinite.
    const T ratio = large == 0 ? 0 : small == large ? 1 : small / large;
    T angle = arctangent(ratio);
    if (height > width) angle = half_turn / 2 - angle;
    if (signbit(x)) angle = half_turn - angle;
    return copysign(angle, y);
}
FUNCTION float gpumem_atan2_f32(float y, float x) { return angle_of(y, x, 3.14159274f); }
FUNCTION double gpumem_atan2_f64(double y, double x) { return angle_of(y, x, 3.1415926535897931); }

// Of large numbers by half of the exponent, because the exponential function overflows earlier than its half.
template <class T> __device__ T hyperbolic_sine(T x) {
    const T size = fabs(x);
    T result;
    if (size > 20) {
        const T root = exponential(size / 2);
        result = root / 2 * root;
    } else {
        const T less = exp_m1(size);
        result = (less + less / (less + 1)) / 2;
    }
    return copysign(result, x);
}
FUNCTION float gpumem_sinh_f32(float x) { return hyperbolic_sine(x); }
FUNCTION double gpumem_sinh_f64(double x) { return hyperbolic_sine(x); }
FUNCTION double gpumem_cosh_f64(double x) {
    const double size = fabs(x);
    const bool is_large = size > 20;
    const double power = gpumem_exp_f64(is_large ? size / 2 : size);
    return is_large ? power / 2 * power : (power + 1 / power) / 2;
}
FUNCTION double gpumem_tanh_f64(double x) {
    const double less = gpumem_exp_m1_f64(2 * fmin(fabs(x), 22.0));
    return x != x ? x : copysign(less / (less + 2), x);
}

// The exact remainder by long division. A step's quotient has as many bits as a whole number of the type, so that the product and the
// difference are exact; a quotient that was rounded up is one too large.
template <class T> __device__ T rest(T x, T y, T digit) {
    const T by = fabs(y);
    T left = fabs(x);
    // Zero, NaN, and an infinite dividend.
    if (!(by > 0) || !(left - left == 0)) return (x * y) / (x * y);
    while (left >= by) {
        T scaled = by;
        while (left >= scaled * digit) scaled *= digit;
        left = fma(-trunc(left / scaled), scaled, left);
        if (left < 0) left += scaled;
    }
    return copysign(left, x);
}
FUNCTION float gpumem_rem_f32(float x, float y) { return rest(x, y, 4194304.0f); }
FUNCTION double gpumem_rem_f64(double x, double y) { return rest(x, y, 1125899906842624.0); }

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
FUNCTION float gpumem_powi_f32(float x, int n) { return power(x, n); }
FUNCTION double gpumem_powi_f64(double x, int n) { return power(x, n); }
