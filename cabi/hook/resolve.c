/*
 * The resolvers: dlsym (which NCCL's names pass too) and the runtime's
 * cudaGetDriverEntryPoint (cuGetProcAddress: map.c). Each asks the real one first and replaces its answer
 * only when that is an entry point of the table.
 *
 * dlsym with RTLD_NEXT or RTLD_DEFAULT answers relative to the object that
 * called it, which glibc knows by the return address. An ordinary call from here
 * would make every question ours, and a library that asks for its successor
 * would get itself. So all but driver names leave by a jump that keeps the
 * caller's return address on the stack; it is written in assembly because a C
 * tail call is one only at some optimisation levels.
 */
#define _GNU_SOURCE
#include "callers.h"
#include "linked.h"
#include "map.h"
#include "nccl.h"
#include "real.h"
#include "shared.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static void *no_dlsym(void *handle, const char *name) {
    (void)handle, (void)name;
    static const char text[] = "penstock: no dlsym in this C library (GLIBC_2.34 or GLIBC_2.2.5): run without the hook\n";
    ssize_t n = write(2, text, sizeof text - 1);
    (void)n;
    return NULL;
}

/* Names that are not the driver's, and yet have wrappers. */
static bool runtime_name(const char *name) { return !strncmp(name, "cudaGetDriverEntryPoint", 23); }

/* Whether psk_dlsym_driver handles this question. Called from the assembly below; must not set dlerror.
 * AddressSanitizer itself asks dlsym, before there is anything that its checks could read. */
__attribute__((used, visibility("hidden"), no_sanitize("address"))) int psk_dlsym_wants(void *handle, const char *name) {
    if (!psk_have_dlsym()) {
        __atomic_store_n(&psk_real_dlsym, no_dlsym, __ATOMIC_RELEASE);
        return 0;
    }
    if (!name || handle == RTLD_NEXT) return 0;
    if (name[0] == 'n') return psk_nccl_name(name);
    if (name[0] != 'c' || name[1] != 'u') return 0;
    if (handle == RTLD_DEFAULT) return psk_row_by_name(name) >= 0 || runtime_name(name);
    return (name[2] >= 'A' && name[2] <= 'Z') || runtime_name(name);
}

static void *runtime_wrapper(const char *name, void *real);
static bool runtime_export(void *p);

/* A driver (or cudaGetDriverEntryPoint, or NCCL) name, asked of a handle or of RTLD_DEFAULT. */
__attribute__((used, visibility("hidden"))) void *psk_dlsym_driver(void *handle, const char *name, void *caller) {
    int row = psk_row_by_name(name);
    void *p;
    if (handle == RTLD_DEFAULT) {
        /* This library is in the global scope, so the plain question would find
         * our own export even where the driver has no such function. */
        p = psk_symbol_behind(name);
        if (!p) p = psk_symbol_near(caller, name);
    } else {
        p = psk_real_dlsym(handle, name);
        if (!p) return NULL; /* dlerror says why */
    }
    if (p && (psk_linked_export(row, p) || runtime_export(p) || psk_nccl_export(p))) {
        /* The handle of the main program: found our export. What is behind it? */
        p = psk_symbol_behind(name);
    }
    if (!p) return psk_symbol_behind(name); /* NULL again, and dlerror says why */
    if (psk_nccl_name(name)) return psk_nccl_wrapper(name, p);
    return runtime_name(name) ? runtime_wrapper(name, p) : psk_substitute(p, name, PSK_ROUTE_DLSYM);
}

/* On entry the stack holds the caller's return address, and must again at the jump. */
#define DLSYM_ENTRY(label)                  \
    asm(".text\n"                           \
        ".p2align 4\n"                      \
        ".globl " label "\n"                \
        ".type " label ", @function\n" label ":\n" \
        ".cfi_startproc\n"                  \
        "endbr64\n"                         \
        "pushq %rdi\n"                      \
        ".cfi_adjust_cfa_offset 8\n"        \
        "pushq %rsi\n"                      \
        ".cfi_adjust_cfa_offset 8\n"        \
        "subq $8, %rsp\n"                   \
        ".cfi_adjust_cfa_offset 8\n"        \
        "call psk_dlsym_wants\n"            \
        "addq $8, %rsp\n"                   \
        ".cfi_adjust_cfa_offset -8\n"       \
        "popq %rsi\n"                       \
        ".cfi_adjust_cfa_offset -8\n"       \
        "popq %rdi\n"                       \
        ".cfi_adjust_cfa_offset -8\n"       \
        "testl %eax, %eax\n"                \
        "jne 1f\n"                          \
        "jmp *psk_real_dlsym(%rip)\n"       \
        "1: movq (%rsp), %rdx\n"            \
        "jmp psk_dlsym_driver\n"            \
        ".cfi_endproc\n"                    \
        ".size " label ", . - " label "\n")
asm(".hidden psk_real_dlsym");
DLSYM_ENTRY("psk_dlsym_new");
DLSYM_ENTRY("psk_dlsym_old");
asm(".symver psk_dlsym_new, dlsym@@GLIBC_2.34");
asm(".symver psk_dlsym_old, dlsym@GLIBC_2.2.5");

/* ---- cudaGetDriverEntryPoint ----
 * The runtime asks our cuGetProcAddress, so its answers are wrappers already;
 * these catch a runtime that resolved the driver before or beside us. More than
 * one runtime may be loaded: which one is meant is told by the caller. */

typedef CUresult (*entry_fn)(const char *, void **, unsigned long long, int *);
typedef CUresult (*entry_version_fn)(const char *, void **, unsigned, unsigned long long, int *);

static void *runtime_real(psk_callers *known, const char *name, void *caller) {
    void *p = psk_caller_real(known, caller);
    if (PSK_LIKELY(p != NULL)) return p;
    if (!psk_have_dlsym()) return NULL;
    p = psk_symbol_behind(name);
    if (!p) p = psk_symbol_near(caller, name);
    if (!p || runtime_export(p)) return NULL;
    psk_caller_found(known, caller, p);
    return p;
}

static CUresult replace(CUresult r, const char *symbol, void **pfn) {
    if (r == CUDA_SUCCESS && symbol && pfn && *pfn) *pfn = psk_substitute(*pfn, symbol, PSK_ROUTE_RUNTIME);
    return r;
}

#define CUDA_ERROR_RUNTIME_SYMBOL 500 /* cudaErrorSymbolNotFound */

/* Per name: the export, for ELF binding, and the wrapper that dlsym hands out for the first real one it saw. */
#define RUNTIME_ENTRY(name)                                                                              \
    static entry_fn first_##name;                                                                        \
    PSK_EXPORT CUresult name(const char *symbol, void **pfn, unsigned long long flags, int *status) {    \
        static psk_callers known;                                                                        \
        entry_fn real = (entry_fn)runtime_real(&known, #name, __builtin_return_address(0));              \
        return real ? replace(real(symbol, pfn, flags, status), symbol, pfn) : CUDA_ERROR_RUNTIME_SYMBOL; \
    }                                                                                                    \
    static CUresult handed_##name(const char *symbol, void **pfn, unsigned long long flags, int *status) { \
        return replace(first_##name(symbol, pfn, flags, status), symbol, pfn);                           \
    }
#define RUNTIME_ENTRY_VERSION(name)                                                                       \
    static entry_version_fn first_##name;                                                                 \
    PSK_EXPORT CUresult name(const char *symbol, void **pfn, unsigned version, unsigned long long flags, int *status) { \
        static psk_callers known;                                                                         \
        entry_version_fn real = (entry_version_fn)runtime_real(&known, #name, __builtin_return_address(0)); \
        return real ? replace(real(symbol, pfn, version, flags, status), symbol, pfn) : CUDA_ERROR_RUNTIME_SYMBOL; \
    }                                                                                                     \
    static CUresult handed_##name(const char *symbol, void **pfn, unsigned version, unsigned long long flags, int *status) { \
        return replace(first_##name(symbol, pfn, version, flags, status), symbol, pfn);                   \
    }
RUNTIME_ENTRY(cudaGetDriverEntryPoint)
RUNTIME_ENTRY(cudaGetDriverEntryPoint_ptsz)
RUNTIME_ENTRY_VERSION(cudaGetDriverEntryPointByVersion)
RUNTIME_ENTRY_VERSION(cudaGetDriverEntryPointByVersion_ptsz)

static const struct {
    const char *name;
    void *exported, *handed, *first;
} runtime_entries[] = {
    {"cudaGetDriverEntryPoint", cudaGetDriverEntryPoint, handed_cudaGetDriverEntryPoint, &first_cudaGetDriverEntryPoint},
    {"cudaGetDriverEntryPoint_ptsz", cudaGetDriverEntryPoint_ptsz, handed_cudaGetDriverEntryPoint_ptsz, &first_cudaGetDriverEntryPoint_ptsz},
    {"cudaGetDriverEntryPointByVersion", cudaGetDriverEntryPointByVersion, handed_cudaGetDriverEntryPointByVersion, &first_cudaGetDriverEntryPointByVersion},
    {"cudaGetDriverEntryPointByVersion_ptsz", cudaGetDriverEntryPointByVersion_ptsz, handed_cudaGetDriverEntryPointByVersion_ptsz, &first_cudaGetDriverEntryPointByVersion_ptsz},
};

static bool runtime_export(void *p) {
    for (size_t i = 0; i < sizeof runtime_entries / sizeof runtime_entries[0]; i++)
        if (p == runtime_entries[i].exported) return true;
    return false;
}

static void *runtime_wrapper(const char *name, void *real) {
    for (size_t i = 0; i < sizeof runtime_entries / sizeof runtime_entries[0]; i++) {
        if (strcmp(name, runtime_entries[i].name)) continue;
        void *none = NULL, **first = runtime_entries[i].first;
        if (__atomic_compare_exchange_n(first, &none, real, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            psk_keep(real); /* or one that is loaded again, elsewhere, would be a second */
            return runtime_entries[i].handed;
        }
        if (none == real) return runtime_entries[i].handed;
        return real; /* a second runtime: its answers still come from our cuGetProcAddress */
    }
    return real;
}
