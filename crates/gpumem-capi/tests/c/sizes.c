/* Structures of every size, each at the end of its memory: only sizes of released versions are read or written. */

#include "common.h"

#include <sys/mman.h>
#include <unistd.h>

/* Beyond the largest structure. */
#define BEYOND 64

/* Two pages, of which the second faults. */
static unsigned char *pages;
static size_t page_bytes;

/* Returns a place that ends with its page, for a structure that states `size` bytes. All of them but the size are `filling`. */
static void *place_of(size_t size, int filling) {
    size_t held = size < sizeof size ? sizeof size : size;
    unsigned char *place = pages + page_bytes - held;
    memset(place, filling, held);
    memcpy(place, &size, sizeof size);
    return place;
}

static void is_refused(gpumem_result result, const void *place, size_t size, int filling) {
    const unsigned char *bytes = place;
    size_t index;
    FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, result);
    CHECK(strstr(gpumem_last_error(), "struct_size") != NULL);
    CHECK(memcmp(bytes, &size, sizeof size) == 0);
    for (index = sizeof size; index < size; index++) CHECK(bytes[index] == filling);
}

static void options(void) {
    size_t size;
    for (size = 0; size <= sizeof(gpumem_pool_options) + BEYOND; size++) {
        gpumem_pool *pool = NULL;
        void *place = place_of(size, 0);
        gpumem_result result = gpumem_pool_create(place, &pool);
        if (size == sizeof(gpumem_pool_options)) {
            CHECK(result == GPUMEM_SUCCESS);
            OK(gpumem_pool_destroy(pool));
            continue;
        }
        is_refused(result, place, size, 0);
        /* Bytes that are no fields: a size that ends inside of a pointer would read a part of it. */
        place = place_of(size, 0xee);
        is_refused(gpumem_pool_create(place, &pool), place, size, 0xee);
        CHECK(pool == NULL);
    }
}

static void status(void) {
    gpumem_pool *pool = create(NULL, 0);
    size_t size;
    for (size = 0; size <= sizeof(gpumem_status) + BEYOND; size++) {
        void *place = place_of(size, 0xee);
        gpumem_result result = gpumem_pool_status(pool, place);
        gpumem_status *written = place;
        if (size != sizeof(gpumem_status)) {
            is_refused(result, place, size, 0xee);
            continue;
        }
        CHECK(result == GPUMEM_SUCCESS);
        CHECK(written->struct_size == size && written->asleep_bytes == 0);
    }
    OK(gpumem_pool_destroy(pool));
}

static void usage(void) {
    gpumem_pool *pool = create(NULL, 0);
    uint64_t scope = 0;
    size_t size;
    OK(gpumem_scope_begin(pool, "sizes", &scope));
    for (size = 0; size <= sizeof(gpumem_scope_usage) + BEYOND; size++) {
        void *place = place_of(size, 0xee);
        if (size != sizeof(gpumem_scope_usage)) is_refused(gpumem_scope_end(scope, place), place, size, 0xee);
    }
    /* An error leaves the scope open. */
    OK(gpumem_scope_end(scope, place_of(sizeof(gpumem_scope_usage), 0xee)));
    OK(gpumem_pool_destroy(pool));
}

/* Sizes that were never set. */
static void numbers(void) {
    static const size_t sizes[] = {4096, 1 << 20, (size_t)1 << 63, (size_t)-1};
    gpumem_pool *pool = create(NULL, 0), *made = NULL;
    uint64_t scope = 0;
    size_t index;
    OK(gpumem_scope_begin(pool, "numbers", &scope));
    for (index = 0; index < sizeof sizes / sizeof *sizes; index++) {
        void *place = place_of(0, 0);
        memcpy(place, &sizes[index], sizeof(size_t));
        FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_create(place, &made));
        FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_pool_status(pool, place));
        FAILS(GPUMEM_ERROR_INVALID_ARGUMENT, gpumem_scope_end(scope, place));
        CHECK(memcmp(place, &sizes[index], sizeof(size_t)) == 0);
    }
    OK(gpumem_scope_end(scope, NULL));
    OK(gpumem_pool_destroy(pool));
}

int main(void) {
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    pages = mmap(NULL, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK(mprotect(pages + page_bytes, page_bytes, PROT_NONE) == 0);
    options();
    status();
    usage();
    numbers();
    CHECK(munmap(pages, 2 * page_bytes) == 0);
    puts("sizes: ok");
    return 0;
}
