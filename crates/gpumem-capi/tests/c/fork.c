/* Children that are forked while threads of the parent use the library: an error code for what needs the driver, and a silent end. */

#include "common.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS_MAX 3
#ifdef __SANITIZE_ADDRESS__
/* The sanitizer's allocator has locks of its own, which threads of the parent would leave locked in the child. */
#define THREADS 0
#else
#define THREADS THREADS_MAX
#endif
#define FORKS 30
#define BLOCKS 4

static gpumem_pool *pool;
static gpumem_stream *stream;
static gpumem_captures *captures;
static gpumem_holder *holder;
static gpumem_spillable *spillable;
static uint64_t scope;
static void *raw;
static void *blocks[BLOCKS];
static atomic_int is_over;

static int32_t free_nothing(uint32_t is_last_resort, void *user_data) {
    (void)is_last_resort, (void)user_data;
    return 0;
}

static void on_range(uint32_t kind, void *address, uint64_t size_bytes, void *user_data) {
    (void)kind, (void)address, (void)size_bytes, (void)user_data;
}

/* Holds the library's locks, in turn. */
static void *work(void *argument) {
    gpumem_stream *own = NULL;
    OK(gpumem_stream_create(pool, &own));
    for (unsigned turn = 0; !atomic_load(&is_over); turn++) {
        void *address = NULL;
        OK(gpumem_alloc(pool, 1000 + turn % 5000, own, &address));
        OK(gpumem_record_use(address, stream));
        if (turn % 8 == 0) status_of(pool);
        if (turn % 16 == 0) {
            OK(gpumem_stream_destroy(own));
            OK(gpumem_stream_create(pool, &own));
        }
        OK(gpumem_free(address));
    }
    OK(gpumem_stream_destroy(own));
    return argument;
}

static void *end_blocks(void *argument) {
    OK(gpumem_free(blocks[0]));
    OK(gpumem_free_on(blocks[1], stream));
    OK(gpumem_free_borrowed(blocks[1], raw));
    return argument;
}

static void be_a_child(void) {
    gpumem_pool_options options;
    gpumem_status status;
    gpumem_pool *other = NULL;
    gpumem_stream *made = NULL;
    gpumem_captures *expected = NULL;
    gpumem_holder *registered = NULL;
    gpumem_spillable *moving = NULL;
    void *address = NULL, *found = NULL;
    uint64_t size = 0, begun = 0;
    uint32_t ordinal = 7;
    pthread_t thread;
    char text[256];
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    memset(&status, 0, sizeof status);
    status.struct_size = sizeof status;
    FAILS(GPUMEM_ERROR_FORKED, gpumem_check_process());
    CHECK(strstr(gpumem_last_error(), "forked: start workers with spawn") != NULL);
    CHECK(strcmp(gpumem_last_error(), gpumem_last_error_as(GPUMEM_INTERFACE_PYTHON)) == 0);
    CHECK(gpumem_version() >= GPUMEM_VERSION);
    /* A size that the thread has cached. */
    FAILS(GPUMEM_ERROR_FORKED, gpumem_alloc(pool, 4096, stream, &address));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_alloc(pool, MIB * 3, stream, &address));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_alloc_borrowed(pool, 4096, raw, &address));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_create(&options, &other));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_for_device(0, &other));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_part(pool, "a part", &other));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_set_default(pool));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_make_current(pool));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_end_current(pool));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_status(pool, &status));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_status_text(pool, text, sizeof text, NULL));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_status_json(pool, text, sizeof text, NULL));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_explain_refusal(pool, MIB, GPUMEM_INTERFACE_C, text, sizeof text, NULL));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_ranges(pool, on_range, NULL));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_reset_peaks(pool));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_trim(pool, 0, NULL));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_reclaim(pool, NULL));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_sleep(pool, GPUMEM_KEEP_NOTHING));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_wake(pool));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_flush_trace(pool, 1));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_set_hard_limit(pool, MIB * 64));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_set_soft_limit(pool, MIB * 64));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_set_hard_limit_text(pool, "64MiB"));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_pool_set_soft_limit_text(pool, "64MiB"));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_stream_create(pool, &made));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_stream_borrow(pool, raw, &made));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_stream_long_lived(pool, NULL, &made));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_stream_raw(stream, &found));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_stream_wait_for(stream, stream));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_stream_synchronize(stream));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_stream_retire(stream));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_record_use(blocks[0], stream));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_size(blocks[0], &size));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_ordinal(blocks[0], &ordinal));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_captures_expect(pool, &expected));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_captures_expect_more(captures));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_captures_add(captures, stream));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_captures_end(captures));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_scope_begin(pool, "a scope", &begun));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_holder_register(pool, "a cache", free_nothing, NULL, &registered));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_spillable_create(pool, blocks[0], &moving));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_spillable_begin(spillable, stream, GPUMEM_USE_READ, &address));
    FAILS(GPUMEM_ERROR_FORKED, gpumem_spillable_end(spillable, stream));
    CHECK(moving == NULL);
    CHECK(address == NULL && other == NULL && made == NULL && expected == NULL && registered == NULL);
    CHECK(found == NULL && size == 0 && begun == 0 && ordinal == 7);
    /* A thread of its own ends with what it has inherited, and so does the process. */
    CHECK(pthread_create(&thread, NULL, end_blocks, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(gpumem_free(blocks[2]));
    OK(gpumem_scope_end(scope, NULL));
    OK(gpumem_spillable_free(spillable));
    OK(gpumem_holder_unregister(holder));
    OK(gpumem_captures_destroy(captures));
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_pool_destroy(pool));
#ifdef __SANITIZE_ADDRESS__
    /* Memory of the parent's other threads counts as leaked in the child. */
    _exit(0);
#else
    exit(0);
#endif
}

int main(void) {
    pthread_t threads[THREADS_MAX];
    void *address = NULL;
    pool = create("spill:host:64MiB", MIB * 256);
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_stream_raw(stream, &raw));
    OK(gpumem_check_process());
    OK(gpumem_scope_begin(pool, "the parent", &scope));
    OK(gpumem_holder_register(pool, "a cache", free_nothing, NULL, &holder));
    OK(gpumem_alloc(pool, MIB, stream, &address));
    OK(gpumem_spillable_create(pool, address, &spillable));
    OK(gpumem_spillable_begin(spillable, stream, GPUMEM_USE_READ, &address));
    OK(gpumem_spillable_end(spillable, stream));
    /* Ended at once: calls of announced captures leave the thread's cache aside. */
    OK(gpumem_captures_expect(pool, &captures));
    OK(gpumem_captures_end(captures));
    for (int index = 0; index < BLOCKS; index++) OK(gpumem_alloc(pool, 4096, stream, &blocks[index]));
    /* The thread's cache has it from now on. */
    OK(gpumem_free(blocks[BLOCKS - 1]));
    for (int index = 0; index < THREADS; index++) CHECK(pthread_create(&threads[index], NULL, work, NULL) == 0);
    for (int round = 0; round < FORKS; round++) {
        int status = 0;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            /* A child that hangs is killed. */
            alarm(30);
            be_a_child();
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
    }
    atomic_store(&is_over, 1);
    for (int index = 0; index < THREADS; index++) CHECK(pthread_join(threads[index], NULL) == 0);
    for (int index = 0; index + 1 < BLOCKS; index++) OK(gpumem_free(blocks[index]));
    OK(gpumem_captures_destroy(captures));
    OK(gpumem_spillable_free(spillable));
    OK(gpumem_holder_unregister(holder));
    OK(gpumem_scope_end(scope, NULL));
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_pool_destroy(pool));
    puts("fork: ok");
    return 0;
}
