// The process ends while memory lives: static objects, thread-local ones, handlers of `atexit`, and threads that go on.

#include "common.h"
#include "gpumem.hpp"

#include <atomic>
#include <climits>
#include <memory>
#include <pthread.h>
#include <thread>
#include <vector>

namespace {

/* What a program keeps: freed in any order. */
struct Kept {
    std::vector<gpumem::Block> blocks;
    void add(gpumem::Pool &pool, gpumem::Stream &stream) { blocks.push_back(pool.alloc(4096, stream)); }
};

Kept before; // destroyed after the pool
std::unique_ptr<gpumem::Pool> pool;
std::unique_ptr<gpumem::Stream> stream;
Kept after; // destroyed before the pool
thread_local Kept of_thread;

gpumem_pool *shared;
gpumem_stream *shared_stream;
std::atomic<int> running{0};

void request() {
    void *address = nullptr;
    OK(gpumem_alloc(shared, 4096, shared_stream, &address));
    OK(gpumem_free(address));
}

/* Runs until the process has ended. */
void go_on() {
    running.fetch_add(1);
    for (;;) request();
}

/* Requests in the destructors of threads and of the process. */
struct AtEnd {
    ~AtEnd() {
        request();
        // The text may have ended before, with the other values of the thread.
        CHECK(gpumem_free(&running) == GPUMEM_ERROR_UNKNOWN_ADDRESS);
        CHECK(gpumem_last_error() != nullptr);
    }
};

AtEnd at_end;
thread_local AtEnd at_end_of_thread;

void *const per_thread = reinterpret_cast<void *>(2); // CU_STREAM_PER_THREAD

pthread_key_t key;
thread_local int round_count = 0;

/* The destructor of a key. In the last round all other local data of the thread is destroyed, the library's too. */
void after_local_data(void *value) {
    if (++round_count < PTHREAD_DESTRUCTOR_ITERATIONS) CHECK(pthread_setspecific(key, value) == 0);
    gpumem_stream *own = nullptr;
    void *address = nullptr;
    request();
    OK(gpumem_stream_long_lived(shared, per_thread, &own));
    OK(gpumem_alloc(shared, 4096, own, &address));
    OK(gpumem_record_use(address, own));
    OK(gpumem_free_on(address, own));
    OK(gpumem_alloc_borrowed(shared, 4096, per_thread, &address));
    OK(gpumem_free_borrowed(address, per_thread));
    OK(gpumem_stream_synchronize(own));
    OK(gpumem_pool_sleep(shared, GPUMEM_KEEP_ON_HOST));
    OK(gpumem_pool_wake(shared));
    OK(gpumem_stream_destroy(own));
}

} // namespace

int main() {
    pool = std::make_unique<gpumem::Pool>(0);
    stream = std::make_unique<gpumem::Stream>(pool->stream());
    shared = create(nullptr, 0);
    OK(gpumem_stream_create(shared, &shared_stream));
    before.add(*pool, *stream);
    after.add(*pool, *stream);
    of_thread.add(*pool, *stream);
    (void)&at_end_of_thread;
    std::thread([] {
        of_thread.add(*pool, *stream);
        (void)&at_end_of_thread;
    }).join();
    CHECK(pthread_key_create(&key, after_local_data) == 0);
    std::thread([] { CHECK(pthread_setspecific(key, &running) == 0); }).join();
    std::thread([] {
        gpumem_stream *own = nullptr;
        OK(gpumem_stream_long_lived(shared, per_thread, &own));
        CHECK(pthread_setspecific(key, &running) == 0);
    }).join();
    CHECK(std::atexit(request) == 0);
    for (int index = 0; index < 4; index++) std::thread(go_on).detach();
    while (running.load() < 4) std::this_thread::yield();
    std::puts("ends: ok");
    return 0;
}
