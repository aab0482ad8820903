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

int main() {
    owners_free();
    errors_are_exceptions();
    blocks_outlive_pools_and_threads();
    static_pool.emplace(0);
    gpumem::Stream stream = static_pool->stream();
    static_block = static_pool->alloc(MIB, stream);
    std::cout << "raii: ok\n";
}
