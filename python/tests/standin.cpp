/* A module that stands for CuPy, PyTorch and RMM without a GPU: memory that C code frees when the interpreter collects it.
 *
 * The memory of C functions and the current stream are as in CuPy's extension modules (cupy/cuda/memory.pyx and
 * cupy_backends/cuda/stream.pyx, 14.2). A tensor is freed as by c10::DataPtr, a buffer as by RMM's CallbackMemoryResource. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeinfo>

namespace {

using Malloc = void *(*)(void *, std::size_t, int);
using Free = void (*)(void *, void *, int);

/* A thread has a current stream of its own. */
thread_local std::intptr_t current = 0;
thread_local int device = 0;

/* True if an exception of C++ becomes one of Python's, as from CuPy 14.1 on. */
bool catches = true;

struct Memory {
    PyObject_HEAD
    void *param;
    Free free;
    void *ptr;
    int device;
};

void memory_dealloc(PyObject *object) {
    auto *memory = reinterpret_cast<Memory *>(object);
    if (memory->ptr != nullptr) memory->free(memory->param, memory->ptr, memory->device);
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *memory_ptr(PyObject *object, void *) { return PyLong_FromVoidPtr(reinterpret_cast<Memory *>(object)->ptr); }

PyGetSetDef memory_fields[] = {{"ptr", memory_ptr, nullptr, nullptr, nullptr}, {}};
PyType_Slot memory_slots[] = {{Py_tp_dealloc, reinterpret_cast<void *>(memory_dealloc)}, {Py_tp_getset, memory_fields}, {0, nullptr}};
PyType_Spec memory_spec = {"standin.Memory", sizeof(Memory), 0, Py_TPFLAGS_DEFAULT, memory_slots};
PyTypeObject *memory_type;

struct Allocator {
    PyObject_HEAD
    void *param;
    Malloc malloc;
    Free free;
};

int allocator_init(PyObject *object, PyObject *arguments, PyObject *) {
    auto *self = reinterpret_cast<Allocator *>(object);
    unsigned long long param, malloc, free;
    PyObject *owner;
    if (!PyArg_ParseTuple(arguments, "KKKO", &param, &malloc, &free, &owner)) return -1;
    self->param = reinterpret_cast<void *>(param);
    self->malloc = reinterpret_cast<Malloc>(malloc);
    self->free = reinterpret_cast<Free>(free);
    return 0;
}

/* What Cython makes of `except +`: an exception of Python's that is set stays. */
void *guarded_malloc(const Allocator *self, std::size_t size) {
    try {
        return self->malloc(self->param, size, device);
    } catch (const std::exception &error) {
        if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_MemoryError, error.what());
        return nullptr;
    }
}

PyObject *allocator_malloc(PyObject *object, PyObject *argument) {
    const auto *self = reinterpret_cast<Allocator *>(object);
    const std::size_t size = PyLong_AsSize_t(argument);
    if (PyErr_Occurred() != nullptr) return nullptr;
    void *ptr = nullptr;
    if (size > 0) ptr = catches ? guarded_malloc(self, size) : self->malloc(self->param, size, device);
    if (PyErr_Occurred() != nullptr) return nullptr;
    auto *memory = reinterpret_cast<Memory *>(memory_type->tp_alloc(memory_type, 0));
    if (memory == nullptr) return nullptr;
    memory->param = self->param;
    memory->free = self->free;
    memory->ptr = ptr;
    memory->device = device;
    return reinterpret_cast<PyObject *>(memory);
}

PyMethodDef allocator_methods[] = {{"malloc", allocator_malloc, METH_O, nullptr}, {}};
PyType_Slot allocator_slots[] = {{Py_tp_init, reinterpret_cast<void *>(allocator_init)},
                                 {Py_tp_new, reinterpret_cast<void *>(PyType_GenericNew)},
                                 {Py_tp_methods, allocator_methods},
                                 {0, nullptr}};
PyType_Spec allocator_spec = {"standin.CFunctionAllocator", sizeof(Allocator), 0, Py_TPFLAGS_DEFAULT, allocator_slots};

/* The functions of PyTorch's allocator, called with the size and the stream too. */
void *(*torch_malloc)(std::size_t, int, void *);
void (*torch_free)(void *, std::size_t, int, void *);

/* True if allocations are made without the interpreter's lock, as PyTorch's operations make them. */
bool releases = false;

/* While it lives, the thread is without the lock. */
struct Released {
    PyThreadState *state = releases ? PyEval_SaveThread() : nullptr;
    ~Released() {
        if (state != nullptr) PyEval_RestoreThread(state);
    }
};

void *call_torch_malloc(void *, std::size_t size, int ordinal) {
    const Released released;
    return torch_malloc(size, ordinal, reinterpret_cast<void *>(current));
}

void call_torch_free(void *, void *address, int ordinal) { torch_free(address, 1, ordinal, nullptr); }

/* An allocator, of the class for CuPy's, that calls the functions for PyTorch's. */
PyObject *torch_allocator(PyObject *module, PyObject *arguments) {
    unsigned long long malloc, free;
    if (!PyArg_ParseTuple(arguments, "KK", &malloc, &free)) return nullptr;
    torch_malloc = reinterpret_cast<decltype(torch_malloc)>(malloc);
    torch_free = reinterpret_cast<decltype(torch_free)>(free);
    return PyObject_CallMethod(module, "CFunctionAllocator", "iKKO", 0, reinterpret_cast<unsigned long long>(call_torch_malloc),
                               reinterpret_cast<unsigned long long>(call_torch_free), Py_None);
}

/* Allocates in a thread of C++ that has a state of the interpreter and runs no code of it. Returns the address. */
PyObject *malloc_in_thread(PyObject *, PyObject *argument) {
    const std::size_t size = PyLong_AsSize_t(argument);
    if (PyErr_Occurred() != nullptr) return nullptr;
    void *address = nullptr;
    Py_BEGIN_ALLOW_THREADS
    std::thread([&] {
        const PyGILState_STATE held = PyGILState_Ensure();
        PyThreadState *const state = PyEval_SaveThread();
        address = torch_malloc(size, device, reinterpret_cast<void *>(current));
        PyEval_RestoreThread(state);
        PyGILState_Release(held);
    }).join();
    Py_END_ALLOW_THREADS
    return PyLong_FromVoidPtr(address);
}

/* PyTorch's constructor of exceptions, with a class of the standard library. */
struct SourceLocation {
    const char *function, *file;
    std::uint32_t line;
};

void construct(void *place, SourceLocation, std::string text) { new (place) std::runtime_error(text); }

/* The addresses of the constructor and of the classes of errors and of lack of memory. */
PyObject *torch_exceptions(PyObject *, PyObject *) {
    const auto type = reinterpret_cast<unsigned long long>(&typeid(std::runtime_error));
    return Py_BuildValue("KKK", reinterpret_cast<unsigned long long>(construct), type, type);
}

/* RMM's buffer: the function that frees it is known by its address alone. */
struct Buffer {
    PyObject_HEAD
    PyObject *free;
    PyObject *stream;
    unsigned long long address;
};

int buffer_init(PyObject *object, PyObject *arguments, PyObject *) {
    auto *self = reinterpret_cast<Buffer *>(object);
    unsigned long long free;
    if (!PyArg_ParseTuple(arguments, "KOK", &free, &self->stream, &self->address)) return -1;
    Py_INCREF(self->stream);
    self->free = reinterpret_cast<PyObject *>(free);
    return 0;
}

void buffer_dealloc(PyObject *object) {
    auto *self = reinterpret_cast<Buffer *>(object);
    PyObject *freed = PyObject_CallFunction(self->free, "KiO", self->address, 1, self->stream);
    if (freed == nullptr) PyErr_WriteUnraisable(nullptr);
    Py_XDECREF(freed);
    Py_DECREF(self->stream);
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

PyType_Slot buffer_slots[] = {{Py_tp_init, reinterpret_cast<void *>(buffer_init)},
                              {Py_tp_new, reinterpret_cast<void *>(PyType_GenericNew)},
                              {Py_tp_dealloc, reinterpret_cast<void *>(buffer_dealloc)},
                              {0, nullptr}};
PyType_Spec buffer_spec = {"standin.Buffer", sizeof(Buffer), 0, Py_TPFLAGS_DEFAULT, buffer_slots};

std::intptr_t current_stream() { return current; }

PyObject *none() {
    Py_INCREF(Py_None);
    return Py_None;
}

PyObject *set_stream(PyObject *, PyObject *raw) {
    current = PyLong_AsSsize_t(raw);
    return PyErr_Occurred() == nullptr ? none() : nullptr;
}

PyObject *set_device(PyObject *, PyObject *ordinal) {
    device = static_cast<int>(PyLong_AsLong(ordinal));
    return PyErr_Occurred() == nullptr ? none() : nullptr;
}

PyObject *get_device(PyObject *, PyObject *) { return PyLong_FromLong(device); }

PyObject *set_releases(PyObject *, PyObject *value) {
    releases = PyObject_IsTrue(value) != 0;
    return none();
}

PyObject *set_catches(PyObject *, PyObject *value) {
    catches = PyObject_IsTrue(value) != 0;
    return none();
}

/* A request of C code that runs once Python has ended, as the destructors of static objects do: gpumem_alloc, a pool and a stream. */
int (*late_alloc)(void *, std::uint64_t, void *, void **);
void *late_pool, *late_stream;

PyObject *request_at_exit(PyObject *, PyObject *arguments) {
    unsigned long long alloc, pool, stream;
    if (!PyArg_ParseTuple(arguments, "KKK", &alloc, &pool, &stream)) return nullptr;
    late_alloc = reinterpret_cast<decltype(late_alloc)>(alloc);
    late_pool = reinterpret_cast<void *>(pool);
    late_stream = reinterpret_cast<void *>(stream);
    std::atexit([] {
        void *address = nullptr;
        const int result = late_alloc(late_pool, UINT64_C(1) << 50, late_stream, &address);
        std::printf("%d %d\n", Py_IsInitialized(), result);
    });
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"request_at_exit", request_at_exit, METH_VARARGS, nullptr},
                           {"torch_allocator", torch_allocator, METH_VARARGS, nullptr},
                           {"malloc_in_thread", malloc_in_thread, METH_O, nullptr},
                           {"set_releases", set_releases, METH_O, nullptr},
                           {"torch_exceptions", torch_exceptions, METH_NOARGS, nullptr},
                           {"set_stream", set_stream, METH_O, nullptr},
                           {"set_device", set_device, METH_O, nullptr},
                           {"get_device", get_device, METH_NOARGS, nullptr},
                           {"set_catches", set_catches, METH_O, nullptr},
                           {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "standin", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit_standin() {
    PyObject *module = PyModule_Create(&definition);
    PyObject *memory = PyType_FromSpec(&memory_spec), *allocator = PyType_FromSpec(&allocator_spec), *buffer = PyType_FromSpec(&buffer_spec);
    PyObject *stream = PyCapsule_New(reinterpret_cast<void *>(current_stream), "intptr_t (void)", nullptr);
    PyObject *exported = PyDict_New();
    if (module == nullptr || memory == nullptr || allocator == nullptr || buffer == nullptr || stream == nullptr || exported == nullptr) return nullptr;
    memory_type = reinterpret_cast<PyTypeObject *>(memory);
    if (PyDict_SetItemString(exported, "get_current_stream_ptr", stream) != 0) return nullptr;
    if (PyModule_AddObject(module, "__pyx_capi__", exported) != 0) return nullptr;
    if (PyModule_AddObject(module, "CFunctionAllocator", allocator) != 0) return nullptr;
    if (PyModule_AddObject(module, "Buffer", buffer) != 0) return nullptr;
    return module;
}
