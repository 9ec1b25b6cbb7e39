/* What the nodes of a graph name. */
#ifndef PENSTOCK_HOOK_NODES_H
#define PENSTOCK_HOOK_NODES_H
#include "shared.h"

#define PSK_NO_FUNCTION UINT32_MAX

/* What one node names: addresses, as slots may change. */
typedef struct psk_node_names {
    CUgraphNode node;
    CUgraphNode top; /* of the instantiated graph, the one that the node is or is nested in */
    uint32_t function; /* id, of a kernel */
    uint32_t naddrs;
    bool opaque;
    bool fill;
    uint64_t *addrs;
    uint64_t host; /* what a copy from the host reads, where that may be a table of addresses: they are looked for at each launch */
    uint32_t host_bytes;
    uint32_t part; /* of its graph that it is in, 0 where that is whole */
    bool keeps; /* and the copy goes to where no launch will show them */
} psk_node_names;

/* Those of a graph, or a part of them. */
typedef struct psk_names {
    psk_node_names *list;
    size_t n, cap;
    bool failed; /* some are lacking */
} psk_names;

typedef struct psk_addresses {
    uint64_t *addrs;
    uint32_t n, cap;
    bool failed;
} psk_addresses;
void psk_collect(void *addresses, uint64_t addr);

/* All of a graph's; top NULL: its nodes are the top. The driver is asked. */
void psk_names_of_graph(psk_names *out, CUgraph graph, CUgraphNode top);
/* The nodes of a graph, *n of them, to be freed; NULL also of one without any, or when the driver does not say. */
CUgraphNode *psk_nodes(CUgraph graph, size_t *n);
int psk_node_type(CUgraphNode node); /* -1: the driver does not say */
CUgraph psk_child_of(CUgraphNode node); /* NULL: likewise */
bool psk_harmless(int type); /* nodes that reach none of our memory */

psk_node_names psk_unreadable(CUgraphNode node, CUgraphNode top);
psk_node_names psk_kernel_names(CUgraphNode node, CUgraphNode top, const CUDA_KERNEL_NODE_PARAMS *p, bool has_kern);
psk_node_names psk_memcpy_names(CUgraphNode node, CUgraphNode top, const CUDA_MEMCPY3D *p);
psk_node_names psk_memset_names(CUgraphNode node, CUgraphNode top, const CUDA_MEMSET_NODE_PARAMS *p);
psk_node_names psk_memops_names(CUgraphNode node, CUgraphNode top, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p);
void psk_push_batch(psk_names *out, CUgraphNode node, CUgraphNode top, const CUDA_MEMCPY_BATCH_NODE_PARAMS *p);
void psk_push(psk_names *s, psk_node_names names);
void psk_names_free(psk_node_names *list, size_t n);
extern atomic_bool psk_some_keep; /* a node of some graph does (keeps) */
#endif
