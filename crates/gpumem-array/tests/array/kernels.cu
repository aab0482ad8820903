// Kernels of the tests of launches. `wild` leaves its array on purpose.

typedef unsigned long long u64;

extern "C" __global__ void axpy(float *y, float a, const float *x, u64 n) {
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}

extern "C" __global__ void ramp(float *y, u64 n) {
    u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    if (i < n) y[i] = i;
}

extern "C" __global__ void wild(char *y) { y[1ull << 40] = 1; }

extern "C" __global__ void many(
    u64 *a0, u64 *a1, u64 *a2, u64 *a3, u64 *a4, u64 *a5, u64 *a6, u64 *a7,
    u64 v0, u64 v1, u64 v2, u64 v3, u64 v4, u64 v5, u64 v6, u64 v7
) {
    *a0 = v0; *a1 = v1; *a2 = v2; *a3 = v3; *a4 = v4; *a5 = v5; *a6 = v6; *a7 = v7;
}

__device__ unsigned count;

// Its module's variable is no array of the launch.
extern "C" __global__ void counted(unsigned *y) { *y = atomicAdd(&count, 1); }
