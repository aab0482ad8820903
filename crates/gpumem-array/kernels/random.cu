// Random numbers by counting: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11).
//
// Block i of a stream is four words that depend only on the seed, the stream and i, so every thread computes its own. Floats
// are made with operations that IEEE 754 defines to the last bit, never contracted (`__fmul_rn` and the like), so that every GPU and
// the simulator give the same numbers.

#include "common.cuh"

typedef long long i64;

struct Words {
    unsigned word[4];
    __device__ u64 pair(unsigned k) const { return word[2 * k] | (u64)word[2 * k + 1] << 32; }
    __device__ void set_pair(unsigned k, u64 bits) { word[2 * k] = (unsigned)bits, word[2 * k + 1] = (unsigned)(bits >> 32); }
};

__device__ Words philox(u64 seed, u64 stream, u64 block) {
    unsigned c0 = (unsigned)block, c1 = (unsigned)(block >> 32), c2 = (unsigned)stream, c3 = (unsigned)(stream >> 32);
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
#pragma unroll
    for (unsigned round = 0; round < 10; round++) {
        const u64 a = (u64)0xD2511F53u * c0, b = (u64)0xCD9E8D57u * c2;
        c0 = (unsigned)(b >> 32) ^ c1 ^ k0;
        c2 = (unsigned)(a >> 32) ^ c3 ^ k1;
        c1 = (unsigned)b;
        c3 = (unsigned)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

// Arithmetic without contraction.
__device__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ double times(double a, double b) { return __dmul_rn(a, b); }
__device__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ float over(float a, float b) { return __fdiv_rn(a, b); }
__device__ double over(double a, double b) { return __ddiv_rn(a, b); }
__device__ float root(float a) { return __fsqrt_rn(a); }
__device__ double root(double a) { return __dsqrt_rn(a); }

// c[0] + c[1]·x + c[2]·x² + …
template <class T, unsigned N> __device__ T polynomial(const T (&c)[N], T x) {
    T sum = c[N - 1];
#pragma unroll
    for (int k = N - 2; k >= 0; k--) sum = plus(times(sum, x), c[k]);
    return sum;
}

// A float as exponent and mantissa, the mantissa between √½ and √2.
__device__ void split(float u, float &exponent, float &mantissa) {
    const unsigned bits = __float_as_uint(u) - 0x3F3504F3u;
    exponent = (float)((int)bits >> 23);
    mantissa = __uint_as_float((bits & 0x007FFFFFu) + 0x3F3504F3u);
}
__device__ void split(double u, double &exponent, double &mantissa) {
    const u64 bits = (u64)__double_as_longlong(u) - 0x3FE6A09E667F3BCDull;
    exponent = (double)((i64)bits >> 52);
    mantissa = __longlong_as_double((i64)((bits & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull));
}

// The series of ln, sin and cos, long enough for the precision of the type.
template <class T> struct Series;
template <> struct Series<float> {
    static __device__ float log(float square) {
        const float c[] = {2.0f, 2.0f / 3, 2.0f / 5, 2.0f / 7, 2.0f / 9};
        return polynomial(c, square);
    }
    static __device__ float sin(float square) {
        const float c[] = {1.0f, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880};
        return polynomial(c, square);
    }
    static __device__ float cos(float square) {
        const float c[] = {1.0f, -0.5f, 1.0f / 24, -1.0f / 720, 1.0f / 40320, -1.0f / 3628800};
        return polynomial(c, square);
    }
    static __device__ float ln2() { return 0.69314718f; }
};
template <> struct Series<double> {
    static __device__ double log(double square) {
        const double c[] = {2.0,      2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9, 2.0 / 11,
                            2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
        return polynomial(c, square);
    }
    static __device__ double sin(double square) {
        const double c[] = {1.0,            -1.0 / 6,         1.0 / 120,            -1.0 / 5040,        1.0 / 362880,
                            -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
        return polynomial(c, square);
    }
    static __device__ double cos(double square) {
        const double c[] = {1.0,           -0.5,            1.0 / 24,          -1.0 / 720,          1.0 / 40320,
                            -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
        return polynomial(c, square);
    }
    static __device__ double ln2() { return 0.6931471805599453; }
};

template <class T> __device__ T ln(T u) {
    T exponent, m;
    split(u, exponent, m);
    const T s = over(plus(m, T(-1)), plus(m, T(1)));
    return plus(times(exponent, Series<T>::ln2()), times(s, Series<T>::log(times(s, s))));
}

// Two independent normals by Box and Muller: a radius from `u` in (0, 1], and an angle of `quarters` quarter turns and `rest`,
// which is at most an eighth of a turn.
template <class T> __device__ void normals(T u, unsigned quarters, T rest, T &first, T &second) {
    const T radius = root(times(T(-2), ln(u)));
    const T square = times(rest, rest);
    const T sin = times(rest, Series<T>::sin(square)), cos = Series<T>::cos(square);
    const T x = quarters & 1 ? -sin : cos, y = quarters & 1 ? cos : sin;
    first = times(radius, quarters & 2 ? -x : x);
    second = times(radius, quarters & 2 ? -y : y);
}

// Values of `kind`; the other one is that of `normal_f64`.
const u64 INTEGERS = 0, UNIFORM_F32 = 1, UNIFORM_F64 = 2, NORMAL_F32 = 3;

// The elements that one block of words becomes, as bits. Integers are the words.
__device__ void uniform_f32(Words &w) {
#pragma unroll
    for (unsigned k = 0; k < 4; k++) w.word[k] = __float_as_uint(times((float)(w.word[k] >> 8), 1.0f / 16777216));
}
__device__ void uniform_f64(Words &w) {
#pragma unroll
    for (unsigned k = 0; k < 2; k++)
        w.set_pair(k, __double_as_longlong(times((double)(w.pair(k) >> 11), 1.0 / 9007199254740992)));
}
__device__ void normal_f32(Words &w) {
#pragma unroll
    for (unsigned k = 0; k < 4; k += 2) {
        // The centre of an interval, so never zero.
        const float u = plus(times(__uint2float_rn(w.word[k]), 1.0f / 4294967296), 0.5f / 4294967296);
        const unsigned angle = w.word[k + 1], quarters = (angle + 0x20000000u) >> 30;
        const float rest = times(__int2float_rn((int)(angle - (quarters << 30))), 1.4629180792671596e-9f);
        float first, second;
        normals(u, quarters, rest, first, second);
        w.word[k] = __float_as_uint(first), w.word[k + 1] = __float_as_uint(second);
    }
}
__device__ void normal_f64(Words &w) {
    const double u = times(plus(__ull2double_rn(w.pair(0) >> 11), 0.5), 1.0 / 9007199254740992);
    const u64 angle = w.pair(1), quarters = (angle + 0x2000000000000000ull) >> 62;
    const double rest = times(__ll2double_rn((i64)(angle - (quarters << 62))), 3.4061215800865545e-19);
    double first, second;
    normals(u, (unsigned)quarters, rest, first, second);
    w.set_pair(0, __double_as_longlong(first)), w.set_pair(1, __double_as_longlong(second));
}

// `out` has `n` words and is aligned to 16 bytes. The last words of the last block may have no place.
extern "C" __global__ void gpumem_random(unsigned *out, u64 n, u64 seed, u64 stream, u64 first, u64 kind) {
    const u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x, threads = gridDim.x * (u64)blockDim.x;
#pragma unroll 1
    for (u64 i = thread; i * 4 < n; i += threads) {
        Words words = philox(seed, stream, first + i);
        const u64 of = unknown(kind);
        if (of != INTEGERS) {
            if (of == UNIFORM_F32) uniform_f32(words);
            else if (of == UNIFORM_F64) uniform_f64(words);
            else if (of == NORMAL_F32) normal_f32(words);
            else normal_f64(words);
        }
        if (i * 4 + 4 <= n) {
            Pack<unsigned> pack;
#pragma unroll
            for (unsigned k = 0; k < 4; k++) pack.lane[k] = words.word[k];
            reinterpret_cast<Pack<unsigned> *>(out)[i] = pack;
        } else {
#pragma unroll
            for (unsigned k = 0; k < 4; k++)
                if (i * 4 + k < n) out[i * 4 + k] = words.word[k];
        }
    }
}
