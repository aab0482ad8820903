/* The functions that PyTorch calls: they call the C interface, and throw PyTorch's exceptions after it has returned.
 *
 * Compiled without PyTorch's headers. The constructor and the types of its exceptions are looked up in the running version
 * (gpumem/torch.py), and `gpumem_torch_set_exceptions` checks that they fit before the first use. */

#include "gpumem.h"
#include "lines.hpp"

#include <cxxabi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

/* cudaStream_t */
using RawStream = void *;
/* c10::MempoolId_t */
using PoolId = std::pair<std::uint64_t, std::uint64_t>;

/* ------------------------------------------------------------------------------------------------------------- exceptions */

/* c10::SourceLocation */
struct SourceLocation {
    const char *function;
    const char *file;
    std::uint32_t line;
};

struct Exceptions {
    /* c10::Error::Error(c10::SourceLocation, std::string) */
    void (*construct)(void *place, SourceLocation, std::string);
    /* c10::Error */
    std::type_info *error;
    /* c10::OutOfMemoryError, which derives from c10::Error and adds nothing to it. */
    std::type_info *out_of_memory;
};

Exceptions exceptions;

/* More than a c10::Error, which has 128 bytes in PyTorch 2.11. */
constexpr std::size_t EXCEPTION_BYTES = 1024;

void destroy(void *exception) { static_cast<std::exception *>(exception)->~exception(); }

[[noreturn]] void raise(std::type_info *type, const std::string &text) {
    void *place = abi::__cxa_allocate_exception(EXCEPTION_BYTES);
    try {
        exceptions.construct(place, SourceLocation{"gpumem", "gpumem", 0}, text);
    } catch (...) {
        abi::__cxa_free_exception(place);
        throw;
    }
    abi::__cxa_throw(place, type, destroy);
}

[[noreturn]] void raise(gpumem_result result) {
    const bool is_out_of_memory = result == GPUMEM_ERROR_OUT_OF_MEMORY;
    raise(is_out_of_memory ? exceptions.out_of_memory : exceptions.error, gpumem_last_error_as(GPUMEM_INTERFACE_PYTORCH));
}

/* A size in the format of PyTorch's messages. */
std::string size_text(std::uint64_t bytes) {
    char text[64];
    const double value = static_cast<double>(bytes);
    if (bytes <= 1024) std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
    else if (bytes <= 1048576) std::snprintf(text, sizeof text, "%.2f KiB", value / 1024);
    else if (bytes <= 1073741824) std::snprintf(text, sizeof text, "%.2f MiB", value / 1048576);
    else std::snprintf(text, sizeof text, "%.2f GiB", value / 1073741824);
    return text;
}

/* Raises PyTorch's exception for lack of memory. Programs look for the words of its first sentences; the report follows them. */
[[noreturn]] void raise_out_of_memory(std::uint64_t size_bytes, int device, gpumem_pool *pool) {
    constexpr std::uint64_t EXABYTE = UINT64_C(1) << 60;
    const std::string report = gpumem_last_error_as(GPUMEM_INTERFACE_PYTORCH);
    std::string text = "CUDA out of memory. Tried to allocate ";
    text += size_bytes > EXABYTE ? "more than 1EB memory" : size_text(size_bytes);
    gpumem_status status{};
    status.struct_size = sizeof status;
    if (pool != nullptr && gpumem_pool_status(pool, &status) == GPUMEM_SUCCESS)
        text += ". GPU " + std::to_string(device) + " has a total capacity of " + size_text(status.device_total_bytes);
    text += ".\n" + report;
    if (!lines::is_on.load(std::memory_order_relaxed))
        text += "\n  → `python -m gpumem run --stacks`, or stacks=True of gpumem.torch.install, names the lines of the program that hold memory";
    text += "\n  → `with gpumem.torch.offload():` around a forward pass keeps what autograd saves in host memory while the device is short of it";
    raise(exceptions.out_of_memory, text);
}

void check(gpumem_result result) {
    if (result != GPUMEM_SUCCESS) raise(result);
}

/* Throws an exception of the class and looks whether it is one, with its text. */
bool fits(std::type_info *type) {
    const std::string text = "gpumem throws this to check the exception's class";
    try {
        raise(type, text);
    } catch (const std::exception &caught) {
        return std::strstr(caught.what(), text.c_str()) != nullptr;
    } catch (...) {
        return false;
    }
}

/* ------------------------------------------------------------------------------------------------------ pools and streams */

constexpr int DEVICES_MAX = 64;
/* The smallest hard limit of a pool. */
constexpr std::uint64_t LIMIT_MIN_BYTES = UINT64_C(2) << 20;

/* A text, or none. An empty one is the library's to judge. */
using Text = std::optional<std::string>;

struct Settings {
    Text conf;
    Text trace_path;
    Text hard_limit;
    Text soft_limit;
    Text peers;
    gpumem_out_of_memory_fn on_out_of_memory = nullptr;
    void *user_data = nullptr;
};

const char *text_of(const Text &text) { return text ? text->c_str() : nullptr; }

/* Guards what follows, except reads of `pools`. Never destroyed: threads may free tensors while the process ends. */
std::mutex &mutex() {
    static std::mutex *const made = new std::mutex;
    return *made;
}

Settings &settings() {
    static Settings *const made = new Settings;
    return *made;
}

std::atomic<gpumem_pool *> pools[DEVICES_MAX];
std::atomic<std::uint64_t> failed_frees{0};

/* The device's default pool in this process, which other libraries' allocators use too. With options, it must not exist yet. */
gpumem_result make_pool(std::uint32_t ordinal, const Settings &chosen, gpumem_pool **pool) {
    const bool is_plain = !chosen.conf && !chosen.trace_path && !chosen.hard_limit && !chosen.soft_limit && !chosen.peers
                          && chosen.on_out_of_memory == nullptr;
    if (is_plain) return gpumem_pool_for_device(ordinal, pool);
    gpumem_pool_options options{};
    options.struct_size = sizeof options;
    options.ordinal = ordinal;
    options.flags = GPUMEM_FROM_ENVIRONMENT;
    options.interface = GPUMEM_INTERFACE_PYTORCH;
    options.conf = text_of(chosen.conf);
    options.trace_path = text_of(chosen.trace_path);
    options.hard_limit = text_of(chosen.hard_limit);
    options.soft_limit = text_of(chosen.soft_limit);
    options.peers = text_of(chosen.peers);
    options.on_out_of_memory = chosen.on_out_of_memory;
    options.user_data = chosen.user_data;
    gpumem_result result = gpumem_pool_create(&options, pool);
    if (result != GPUMEM_SUCCESS) return result;
    result = gpumem_pool_set_default(*pool);
    if (result != GPUMEM_SUCCESS) {
        gpumem_pool_destroy(*pool);
        *pool = nullptr;
    }
    return result;
}

/* The device's pool, made by the first call. */
gpumem_result find_pool(int device, gpumem_pool **pool) {
    /* An error with its text. */
    if (device < 0 || device >= DEVICES_MAX) return gpumem_pool_for_device(UINT32_MAX, pool);
    *pool = pools[device].load(std::memory_order_acquire);
    if (*pool != nullptr) return GPUMEM_SUCCESS;
    /* Before the lock: in a forked child a thread that does not exist may hold it. */
    const gpumem_result process = gpumem_check_process();
    if (process != GPUMEM_SUCCESS) return process;
    const std::lock_guard<std::mutex> guard(mutex());
    *pool = pools[device].load(std::memory_order_acquire);
    if (*pool != nullptr) return GPUMEM_SUCCESS;
    const gpumem_result result = make_pool(static_cast<std::uint32_t>(device), settings(), pool);
    if (result == GPUMEM_SUCCESS) pools[device].store(*pool, std::memory_order_release);
    return result;
}

/* A stream of PyTorch's, as this thread knows it. */
struct KnownStream {
    RawStream raw;
    int device;
    gpumem_pool *pool;
    gpumem_stream *stream;
};

/* PyTorch has up to 32 streams of each priority, and a thread uses few of them. */
constexpr std::size_t KNOWN_COUNT = 16;
thread_local KnownStream known_streams[KNOWN_COUNT];

KnownStream &place_of(RawStream raw, int device) {
    const auto bits = reinterpret_cast<std::uintptr_t>(raw) * UINT64_C(0x9E3779B97F4A7C15);
    return known_streams[((bits >> 32) + static_cast<unsigned>(device)) % KNOWN_COUNT];
}

gpumem_result find_stream(RawStream raw, int device, KnownStream **found) {
    KnownStream &place = place_of(raw, device);
    *found = &place;
    if (place.stream != nullptr && place.raw == raw && place.device == device) return GPUMEM_SUCCESS;
    gpumem_pool *pool = nullptr;
    gpumem_result result = find_pool(device, &pool);
    if (result != GPUMEM_SUCCESS) return result;
    gpumem_stream *stream = nullptr;
    result = gpumem_stream_long_lived(pool, raw, &stream);
    if (result == GPUMEM_SUCCESS) place = KnownStream{raw, device, pool, stream};
    return result;
}

/* By device, the pool that this thread allocates from in place of the device's, inside `gpumem.torch.part`. */
thread_local gpumem_pool *used_pools[DEVICES_MAX];

/* True if the failure may come from a stream that was retired since this thread looked it up. */
bool is_stale(gpumem_result result) {
    return result == GPUMEM_ERROR_STATE || result == GPUMEM_ERROR_INVALID_HANDLE;
}

/* Calls `work` with the stream. If another thread has retired the one that this thread knows, the handle may mean a new stream of the
 * driver: then once more, with that. */
template <typename Work> gpumem_result with_stream(RawStream raw, int device, Work work) {
    gpumem_result result = GPUMEM_SUCCESS;
    for (int turn = 0; turn < 2; ++turn) {
        KnownStream *known = nullptr;
        result = find_stream(raw, device, &known);
        if (result != GPUMEM_SUCCESS) return result;
        result = work(*known);
        if (!is_stale(result)) return result;
        *known = KnownStream{};
    }
    return result;
}

gpumem_result allocate(std::size_t size, int device, RawStream raw, void **address);

} // namespace

EXPORTED void gpumem_torch_raise(gpumem_result result, std::size_t size, int device);

/* -------------------------------------------------------------------------------------------------- called by gpumem/torch.py */

/* Takes PyTorch's constructor and classes. Returns 0 if what they make is not what PyTorch catches. */
EXPORTED int gpumem_torch_set_exceptions(void *construct, void *error, void *out_of_memory) {
    std::memcpy(&exceptions.construct, &construct, sizeof construct);
    exceptions.error = static_cast<std::type_info *>(error);
    exceptions.out_of_memory = static_cast<std::type_info *>(out_of_memory);
    return fits(exceptions.error) && fits(exceptions.out_of_memory);
}

/* The options of pools that are made from now on. */
EXPORTED void gpumem_torch_set_options(const char *conf, const char *trace_path, const char *hard_limit, const char *soft_limit,
                                       const char *peers, gpumem_out_of_memory_fn on_out_of_memory, void *user_data) {
    /* A forked child makes no pools. */
    if (gpumem_check_process() != GPUMEM_SUCCESS) return;
    const auto copied = [](const char *text) { return text == nullptr ? Text() : Text(text); };
    const std::lock_guard<std::mutex> guard(mutex());
    settings() = Settings{copied(conf),       copied(trace_path), copied(hard_limit), copied(soft_limit),
                          copied(peers), on_out_of_memory,   user_data};
}

/* The device's pool, which the first call makes; the text of an error is `gpumem_last_error_as`. */
EXPORTED gpumem_result gpumem_torch_pool(int device, gpumem_pool **pool) { return find_pool(device, pool); }

/* The device's pool, null before its first use. */
EXPORTED gpumem_pool *gpumem_torch_made_pool(int device) {
    return device < 0 || device >= DEVICES_MAX ? nullptr : pools[device].load(std::memory_order_acquire);
}

/* From now on each allocation counts for its line of Python. A line of the text is a folder of files, after a `+` for those of packages,
 * which count if no line of the program is running, or a `-` for those that do not. Null: no longer. */
EXPORTED void gpumem_torch_name_lines(const char *folders) { lines::name(folders); }

/* Allocates from a pool of the device on this thread from now on; null for the device's own. Returns the one of before. */
EXPORTED gpumem_pool *gpumem_torch_use_pool(int device, gpumem_pool *pool) {
    if (device < 0 || device >= DEVICES_MAX) return nullptr;
    return std::exchange(used_pools[device], pool);
}

/* The number of frees that failed. PyTorch expects that none does. */
EXPORTED std::uint64_t gpumem_torch_failed_frees() { return failed_frees.load(std::memory_order_relaxed); }

/* Declares that the owner of a stream is about to destroy it. */
EXPORTED gpumem_result gpumem_torch_retire(int device, RawStream raw) {
    return with_stream(raw, device, [](KnownStream &known) {
        const gpumem_result result = gpumem_stream_retire(known.stream);
        if (result != GPUMEM_SUCCESS) return result;
        /* Other threads that know the handle find it destroyed. */
        gpumem_stream_destroy(known.stream);
        known = KnownStream{};
        return result;
    });
}

/* The version of gpumem that this file was compiled for, and that of the library that the process has loaded. */
EXPORTED std::uint32_t gpumem_torch_compiled_version() { return GPUMEM_VERSION; }
EXPORTED std::uint32_t gpumem_torch_loaded_version() { return gpumem_version(); }

/* ---------------------------------------------------------------------------------------------------------- called by PyTorch */

EXPORTED void *gpumem_torch_alloc(std::size_t size, int device, RawStream stream) {
    void *address = nullptr;
    gpumem_torch_raise(allocate(size, device, stream, &address), size, device);
    return address;
}

/* For pools within PyTorch's own allocator, which takes null for lack of memory, frees what it can, and asks again. */
EXPORTED void *gpumem_torch_alloc_segment(std::size_t size, int device, RawStream stream) {
    void *address = nullptr;
    const gpumem_result result = allocate(size, device, stream, &address);
    if (result == GPUMEM_ERROR_OUT_OF_MEMORY) return nullptr;
    check(result);
    return address;
}

/* Throws nothing: destructors of tensors call it. */
EXPORTED void gpumem_torch_free(void *address, std::size_t, int, RawStream) {
    if (gpumem_free(address) == GPUMEM_SUCCESS) return;
    if (failed_frees.fetch_add(1, std::memory_order_relaxed) == 0)
        std::fprintf(stderr, "gpumem: a tensor's memory could not be freed: %s\n", gpumem_last_error_as(GPUMEM_INTERFACE_PYTORCH));
}

/* For the allocator that is compiled against PyTorch's headers (gpumem/_full/allocator.cpp), which has observers to call before it throws. */
EXPORTED gpumem_result gpumem_torch_try_alloc(std::size_t size, int device, RawStream stream, void **address) {
    return allocate(size, device, stream, address);
}

EXPORTED void gpumem_torch_raise(gpumem_result result, std::size_t size, int device) {
    if (result == GPUMEM_ERROR_OUT_OF_MEMORY) raise_out_of_memory(size, device, gpumem_torch_made_pool(device));
    check(result);
}

EXPORTED gpumem_result gpumem_torch_add_capture(gpumem_captures *captures, int device, RawStream raw) {
    return with_stream(raw, device, [=](KnownStream &known) { return gpumem_captures_add(captures, known.stream); });
}

/* Waits on the host for the work of a stream. */
EXPORTED gpumem_result gpumem_torch_synchronize(int device, RawStream raw) {
    return with_stream(raw, device, [](KnownStream &known) { return gpumem_stream_synchronize(known.stream); });
}

/* Makes a stream wait for what another has queued. */
EXPORTED gpumem_result gpumem_torch_wait_for(int device, RawStream raw, RawStream other) {
    return with_stream(other, device, [=](KnownStream &awaited) {
        gpumem_stream *stream = awaited.stream;
        return with_stream(raw, device, [=](KnownStream &known) { return gpumem_stream_wait_for(known.stream, stream); });
    });
}

EXPORTED void gpumem_torch_record_stream(void *address, RawStream raw) {
    if (address == nullptr) return;
    std::uint32_t device = 0;
    check(gpumem_ordinal(address, &device));
    check(with_stream(raw, static_cast<int>(device),
                      [=](KnownStream &known) { return gpumem_record_use(address, known.stream); }));
}

EXPORTED void gpumem_torch_empty_cache() {
    for (auto &place : pools) {
        gpumem_pool *pool = place.load(std::memory_order_acquire);
        if (pool == nullptr) continue;
        gpumem_result result = gpumem_pool_reclaim(pool, nullptr);
        /* During a capture nothing can wait for the device. */
        if (result == GPUMEM_ERROR_STATE) result = gpumem_pool_trim(pool, 0, nullptr);
        check(result);
    }
}

EXPORTED void gpumem_torch_memory_fraction(double fraction, int device) {
    gpumem_pool *pool = nullptr;
    check(find_pool(device, &pool));
    gpumem_status status{};
    status.struct_size = sizeof status;
    check(gpumem_pool_status(pool, &status));
    const double bytes = fraction * static_cast<double>(status.device_total_bytes);
    /* A fraction of 0 is allowed in PyTorch. */
    check(gpumem_pool_set_hard_limit(pool, bytes > LIMIT_MIN_BYTES ? static_cast<std::uint64_t>(bytes) : LIMIT_MIN_BYTES));
}

/* ------------------------------------------------------------------------------------------------------------ CUDA graphs */

namespace {

/* The pool of one or several graphs: what they were captured with stays until the last of them is destroyed. PyTorch requires that they
 * are replayed in the order of their captures, so they share memory. */
struct GraphPool {
    std::uint64_t user_count = 0;
    gpumem_captures *captures = nullptr;
};

/* A capture that may be active. */
struct OpenPool {
    int device;
    PoolId id;
    std::function<bool(RawStream)> includes;
    gpumem_captures *captures;
};

using GraphPools = std::map<std::pair<int, PoolId>, GraphPool>;

GraphPools &graph_pools() {
    static GraphPools *const made = new GraphPools;
    return *made;
}

std::vector<OpenPool> &open_pools() {
    static std::vector<OpenPool> *const made = new std::vector<OpenPool>;
    return *made;
}

std::atomic<std::size_t> open_count{0};

/* Has gpumem know the capture that a stream is part of, before it allocates. */
gpumem_result note_capture(const KnownStream &known) {
    const gpumem_result process = gpumem_check_process();
    if (process != GPUMEM_SUCCESS) return process;
    const std::lock_guard<std::mutex> guard(mutex());
    auto &open = open_pools();
    for (auto pool = open.rbegin(); pool != open.rend(); ++pool) {
        if (pool->device == known.device && pool->includes(known.raw)) return gpumem_captures_add(pool->captures, known.stream);
    }
    return GPUMEM_SUCCESS;
}

gpumem_result allocate(std::size_t size, int device, RawStream raw, void **address) {
    if (size == 0) return GPUMEM_SUCCESS;
    /* Before any lock is taken: it takes Python's. */
    const lines::Line line;
    return with_stream(raw, device, [=, &line](KnownStream &known) {
        gpumem_result result = GPUMEM_SUCCESS;
        if (open_count.load(std::memory_order_acquire) != 0) result = note_capture(known);
        if (result != GPUMEM_SUCCESS) return result;
        gpumem_pool *used = used_pools[known.device];
        gpumem_pool *chosen = used == nullptr ? known.pool : used;
        const lines::Scope scope(chosen, line);
        return gpumem_alloc(chosen, size, known.stream, address);
    });
}

} // namespace

EXPORTED void gpumem_torch_begin_pool(int device, PoolId id, std::function<bool(RawStream)> includes) {
    gpumem_pool *pool = nullptr;
    check(gpumem_check_process());
    check(find_pool(device, &pool));
    const std::lock_guard<std::mutex> guard(mutex());
    GraphPool &graphs = graph_pools()[{device, id}];
    check(graphs.captures == nullptr ? gpumem_captures_expect(pool, &graphs.captures) : gpumem_captures_expect_more(graphs.captures));
    graphs.user_count += 1;
    open_pools().push_back(OpenPool{device, id, std::move(includes), graphs.captures});
    open_count.store(open_pools().size(), std::memory_order_release);
}

EXPORTED void gpumem_torch_end_pool(int device, PoolId id) {
    check(gpumem_check_process());
    gpumem_captures *ended = nullptr;
    {
        const std::lock_guard<std::mutex> guard(mutex());
        auto &open = open_pools();
        for (auto pool = open.begin(); pool != open.end(); ++pool) {
            if (pool->device != device || pool->id != id) continue;
            ended = pool->captures;
            open.erase(pool);
            break;
        }
        open_count.store(open.size(), std::memory_order_release);
    }
    if (ended != nullptr) check(gpumem_captures_end(ended));
}

EXPORTED void gpumem_torch_release_pool(int device, PoolId id) {
    /* Destructors of graphs call it, in a forked child too. */
    if (gpumem_check_process() != GPUMEM_SUCCESS) return;
    gpumem_captures *released = nullptr;
    {
        const std::lock_guard<std::mutex> guard(mutex());
        auto found = graph_pools().find({device, id});
        if (found == graph_pools().end()) return;
        if (--found->second.user_count > 0) return;
        released = found->second.captures;
        graph_pools().erase(found);
    }
    gpumem_captures_destroy(released);
}
