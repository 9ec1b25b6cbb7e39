/*
 * Where in a Python program the calling thread is, through the interpreter's own
 * C interface, found by name: this library knows no Python at build time. Only
 * functions of the stable interface or unchanged since 3.9 are used.
 */
#define _GNU_SOURCE
#include "python_site.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct {
    int (*initialized)(void);
    int (*finalizing)(void);          /* NULL where the interpreter does not say */
    int (*lock)(void);
    void (*unlock)(int);
    void *(*frame)(void);             /* borrowed */
    void *(*code)(void *);            /* new reference */
    void *(*back)(void *);            /* new reference, or NULL */
    int (*line)(void *);
    void *(*attribute)(void *, const char *); /* new reference */
    void *(*modules)(void);                   /* borrowed */
    void *(*item)(void *, const char *);      /* borrowed */
    const char *(*text)(void *);
    void (*release)(void *);
    void (*clear)(void);
    int usable;
} py;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void) {
    *(void **)&py.initialized = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    *(void **)&py.finalizing = dlsym(RTLD_DEFAULT, "Py_IsFinalizing"); /* from 3.13 on */
    if (!py.finalizing) *(void **)&py.finalizing = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    *(void **)&py.lock = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    *(void **)&py.unlock = dlsym(RTLD_DEFAULT, "PyGILState_Release");
    *(void **)&py.frame = dlsym(RTLD_DEFAULT, "PyEval_GetFrame");
    *(void **)&py.code = dlsym(RTLD_DEFAULT, "PyFrame_GetCode");
    *(void **)&py.back = dlsym(RTLD_DEFAULT, "PyFrame_GetBack");
    *(void **)&py.line = dlsym(RTLD_DEFAULT, "PyFrame_GetLineNumber");
    *(void **)&py.attribute = dlsym(RTLD_DEFAULT, "PyObject_GetAttrString");
    *(void **)&py.modules = dlsym(RTLD_DEFAULT, "PyImport_GetModuleDict");
    *(void **)&py.item = dlsym(RTLD_DEFAULT, "PyDict_GetItemString");
    *(void **)&py.text = dlsym(RTLD_DEFAULT, "PyUnicode_AsUTF8");
    *(void **)&py.release = dlsym(RTLD_DEFAULT, "Py_DecRef");
    *(void **)&py.clear = dlsym(RTLD_DEFAULT, "PyErr_Clear");
    py.usable = py.initialized && py.lock && py.unlock && py.frame && py.code && py.back && py.line && py.attribute && py.modules && py.item && py.text && py.release &&
                py.clear;
}

/* The last two parts of a path. */
static const char *tail(const char *path) {
    const char *last = strrchr(path, '/');
    if (!last) return path;
    const char *p = last;
    while (p > path && p[-1] != '/') p--;
    return p;
}

/* Modules whose frames tell nothing about the program: packages with all that lies in their folders, and a file. They are
 * known by where they were imported from, as any folder of the program's own may bear such a name. */
static const struct {
    const char *name;
    int package;
} silent[] = {{"torch", 1}, {"penstock", 1}, {"contextlib", 0}};
enum { SILENT = sizeof silent / sizeof *silent };

struct place {
    void *file;       /* a Python string, to be released */
    const char *path; /* its text; NULL where the module is not imported */
};

static void find_silent(struct place places[SILENT]) {
    void *modules = py.modules();
    for (int i = 0; i < SILENT; i++) {
        void *module = modules ? py.item(modules, silent[i].name) : NULL;
        places[i].file = module ? py.attribute(module, "__file__") : NULL;
        places[i].path = places[i].file ? py.text(places[i].file) : NULL;
    }
    py.clear();
}

static int tells(const char *file, const struct place places[SILENT]) {
    if (file[0] == '<') return 0;
    for (int i = 0; i < SILENT; i++) {
        const char *path = places[i].path;
        if (!path) continue;
        const char *slash = strrchr(path, '/'); /* a package's file is the __init__.py in its folder */
        if (silent[i].package ? slash && !strncmp(file, path, (size_t)(slash + 1 - path)) : !strcmp(file, path)) return 0;
    }
    return 1;
}

static size_t frames(char *out, size_t capacity) {
    enum { FRAMES = 5, DEEPEST = 64 };
    size_t used = 0;
    void *frame = py.frame(), *held = NULL;
    struct place places[SILENT];
    find_silent(places);
    for (int depth = 0, kept = 0; frame && depth < DEEPEST && kept < FRAMES; depth++) {
        void *code = py.code(frame), *file = code ? py.attribute(code, "co_filename") : NULL, *name = code ? py.attribute(code, "co_name") : NULL;
        const char *f = file ? py.text(file) : NULL, *n = name ? py.text(name) : NULL;
        if (!f || !n) {
            py.clear();
        } else if (tells(f, places)) {
            int w = snprintf(out + used, capacity - used, "%s%s:%d %s", kept ? " < " : "", tail(f), py.line(frame), n);
            if (w > 0 && (size_t)w < capacity - used) {
                used += (size_t)w;
                kept++;
            } else {
                out[used] = 0;
                depth = DEEPEST;
            }
        }
        if (file) py.release(file);
        if (name) py.release(name);
        if (code) py.release(code);
        void *back = py.back(frame);
        if (held) py.release(held);
        frame = held = back;
    }
    if (held) py.release(held);
    for (int i = 0; i < SILENT; i++)
        if (places[i].file) py.release(places[i].file);
    return used;
}

/* What the calling thread noted last. */
static __thread char noted[512];

/* Frameworks let go of the interpreter's lock around their operations, so it is
 * taken here. The caller holds no lock of its own: a thread that has the
 * interpreter's may be waiting for it. */
void penstock_python_note_site(void) {
    noted[0] = 0;
    pthread_once(&once, find);
    if (!py.usable || !py.initialized() || (py.finalizing && py.finalizing())) return;
    int state = py.lock();
    frames(noted, sizeof noted);
    py.unlock(state);
}

const char *penstock_python_site(void) { return noted; }
