/* Where the parameters of a kernel may hold addresses. */
#ifndef PENSTOCK_HOOK_LAYOUT_H
#define PENSTOCK_HOOK_LAYOUT_H
#include "shared.h"

/* Where 8-byte aligned words lie in one parameter. In a list, words 0 are as many as a launch uses. */
typedef struct psk_param {
    uint16_t index; /* in kernelParams */
    uint16_t first; /* bytes from the value to the first aligned word */
    uint32_t words;
} psk_param;

#define PSK_LIST_SCANS 24

/* Lists of addresses of which a launch uses a part: see lists.c. */
typedef struct psk_list {
    enum { PSK_LIST_NONE, PSK_LIST_ROWS, PSK_LIST_BLOCKS } kind;
    uint32_t capacity;        /* addresses in a list */
    uint16_t blocks;          /* at most, of a grid */
    uint16_t elements_at;     /* where the first parameter has the elements of each tensor */
    uint16_t index_at;        /* and the tensor of each block, after which comes its chunk */
    uint8_t index_bytes;      /* of each */
    uint32_t nscan;
    psk_param scan[PSK_LIST_SCANS];
} psk_list;

typedef struct psk_layout {
    uint32_t id;       /* row of psk_shared.funcs */
    uint32_t nparams;
    uint32_t opaque;
    uint32_t nscan;
    uint32_t cached;   /* 0: made for one launch, freed after it */
    psk_list list;
    atomic_uint generation; /* that of func.c when last checked */
    psk_param scan[];
} psk_layout;

/* What is looked at in the parameters of a launch that uses so many entries. */
static inline const psk_param *psk_scan(const psk_layout *l, uint32_t used, uint32_t *n) {
    *n = PSK_UNLIKELY(used) ? l->list.nscan : l->nscan;
    return PSK_UNLIKELY(used) ? l->list.scan : l->scan;
}

/* The buffer that `extra` of a launch has its parameters in; false when there is none. */
static inline bool psk_extra_buffer(void **extra, const unsigned char **buffer, size_t *bytes) {
    *buffer = NULL;
    *bytes = 0;
    for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *bytes = *(const size_t *)extra[i + 1];
        else
            return false; /* an option this version does not know: its length is unknown too */
    }
    return *buffer != NULL || *bytes == 0;
}
#endif
