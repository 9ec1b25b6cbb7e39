// Package ranks says which process of a training job this one is: the files that it
// writes have that in their names, and host memory is shared with those beside it.
//
// torchrun, and whatever else starts a process for each GPU, says so in variables:
// RANK of WORLD_SIZE processes, LOCAL_WORLD_SIZE of them on this host. They are not
// Penstock's, so what makes no sense in them is ignored and is never an error.
// Processes of a job that have no rank there are told apart by their GPUs; among them
// are workers of torch.multiprocessing, which the Python package marks (PENSTOCK_WORKER).
//
// # Invariants
//
//   - Outside of a job of several processes nothing changes: files have the names asked for.
//   - Of one job no two ranks have the same label, whatever host they are on.
//
// # Caveats
//
// Two processes without RANK have one label if they share a GPU, or if each sees
// but one. The variables count as they are when the engine starts; what a program says
// to torch.distributed alone is not known here.
package ranks
