// What cuBLAS and cuRAND do for candle.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// The same in blas.rs. Matrices are stored by columns.
struct Product {
    const void *a, *b;
    void *c;
    long long a_stride, b_stride, c_stride;
    double alpha, beta;
    int rows, columns, depth;
    int a_leading, b_leading, c_leading;
    int a_is_transposed, b_is_transposed;
};

__device__ float number(float value) { return value; }
__device__ double number(double value) { return value; }
__device__ float number(__half value) { return __half2float(value); }
__device__ float number(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ void store(float *place, float value) { *place = value; }
__device__ void store(double *place, double value) { *place = value; }
__device__ void store(__half *place, float value) { *place = __float2half_rn(value); }
__device__ void store(__nv_bfloat16 *place, float value) { *place = __float2bfloat16_rn(value); }

// A thread for each element of C, and a layer of blocks for each matrix of the batch.
template <typename T, typename Sum> __device__ void product(const Product &p) {
    int row = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= p.rows || column >= p.columns) return;
    const T *a = (const T *)p.a + blockIdx.z * p.a_stride, *b = (const T *)p.b + blockIdx.z * p.b_stride;
    T *c = (T *)p.c + blockIdx.z * p.c_stride + row + (long long)column * p.c_leading;
    long long a_step = p.a_is_transposed ? 1 : p.a_leading, b_step = p.b_is_transposed ? p.b_leading : 1;
    a += p.a_is_transposed ? (long long)row * p.a_leading : row;
    b += p.b_is_transposed ? column : (long long)column * p.b_leading;
    Sum sum = 0;
    for (int i = 0; i < p.depth; ++i) sum += (Sum)number(a[i * a_step]) * (Sum)number(b[i * b_step]);
    sum *= (Sum)p.alpha;
    // C need not be initialised if beta is zero.
    if (p.beta != 0) sum += (Sum)p.beta * (Sum)number(*c);
    store(c, sum);
}

extern "C" __global__ void product_f32(Product p) { product<float, float>(p); }
extern "C" __global__ void product_f64(Product p) { product<double, double>(p); }
extern "C" __global__ void product_f16(Product p) { product<__half, float>(p); }
extern "C" __global__ void product_bf16(Product p) { product<__nv_bfloat16, float>(p); }

// splitmix64 of a counter.
__device__ unsigned long long bits(unsigned long long seed, unsigned long long counter) {
    unsigned long long mixed = seed + (counter + 1) * 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    return mixed ^ (mixed >> 31);
}

// Above zero, and at most one.
__device__ double uniform(unsigned long long seed, unsigned long long counter) {
    return ((bits(seed, counter) >> 11) + 1) * 0x1p-53;
}

// In 24 bits, because rounding 53 of them might give zero a neighbour that is no multiple.
__device__ float uniform_of_float(unsigned long long seed, unsigned long long counter) {
    return ((bits(seed, counter) >> 40) + 1) * 0x1p-24f;
}

__device__ double normal(unsigned long long seed, unsigned long long counter) {
    double radius = sqrt(-2 * log(uniform(seed, 2 * counter)));
    return radius * cospi(2 * uniform(seed, 2 * counter + 1));
}

#define FILL(NAME, T, VALUE)                                                                                                     \
    extern "C" __global__ void NAME(T *output, unsigned long long count, unsigned long long seed, unsigned long long offset,     \
                                    double mean, double deviation) {                                                             \
        unsigned long long index = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;                                    \
        if (index < count) output[index] = (T)(VALUE(seed, offset + index) * deviation + mean);                                  \
    }

FILL(uniform_f32, float, uniform_of_float)
FILL(uniform_f64, double, uniform)
FILL(normal_f32, float, normal)
FILL(normal_f64, double, normal)
