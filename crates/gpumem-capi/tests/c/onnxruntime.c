/* The three functions that ONNX Runtime's CUDA provider takes, called with its signatures. */

#include "common.h"

#include <pthread.h>

static gpumem_pool *pool;
static gpumem_stream *stream;

/* gpu_external_alloc */
static void *external_alloc(size_t size) {
    void *address = NULL;
    if (gpumem_alloc(pool, size, stream, &address) != GPUMEM_SUCCESS) {
        /* ONNX Runtime reports only that there is no memory. */
        fprintf(stderr, "%s\n", gpumem_last_error());
        return NULL;
    }
    return address;
}

/* gpu_external_free */
static void external_free(void *address) { gpumem_free(address); }

/* gpu_external_empty_cache */
static void external_empty_cache(void) { gpumem_pool_trim(pool, 0, NULL); }

static void *session(void *options) {
    void *(*alloc)(size_t) = external_alloc;
    void (*release)(void *) = external_free;
    int round;
    for (round = 0; round < 100; round += 1) {
        void *first = alloc(MIB * (size_t)(1 + round % 3)), *second = alloc(4096);
        CHECK(first != NULL && second != NULL && first != second);
        release(first);
        release(second);
    }
    return options;
}

int main(void) {
    pthread_t threads[4];
    size_t thread;
    void *raw = NULL;
    struct driver cuda;
    pool = create(NULL, 256 * MIB);
    cuda = open_driver();
    /* The session's stream: every kernel of it runs there. */
    CHECK(cuda.stream_create(&raw, 1) == 0);
    OK(gpumem_stream_long_lived(pool, raw, &stream));
    for (thread = 0; thread < 4; thread += 1) CHECK(pthread_create(&threads[thread], NULL, session, NULL) == 0);
    for (thread = 0; thread < 4; thread += 1) CHECK(pthread_join(threads[thread], NULL) == 0);
    CHECK(status_of(pool).in_use_bytes == 0);
    external_empty_cache();
    CHECK(status_of(pool).reserved_bytes <= 64 * MIB);
    CHECK(external_alloc((size_t)512 * MIB) == NULL);
    OK(gpumem_stream_retire(stream));
    OK(gpumem_stream_destroy(stream));
    CHECK(cuda.stream_destroy(raw) == 0);
    OK(gpumem_pool_destroy(pool));
    puts("onnxruntime: ok");
    return 0;
}
