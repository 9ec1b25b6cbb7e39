// Package roles says what each operand of each launch is to it: read, written or both.
//
// # Story
//
// A trace names the allocations that an operation touches. Whether it reads or writes
// them is known of copies and fills, and of launches whose accesses carry a mode. Of all
// others [Of] finds it out from what a whole job shows, by these signs, the first that
// there is:
//
//  1. What an operation touches first since it was allocated is its output.
//  2. The kernel's name says it: PyTorch's elementwise templates have their output first
//     and work in place where that comes twice; what works on lists of tensors (foreach)
//     reads and writes all of them.
//  3. The place says it. A place among a function's operands that is an output elsewhere is
//     read here when another one is the output, and else both. One that is never an
//     output is read, unless the launch would then have no output: it may write all.
//
// [OfFunction] is what a name alone says: where the output is, whether the function is
// known to repeat, and whether it is plain or a matrix product. It is for whoever has
// launches and no trace.
//
// # Caveats
//
// A launch without recorded modes may be told wrongly, so what follows from it is called
// inferred ([Roles.Inferred]). How much of an allocation is touched is not known: a write
// counts as one of some part, a read as one of everything. Names are those of PyTorch
// and of NVIDIA's libraries; other kernels are judged by place alone.
package roles
