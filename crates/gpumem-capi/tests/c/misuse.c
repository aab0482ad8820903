/* Misuse that a lookup can detect: every case is an error code, on every thread, and the library works on. */

#include "common.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define ADDRESSES 64

static gpumem_pool *shared_pool;
static gpumem_stream *shared_stream;
static _Atomic(void *) slots[ADDRESSES];
static atomic_int frees, refused;

static void arguments(void) {
    gpumem_pool_options options;
    gpumem_status status;
    gpumem_pool *pool = NULL;
    gpumem_stream *stream = NULL;
    memset(&options, 0, sizeof options);
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(NULL, &pool));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    CHECK(strstr(gpumem_last_error(), "struct_size") != NULL);
    options.struct_size = (size_t)-1;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    options.struct_size = sizeof options;
    options.conf = "max_split_size:128";
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    CHECK(strstr(gpumem_last_error(), "did you mean max_split_size_mb?") != NULL);
    options.conf = "\xff\xfe";
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    options.conf = NULL;
    options.flags = 6;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    options.flags = GPUMEM_FROM_ENVIRONMENT;
    options.hard_limit_bytes = 1;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    options.hard_limit_bytes = 0;
    options.trace_path = "/nowhere/at/all";
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    options.trace_path = NULL;
    options.ordinal = 99;
    FAILS(GPUMEM_ERROR_NO_DEVICE, gpumem_pool_create(&options, &pool));
    options.ordinal = 0;
    CHECK(pool == NULL);

    OK(gpumem_pool_create(&options, &pool));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_status(pool, NULL));
    status.struct_size = 0;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_status(pool, &status));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_create(pool, NULL));
    OK(gpumem_stream_create(pool, &stream));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_alloc(pool, 1, stream, NULL));
    CHECK(status_of(pool).in_use_bytes == 0);
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_raw(stream, NULL));
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_pool_destroy(pool));
}

static void handles(void) {
    gpumem_pool *pool = create(NULL, 0), *other = create(NULL, 0);
    gpumem_stream *stream = NULL;
    gpumem_captures *captures = NULL;
    void *address = NULL;
    int local = 0;
    OK(gpumem_stream_create(pool, &stream));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_alloc(NULL, 1, stream, &address));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_alloc(pool, 1, NULL, &address));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_alloc((gpumem_pool *)(void *)stream, 1, stream, &address));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_alloc(pool, 1, (gpumem_stream *)(void *)pool, &address));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_alloc((gpumem_pool *)(void *)&local, 1, stream, &address));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_destroy((gpumem_pool *)(void *)stream));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_stream_destroy((gpumem_stream *)(void *)&local));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_destroy(NULL));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_destroy((gpumem_captures *)(void *)pool));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_captures_expect(pool, NULL));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_expect(NULL, &captures));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_expect_more(NULL));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_expect_more((gpumem_captures *)(void *)pool));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_expect_more((gpumem_captures *)(void *)&local));
    CHECK(captures == NULL);
    OK(gpumem_captures_expect(pool, &captures));
    OK(gpumem_captures_expect_more(captures)); /* no capture has ended yet */
    OK(gpumem_captures_end(captures));
    OK(gpumem_captures_expect_more(captures));
    OK(gpumem_captures_end(captures));
    OK(gpumem_captures_destroy(captures));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_expect_more(captures));
    CHECK(strstr(gpumem_last_error(), "was destroyed") != NULL);
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_end(captures));
    OK(gpumem_pool_destroy(other));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_destroy(other));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_make_current(other));
    CHECK(strstr(gpumem_last_error(), "was destroyed") != NULL);
    OK(gpumem_stream_destroy(stream));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_stream_destroy(stream));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_alloc(pool, 1, stream, &address));
    CHECK(address == NULL);
    OK(gpumem_pool_destroy(pool));
}

static void addresses(void) {
    gpumem_pool *pool = create(NULL, 0), *later;
    gpumem_pool_options options;
    gpumem_stream *stream = NULL, *elsewhere = NULL;
    gpumem_pool *second = NULL;
    void *address = NULL, *host = malloc(64);
    uint64_t size = 1;
    int local = 0;
    CHECK(host != NULL);
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_alloc(pool, 0, stream, &address));
    CHECK(address == NULL);
    OK(gpumem_free(address));
    OK(gpumem_size(NULL, &size));
    CHECK(size == 0);
    OK(gpumem_alloc(pool, 4096, stream, &address));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free((char *)address + 256));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free(host));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free(&local));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_record_use(host, stream));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_size(host, &size));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_free_on(address, NULL));
    /* A stream of another device. */
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.ordinal = 1;
    OK(gpumem_pool_create(&options, &second));
    OK(gpumem_stream_create(second, &elsewhere));
    FAILS(GPUMEM_ERROR_STATE, gpumem_free_on(address, elsewhere));
    FAILS(GPUMEM_ERROR_STATE, gpumem_alloc(pool, 1, elsewhere, &host));
    OK(gpumem_free(address));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free(address));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free_on(address, stream));
    CHECK(strstr(gpumem_last_error(), "it was freed before") != NULL);

    /* A pool that is destroyed with live blocks: they stay valid, and are freed as before. */
    later = create("backend:native", 0);
    OK(gpumem_alloc(later, MIB, stream, &address));
    OK(gpumem_pool_destroy(later));
    OK(gpumem_size(address, &size));
    CHECK(size == MIB);
    OK(gpumem_record_use(address, stream));
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_free(address));
    OK(gpumem_stream_destroy(elsewhere));
    OK(gpumem_pool_destroy(second));
    OK(gpumem_pool_destroy(pool));
    free(host);
}

/* Places for results that are missing, and addresses without a block. */
static void results(void) {
    gpumem_pool *pool = create(NULL, 0);
    gpumem_stream *stream = NULL;
    void *address = NULL;
    uint32_t ordinal = 7;
    int local = 0;
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_alloc(pool, 4096, stream, &address));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_size(address, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_ordinal(address, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_borrow(pool, NULL, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_stream_long_lived(pool, NULL, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_for_device(0, NULL));
    CHECK(strstr(gpumem_last_error(), "pool is null; pass a place") != NULL);
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_ordinal(&local, &ordinal));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_ordinal((char *)address + 256, &ordinal));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_ordinal(NULL, &ordinal));
    OK(gpumem_free(address));
    FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_ordinal(address, &ordinal));
    CHECK(ordinal == 7);
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_pool_destroy(pool));
}

/* Threads free each other's memory, twice. Of two frees of one address, one succeeds. */
static void *hammer(void *argument) {
    uint32_t random = (uint32_t)(uintptr_t)argument * 2654435761u + 1;
    int step;
    for (step = 0; step < 20000; step++) {
        void *address = NULL, *before;
        gpumem_result first, second;
        random = random * 1664525u + 1013904223u;
        OK(gpumem_alloc(shared_pool, 256 + random % 8192, shared_stream, &address));
        before = atomic_exchange(&slots[random >> 16 & (ADDRESSES - 1)], address);
        if (before == NULL) continue;
        first = gpumem_free(before);
        CHECK(first == GPUMEM_SUCCESS);
        atomic_fetch_add(&frees, 1);
        if (step % 4 == 0) {
            /* The address may belong to a new block of another thread by now, so it is only looked up. */
            second = gpumem_size((char *)before + 1, &(uint64_t){0});
            CHECK(second == GPUMEM_ERROR_UNKNOWN_ADDRESS);
            atomic_fetch_add(&refused, 1);
        }
    }
    return NULL;
}

static gpumem_pool *ending;
static atomic_int ended;

/* Uses a pool while another thread destroys it: each call succeeds, or finds the handle destroyed. */
static void *use_until_destroyed(void *argument) {
    (void)argument;
    for (;;) {
        void *address = NULL;
        gpumem_result result = gpumem_alloc(ending, 4096, shared_stream, &address);
        if (result == GPUMEM_ERROR_INVALID_HANDLE) break;
        CHECK(result == GPUMEM_SUCCESS);
        OK(gpumem_free(address));
    }
    atomic_fetch_add(&ended, 1);
    return NULL;
}

/* Pools and streams of two devices come and go. The number of a stream that is gone goes to one of the other device, also while a
 * pool and its view of the device end. */
static void *pools_of_a_device(void *argument) {
    gpumem_pool_options options;
    gpumem_stream *streams[24];
    int round, index;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.ordinal = (uintptr_t)argument % 2;
    options.conf = "backend:caching";
    for (round = 0; round < 50; round++) {
        gpumem_pool *pool = NULL;
        OK(gpumem_pool_create(&options, &pool));
        for (index = 0; index < 24; index++) OK(gpumem_stream_create(pool, &streams[index]));
        for (index = 1; index < 24; index++) OK(gpumem_stream_wait_for(streams[0], streams[index]));
        OK(gpumem_stream_synchronize(streams[0]));
        for (index = 0; index < 24; index++) OK(gpumem_stream_destroy(streams[index]));
        OK(gpumem_pool_destroy(pool));
    }
    return NULL;
}

static void in_threads(void *(*work)(void *), void (*meanwhile)(void)) {
    pthread_t threads[THREADS];
    uintptr_t index;
    for (index = 0; index < THREADS; index++) {
        CHECK(pthread_create(&threads[index], NULL, work, (void *)(index + 1)) == 0);
    }
    if (meanwhile != NULL) meanwhile();
    for (index = 0; index < THREADS; index++) CHECK(pthread_join(threads[index], NULL) == 0);
}

static void destroy_ending(void) { OK(gpumem_pool_destroy(ending)); }

static void threads(void) {
    int index;
    shared_pool = create(NULL, 0);
    OK(gpumem_stream_create(shared_pool, &shared_stream));
    in_threads(hammer, NULL);
    CHECK(atomic_load(&frees) > 1000 && atomic_load(&refused) > 100);
    for (index = 0; index < ADDRESSES; index++) {
        void *address = atomic_exchange(&slots[index], NULL);
        OK(gpumem_free(address));
        if (address != NULL) FAILS(GPUMEM_ERROR_UNKNOWN_ADDRESS, gpumem_free(address));
    }
    CHECK(status_of(shared_pool).in_use_bytes == 0 && status_of(shared_pool).block_count == 0);
    for (index = 0; index < 20; index++) {
        ending = create(NULL, 0);
        atomic_store(&ended, 0);
        in_threads(use_until_destroyed, destroy_ending);
        CHECK(atomic_load(&ended) == THREADS);
    }
    OK(gpumem_pool_destroy(shared_pool));
    OK(gpumem_stream_destroy(shared_stream));
    in_threads(pools_of_a_device, NULL);
}

/* A call inside of a callback, which may end what the callback's own request uses. */
enum call { RETIRE, DESTROY_STREAM, DESTROY_POOL, SLEEP, TRIM, END_SCOPE, UNREGISTER, CALL_COUNT };

static struct {
    gpumem_pool *pool;
    gpumem_stream *stream;
    gpumem_holder *holder;
    uint64_t scope;
    enum call call;
    int count;
} scene;

/* Makes the call. A first callback makes it, later ones find it made. */
static gpumem_result make_call(void) {
    scene.count += 1;
    switch (scene.call) {
    case RETIRE: return gpumem_stream_retire(scene.stream);
    case DESTROY_STREAM: return gpumem_stream_destroy(scene.stream);
    case DESTROY_POOL: return gpumem_pool_destroy(scene.pool);
    case SLEEP: return gpumem_pool_sleep(scene.pool, GPUMEM_KEEP_ON_HOST);
    case TRIM: return gpumem_pool_trim(scene.pool, 0, NULL);
    case END_SCOPE: return gpumem_scope_end(scene.scope, NULL);
    default: return gpumem_holder_unregister(scene.holder);
    }
}

static void report_calls(const char *report, void *user_data) {
    (void)user_data;
    CHECK(strstr(report, "16.000 MiB") != NULL);
    OK(make_call());
}

static int32_t reclaim_calls(uint32_t is_last_resort, void *user_data) {
    (void)is_last_resort, (void)user_data;
    if (scene.count == 0) OK(make_call());
    return 0;
}

static int32_t reclaim_nothing(uint32_t is_last_resort, void *user_data) {
    (void)is_last_resort, (void)user_data;
    return 0;
}

/* Ends a thing that the call has ended already, with the code for that, or ends it now. */
#define ENDS(its_call, code, end)                                                                            \
    do {                                                                                                     \
        if (scene.call == (its_call)) FAILS(code, end);                                                      \
        else OK(end);                                                                                        \
    } while (0)

/* Each call inside of each callback returns, and so does the request. */
static void calls_inside_of_callbacks(struct driver cuda) {
    int index;
    for (index = 0; index < 2 * CALL_COUNT; index++) {
        const int is_in_report = index % 2;
        gpumem_pool_options options;
        void *raw = NULL, *kept = NULL, *address = NULL;
        memset(&scene, 0, sizeof scene);
        scene.call = (enum call)(index / 2);
        memset(&options, 0, sizeof options);
        options.struct_size = sizeof options;
        options.hard_limit_bytes = 32 * MIB;
        options.on_out_of_memory = is_in_report ? report_calls : NULL;
        OK(gpumem_pool_create(&options, &scene.pool));
        CHECK(cuda.stream_create(&raw, 1) == 0);
        OK(gpumem_stream_borrow(scene.pool, raw, &scene.stream));
        OK(gpumem_scope_begin(scene.pool, "callbacks", &scene.scope));
        OK(gpumem_holder_register(scene.pool, "a cache", is_in_report ? reclaim_nothing : reclaim_calls, NULL, &scene.holder));
        OK(gpumem_alloc(scene.pool, 20 * MIB, scene.stream, &kept));
        if (scene.call == SLEEP && !is_in_report) {
            /* The memory that fell asleep made room for the request, which had begun before. */
            OK(gpumem_alloc(scene.pool, 16 * MIB, scene.stream, &address));
        } else {
            FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(scene.pool, 16 * MIB, scene.stream, &address));
            CHECK(strstr(gpumem_last_error(), "16.000 MiB") != NULL && address == NULL);
        }
        CHECK(scene.count == 1);
        OK(gpumem_free(address));
        if (scene.call == SLEEP) {
            FAILS(GPUMEM_ERROR_STATE, gpumem_alloc(scene.pool, 4096, scene.stream, &address));
            OK(gpumem_pool_wake(scene.pool));
        }
        OK(gpumem_free(kept));
        ENDS(UNREGISTER, GPUMEM_ERROR_INVALID_HANDLE, gpumem_holder_unregister(scene.holder));
        ENDS(END_SCOPE, GPUMEM_ERROR_STATE, gpumem_scope_end(scene.scope, NULL));
        if (scene.call != DESTROY_STREAM) ENDS(RETIRE, GPUMEM_ERROR_STATE, gpumem_stream_retire(scene.stream));
        ENDS(DESTROY_STREAM, GPUMEM_ERROR_INVALID_HANDLE, gpumem_stream_destroy(scene.stream));
        ENDS(DESTROY_POOL, GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_destroy(scene.pool));
        CHECK(cuda.stream_destroy(raw) == 0);
    }
}

/* Names that break lines, control terminals or turn the direction of writing, and that are long. */
#define HOSTILE "a\ninjected\r\x1b[31m\x7f\xe2\x80\xae\xe2\x81\xa6\xef\xbb\xbf"
static char hostile[70000];

static void is_clean(const char *text) {
    static const char *const turns[] = {"\xe2\x80\xae", "\xe2\x81\xa6", "\xef\xbb\xbf"};
    size_t index;
    CHECK(strlen(text) > 10 && strlen(text) < 20000 && strstr(text, "\ninjected") == NULL);
    for (index = 0; text[index] != 0; index++) CHECK(text[index] == '\n' || ((unsigned char)text[index] >= 32 && text[index] != 127));
    for (index = 0; index < sizeof turns / sizeof *turns; index++) CHECK(strstr(text, turns[index]) == NULL);
}

#define FAILS_CLEANLY(code, call)                                                                            \
    do {                                                                                                     \
        uint32_t interface;                                                                                  \
        FAILS(code, call);                                                                                   \
        is_clean(gpumem_last_error());                                                                       \
        for (interface = GPUMEM_INTERFACE_C; interface <= GPUMEM_INTERFACE_RMM; interface++) {               \
            is_clean(gpumem_last_error_as(interface));                                                       \
        }                                                                                                    \
    } while (0)

static int32_t fail(uint32_t is_last_resort, void *user_data) {
    (void)is_last_resort, (void)user_data;
    return 7;
}

static void report_is_clean(const char *report, void *user_data) {
    is_clean(report);
    *(int *)user_data += 1;
}

static void texts(void) {
    static char text[1 << 20];
    gpumem_pool_options options;
    gpumem_pool *pool = NULL, *part = NULL, *refused = NULL;
    gpumem_stream *stream = NULL;
    gpumem_holder *holder = NULL;
    void *address = NULL, *kept = NULL;
    uint64_t scope = 0;
    int reports = 0;
    size_t index;
    while (strlen(hostile) < sizeof hostile - sizeof HOSTILE) strcat(hostile, HOSTILE);
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    for (index = 0; index < 5; index++) {
        const char **const fields[] = {&options.conf, &options.hard_limit, &options.soft_limit, &options.peers, &options.trace_path};
        *fields[index] = hostile;
        FAILS_CLEANLY(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &refused));
        *fields[index] = NULL;
    }
    options.flags = GPUMEM_FROM_ENVIRONMENT;
    CHECK(setenv("GPUMEM_HARD_LIMIT", hostile, 1) == 0);
    FAILS_CLEANLY(GPUMEM_ERROR_ENVIRONMENT, gpumem_pool_create(&options, &refused));
    CHECK(unsetenv("GPUMEM_HARD_LIMIT") == 0);
    options.hard_limit_bytes = 32 * MIB;
    options.on_out_of_memory = report_is_clean;
    options.user_data = &reports;
    OK(gpumem_pool_create(&options, &pool));
    OK(gpumem_stream_create(pool, &stream));
    FAILS_CLEANLY(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_set_hard_limit_text(pool, hostile));
    OK(gpumem_pool_part(pool, hostile, &part));
    OK(gpumem_holder_register(pool, hostile, fail, NULL, &holder));
    OK(gpumem_scope_begin(part, hostile, &scope));
    OK(gpumem_alloc(part, 20 * MIB, stream, &kept));
    FAILS_CLEANLY(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(part, 16 * MIB, stream, &address));
    FAILS_CLEANLY(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, 16 * MIB, stream, &address));
    CHECK(reports == 2 && strstr(gpumem_last_error(), "it returned 7") != NULL);
    OK(gpumem_pool_explain_refusal(part, 16 * MIB, GPUMEM_INTERFACE_C, text, sizeof text, NULL));
    is_clean(text);
    OK(gpumem_pool_status_text(part, text, sizeof text, NULL));
    is_clean(text);
    OK(gpumem_pool_status_text(pool, text, sizeof text, NULL));
    is_clean(text);
    OK(gpumem_pool_sleep(part, GPUMEM_KEEP_NOTHING));
    FAILS_CLEANLY(GPUMEM_ERROR_STATE, gpumem_alloc(part, MIB, stream, &address));
    OK(gpumem_free(kept));
    OK(gpumem_scope_end(scope, NULL));
    OK(gpumem_holder_unregister(holder));
    OK(gpumem_pool_destroy(part));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_stream_destroy(stream));
}

int main(void) {
    arguments();
    handles();
    addresses();
    results();
    threads();
    texts();
    calls_inside_of_callbacks(open_driver());
    puts("misuse: ok");
    return 0;
}
