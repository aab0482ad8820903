/* What Python's code cannot do by itself: calls of its functions from gpumem's callbacks, and ends that no interrupt divides. */

#include <cxxabi.h>
#include <unistd.h>

#include <cstdint>

#define EXPORTED extern "C" __attribute__((visibility("default")))

/* Null where the process has Python's functions out of sight. */
extern "C" __attribute__((weak)) int Py_IsInitialized();

namespace {

/* Calls a function of Python's, which `user_data` is (gpumem/__init__.py).
 *
 * While the process ends, Python (before 3.14) ends each thread that asks for its lock by an unwinding of the stack, which may not pass
 * through gpumem. Such a thread waits here until the process has ended, as it does in later versions of Python. Once Python has ended,
 * requests of C code, such as a static object's destructor, go on without its functions. */
template <typename Result, typename Argument> Result call(Argument argument, void *user_data) {
    if (Py_IsInitialized != nullptr && Py_IsInitialized() == 0) return Result();
    try {
        return reinterpret_cast<Result (*)(Argument, void *)>(user_data)(argument, nullptr);
    } catch (const abi::__forced_unwind &) {
        for (;;) pause();
    }
}

} // namespace

/* Takes what is in a place and ends it, in one call: an interrupt comes before it or after it, and of several threads one ends it. */
EXPORTED int gpumem_python_end(void **place, int (*end)(void *)) {
    void *const taken = __atomic_exchange_n(place, nullptr, __ATOMIC_ACQ_REL);
    return taken == nullptr ? 0 : end(taken);
}

/* A `gpumem_out_of_memory_fn`. */
EXPORTED void gpumem_python_report(const char *report, void *user_data) { call<void>(report, user_data); }

/* A `gpumem_reclaim_fn`. */
EXPORTED std::int32_t gpumem_python_release(std::uint32_t is_last_resort, void *user_data) {
    return call<std::int32_t>(is_last_resort, user_data);
}
