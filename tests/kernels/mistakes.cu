// Kernels with one mistake each, and the same kernels without it. The mistake is in the line that ends in its name as a comment, or
// between two such lines.
// Compile with --generate-line-info: findings name that line. Asynchronous copies need --gpu-architecture=compute_80.
//
// Unless the table of the tests says otherwise: `a` and `b` have `n` numbers, 4 blocks of 64 threads run, and n is 256.

template <bool WRONG> static __device__ void overrun(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (WRONG ? i <= n : i < n)
        b[i] = 2 * a[0]; // overrun
}

template <bool WRONG> static __device__ void underrun(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int left = WRONG || i > 0 ? i - 1 : 0;
    if (i < n)
        b[left] = 7; // underrun
}

template <bool WRONG> static __device__ void neighbour(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < (WRONG ? n : n - 1))
        b[i] = a[i + 1]; // neighbour
}

template <bool WRONG> static __device__ void grid(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (WRONG || i < n)
        b[i] = i; // grid
}

template <bool WRONG> static __device__ void vector_of_two(int *a, int *b, int n) {
    const int i = threadIdx.x;
    int2 *pairs = (int2 *)(b + (WRONG ? 1 : 2));
    pairs[i] = make_int2(i, i); // vector_of_two
}

template <bool WRONG> static __device__ void vector_of_four(int *a, int *b, int n) {
    const int4 *fours = (const int4 *)(a + (WRONG ? 2 : 4));
    const int4 four = fours[threadIdx.x % 8]; // vector_of_four
    b[blockIdx.x * blockDim.x + threadIdx.x] = four.x + four.y + four.z + four.w;
}

template <bool WRONG> static __device__ void scalar(int *a, int *b, int n) {
    const char *bytes = (const char *)a + (WRONG ? 1 : 4);
    const int value = *(const int *)bytes; // scalar
    b[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

template <bool WRONG> static __device__ void shared_overrun(int *a, int *b, int n) {
    __shared__ int tile[64];
    const int i = threadIdx.x + (WRONG ? 1 : 0);
    ((volatile int *)tile)[i] = i; // shared_overrun
    __syncthreads();
    b[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x > 0 ? threadIdx.x : 1];
}

// The launch gives 256 bytes.
template <bool WRONG> static __device__ void dynamic_overrun(int *a, int *b, int n) {
    extern __shared__ int room[];
    room[threadIdx.x + (WRONG ? 32 : 0)] = threadIdx.x; // dynamic_overrun
    __syncthreads();
    b[blockIdx.x * blockDim.x + threadIdx.x] = room[WRONG ? 32 : 0];
}

template <bool WRONG> static __device__ void shared_underrun(int *a, int *b, int n) {
    __shared__ int line[64];
    line[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    const int left = WRONG ? (int)threadIdx.x - 1 : max((int)threadIdx.x - 1, 0);
    const int value = ((volatile int *)line)[left]; // shared_underrun
    b[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

template <bool WRONG> static __device__ void local_overrun(int *a, int *b, int n) {
    volatile int list[8];
    for (int k = 0; k < 8; ++k) list[k] = k;
    const int at = a[threadIdx.x] % 8 + (WRONG ? 64 : 0);
    list[at] = 5; // local_overrun
    b[blockIdx.x * blockDim.x + threadIdx.x] = list[threadIdx.x % 8];
}

template <bool WRONG> static __device__ void null_pointer(int *a, int *b, int n) {
    int *to = WRONG ? (int *)(unsigned long long)a[0] : b;
    to[threadIdx.x] = 1; // null_pointer
}

template <bool WRONG> static __device__ void wild_pointer(int *a, int *b, int n) {
    int *to = (int *)((unsigned long long)b ^ (WRONG ? 1ull << 44 : 0));
    to[threadIdx.x] = 1; // wild_pointer
}

// The caller frees b before the launch of the wrong one.
template <bool WRONG> static __device__ void freed(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    b[i] = a[i]; // freed
}

// In the wrong launch, a is host memory that is registered for reading only.
template <bool WRONG> static __device__ void read_only(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    (WRONG ? a : b)[i] = i; // read_only
}

template <bool WRONG> static __device__ void index_overflow(int *a, int *b, int n) {
    // 2^31 is no int.
    const int far = (a[1] << 30) * (WRONG ? 2 : 0);
    b[far + (int)threadIdx.x] = 3; // index_overflow
}

template <bool WRONG> static __device__ void chunk(int *a, int *b, int n) {
    const int per_thread = 4, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < per_thread + (WRONG ? 1 : 0); ++k)
        if (i < n / per_thread) b[i * per_thread + k] = k; // chunk
}

// A matrix of 8 rows of 32.
template <bool WRONG> static __device__ void axes(int *a, int *b, int n) {
    const int row = threadIdx.x / 32 + 2 * blockIdx.x, column = threadIdx.x % 32;
    const int at = WRONG ? column * 32 + row : row * 32 + column;
    b[at] = a[row * 32 + column]; // axes
}

// Rows of 64 bytes, of which the step is given in bytes.
template <bool WRONG> static __device__ void pitch(int *a, int *b, int n) {
    const int step_bytes = 64, row = threadIdx.x / 16 + 4 * blockIdx.x;
    int *start = WRONG ? b + row * step_bytes : (int *)((char *)b + row * step_bytes);
    start[threadIdx.x % 16] = row; // pitch
}

template <bool WRONG> static __device__ void histogram(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int bin = WRONG ? a[i] + 1 : a[i];
    atomicAdd(&b[bin], 1); // histogram
}

template <bool WRONG> static __device__ void missing_barrier(int *a, int *b, int n) {
    __shared__ int tile[64];
    tile[threadIdx.x] = a[threadIdx.x]; // missing_barrier
    if (!WRONG) __syncthreads();
    b[blockIdx.x * blockDim.x + threadIdx.x] = tile[63 - threadIdx.x]; // missing_barrier
}

template <bool WRONG> static __device__ void missing_second_barrier(int *a, int *b, int n) {
    __shared__ int tile[64];
    int sum = 0;
    for (int k = 0; k < 4; ++k) {
        tile[threadIdx.x] = a[64 * k + threadIdx.x]; // missing_second_barrier
        __syncthreads();
        sum += tile[63 - threadIdx.x]; // missing_second_barrier
        if (!WRONG) __syncthreads();
    }
    b[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

template <bool WRONG> static __device__ void divergent_barrier(int *a, int *b, int n) {
    __shared__ volatile int total;
    if (threadIdx.x == 0) total = 0;
    if (threadIdx.x < 16 || !WRONG) {
        __syncthreads(); // divergent_barrier
    } else {
        b[threadIdx.x] = 1;
    }
    if (threadIdx.x == 0) b[blockIdx.x] = total;
}

template <bool WRONG> static __device__ void other_barrier(int *a, int *b, int n) {
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;"); // other_barrier
    else if (WRONG)
        asm volatile("bar.sync 2, 64;");
    else
        asm volatile("bar.sync 1, 64;");
    b[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

template <bool WRONG> static __device__ void barrier_count(int *a, int *b, int n) {
    if (WRONG)
        asm volatile("bar.sync 3, 96;"); // barrier_count
    else
        asm volatile("bar.sync 3, 64;");
    b[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

template <bool WRONG> static __device__ void missing_syncwarp(int *a, int *b, int n) {
    __shared__ int tile[64];
    const int lane = threadIdx.x % 32, first = threadIdx.x - lane;
    tile[threadIdx.x] = a[threadIdx.x]; // missing_syncwarp
    if (!WRONG) __syncwarp();
    b[blockIdx.x * blockDim.x + threadIdx.x] = tile[first + (lane + 1) % 32]; // missing_syncwarp
}

template <bool WRONG> static __device__ void shuffle_mask(int *a, int *b, int n) {
    int value = a[threadIdx.x];
    if (threadIdx.x % 32 < 16) {
        value += __shfl_xor_sync(WRONG ? 0xffffffffu : 0xffffu, value, 1); // shuffle_mask
    } else {
        __syncwarp(WRONG ? 0xffffffffu : 0xffff0000u); // shuffle_mask
    }
    b[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

template <bool WRONG> static __device__ void one_place(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    b[WRONG ? 0 : i] = i; // one_place
}

template <bool WRONG> static __device__ void shared_counter(int *a, int *b, int n) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (WRONG)
        count += 1; // shared_counter
    else
        atomicAdd(&count, 1);
    __syncthreads();
    if (threadIdx.x == 0) b[blockIdx.x] = count;
}

template <bool WRONG> static __device__ void between_warps(int *a, int *b, int n) {
    __shared__ int sums[2];
    int sum = a[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = sum; // between_warps
    if (!WRONG) __syncthreads();
    if (threadIdx.x == 0) b[blockIdx.x] = sums[0] + sums[1]; // between_warps
}

template <bool WRONG> static __device__ void between_blocks(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    b[i] = a[i]; // between_blocks
    if (WRONG)
        a[i] = b[(i + 64) % 256]; // between_blocks
}

// The last block to arrive sums what the others have left in b.
template <bool WRONG> static __device__ void missing_fence(int *a, int *b, int n) {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        b[1 + blockIdx.x] = a[blockIdx.x]; // missing_fence
        if (!WRONG) __threadfence();
        is_last = atomicAdd(&b[0], 1) == (int)gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x < gridDim.x)
        b[8 + threadIdx.x] = b[1 + threadIdx.x]; // missing_fence
}

template <bool WRONG> static __device__ void in_place(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int left = i > 0 ? a[i - 1] : 0; // in_place
    const int right = i < n - 1 ? a[i + 1] : 0; // in_place
    (WRONG ? a : b)[i] = left + right + 1; // in_place
}

template <bool WRONG> static __device__ void transposed(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / 16, column = i % 16;
    if (WRONG)
        a[i] = a[column * 16 + row] + 1; // transposed
    else
        b[i] = a[column * 16 + row] + 1;
}

// A lock that a fence does not order.
template <bool WRONG> static __device__ void lock(int *a, int *b, int n) {
    if (threadIdx.x == 0) {
        while (atomicCAS(&b[0], 0, 1) != 0) {}
        if (!WRONG) __threadfence();
        b[1] += 1; // lock
        if (!WRONG) __threadfence();
        atomicExch(&b[0], 0);
    }
}

// The blocks count together.
template <bool WRONG> static __device__ void block_atomic(int *a, int *b, int n) {
    if (WRONG)
        atomicAdd_block(&b[0], 1); // block_atomic
    else
        atomicAdd(&b[0], 1);
}

// As missing_fence, with a fence that counts for the own block alone.
template <bool WRONG> static __device__ void block_fence(int *a, int *b, int n) {
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        b[1 + blockIdx.x] = a[blockIdx.x]; // block_fence
        if (WRONG)
            __threadfence_block();
        else
            __threadfence();
        is_last = atomicAdd(&b[0], 1) == (int)gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && threadIdx.x < gridDim.x)
        b[8 + threadIdx.x] = b[1 + threadIdx.x]; // block_fence
}

// One block publishes a number, and the others read it. The writer has a fence, and the readers need one.
template <bool WRONG> static __device__ void reader_fence(int *a, int *b, int n) {
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        b[1] = a[5]; // reader_fence
        __threadfence();
        atomicExch(&b[0], 1);
    } else {
        while (atomicAdd(&b[0], 0) == 0) {}
        if (!WRONG) __threadfence();
        b[8 + blockIdx.x] = b[1]; // reader_fence
    }
}

static __device__ void copy_async(int *to, const int *from) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}

template <bool WRONG> static __device__ void copy_wait(int *a, int *b, int n) {
    __shared__ int tile[64];
    copy_async(&tile[threadIdx.x], &a[threadIdx.x]);
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (!WRONG) asm volatile("cp.async.wait_group 0;" ::: "memory");
    b[blockIdx.x * blockDim.x + threadIdx.x] = tile[threadIdx.x]; // copy_wait
}

// Of two groups, the first one is wanted, and then both. Other threads need a barrier behind the wait.
template <bool WRONG> static __device__ void copy_barrier(int *a, int *b, int n) {
    __shared__ int tile[2][64];
    for (int k = 0; k < 2; ++k) {
        copy_async(&tile[k][threadIdx.x], &a[64 * k + threadIdx.x]);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    int sum = tile[0][threadIdx.x];
    if (WRONG) __syncthreads();
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (!WRONG) __syncthreads();
    sum += tile[1][63 - threadIdx.x]; // copy_barrier
    b[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// The mask has 16 lanes, and the source is another one.
template <bool WRONG> static __device__ void shuffle_lane(int *a, int *b, int n) {
    int value = a[threadIdx.x];
    if (threadIdx.x % 32 < 16)
        value += __shfl_xor_sync(0xffffu, value, WRONG ? 16 : 8); // shuffle_lane
    b[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// A sum of 16 lanes: in the last steps, lanes take values that do not take part, and the first one takes none of them.
template <bool WRONG> static __device__ void shuffle_sum(int *a, int *b, int n) {
    if (threadIdx.x % 32 >= 16) return;
    int sum = a[threadIdx.x];
    for (int step = WRONG ? 16 : 8; step > 0; step /= 2)
        sum += __shfl_down_sync(0xffffu, sum, step); // shuffle_sum
    if (threadIdx.x % 32 == 0) b[2 * blockIdx.x + threadIdx.x / 32] = sum;
}

template <bool WRONG> static __device__ void unwritten_shared(int *a, int *b, int n) {
    __shared__ int tile[64];
    if (threadIdx.x < (WRONG ? 63 : 64)) tile[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    b[blockIdx.x * blockDim.x + threadIdx.x] = tile[63 - threadIdx.x]; // unwritten_shared
}

template <bool WRONG> static __device__ void unwritten_local(int *a, int *b, int n) {
    volatile int list[8];
    for (int k = WRONG ? 1 : 0; k < 8; ++k) list[k] = k;
    const int value = list[a[threadIdx.x] % 8]; // unwritten_local
    b[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// Nobody has written b.
template <bool WRONG> static __device__ void unwritten_global(int *a, int *b, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (!WRONG) b[i] = 0;
    b[i] += a[i]; // unwritten_global
}

// Nobody has written b, and the kernel writes all but its ends.
template <bool WRONG> static __device__ void halo(int *a, int *b, int n) {
    const int i = threadIdx.x;
    if (WRONG ? i > 0 && i < 63 : true) b[i] = a[i];
    __syncthreads();
    if (i > 0 && i < 63 && blockIdx.x == 0)
        a[i] = b[i - 1] + b[i + 1]; // halo
}

template <bool WRONG> static __device__ void assertion(int *a, int *b, int n) {
    assert(!WRONG || a[threadIdx.x] != 40); // assertion
    b[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

template <bool WRONG> static __device__ void trapped(int *a, int *b, int n) {
    if (WRONG && a[threadIdx.x] == 9)
        __trap(); // trapped
    b[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

static __device__ int twice(int value) { return 2 * value; }
static __device__ int half(int value) { return value / 2; }
typedef int (*Function)(int);

template <bool WRONG> static __device__ void wild_call(int *a, int *b, int n) {
    Function volatile functions[2] = {twice, half};
    Function called = functions[a[threadIdx.x] & 1];
    if (WRONG) called = (Function)((unsigned long long)a[2] << 40);
    b[blockIdx.x * blockDim.x + threadIdx.x] = called(threadIdx.x); // wild_call
}

static __device__ __noinline__ int deep(const int *a, int depth) {
    volatile int list[8];
    list[depth % 8] = depth;
    if (depth <= a[0]) return list[depth % 8];
    return deep(a, depth - 1) + list[depth % 8]; // stack
}

template <bool WRONG> static __device__ void stack(int *a, int *b, int n) {
    b[blockIdx.x * blockDim.x + threadIdx.x] = deep(a, WRONG ? 1000000 : 4);
}

#define KERNELS(NAME)                                                                                       \
    extern "C" __global__ void NAME##_wrong(int *a, int *b, int n) { NAME<true>(a, b, n); }                 \
    extern "C" __global__ void NAME##_right(int *a, int *b, int n) { NAME<false>(a, b, n); }

KERNELS(overrun)
KERNELS(underrun)
KERNELS(neighbour)
KERNELS(grid)
KERNELS(vector_of_two)
KERNELS(vector_of_four)
KERNELS(scalar)
KERNELS(shared_overrun)
KERNELS(dynamic_overrun)
KERNELS(shared_underrun)
KERNELS(local_overrun)
KERNELS(null_pointer)
KERNELS(wild_pointer)
KERNELS(freed)
KERNELS(read_only)
KERNELS(index_overflow)
KERNELS(chunk)
KERNELS(axes)
KERNELS(pitch)
KERNELS(histogram)
KERNELS(missing_barrier)
KERNELS(missing_second_barrier)
KERNELS(divergent_barrier)
KERNELS(other_barrier)
KERNELS(barrier_count)
KERNELS(missing_syncwarp)
KERNELS(shuffle_mask)
KERNELS(one_place)
KERNELS(shared_counter)
KERNELS(between_warps)
KERNELS(between_blocks)
KERNELS(missing_fence)
KERNELS(in_place)
KERNELS(transposed)
KERNELS(lock)
KERNELS(block_atomic)
KERNELS(block_fence)
KERNELS(reader_fence)
KERNELS(copy_wait)
KERNELS(copy_barrier)
KERNELS(shuffle_lane)
KERNELS(shuffle_sum)
KERNELS(unwritten_shared)
KERNELS(unwritten_local)
KERNELS(unwritten_global)
KERNELS(halo)
KERNELS(assertion)
KERNELS(trapped)
KERNELS(wild_call)
KERNELS(stack)
