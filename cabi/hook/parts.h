/* Graphs that name more than the device may hold, cut into parts that are launched one after the other. */
#ifndef PENSTOCK_HOOK_PARTS_H
#define PENSTOCK_HOOK_PARTS_H
#include "nodes.h"
#include "shared.h"

typedef struct psk_part {
    CUgraphExec exec;
    CUgraph graph; /* that it was instantiated from */
} psk_part;

typedef struct psk_part_node {
    CUgraphNode node; /* of the graph that was cut, at its top */
    CUgraphNode own;  /* the same in its part's graph */
    uint32_t part;
} psk_part_node;

typedef struct psk_parts {
    size_t n, nnodes;
    psk_part *part;
    psk_part_node *node; /* in the order of their handles */
    CUevent launched;    /* recorded after the last part */
    bool once;           /* it has been */
} psk_parts;

/* How much the allocations take that are named. */
uint64_t psk_bytes_named(const psk_names *names);
/* Whether a graph with these may have parts: all is known of them when it is instantiated. */
bool psk_divisible(const psk_names *names);
/* Cuts a graph of which all names are given into parts of at most so many bytes, where one node does not name more; NULL: it
 * stays whole. For the driver the fills of the graph are on the device. */
psk_parts *psk_cut(CUgraph graph, const psk_names *names, uint64_t most, unsigned long long flags);
void psk_parts_free(psk_parts *p);
/* Where a node is, at the top of the graph that was cut; NULL when it is not. */
const psk_part_node *psk_part_of(const psk_parts *p, CUgraphNode node);

/* A graph never runs beside itself, on whichever streams it is launched: the stream waits for its last launch; and its last
 * part is on the stream. */
CUresult psk_parts_begin(psk_parts *p, CUstream s, int ptsz);
CUresult psk_parts_end(psk_parts *p, CUstream s, int ptsz);
void psk_parts_wait(const psk_parts *p); /* until its last launch is over */
#endif
