// What a training step needs beyond products: the residual with its sums, and Adam's update.

// Sums over the block; the result is the first thread's. `lanes` has a place for each of its warps.
__device__ float block_sum(float value, float *lanes) {
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_down_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) lanes[threadIdx.x / 32] = value;
    __syncthreads();
    value = threadIdx.x < blockDim.x / 32 ? lanes[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32)
        for (int offset = 16; offset > 0; offset /= 2)
            value += __shfl_down_sync(0xffffffffu, value, offset);
    return value;
}

// prediction += bias - target, in place; its sum goes to bias_sum[0], the sum of its squares is added to
// losses[epoch]. One block of whole warps, so that the sums have one order and need no second launch.
extern "C" __global__ void residual(float *prediction, const float *target, const float *bias, float *bias_sum,
                                    double *losses, unsigned int epoch, unsigned int rows) {
    __shared__ float lanes[2][32];
    float sum = 0.0f, squares = 0.0f;
    for (unsigned int row = threadIdx.x; row < rows; row += blockDim.x) {
        float value = prediction[row] + bias[0] - target[row];
        prediction[row] = value;
        sum += value;
        squares += value * value;
    }
    sum = block_sum(sum, lanes[0]);
    squares = block_sum(squares, lanes[1]);
    if (threadIdx.x == 0) {
        bias_sum[0] = sum;
        losses[epoch] += squares;
    }
}

// One Adam step for all parameters: thread `columns` takes the bias, the others a weight each. The gradient is
// `scale` times the sums. `moments` holds the running means of the gradient, then those of its square.
extern "C" __global__ void adam(float *weight, float *bias, float *moments, const float *weight_sum,
                                const float *bias_sum, unsigned int columns, float scale, float beta1, float beta2,
                                float rate, float root_correction, float epsilon) {
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > columns) return;
    float *value = i < columns ? weight + i : bias;
    float gradient = scale * (i < columns ? weight_sum[i] : bias_sum[0]);
    float mean = beta1 * moments[i] + (1.0f - beta1) * gradient;
    float square = beta2 * moments[columns + 1 + i] + (1.0f - beta2) * gradient * gradient;
    moments[i] = mean;
    moments[columns + 1 + i] = square;
    *value -= rate * mean / (sqrtf(square) * root_correction + epsilon);
}
