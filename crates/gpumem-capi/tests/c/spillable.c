/* Memory that moves to the host between its uses. */

#include "common.h"

#include <pthread.h>

#define BLOCKS 24
#define THREADS 3

static struct driver cuda;
static gpumem_pool *pool;

static gpumem_stream *new_stream(void) {
    gpumem_stream *stream = NULL;
    OK(gpumem_stream_create(pool, &stream));
    return stream;
}

static gpumem_spillable *spillable(gpumem_stream *stream, uint64_t size_bytes, void **address) {
    gpumem_spillable *memory = NULL;
    OK(gpumem_alloc(pool, size_bytes, stream, address));
    OK(gpumem_spillable_create(pool, *address, &memory));
    CHECK(memory != NULL);
    return memory;
}

static void fill(gpumem_spillable *memory, gpumem_stream *stream, unsigned char value) {
    void *address = NULL, *raw = NULL;
    OK(gpumem_stream_raw(stream, &raw));
    OK(gpumem_spillable_begin(memory, stream, GPUMEM_USE_WRITE, &address));
    CHECK(cuda.memset_async((uintptr_t)address, value, MIB, raw) == 0);
    OK(gpumem_spillable_end(memory, stream));
}

static void check(gpumem_spillable *memory, gpumem_stream *stream, unsigned char value) {
    unsigned char bytes[2] = {0, 0};
    void *address = NULL, *raw = NULL;
    OK(gpumem_stream_raw(stream, &raw));
    OK(gpumem_spillable_begin(memory, stream, GPUMEM_USE_READ, &address));
    CHECK(cuda.stream_synchronize(raw) == 0);
    CHECK(cuda.copy_to_host(bytes, (uintptr_t)address + MIB - sizeof bytes, sizeof bytes) == 0);
    OK(gpumem_spillable_end(memory, stream));
    CHECK(bytes[0] == value && bytes[1] == value);
}

/* Three times the limit, used on two streams in turn. */
static void contents_are_kept(void) {
    gpumem_stream *streams[2] = {new_stream(), new_stream()};
    gpumem_spillable *blocks[BLOCKS];
    void *address = NULL;
    int index, pass;
    for (index = 0; index < BLOCKS; index++) {
        blocks[index] = spillable(streams[0], MIB, &address);
        fill(blocks[index], streams[0], (unsigned char)index);
    }
    CHECK(status_of(pool).spilled_bytes >= 16 * MIB);
    CHECK(status_of(pool).in_use_bytes <= 8 * MIB);
    for (pass = 1; pass < 4; pass++) {
        OK(gpumem_stream_wait_for(streams[pass % 2], streams[1 - pass % 2]));
        for (index = 0; index < BLOCKS; index++) {
            check(blocks[index], streams[pass % 2], (unsigned char)(index + pass - 1));
            fill(blocks[index], streams[pass % 2], (unsigned char)(index + pass));
        }
    }
    CHECK(status_of(pool).in_use_peak_bytes <= 8 * MIB);
    for (index = 0; index < BLOCKS; index++) OK(gpumem_spillable_free(blocks[index]));
    CHECK(status_of(pool).in_use_bytes == 0 && status_of(pool).spilled_bytes == 0);
    OK(gpumem_stream_destroy(streams[0]));
    OK(gpumem_stream_destroy(streams[1]));
}

/* While a use is open, the address stays, and others move. */
static void open_uses_stay(void) {
    gpumem_stream *stream = new_stream();
    gpumem_spillable *held[8], *other = NULL;
    void *addresses[8], *address = NULL, *refused = NULL;
    int index;
    for (index = 0; index < 7; index++) {
        held[index] = spillable(stream, MIB, &address);
        OK(gpumem_spillable_begin(held[index], stream, GPUMEM_USE_WRITE, &addresses[index]));
    }
    for (index = 0; index < 4; index++) {
        other = spillable(stream, MIB, &address);
        fill(other, stream, 3);
        OK(gpumem_spillable_begin(held[0], stream, GPUMEM_USE_READ, &address));
        CHECK(address == addresses[0]);
        OK(gpumem_spillable_end(held[0], stream));
        OK(gpumem_spillable_free(other));
    }
    other = spillable(stream, MIB, &address);
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, MIB + MIB / 2, stream, &refused));
    FAILS(GPUMEM_ERROR_STATE, gpumem_spillable_free(held[0]));
    for (index = 0; index < 7; index++) OK(gpumem_spillable_end(held[index], stream));
    FAILS(GPUMEM_ERROR_STATE, gpumem_spillable_end(held[0], stream));
    OK(gpumem_alloc(pool, 6 * MIB, stream, &refused));
    OK(gpumem_free(refused));
    for (index = 0; index < 7; index++) OK(gpumem_spillable_free(held[index]));
    OK(gpumem_spillable_free(other));
    OK(gpumem_stream_destroy(stream));
}

static void *work(void *argument) {
    unsigned char value = *(unsigned char *)argument;
    gpumem_stream *stream = new_stream();
    gpumem_spillable *blocks[6];
    void *address = NULL, *context = NULL;
    int index, pass;
    CHECK(cuda.retain(&context, 0) == 0 && cuda.set_current(context) == 0);
    for (index = 0; index < 6; index++) blocks[index] = spillable(stream, MIB, &address);
    for (pass = 0; pass < 4; pass++) {
        for (index = 0; index < 6; index++) fill(blocks[index], stream, (unsigned char)(value + pass));
        for (index = 0; index < 6; index++) check(blocks[index], stream, (unsigned char)(value + pass));
    }
    for (index = 0; index < 6; index++) OK(gpumem_spillable_free(blocks[index]));
    OK(gpumem_stream_destroy(stream));
    return NULL;
}

static void threads_take_turns(void) {
    pthread_t threads[THREADS];
    unsigned char values[THREADS];
    int index;
    for (index = 0; index < THREADS; index++) {
        values[index] = (unsigned char)(50 * index + 1);
        CHECK(pthread_create(&threads[index], NULL, work, &values[index]) == 0);
    }
    for (index = 0; index < THREADS; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

static void misuse_is_refused(void) {
    gpumem_stream *stream = new_stream();
    gpumem_spillable *memory = NULL, *again = NULL;
    gpumem_captures *captures = NULL;
    void *address = NULL, *raw = NULL, *graph = NULL, *found = NULL;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_spillable_create(pool, NULL, &memory));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_spillable_create(pool, (void *)(uintptr_t)4096, &memory));
    memory = spillable(stream, MIB, &address);
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free(address));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_spillable_create(pool, address, &again));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_spillable_begin(memory, stream, GPUMEM_USE_READ, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_spillable_begin(memory, stream, 2, &found));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_spillable_begin(NULL, stream, GPUMEM_USE_READ, &found));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_spillable_begin(memory, NULL, GPUMEM_USE_READ, &found));
    OK(gpumem_stream_raw(stream, &raw));
    OK(gpumem_captures_expect(pool, &captures));
    CHECK(cuda.begin_capture(raw, 2) == 0);
    FAILS(GPUMEM_ERROR_STATE, gpumem_spillable_begin(memory, stream, GPUMEM_USE_READ, &found));
    CHECK(cuda.end_capture(raw, &graph) == 0);
    OK(gpumem_captures_end(captures));
    CHECK(cuda.graph_destroy(graph) == 0);
    OK(gpumem_captures_destroy(captures));
    fill(memory, stream, 1);
    OK(gpumem_spillable_free(memory));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_spillable_free(memory));
    OK(gpumem_spillable_free(NULL));
    OK(gpumem_stream_destroy(stream));
}

int main(void) {
    gpumem_stream *stream = NULL;
    gpumem_spillable *memory = NULL;
    void *address = NULL, *found = NULL;
    cuda = open_driver();
    pool = create("spill:host:64MiB", 8 * MIB);
    contents_are_kept();
    open_uses_stay();
    threads_take_turns();
    misuse_is_refused();
    OK(gpumem_pool_destroy(pool));

    /* In a pool that does not spill, and for small blocks, the same calls work, and the address stays. */
    pool = create("", 8 * MIB);
    stream = new_stream();
    memory = spillable(stream, MIB, &address);
    OK(gpumem_spillable_begin(memory, stream, GPUMEM_USE_READ, &found));
    CHECK(found == address);
    OK(gpumem_spillable_end(memory, stream));
    fill(memory, stream, 7);
    check(memory, stream, 7);
    OK(gpumem_spillable_free(memory));
    CHECK(status_of(pool).in_use_bytes == 0);
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_pool_destroy(pool));
    puts("spillable: ok");
    return 0;
}
