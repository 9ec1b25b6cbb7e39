/* The real entry points: of the driver, by the rows of symbols.def, and dlsym itself. */
#ifndef PENSTOCK_HOOK_REAL_H
#define PENSTOCK_HOOK_REAL_H
#include "shared.h"

enum {
#define PSK_SYM(name, base, since, ptsz) PSK_ROW_##name,
#include "symbols.def"
#undef PSK_SYM
    PSK_ROWS
};

typedef struct psk_row {
    const char *name;  /* exported by libcuda */
    const char *base;  /* asked of cuGetProcAddress */
    int since;         /* CUDA version that introduced this signature */
    int ptsz;          /* stream 0 is the thread's own */
} psk_row;
extern const psk_row psk_rows[PSK_ROWS];
int psk_row_by_name(const char *name); /* -1: none */

extern void *(*psk_real_dlsym)(void *, const char *);
bool psk_have_dlsym(void);
/* Looks name up in the object that addr lies in and what that depends on. */
void *psk_symbol_near(void *addr, const char *name);
/* The definition behind this library in the global scope. */
void *psk_symbol_behind(const char *name);

typedef struct psk_driver {
    void *lib;
    struct {
        void *byname, *byproc; /* by its name, and as cuGetProcAddress answers; NULL when the driver lacks it */
    } entry[PSK_ROWS];
} psk_driver;
/* NULL until the process itself has loaded the driver: the hook never does. */
const psk_driver *psk_loaded_driver(void);
/* Any driver symbol, unhooked; NULL when the driver lacks it or is not loaded. */
void *psk_driver_symbol(const char *name);

extern void *_Atomic psk_real[PSK_ROWS];
void *psk_real_slow(int row);
/* The real entry point of a row. Never NULL: one that the driver lacks answers CUDA_ERROR_NOT_FOUND. */
static inline void *psk_real_ptr(int row) {
    void *p = atomic_load_explicit(&psk_real[row], memory_order_acquire);
    return PSK_LIKELY(p != NULL) ? p : psk_real_slow(row);
}
#define PSK_REAL(name) ((__typeof__(&psk_w_##name))psk_real_ptr(PSK_ROW_##name))
#endif
