/* Helpers of the programs: a check that names its line, and the driver that other code of the process calls. */

#ifndef COMMON_H
#define COMMON_H

#include "gpumem.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition,                   \
                    gpumem_last_error());                                                                    \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
#define OK(call) CHECK((call) == GPUMEM_SUCCESS)
#define FAILS(code, call)                                                                                    \
    do {                                                                                                     \
        CHECK((call) == (code));                                                                             \
        CHECK(states_an_action());                                                                           \
    } while (0)

/* True if the text of the last error goes on after the problem, to what the program can do. */
static inline int states_an_action(void) {
    static const char *const signs[] = {"; ", "did you mean", ": expected ", "\xe2\x86\x92" /* the arrow of a report */};
    size_t index;
    for (index = 0; index < sizeof signs / sizeof *signs; index++) {
        if (strstr(gpumem_last_error(), signs[index]) != NULL) return 1;
    }
    return 0;
}

/* The functions of the driver that the programs call. */
struct driver {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*reset)(int);
    int (*create_context)(void **, unsigned, int);
    int (*destroy_context)(void *);
    int (*set_current)(void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_destroy)(void *);
    int (*stream_synchronize)(void *);
    int (*memset_async)(unsigned long long, unsigned char, size_t, void *);
    int (*copy_to_host)(void *, unsigned long long, size_t);
    int (*alloc_async)(unsigned long long *, size_t, void *);
    int (*free_async)(unsigned long long, void *);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*graph_destroy)(void *);
    int (*launch_host_function)(void *, void (*)(void *), void *);
};

static inline void find(void *library, const char *name, void *place) {
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    memcpy(place, &found, sizeof found);
}

/* Loads the library that gpumem uses, and makes the primary context current. */
static inline struct driver open_driver(void) {
    struct driver cuda;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *context = NULL;
    CHECK(library != NULL);
    find(library, "cuInit", &cuda.init);
    find(library, "cuDevicePrimaryCtxRetain", &cuda.retain);
    find(library, "cuDevicePrimaryCtxReset_v2", &cuda.reset);
    find(library, "cuCtxCreate_v2", &cuda.create_context);
    find(library, "cuCtxDestroy_v2", &cuda.destroy_context);
    find(library, "cuCtxSetCurrent", &cuda.set_current);
    find(library, "cuStreamCreate", &cuda.stream_create);
    find(library, "cuStreamDestroy_v2", &cuda.stream_destroy);
    find(library, "cuStreamSynchronize", &cuda.stream_synchronize);
    find(library, "cuMemsetD8Async", &cuda.memset_async);
    find(library, "cuMemcpyDtoH_v2", &cuda.copy_to_host);
    find(library, "cuMemAllocAsync", &cuda.alloc_async);
    find(library, "cuMemFreeAsync", &cuda.free_async);
    find(library, "cuStreamBeginCapture_v2", &cuda.begin_capture);
    find(library, "cuStreamEndCapture", &cuda.end_capture);
    find(library, "cuGraphDestroy", &cuda.graph_destroy);
    find(library, "cuLaunchHostFunc", &cuda.launch_host_function);
    CHECK(cuda.init(0) == 0);
    CHECK(cuda.retain(&context, 0) == 0);
    CHECK(cuda.set_current(context) == 0);
    return cuda;
}

static inline gpumem_pool *create(const char *conf, uint64_t limit_bytes) {
    gpumem_pool_options options;
    gpumem_pool *pool = NULL;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.conf = conf;
    options.hard_limit_bytes = limit_bytes;
    OK(gpumem_pool_create(&options, &pool));
    CHECK(pool != NULL);
    return pool;
}

static inline gpumem_status status_of(gpumem_pool *pool) {
    gpumem_status status;
    memset(&status, 0, sizeof status);
    status.struct_size = sizeof status;
    OK(gpumem_pool_status(pool, &status));
    return status;
}

#define MIB (UINT64_C(1) << 20)

#endif
