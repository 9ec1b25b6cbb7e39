#include "python_stack.h"

#include <dlfcn.h>

namespace penstock {
namespace {

// Functions of the stable interface, or unchanged since 3.8.
struct Python {
    int (*initialized)();
    int (*finalizing)(); // NULL where the interpreter does not say
    void *(*thread)();   // the calling thread's state, NULL where Python does not know it
    int (*lock)();
    void (*unlock)(int);
    void *(*frame)();           // borrowed
    void *(*code)(void *);      // new reference
    void *(*back)(void *);      // new reference, or NULL
    int (*line)(void *);
    void *(*attribute)(void *, const char *); // new reference
    const char *(*text)(void *);
    void (*hold)(void *);
    void (*release)(void *);
    void (*fetch_error)(void **, void **, void **);
    void (*restore_error)(void *, void *, void *);
    bool usable;

    Python() {
        bool all = true;
        auto find = [&all](auto &f, const char *name) {
            f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(RTLD_DEFAULT, name));
            all = all && f;
        };
        find(initialized, "Py_IsInitialized");
        find(thread, "PyGILState_GetThisThreadState");
        find(lock, "PyGILState_Ensure");
        find(unlock, "PyGILState_Release");
        find(frame, "PyEval_GetFrame");
        find(code, "PyFrame_GetCode");
        find(back, "PyFrame_GetBack");
        find(line, "PyFrame_GetLineNumber");
        find(attribute, "PyObject_GetAttrString");
        find(text, "PyUnicode_AsUTF8");
        find(hold, "Py_IncRef");
        find(release, "Py_DecRef");
        find(fetch_error, "PyErr_Fetch");
        find(restore_error, "PyErr_Restore");
        usable = all;
        find(finalizing, "Py_IsFinalizing"); // from 3.13 on
        if (!finalizing) find(finalizing, "_Py_IsFinalizing");
    }

    // Whether the calling thread may wait for the interpreter's lock: not a thread that Python does not know, which has no
    // frames, nor at the end, when it would wait for ever.
    bool may_lock() const { return usable && initialized() && !(finalizing && finalizing()) && thread(); }
};

// Looked up when a stack is first taken: Python is there then, if it ever is.
const Python &python() {
    static const Python p;
    return p;
}

// An exception may be under way when memory is freed: it is put aside meanwhile, for nothing here is to change it.
struct ErrorAside {
    void *type, *value, *traceback;
    ErrorAside() { python().fetch_error(&type, &value, &traceback); }
    ~ErrorAside() { python().restore_error(type, value, traceback); }
};

std::string text_of(void *object, const char *attribute) {
    const Python &py = python();
    void *value = py.attribute(object, attribute);
    const char *text = value ? py.text(value) : nullptr;
    std::string copy = text ? text : "";
    if (value) py.release(value);
    return copy;
}

} // namespace

PythonStack::PythonStack(bool wanted) {
    if (!wanted || !python().may_lock()) return;
    const Python &py = python();
    state_ = py.lock();
    locked_ = true;
    ErrorAside aside;
    void *frame = py.frame(), *held = nullptr;
    while (frame) {
        if (void *code = py.code(frame)) places_.push_back({code, py.line(frame)});
        void *back = py.back(frame);
        if (held) py.release(held);
        frame = held = back;
    }
}

PythonStack::~PythonStack() {
    if (!locked_) return;
    for (const Place &p : places_) python().release(p.code);
    python().unlock(state_);
}

CodeText PythonStack::text(const Place &place) const {
    ErrorAside aside;
    return {text_of(place.code, "co_filename"), text_of(place.code, "co_name")};
}

void PythonStack::keep(const Place &place) const { python().hold(place.code); }

void release_code(const std::vector<void *> &codes) {
    const Python &py = python();
    if (codes.empty() || !py.may_lock()) return;
    int state = py.lock();
    for (void *code : codes) py.release(code);
    py.unlock(state);
}

} // namespace penstock
