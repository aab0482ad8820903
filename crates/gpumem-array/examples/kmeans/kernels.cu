// The two steps of k-means. What gains little is neither unrolled nor inlined, so that the PTX stays short.

// The numbers of a point.
#define DIMS 8

// The nearest centroid of each point, and its squared distance. Counts the points that had another label.
extern "C" __global__ void assign(unsigned int *labels, float *distances, unsigned int *changed, const float *points,
                                  const float *centroids, unsigned int n, unsigned int k) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float point[DIMS];
    for (unsigned int d = 0; d < DIMS; d++) point[d] = points[(unsigned long long)i * DIMS + d];
    unsigned int nearest = 0;
    float least = 0.0f;
#pragma unroll 1
    for (unsigned int c = 0; c < k; c++) {
        float distance = 0.0f;
        for (unsigned int d = 0; d < DIMS; d++) {
            float difference = point[d] - centroids[c * DIMS + d];
            distance += difference * difference;
        }
        if (c == 0 || distance < least) {
            nearest = c;
            least = distance;
        }
    }
    if (labels[i] != nearest) atomicAdd(changed, 1u);
    labels[i] = nearest;
    distances[i] = least;
}

// Sums over the block, whose size is a power of two; the result is that of every thread.
static __noinline__ __device__ double block_sum(double value, double *shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
#pragma unroll 1
    for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    double sum = shared[0];
    __syncthreads();
    return sum;
}

// Moves each centroid to the mean of the points with its label, one block for a centroid. One without points stays.
extern "C" __global__ void update(float *centroids, const float *points, const unsigned int *labels, unsigned int n) {
    extern __shared__ double shared[];
    unsigned int label = blockIdx.x;
    double count = 0.0, sums[DIMS] = {};
#pragma unroll 1
    for (unsigned int i = threadIdx.x; i < n; i += blockDim.x) {
        if (labels[i] != label) continue;
        count += 1.0;
        for (unsigned int d = 0; d < DIMS; d++) sums[d] += points[(unsigned long long)i * DIMS + d];
    }
    count = block_sum(count, shared);
    for (unsigned int d = 0; d < DIMS; d++) {
        double sum = block_sum(sums[d], shared);
        if (threadIdx.x == 0 && count > 0.0) centroids[label * DIMS + d] = (float)(sum / count);
    }
}
