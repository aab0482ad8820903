// What a C++ program does with the library: owners, moves, exceptions.

#include "common.h"
#include "gpumem.hpp"

#include <iostream>
#include <optional>
#include <thread>
#include <type_traits>
#include <vector>

static_assert(!std::is_copy_constructible_v<gpumem::Block> && std::is_nothrow_move_constructible_v<gpumem::Block>);

namespace {

void owners_free() {
    gpumem::Pool pool(0, "backend:caching");
    gpumem::Stream stream = pool.stream(), other = pool.stream();
    {
        std::vector<gpumem::Block> blocks;
        for (int index = 0; index < 100; index++) blocks.push_back(pool.alloc(4096, stream));
        gpumem::Block moved = std::move(blocks.back());
        CHECK(blocks.back().get() == nullptr && moved.size_bytes() == 4096);
        other.wait_for(stream);
        moved.record_use(other);
        CHECK(pool.status().block_count == 100);
    }
    CHECK(pool.status().block_count == 0);
    void *released = pool.alloc(4096, stream).release();
    CHECK(pool.status().block_count == 1);
    OK(gpumem_free(released));
    CHECK(pool.status_text().find("backend: caching") != std::string::npos);
    stream.synchronize();
    CHECK(stream.raw() != other.raw());
    gpumem::Block kept = pool.alloc(MIB, stream);
    pool.sleep();
    CHECK(pool.status().asleep_bytes > 0);
    pool.wake();
    CHECK(pool.status().asleep_bytes == 0);
    gpumem::Pool part = pool.part("weights");
    gpumem::Block weights = part.alloc(MIB, stream);
    part.sleep();
    CHECK(pool.part("weights").status().asleep_bytes > 0 && pool.status().asleep_bytes == 0);
    part.wake();
}

void peers() {
    gpumem_pool_options options{};
    options.peers = "all";
    CHECK(gpumem::Pool(options).status().in_use_bytes == 0);
    try {
        options.peers = "some";
        gpumem::Pool wrong(options);
        CHECK(false);
    } catch (const gpumem::Error &error) {
        CHECK(error.code() == GPUMEM_ERROR_INVALID_ARGUMENT && std::string(error.what()).find("peers") != std::string::npos);
    }
}

void errors_are_exceptions() {
    gpumem_pool_options options{};
    options.hard_limit_bytes = 64 * MIB;
    gpumem::Pool pool(options);
    gpumem::Stream stream = pool.stream();
    bool refused = false;
    try {
        gpumem::Block held = pool.alloc(48 * MIB, stream);
        gpumem::Block more = pool.alloc(48 * MIB, stream);
    } catch (const gpumem::OutOfMemory &error) {
        refused = std::string(error.what()).find("48.000 MiB") != std::string::npos;
    }
    CHECK(refused && pool.status().in_use_bytes == 0);
    try {
        gpumem::Pool wrong(0, "no_such_option:1");
        CHECK(false);
    } catch (const gpumem::Error &error) {
        CHECK(error.code() == GPUMEM_ERROR_INVALID_ARGUMENT);
    }
}

void scopes_and_holders() {
    gpumem::Pool pool(0);
    gpumem::Stream stream = pool.stream();
    pool.set_hard_limit("64MiB");
    pool.set_soft_limit("50%");
    CHECK(pool.status().hard_limit_bytes == 64 * MIB);
    std::optional<gpumem::Block> cache;
    gpumem::Scope outer = pool.scope("outer");
    {
        gpumem::Scope inner = pool.scope("inner");
        gpumem::Scope moved = std::move(inner);
        cache = pool.alloc(48 * MIB, stream);
        CHECK(moved.end().peak_bytes == 48 * MIB);
    }
    gpumem_reclaim_fn clear = [](std::uint32_t, void *cache) -> std::int32_t {
        static_cast<std::optional<gpumem::Block> *>(cache)->reset();
        return 0;
    };
    gpumem::Holder holder = pool.hold("a cache", clear, &cache);
    gpumem::Block more = pool.alloc(32 * MIB, stream);
    CHECK(!cache.has_value() && outer.end().allocated_bytes == 80 * MIB);
}

void reports_and_traces(const char *path) {
    std::string report;
    gpumem_pool_options options{};
    options.hard_limit = "64MiB";
    options.trace_path = path;
    options.on_out_of_memory = [](const char *text, void *to) { *static_cast<std::string *>(to) = text; };
    options.user_data = &report;
    gpumem::Pool pool(options);
    gpumem::Stream stream = pool.stream();
    try {
        pool.alloc(96 * MIB, stream);
        CHECK(false);
    } catch (const gpumem::OutOfMemory &error) {
        CHECK(report == error.what());
    }
    OK(gpumem_pool_flush_trace(pool.get(), 10000));
    CHECK(std::remove(path) == 0);
}

/* gpumem::Pool reads the variables with the flag. */
void variables() {
    gpumem_pool_options options{};
    options.flags = GPUMEM_FROM_ENVIRONMENT;
    CHECK(setenv("GPUMEM_HARD_LIMIT", "64MiB", 1) == 0);
    CHECK(gpumem::Pool(options).status().hard_limit_bytes == 64 * MIB);
    CHECK(unsetenv("GPUMEM_HARD_LIMIT") == 0);
}

void blocks_outlive_pools_and_threads() {
    std::optional<gpumem::Block> block;
    std::thread([&block] {
        gpumem::Pool pool(0);
        gpumem::Stream stream = pool.stream();
        block = pool.alloc(MIB, stream);
    }).join();
    CHECK(block->size_bytes() == MIB);
}

// Destroyed after main: the last static ends first.
std::optional<gpumem::Pool> static_pool;
std::optional<gpumem::Block> static_block;

} // namespace

int main(int, char **argv) {
    owners_free();
    errors_are_exceptions();
    peers();
    scopes_and_holders();
    reports_and_traces(argv[1]);
    variables();
    blocks_outlive_pools_and_threads();
    static_pool.emplace(0);
    gpumem::Stream stream = static_pool->stream();
    static_block = static_pool->alloc(MIB, stream);
    std::cout << "raii: ok\n";
}
