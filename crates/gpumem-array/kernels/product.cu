// Products of matrices, for each ELEMENT_SUFFIX.

#include "product.cuh"

ENTRY_OF(THREADS, product)
(Element *out, const Element *a, const Element *b, u64 m, u64 n, u64 k, u64 k_part, u64 batch_count, i64 a_row, i64 a_k,
 i64 b_k, i64 b_column, const Batches batches) {
    product<Element, 64>(out, a, b, m, n, k, k_part, batch_count, a_row, a_k, b_k, b_column, batches);
}
