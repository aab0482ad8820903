/* What a C program does with the library: pools, streams of its own and of the driver, limits, reports, traces. */

#include "common.h"

static gpumem_pool *full;
static void *spare;
static int reports;

/* Frees memory, allocates, and reads the status inside of a report. */
static void on_out_of_memory(const char *report, void *user_data) {
    gpumem_stream *stream = user_data;
    void *address = NULL;
    reports += 1;
    CHECK(strstr(report, "64.000 MiB") != NULL);
    OK(gpumem_free(spare));
    spare = NULL;
    OK(gpumem_alloc(full, MIB, stream, &address));
    CHECK(status_of(full).in_use_bytes >= MIB);
    OK(gpumem_free(address));
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(full, 1024 * MIB, stream, &address));
}

static void values_arrive(struct driver cuda, gpumem_pool *pool) {
    gpumem_stream *own = NULL, *other = NULL;
    void *address = NULL, *raw = NULL, *raw_other = NULL;
    uint64_t size = 0;
    unsigned char bytes[64];
    OK(gpumem_stream_create(pool, &own));
    OK(gpumem_stream_create(pool, &other));
    OK(gpumem_stream_raw(own, &raw));
    OK(gpumem_stream_raw(other, &raw_other));
    OK(gpumem_alloc(pool, 4096, own, &address));
    OK(gpumem_size(address, &size));
    CHECK(size == 4096);
    CHECK(cuda.memset_async((unsigned long long)(uintptr_t)address, 7, 4096, raw) == 0);
    OK(gpumem_stream_wait_for(other, own));
    OK(gpumem_record_use(address, other));
    CHECK(cuda.memset_async((unsigned long long)(uintptr_t)address, 9, 32, raw_other) == 0);
    OK(gpumem_stream_synchronize(other));
    CHECK(cuda.copy_to_host(bytes, (unsigned long long)(uintptr_t)address, sizeof bytes) == 0);
    CHECK(bytes[0] == 9 && bytes[31] == 9 && bytes[32] == 7 && bytes[63] == 7);
    OK(gpumem_free(address));
    OK(gpumem_stream_destroy(other));
    OK(gpumem_stream_destroy(own));
}

static void streams_of_the_driver(struct driver cuda, gpumem_pool *pool) {
    void *raw = NULL, *address = NULL, *again = NULL, *seen = NULL;
    gpumem_stream *stream = NULL, *same = NULL;
    CHECK(cuda.stream_create(&raw, 1) == 0);
    OK(gpumem_stream_borrow(pool, raw, &stream));
    OK(gpumem_stream_raw(stream, &seen));
    CHECK(seen == raw);
    OK(gpumem_alloc(pool, MIB, stream, &address));
    OK(gpumem_free_on(address, stream));
    OK(gpumem_stream_retire(stream));
    FAILS(GPUMEM_ERROR_STATE, gpumem_alloc(pool, MIB, stream, &address));
    FAILS(GPUMEM_ERROR_STATE, gpumem_stream_retire(stream));
    CHECK(cuda.stream_destroy(raw) == 0);
    OK(gpumem_stream_destroy(stream));

    CHECK(cuda.stream_create(&raw, 1) == 0);
    OK(gpumem_stream_long_lived(pool, raw, &stream));
    OK(gpumem_stream_long_lived(pool, raw, &same));
    CHECK(stream == same);
    OK(gpumem_alloc(pool, MIB, stream, &address));
    OK(gpumem_free(address));
    OK(gpumem_alloc(pool, MIB, stream, &again));
    CHECK(address == again);
    OK(gpumem_free(again));
    OK(gpumem_stream_retire(stream));
    OK(gpumem_stream_destroy(stream));
    CHECK(cuda.stream_destroy(raw) == 0);
    /* The default stream. */
    OK(gpumem_stream_long_lived(pool, NULL, &stream));
    OK(gpumem_alloc(pool, MIB, stream, &address));
    OK(gpumem_free(address));
}

struct seen {
    uint64_t reserved_bytes;
    void *wanted;
    uint64_t wanted_bytes;
    uint64_t start, end;
};

static void on_range(uint32_t kind, void *address, uint64_t size_bytes, void *user_data) {
    struct seen *seen = user_data;
    if (kind == GPUMEM_RANGE_RESERVED) {
        CHECK(seen->wanted_bytes == 0 && (uint64_t)(uintptr_t)address > seen->end);
        seen->start = (uint64_t)(uintptr_t)address;
        seen->end = seen->start + size_bytes;
        seen->reserved_bytes += size_bytes;
    } else if (address == seen->wanted) {
        CHECK(kind == GPUMEM_RANGE_BLOCK);
        seen->wanted_bytes = size_bytes;
    }
}

static void ranges(void) {
    gpumem_stream *stream = NULL;
    struct seen seen;
    gpumem_pool *pool = create("backend:caching", 64 * MIB);
    memset(&seen, 0, sizeof seen);
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_alloc(pool, 5 * MIB + 300, stream, &seen.wanted));
    OK(gpumem_pool_ranges(pool, on_range, &seen));
    CHECK(seen.wanted_bytes == 5 * MIB + 300);
    CHECK(seen.reserved_bytes == status_of(pool).reserved_bytes);
    OK(gpumem_free(seen.wanted));
    seen.reserved_bytes = seen.wanted_bytes = seen.end = 0;
    OK(gpumem_pool_reclaim(pool, NULL));
    OK(gpumem_pool_ranges(pool, on_range, &seen));
    CHECK(seen.reserved_bytes == 0 && seen.wanted_bytes == 0);
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_ranges(pool, NULL, NULL));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_ranges(NULL, on_range, &seen));
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_pool_destroy(pool));
}

static void limits_and_reports(void) {
    gpumem_pool_options options;
    gpumem_stream *stream = NULL;
    void *address = NULL;
    uint64_t released = 0;
    char text[512], tiny[8];
    size_t length = 0;
    gpumem_pool *pool = create("backend:caching", 64 * MIB);
    OK(gpumem_stream_create(pool, &stream));
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.hard_limit_bytes = 64 * MIB;
    options.on_out_of_memory = on_out_of_memory;
    options.user_data = stream;
    OK(gpumem_pool_create(&options, &full));
    OK(gpumem_alloc(full, 48 * MIB, stream, &spare));
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(full, 32 * MIB, stream, &address));
    CHECK(reports == 1 && spare == NULL && address == NULL);
    OK(gpumem_alloc(full, 48 * MIB, stream, &address));
    OK(gpumem_free(address));

    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, 96 * MIB, stream, &address));
    CHECK(strstr(gpumem_last_error(), "the limit of 64.000 MiB refused 96.000 MiB") != NULL);
    OK(gpumem_pool_set_hard_limit(pool, 128 * MIB));
    CHECK(status_of(pool).hard_limit_bytes == 128 * MIB);
    OK(gpumem_alloc(pool, 96 * MIB, stream, &address));
    CHECK(status_of(pool).in_use_bytes == 96 * MIB && status_of(pool).block_count == 1);
    OK(gpumem_free(address));
    OK(gpumem_pool_set_soft_limit(pool, 0));
    OK(gpumem_pool_set_soft_limit(pool, UINT64_MAX));
    CHECK(status_of(pool).soft_limit_bytes == UINT64_MAX);
    OK(gpumem_pool_reclaim(pool, &released));
    OK(gpumem_pool_trim(pool, 0, NULL));
    CHECK(status_of(pool).reserved_bytes == 0);
    OK(gpumem_pool_reset_peaks(pool));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_set_hard_limit(pool, 1));

    OK(gpumem_pool_status_text(pool, NULL, 0, &length));
    CHECK(length > 40 && length < sizeof text);
    OK(gpumem_pool_status_text(pool, text, sizeof text, &length));
    CHECK(strlen(text) == length && strstr(text, "backend: caching") != NULL);
    OK(gpumem_pool_status_text(pool, tiny, sizeof tiny, NULL));
    CHECK(strlen(tiny) == 7 && strncmp(tiny, text, 7) == 0);
    OK(gpumem_pool_status_json(pool, tiny, sizeof tiny, &length));
    CHECK(length > 100 && strncmp(tiny, "{", 1) == 0);
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_pool_destroy(full));
    OK(gpumem_stream_destroy(stream));
}

/* The memory leaves the device and comes back to its address, with its contents or zeroed. */
static void sleep_and_wake(struct driver cuda) {
    gpumem_pool *pool = create("backend:caching", 0), *native = create("backend:native", 0);
    gpumem_stream *stream = NULL;
    void *address = NULL, *refused = NULL, *raw = NULL;
    unsigned char bytes[64];
    uint32_t keep;
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_stream_raw(stream, &raw));
    OK(gpumem_alloc(pool, 6 * MIB, stream, &address));
    for (keep = GPUMEM_KEEP_ON_HOST; keep <= GPUMEM_KEEP_NOTHING; keep++) {
        CHECK(cuda.memset_async((unsigned long long)(uintptr_t)address, 7, 6 * MIB, raw) == 0);
        OK(gpumem_pool_sleep(pool, keep));
        CHECK(status_of(pool).asleep_bytes >= 6 * MIB && status_of(pool).reserved_bytes == 0);
        FAILS(GPUMEM_ERROR_STATE, gpumem_alloc(pool, MIB, stream, &refused));
        FAILS(GPUMEM_ERROR_STATE, gpumem_pool_sleep(pool, keep));
        OK(gpumem_pool_wake(pool));
        OK(gpumem_pool_wake(pool));
        CHECK(status_of(pool).asleep_bytes == 0 && status_of(pool).reserved_bytes >= 6 * MIB);
        CHECK(cuda.copy_to_host(bytes, (unsigned long long)(uintptr_t)address, sizeof bytes) == 0);
        CHECK(bytes[0] == (keep == GPUMEM_KEEP_ON_HOST ? 7 : 0));
    }
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_sleep(pool, 7));
    FAILS(GPUMEM_ERROR_UNSUPPORTED, gpumem_pool_sleep(native, GPUMEM_KEEP_ON_HOST));
    OK(gpumem_pool_wake(native));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_wake(NULL));
    /* A block of a pool that sleeps is freed as any other. */
    OK(gpumem_pool_sleep(pool, GPUMEM_KEEP_NOTHING));
    OK(gpumem_free(address));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_pool_destroy(native));
    OK(gpumem_stream_destroy(stream));
}

/* A part sleeps while the rest of the pool works, and is found again by its name. */
static void a_part_sleeps_apart(void) {
    gpumem_pool *pool = create("backend:caching", 0), *part = NULL, *again = NULL, *refused = NULL;
    gpumem_stream *stream = NULL;
    void *address = NULL, *other = NULL;
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_pool_part(pool, "weights", &part));
    OK(gpumem_pool_part(pool, "weights", &again));
    CHECK(part != again);
    OK(gpumem_alloc(part, 6 * MIB, stream, &address));
    CHECK(status_of(again).in_use_bytes == 6 * MIB && status_of(pool).in_use_bytes == 0);
    OK(gpumem_pool_sleep(again, GPUMEM_KEEP_ON_HOST));
    FAILS(GPUMEM_ERROR_STATE, gpumem_alloc(part, MIB, stream, &other));
    OK(gpumem_alloc(pool, MIB, stream, &other));
    OK(gpumem_pool_wake(part));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_part(pool, NULL, &refused));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_part(pool, "\xff", &refused));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_part(pool, "weights", NULL));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_part(NULL, "weights", &refused));
    /* The block lives on without its handles. */
    OK(gpumem_pool_destroy(part));
    OK(gpumem_pool_destroy(again));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_free(address));
    OK(gpumem_free(other));
    OK(gpumem_stream_destroy(stream));
}

static void others_allocate_from_the_pool(struct driver cuda) {
    gpumem_pool *pool = create("backend:native", 64 * MIB), *caching = create("backend:caching", 0);
    unsigned long long address = 0, refused = 0;
    char text[4096];
    size_t length = 0;
    FAILS(GPUMEM_ERROR_UNSUPPORTED, gpumem_pool_make_current(caching));
    CHECK(strstr(gpumem_last_error(), "backend:native") != NULL);
    FAILS(GPUMEM_ERROR_STATE, gpumem_pool_end_current(pool));
    OK(gpumem_pool_make_current(pool));
    CHECK(cuda.alloc_async(&address, 8 * MIB, NULL) == 0);
    CHECK(status_of(pool).reserved_bytes >= 8 * MIB);
    CHECK(status_of(pool).other_libraries_bytes == 8 * MIB && status_of(pool).in_use_bytes == 0);
    /* The report of a request that the driver refuses. */
    CHECK(cuda.alloc_async(&refused, 96 * MIB, NULL) != 0);
    OK(gpumem_pool_explain_refusal(pool, 96 * MIB, GPUMEM_INTERFACE_C, NULL, 0, &length));
    CHECK(length > 40 && length < sizeof text);
    OK(gpumem_pool_explain_refusal(pool, 96 * MIB, GPUMEM_INTERFACE_C, text, sizeof text, &length));
    CHECK(strlen(text) == length && strstr(text, "the limit of 64.000 MiB refused 96.000 MiB") != NULL);
    CHECK(strstr(text, "other libraries") != NULL && strstr(text, "8.000 MiB") != NULL && strstr(text, "::") == NULL);
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_pool_explain_refusal(NULL, MIB, GPUMEM_INTERFACE_C, text, sizeof text, NULL));
    CHECK(cuda.free_async(address, NULL) == 0 && cuda.stream_synchronize(NULL) == 0);
    CHECK(status_of(pool).other_libraries_bytes == 0);
    OK(gpumem_pool_end_current(pool));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_pool_destroy(caching));
}

/* Another library captures a graph on a stream of its own. */
static void captures_of_others(struct driver cuda, gpumem_pool *pool) {
    gpumem_captures *captures = NULL;
    gpumem_stream *stream = NULL;
    void *raw = NULL, *graph = NULL, *address = NULL, *again = NULL, *outside = NULL;
    uint32_t ordinal = 7;
    CHECK(cuda.stream_create(&raw, 1) == 0);
    OK(gpumem_stream_long_lived(pool, raw, &stream));
    OK(gpumem_captures_expect(pool, &captures));
    OK(gpumem_captures_add(captures, stream)); /* it does not capture yet */
    CHECK(cuda.begin_capture(raw, 0) == 0);
    OK(gpumem_captures_add(captures, stream));
    OK(gpumem_alloc(pool, MIB, stream, &address));
    OK(gpumem_ordinal(address, &ordinal));
    CHECK(ordinal == 0);
    CHECK(cuda.memset_async((unsigned long long)(uintptr_t)address, 7, MIB, raw) == 0);
    OK(gpumem_free(address));
    OK(gpumem_alloc(pool, MIB, stream, &again));
    CHECK(again == address);
    OK(gpumem_free(again));
    CHECK(cuda.end_capture(raw, &graph) == 0);
    OK(gpumem_captures_end(captures));
    OK(gpumem_alloc(pool, MIB, stream, &outside));
    CHECK(outside != address && status_of(pool).in_use_bytes == 2 * MIB);
    OK(gpumem_free(outside));
    CHECK(cuda.graph_destroy(graph) == 0);
    /* A second graph, which runs after the first, shares its memory. */
    OK(gpumem_captures_expect_more(captures));
    CHECK(cuda.begin_capture(raw, 0) == 0);
    OK(gpumem_captures_add(captures, stream));
    OK(gpumem_alloc(pool, MIB, stream, &again));
    CHECK(again == address);
    CHECK(cuda.memset_async((unsigned long long)(uintptr_t)again, 8, MIB, raw) == 0);
    OK(gpumem_free(again));
    CHECK(cuda.end_capture(raw, &graph) == 0);
    OK(gpumem_captures_end(captures));
    CHECK(cuda.graph_destroy(graph) == 0);
    OK(gpumem_captures_destroy(captures));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_captures_end(captures));
    CHECK(status_of(pool).in_use_bytes == 0);
    OK(gpumem_stream_retire(stream));
    OK(gpumem_stream_destroy(stream));
    CHECK(cuda.stream_destroy(raw) == 0);
}

static void default_pools(void) {
    gpumem_pool *first = create(NULL, 512 * MIB), *found = NULL, *again = NULL;
    char text[4096];
    OK(gpumem_pool_set_default(first));
    FAILS(GPUMEM_ERROR_STATE, gpumem_pool_set_default(first));
    OK(gpumem_pool_for_device(0, &found));
    OK(gpumem_pool_for_device(0, &again));
    CHECK(found == again && status_of(found).hard_limit_bytes == 512 * MIB);
    OK(gpumem_pool_destroy(first));
    OK(gpumem_pool_destroy(found));
    OK(gpumem_pool_for_device(0, &again));
    CHECK(again != found && status_of(again).hard_limit_bytes == 512 * MIB);
    OK(gpumem_pool_for_device(1, &again));
    /* The pool has no interface of its own: its report names what the caller has. */
    OK(gpumem_pool_set_hard_limit(again, 64 * MIB));
    OK(gpumem_pool_explain_refusal(again, 96 * MIB, GPUMEM_INTERFACE_C, text, sizeof text, NULL));
    CHECK(strstr(text, "(gpumem_pool_set_hard_limit)") != NULL);
    OK(gpumem_pool_explain_refusal(again, 96 * MIB, GPUMEM_INTERFACE_PYTHON, text, sizeof text, NULL));
    CHECK(strstr(text, "(Pool.set_hard_limit)") != NULL);
    FAILS(GPUMEM_ERROR_NO_DEVICE, gpumem_pool_for_device(2, &again));
}

static long size_of_file(const char *path) {
    long size;
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
    size = ftell(file);
    fclose(file);
    return size;
}

static void traces(const char *path) {
    gpumem_pool_options options;
    gpumem_pool *pool = NULL, *plain = create(NULL, 0);
    gpumem_stream *stream = NULL;
    void *address = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.trace_path = path;
    OK(gpumem_pool_create(&options, &pool));
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_alloc(pool, MIB, stream, &address));
    OK(gpumem_free(address));
    OK(gpumem_pool_flush_trace(pool, 10000));
    CHECK(size_of_file(path) > 40);
    FAILS(GPUMEM_ERROR_STATE, gpumem_pool_flush_trace(plain, 1));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_pool_destroy(plain));
    OK(gpumem_stream_destroy(stream));
    CHECK(remove(path) == 0);
}

/* Pools that name one file share it, on two devices too, and GPUMEM_TRACE has a pool record as trace_path does. */
static void traces_of_several_pools(const char *path) {
    gpumem_pool_options options;
    gpumem_pool *pools[2] = {NULL, NULL};
    gpumem_stream *streams[2] = {NULL, NULL};
    void *addresses[2] = {NULL, NULL};
    long sizes[3] = {0, 0, 0};
    int index;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.trace_path = path;
    for (index = 0; index < 2; index++) {
        options.ordinal = (uint32_t)index;
        OK(gpumem_pool_create(&options, &pools[index]));
        OK(gpumem_stream_create(pools[index], &streams[index]));
        OK(gpumem_alloc(pools[index], MIB, streams[index], &addresses[index]));
        OK(gpumem_pool_flush_trace(pools[index], 10000));
        sizes[index] = size_of_file(path);
    }
    CHECK(sizes[0] > 40 && sizes[1] > sizes[0]);
    /* The first pool's end leaves the trace to the second. */
    OK(gpumem_free(addresses[0]));
    OK(gpumem_pool_destroy(pools[0]));
    OK(gpumem_free(addresses[1]));
    OK(gpumem_pool_flush_trace(pools[1], 10000));
    CHECK(size_of_file(path) > sizes[1]);
    OK(gpumem_pool_destroy(pools[1]));

    CHECK(remove(path) == 0 && setenv("GPUMEM_TRACE", path, 1) == 0);
    options.ordinal = 0;
    options.flags = GPUMEM_FROM_ENVIRONMENT;
    options.trace_path = NULL;
    OK(gpumem_pool_create(&options, &pools[0]));
    OK(gpumem_alloc(pools[0], MIB, streams[0], &addresses[0]));
    OK(gpumem_pool_flush_trace(pools[0], 10000));
    CHECK(size_of_file(path) > 40);
    /* The variable and the option may name one file. */
    options.trace_path = path;
    OK(gpumem_pool_create(&options, &pools[1]));
    OK(gpumem_pool_flush_trace(pools[1], 10000));
    OK(gpumem_pool_destroy(pools[1]));
    OK(gpumem_free(addresses[0]));
    OK(gpumem_pool_destroy(pools[0]));
    CHECK(unsetenv("GPUMEM_TRACE") == 0 && remove(path) == 0);
    for (index = 0; index < 2; index++) OK(gpumem_stream_destroy(streams[index]));
}

/* The limits of a pool as texts, and the names in texts. */
static void limits_as_texts(void) {
    gpumem_pool_options options;
    gpumem_pool *pool = NULL;
    gpumem_stream *stream = NULL;
    void *address = NULL;
    uint64_t total;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.hard_limit = "64MiB";
    options.soft_limit = "50%";
    OK(gpumem_pool_create(&options, &pool));
    OK(gpumem_stream_create(pool, &stream));
    total = status_of(pool).device_total_bytes;
    CHECK(status_of(pool).hard_limit_bytes == 64 * MIB && status_of(pool).soft_limit_bytes == total / 2);
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, 96 * MIB, stream, &address));
    CHECK(strstr(gpumem_last_error(), "(gpumem_pool_options.hard_limit_bytes, or gpumem_pool_set_hard_limit)") != NULL);
    CHECK(strstr(gpumem_last_error(), "::") == NULL);
    /* The pool's report names what the pool was built with; other errors name what the caller has. */
    CHECK(strstr(gpumem_last_error_as(GPUMEM_INTERFACE_PYTHON), "gpumem_pool_set_hard_limit") != NULL);
    OK(gpumem_pool_set_hard_limit_text(pool, "25%"));
    OK(gpumem_pool_set_soft_limit_text(pool, "1.5GiB"));
    CHECK(status_of(pool).hard_limit_bytes == total / 4 && status_of(pool).soft_limit_bytes == UINT64_C(3) << 29);
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_set_hard_limit_text(pool, "lots"));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_set_hard_limit_text(pool, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_set_soft_limit_text(pool, "101%"));
    OK(gpumem_pool_sleep(pool, GPUMEM_KEEP_NOTHING));
    FAILS(GPUMEM_ERROR_STATE, gpumem_alloc(pool, MIB, stream, &address));
    CHECK(strstr(gpumem_last_error(), "call gpumem_pool_wake") != NULL);
    CHECK(strstr(gpumem_last_error_as(GPUMEM_INTERFACE_PYTHON), "call Pool.wake") != NULL);
    CHECK(strstr(gpumem_last_error_as(GPUMEM_INTERFACE_CUPY), "call gpumem.cupy.memory_pool().wake") != NULL);
    CHECK(strcmp(gpumem_last_error_as(77), gpumem_last_error()) == 0);
    OK(gpumem_pool_destroy(pool));

    options.interface = GPUMEM_INTERFACE_PYTORCH;
    OK(gpumem_pool_create(&options, &pool));
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, 96 * MIB, stream, &address));
    CHECK(strstr(gpumem_last_error(), "hard_limit= of gpumem.torch.install") != NULL);
    OK(gpumem_pool_destroy(pool));
    options.interface = 77;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    options.interface = GPUMEM_INTERFACE_C;
    options.hard_limit_bytes = 64 * MIB;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
    CHECK(strstr(gpumem_last_error(), "keep one of them") != NULL);
    OK(gpumem_stream_destroy(stream));
}

/* Fills memory of device 0 by work on device 1. Returns the driver's code. */
static int fill_from_the_other_device(struct driver cuda, gpumem_pool *pool) {
    void *primary[2] = {NULL, NULL}, *other = NULL, *address = NULL;
    gpumem_stream *stream = NULL;
    int code, device;
    for (device = 0; device < 2; device++) CHECK(cuda.retain(&primary[device], device) == 0);
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_alloc(pool, MIB, stream, &address));
    OK(gpumem_stream_synchronize(stream));
    CHECK(cuda.set_current(primary[1]) == 0 && cuda.stream_create(&other, 1) == 0);
    code = cuda.memset_async((unsigned long long)(uintptr_t)address, 7, MIB, other);
    CHECK(cuda.stream_synchronize(other) == 0 && cuda.stream_destroy(other) == 0);
    CHECK(cuda.set_current(primary[0]) == 0);
    OK(gpumem_free(address));
    OK(gpumem_stream_destroy(stream));
    return code;
}

static void peers(struct driver cuda) {
    static const char *const open[] = {"all", "1", "[0,1]", "1,0"};
    static const char *const closed[] = {NULL, "none", "0", "[0]"};
    static const char *const wrong[] = {"", "some", "[0", "7", "all,backend:none", "[1],backend:none"};
    gpumem_pool_options options;
    gpumem_pool *pool = NULL;
    size_t index;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.conf = "profile:tight";
    for (index = 0; index < sizeof open / sizeof *open; index++) {
        options.peers = open[index];
        OK(gpumem_pool_create(&options, &pool));
        CHECK(fill_from_the_other_device(cuda, pool) == 0);
        OK(gpumem_pool_destroy(pool));
        options.peers = closed[index];
        OK(gpumem_pool_create(&options, &pool));
        CHECK(fill_from_the_other_device(cuda, pool) != 0);
        OK(gpumem_pool_destroy(pool));
    }
    for (index = 0; index < sizeof wrong / sizeof *wrong; index++) {
        options.peers = wrong[index];
        CHECK(gpumem_pool_create(&options, &pool) != GPUMEM_SUCCESS);
    }
    options.peers = "all";
    options.conf = "peers:none";
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(&options, &pool));
}

/* Allocations of a thread count for the innermost scope. */
static void scopes(void) {
    gpumem_pool *pool = create(NULL, 64 * MIB);
    gpumem_stream *stream = NULL;
    gpumem_scope_usage usage;
    void *address = NULL, *refused = NULL;
    uint64_t outer = 0, inner = 0;
    char text[4096];
    OK(gpumem_stream_create(pool, &stream));
    memset(&usage, 0, sizeof usage);
    usage.struct_size = sizeof usage;
    OK(gpumem_scope_begin(pool, "weights", &outer));
    OK(gpumem_alloc(pool, 3 * MIB, stream, &address));
    OK(gpumem_scope_begin(pool, "scratch", &inner));
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, 96 * MIB, stream, &refused));
    CHECK(strstr(gpumem_last_error(), "scratch") != NULL);
    OK(gpumem_scope_end(inner, NULL));
    OK(gpumem_pool_status_text(pool, text, sizeof text, NULL));
    CHECK(strstr(text, "weights") != NULL);
    OK(gpumem_free(address));
    OK(gpumem_scope_end(outer, &usage));
    CHECK(usage.allocated_bytes == 3 * MIB && usage.freed_bytes == 3 * MIB && usage.peak_bytes == 3 * MIB);
    CHECK(usage.allocation_count == 1 && usage.free_count == 1);
    FAILS(GPUMEM_ERROR_STATE, gpumem_scope_end(outer, NULL));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_scope_begin(pool, NULL, &outer));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_scope_begin(pool, "a", NULL));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_scope_begin(NULL, "a", &outer));
    /* The end of the thread ends it, after the pool. */
    OK(gpumem_scope_begin(pool, "until the end", &outer));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_stream_destroy(stream));
}

static void *kept;

/* Frees a cache as the last resort. */
static int32_t free_cache(uint32_t is_last_resort, void *user_data) {
    *(int *)user_data += 1;
    if (!is_last_resort) return 7;
    OK(gpumem_free(kept));
    kept = NULL;
    return 0;
}

/* Memory that the program can do without goes before a request is refused. */
static void holders(void) {
    gpumem_pool *pool = create(NULL, 64 * MIB);
    gpumem_stream *stream = NULL;
    gpumem_holder *holder = NULL;
    void *address = NULL;
    int calls = 0;
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_holder_register(pool, "a cache", free_cache, &calls, &holder));
    OK(gpumem_alloc(pool, 48 * MIB, stream, &kept));
    OK(gpumem_alloc(pool, 32 * MIB, stream, &address));
    CHECK(calls == 2 && kept == NULL);
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, 48 * MIB, stream, &kept));
    CHECK(strstr(gpumem_last_error(), "a cache") != NULL && strstr(gpumem_last_error(), "it returned 7") != NULL);
    OK(gpumem_holder_unregister(holder));
    FAILS(GPUMEM_ERROR_INVALID_HANDLE, gpumem_holder_unregister(holder));
    calls = 0;
    FAILS(GPUMEM_ERROR_OUT_OF_MEMORY, gpumem_alloc(pool, 48 * MIB, stream, &kept));
    CHECK(calls == 0);
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_holder_register(pool, "a cache", NULL, NULL, &holder));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_holder_register(pool, NULL, free_cache, NULL, &holder));
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_holder_register(pool, "a cache", free_cache, NULL, NULL));
    OK(gpumem_free(address));
    OK(gpumem_pool_destroy(pool));
    OK(gpumem_stream_destroy(stream));
}

/* Without the flag only the names are checked. */
static void variables(void) {
    gpumem_pool_options options;
    gpumem_pool *pool = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    CHECK(setenv("GPUMEM_HARD_LIMIT", "64MiB", 1) == 0);
    OK(gpumem_pool_create(&options, &pool));
    CHECK(status_of(pool).hard_limit_bytes == UINT64_MAX);
    OK(gpumem_pool_destroy(pool));
    options.flags = GPUMEM_FROM_ENVIRONMENT;
    OK(gpumem_pool_create(&options, &pool));
    CHECK(status_of(pool).hard_limit_bytes == 64 * MIB);
    OK(gpumem_pool_destroy(pool));
    CHECK(setenv("GPUMEM_HARD_LIMIT", "lots", 1) == 0);
    FAILS(GPUMEM_ERROR_ENVIRONMENT, gpumem_pool_create(&options, &pool));
    CHECK(strstr(gpumem_last_error(), "invalid GPUMEM_HARD_LIMIT=\"lots\": expected bytes") != NULL);
    CHECK(unsetenv("GPUMEM_HARD_LIMIT") == 0 && setenv("GPUMEM_HARDLIMIT", "64MiB", 1) == 0);
    for (options.flags = 0; options.flags <= GPUMEM_FROM_ENVIRONMENT; options.flags++) {
        FAILS(GPUMEM_ERROR_ENVIRONMENT, gpumem_pool_create(&options, &pool));
        CHECK(strstr(gpumem_last_error(), "did you mean GPUMEM_HARD_LIMIT?") != NULL);
    }
    CHECK(unsetenv("GPUMEM_HARDLIMIT") == 0);
}

/* The primary context of device 1 ends, with all that is on it. */
static void resets(struct driver cuda) {
    gpumem_pool_options options;
    gpumem_pool *pool = NULL, *former = NULL, *next = NULL, *again = NULL;
    gpumem_stream *stream = NULL, *later = NULL;
    void *kept = NULL, *address = NULL;
    gpumem_status status;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.ordinal = 1;
    memset(&status, 0, sizeof status);
    status.struct_size = sizeof status;
    OK(gpumem_pool_create(&options, &pool));
    OK(gpumem_pool_for_device(1, &former));
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_alloc(pool, MIB, stream, &kept));
    OK(gpumem_alloc(pool, 4096, stream, &address));
    OK(gpumem_free(address));
    CHECK(cuda.reset(1) == 0);
    FAILS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_synchronize(stream));
    /* A size that the thread has cached, too. */
    FAILS(GPUMEM_ERROR_DEVICE_LOST, gpumem_alloc(pool, 4096, stream, &address));
    CHECK(strstr(gpumem_last_error(), "the device was reset") != NULL);
    FAILS(GPUMEM_ERROR_DEVICE_LOST, gpumem_alloc(pool, 64 * MIB, stream, &address));
    FAILS(GPUMEM_ERROR_DEVICE_LOST, gpumem_alloc(former, 4096, stream, &address));
    FAILS(GPUMEM_ERROR_DEVICE_LOST, gpumem_pool_status(pool, &status));
    FAILS(GPUMEM_ERROR_DEVICE_LOST, gpumem_stream_create(pool, &later));

    /* New pools work, and there is a new default pool. */
    OK(gpumem_pool_for_device(1, &next));
    OK(gpumem_pool_for_device(1, &again));
    CHECK(next != former && next == again);
    OK(gpumem_pool_create(&options, &again));
    OK(gpumem_stream_create(again, &later));
    OK(gpumem_alloc(next, 4096, later, &address));
    OK(gpumem_free(address));
    OK(gpumem_alloc(again, 4096, later, &address));
    OK(gpumem_stream_synchronize(later));
    OK(gpumem_free(address));
    CHECK(status_of(next).in_use_bytes == 0 && status_of(again).in_use_bytes == 0);
    OK(gpumem_pool_destroy(again));
    OK(gpumem_stream_destroy(later));
    /* What is lost ends as usual. */
    OK(gpumem_free(kept));
    OK(gpumem_stream_destroy(stream));
    OK(gpumem_pool_destroy(former));
    OK(gpumem_pool_destroy(pool));
}

static gpumem_pool *at_exit_pool;
static void *at_exit_address;

/* Static destructors and exit handlers of a program still call the library. */
static void at_exit(void) {
    OK(gpumem_free(at_exit_address));
    OK(gpumem_pool_destroy(at_exit_pool));
}

int main(int argc, char **argv) {
    struct driver cuda;
    gpumem_pool *pool;
    gpumem_stream *stream = NULL;
    CHECK(argc == 2);
    CHECK(gpumem_version() >= GPUMEM_VERSION && *gpumem_last_error() == 0);
    pool = create(NULL, 0);
    cuda = open_driver();
    values_arrive(cuda, pool);
    streams_of_the_driver(cuda, pool);
    captures_of_others(cuda, pool);
    ranges();
    limits_and_reports();
    sleep_and_wake(cuda);
    a_part_sleeps_apart();
    others_allocate_from_the_pool(cuda);
    default_pools();
    traces(argv[1]);
    traces_of_several_pools(argv[1]);
    variables();
    limits_as_texts();
    peers(cuda);
    scopes();
    holders();
    resets(cuda);
    OK(gpumem_check_process());
    at_exit_pool = pool;
    OK(gpumem_stream_create(pool, &stream));
    OK(gpumem_alloc(pool, MIB, stream, &at_exit_address));
    CHECK(atexit(at_exit) == 0);
    puts("basics: ok");
    return 0;
}
