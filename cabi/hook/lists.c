/*
 * Lists of addresses that a kernel is given by value and uses a part of.
 *
 * PyTorch's concatenation and its operations on many tensors at once ("foreach", the default of its optimizers) are
 * launched with a structure that has room for some dozens of tensors. What a launch does not need is left as it
 * was: addresses that were used by launches before, or whatever was on the stack. Taken for what the kernel
 * touches, they keep other tensors on the device or bring them there, and where memory is searched for
 * addresses, a table of pointers that one of them leads to has the kernel searched for ever.
 *
 * Such a kernel is told by its name and by the size of its structure, which must be that of one in PyTorch's
 * aten/src/ATen/native/cuda (Shape.cu, CatArrInputTensorMetadata; MultiTensorApply.cuh, TensorListMetadata and
 * its kin). What a launch uses is told by its grid, and the structure must bear that out; else all
 * its words are looked at, as for any other kernel.
 */
#include "lists.h"
#include "address.h"
#include "shared.h"

#include <stdlib.h>
#include <string.h>

/* ---- concatenation: as many addresses as the grid has rows ---- */

#define MOST_LISTED 1024

/* n addresses, n offsets, sizes and counts of 4 bytes, n booleans; sizes and strides of four dimensions for one or for n. */
static uint32_t cat_capacity(uint64_t bytes) {
    const uint64_t strides = 2 * 4 * 4;
    for (uint32_t n = 1; n <= MOST_LISTED; n++) {
        uint64_t each = (8ull * n + 3 * 4ull * n + n + 3) / 4 * 4;
        if ((each + strides + 7) / 8 * 8 == bytes || (each + strides * n + 7) / 8 * 8 == bytes) return n;
    }
    return 0;
}

static void recognise_cat(psk_layout *l, const char *name) {
    if (l->nscan < 2 || !strstr(name, "CatArrInputTensorMetadata")) return;
    const psk_param *output = &l->scan[0], *inputs = &l->scan[1];
    if (output->index != 0 || output->first || output->words != 1 || inputs->index != 1 || inputs->first) return;
    psk_list *k = &l->list;
    if (!(k->capacity = cat_capacity(8ull * inputs->words))) return;
    k->kind = PSK_LIST_ROWS;
    k->scan[k->nscan++] = *output; /* of what follows only the list has addresses */
    k->scan[k->nscan++] = (psk_param){.index = 1};
}

static uint32_t rows_used(const psk_list *k, const unsigned char *list, unsigned rows) {
    if (rows > k->capacity) return 0;
    for (unsigned i = 0; i < rows; i++) {
        uint64_t word;
        memcpy(&word, list + 8 * i, 8);
        if (word && !psk_published(word)) return 0; /* an empty tensor has no address */
    }
    return rows;
}

/* ---- many tensors: those that the grid's blocks name ---- */

enum { DEPTHS = 5 };
/* By how many lists there are. The large ones are for drivers that take parameters of 32 KB. */
static const uint16_t most_tensors[2][DEPTHS] = {{110, 64, 48, 36, 30}, {770, 448, 336, 252, 210}};
static const uint16_t most_with_scalars[2][DEPTHS] = {{96, 64, 48, 36, 30}, {672, 448, 336, 252, 210}};
static const uint16_t most_blocks[2] = {320, 2240};

/* The number that stands at the begin of text. */
static unsigned number(const char *text, const char *before) {
    return strncmp(text, before, strlen(before)) ? 0 : (unsigned)strtoul(text + strlen(before), NULL, 10);
}

static void recognise_many(psk_layout *l, const char *name) {
    static const char fused[] = "FusedOptimizerTensorListMetadataI", scalars[] = "TensorListScalarListMetadataI", plain[] = "TensorListMetadataI";
    if (!l->nscan || l->scan[0].index != 0 || l->scan[0].first) return;
    const char *at;
    unsigned depth, steps = 0, scalar = 0; /* lists; of addresses of steps; bytes of a scalar for each tensor */
    if ((at = strstr(name, fused))) {
        depth = number(at + sizeof fused - 1, "Li");
        steps = 1;
    } else if ((at = strstr(name, scalars))) {
        at += sizeof scalars - 1;
        scalar = *at == 'f' ? 4 : *at == 'd' ? 8 : 0;
        depth = scalar ? number(at + 1, "Li") : 0;
    } else {
        depth = (at = strstr(name, plain)) ? number(at + sizeof plain - 1, "Li") : 0;
    }
    if (depth < 1 || depth > DEPTHS) return;
    psk_list *k = &l->list;
    for (unsigned large = 0; large < 2; large++) {
        unsigned n = (scalar ? most_with_scalars : most_tensors)[large][depth - 1], ns = most_with_scalars[large][depth - 1], blocks = most_blocks[large];
        size_t index = 8ull * n * (depth + 1) + 8ull * ns * steps + (size_t)scalar * n; /* where the tensor of each block is */
        size_t end = index + blocks * (1 + large);
        end = (end + 3) / 4 * 4 + 4ull * blocks;
        size_t bytes = 8ull * l->scan[0].words;
        if ((end + 7) / 8 * 8 != bytes && (end + 4 + 7) / 8 * 8 != bytes) continue; /* some have a number at the end */
        uint32_t others = l->nscan - 1;
        if (depth + steps + others > PSK_LIST_SCANS) return;
        k->kind = PSK_LIST_BLOCKS;
        k->elements_at = (uint16_t)(8 * n * depth);
        k->capacity = n, k->blocks = (uint16_t)blocks, k->index_at = (uint16_t)index, k->index_bytes = (uint8_t)(1 + large);
        for (unsigned d = 0; d < depth; d++) k->scan[k->nscan++] = (psk_param){.first = (uint16_t)(8 * n * d)};
        if (steps) k->scan[k->nscan++] = (psk_param){.first = (uint16_t)(8 * n * (depth + 1))};
        memcpy(&k->scan[k->nscan], &l->scan[1], others * sizeof *k->scan);
        k->nscan += others;
        return;
    }
}

#define CHUNK_ELEMENTS 65536 /* what a block works on */

static uint64_t number_at(const unsigned char *at, size_t bytes) {
    uint64_t n = 0;
    memcpy(&n, at, bytes); /* little-endian, as every machine with such a card */
    return n;
}

/* The blocks' tensors are 0, and then each time the same or the next; their chunks go up by one from 0, or for the first tensor
 * from where the launch before ended, to the last one of the tensor's elements. If that is not so, the structure is not the
 * one that it is taken for. */
static uint32_t blocks_used(const psk_list *k, const unsigned char *structure, unsigned blocks) {
    if (blocks > k->blocks) return 0;
    const unsigned char *tensors = structure + k->index_at, *elements = structure + k->elements_at;
    const unsigned char *chunks = structure + (k->index_at + k->blocks * k->index_bytes + 3) / 4 * 4;
    uint32_t last = 0;
    uint64_t next = number_at(chunks, 4), elements_of = number_at(elements, 8);
    for (unsigned b = 0; b < blocks; b++) {
        uint32_t tensor = (uint32_t)number_at(tensors + b * k->index_bytes, k->index_bytes);
        if (tensor != last) {
            if (b == 0 || tensor != last + 1 || tensor >= k->capacity || next != (elements_of + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS) return 0;
            last = tensor, next = 0, elements_of = number_at(elements + 8 * tensor, 8);
        }
        if (number_at(chunks + 4 * b, 4) != next++ || next > (elements_of + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS) return 0;
    }
    return last + 1;
}

/* ---- */

static atomic_int unknown; /* a version of PyTorch runs in which nobody has looked whether its structures are these */

PSK_EXPORT void penstock_hook_expect_lists(int known) { atomic_store(&unknown, !known); }

void psk_list_recognise(psk_layout *l, const char *name) {
    l->list = (psk_list){0};
    if (l->opaque || atomic_load(&unknown)) return;
    if (strstr(name, "CatArrayBatchedCopy"))
        recognise_cat(l, name);
    else if (strstr(name, "multi_tensor_apply_kernel"))
        recognise_many(l, name);
}

uint32_t psk_list_used(const psk_layout *l, void **params, unsigned columns, unsigned rows) {
    const psk_list *k = &l->list;
    if (PSK_LIKELY(k->kind == PSK_LIST_NONE) || !params || columns == 0 || rows == 0) return 0;
    for (uint32_t i = 0; i < k->nscan; i++)
        if (!params[k->scan[i].index]) return 0;
    if (k->kind == PSK_LIST_ROWS) return rows_used(k, params[1], rows);
    return blocks_used(k, params[0], columns);
}
