/* Calls the functions for PyTorch as it does, without PyTorch: exceptions of this program stand for its own. */

#include "common.h"

#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

using PoolId = std::pair<std::uint64_t, std::uint64_t>;

extern "C" {
int gpumem_torch_set_exceptions(void *construct, void *error, void *out_of_memory);
void gpumem_torch_set_options(const char *conf, const char *trace_path, const char *hard_limit, const char *soft_limit,
                              const char *peers, gpumem_out_of_memory_fn on_out_of_memory, void *user_data);
gpumem_result gpumem_torch_pool(int device, gpumem_pool **pool);
std::uint64_t gpumem_torch_failed_frees();
gpumem_result gpumem_torch_retire(int device, void *raw);
std::uint32_t gpumem_torch_compiled_version();
std::uint32_t gpumem_torch_loaded_version();
void *gpumem_torch_alloc(std::size_t size, int device, void *stream);
void gpumem_torch_free(void *address, std::size_t, int, void *);
void gpumem_torch_record_stream(void *address, void *raw);
void gpumem_torch_memory_fraction(double fraction, int device);
void gpumem_torch_empty_cache();
void gpumem_torch_end_pool(int device, PoolId id);
void gpumem_torch_release_pool(int device, PoolId id);
}

namespace {

/* c10::SourceLocation */
struct SourceLocation {
    const char *function;
    const char *file;
    std::uint32_t line;
};

class Error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class OutOfMemory : public Error {
public:
    using Error::Error;
};

void construct(void *place, SourceLocation, std::string text) { new (place) Error(text); }

struct driver cuda;

void *new_stream() {
    void *raw = nullptr;
    CHECK(cuda.stream_create(&raw, 1) == 0);
    return raw;
}

gpumem_pool *pool_of(int device) {
    gpumem_pool *pool = nullptr;
    OK(gpumem_torch_pool(device, &pool));
    return pool;
}

void allocate_and_free(int device, void *raw) {
    void *address = gpumem_torch_alloc(MIB, device, raw);
    CHECK(address != nullptr);
    gpumem_torch_free(address, MIB, device, raw);
    CHECK(gpumem_torch_failed_frees() == 0);
}

void set(void *address, void *raw) {
    CHECK(cuda.memset_async(reinterpret_cast<std::uintptr_t>(address), 1, MIB, raw) == 0);
}

/* A thread that knows a stream, until another thread has retired it and a new stream of the driver has its handle. */
void record_stream_after_another_thread_has_retired_it(void *used) {
    void *raw = new_stream(), *address = nullptr;
    /* This thread knows the stream from here on. */
    allocate_and_free(0, raw);
    std::thread([raw] { OK(gpumem_torch_retire(0, raw)); }).join();
    /* The driver may give the handle to a new stream; this one is as new for gpumem. */
    address = gpumem_torch_alloc(MIB, 0, used);
    gpumem_torch_record_stream(address, raw);
    set(address, raw);
    gpumem_torch_free(address, MIB, 0, used);
    /* The simulator finds a race here if the use was not recorded. */
    void *again = gpumem_torch_alloc(MIB, 0, used);
    set(again, used);
    gpumem_torch_free(again, MIB, 0, used);
    CHECK(gpumem_torch_failed_frees() == 0);
    std::thread([raw] { OK(gpumem_torch_retire(0, raw)); }).join();
    /* Retired by a thread that knows the handle of before. */
    allocate_and_free(0, raw);
    std::thread([raw] {
        OK(gpumem_torch_retire(0, raw));
        allocate_and_free(0, raw);
    }).join();
    OK(gpumem_torch_retire(0, raw));
    CHECK(cuda.stream_destroy(raw) == 0);
}

/* More streams than the handles that a process has. */
void many_streams_are_retired() {
    for (int turn = 0; turn < 6000; ++turn) {
        void *raw = new_stream();
        allocate_and_free(0, raw);
        OK(gpumem_torch_retire(0, raw));
        CHECK(cuda.stream_destroy(raw) == 0);
    }
}

/* The thread's default stream is another one on each thread. */
void many_threads_with_default_streams() {
    for (int turn = 0; turn < 5000; ++turn) std::thread([] { allocate_and_free(0, reinterpret_cast<void *>(2)); }).join();
}

void fractions() {
    gpumem_pool *pool = pool_of(0);
    gpumem_torch_memory_fraction(0.5, 0);
    CHECK(status_of(pool).hard_limit_bytes == status_of(pool).device_total_bytes / 2);
    gpumem_torch_memory_fraction(0.0, 0);
    CHECK(status_of(pool).hard_limit_bytes == 2 * MIB);
    try {
        gpumem_torch_alloc(4 * MIB, 0, nullptr);
        CHECK(false);
    } catch (const Error &error) {
        CHECK(std::strstr(error.what(), "CUDA out of memory. Tried to allocate 4.00 MiB. GPU 0 has a total capacity of") != nullptr);
    }
    OK(gpumem_pool_set_hard_limit(pool, UINT64_MAX));
}

/* A child that is forked has the error, and drops what it has inherited without a word. */
void a_child_is_forked(void *used) {
    void *address = gpumem_torch_alloc(MIB, 0, used);
    allocate_and_free(0, used);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(30);
        const auto refuses = [](auto call) {
            try {
                call();
            } catch (const Error &error) {
                return std::strstr(error.what(), "forked: start workers with spawn") != nullptr;
            }
            return false;
        };
        CHECK(refuses([used] { gpumem_torch_alloc(MIB, 0, used); }));
        CHECK(refuses([address, used] { gpumem_torch_record_stream(address, used); }));
        CHECK(refuses([] { gpumem_torch_memory_fraction(0.5, 0); }));
        CHECK(refuses([] { gpumem_torch_empty_cache(); }));
        CHECK(refuses([] { gpumem_torch_end_pool(0, PoolId(1, 1)); }));
        gpumem_torch_release_pool(0, PoolId(1, 1));
        gpumem_torch_free(address, MIB, 0, used);
        CHECK(gpumem_torch_failed_frees() == 0);
        std::exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    gpumem_torch_free(address, MIB, 0, used);
}

/* Both devices record into the file of `install(trace=…)`. */
void a_trace_of_two_devices() {
    for (int device = 0; device < 2; ++device) {
        allocate_and_free(device, nullptr);
        OK(gpumem_pool_flush_trace(pool_of(device), 10000));
    }
}

} // namespace

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(gpumem_torch_compiled_version() == GPUMEM_VERSION && gpumem_torch_loaded_version() == gpumem_version());
    void (*constructor)(void *, SourceLocation, std::string) = construct;
    void *place = nullptr;
    std::memcpy(&place, &constructor, sizeof place);
    auto *error = const_cast<std::type_info *>(&typeid(Error)), *out_of_memory = const_cast<std::type_info *>(&typeid(OutOfMemory));
    CHECK(gpumem_torch_set_exceptions(place, error, out_of_memory));
    gpumem_torch_set_options(nullptr, argv[1], nullptr, nullptr, nullptr, nullptr, nullptr);
    a_trace_of_two_devices();
    cuda = open_driver();
    void *used = new_stream();
    record_stream_after_another_thread_has_retired_it(used);
    many_streams_are_retired();
    many_threads_with_default_streams();
    fractions();
    a_child_is_forked(used);
    CHECK(status_of(pool_of(0)).in_use_bytes == 0 && status_of(pool_of(1)).in_use_bytes == 0);
    std::puts("entry: ok");
}
