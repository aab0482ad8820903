// Many small arrays filled from one buffer of pinned memory, which the device reads in place.

typedef unsigned long long u64;

// Where a part goes, where it begins in the buffer, and its size, all in bytes. Parts begin at multiples of 16 in the buffer.
struct Part {
    u64 to, start, size_bytes;
};

// The buffer begins with the table of its parts.
extern "C" __global__ void gpumem_unpack(const char *buffer, u64 count) {
    const Part *parts = reinterpret_cast<const Part *>(buffer);
    for (u64 i = blockIdx.x; i < count; i += gridDim.x) {
        const Part part = parts[i];
        char *to = reinterpret_cast<char *>(part.to);
        const char *from = buffer + part.start;
        const u64 wide = (part.to & 15) == 0 ? part.size_bytes / 16 : 0;
        for (u64 k = threadIdx.x; k < wide; k += blockDim.x)
            reinterpret_cast<uint4 *>(to)[k] = reinterpret_cast<const uint4 *>(from)[k];
        for (u64 k = wide * 16 + threadIdx.x; k < part.size_bytes; k += blockDim.x) to[k] = from[k];
    }
}
