// Products of large matrices of `float`: four times the tile, so each loaded element is used twice as often.

#include "product.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    gpumem_product_wide(float *out, const float *a, const float *b, u64 m, u64 n, u64 k, u64 k_part, u64 batch_count,
                        i64 a_row, i64 a_k, i64 b_k, i64 b_column, const Batches batches) {
    product<float, 128>(out, a, b, m, n, k, k_part, batch_count, a_row, a_k, b_k, b_column, batches);
}
