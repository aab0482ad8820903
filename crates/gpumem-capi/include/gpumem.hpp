/* The C interface of gpumem as C++17: RAII owners, and errors as exceptions. */

#ifndef GPUMEM_HPP
#define GPUMEM_HPP

#include "gpumem.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpumem {

/* A failed call. The text states the problem, the cause and the action. */
class Error : public std::runtime_error {
public:
    explicit Error(gpumem_result code) : std::runtime_error(gpumem_last_error()), code_(code) {}
    gpumem_result code() const noexcept { return code_; }

private:
    gpumem_result code_;
};

/* The device or a limit refused a request. The text is the report. */
class OutOfMemory : public Error {
public:
    using Error::Error;
};

inline void check(gpumem_result result) {
    if (result == GPUMEM_SUCCESS) return;
    if (result == GPUMEM_ERROR_OUT_OF_MEMORY) throw OutOfMemory(result);
    throw Error(result);
}

namespace detail {
struct EndPool {
    void operator()(gpumem_pool *pool) const noexcept { gpumem_pool_destroy(pool); }
};
struct EndStream {
    void operator()(gpumem_stream *stream) const noexcept { gpumem_stream_destroy(stream); }
};
struct EndHolder {
    void operator()(gpumem_holder *holder) const noexcept { gpumem_holder_unregister(holder); }
};
struct EndBlock {
    void operator()(void *address) const noexcept { gpumem_free(address); }
};
} // namespace detail

class Stream {
public:
    explicit Stream(gpumem_stream *handle) noexcept : handle_(handle) {}
    gpumem_stream *get() const noexcept { return handle_.get(); }
    /* The CUstream or cudaStream_t. */
    void *raw() const {
        void *raw = nullptr;
        check(gpumem_stream_raw(get(), &raw));
        return raw;
    }
    void wait_for(const Stream &other) { check(gpumem_stream_wait_for(get(), other.get())); }
    void synchronize() { check(gpumem_stream_synchronize(get())); }

private:
    std::unique_ptr<gpumem_stream, detail::EndStream> handle_;
};

/* Memory that is freed in stream order by its destructor. */
class Block {
public:
    explicit Block(void *address) noexcept : address_(address) {}
    void *get() const noexcept { return address_.get(); }
    std::uint64_t size_bytes() const {
        std::uint64_t size = 0;
        check(gpumem_size(get(), &size));
        return size;
    }
    void record_use(const Stream &stream) { check(gpumem_record_use(get(), stream.get())); }
    /* The address, for a later gpumem_free. */
    void *release() noexcept { return address_.release(); }

private:
    std::unique_ptr<void, detail::EndBlock> address_;
};

class Pool;

/* Counts this thread's allocations from a pool for a tag, until it is destroyed on the same thread. */
class Scope {
public:
    inline Scope(const Pool &pool, const char *tag);
    Scope(Scope &&other) noexcept : number_(std::exchange(other.number_, 0)) {}
    Scope &operator=(Scope &&) = delete;
    ~Scope() {
        if (number_ != 0) gpumem_scope_end(number_, nullptr);
    }
    /* Ends the scope. */
    gpumem_scope_usage end() {
        gpumem_scope_usage usage{};
        usage.struct_size = sizeof usage;
        check(gpumem_scope_end(std::exchange(number_, 0), &usage));
        return usage;
    }

private:
    std::uint64_t number_ = 0;
};

/* The registration of a function that frees memory when memory is short. It ends with this object. */
class Holder {
public:
    explicit Holder(gpumem_holder *handle) noexcept : handle_(handle) {}
    gpumem_holder *get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<gpumem_holder, detail::EndHolder> handle_;
};

class Pool {
public:
    explicit Pool(gpumem_pool_options options) {
        options.struct_size = sizeof options;
        gpumem_pool *handle = nullptr;
        check(gpumem_pool_create(&options, &handle));
        handle_.reset(handle);
    }
    explicit Pool(std::uint32_t ordinal, const char *conf = nullptr) : Pool(with(ordinal, conf)) {}
    gpumem_pool *get() const noexcept { return handle_.get(); }
    Block alloc(std::uint64_t size_bytes, const Stream &stream) {
        void *address = nullptr;
        check(gpumem_alloc(get(), size_bytes, stream.get(), &address));
        return Block(address);
    }
    Stream stream() {
        gpumem_stream *stream = nullptr;
        check(gpumem_stream_create(get(), &stream));
        return Stream(stream);
    }
    /* A stream of another library, which must outlive the result. */
    Stream borrow(void *raw) {
        gpumem_stream *stream = nullptr;
        check(gpumem_stream_borrow(get(), raw, &stream));
        return Stream(stream);
    }
    gpumem_status status() const {
        gpumem_status status{};
        status.struct_size = sizeof status;
        check(gpumem_pool_status(get(), &status));
        return status;
    }
    std::string status_text() const {
        std::size_t length = 0;
        check(gpumem_pool_status_text(get(), nullptr, 0, &length));
        std::string text(length + 1, '\0');
        check(gpumem_pool_status_text(get(), text.data(), text.size(), &length));
        text.resize(length < text.size() ? length : text.size() - 1);
        return text;
    }

    /* A limit as a text: "2GiB", "50%" of the device's memory, "80%free" of its free memory. */
    void set_hard_limit(const char *limit) { check(gpumem_pool_set_hard_limit_text(get(), limit)); }
    void set_soft_limit(const char *limit) { check(gpumem_pool_set_soft_limit_text(get(), limit)); }
    Scope scope(const char *tag) const { return Scope(*this, tag); }
    Holder hold(const char *name, gpumem_reclaim_fn reclaim, void *user_data) {
        gpumem_holder *holder = nullptr;
        check(gpumem_holder_register(get(), name, reclaim, user_data, &holder));
        return Holder(holder);
    }

    /* The part with this name, which sleeps separately. */
    Pool part(const char *name) {
        gpumem_pool *part = nullptr;
        check(gpumem_pool_part(get(), name, &part));
        return Pool(Taken{part});
    }
    /* `keep` is GPUMEM_KEEP_ON_HOST or GPUMEM_KEEP_NOTHING. */
    void sleep(std::uint32_t keep = GPUMEM_KEEP_ON_HOST) { check(gpumem_pool_sleep(get(), keep)); }
    void wake() { check(gpumem_pool_wake(get())); }

private:
    /* Not a constructor from a pointer: Pool(0) is the pool of device 0. */
    struct Taken { gpumem_pool *handle; };
    explicit Pool(Taken taken) noexcept : handle_(taken.handle) {}
    static gpumem_pool_options with(std::uint32_t ordinal, const char *conf) noexcept {
        gpumem_pool_options options{};
        options.ordinal = ordinal;
        options.conf = conf;
        return options;
    }
    std::unique_ptr<gpumem_pool, detail::EndPool> handle_;
};

inline Scope::Scope(const Pool &pool, const char *tag) { check(gpumem_scope_begin(pool.get(), tag, &number_)); }

} // namespace gpumem

#endif
