/* The line of Python that allocates, as a tag of the pool.
 *
 * PyTorch's operations give up Python's lock (the GIL) before they allocate, so the frames are read with the lock taken again, as
 * PyTorch's own memory history does. It is taken before any lock of gpumem.
 *
 * Compiled without Python's headers: these functions are in every version since 3.9. */

#pragma once

#include "gpumem.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/* Null where the process has Python's functions out of sight. */
extern "C" {
__attribute__((weak)) int Py_IsInitialized();
/* Python 3.13 and later, and before. */
__attribute__((weak)) int Py_IsFinalizing();
__attribute__((weak)) int _Py_IsFinalizing();
__attribute__((weak)) int PyGILState_Ensure();
__attribute__((weak)) void PyGILState_Release(int);
__attribute__((weak)) void *PyGILState_GetThisThreadState();
__attribute__((weak)) void *PyEval_GetFrame();
__attribute__((weak)) void *PyFrame_GetBack(void *frame);
__attribute__((weak)) void *PyFrame_GetCode(void *frame);
__attribute__((weak)) int PyFrame_GetLineNumber(void *frame);
__attribute__((weak)) void *PyObject_GetAttrString(void *object, const char *name);
__attribute__((weak)) const char *PyUnicode_AsUTF8AndSize(void *text, std::intptr_t *size);
__attribute__((weak)) void PyErr_Fetch(void **type, void **value, void **traceback);
__attribute__((weak)) void PyErr_Restore(void *type, void *value, void *traceback);
__attribute__((weak)) void Py_IncRef(void *object);
__attribute__((weak)) void Py_DecRef(void *object);
}

namespace lines {

/* Whose a file is. */
enum class Owner { Program, Package, Nobody };

struct Folder {
    std::string path;
    Owner owner;
};

/* What is known of a code object. */
struct Code {
    Owner owner = Owner::Nobody;
    std::string file;
    std::string function;
};

/* Of a longer text, the pool would keep the beginning only. */
constexpr std::size_t NAME_BYTES = 200;
/* Code objects that are kept with what is known of them. A program that makes more has the others looked at each time. */
constexpr std::size_t CODES_MAX = 1 << 16;
/* Frames that are looked at. */
constexpr int DEPTH_MAX = 200;

struct Known {
    std::mutex mutex;
    std::vector<Folder> folders;
    /* Never removed: threads have their addresses. */
    std::unordered_map<void *, std::unique_ptr<const Code>> codes;
};

/* Never destroyed: threads may allocate while the process ends. */
inline Known &known() {
    static Known *const made = new Known;
    return *made;
}

inline std::atomic<bool> is_on{false};

inline void name(const char *text) {
    is_on.store(false, std::memory_order_relaxed);
    if (text == nullptr || gpumem_check_process() != GPUMEM_SUCCESS) return;
    std::vector<Folder> folders;
    for (const char *line = text; *line != '\0';) {
        std::string path;
        const bool is_package = *line++ == '+';
        while (*line != '\0' && *line != '\n') path += *line++;
        if (*line == '\n') ++line;
        folders.push_back(Folder{path + "/", is_package ? Owner::Package : Owner::Nobody});
    }
    {
        const std::lock_guard<std::mutex> guard(known().mutex);
        known().folders = std::move(folders);
    }
    is_on.store(true, std::memory_order_release);
}

inline bool begins_with(const std::string &text, const std::string &start) { return text.compare(0, start.size(), start) == 0; }

inline Owner owner_of(const std::string &file, const std::vector<Folder> &folders) {
    /* Generated code, but not the cells of notebooks and `python -c`. */
    if (begins_with(file, "<")) {
        const bool is_program = begins_with(file, "<stdin") || begins_with(file, "<string>") || begins_with(file, "<ipython");
        return is_program ? Owner::Program : Owner::Nobody;
    }
    const Folder *longest = nullptr;
    for (const Folder &folder : folders) {
        if (begins_with(file, folder.path) && (longest == nullptr || folder.path.size() > longest->path.size())) longest = &folder;
    }
    return longest == nullptr ? Owner::Program : longest->owner;
}

/* A text of an object; empty if it has none. */
inline std::string text_of(void *object, const char *attribute) {
    void *text = PyObject_GetAttrString(object, attribute);
    if (text == nullptr) return {};
    std::intptr_t size = 0;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    std::string copied = bytes == nullptr ? std::string() : std::string(bytes, static_cast<std::size_t>(size));
    Py_DecRef(text);
    return copied;
}

inline Code look_at(void *code, const std::vector<Folder> &folders) {
    /* A text that is not UTF-8 is an error of Python's, which would take the place of the one that is pending. */
    void *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    Code looked_at;
    const std::string file = text_of(code, "co_filename");
    looked_at.owner = owner_of(file, folders);
    looked_at.file = file.substr(file.find_last_of('/') + 1);
    looked_at.function = text_of(code, "co_name");
    PyErr_Restore(type, value, traceback);
    return looked_at;
}

/* The code objects that a thread has met last. */
struct Met {
    void *code;
    const Code *known;
};
constexpr std::size_t MET_COUNT = 128;
inline thread_local Met met[MET_COUNT];

/* What is known of a code object, which is kept from then on, so that its address is not another's. */
inline const Code &code_of(void *code) {
    Met &place = met[(reinterpret_cast<std::uintptr_t>(code) >> 5) % MET_COUNT];
    if (place.code == code) return *place.known;
    Known &all = known();
    std::vector<Folder> folders;
    {
        const std::lock_guard<std::mutex> guard(all.mutex);
        const auto found = all.codes.find(code);
        if (found != all.codes.end()) {
            place = Met{code, found->second.get()};
            return *place.known;
        }
        folders = all.folders;
    }
    /* Without the mutex: this may let another thread run. */
    thread_local Code latest;
    latest = look_at(code, folders);
    const std::lock_guard<std::mutex> guard(all.mutex);
    if (all.codes.size() < CODES_MAX && all.codes.emplace(code, std::make_unique<const Code>(latest)).second) Py_IncRef(code);
    return latest;
}

/* The name of this thread's line at the moment; empty if it has none. */
class Line {
  public:
    Line() {
        if (is_on.load(std::memory_order_acquire)) read();
    }

    const char *text() const { return text_; }

  private:
    void read() {
        if (PyGILState_GetThisThreadState == nullptr || PyFrame_GetBack == nullptr || Py_IsInitialized() == 0) return;
        if (Py_IsFinalizing != nullptr ? Py_IsFinalizing() != 0 : _Py_IsFinalizing != nullptr && _Py_IsFinalizing() != 0) return;
        /* A thread that has never run Python gets no state of it here. In a forked child the mutex may be held forever. */
        if (PyGILState_GetThisThreadState() == nullptr || gpumem_check_process() != GPUMEM_SUCCESS) return;
        const int state = PyGILState_Ensure();
        void *frame = PyEval_GetFrame();
        if (frame == nullptr) {
            std::snprintf(text_, sizeof text_, "backward");
        } else {
            Py_IncRef(frame);
            search(frame);
        }
        PyGILState_Release(state);
    }

    /* Looks from the innermost frame, of which it takes the reference, for a line of the program, or else of a package. */
    void search(void *frame) {
        bool has_package = false;
        for (int depth = 0; frame != nullptr && depth < DEPTH_MAX; ++depth) {
            void *code = PyFrame_GetCode(frame);
            const Code &of = code_of(code);
            Py_DecRef(code);
            if (of.owner == Owner::Program || (of.owner == Owner::Package && !has_package)) {
                write(of, PyFrame_GetLineNumber(frame));
                has_package = true;
            }
            void *back = of.owner == Owner::Program ? nullptr : PyFrame_GetBack(frame);
            Py_DecRef(frame);
            frame = back;
        }
        if (frame != nullptr) Py_DecRef(frame);
    }

    void write(const Code &code, int line) {
        const char *const function = code.function == "<module>" ? "" : code.function.c_str();
        std::snprintf(text_, sizeof text_, "%s:%d%s%s", code.file.c_str(), line, *function == '\0' ? "" : " ", function);
    }

    char text_[NAME_BYTES] = "";
};

/* While it lives, this thread's allocations from the pool count for the line. */
class Scope {
  public:
    Scope(gpumem_pool *pool, const Line &line) {
        if (*line.text() != '\0' && gpumem_scope_begin(pool, line.text(), &number_) != GPUMEM_SUCCESS) number_ = 0;
    }

    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;

    ~Scope() {
        if (number_ != 0) gpumem_scope_end(number_, nullptr);
    }

  private:
    std::uint64_t number_ = 0;
};

} // namespace lines
