/* Streams of other libraries: they end, threads share them, they capture, and each thread has a default one. */

#include "common.h"

#include <pthread.h>

#define THREADS 8
/* More than the handles that a process has. */
#define CALLS 6000

static struct driver cuda;
static gpumem_pool *pool;
static gpumem_stream *own;

static void *allocate(gpumem_stream *stream) {
    void *address = NULL;
    OK(gpumem_alloc(pool, 4096, stream, &address));
    return address;
}

/* A use on a stream that was retired, or a free that names it, is an error: nothing would wait for the work. */
static void retired(gpumem_result (*wrap)(gpumem_pool *, void *, gpumem_stream **)) {
    void *raw = NULL, *address = allocate(own);
    gpumem_stream *stream = NULL, *again = NULL;
    uint64_t size = 0;
    CHECK(cuda.stream_create(&raw, 1) == 0);
    OK(wrap(pool, raw, &stream));
    OK(gpumem_record_use(address, stream));
    OK(gpumem_stream_retire(stream));
    FAILS(GPUMEM_ERROR_STATE, gpumem_record_use(address, stream));
    CHECK(strstr(gpumem_last_error(), "retired") != NULL);
    FAILS(GPUMEM_ERROR_STATE, gpumem_free_on(address, stream));
    FAILS(GPUMEM_ERROR_STATE, gpumem_free_on(NULL, stream));
    OK(gpumem_size(address, &size));
    CHECK(size == 4096);
    /* The owner may go on with it, or the driver may use the handle again: that is a stream of its own here. */
    OK(wrap(pool, raw, &again));
    CHECK(again != stream);
    OK(gpumem_record_use(address, again));
    OK(gpumem_free_on(address, again));
    OK(gpumem_stream_retire(again));
    CHECK(cuda.stream_destroy(raw) == 0);
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_stream_destroy(again));
}

static gpumem_stream *default_stream(void) {
    gpumem_stream *stream = NULL;
    OK(gpumem_stream_long_lived(pool, (void *)2, &stream));
    return stream;
}

static void *use_default_stream(void *argument) {
    gpumem_stream **mine = argument;
    int call;
    *mine = default_stream();
    for (call = 0; call < CALLS; call++) {
        CHECK(default_stream() == *mine);
        OK(gpumem_free(allocate(*mine)));
    }
    return NULL;
}

/* Each thread has one handle of its default stream, which ends with the thread. */
static void default_streams_of_threads(void) {
    gpumem_stream *mine = NULL, *theirs = NULL;
    void *raw = NULL, *address = allocate(own);
    pthread_t thread;
    use_default_stream(&mine);
    CHECK(pthread_create(&thread, NULL, use_default_stream, &theirs) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mine != theirs);
    OK(gpumem_stream_raw(mine, &raw));
    CHECK(raw == (void *)2);
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_stream_raw(theirs, &raw));
    OK(gpumem_record_use(address, mine));
    OK(gpumem_free(address));
    /* The program may destroy it earlier, or retire it. */
    OK(gpumem_stream_destroy(mine));
    theirs = default_stream();
    CHECK(theirs != mine);
    OK(gpumem_stream_retire(theirs));
    CHECK(default_stream() != theirs);
    OK(gpumem_stream_destroy(theirs));
}

static gpumem_stream *main_default;

static void *use_anothers_default_stream(void *argument) {
    void *address = allocate(own), *refused = NULL;
    FAILS(GPUMEM_ERROR_STATE, gpumem_alloc(pool, 4096, main_default, &refused));
    FAILS(GPUMEM_ERROR_STATE, gpumem_record_use(address, main_default));
    FAILS(GPUMEM_ERROR_STATE, gpumem_free_on(address, main_default));
    OK(gpumem_free(address));
    return argument;
}

static void default_stream_of_another_thread(void) {
    pthread_t thread;
    main_default = default_stream();
    CHECK(pthread_create(&thread, NULL, use_anothers_default_stream, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static pthread_barrier_t barrier;
static void *shared_raw;

static void *wrap_at_once(void *argument) {
    gpumem_stream **place = argument;
    pthread_barrier_wait(&barrier);
    OK(gpumem_stream_long_lived(pool, shared_raw, place));
    return NULL;
}

/* Threads that name a new stream at one moment get one handle. */
static void one_handle_for_all_threads(void) {
    int round, index;
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (round = 0; round < 100; round++) {
        pthread_t threads[THREADS];
        gpumem_stream *streams[THREADS] = {NULL};
        CHECK(cuda.stream_create(&shared_raw, 1) == 0);
        for (index = 0; index < THREADS; index++) {
            CHECK(pthread_create(&threads[index], NULL, wrap_at_once, &streams[index]) == 0);
        }
        for (index = 0; index < THREADS; index++) CHECK(pthread_join(threads[index], NULL) == 0);
        for (index = 1; index < THREADS; index++) CHECK(streams[index] == streams[0]);
        OK(gpumem_stream_retire(streams[0]));
        OK(gpumem_stream_destroy(streams[0]));
        CHECK(cuda.stream_destroy(shared_raw) == 0);
    }
    CHECK(pthread_barrier_destroy(&barrier) == 0);
}

/* A stream whose capture was not announced is refused, and the capture goes on. */
static void unannounced_captures(void) {
    void *raw = NULL, *graph = NULL, *refused = NULL, *address = allocate(own);
    gpumem_stream *stream = NULL;
    CHECK(cuda.stream_create(&raw, 1) == 0);
    CHECK(cuda.begin_capture(raw, 0) == 0);
    FAILS(GPUMEM_ERROR_STATE, gpumem_stream_borrow(pool, raw, &stream));
    CHECK(strstr(gpumem_last_error(), "announce it with gpumem_captures_expect") != NULL);
    FAILS(GPUMEM_ERROR_STATE, gpumem_stream_long_lived(pool, raw, &stream));
    CHECK(stream == NULL);
    FAILS(GPUMEM_ERROR_STATE, gpumem_alloc_borrowed(pool, 4096, raw, &refused));
    FAILS(GPUMEM_ERROR_STATE, gpumem_free_borrowed(address, raw));
    CHECK(refused == NULL);
    CHECK(cuda.memset_async((unsigned long long)(uintptr_t)address, 7, 4096, raw) == 0);
    CHECK(cuda.end_capture(raw, &graph) == 0 && graph != NULL);
    CHECK(cuda.graph_destroy(graph) == 0);
    OK(gpumem_stream_borrow(pool, raw, &stream));
    OK(gpumem_free(allocate(stream)));
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_free(address));
    CHECK(cuda.stream_destroy(raw) == 0);
}

static void streams_of_another_context(void) {
    void *context = NULL, *primary = NULL, *raw = NULL, *refused = NULL, *address = allocate(own);
    gpumem_stream *stream = NULL;
    CHECK(cuda.create_context(&context, 0, 0) == 0); /* current from here on */
    CHECK(cuda.stream_create(&raw, 1) == 0);
    FAILS(GPUMEM_ERROR_STATE, gpumem_stream_borrow(pool, raw, &stream));
    FAILS(GPUMEM_ERROR_STATE, gpumem_stream_long_lived(pool, raw, &stream));
    CHECK(stream == NULL);
    FAILS(GPUMEM_ERROR_STATE, gpumem_alloc_borrowed(pool, 4096, raw, &refused));
    FAILS(GPUMEM_ERROR_STATE, gpumem_free_borrowed(address, raw));
    CHECK(refused == NULL);
    OK(gpumem_free(address));
    CHECK(cuda.stream_destroy(raw) == 0);
    CHECK(cuda.destroy_context(context) == 0);
    CHECK(cuda.retain(&primary, 0) == 0 && cuda.set_current(primary) == 0);
}

/* A stream that each call names anew. Its owner may destroy it in between, and the driver may use the handle again. */
static void streams_by_the_call(void) {
    void *raw = NULL, *address = NULL;
    int round;
    for (round = 0; round < 100; round++) {
        CHECK(cuda.stream_create(&raw, 1) == 0);
        OK(gpumem_alloc_borrowed(pool, 4096, raw, &address));
        CHECK(cuda.memset_async((unsigned long long)(uintptr_t)address, 7, 4096, raw) == 0);
        if (round % 2 == 0) OK(gpumem_free_borrowed(address, raw));
        CHECK(cuda.stream_destroy(raw) == 0);
        if (round % 2 == 1) OK(gpumem_free_borrowed(address, NULL));
        OK(gpumem_alloc_borrowed(pool, 4096, NULL, &address));
        OK(gpumem_free(address));
        OK(gpumem_alloc_borrowed(pool, 4096, (void *)2, &address));
        OK(gpumem_free_borrowed(address, (void *)2));
    }
    OK(gpumem_alloc_borrowed(pool, 0, NULL, &address));
    CHECK(address == NULL);
    OK(gpumem_free_borrowed(NULL, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_alloc_borrowed(pool, 1, NULL, NULL));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_alloc_borrowed(NULL, 1, NULL, &address));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free_borrowed(&round, NULL));
    CHECK(status_of(pool).in_use_bytes == 0);
}

/* A stream that lives on while calls name it by its handle: it may capture and be retired in between. */
static void one_stream_by_its_handle(void) {
    void *raw = NULL, *graph = NULL, *address = NULL, *refused = NULL;
    gpumem_stream *stream = NULL;
    int round;
    CHECK(cuda.stream_create(&raw, 1) == 0);
    for (round = 0; round < 30; round++) {
        OK(gpumem_alloc_borrowed(pool, 4096, raw, &address));
        CHECK(cuda.memset_async((unsigned long long)(uintptr_t)address, 7, 4096, raw) == 0);
        OK(gpumem_free_borrowed(address, raw));
        if (round % 3 == 1) {
            CHECK(cuda.begin_capture(raw, 0) == 0);
            FAILS(GPUMEM_ERROR_STATE, gpumem_alloc_borrowed(pool, 4096, raw, &refused));
            CHECK(cuda.end_capture(raw, &graph) == 0 && graph != NULL);
            CHECK(cuda.graph_destroy(graph) == 0);
        } else if (round % 3 == 2) {
            OK(gpumem_stream_borrow(pool, raw, &stream));
            OK(gpumem_stream_retire(stream));
            OK(gpumem_stream_destroy(stream));
        }
    }
    CHECK(refused == NULL);
    CHECK(cuda.stream_destroy(raw) == 0);
    CHECK(status_of(pool).in_use_bytes == 0);
}

/* What a host function does with the pool and its blocks. */
struct in_host_function {
    gpumem_pool *pool;
    gpumem_stream *stream;
    void *freed, *freed_on, *allocated;
    gpumem_result free, free_on, alloc, reclaim;
    char text[256];
};

static void host_function(void *user_data) {
    struct in_host_function *work = user_data;
    work->free = gpumem_free(work->freed);
    work->free_on = gpumem_free_on(work->freed_on, work->stream);
    work->alloc = gpumem_alloc(work->pool, 40 * MIB, work->stream, &work->allocated);
    work->reclaim = gpumem_pool_reclaim(work->pool, NULL);
    snprintf(work->text, sizeof work->text, "%s", gpumem_last_error());
}

/* In a host function the driver allows no calls: memory that is freed there goes back with the next call elsewhere. */
static void host_functions(void) {
    static const char *const backends[] = {"backend:caching", "expandable_segments:false", "backend:native", "backend:none"};
    struct in_host_function work;
    size_t index;
    for (index = 0; index < sizeof backends / sizeof *backends; index++) {
        void *raw = NULL, *next = NULL;
        memset(&work, 0, sizeof work);
        work.pool = create(backends[index], 64 * MIB);
        OK(gpumem_stream_create(work.pool, &work.stream));
        OK(gpumem_stream_raw(work.stream, &raw));
        OK(gpumem_alloc(work.pool, 30 * MIB, work.stream, &work.freed));
        OK(gpumem_alloc(work.pool, 70000, work.stream, &work.freed_on));
        CHECK(cuda.launch_host_function(raw, host_function, &work) == 0);
        OK(gpumem_stream_synchronize(work.stream));
        CHECK(work.free == GPUMEM_SUCCESS && work.free_on == GPUMEM_SUCCESS);
        /* Beyond what is cached, an allocation needs the driver. */
        CHECK(work.alloc == GPUMEM_ERROR_DRIVER && work.allocated == NULL);
        CHECK(work.reclaim == GPUMEM_ERROR_DRIVER && strstr(work.text, "called from a host function") != NULL);
        CHECK(strstr(work.text, "; ") != NULL);
        FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free(work.freed));
        CHECK(status_of(work.pool).in_use_bytes == 0 && status_of(work.pool).block_count == 0);
        /* The limit has no room beside the memory of the freed blocks. */
        OK(gpumem_alloc(work.pool, 50 * MIB, work.stream, &next));
        OK(gpumem_free(next));
        OK(gpumem_pool_reclaim(work.pool, NULL));
        CHECK(status_of(work.pool).reserved_bytes == 0);
        OK(gpumem_stream_destroy(work.stream));
        OK(gpumem_pool_destroy(work.pool));
    }
}

int main(void) {
    pool = create(NULL, 0);
    cuda = open_driver();
    OK(gpumem_stream_create(pool, &own));
    retired(gpumem_stream_borrow);
    retired(gpumem_stream_long_lived);
    default_streams_of_threads();
    default_stream_of_another_thread();
    one_handle_for_all_threads();
    unannounced_captures();
    streams_by_the_call();
    one_stream_by_its_handle();
    streams_of_another_context();
    host_functions();
    CHECK(status_of(pool).in_use_bytes == 0);
    OK(gpumem_stream_destroy(own));
    OK(gpumem_pool_destroy(pool));
    puts("streams: ok");
    return 0;
}
