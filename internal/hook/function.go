package hook

// #include "penstock_hook.h"
import "C"

// What is no kernel of its own has a number above those of functions: graphs, then NCCL's calls.
const (
	graphs      = C.PSK_MAX_FUNCS
	collectives = graphs + 1
)

var collectiveNames = [...]string{
	C.PSK_NCCL_ALL_REDUCE:     "ncclAllReduce",
	C.PSK_NCCL_REDUCE:         "ncclReduce",
	C.PSK_NCCL_BROADCAST:      "ncclBroadcast",
	C.PSK_NCCL_BCAST:          "ncclBcast",
	C.PSK_NCCL_ALL_GATHER:     "ncclAllGather",
	C.PSK_NCCL_REDUCE_SCATTER: "ncclReduceScatter",
	C.PSK_NCCL_SEND:           "ncclSend",
	C.PSK_NCCL_RECV:           "ncclRecv",
	C.PSK_NCCL_GROUP:          "ncclGroupEnd",
	C.PSK_NCCL_ALL_TO_ALL:     "ncclAlltoAll",
	C.PSK_NCCL_GATHER:         "ncclGather",
	C.PSK_NCCL_SCATTER:        "ncclScatter",
	C.PSK_NCCL_PUT:            "ncclPutSignal",
}

// Function is the number of what runs: a launch's function, the graph's, or the NCCL call's.
// FunctionName knows them all. A copy has none.
func (r *Record) Function() uint32 {
	switch r.Kind {
	case Graph:
		return graphs
	case Collective:
		return collectives + r.ID
	}
	return r.ID
}

// otherName is the name of what is no function.
func otherName(number uint32) string {
	switch n := number - collectives; {
	case number == graphs:
		return "CUDA graph"
	case n < uint32(len(collectiveNames)):
		return collectiveNames[n]
	}
	return ""
}
