// Every element of a range set to one value of 8 bytes. Narrower values go through the driver's own memset.

typedef unsigned long long u64;

extern "C" __global__ void gpumem_fill_u64(u64 *out, u64 value, u64 n) {
    const u64 thread = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    for (u64 i = thread; i < n; i += gridDim.x * (u64)blockDim.x) out[i] = value;
}
